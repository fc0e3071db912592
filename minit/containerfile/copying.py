"""
COPY and ADD: files of a context or of another root, as entries for a new root.

Sources are resolved within the root that they come from, and the destination within the new root, by the kernel
(openat2, RESOLVE_IN_ROOT). Below a source no link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from minit.archives.filecontent import with_held_owner
from minit.archives.streams import Uncompressed
from minit.archives.tar import ENTRIES_LIMIT, TarReader
from minit.archives.tarentry import KINDS, Entry, Kind, entry_of, kept_attributes, new_entry
from minit.base.errors import ImageError, describe
from minit.base.userdatabase import DATABASES, GROUP, LARGEST_ID, USER, find_account, find_id
from minit.base.value import Value, replace
from minit.containerfile.ignore import Ignored, compile_pattern, is_pattern
from minit.containerfile.state import Copy, Document
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.stage0.apps.podfiles import AppPlace
from minit.stage0.files.treeplacing import Entries, TreePlacer, require_held
from minit.stage0.images.making import LIMITS

_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_PERMISSIONS = 0o1777
_DATABASE_BYTES = 16 << 20

Owner = tuple[int, int]


class Origin(Value):
    """The root that files are copied from; `label` is for errors, as `the context`."""

    root: int
    label: str
    ignored: Ignored = Ignored()
    is_image: bool = False
    """Whether files keep owners and set-id bits."""

    @property
    def owner(self) -> Owner | None:
        """The owner of all files, None for the owners that the files have."""
        return None if self.is_image else (0, 0)


class Source(Value):
    """A file or directory at a path of an origin; `name` is the last name that the user gave."""

    path: str
    name: str
    is_directory: bool


def find_sources(origin: Origin, patterns: Sequence[str]) -> list[Source]:
    """
    Return the sources in the order of the patterns; ImageError for a missing source.

    A pattern that fits nothing is none, if another one fits.
    """
    found = [source for pattern in patterns for source in _find(origin, pattern, may_miss=is_pattern(pattern))]
    return found or [source for pattern in patterns for source in _find(origin, pattern, may_miss=False)]


def _find(origin: Origin, pattern: str, *, may_miss: bool) -> list[Source]:
    cleaned = posixpath.normpath(f"/./{pattern}").lstrip("/")
    found = [""]
    for part in cleaned.split("/") if cleaned else []:
        if not is_pattern(part):
            found = [posixpath.join(path, part) for path in found]
            continue
        expression = compile_pattern(part.replace("**", "*"), pattern)
        found = [
            posixpath.join(path, name) for path in found for name in _names(origin, path) if expression.fullmatch(name)
        ]
    sources = [source for path in found for source in _source(origin, path)]
    if not sources and not may_miss:
        left_out = any(origin.ignored.leaves_out(path) for path in found)
        raise ImageError(f"{pattern}: {'left out by the ignore file' if left_out else f'not in {origin.label}'}")
    return sources


def _names(origin: Origin, path: str) -> list[str]:
    try:
        directory = syscalls.openat2(origin.root, path or ".", os.O_RDONLY | os.O_DIRECTORY, resolve=_IN_ROOT)
    except OSError:
        return []
    try:
        return sorted(os.listdir(directory), key=os.fsencode)
    finally:
        os.close(directory)


def _source(origin: Origin, path: str) -> Iterator[Source]:
    try:
        fd = syscalls.openat2(origin.root, path or ".", os.O_PATH, resolve=_IN_ROOT)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ImageError(f"{path}: {describe(error)}") from error
    try:
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    is_directory = stat.S_ISDIR(mode)
    if origin.ignored.leaves_out(path) and not (is_directory and origin.ignored.has_exceptions):
        return
    if not (is_directory or stat.S_ISREG(mode)):
        raise ImageError(f"{path}: neither a file nor a directory")
    yield Source(path=path, name=posixpath.basename(path), is_directory=is_directory)


class CopiedEntries:
    """
    The entries of a source: the content of a directory, or one file as `name`.

    All belong to `owner`, or with None to the owners of the source; `mode` is for all of them, if given.
    """

    def __init__(self, origin: Origin, source: Source, name: str, owner: Owner | None, mode: int | None) -> None:
        self._origin = origin
        self._source = source
        self._name = name
        self._owner = owner
        self._mode = mode
        self._file = -1
        self._linked: dict[tuple[int, int], str] = {}  # first paths of files with several links

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries, a directory before its content, by names."""
        self._linked.clear()
        with ExitStack() as stack:
            flags = os.O_RDONLY | (os.O_DIRECTORY if self._source.is_directory else os.O_NONBLOCK)
            top = syscalls.openat2(self._origin.root, self._source.path or ".", flags, resolve=_IN_ROOT)
            stack.callback(os.close, top)
            if self._source.is_directory:
                for number, entry in enumerate(self._walk(os.dup(top))):
                    if number >= ENTRIES_LIMIT:
                        raise ImageError(f"{self._source.path}: more than {ENTRIES_LIMIT} files")
                    yield entry
            else:
                yield self._regular(top, self._name)

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and data of the present file."""
        offset = 0
        while data := os.pread(self._file, size_bytes, offset):
            yield offset, data
            offset += len(data)

    def _walk(self, top: int) -> Iterator[Entry]:
        above: list[tuple[int, str, list[str]]] = []
        waiting: list[Entry] = []  # directories that are left out, unless something inside is not

        def enter(fd: int, path: str) -> None:
            above.append((fd, path, sorted(os.listdir(fd), key=os.fsencode, reverse=True)))

        try:
            enter(top, "")
            while above:
                fd, path, names = above[-1]
                if not names:
                    os.close(above.pop()[0])
                    if waiting and waiting[-1].path == path:
                        waiting.pop()
                    continue
                name = names.pop()
                below = posixpath.join(path, name)
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                is_out = self._origin.ignored.leaves_out(posixpath.join(self._source.path, below))
                if stat.S_ISDIR(status.st_mode):
                    if is_out and not self._origin.ignored.has_exceptions:
                        continue
                    waiting.append(self._entry(below, status))
                    if not is_out:
                        yield from waiting
                        waiting.clear()
                    enter(os.open(name, _DIRECTORY, dir_fd=fd), below)
                elif not is_out and stat.S_IFMT(status.st_mode) in KINDS:
                    yield from waiting
                    waiting.clear()
                    yield from self._leaf(fd, name, below, status)
        finally:
            for fd, _, _ in above:
                os.close(fd)

    def _leaf(self, directory: int, name: str, path: str, status: os.stat_result) -> Iterator[Entry]:
        if not stat.S_ISREG(status.st_mode):
            target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(status.st_mode) else ""
            yield self._entry(path, status, target)
            return
        if status.st_nlink > 1:
            first = self._linked.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                yield self._entry(path, status, first)._replace(kind=Kind.HARD_LINK)
                return
        fd = os.open(name, _FILE, dir_fd=directory)
        try:
            yield self._regular(fd, path)
        finally:
            os.close(fd)

    def _regular(self, fd: int, path: str) -> Entry:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: was replaced while it was read")
        self._file = fd
        return self._entry(path, status, size_bytes=status.st_size, xattrs=kept_attributes(fd))

    def _entry(
        self,
        path: str,
        status: os.stat_result,
        target: str = "",
        *,
        size_bytes: int = 0,
        xattrs: tuple[tuple[str, bytes], ...] = (),
    ) -> Entry:
        entry = entry_of(
            path,
            status,
            owner=self._owner,
            mtime_ns=status.st_mtime_ns,
            link_target=target,
            size_bytes=size_bytes,
            xattrs=xattrs,
        )
        if entry.kind is Kind.SYMLINK:
            return entry
        mode = entry.mode if self._origin.is_image else entry.mode & _PERMISSIONS
        return entry._replace(mode=mode if self._mode is None else self._mode)


class _DocumentEntries:
    """The file of a here-document."""

    def __init__(self, document: Document, owner: Owner | None, mode: int | None) -> None:
        self._data = document.content.encode("utf-8", "surrogateescape")
        self._entry = new_entry(document.name, Kind.FILE, 0o644 if mode is None else mode, size_bytes=len(self._data))
        self._owner = owner or (0, 0)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the only entry."""
        yield self._entry._replace(uid=self._owner[0], gid=self._owner[1])

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield the content."""
        yield 0, self._data


def digest_of(origin: Origin, sources: Sequence[Source]) -> str:
    """Return a digest of all that a copy takes from sources, but for times."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(repr((source.path, source.name, source.is_directory)).encode())
        entries = CopiedEntries(origin, source, source.name, None, None)
        for entry in entries:
            digest.update(repr(entry._replace(mtime_ns=0, atime_ns=0)).encode("utf-8", "surrogateescape"))
            if entry.kind is Kind.FILE:
                for offset, data in entries.pieces(_CHUNK_BYTES):
                    digest.update(b"%d " % offset)
                    digest.update(data)
    return digest.hexdigest()


