"""
Builds the stage1 image: the entrypoints with interpreter and libraries, in a tree that works in any directory.

stage0 runs the entrypoints on the host, from the pod directory or from the tree store, and PID 1 goes on importing when
the tree is its root. So nothing may be found by a path of the machine that built the image.

    entrypoints/NAME    copies of one static launcher (launcher.c)
    usr/lib/rkt/        links to one launcher, which is the plugins of networks
    usr/lib/minit/      the interpreter with libraries (interpreter.py), dumped where possible
                        and the first program of machines that boot from a disk (openroot.c)
    rkt/, opt/, etc/    the files of the stage1 contract
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import minit
from minit.base import carried, jsontext
from minit.base.errors import ImageError, describe
from minit.base.processors import this_processor
from minit.base.progress import Progress
from minit.image.aciwriter import AciWriter
from minit.image.dump.program import needed_files, obstacle, static_library
from minit.image.interpreter import (
    check_interpreter,
    compile_filters,
    copy_interpreter,
    dump_interpreter,
    loaded_libraries,
    require_all,
)
from minit.image.libraries import LibrarySearch
from minit.image.pythonmodules import (
    Module,
    entrypoint_names,
    package_versions,
    source_directories,
    source_files,
    stage1_modules,
)
from minit.image.toolchain import run_tool
from minit.manifest.image import APPC_VERSION
from minit.podfiles import paths

SHIPPED = Path(__file__).with_name("stage1.aci")
"""The image in a wheel or a package of minit: the machine needs nothing to build an image."""

ENTRYPOINT_ANNOTATIONS = {
    "run": "coreos.com/rkt/stage1/run",
    "enter": "coreos.com/rkt/stage1/enter",
    "gc": "coreos.com/rkt/stage1/gc",
    "stop": "coreos.com/rkt/stage1/stop",
    "app_add": "coreos.com/rkt/stage1/app/add",
    "app_start": "coreos.com/rkt/stage1/app/start",
    "app_stop": "coreos.com/rkt/stage1/app/stop",
    "app_rm": "coreos.com/rkt/stage1/app/rm",
    "attach": "coreos.com/rkt/stage1/attach",
    "control": paths.ANNOTATION_CONTROL,
    "gc_many": paths.ANNOTATION_GC_MANY,
}
"""The annotation under which stage0 finds each entrypoint (rkt, stage1-implementors-guide.md)."""

# By appc's names; launcher.c has the system calls of both.
_ARCHITECTURES = ("amd64", "aarch64")

_LAUNCHER = Path(__file__).parent / "launcher.c"
_OPENER_SOURCE = Path(__file__).parent / "openroot.c"
_LAUNCHER_FLAGS = (
    *("-std=gnu11", "-Os", "-Wall", "-Werror", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack"),
    *("-ffreestanding", "-nostdlib", "-static", "-fno-pie", "-no-pie"),
    # On by default in distributions; the first needs a C library.
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
)

_DIRECTORIES = (
    *("dev", "etc", "proc", "run", "sys", "tmp", "entrypoints"),
    *("rkt/env", "rkt/iottymux", "rkt/minit", "rkt/status", "opt/stage2", "etc/rkt/net.d"),
)
_PRIVATE = ("rkt/minit",)  # with the control socket of PID 1

_HOSTS_FALLBACK = """\
# For an app that is given no other hosts file.
127.0.0.1 localhost localhost.domain localhost4 localhost4.localdomain4

