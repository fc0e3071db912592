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
    # structlog imports it for its asynchronous methods: PID 1 runs trio.
    "asyncio.py": "",
    # It runs ldconfig and a compiler to find libraries of the host. It is asked for threads, which are in the C library
    # since glibc 2.34, and by pyudev for libudev, which the image carries.
    "ctypes/util.py": """\
def find_library(name):
    return {"pthread": "libc.so.6", "udev": "libudev.so.1"}.get(name)
""",
    # trio imports it to resolve names that are not ASCII: PID 1 resolves none.
    "idna.py": "",
    # structlog imports an error of it: PID 1 pickles nothing.
    "pickle.py": """\
class PicklingError(Exception):
    pass
""",
    # The package's own module loads all of pyroute2: a stage1 uses the classes of messages.
    "pyroute2/__init__.py": "",
    # It loads multiprocessing. These are the settings that the classes of messages look at.
    "pyroute2/config.py": """\
AF_BRIDGE = 7
AF_NETLINK = 16
data_plugins_pkgs = []
data_plugins_path = []
""",
    # Sockets on asyncio, never made, and bases beside the classes of messages: minit.network.netlink has its own.
    "pyroute2/netlink/nlsocket.py": """\
class AsyncNetlinkSocket:
    pass
class NetlinkSocket:
    pass
""",
    # Kinds of links have modules of their own, with the class of a kind's data: a stage1 looks only into those of its
    # plugins.
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
    # trio imports it for its TLS streams: a stage1 never speaks TLS.
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
    # A megabyte of tables that attrs and tracebacks ask about names, which are ASCII: in every normal form, and of one
    # column a character.
    "unicodedata.py": """\
def normalize(form, text, /):
    return text
def east_asian_width(character, /):
    return "N"
""",
    # pathlib imports it to write file: URIs, which nothing in a stage1 does. ipaddress and unicodedata come with it.
    "urllib/parse.py": """\
def quote_from_bytes(text):
    raise NotImplementedError(text)
""",
}
"""Their texts, by the files of the modules that they stand in for."""

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
"""Packages that may come into the image from outside the standard library and minit."""

_OURS = ("minit", "entrypoints")
_PROJECT = Path(minit.__file__).parent.parent
_SCRIPTS = Path(__file__).parent

# They run on the host only and would bring rich, codecs and this builder into the image; of the command there is what
# a machine has of it.
_HOST_ONLY = ("minit.cli", "minit.cri", "minit.stage0", "minit.archives", "minit.image")

# Their importers do without them: hashlib has its own digests, shutil only loses archive formats.
_OMITTED = ("_hashlib", "_uuid", "bz2", "lzma", "zlib")

# The package's own module would bring all others with it; those that are used are imported one by one.
_EMPTIED = ("pyroute2",)


def write_standins(directory: Path) -> None:
    """Write the modules below a directory."""
    for name, text in STANDINS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Module(Value):
    """A module to carry: its full name and the file it is loaded from here."""

    name: str
    source: Path

    @property
    def is_extension(self) -> bool:
        """Tell whether the file is a shared object."""
        return self.source.suffix == ".so"

    @property
    def bytecode_name(self) -> str:
        """Return the file below the image's library directory from which the module is loaded without a source."""
        path = self.name.replace(".", "/")
        return f"{path}/__init__.pyc" if self.source.name == "__init__.py" else f"{path}.pyc"


def entrypoint_names() -> list[str]:
    """Return the names of the entrypoints there are, sorted."""
    directory = _PROJECT / "entrypoints"
    names = sorted(path.stem for path in directory.glob("*.py") if not path.name.startswith("_"))
    if not names:
        raise ImageError(f"no entrypoints in {directory}: install all of minit")
    return names


def source_files() -> list[tuple[str, Path]]:
    """Return the files of minit that decide what is in the image, with their names relative to the project."""
    return [
        (str(path.relative_to(_PROJECT)), path)
        for package in _OURS
        for pattern in ("*.py", "*.[ch]", "*.ld")
        for path in sorted((_PROJECT / package).rglob(pattern))
        if not module_name(path).startswith("minit.archives")
    ]


def source_directories() -> list[Path]:
    """Return the directories in which a new file of minit would be found, and those in which packages are."""
    ours = [
        Path(parent)
        for package in _OURS
        for parent, _, _ in os.walk(_PROJECT / package)
        if not parent.endswith("/__pycache__")
    ]
    return [*ours, *map(Path, sys.path)]


def package_versions() -> list[str]:
    """Return the names of the directories in which installers record the version of each of PACKAGES."""
    # Importing importlib.metadata would take longer than all the rest of the fingerprint.
    return sorted(
        path.name
        for directory in map(Path, package_directories())
        for package in PACKAGES
        for path in directory.glob(f"{package}-*-info")
    )


def stage1_modules(standins: Path) -> list[Module]:
    """
    Return every module the image needs beyond those frozen into the interpreter, sorted by name.

    The texts of some are written below the directory `standins`.
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
    """Return what an interpreter has imported that imported `names`, sorted; the rest is that of record_imports.py."""
    output = _run_script(
        "record_imports.py",
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
    """Return `os`, which is frozen, but whose file is how an interpreter recognizes its library directory."""
    return Module(name="os", source=Path(os.__file__))


def compile_modules(modules: Iterable[Module], directory: Path) -> None:
    """Write the bytecode of `modules` below `directory`, which must have their packages' directories."""
    lines = [f"{module.name}\t{module.source}\t{directory / module.bytecode_name}\n" for module in modules]
    _run_script("compile_modules.py", standard_input="".join(lines))


def _own_modules() -> list[str]:
    names = []
    for package in _OURS:
        for path in sorted((_PROJECT / package).rglob("*.py")):
            name = module_name(path)
            # A __main__ module runs its program when it is imported.
            if path.stem != "__main__" and not name.startswith(_HOST_ONLY):
                names.append(name)
    return names


def module_name(path: Path) -> str:
    """Return the full name of the module of ours that a file is."""
    parts = path.relative_to(_PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_directories(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Return the directories in which the packages are; ImageError if one is in none."""
    directories = []
    for package in packages:
        specification = importlib.util.find_spec(package)
        places = specification and specification.submodule_search_locations
        if not places:
            raise _not_installed(package)
        # One without a module of its own may be in several.
        directories += [str(Path(place).parent) for place in places]
    return list(dict.fromkeys(directories))


def _not_installed(package: str) -> ImageError:
    return ImageError(f"{package} is not installed: python3 -m pip install {package}")


def _run_script(script: str, *arguments: str, standard_input: str = "") -> str:
    # Without columns: a traceback shows them below a line of the source, of which an image has none.
    options = ("-I", "-S", "-B", "-X", "utf8", "-X", "no_debug_ranges")
    command = [sys.executable, *options, str(_SCRIPTS / script), *arguments]
    done = subprocess.run(command, input=standard_input, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ImageError(f"{script}: {reason}")
    return done.stdout
