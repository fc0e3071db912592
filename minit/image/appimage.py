"""
Builds app images: an ACI from a directory, from programs of this machine with all that they load, or from both.

No collected program is executed: its needs are read from its `#!` line or its ELF headers. Files that a program opens
while it runs (plug-ins, data) are not known, except for the standard library of a Python interpreter.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from minit.base import jsontext
from minit.base.errors import ImageError, describe, reason_of
from minit.base.processors import this_processor
from minit.base.progress import Progress
from minit.base.value import Value
from minit.image.aciwriter import AciWriter
from minit.image.libraries import LibrarySearch, is_elf
from minit.manifest.image import APPC_VERSION, parse_image_manifest
from minit.manifest.names import sanitize_ac_name

_ROOT = PurePosixPath("/")
_MAX_SYMLINKS = 40  # as many as the kernel follows

# The PATH of an app, which `env` in a `#!` line will search.
_APP_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PYTHON = re.compile(r"python3\.\d+t?")
_PYTHON_DIRECTORIES_LEFT_OUT = (
    *("test", "idlelib", "turtledemo", "tkinter", "ensurepip", "__pycache__"),
    *("site-packages", "dist-packages"),  # not the standard library's
    "config-",  # to build an interpreter from
)
_PYTHON_EXTENSIONS_LEFT_OUT = ("_tkinter.", "_test", "_xxtest", "xxlimited")

# glibc loads this library by name when a thread is ended early, and aborts the program if the library is missing.
_THREAD_EXIT_LIBRARY = "libgcc_s.so.1"
_THREAD_EXIT_CALLS = (b"pthread_exit", b"pthread_cancel")


class Directory(Value):
    """A directory owned by root."""

    mode: int = 0o755


class Symlink(Value):
    """A symlink owned by root."""

    target: str


class Text(Value):
    """A regular file owned by root, with the content `text`."""

    text: str


class Copy(Value):
    """A regular file owned by root, with the content and the time of a file of this machine."""

    source: Path
    mode: int


class AsIs(Value):
    """A copy of a path of this machine, with owner, times and all."""

    source: Path


Entry = Directory | Symlink | Text | Copy | AsIs


class Contents:
    """The entries of an image, parents added first."""

    def __init__(self) -> None:
        self._entries: dict[PurePosixPath, Entry] = {}

    def __contains__(self, path: PurePosixPath) -> bool:
        """Tell whether the image has a file at `path`, symlinks in the image followed."""
        return self.resolve(path) in self._entries

    def add(self, path: PurePosixPath, entry: Entry) -> None:
        """Add an entry where symlinks in the image lead; keep an entry that is there already."""
        self._entries.setdefault(self.resolve(path.parent) / path.name, entry)

    def resolve(self, path: PurePosixPath) -> PurePosixPath:
        """Return where `path` leads inside the image, whether or not the image has a file there."""
        done, pending = _ROOT, list(reversed(path.parts[1:]))
        symlinks = 0
        while pending:
            part = pending.pop()
            done = done.parent if part == ".." else done / part
            target = self._symlink_target(done)
            if target is not None:
                symlinks += 1
                if symlinks > _MAX_SYMLINKS:
                    raise ImageError(f"{path}: too many levels of symbolic links in the image")
                pending += reversed(target.relative_to(_ROOT).parts if target.is_absolute() else target.parts)
                done = _ROOT if target.is_absolute() else done.parent
        return done

    def add_tree(self, source: Path) -> None:
        """Add a directory of this machine, as the image's root, with everything below, unchanged."""
        self._entries[_ROOT] = AsIs(source=source)
        pending = [source]
        while pending:
            directory = pending.pop()
            for path in sorted(directory.iterdir()):
                self._entries[_ROOT / path.relative_to(source)] = AsIs(source=path)
                if stat.S_ISDIR(path.lstat().st_mode):
                    pending.append(path)

    def write(self, writer: AciWriter, progress: Progress) -> None:
        """Write every entry, sorted by path, so that parents come first."""
        for done, path in enumerate(sorted(self._entries)):
            progress("packing files", done, len(self._entries))
            _write_entry(writer, str(path), self._entries[path])
        progress("packing files", len(self._entries), len(self._entries))

    def _symlink_target(self, path: PurePosixPath) -> PurePosixPath | None:
        entry = self._entries.get(path)
        if isinstance(entry, Symlink):
            return PurePosixPath(entry.target)
        if isinstance(entry, AsIs) and entry.source.is_symlink() and path != _ROOT:
            return PurePosixPath(os.readlink(entry.source))
        return None


