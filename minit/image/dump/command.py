"""Builds the program that starts the command with everything imported, on the machine where the program runs."""

from __future__ import annotations

import importlib.util
import os
import secrets
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from minit.archives.tarentry import Kind, TarWriter, new_entry
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.image.dump.program import (
    LINKED_IN,
    REPLACED,
    Recipe,
    link_dumper,
    make_profile,
    obstacle,
    static_library,
    write_dump,
)
from minit.image.libraries import LibrarySearch
from minit.image.pythonmodules import Module, module_name, package_directories, record_modules
from minit.manifest.image import APPC_VERSION

_PROJECT = Path(__file__).parents[3]
_WHOLE = (
    *("minit.archives", "minit.cli", "minit.compose", "minit.containerfile", "minit.image", "minit.kubernetes"),
    "minit.manifest",
    *("minit.pods", "minit.stage0"),
)
# Separate programs, and scripts that the builder reads as texts.
_LEFT_OUT = (
    *("minit.cli.machinegroup", "minit.cli.manual", "minit.cli.commands.slotcommands"),
    *(f"minit.image.dump.{name}" for name in ("features", "noting", "prepare")),
    *("minit.image.compile_modules", "minit.image.record_imports"),
    "minit.image.sign",
)
# Imported by name or in functions, so that imports of other modules do not show these modules.
_IMPORTED_LATE = (
    *("minit.__main__", "minit.linux.importedlate", "minit.linux.libcrypto", "encodings.idna"),
    "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
)
_PACKAGES = ("_yaml", "backports", "click", "rich", "yaml")
# The importers work without these modules. OpenSSL has memory of threads, which no dump has; look-ups of users and
# groups load libraries of the C library, which no static program can.
_OMITTED = ("_hashlib", "_sqlite3", "_ssl", "_uuid", "grp", "pwd")
_OPENSSL = "libcrypto."

# For the training, on pods without use.
_TRAINING_SECONDS = 60
"""The limit for one command, which takes less than a second."""
_STAGE1_PREFIX = "coreos.com/rkt/stage1/"
_ENTRYPOINTS = ("run", "enter", "stop", "gc")
_DIRECTORIES = ("etc", "opt", "opt/stage2", "rkt", "rkt/env", "rkt/status")


def build_command(output: Path) -> None:
    """
    Write the program to `output`; ImageError if the program cannot be made, or does not work.

    The arguments of the program are the path of the command in Python, and the command's arguments. The program
    executes the command in Python whenever a source file of the program has changed.
    """
    reason = obstacle()
    if reason is not None:
        raise ImageError(f"the command cannot be dumped: {reason}")
    standard = sysconfig.get_path("stdlib")
    modules = command_modules()
    extensions = [module.source for module in modules if module.is_extension]
    interpreter = Path(sys.executable).resolve()
    libraries = LibrarySearch().closure([interpreter, *extensions, *_openssl_module()])
    openssl = [library.name for library in libraries if library.name.startswith(_OPENSSL)]
    with TemporaryDirectory(prefix="minit-") as scratch:
        # Described before the files are read.
        sources = Path(scratch, "sources")
        parts = sorted(path for path in Path(__file__).parent.iterdir() if path.is_file())
        files = [*(module.source for module in modules), *(library.path for library in libraries)]
        sources.write_bytes(_describe_files([Path(sys.executable), interpreter, static_library(), *parts, *files]))
        objects = {*extensions, *(library.path for library in libraries if not library.name.startswith(LINKED_IN))}
        work = Path(scratch, "work")
        work.mkdir()
        link_dumper(objects, work)
        arguments = (
            *(str(sources), ":".join([*_directories(), standard, f"{standard}/lib-dynload"])),
            *(",".join(_OMITTED), "".join(openssl), sys.executable, sys.prefix, sys.base_prefix),
            *(module.name for module in modules),
        )
        recipe = Recipe(seed=secrets.randbits(32), modules=standard, arguments=arguments, scratch=work)
        write_dump(recipe, output, make_profile(recipe, _run_commands))
    if not is_current(output):
        raise ImageError("the command cannot be dumped: what was dumped does not work")


