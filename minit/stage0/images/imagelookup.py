"""The image of the store that a name means, and what to say when there is none; pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from minit.archives.imagenames import (
    ImageName,
    ImageReference,
    familiar_name,
    name_of_file,
    parse_image_name,
    sanitize_ac_identifier,
)
from minit.base import jsontext
from minit.base.errors import ImageError, StoreError
from minit.base.processors import Processor
from minit.stage0.images.storedimage import ORIGINAL_NAME, StoredImage

_REPOSITORY = "appc.io/docker/repository"
_NAMES = (ORIGINAL_NAME, _REPOSITORY, "appc.io/docker/registryurl", "appc.io/docker/tag")
_LATEST = "latest"
_NEAREST = 3


def choose_named(images: Sequence[StoredImage], reference: ImageReference, processor: Processor) -> StoredImage | None:
    """
    Return the image that is meant of some in the order of their imports, None if there is none.

    That is the last import of those for the processor, or else for one whose programs it runs, or else for any.
    Without a version one that is called `latest` goes before others, as in docker.
    """
    fitting = [image for image in images if _fits(image, reference)]
    for appc in (processor.appc, *processor.older):
        of_processor = [image for image in fitting if image.manifest.label("arch") == appc]
        if of_processor:
            fitting = of_processor
            break
    if not any(name == "version" for name, _ in reference.labels):
        fitting = [image for image in fitting if image.version == _LATEST] or fitting
    return fitting[-1] if fitting else None


def reference_to(name: ImageName) -> ImageReference:
    """Return the reference that only an image of this very name fits."""
    labels = (("version", name.tag),) if name.tag else ()
    return ImageReference(names=(sanitize_ac_identifier(name.whole),), labels=labels, digest=name.digest)


def name_of_content(images: Sequence[StoredImage], manifest: bytes) -> ImageName | None:
    """Return the name that the last import of the content of a converted image has, None if there is none."""
    content = _content(manifest)
    for image in reversed(images):
        annotations = dict(image.manifest.annotations)
        repository = annotations.get(_REPOSITORY)
        if repository is not None and _content(image.manifest_bytes) == content:
            original = annotations.get(ORIGINAL_NAME)
            return name_of_file(repository, image.version) if original is None else parse_image_name(original)
    return None


def _content(manifest: bytes) -> object:
    """Return a manifest without what depends on the image's name."""
    document = jsontext.parse(manifest, "manifest")
    assert isinstance(document, dict)
    document.pop("name")
    for key, named in (("labels", ("version",)), ("annotations", _NAMES)):
        document[key] = [pair for pair in document.get(key) or () if pair["name"] not in named]
    return document


def missing_image(reference: str, images: Sequence[StoredImage], data: Path, *, is_id: bool) -> StoreError:
    """Return the error that names the images nearest to `reference`, and the command that brings it."""
    nearest = " and ".join(f'"{name}"' for name in _nearest(reference, images))
    has = f", which has {nearest}" if nearest else ""
    return StoreError(
        f'image "{reference}" is not in the store {data}{has}: import it with: minit fetch {_source(reference, is_id)}'
    )


def _fits(image: StoredImage, reference: ImageReference) -> bool:
    if image.name not in reference.names or not set(reference.labels) <= set(image.manifest.labels):
        return False
    original = image.original_name or ""
    return reference.digest is None or original.partition("@")[2] == reference.digest


def _nearest(reference: str, images: Sequence[StoredImage]) -> list[str]:
    """Return the names nearest to one, as short as users write them."""
    spellings: dict[str, str] = {}
    for image in images:
        # It has the colon of a port, which no name of an ACI can have.
        original = image.original_name
        familiar = familiar_name(original, None) if original else familiar_name(image.name, image.version)
        name = familiar_name(image.name, None)
        for spelling in (familiar, name, name.rpartition("/")[2], f"{image.name}:{image.version}"):
            spellings[spelling.lower()] = familiar
    wanted = [reference.lower(), reference.lower().rpartition("/")[2].partition(":")[0]]
    found = [spellings[match] for text in wanted for match in get_close_matches(text, spellings, _NEAREST)]
    return list(dict.fromkeys(found))[:_NEAREST]


def _source(reference: str, is_id: bool) -> str:
    if is_id:
        return "FILE"
    try:
        parse_image_name(reference)
    except ImageError:
        return "FILE"
    return f"docker://{reference}"