def _write_entry(writer: AciWriter, name: str, entry: Entry) -> None:
    if isinstance(entry, Directory):
        writer.add_directory(name, entry.mode)
    elif isinstance(entry, Symlink):
        writer.add_symlink(name, entry.target)
    elif isinstance(entry, Text):
        writer.add_bytes(name, entry.text.encode())
    elif isinstance(entry, Copy):
        writer.add_file(name, entry.source, entry.mode, keeps_time=True)
    else:
        writer.add_as_is(name, entry.source)


class HostFiles:
    """Adds files of this machine to an image, at the same paths, where the image has nothing yet."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._search = LibrarySearch()
        self._programs: set[Path] = set()

    def add_program(self, path: Path) -> None:
        """Add a program, or a script with the interpreter; ImageError about a missing file, or a file of no program."""
        path = path.absolute()
        if path in self._programs:
            return
        self._programs.add(path)
        try:
            real_path = self._add_file(path)
            if is_elf(real_path):
                self._add_elf_program(real_path)
            else:
                for program in _script_programs(path):
                    self.add_program(program)
        except OSError as error:
            raise ImageError(f"cannot take {path} from this machine: {reason_of(error.errno or 0)}") from error

    def _add_elf_program(self, path: Path) -> None:
        interpreter = self._search.elf(path).interpreter
        loader = path if interpreter is None else self._add_file(Path(interpreter))
        self._add_libraries(path, loader.parent)
        if _PYTHON.fullmatch(path.name):
            self._add_standard_library(path, loader.parent)

    def _add_libraries(self, user: Path, loader_directory: Path) -> None:
        libraries = self._search.closure([user])
        if any(_ends_threads(path) for path in (user, *(library.path for library in libraries))):
            extra = self._search.find(_THREAD_EXIT_LIBRARY, user)
            libraries += [] if extra is None else [extra]
        for library in libraries:
            self._add_file(library.path)
            if library.configured:
                # The image has no /etc/ld.so.cache; the loader's own directory is always searched.
                link = PurePosixPath(loader_directory, library.name)
                self._contents.add(link, Symlink(target=str(library.path)))

    def _add_standard_library(self, interpreter: Path, loader_directory: Path) -> None:
        for path in _standard_library_files(interpreter):
            if path.suffix == ".so":
                try:
                    self._add_libraries(path, loader_directory)
                except ImageError:
                    continue  # an optional module whose library is not here either
            self._add_file(path)

    def _add_file(self, path: Path) -> Path:
        """Add a regular file with the directories and symlinks on the path; return the real path."""
        real_path = Path(os.path.realpath(path, strict=True))
        mode = real_path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ImageError(f"cannot take {path} from this machine: not a regular file")
        done, pending = Path("/"), list(reversed(path.parts[1:]))
        while pending:
            part = pending.pop()
            here = done.parent if part == ".." else done / part
            if here.is_symlink():
                target = here.readlink()
                self._contents.add(PurePosixPath(here), Symlink(target=str(target)))
                pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                done = Path("/") if target.is_absolute() else done
            else:
                done = here
                if done != real_path:
                    self._contents.add(PurePosixPath(done), Directory())
        self._contents.add(PurePosixPath(real_path), Copy(source=real_path, mode=stat.S_IMODE(mode)))
        if PurePosixPath(path) not in self._contents:
            # The image has a directory of its own where this machine has a symlink: /bin, /lib64.
            self._contents.add(PurePosixPath(path), Symlink(target=str(real_path)))
        return real_path


def _ends_threads(path: Path) -> bool:
    if path.name.startswith(("libc.", "libpthread.")):
        return False  # the library defines the functions
    data = path.read_bytes()
    return any(call in data for call in _THREAD_EXIT_CALLS)


def _script_programs(path: Path) -> Iterator[Path]:
    """Yield the interpreter of a script, and the program that `env` runs if `env` is the interpreter."""
    with path.open("rb") as file:
        line = file.readline(256)  # the kernel reads no more
    words = os.fsdecode(line[2:]).split()
    if not line.startswith(b"#!") or not words:
        raise ImageError(f"cannot take {path} from this machine: neither an ELF file nor a #! script")
    yield Path(words[0])
    if Path(words[0]).name == "env":
        command = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(command[0], path=_APP_PATH) if command else None
        if found is None:
            raise ImageError(f"cannot take {path} from this machine: its program is not in {_APP_PATH}: {line!r}")
        yield Path(found)


def _standard_library_files(interpreter: Path) -> Iterator[Path]:
    candidates = [interpreter.parent.parent / lib / interpreter.name for lib in ("lib64", "lib")]
    directories = [directory for directory in candidates if (directory / "os.py").exists()]
    if not directories:
        raise ImageError(f"no standard library of {interpreter} in {candidates[-1]}: install it")
    for parent, names, files in os.walk(directories[0]):
        names[:] = sorted(name for name in names if not name.startswith(_PYTHON_DIRECTORIES_LEFT_OUT))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(_PYTHON_EXTENSIONS_LEFT_OUT) and path.is_file():
                yield path


# Directories that a program expects of any root, beside the program and the libraries.
_BASICS = (
    (PurePosixPath("/"), Directory()),
    (PurePosixPath("/etc"), Directory()),
    (PurePosixPath("/etc/group"), Text(text="root:x:0:\n")),
    (PurePosixPath("/etc/passwd"), Text(text="root:x:0:0:root:/:/bin/sh\n")),
    (PurePosixPath("/tmp"), Directory(mode=0o1777)),
)


class ImageFields(Value):
    """The fields of a manifest that a user chooses; None, or an empty field, leaves the default or the base image's."""

    name: str = ""
    exec: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None
    ports: tuple[tuple[str, str, int], ...] = ()
    """Name, protocol and port."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Name and path."""
    labels: tuple[tuple[str, str], ...] = ()