::1     ip6-localhost ip6-loopback localhost6 localhost6.localdomain6
fe00::0 ip6-localnet
ff00::0 ip6-mcastprefix
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
ff02::3 ip6-allhosts
"""

_OS_RELEASE = f"""\
NAME="minit stage1"
ID=minit
VERSION_ID={minit.__version__}
PRETTY_NAME="minit stage1 {minit.__version__}"
"""

# The networks that rkt's own stage1 images have, with rkt's addresses.
_NETWORKS = {
    "99-default.conf": {
        "cniVersion": "0.1.0",
        "name": "default",
        "type": "ptp",
        "ipMasq": True,
        "ipam": {"type": "host-local", "subnet": "172.16.28.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    },
    "99-default-restricted.conf": {
        "cniVersion": "0.1.0",
        "name": "default-restricted",
        "type": "ptp",
        "ipMasq": False,
        "restricted": True,
        "ipam": {"type": "host-local", "subnet": "172.31.0.0/16"},
    },
}


def build_stage1(output: Path, progress: Progress, *, plain: bool = False) -> str | None:
    """
    Write the stage1 image for this machine's architecture to `output`.

    The interpreter is dumped, unless `plain` is true or there is an obstacle, about which a line is returned.
    ImageError if a tool or a package is missing, or `output` cannot be written.
    """
    require_all()
    try:
        with TemporaryDirectory(prefix="minit-") as scratch:
            root = Path(scratch, "root")
            try:
                reason = _make_tree(root, Path(scratch), progress, plain)
            except OSError as error:
                # The error of a write has no file name, and there are two file systems that may be full.
                error.filename = error.filename or scratch
                raise
            progress("compressing", 5, 6)
            with AciWriter(output, stage1_manifest()) as writer:
                _write_tree(writer, root)
    except (ImageError, OSError) as error:
        raise ImageError(f"cannot build the stage1 image: {describe(error)}") from error
    progress("built", 6, 6)
    return reason and f"the interpreter is not dumped, so that pods take longer to start: {reason}"


def stage1_manifest() -> bytes:
    """Return the image manifest, with an annotation for every entrypoint."""
    names = entrypoint_names()
    annotations = {
        annotation: f"/entrypoints/{name}" for name, annotation in ENTRYPOINT_ANNOTATIONS.items() if name in names
    }
    annotations[paths.ANNOTATION_STATE_FORMAT] = str(carried.VERSION)
    annotations[paths.ANNOTATION_INTERFACE_VERSION] = str(paths.INTERFACE_VERSION)
    annotations[paths.ANNOTATION_ATTACH_OPTIONS] = ",".join(paths.ATTACH_OPTIONS)
    annotations[paths.ANNOTATION_RUN_OPTIONS] = ",".join(paths.RUN_OPTIONS)
    annotations[paths.ANNOTATION_ENTER_OPTIONS] = paths.ENTER_ROOT_FD
    labels = {"version": minit.__version__, "os": "linux", "arch": appc_architecture()}
    return jsontext.dump(
        {
            "acKind": "ImageManifest",
            "acVersion": APPC_VERSION,
            "name": paths.STAGE1_NAME,
            "labels": [{"name": name, "value": value} for name, value in labels.items()],
            "annotations": [{"name": name, "value": value} for name, value in annotations.items()],
        }
    )


def appc_architecture() -> str:
    """Return appc's name of this machine's processor; ImageError for a processor without stage1 images."""
    architecture = this_processor().appc
    if architecture not in _ARCHITECTURES:
        raise ImageError(f"this machine is {architecture}, not {' or '.join(_ARCHITECTURES)}")
    return architecture


def stage1_facts() -> str:
    """Return the facts that decide about the list of `stage1_sources`, and so about the fingerprint."""
    return f"{sys.version} {os.confstr('CS_GNU_LIBC_VERSION')} {sys.executable} {minit.__file__} {sys.path}"


def stage1_sources() -> list[Path]:
    """Return the files and directories that decide the fingerprint, which changes only with one of them."""
    interpreter = Path(sys.executable)
    files = [interpreter, *(path for _, path in source_files()), *loaded_libraries().values(), *needed_files()]
    return [*files, *source_directories(), *LibrarySearch().sources]


def stage1_fingerprint() -> str:
    """Return a hash of all inputs of the image, in a fraction of the time of a build."""
    digest = hashlib.sha256()
    for fact in (sys.version, os.confstr("CS_GNU_LIBC_VERSION"), *package_versions()):
        digest.update(f"{fact}\n".encode())
    for name, path in source_files():
        digest.update(f"{name}\n".encode() + path.read_bytes())
    for path in loaded_libraries().values():
        digest.update(path.read_bytes())
    if obstacle() is None:
        status = static_library().stat()
        digest.update(f"dumped {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def shipped_fingerprint() -> str | None:
    """Return a word that changes with the shipped image; None without a shipped image, as in a checkout."""
    try:
        information = SHIPPED.stat()
    except FileNotFoundError:
        return None
    # Files of two versions may have one mtime, which installers set: the kernel sets the ctime.
    return f"shipped-{information.st_size}-{information.st_mtime_ns}-{information.st_ctime_ns}"


def _make_tree(root: Path, scratch: Path, progress: Progress, plain: bool) -> str | None:
    """Return the reason why an interpreter that should be dumped is not dumped."""
    interpreter = root / "usr/lib/minit"
    progress("finding modules", 0, 6)
    modules = stage1_modules(scratch / "standins")
    progress("copying the interpreter", 1, 6)
    copy = scratch / "interpreter"
    copy_interpreter(copy, modules)
    progress("checking the interpreter", 2, 6)
    check_interpreter(copy, [module.name for module in modules])
    reason = None if plain else _dump(copy, interpreter, modules, scratch / "dump", progress)
    is_dumped = not plain and reason is None
    if not is_dumped:
        interpreter.parent.mkdir(parents=True, exist_ok=True)
        copy.rename(interpreter)
    compile_filters(interpreter)
    progress("compiling the launcher", 4, 6)
    _add_fixed_files(root)
    _add_entrypoints(root / "entrypoints", is_dumped)
    run_tool("cc", *_LAUNCHER_FLAGS, "-o", str(root / paths.MACHINE_ROOT_OPENER), str(_OPENER_SOURCE))
    return reason


def _dump(copy: Path, interpreter: Path, modules: list[Module], scratch: Path, progress: Progress) -> str | None:
    """Make `interpreter`, or return the reason why the dump is impossible."""
    reason = obstacle()
    if reason is None:
        progress("dumping the interpreter", 3, 6)
        scratch.mkdir()
        try:
            dump_interpreter(copy, interpreter, modules, int(stage1_fingerprint()[:8], 16), scratch)
        except ImageError as error:
            reason = describe(error)
            shutil.rmtree(interpreter)
    return reason


def _add_fixed_files(root: Path) -> None:
    for directory in _DIRECTORIES:
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "etc/hosts-fallback").write_text(_HOSTS_FALLBACK)
    (root / "etc/os-release").write_text(_OS_RELEASE)
    for name, network in _NETWORKS.items():
        (root / "etc/rkt/net.d" / name).write_bytes(jsontext.dump(network) + b"\n")
    (root / "etc/mtab").symlink_to("../proc/self/mounts")
    plugins = root / paths.PLUGINS
    plugins.mkdir(parents=True)
    to_root = os.path.relpath(root, plugins)
    for name in paths.BUILT_IN_PLUGINS:
        (plugins / name).symlink_to(f"{to_root}/entrypoints/{paths.PLUGIN_ENTRYPOINT}")


def _add_entrypoints(directory: Path, is_dumped: bool) -> None:
    first, *others = entrypoint_names()
    run_tool("cc", *_LAUNCHER_FLAGS, f"-DIS_DUMPED={is_dumped:d}", "-o", str(directory / first), str(_LAUNCHER))
    for name in others:
        shutil.copy(directory / first, directory / name)


def _write_tree(writer: AciWriter, root: Path) -> None:
    writer.add_directory("/")
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            writer.add_symlink(name, os.readlink(path))
        elif path.is_dir():
            writer.add_directory(name, 0o700 if name in _PRIVATE else 0o755)
        else:
            # Other bits of the mode come from the umask of the building process.
            writer.add_file(name, path, 0o755 if path.stat().st_mode & 0o100 else 0o644)
