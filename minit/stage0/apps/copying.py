"""
Copies between an app of a pod and this machine, as tars from one side to the other.

Paths mean what paths of docker's cp mean: `DIRECTORY/.` stands for the content, an existing directory gets a
new entry, and a name that does not exist becomes the name of the copy.
"""

from __future__ import annotations

import os
import posixpath
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from minit.archives.tar import TarReader
from minit.base.errors import PodError, describe
from minit.base.idrange import IdRange
from minit.stage0.apps.podfiles import AppPlace
from minit.stage0.files.treeplacing import TreePlacer
from minit.stage0.files.treetar import TreeWriter
from minit.stage0.pods.poddirectory import Note

_PATH = os.O_PATH | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20

Opener = Callable[[str, int], int]
"""Opens a path of a pod or of this machine with flags, following links."""


def copy_out(place: AppPlace, target: str, note: Note, *, archive: bool) -> None:
    """
    Copy from a pod to a path of this machine; `note` is told of files left out.

    All belongs to the caller, without set-id bits and attributes; with `archive` these and owners are kept. PodError,
    StoreError, ImageError.
    """
    owner = None if archive else (os.geteuid(), os.getegid())
    with _source(place.open, place.path) as source, _target(_open_here, target, source) as (root, name):
        _pump(source, name, place.ids, TreePlacer(root, owner, None, note), note, place)


def copy_in(source_path: str, place: AppPlace, note: Note, *, archive: bool) -> None:
    """Copy from this machine to a path of a pod, as `copy_out` does; in the pod all files belong to root."""
    _check_writable(place)
    with _source(_open_here, source_path) as source, _target(place.open, place.path, source) as (root, name):
        _pump(source, name, None, TreePlacer(root, _owner(place, archive=archive), place.ids, note), note)


def write_tar(place: AppPlace, write: Callable[[memoryview], object], note: Note) -> None:
    """Write the files at a path of a pod as a tar, under the path's last name."""
    with _source(place.open, place.path) as source:
        writer = TreeWriter(write, place.ids, note, lambda count: None, forgiving=True, is_live=True)
        source.add(writer, source.name or ".", place)
        writer.finish()


def read_tar(file: BinaryIO, place: AppPlace, note: Note, *, archive: bool) -> None:
    """Put the entries of a tar into a directory of a pod."""
    _check_writable(place)
    try:
        root = place.open(place.path, _PATH | os.O_DIRECTORY)
    except OSError as error:
        raise PodError(f"/{place.path}: expected a directory: {describe(error)}") from error
    try:
        placer = TreePlacer(root, _owner(place, archive=archive), place.ids, note)
        placer.place_all(TarReader(file, "standard input", rooted=True))
    finally:
        os.close(root)


def copy_content(source_path: str, place: AppPlace, target: str, note: Note) -> None:
    """
    Copy a file, or the content of a directory, to an absolute path of a place's root; missing directories are made.

    A file goes into the directory `target`, which exists or is announced by a slash at the end.
    """
    path = posixpath.normpath(f"/./{target}").lstrip("/")
    if os.path.isdir(source_path):
        source_path = f"{source_path}/."
        make_directories(place, path)
    else:
        make_directories(place, path if target.endswith("/") else posixpath.dirname(path))
    with _source(_open_here, source_path) as source, _target(place.open, path, source) as (root, name):
        _pump(source, name, None, TreePlacer(root, _owner(place, archive=False), place.ids, note), note)


def make_directories(place: AppPlace, path: str) -> None:
    """Make a missing directory of root's, 0755, and the missing directories above; links are followed."""
    try:
        os.close(place.open(path, _PATH | os.O_DIRECTORY))
    except FileNotFoundError:
        above, name = posixpath.split(path)
        make_directories(place, above)
        parent = place.open(above, _PATH | os.O_DIRECTORY)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise PodError(f"/{path}: expected a directory: {describe(error)}") from error


