"""
The files of images in rkt's layout: KIND/sha512/XX/ID below a store, with XX the first two hex digits of the ID.

A manifest exists only beside a complete blob or recipe, and its mtime is the time of the import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from minit.stage0.files.durable import create_file, make_directory, move_into_place, remove_file, sync_directory
from minit.stage0.images.storedimage import ImageDigests, ImageNames, joined, parse_digests, parse_names

KEY = re.compile(r"sha512-[0-9a-f]{64}")
DIRECTORY_MODE = 0o770
FILE_MODE = 0o640
CONTENT = ("blob", "recipe")
# In the order of their removal: an unfinished removal is found by the blob or recipe.
_BESIDE_MANIFEST = (
    "treeSize",
    "lastUsed",
    "digests",
    "configuration",
    "manifest",
    "names",
    "signature",
    "untagged",
    *CONTENT,
)
OF_IMAGES = frozenset(("imageManifest", *_BESIDE_MANIFEST))
"""The directories of a store that have a file for each image."""

_DIGESTS_LIMIT_BYTES = 4096


class ImageFiles:
    """The files of images below the directory `top`. Callers lock an image before they change its files."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def path(self, kind: str, image_id: str) -> Path:
        """Return the path of a file, there or not."""
        return self.top / kind / "sha512" / image_id.removeprefix("sha512-")[:2] / image_id

    def has(self, image_id: str) -> bool:
        """Tell whether the image is complete."""
        return self.path("imageManifest", image_id).exists()

    def ids(self) -> set[str]:
        """Return the IDs of all complete images."""
        return {path.name for path in self._all("imageManifest") if KEY.fullmatch(path.name)}

    def recipes(self) -> Iterator[Path]:
        """Yield the recipes of all images."""
        return self._all("recipe")

    def orphans(self) -> Iterator[str]:
        """Yield the IDs of blobs and recipes without manifest: an import or a removal is under way, or was killed."""
        for kind in CONTENT:
            for path in self._all(kind):
                if not self.has(path.name):
                    yield path.name

    def put(self, scratch: Path, kind: str, image_id: str) -> None:
        """Move the durable file `scratch`/`kind` to its place."""
        target = self.path(kind, image_id)
        make_directory(target.parent, DIRECTORY_MODE)
        move_into_place(scratch / kind, target)

    def write(self, scratch: Path, kind: str, image_id: str, data: bytes) -> None:
        """Write a file, first in the directory `scratch`."""
        create_file(scratch / kind, data, FILE_MODE)
        self.put(scratch, kind, image_id)

    def touch(self, kind: str, image_id: str, *, durably: bool = False) -> None:
        """Make an empty file, or set its times to now."""
        target = self.path(kind, image_id)
        make_directory(target.parent, DIRECTORY_MODE)
        target.touch(FILE_MODE)
        if durably:
            sync_directory(target.parent)

    def remove(self, kind: str, image_id: str) -> None:
        """Remove a file; no error if there is none."""
        remove_file(self.path(kind, image_id))

    def remove_all(self, image_id: str) -> None:
        """Remove all files of an image, the manifest first."""
        for kind in ("imageManifest", *_BESIDE_MANIFEST):
            self.remove(kind, image_id)

    def digests(self, image_id: str) -> ImageDigests | None:
        """Return the digests that a registry knows the image by."""
        try:
            with open(self.path("digests", image_id), "rb") as file:
                return parse_digests(file.read(_DIGESTS_LIMIT_BYTES).decode("ascii", "replace"))
        except FileNotFoundError:
            return None

    def add_digests(self, scratch: Path, image_id: str, digests: ImageDigests) -> None:
        """Write digests beside the earlier ones of the same configuration."""
        known = joined(self.digests(image_id), digests)
        self.write(scratch, "digests", image_id, known.text.encode("ascii"))

    def names(self, image_id: str) -> ImageNames:
        """Return the names that an image was given; ImageError for a damaged file."""
        data = self.read("names", image_id)
        return ImageNames() if data is None else parse_names(data, str(self.path("names", image_id)))

    def read(self, kind: str, image_id: str) -> bytes | None:
        """Return the content of a small file, None for an image without the file."""
        try:
            return self.path(kind, image_id).read_bytes()
        except FileNotFoundError:
            return None

    def tree_bytes(self, image_id: str) -> int:
        """Return the recorded size of the rendered tree, 0 without a record."""
        try:
            return int(self.path("treeSize", image_id).read_bytes())
        except FileNotFoundError:
            return 0

    def used_ns(self, image_id: str) -> int:
        """Return when a pod was last prepared from the image, in nanoseconds since 1970; 0 if none was."""
        try:
            return os.stat(self.path("lastUsed", image_id)).st_mtime_ns
        except FileNotFoundError:
            return 0

    def _all(self, kind: str) -> Iterator[Path]:
        return self.top.glob(f"{kind}/sha512/*/sha512-*")
