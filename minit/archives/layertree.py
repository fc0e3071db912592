"""
The tree of layers that are applied one after the other, and the entry that each file comes from.

Whiteouts, opaque directories, files in the place of directories and the reverse, hard links to files of lower layers,
names that lead through a symbolic link: names are treated here as containerd treats files on disk. Only names and
link targets are kept in memory. Pure, and so apart from recipe.py. OCI layer.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from minit.archives.tar import DEPTH_LIMIT, NAME_LIMIT_BYTES
from minit.archives.tarentry import Kind, LayerEntry
from minit.base.errors import ImageError
from minit.base.value import Value

WHITEOUT_PREFIX = ".wh."
OPAQUE = ".wh..wh..opq"
# Files of aufs, in old images: no whiteouts, and removed at the end of the layer.
_AUFS_PREFIX = ".wh..wh."

ENTRIES_LIMIT = 2_000_000  # of all layers together
_LINKS_LIMIT = 40  # in one name, as in Linux
_DEPTH_LIMIT = DEPTH_LIMIT - 1  # below `rootfs`
_LENGTH_LIMIT = NAME_LIMIT_BYTES - len("rootfs/")

_LAYER_SHIFT = 32  # an entry's id: the number of the layer, and the number of the entry in the layer


Fault = Callable[[str, str], ImageError]
"""Makes the error about the entry of a path."""


class Plan(Value):
    """
    The fate of the entries, by id: the layer's number, shifted, and the number of the entry in the layer.

    `kept` has a byte for each entry of each layer, 1 for a written entry. `paths` has the new names of entries that are
    written under another name; `hard_links` the targets of entries that are written as hard links.
    `bare_directories` are empty directories without an entry, `additions` symbolic links, path and target, beside the
    layers.
    """

    kept: tuple[bytearray, ...]
    paths: dict[int, str]
    hard_links: dict[int, str]
    bare_directories: tuple[str, ...]
    additions: tuple[tuple[str, str], ...]


class _Directory:
    """A directory: the children, the entry with owner and mode, and the last layer with an entry below."""

    __slots__ = ("children", "entry", "pruned", "touched")

    def __init__(self, entry: int | None, layer: int) -> None:
        self.children: dict[str, int | _Directory] = {}
        self.entry = entry
        self.touched = layer
        self.pruned = -1  # the last layer that hid the content


class LayerTree:
    """Takes the entries of all layers, lowest first, and then returns a Plan."""

    def __init__(self) -> None:
        self._root = _Directory(None, 0)
        self._layer = -1
        self._counts: list[int] = []
        self._total = 0
        self._symlinks: dict[int, str] = {}
        self._links: dict[int, int] = {}  # a hard link to the entry that has the data
        self._moved: set[int] = set()  # entries whose names lead through a symbolic link
        # The directory of the entry before, which mostly is the directory of the next entry, too.
        self._parent_path: str | None = None
        self._parent: _Directory = self._root
        self._parent_moved = False

    def begin_layer(self) -> None:
        """Begin the next layer."""
        self._layer += 1
        self._counts.append(0)
        self._parent_path = None

    def add(self, entry: LayerEntry, fault: Fault) -> None:
        """Apply an entry; ImageError, by `fault`, for an impossible entry."""
        number = self._counts[-1]
        self._counts[-1] += 1
        self._total += 1
        if self._total > ENTRIES_LIMIT:
            raise fault(entry.path, f"is one of more than {ENTRIES_LIMIT} of all layers")
        key = self._layer << _LAYER_SHIFT | number
        path = entry.path
        if not path:
            if entry.kind is not Kind.DIRECTORY:
                raise fault(path, f"the top of a layer is a {entry.kind.value}")
            self._root.entry = key
            return
        directory, _, name = path.rpartition("/")
        if WHITEOUT_PREFIX in path and (path == OPAQUE or not path.startswith(_AUFS_PREFIX)):
            if f"/{WHITEOUT_PREFIX}" in f"/{directory}":
                raise fault(path, "lies below a whiteout")
            if name.startswith(WHITEOUT_PREFIX):
                self._white_out(entry, directory, name, fault)
                return
        parent = self._find_parent(directory, entry, fault)
        if entry.kind is Kind.HARD_LINK:
            self._links[key] = self._link_target(entry, fault)
        elif entry.kind is Kind.SYMLINK:
            self._symlinks[key] = entry.link_target
        if self._parent_moved:
            self._moved.add(key)
        before = parent.children.get(name)
        if entry.kind is Kind.DIRECTORY:
            if isinstance(before, _Directory):
                before.entry = key
                before.touched = self._layer
                return
            parent.children[name] = _Directory(key, self._layer)
        else:
            parent.children[name] = key
        if before is not None:
            self._parent_path = None  # the replaced file may be a directory, or a link, on the way to the parent

    def end_layer(self) -> None:
        """End a layer."""
        for name in [name for name in self._root.children if name.startswith(_AUFS_PREFIX)]:
            del self._root.children[name]

    def _has(self, path: str) -> bool:
        """Tell whether the tree has a file at `path`, or cannot have one, since a part of the path is no directory."""
        node: int | _Directory | None = self._root
        for part in path.split("/"):
            if not isinstance(node, _Directory):
                return node is not None
            node = node.children.get(part)
        return node is not None

    def plan(self, wanted_links: Sequence[tuple[str, str]] = ()) -> Plan:
        """Return the fate of the entries; missing ones of the symbolic links `wanted_links` are added."""
        kept = tuple(bytearray(count) for count in self._counts)
        paths: dict[int, str] = {}
        bare: list[str] = []
        sources = set(self._links.values())
        source_paths: dict[int, str] = {}
        links: list[tuple[int, str]] = []
        if self._root.entry is not None:
            _keep(kept, self._root.entry)
        for path, node in _walk(self._root, ""):
            if isinstance(node, _Directory):
                if node.entry is not None:
                    _keep(kept, node.entry)
                    if node.entry in self._moved:
                        paths[node.entry] = path
                elif not node.children:
                    bare.append(path)
            elif node in self._links:
                links.append((node, path))
            else:
                _keep(kept, node)
                if node in self._moved:
                    paths[node] = path
                if node in sources:
                    source_paths[node] = path
        hard_links: dict[int, str] = {}
        for key, path in sorted(links):
            source = self._links[key]
            if source in source_paths:
                _keep(kept, key)
                hard_links[key] = source_paths[source]
                if key in self._moved:
                    paths[key] = path
            else:  # the first name is gone: the first link gets the data
                _keep(kept, source)
                source_paths[source] = paths[source] = path
        return Plan(
            kept=kept,
            paths=paths,
            hard_links=hard_links,
            bare_directories=tuple(sorted(bare)),
            additions=tuple(link for link in wanted_links if not self._has(link[0])),
        )

    def _white_out(self, entry: LayerEntry, directory: str, name: str, fault: Fault) -> None:
        if entry.kind is Kind.DIRECTORY:
            raise fault(entry.path, "a whiteout that is a directory")
        hidden = name.removeprefix(WHITEOUT_PREFIX)
        if name != OPAQUE and name.startswith(_AUFS_PREFIX):
            return
        if hidden in ("", ".", ".."):
            raise fault(entry.path, "a whiteout of nothing")
        self._parent_path = None
        parents = self._walk_to(directory, entry, fault, create=False)
        if parents is None:
            return
        parent = parents[0][-1]
        if name == OPAQUE:
            self._prune(parent)
            return
        child = parent.children.get(hidden)
        if isinstance(child, _Directory):
            if child.touched == self._layer:
                self._prune(child)
                if child.entry is not None and child.entry >> _LAYER_SHIFT < self._layer:
                    child.entry = None
            if child.touched < self._layer or (child.entry is None and not child.children):
                del parent.children[hidden]
        elif child is not None and child >> _LAYER_SHIFT < self._layer:
            del parent.children[hidden]

    def _prune(self, directory: _Directory) -> None:
        """Remove the entries of lower layers from a directory; a directory is pruned once in a layer."""
        if directory.pruned == self._layer:
            return
        directory.pruned = self._layer
        left: dict[str, int | _Directory] = {}
        for name, child in directory.children.items():
            if isinstance(child, _Directory):
                if child.touched == self._layer:
                    self._prune(child)
                    if child.entry is not None and child.entry >> _LAYER_SHIFT < self._layer:
                        child.entry = None
                    if child.entry is not None or child.children:
                        left[name] = child
            elif child >> _LAYER_SHIFT == self._layer:
                left[name] = child
        directory.children = left

    def _find_parent(self, path: str, entry: LayerEntry, fault: Fault) -> _Directory:
        """Return the directory for an entry, made if need be."""
        if path != self._parent_path:
            found = self._walk_to(path, entry, fault, create=True)
            assert found is not None
            directories, self._parent_moved = found
            for directory in directories:
                directory.touched = self._layer
            self._parent_path, self._parent = path, directories[-1]
        return self._parent

    def _walk_to(
        self, path: str, entry: LayerEntry, fault: Fault, *, create: bool
    ) -> tuple[list[_Directory], bool] | None:
        """Return the directories on the way to `path`, and last of `path`, and whether the way has a symbolic link."""
        directories = [self._root]
        length = 0
        lengths: list[int] = []
        links = 0
        pending = path.split("/")[::-1]
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if lengths:
                    directories.pop()
                    length -= lengths.pop()
                continue
            child = directories[-1].children.get(part)
            if child is None:
                if not create:
                    return None
                child = directories[-1].children[part] = _Directory(None, self._layer)
            elif not isinstance(child, _Directory):
                target = self._symlinks.get(self._links.get(child, child))
                if target is None:
                    if not create:
                        return None
                    raise fault(entry.path, "a directory of its path is none")
                links += 1
                if links > _LINKS_LIMIT:
                    raise fault(entry.path, f"its path leads through more than {_LINKS_LIMIT} symbolic links")
                if target.startswith("/"):
                    del directories[1:], lengths[:]
                    length = 0
                pending.extend(target.split("/")[::-1])
                continue
            directories.append(child)
            lengths.append(len(part.encode(errors="surrogateescape")) + 1)
            length += lengths[-1]
            if len(lengths) >= _DEPTH_LIMIT or length + 256 > _LENGTH_LIMIT:
                raise fault(entry.path, f"is more than {_DEPTH_LIMIT} directories deep, or has too long a name")
        return directories, links > 0

    def _link_target(self, entry: LayerEntry, fault: Fault) -> int:
        directory, _, name = entry.link_target.rpartition("/")
        found = self._walk_to(directory, entry, fault, create=False)
        target = found[0][-1].children.get(name) if found is not None else None
        if target is None:
            raise fault(entry.path, f'a hard link to "{entry.link_target}", which is not there')
        if isinstance(target, _Directory):
            raise fault(entry.path, f'a hard link to "{entry.link_target}", which is a directory')
        return self._links.get(target, target)


def _keep(kept: tuple[bytearray, ...], key: int) -> None:
    kept[key >> _LAYER_SHIFT][key & (1 << _LAYER_SHIFT) - 1] = 1


def _walk(directory: _Directory, prefix: str) -> Iterator[tuple[str, int | _Directory]]:
    pending: list[tuple[str, _Directory]] = [(prefix, directory)]
    while pending:
        base, current = pending.pop()
        for name, child in current.children.items():
            path = base + name
            yield path, child
            if isinstance(child, _Directory):
                pending.append((path + "/", child))
