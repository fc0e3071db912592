"""
The Python modules of the stage1 image, their bytecode, and stand-ins for some of the standard library and of PyPI.

trio, structlog and others import the replaced modules for functions that a stage1 never calls. Without the originals
the image is a third smaller (2.6 MB, most of it OpenSSL), and PID 1 takes 6 MB less memory and is ready 13 ms sooner.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import minit
from minit.base.errors import ImageError
from minit.base.value import Value

STANDINS = {
    # structlog imports asyncio for asynchronous methods: PID 1 runs trio.
    "asyncio.py": "",
    # The original runs ldconfig and a compiler to find libraries of the host. The searched libraries are for threads,
    # which the C library has since glibc 2.34, and, by pyudev, libudev, which the image has.
    "ctypes/util.py": """\
def find_library(name):
    return {"pthread": "libc.so.6", "udev": "libudev.so.1"}.get(name)
""",
    # trio imports idna to resolve names that are not ASCII: PID 1 resolves no names.
    "idna.py": "",
    # structlog imports an error of pickle: PID 1 pickles nothing.
    "pickle.py": """\
class PicklingError(Exception):
    pass
""",
    # The package's own module loads all of pyroute2: a stage1 uses the classes of messages.
    "pyroute2/__init__.py": "",
    # The original loads multiprocessing. The classes of messages read these settings.
    "pyroute2/config.py": """\
AF_BRIDGE = 7
AF_NETLINK = 16
data_plugins_pkgs = []
data_plugins_path = []
""",
    # Sockets on asyncio, never made, and bases beside the classes of messages: minit.network.netlink has other sockets.
    "pyroute2/netlink/nlsocket.py": """\
class AsyncNetlinkSocket:
    pass
class NetlinkSocket:
    pass
""",
    # Each kind of link has a module with the class of the kind's data: a stage1 reads only the data of its plugins'
    # kinds.
    "pyroute2/netlink/rtnl/ifinfmsg/plugins.py": """\
from pyroute2.netlink import nla
class Kind:
    def __init__(self, name, *attributes):
        self.__name__ = name
        setattr(self, name, type(name, (nla,), {"prefix": "IFLA_", "nla_map": attributes}) if attributes else nla)
names = "bond can geneve gtp ipoib team tun tuntap vrf vti vti6 vxlan xfrm"
globals().update((name, Kind(name)) for name in names.split())
ipvlan = Kind("ipvlan", ("IFLA_IPVLAN_UNSPEC", "none"), ("IFLA_IPVLAN_MODE", "uint16"))
vlan = Kind("vlan", ("IFLA_VLAN_UNSPEC", "none"), ("IFLA_VLAN_ID", "uint16"))
""",
    # Messages of wireless links, which no pod has.
    "pyroute2/netlink/rtnl/iw_event.py": """\
from pyroute2.netlink import nla
class iw_event(nla):
    pass
""",
    # trio imports ssl for TLS streams: a stage1 never speaks TLS.
    "ssl.py": "",
    # trio's DTLS endpoints need pyOpenSSL: nothing in a stage1 opens one.
    "trio/_dtls.py": """\
class DTLSChannel:
    pass
class DTLSChannelStatistics:
    pass
class DTLSEndpoint:
    pass
""",
    # A megabyte of tables, used by attrs and tracebacks for names. Names are ASCII: in every normal form, and of one
    # column a character.
    "unicodedata.py": """\
def normalize(form, text, /):
    return text
def east_asian_width(character, /):
    return "N"
""",
    # pathlib imports urllib.parse to write file: URIs, which a stage1 never does. The original imports ipaddress and
    # unicodedata.
    "urllib/parse.py": """\
def quote_from_bytes(text):
    raise NotImplementedError(text)
""",
}
"""The texts of stand-ins, by the files of the replaced modules."""

PACKAGES = (
    "click",
    "trio",
    "structlog",
    "attr",
    "attrs",
    "outcome",
    "pyroute2",
    "pyudev",
    "sniffio",
    "sortedcontainers",
)
"""Packages beside the standard library and minit that may be in the image."""

_OURS = ("minit", "entrypoints")
_PROJECT = Path(minit.__file__).parent.parent
_SCRIPTS = Path(__file__).parent

# Modules for the host only, which would bring rich, codecs and this builder into the image; of the command a machine
# has a part.
_HOST_ONLY = (
    *("minit.cli", "minit.compose", "minit.containerfile", "minit.cri", "minit.kubernetes", "minit.pods"),
    *("minit.stage0", "minit.archives", "minit.image"),
)

# The importers work without these modules: hashlib has own digests, shutil only loses archive formats.
_OMITTED = ("_hashlib", "_uuid", "bz2", "lzma", "zlib")

# The package's own module would import all others; used modules are imported one by one.
_EMPTIED = ("pyroute2",)


def write_standins(directory: Path) -> None:
    """Write the stand-ins below a directory."""
    for name, text in STANDINS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Module(Value):
    """A module of the image: the full name and the source file on this machine."""

    name: str
    source: Path

    @property
    def is_extension(self) -> bool:
        """Tell whether the file is a shared object."""
        return self.source.suffix == ".so"

    @property
    def bytecode_name(self) -> str:
        """Return the bytecode file of the module below the image's library directory."""
        path = self.name.replace(".", "/")
        return f"{path}/__init__.pyc" if self.source.name == "__init__.py" else f"{path}.pyc"


