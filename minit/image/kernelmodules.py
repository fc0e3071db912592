"""
The kernel modules that a machine's image carries: those that are named, and what these depend on.

Each module says itself what it depends on and which devices it is for (its section .modinfo), so neither depmod nor
its tables are needed, and a kernel package need not be installed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from minit import jsontext
from minit.archives.compression import Limits, Uncompressed
from minit.errors import ImageError
from minit.value import Value

_SECTION = b".modinfo"
_SUFFIXES = (".ko", ".ko.gz", ".ko.xz", ".ko.zst")
_MAXIMUM_BYTES = 256 << 20


class KernelModule(Value):
    """A kernel module: its content, the names of those it needs, and the patterns of MODALIAS it is for."""

    name: str
    data: bytes
    depends: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class KernelModules(Value):
    """Modules of one kernel, each after those it needs; `builtin` are those asked for that the kernel has in itself."""

    release: str
    modules: tuple[KernelModule, ...] = ()
    builtin: tuple[str, ...] = ()

    def table(self) -> bytes:
        """Return what the machine reads of them, as JSON."""
        return jsontext.dump(
            {
                "release": self.release,
                "modules": [
                    {"name": module.name, "depends": list(module.depends), "aliases": list(module.aliases)}
                    for module in self.modules
                ],
            }
        )


def collect_modules(directory: Path, names: Sequence[str]) -> KernelModules:
    """
    Return the modules `names` and all they need, from an unpacked kernel package or a directory /lib/modules/RELEASE.

    ImageError names a module that is not there.
    """
    top = _find_release(directory)
    files = {}
    for path in sorted(top.rglob("*.ko*")):
        suffix = next((suffix for suffix in _SUFFIXES if path.name.endswith(suffix)), None)
        if suffix is not None:
            files[_canonical(path.name.removesuffix(suffix))] = path
    builtin = _read_builtin(top)
    found: dict[str, KernelModule] = {}
    for name in names:
        _collect(_canonical(name), files, builtin, found, ())
    present = tuple(name for name in map(_canonical, names) if name not in files)
    return KernelModules(release=top.name, modules=tuple(found.values()), builtin=present)


def find_kernel(directory: Path) -> Path:
    """Return the kernel that the modules in `directory` are for; ImageError if it is not there."""
    top = _find_release(directory).resolve()
    places = [top / "vmlinuz", *(parent / f"boot/vmlinuz-{top.name}" for parent in top.parents[1:4])]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ImageError(f"{directory} has no kernel: expected boot/vmlinuz-{top.name} in it, or vmlinuz in {top}")
    return found


def _collect(
    name: str, files: dict[str, Path], builtin: set[str], found: dict[str, KernelModule], needed_by: tuple[str, ...]
) -> None:
    if name in found:
        return
    if name in needed_by:
        raise ImageError(f"kernel module {name} needs itself")
    if name not in files:
        if name in builtin:
            return
        asked = f", which {needed_by[-1]} needs" if needed_by else ""
        raise ImageError(f"there is no kernel module {name}{asked}")
    data = _read_module(files[name])
    information = list(_read_information(data, files[name]))
    depends = [value for key, value in information if key == "depends"]
    needs = tuple(_canonical(word) for value in depends for word in value.split(",") if word)
    for other in needs:
        _collect(other, files, builtin, found, (*needed_by, name))
    aliases = tuple(value for key, value in information if key == "alias")
    found[name] = KernelModule(
        name=name, data=data, depends=tuple(other for other in needs if other in found), aliases=aliases
    )


def _find_release(directory: Path) -> Path:
    """Return the directory of the modules of the one kernel that there is in `directory`."""
    if (directory / "kernel").is_dir():
        return directory.resolve()
    for place in ("lib/modules", "usr/lib/modules"):
        releases = sorted(path for path in (directory / place).glob("*") if (path / "kernel").is_dir())
        if len(releases) > 1:
            names = ", ".join(path.name for path in releases)
            raise ImageError(f"{directory} has modules of several kernels ({names}): name the directory of one")
        if releases:
            return releases[0]
    raise ImageError(f"{directory} has no kernel modules: expected lib/modules/RELEASE/kernel in it")


def _read_builtin(top: Path) -> set[str]:
    try:
        lines = (top / "modules.builtin").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return set()
    return {_canonical(Path(line).name.removesuffix(".ko")) for line in lines}


def _canonical(name: str) -> str:
    # The kernel takes both for the same.
    return name.replace("-", "_")


def _read_module(path: Path) -> bytes:
    with path.open("rb") as file:
        return Uncompressed(file, str(path), Limits(size_bytes=_MAXIMUM_BYTES)).readall() or b""


def _read_information(data: bytes, path: Path) -> Iterable[tuple[str, str]]:
    """Yield the pairs of the section .modinfo of a relocatable ELF file (elf(5))."""
    try:
        if data[:4] != b"\x7fELF":
            raise ValueError
        order = {1: "<", 2: ">"}[data[5]]
        # Offset, then size, number and index of the names' section, of the section headers; 64-bit and 32-bit.
        wide = data[4] == 2
        (start,) = struct.unpack_from(order + ("Q" if wide else "I"), data, 0x28 if wide else 0x20)
        size, count, names = struct.unpack_from(order + "HHH", data, 0x3A if wide else 0x2E)
        form = order + ("IIQQQQ" if wide else "IIIIII")
        headers = [struct.unpack_from(form, data, start + index * size) for index in range(count)]
        strings = headers[names][4]
        for name, _, _, _, offset, length in headers:
            if data[strings + name : strings + name + len(_SECTION) + 1] == _SECTION + b"\0":
                for pair in data[offset : offset + length].split(b"\0"):
                    key, equals, value = pair.decode("utf-8", "replace").partition("=")
                    if equals:
                        yield key, value
    except (struct.error, IndexError, KeyError, ValueError, OverflowError) as error:
        raise ImageError(f"{path}: not a kernel module") from error
