"""The contents of an image: its paths, and the source of each."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from minit.base.errors import ImageError
from minit.base.progress import Progress
from minit.base.value import Value
from minit.image.aciwriter import AciWriter

_ROOT = PurePosixPath("/")
_MAX_SYMLINKS = 40  # as many as the kernel follows


class Directory(Value):
    """A directory owned by root."""

    mode: int = 0o755


class Symlink(Value):
    """A symlink owned by root."""

    target: str


class Text(Value):
    """A regular file owned by root, with this content."""

    text: str


class Copy(Value):
    """A regular file owned by root, with the content and the time of a file of this machine."""

    source: Path
    mode: int


class AsIs(Value):
    """A copy of a path of this machine, with its owner, times and all."""

    source: Path


Entry = Directory | Symlink | Text | Copy | AsIs


class Contents:
    """The entries of an image, each added after its parent."""

    def __init__(self) -> None:
        self._entries: dict[PurePosixPath, Entry] = {}

    def __contains__(self, path: PurePosixPath) -> bool:
        """Tell whether there is something at `path`, symlinks in the image followed."""
        return self.resolve(path) in self._entries

    def add(self, path: PurePosixPath, entry: Entry) -> None:
        """Add an entry where symlinks in the image lead; keep what is there already."""
        self._entries.setdefault(self.resolve(path.parent) / path.name, entry)

    def resolve(self, path: PurePosixPath) -> PurePosixPath:
        """Return where `path` leads inside the image, whether or not there is something."""
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
        """Add a directory of this machine, as the image's root, and everything below it, as it is."""
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
