"""Links to the files of layers, of which a tree is made."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from minit.archives.filecontent import copy_file
from minit.archives.recipe import Recipe

# The layers are on another file system, a file has as many links as its file system allows, or that has none.
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM)


def link_contents(recipe: Recipe, layers: Sequence[int], directory: str) -> None:
    """
    Make `directory`, with a link to each file of the recipe, called by its number there; `layers` are open directories.

    No name that an image brought is used. A file that cannot be linked is copied.
    """
    os.mkdir(directory, 0o700)
    links = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name, (_, _, layer, number) in enumerate(recipe.files()):
            try:
                _link(layers[layer], str(number), links, str(name))
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                copy_file(layers[layer], str(number), links, str(name))
    finally:
        os.close(links)


def _link(from_directory: int, from_name: str, to_directory: int, to_name: str) -> None:
    os.link(from_name, to_name, src_dir_fd=from_directory, dst_dir_fd=to_directory, follow_symlinks=False)
