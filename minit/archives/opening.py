"""Opens an image of a layout or an archive, in skopeo's words; reads the archives of docker save."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from minit.archives.blobs import ArchiveBlobs, Blobs, DirectoryBlobs, open_again, read_document
from minit.archives.imagenames import DOCKER_ARCHIVE, OCI, name_of_file, parse_image_name
from minit.archives.layered import Layer, LayeredImage, check_digest, parse_image_config
from minit.archives.oci import LAYERS_LIMIT, read_layout
from minit.base.errors import ImageError, ManifestError
from minit.base.processors import Processor, this_processor
from minit.base.value import Value
from minit.manifest.reader import Node, read_json

_CONFIG_NAME = re.compile(r"(?:.*/)?([0-9a-f]{64})(?:\.json)?")


class ArchivedImage(Value):
    """An image in manifest.json: paths in the archive, and names."""

    config: str
    tags: tuple[str, ...]
    layers: tuple[str, ...]


def read_docker_archive(blobs: Blobs, file_name: str, reference: str | None = None) -> LayeredImage:
    """
    Return the image `reference`, a name, a tag or an image ID, of an archive of `docker save`.

    Without `reference` there must be one image. `file_name` becomes the name of an image without a name.
    """
    source = blobs.source
    images = _read_list(blobs)
    image, tag = _choose(images, reference, source)
    where = f"{source}: {image.config}"
    document = read_document(blobs.open(_clean(image.config)), where)
    digits = hashlib.sha256(document).hexdigest()
    named = _CONFIG_NAME.fullmatch(image.config)
    if named and named[1] != digits:
        raise ImageError(f"{where} has another digest: damaged, save the image again")
    config = parse_image_config(document, where)
    if len(image.layers) > LAYERS_LIMIT:
        raise ImageError(f"{source}: {len(image.layers)} layers (at most {LAYERS_LIMIT})")
    if len(config.diff_ids) != len(image.layers):
        raise ImageError(
            f"{source}: {len(image.layers)} layers, but {len(config.diff_ids)} diff_ids in the configuration"
        )
    return LayeredImage(
        source=source,
        name=parse_image_name(tag) if tag is not None else name_of_file(file_name, None),
        id=f"sha256:{digits}",
        config=config,
        document=document,
        layers=tuple(
            _layer(blobs, path, check_digest(diff_id, where))
            for path, diff_id in zip(image.layers, config.diff_ids, strict=True)
        ),
    )


def _read_list(blobs: Blobs) -> tuple[ArchivedImage, ...]:
    source = f"{blobs.source}: manifest.json"
    section = blobs.open("manifest.json")
    if section is None:
        if (marker := blobs.open("oci-layout")) is not None:
            marker.close()
            raise ImageError(f"{blobs.source}: no docker archive but an OCI one: give it as oci-archive:FILE")
        if (old := blobs.open("repositories")) is not None:
            old.close()
            raise ImageError(f"{blobs.source}: saved by a Docker before 1.10: load it into a newer one, save it again")
        raise ImageError(f"{blobs.source}: no file manifest.json: not an archive of docker save")
    try:
        return read_json(read_document(section, source), source).each(_read_entry)
    except ManifestError as error:
        raise ImageError(str(error)) from error


def _read_entry(node: Node) -> ArchivedImage:
    return ArchivedImage(
        config=node["Config"].non_empty(),
        tags=node["RepoTags"].each(Node.non_empty),
        layers=node["Layers"].each(Node.non_empty),
    )


def _choose(images: tuple[ArchivedImage, ...], reference: str | None, source: str) -> tuple[ArchivedImage, str | None]:
    """Return the wanted image, and the wanted name of several."""
    if not images:
        raise ImageError(f"{source}: no image in it")
    if reference is None:
        if len(images) > 1:
            raise ImageError(f"{source}: more than one image: {_listing(images)}: choose one by adding :NAME or @ID")
        return images[0], images[0].tags[0] if images[0].tags else None
    for image in images:
        digits = _CONFIG_NAME.fullmatch(image.config)
        if digits is not None and reference.removeprefix("sha256:") == digits[1]:
            return image, image.tags[0] if image.tags else None
    found = [(image, tag) for image in images for tag in image.tags if _is_meant(tag, reference)]
    if not found:
        raise ImageError(f'{source}: no image "{reference}": {_listing(images)}')
    if len({image.config for image, _ in found}) > 1:
        raise ImageError(f'{source}: more than one image "{reference}": {_listing(images)}: give the whole name')
    return found[0]


def _is_meant(tag: str, reference: str) -> bool:
    if reference == tag:
        return True
    try:
        name = parse_image_name(tag)
        if reference == name.tag:
            return True
        wanted = parse_image_name(reference)
    except ImageError:
        return False
    return (name.whole, name.tag) == (wanted.whole, wanted.tag)


def _listing(images: tuple[ArchivedImage, ...]) -> str:
    names = [", ".join(image.tags) or f"@{_id(image)}" for image in images]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"there is {', '.join(names[:20])}{more}"


def _id(image: ArchivedImage) -> str:
    digits = _CONFIG_NAME.fullmatch(image.config)
    return f"sha256:{digits[1]}" if digits else image.config


def _layer(blobs: Blobs, path: str, diff_id: str) -> Layer:
    where = f"{blobs.source}: layer {path}"
    section = blobs.open(_clean(path))
    if section is None:
        raise ImageError(f"{where} is missing: save the image again")
    with section:
        size_bytes = section.size_bytes
    return Layer(
        name=where, open=partial(open_again, blobs, _clean(path), where), size_bytes=size_bytes, diff_id=diff_id
    )


def _clean(path: str) -> str:
    return posixpath.normpath(path)


@contextmanager
def open_image(
    reference: str, make_spool: Callable[[], BinaryIO], processor: Processor | None = None
) -> Iterator[LayeredImage]:
    """
    Yield the image of a reference with a transport; the layers can be read within the with block.

    After the path may come `:` and a tag or a name, or `@` and a digest. `make_spool` gives an empty file, open for
    reading and writing, for the content of a compressed archive. An index has images for several processors: the image
    for `processor` is chosen, or for this machine's. ImageError if there is no such image, the image is broken, or the
    choice is not clear.
    """
    transport, _, rest = reference.partition(":")
    path, name = _split(rest)
    # An image without a name is called by the file or directory.
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
    """Return path and name of `PATH[:NAME|@DIGEST]`; a colon belongs to the path of an existing file."""
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
