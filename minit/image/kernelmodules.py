"""
The kernel modules that the image of a machine carries, the modules that these depend on, and their firmware.

The section .modinfo of a module has its dependencies, its devices and the names of its firmware, so neither depmod nor
its tables are needed, and a kernel package need not be installed. Firmware is looked for in the directories and the
order of the kernel (request_firmware(9)), and stays compressed if the kernel reads compressed files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from minit.archives.streams import Limits, Uncompressed
from minit.base import jsontext
from minit.base.errors import ImageError, describe
from minit.base.value import Value, replace

_SECTION = b".modinfo"
_SUFFIXES = (".ko", ".ko.gz", ".ko.xz", ".ko.zst")
_MAXIMUM_BYTES = 256 << 20

_COMPRESSIONS = {".zst": "CONFIG_FW_LOADER_COMPRESS_ZSTD=y", ".xz": "CONFIG_FW_LOADER_COMPRESS_XZ=y"}
_WILDCARDS = "*?["


class KernelModule(Value):
    """
    A kernel module: the content, the names of required modules, and the patterns of MODALIAS of the devices.

    The modules in `pre` and `post` are optional, and better loaded before and after the module (modprobe.d(5),
    softdep). `firmware`, names or patterns of files, may be optional, too.
    """

    name: str
    data: bytes
    depends: tuple[str, ...] = ()
    pre: tuple[str, ...] = ()
    post: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()


class KernelModules(Value):
    """Modules of one kernel, in the order of loading; `builtin` has wanted modules that the kernel includes."""

    release: str
    modules: tuple[KernelModule, ...] = ()
    builtin: tuple[str, ...] = ()

    def table(self) -> bytes:
        """Return the table that the machine reads, as JSON."""
        return jsontext.dump(
            {
                "release": self.release,
                "modules": [
                    {
                        "name": module.name,
                        "before": [*module.depends, *module.pre],
                        "after": list(module.post),
                        "aliases": list(module.aliases),
                    }
                    for module in self.modules
                ],
            }
        )


def collect_modules(directory: Path, names: Sequence[str], aliases: Sequence[str] = ()) -> KernelModules:
    """
    Return the modules `names` with all dependencies, from an unpacked kernel package or /lib/modules/RELEASE.

    Modules of a softdep, and all modules with one of the `aliases`, are added if there are any. ImageError about a
    missing module.
    """
    top = _find_release(directory)
    package = _Package(top)
    found: dict[str, KernelModule] = {}
    for name in names:
        _collect(_canonical(name), package, found, ())
    _collect_softly(aliases, package, found, ())
    present = tuple(name for name in map(_canonical, names) if name not in package.files)
    return KernelModules(release=top.name, modules=tuple(found.values()), builtin=present)


def find_kernel(directory: Path) -> Path:
    """Return the kernel for the modules in `directory`; ImageError for a missing kernel."""
    top = _find_release(directory).resolve()
    found = _beside(top, "vmlinuz")
    if found is None:
        raise ImageError(f"{directory} has no kernel: expected boot/vmlinuz-{top.name} in it, or vmlinuz in {top}")
    return found


def read_kernel_config(directory: Path) -> frozenset[str]:
    """Return the lines of the kernel's configuration for the modules in `directory`; none without a configuration."""
    found = _beside(_find_release(directory).resolve(), "config")
    return frozenset() if found is None else frozenset(found.read_text(errors="replace").splitlines())


def _beside(top: Path, name: str) -> Path | None:
    """Return a file of the kernel with modules in `top`: there, or in the directory boot of the same tree."""
    places = [top / name, *(parent / f"boot/{name}-{top.name}" for parent in top.parents[1:4])]
    return next((place for place in places if place.is_file()), None)


class _Package:
    """The modules in a directory /lib/modules/RELEASE, by name."""

    def __init__(self, top: Path) -> None:
        self.files: dict[str, Path] = {}
        for path in sorted(top.rglob("*.ko*")):
            suffix = next((suffix for suffix in _SUFFIXES if path.name.endswith(suffix)), None)
            if suffix is not None:
                self.files[_canonical(path.name.removesuffix(suffix))] = path
        self.builtin = _read_builtin(top)

    @cached_property
    def by_alias(self) -> dict[str, list[str]]:
        """The names of modules by alias, as `crypto_crc32c`; several modules may have the same alias."""
        names: dict[str, list[str]] = {}
        for name, path in self.files.items():
            try:
                information = list(_read_information(_read_module(path), path))
            except ImageError:
                continue  # an error when the module itself is needed
            for key, value in information:
                if key == "alias":
                    names.setdefault(_canonical(value), []).append(name)
        return names

    def providers(self, name: str) -> list[str]:
        """Return the modules of a name in a softdep: the module of the name, or else modules with the alias."""
        if name in self.files or name in self.builtin:
            return [name] if name in self.files else []
        return self.by_alias.get(name, [])