def copy(action: Copy, origin: Origin, sources: Sequence[Source], root: int, note: Callable[[str], None]) -> None:
    """
    Carry out a COPY or ADD in the directory `root`.

    Files of a context become root's, without set-id bits; files of another root keep what they have.
    """
    owner = resolve_owner(root, action.owner) if action.owner else origin.owner
    place = AppPlace(root=root, path="", ids=None)
    target = action.target.strip("/")
    names_directory = action.target.endswith("/") or len(sources) + len(action.documents) > 1

    def put(entries: Entries, directory: str) -> None:
        with destination(root, directory, owner or (0, 0)) as top:
            _placer(top, note).place_all(entries)

    for source in sources:
        if source.is_directory:
            put(CopiedEntries(origin, source, "", owner, action.mode), target)
        elif not (action.unpacks and _unpack(origin, source, root, target, note)):
            directory, name = _place_of(place, target, source.name, is_directory=names_directory)
            put(CopiedEntries(origin, source, name, owner, action.mode), directory)
    for document in action.documents:
        directory, name = _place_of(place, target, document.name, is_directory=names_directory)
        put(_DocumentEntries(replace(document, name=name), owner, action.mode), directory)


def lay_out(origin: Origin, source: Source, directory: Path, note: Callable[[str], None]) -> Path:
    """Copy a source into an empty directory, and return the path of the copy."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o755)
        if source.path and source.is_directory:
            _dress(fd, origin, source)
        _placer(fd, note).place_all(CopiedEntries(origin, source, source.name, origin.owner, None))
    finally:
        os.close(fd)
    return directory if source.is_directory else directory / source.name


def _dress(directory: int, origin: Origin, source: Source) -> None:
    """Give a directory the owner and the mode of a source."""
    fd = syscalls.openat2(origin.root, source.path, os.O_PATH | os.O_DIRECTORY, resolve=_IN_ROOT)
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    os.fchown(directory, *(origin.owner or (status.st_uid, status.st_gid)))
    os.fchmod(directory, stat.S_IMODE(status.st_mode) & (0o7777 if origin.is_image else _PERMISSIONS))


def _placer(directory: int, note: Callable[[str], None]) -> TreePlacer:
    return TreePlacer(directory, None, None, note, renews_directories=True)


def _place_of(place: AppPlace, target: str, name: str, *, is_directory: bool) -> tuple[str, str]:
    """Return the directory and the name of a file at a destination."""
    if is_directory or not target:
        return target, name
    with suppress(OSError):
        fd = place.open(target, os.O_PATH)
        try:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                return target, name
        finally:
            os.close(fd)
    return posixpath.split(target)


@contextmanager
def destination(root: int, path: str, owner: Owner) -> Iterator[int]:
    """Yield a directory of a root, made if missing, as the directories above; new ones belong to `owner`."""
    fd = _open_directory(root, path, owner)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_directory(root: int, path: str, owner: Owner) -> int:
    try:
        return syscalls.openat2(root, path or ".", os.O_RDONLY | os.O_DIRECTORY, resolve=_IN_ROOT)
    except FileNotFoundError:
        above, name = posixpath.split(path)
        parent = _open_directory(root, above, owner)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
            return syscalls.openat2(parent, name, _DIRECTORY, resolve=_IN_ROOT)
        except FileExistsError as error:
            raise ImageError(f"/{path}: a link that leads nowhere") from error
        finally:
            os.close(parent)
    except OSError as error:
        raise ImageError(f"/{path}: expected a directory: {describe(error)}") from error


def _unpack(origin: Origin, source: Source, root: int, target: str, note: Callable[[str], None]) -> bool:
    """Unpack an archive, with the owners in there, into the destination; False for a file that is no archive."""
    with _archive(origin, source) as tar:
        try:
            if next(iter(tar), None) is None:
                return False
        except (ImageError, OSError, EOFError):
            return False
    with _archive(origin, source) as tar, destination(root, target, (0, 0)) as directory:
        entries = _ArchiveEntries(tar)
        _placer(directory, note).place_all(entries)
        if entries.top is not None:
            top = with_held_owner(entries.top, read_held_ids(), tar.fault)
            os.fchown(directory, top.uid, top.gid)
            os.fchmod(directory, top.mode)
    return True


class _ArchiveEntries:
    """The entries of an archive; `top` is the one of the directory itself, which others have no use for."""

    def __init__(self, tar: TarReader) -> None:
        self._tar = tar
        self.top: Entry | None = None
        self.pieces = tar.pieces

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries."""
        for entry in self._tar:
            if not entry.path and entry.kind is Kind.DIRECTORY:
                self.top = entry
            yield entry


