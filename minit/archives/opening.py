"""Opens an image by the reference a user gives, in skopeo's words: `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`, …"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from minit.archives.blobs import ArchiveBlobs, Blobs, DirectoryBlobs
from minit.archives.docker import read_docker_archive
from minit.archives.layered import LayeredImage
from minit.archives.oci import read_layout
from minit.archives.transports import DOCKER_ARCHIVE, OCI
from minit.base.errors import ImageError
from minit.base.processors import Processor, this_processor


@contextmanager
def open_image(
    reference: str, make_spool: Callable[[], BinaryIO], processor: Processor | None = None
) -> Iterator[LayeredImage]:
    """
    Yield the image a reference with a transport means; its layers can be read within the with block.

    After the path may come `:` and a tag or a name, or `@` and a digest. `make_spool` gives an empty file, open for
    reading and writing, for what a compressed archive expands to. Of an image for several processors that for
    `processor` is chosen, or for this machine's. ImageError if there is no such image, it is broken, or the choice is
    not clear.
    """
    transport, _, rest = reference.partition(":")
    path, name = _split(rest)
    # An archive is called what it is without its ending, a directory what it is.
    title = path.resolve().name
    blobs: Blobs = DirectoryBlobs(path) if transport == OCI else ArchiveBlobs(path, make_spool)
    try:
        if transport == DOCKER_ARCHIVE:
            yield read_docker_archive(blobs, title, name)
        else:
            yield read_layout(blobs, title, processor or this_processor(), name)
    finally:
        blobs.close()


def _split(text: str) -> tuple[Path, str | None]:
    """Return path and name of `PATH[:NAME|@DIGEST]`; a colon belongs to the path if there is such a file."""
    if not text:
        raise ImageError("expected a path after the colon of the image's name")
    if Path(text).exists():
        return Path(text), None
    for separator in re.finditer("[:@]", text):
        path = Path(text[: separator.start()])
        name = text[separator.end() :]
        if name and separator.start() and path.exists():
            return path, name
    return Path(re.split("[:@]", text, maxsplit=1)[0] or text), None