def command_modules() -> list[Module]:
    """Return the modules of the program, without modules that are frozen into every interpreter."""
    modules = record_modules(
        [*_IMPORTED_LATE, *_own_modules()],
        directories=_directories(),
        allowed=("minit", "entrypoints", *_PACKAGES),
        omitted=_OMITTED,
    )
    return [module for module in modules if module.name != REPLACED]


def is_current(program: Path) -> bool:
    """Tell whether the program works, and would not execute the command in Python instead."""
    command = [str(program), "/bin/false", "version"]
    try:
        return subprocess.run(command, env={}, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _describe_files(paths: Iterable[Path]) -> bytes:
    """Return the descriptions of files, which sources.c compares with the files."""
    texts = []
    for path in dict.fromkeys(paths):
        status = path.stat()
        seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
        texts += [os.fsencode(path), b"\0", struct.pack("=qqq", status.st_size, seconds, nanoseconds)]
    return b"".join(texts)


def _openssl_module() -> list[Path]:
    """Return the file of the module that needs OpenSSL, if this interpreter has the module."""
    spec = importlib.util.find_spec("_hashlib")
    return [Path(spec.origin)] if spec is not None and spec.has_location and spec.origin else []


def _own_modules() -> list[str]:
    names = ["entrypoints._dumped"]
    for package in _WHOLE:
        for path in sorted((_PROJECT / package.replace(".", "/")).rglob("*.py")):
            name = module_name(path)
            if not name.startswith(_LEFT_OUT):
                names.append(name)
    return names


def _directories() -> list[str]:
    return [str(_PROJECT), *package_directories(_PACKAGES)]


def _run_commands(program: Path) -> None:
    """Run the command `program` on pods that end at once; a failed command adds nothing to the profile."""
    with TemporaryDirectory(prefix="minit-") as name, suppress(OSError, subprocess.TimeoutExpired):
        scratch = Path(name)
        data, stage1, app, uuid = (scratch / name for name in ("data", "stage1.aci", "app.aci", "uuid"))
        _write_stage1(stage1)
        _write_app(app)

        def minit(*words: object) -> None:
            command = [str(word) for word in (program, "/bin/false", f"--dir={data}", *words)]
            subprocess.run(command, env={}, capture_output=True, check=False, timeout=_TRAINING_SECONDS)

        run = ("run", "--no-overlay", "--net=none", f"--stage1-path={stage1}", f"--uuid-file-save={uuid}", app)
        minit(*run, "--exec=/bin/true", "--", "argument")
        pod = uuid.read_text() if uuid.exists() else "none"
        for words in (["list"], ["status", pod], ["app", "list", pod], ["stop", pod], ["enter", pod, "true"]):
            minit(*words)
        minit("gc", "--grace-period=0s")


def _write_stage1(output: Path) -> None:
    annotations = [{"name": f"{_STAGE1_PREFIX}{name}", "value": f"/{name}"} for name in _ENTRYPOINTS]
    directories = [f"rootfs/{name}" for name in _DIRECTORIES]
    scripts = {f"rootfs/{name}": b"#!/bin/sh\n" for name in _ENTRYPOINTS}
    _write_image(output, _manifest("stage1", annotations=annotations), directories, scripts)


def _write_app(output: Path) -> None:
    manifest = _manifest("app", app={"exec": ["/bin/true"], "user": "0", "group": "0"})
    _write_image(output, manifest, ["rootfs/etc"], {})


def _write_image(output: Path, manifest: bytes, directories: Iterable[str], programs: Mapping[str, bytes]) -> None:
    """Write an ACI, not durably."""
    with open(output, "wb") as file:
        tar = TarWriter(file.write)
        for directory in ("rootfs", *directories):
            tar.add(new_entry(directory, Kind.DIRECTORY, 0o755))
        for path, content in {**programs, "manifest": manifest}.items():
            tar.add(new_entry(path, Kind.FILE, 0o755), data=content)
        tar.finish()


def _manifest(name: str, **fields: object) -> bytes:
    labels = [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}]
    kind = {"acKind": "ImageManifest", "acVersion": APPC_VERSION}
    return jsontext.dump({**kind, "name": f"minit/{name}", "labels": labels, **fields})
