"""
The firmware of devices, which a kernel reads from /lib/firmware when a module asks for it (modinfo -F firmware).

Files are looked for where the kernel does so (request_firmware(9)), and compressed if it takes them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from minit.archives.streams import Limits, Uncompressed
from minit.base.errors import ImageError, describe
from minit.base.value import Value
from minit.image.kernelmodules import KernelModule, read_kernel_config

_MAXIMUM_BYTES = 256 << 20
_SUFFIXES = {".zst": "CONFIG_FW_LOADER_COMPRESS_ZSTD=y", ".xz": "CONFIG_FW_LOADER_COMPRESS_XZ=y"}
_WILDCARDS = "*?["


class DeviceFirmware(Value):
    """
    The firmware of modules: files by their names below /lib/firmware, and the names that were not found by module.

    Many modules name firmware for each device that they are for, of which a machine has one.
    """

    files: tuple[tuple[str, bytes], ...] = ()
    missing: tuple[tuple[str, tuple[str, ...]], ...] = ()


def collect_firmware(
    modules: Iterable[KernelModule], release: str, kernel: Path, directories: Sequence[Path]
) -> DeviceFirmware:
    """
    Return the firmware of modules from the first of the directories that has it; ImageError for a damaged file.

    A directory is like /lib/firmware, or an unpacked package. `kernel` is where the modules come from.
    """
    config = read_kernel_config(kernel)
    taken = {suffix for suffix, option in _SUFFIXES.items() if option in config}
    places = [
        place / below
        for directory in directories
        for place in (directory / "usr/lib/firmware", directory / "lib/firmware", directory)
        for below in (f"updates/{release}", "updates", release, "")
    ]
    files: dict[str, bytes] = {}
    missing: list[tuple[str, tuple[str, ...]]] = []
    for module in modules:
        absent = []
        for name in module.firmware:
            found = _find(name, places)
            files |= {target: data for path, base in found for target, data in [_read(path, base, taken)]}
            if not found:
                absent.append(name)
        if absent:
            missing.append((module.name, tuple(absent)))
    return DeviceFirmware(files=tuple(sorted(files.items())), missing=tuple(missing))


def _find(name: str, places: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the file of a name, or the files of a pattern, each with its name without the suffix of compression."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return []
    found: dict[str, Path] = {}
    for place in places:
        for suffix in ("", *_SUFFIXES):
            paths = sorted(place.glob(name + suffix)) if set(name) & set(_WILDCARDS) else [place / (name + suffix)]
            for path in paths:
                if path.is_file():
                    found.setdefault(str(path.relative_to(place)).removesuffix(suffix), path)
    return [(path, base) for base, path in found.items()]


def _read(path: Path, name: str, taken: Iterable[str]) -> tuple[str, bytes]:
    """Return the name of a file in the image, and its content, without a compression that the kernel does not take."""
    suffix = path.suffix if path.name != PurePosixPath(name).name else ""
    try:
        if not suffix or suffix in taken:
            return name + suffix, path.read_bytes()
        with path.open("rb") as file:
            return name, Uncompressed(file, str(path), Limits(size_bytes=_MAXIMUM_BYTES)).readall() or b""
    except OSError as error:
        raise ImageError(f"cannot read {describe(error)}") from error
