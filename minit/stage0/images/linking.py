"""
Links to the files of layers, of which a tree is made: one process makes them, another one gives them their names.

They lie in directories of `_TOGETHER`, so that both seldom need the same one. No name that an image brought is used
before the second process is confined.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress

from minit.archives.filecontent import copy_file
from minit.archives.recipe import Recipe
from minit.base.errors import EXIT_FAILURE

_TOGETHER = 2048
# The layers are on another file system, a file has as many links as its file system allows, or that has none.
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM)


def link_contents(recipe: Recipe, layers: Sequence[int], links: int, made: int) -> None:
    """
    Make a link to each file of the recipe for `MadeLinks`; `layers` and `links` are open directories.

    Writes a byte to `made` for each full directory, and for the last one. A file that cannot be linked is copied.
    """
    directory = -1
    for number, (_, _, layer, file) in enumerate(recipe.files()):
        batch, place = divmod(number, _TOGETHER)
        if place == 0:
            if batch:
                _close(directory, made)
            os.mkdir(str(batch), 0o700, dir_fd=links)
            directory = os.open(str(batch), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=links)
        try:
            _link(layers[layer], str(file), directory, str(place))
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            copy_file(layers[layer], str(file), directory, str(place))
    if directory >= 0:
        _close(directory, made)


class MadeLinks:
    """What `link_contents` makes, in its order; `links` is its directory, whatever the root is by then."""

    def __init__(self, links: int, made: int) -> None:
        self._links = links
        self._made = made
        self._moved = 0
        self._batch: int | None = None
        self._directory = -1

    def move(self, to_directory: int, to_name: str) -> None:
        """Move the next one, once it is there; SystemExit, without a word, if the other process has failed."""
        batch, place = divmod(self._moved, _TOGETHER)
        if batch != self._batch:
            if not os.read(self._made, 1):
                raise SystemExit(EXIT_FAILURE)  # it has said why
            self._remove_directory()
            self._directory = os.open(str(batch), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._links)
            self._batch = batch
        os.rename(str(place), to_name, src_dir_fd=self._directory, dst_dir_fd=to_directory)
        self._moved += 1

    def end(self) -> None:
        """Leave nothing in the directory; OSError if there was another file."""
        self._remove_directory()

    def _remove_directory(self) -> None:
        if self._batch is not None:
            os.close(self._directory)
            os.rmdir(str(self._batch), dir_fd=self._links)
            self._batch = None


def _close(directory: int, made: int) -> None:
    os.close(directory)
    with suppress(BrokenPipeError):
        os.write(made, b"\n")


def _link(from_directory: int, from_name: str, to_directory: int, to_name: str) -> None:
    os.link(from_name, to_name, src_dir_fd=from_directory, dst_dir_fd=to_directory, follow_symlinks=False)