@contextmanager
def _archive(origin: Origin, source: Source) -> Iterator[TarReader]:
    fd = syscalls.openat2(origin.root, source.path, os.O_RDONLY, resolve=_IN_ROOT)
    with open(fd, "rb", buffering=0) as file:
        stream = io.BufferedReader(Uncompressed(file, source.path, LIMITS), _CHUNK_BYTES)
        yield TarReader(stream, source.path, rooted=True)


def resolve_owner(root: int, text: str) -> Owner:
    """
    Return the ids of `USER[:GROUP]`, looked up in the files of the root.

    ImageError for an unknown name, StoreError for an owner that no file can get here.
    """
    user, colon, group = text.partition(":")
    uid = _resolve(root, USER, user)
    account = find_account(_database(root, USER), None if user.isdigit() else user.encode(), uid)
    gid = uid if account is None or account.gid is None or user.isdigit() else account.gid
    owner = uid, _resolve(root, GROUP, group) if colon else gid
    return require_held(owner, f"owner {text}", read_held_ids())


def _resolve(root: int, kind: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        if int(text) > LARGEST_ID:
            raise ImageError(f'"{text}" is no number of a {kind}')
        return int(text)
    found = find_id(_database(root, kind), kind, text.encode())
    if found is None and text != "root":
        raise ImageError(f'{kind} "{text}" is not in {DATABASES[kind]} of the image')
    return found or 0


def _database(root: int, kind: str) -> bytes:
    try:
        fd = syscalls.openat2(root, DATABASES[kind].lstrip("/"), os.O_RDONLY | os.O_NONBLOCK, resolve=_IN_ROOT)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return b""
        raise
    with open(fd, "rb") as file:
        return file.read(_DATABASE_BYTES)