def build_app_image(
    output: Path, fields: ImageFields, progress: Progress, *, rootfs: Path | None = None, from_host: Sequence[Path] = ()
) -> None:
    """
    Write an app image to `output`.

    The image has the files of `rootfs`, and where `rootfs` has nothing the programs `from_host` with libraries. The
    name defaults to the name of the first program or else of the directory, `exec` to the first program, user and group
    to root, the labels os and arch to this machine. After an ImageError or ManifestError there is no output.
    """
    if rootfs is None and not from_host:
        raise ImageError("nothing to make an image from: give a rootfs directory or programs of this machine")
    manifest = jsontext.dump(
        {
            "acKind": "ImageManifest",
            "acVersion": APPC_VERSION,
            "name": fields.name or sanitize_ac_name(_default_name(rootfs, from_host)),
            "labels": [{"name": key, "value": value} for key, value in _with_platform(fields.labels)],
            "app": _app(fields, from_host),
        }
    )
    parse_image_manifest(manifest, "image manifest")

    progress("collecting files", 0, None)
    contents = _collect(output, rootfs, from_host)
    with AciWriter(output, manifest) as writer:
        contents.write(writer, progress)


def _app(fields: ImageFields, from_host: Sequence[Path]) -> dict[str, object]:
    app: dict[str, object] = {
        "exec": [*(fields.exec or [str(path.absolute()) for path in from_host[:1]])],
        "user": fields.user or "0",
        "group": fields.group or "0",
        "environment": [{"name": key, "value": value} for key, value in fields.environment],
        "ports": [
            {"name": name, "protocol": protocol, "port": port, "count": 1, "socketActivated": False}
            for name, protocol, port in fields.ports
        ],
        "mountPoints": [{"name": name, "path": path} for name, path in fields.mounts],
    }
    if fields.working_directory is not None:
        app["workingDirectory"] = fields.working_directory
    return app


def _default_name(rootfs: Path | None, from_host: Sequence[Path]) -> str:
    if from_host or rootfs is None:
        return from_host[0].name
    return rootfs.resolve().name


def _with_platform(labels: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    # rkt prepares no app whose image lacks one of the two.
    given = {name for name, _ in labels}
    defaults = (("os", "linux"), ("arch", this_processor().appc))
    return [*labels, *(label for label in defaults if label[0] not in given)]


def _collect(output: Path, rootfs: Path | None, from_host: Sequence[Path]) -> Contents:
    contents = Contents()
    if rootfs is not None:
        if output.resolve().is_relative_to(rootfs.resolve()):
            raise ImageError(f"{output} is inside {rootfs}, which it is made from: put it elsewhere")
        try:
            contents.add_tree(rootfs.resolve())
        except OSError as error:
            raise ImageError(f"cannot read the rootfs: {describe(error)}") from error
    if from_host:
        host_files = HostFiles(contents)
        for program in from_host:
            host_files.add_program(program)
        for path, entry in _BASICS:
            contents.add(path, entry)
    return contents