def _collect(name: str, package: _Package, found: dict[str, KernelModule], needed_by: tuple[str, ...]) -> None:
    if name in found:
        return
    if name in needed_by:
        raise ImageError(f"kernel module {name} needs itself")
    if name not in package.files:
        if name in package.builtin:
            return
        asked = f", which {needed_by[-1]} needs" if needed_by else ""
        raise ImageError(f"there is no kernel module {name}{asked}")
    data = _read_module(package.files[name])
    information = list(_read_information(data, package.files[name]))
    depends = [value for key, value in information if key == "depends"]
    needs = tuple(_canonical(word) for value in depends for word in value.split(",") if word)
    for other in needs:
        _collect(other, package, found, (*needed_by, name))
    pre, post = parse_softdeps(value for key, value in information if key == "softdep")
    module = KernelModule(
        name=name,
        data=data,
        depends=tuple(other for other in needs if other in found),
        pre=_collect_softly(pre, package, found, (*needed_by, name)),
        aliases=tuple(value for key, value in information if key == "alias"),
        firmware=tuple(dict.fromkeys(value for key, value in information if key == "firmware")),
    )
    found[name] = module
    found[name] = replace(module, post=_collect_softly(post, package, found, ()))


def _collect_softly(
    words: Iterable[str], package: _Package, found: dict[str, KernelModule], needed_by: tuple[str, ...]
) -> tuple[str, ...]:
    """Collect the present modules of a softdep, and return the names."""
    collected = []
    for name in dict.fromkeys(one for word in words for one in package.providers(_canonical(word))):
        try:
            _collect(name, package, found, needed_by)
        except ImageError:
            continue  # the module is optional
        collected.append(name)
    return tuple(collected)


def parse_softdeps(values: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names before and after a module in softdeps, `pre: a b post: c` (modprobe.d(5))."""
    sides: dict[str, list[str]] = {"pre:": [], "post:": []}
    for value in values:
        side = None
        for word in value.split():
            if word in sides:
                side = word
            elif side is not None:  # modprobe too ignores names without a side
                sides[side].append(word)
    return sides["pre:"], sides["post:"]


def _find_release(directory: Path) -> Path:
    """Return the directory with the modules of the only kernel in `directory`."""
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
    # For the kernel both are the same.
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


class DeviceFirmware(Value):
    """
    The firmware of modules: files by name below /lib/firmware, and the missing names by module.

    Many modules name firmware for many devices, of which a machine has one.
    """

    files: tuple[tuple[str, bytes], ...] = ()
    missing: tuple[tuple[str, tuple[str, ...]], ...] = ()


def collect_firmware(
    modules: Iterable[KernelModule], release: str, kernel: Path, directories: Sequence[Path]
) -> DeviceFirmware:
    """
    Return the firmware of modules from the first directory with each file; ImageError for a damaged file.

    A directory is like /lib/firmware, or an unpacked package. `kernel` is the directory of the modules.
    """
    config = read_kernel_config(kernel)
    taken = {suffix for suffix, option in _COMPRESSIONS.items() if option in config}
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
    """Return the file of a name, or the files of a pattern, each with the name without suffix of compression."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return []
    found: dict[str, Path] = {}
    for place in places:
        for suffix in ("", *_COMPRESSIONS):
            paths = sorted(place.glob(name + suffix)) if set(name) & set(_WILDCARDS) else [place / (name + suffix)]
            for path in paths:
                if path.is_file():
                    found.setdefault(str(path.relative_to(place)).removesuffix(suffix), path)
    return [(path, base) for base, path in found.items()]


def _read(path: Path, name: str, taken: Iterable[str]) -> tuple[str, bytes]:
    """Return name and content of a file for the image, uncompressed if the kernel cannot uncompress the file."""
    suffix = path.suffix if path.name != PurePosixPath(name).name else ""
    try:
        if not suffix or suffix in taken:
            return name + suffix, path.read_bytes()
        with path.open("rb") as file:
            return name, Uncompressed(file, str(path), Limits(size_bytes=_MAXIMUM_BYTES)).readall() or b""
    except OSError as error:
        raise ImageError(f"cannot read {describe(error)}") from error