class _Source:
    """The source of a copy: the entry `name` of the directory `parent`, or without a name the directory's content."""

    def __init__(self, parent: int, name: str, *, content: bool) -> None:
        self.parent = parent
        self.name = name
        self.content = content
        mode = os.stat(name or ".", dir_fd=parent, follow_symlinks=False).st_mode
        self.is_directory = stat.S_ISDIR(mode)
        if stat.S_ISSOCK(mode):
            raise PodError(f"{name} is a socket, which cannot be copied")

    def add(self, writer: TreeWriter, name: str, place: AppPlace | None) -> None:
        """Add the source, at a place of an app, or on this machine."""
        if self.name:
            writer.add_entry(self.parent, self.name, name)
            return
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.parent)
        try:
            writer.add_tree(fd, name, () if place is None else place.left_out())
        finally:
            os.close(fd)


@contextmanager
def _source(opener: Opener, path: str) -> Iterator[_Source]:
    content = path == "." or path.endswith("/.")
    directory, name = posixpath.split(path.rstrip("/"))
    whole = content or name in ("", "..")
    try:
        parent = opener(path if whole else directory, _PATH | os.O_DIRECTORY)
    except OSError as error:
        raise PodError(f"cannot copy {path or '/'}: {describe(error)}") from error
    try:
        try:
            source = _Source(parent, "" if whole else name, content=content)
        except OSError as error:
            raise PodError(f"cannot copy {path}: {describe(error)}") from error
        yield source
    finally:
        os.close(parent)


@contextmanager
def _target(opener: Opener, path: str, source: _Source) -> Iterator[tuple[int, str]]:
    """Yield the directory of the copy, and the copy's name."""
    name = source.name or "."
    try:
        root = opener(path, _PATH)
    except FileNotFoundError:
        root = -1
    if root >= 0 and not stat.S_ISDIR(os.fstat(root).st_mode):
        os.close(root)
        root = -1
        if source.is_directory:
            raise PodError(f"cannot copy a directory to {path}, which is a file")
    if root < 0:
        directory, name = posixpath.split(path.rstrip("/"))
        if path.endswith("/") and not source.is_directory:
            raise PodError(f"cannot write to {path}: there is no such directory")
        try:
            root = opener(directory, _PATH | os.O_DIRECTORY)
        except OSError as error:
            raise PodError(f"cannot write to {path}: {describe(error)}") from error
    elif source.content:
        name = "."
    try:
        yield root, name
    finally:
        os.close(root)


def _pump(
    source: _Source, name: str, ids: IdRange | None, placer: TreePlacer, note: Note, place: AppPlace | None = None
) -> None:
    """Write a tar in an own thread, and read the tar in this thread."""
    reader_fd, writer_fd = os.pipe()
    failures: list[Exception] = []

    def write() -> None:
        try:
            with open(writer_fd, "wb", buffering=_CHUNK_BYTES) as pipe:
                writer = TreeWriter(
                    pipe.write, ids, note, lambda count: None, forgiving=True, is_live=place is not None
                )
                source.add(writer, name, place)
                writer.finish()
        except BrokenPipeError:
            pass  # the other side has failed, and says so
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with open(reader_fd, "rb", buffering=_CHUNK_BYTES) as pipe:
            placer.place_all(TarReader(pipe, "the copy"))
            while pipe.read(_CHUNK_BYTES):
                pass
    except Exception:
        thread.join()
        # An archive that ends early says less than the reason.
        if failures:
            raise failures[0] from None
        raise
    thread.join()
    if failures:
        raise failures[0]


def _open_here(path: str, flags: int) -> int:
    return os.open(path or ".", flags | os.O_CLOEXEC)


def _check_writable(place: AppPlace) -> None:
    if place.read_only:
        raise PodError(place.read_only)


def _owner(place: AppPlace, *, archive: bool) -> tuple[int, int] | None:
    if archive:
        return None
    shift = 0 if place.ids is None else place.ids.shift
    return shift, shift