def entrypoint_names() -> list[str]:
    """Return the names of all entrypoints, sorted."""
    directory = _PROJECT / "entrypoints"
    names = sorted(path.stem for path in directory.glob("*.py") if not path.name.startswith("_"))
    if not names:
        raise ImageError(f"no entrypoints in {directory}: install all of minit")
    return names


def source_files() -> list[tuple[str, Path]]:
    """Return the files of minit that decide about the image, with names relative to the project."""
    return [
        (str(path.relative_to(_PROJECT)), path)
        for package in _OURS
        for pattern in ("*.py", "*.[ch]", "*.ld")
        for path in sorted((_PROJECT / package).rglob(pattern))
        if not module_name(path).startswith("minit.archives")
    ]


def source_directories() -> list[Path]:
    """Return the directories with files of minit, and the directories with packages."""
    ours = [
        Path(parent)
        for package in _OURS
        for parent, _, _ in os.walk(_PROJECT / package)
        if not parent.endswith("/__pycache__")
    ]
    return [*ours, *map(Path, sys.path)]


def package_versions() -> list[str]:
    """Return the names of the directories in which installers record the versions of PACKAGES."""
    # An import of importlib.metadata would take longer than the rest of the fingerprint.
    return sorted(
        path.name
        for directory in map(Path, package_directories())
        for package in PACKAGES
        for path in directory.glob(f"{package}-*-info")
    )


def stage1_modules(standins: Path) -> list[Module]:
    """
    Return every module of the image beside modules frozen into the interpreter, sorted by name.

    The stand-ins are written below the directory `standins`.
    """
    write_standins(standins)
    return record_modules(
        _own_modules(),
        directories=[str(_PROJECT), *package_directories()],
        allowed=(*_OURS, *PACKAGES),
        omitted=_OMITTED,
        standins=standins,
        emptied=_EMPTIED,
    )


def record_modules(
    names: Iterable[str],
    *,
    directories: Iterable[str],
    allowed: Iterable[str],
    omitted: Iterable[str],
    standins: Path = Path("/nonexistent"),
    emptied: Iterable[str] = (),
) -> list[Module]:
    """Return all modules that an import of `names` imports, sorted; record_imports.py has the other arguments."""
    # Whatever is compiled is kept, as of any import here: the dumpers import the same modules, and keep nothing.
    output = _run_script(
        *("record_imports.py", ["-B"] if sys.dont_write_bytecode else []),
        str(standins),
        ":".join(directories),
        ",".join(allowed),
        ",".join(omitted),
        ",".join(emptied),
        *names,
    )
    modules = [line.partition("\t") for line in output.splitlines()]
    return [Module(name=name, source=Path(source)) for name, _, source in sorted(set(modules))]


def landmark() -> Module:
    """Return `os`, a frozen module whose file shows an interpreter the library directory."""
    return Module(name="os", source=Path(os.__file__))


def compile_modules(modules: Iterable[Module], directory: Path) -> None:
    """Write the bytecode of `modules` below `directory`, which must have the directories of packages."""
    lines = [f"{module.name}\t{module.source}\t{directory / module.bytecode_name}\n" for module in modules]
    # Without columns: a traceback shows columns below a source line, and an image has no source.
    _run_script("compile_modules.py", ["-B", "-X", "no_debug_ranges"], standard_input="".join(lines))


def _own_modules() -> list[str]:
    names = []
    for package in _OURS:
        for path in sorted((_PROJECT / package).rglob("*.py")):
            name = module_name(path)
            # An import of a __main__ module would run the program.
            if path.stem != "__main__" and not name.startswith(_HOST_ONLY):
                names.append(name)
    return names


def module_name(path: Path) -> str:
    """Return the full name of minit's module in a file."""
    parts = path.relative_to(_PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_directories(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Return the directories with the packages; ImageError for a missing package."""
    directories = []
    for package in packages:
        specification = importlib.util.find_spec(package)
        places = specification and specification.submodule_search_locations
        if not places:
            raise _not_installed(package)
        # A package without `__init__` may be in several directories.
        directories += [str(Path(place).parent) for place in places]
    return list(dict.fromkeys(directories))


def _not_installed(package: str) -> ImageError:
    return ImageError(f"{package} is not installed: python3 -m pip install {package}")


def _run_script(script: str, options: Iterable[str], *arguments: str, standard_input: str = "") -> str:
    command = [sys.executable, "-I", "-S", "-X", "utf8", *options, str(_SCRIPTS / script), *arguments]
    done = subprocess.run(command, input=standard_input, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ImageError(f"{script}: {reason}")
    return done.stdout
