"""An image of the store as a value, its digests, and which of several images a name means; pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path

from minit.archives.imagenames import (
    ImageName,
    ImageReference,
    familiar_name,
    name_of_file,
    parse_image_name,
    sanitize_ac_identifier,
)
from minit.archives.layered import check_digest
from minit.base import jsontext
from minit.base.errors import ImageError, StoreError
from minit.base.processors import Processor
from minit.base.value import Value
from minit.manifest.image import ImageManifest

_MOST_MANIFESTS = 20

ORIGINAL_NAME = "appc.io/docker/originalname"

_REPOSITORY = "appc.io/docker/repository"
_NAMES = (ORIGINAL_NAME, _REPOSITORY, "appc.io/docker/registryurl", "appc.io/docker/tag")
_LATEST = "latest"
_NEAREST = 3


class PullPolicy(Enum):
    """Whether an image is fetched or converted again that the store may have already, in rkt's words."""

    NEW = "new"  # if the store does not have it
    UPDATE = "update"  # always
    NEVER = "never"  # not at all, if it is one of a registry


class ImageDigests(Value):
    """
    The digest of an image's configuration, which is Docker's image ID, and those by which registries gave it.

    Several manifests, oldest first, may have the same configuration: layers can be compressed in many ways.
    """

    configuration: str
    manifests: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line that `parse_digests` takes."""
        return " ".join((self.configuration, *self.manifests))


def parse_digests(text: str) -> ImageDigests | None:
    """Return the digests of a line, None if it is none."""
    try:
        configuration, *manifests = (check_digest(word, "digests") for word in text.split())
    except (ImageError, ValueError):
        return None
    return ImageDigests(configuration=configuration, manifests=tuple(manifests))


def joined(earlier: ImageDigests | None, latest: ImageDigests) -> ImageDigests:
    """Return the latest digests, with the manifests that the same configuration had earlier."""
    if earlier is None or earlier.configuration != latest.configuration:
        return latest
    manifests = tuple(dict.fromkeys((*earlier.manifests, *latest.manifests)))
    return ImageDigests(configuration=latest.configuration, manifests=manifests[-_MOST_MANIFESTS:])


class Origin(Value):
    """How an image of layers came: its digests, and its configuration as the source has it."""

    digests: ImageDigests
    configuration: bytes


class StoredImage(Value):
    """
    An image of the store; `size_bytes` is its blob and, if minit rendered it, its tree.

    `digests` are None of an image that was no image of layers. `diff_ids` are those of its layers, the lowest first.
    """

    id: str
    manifest: ImageManifest
    manifest_bytes: bytes
    size_bytes: int
    import_time_ns: int
    last_used_ns: int
    """When a pod was last prepared from it, or its import."""
    digests: ImageDigests | None = None
    diff_ids: tuple[str, ...] = ()
    is_untagged: bool = False
    """Whether a kubelet has taken the tag away, which an older image of the name would be found by again."""

    @property
    def name(self) -> str:
        """The image's name, without version."""
        return self.manifest.name

    @property
    def original_name(self) -> str | None:
        """The name that it has in its registry; None if it has none of Docker's."""
        return self.manifest.annotation(ORIGINAL_NAME)

    @property
    def version(self) -> str | None:
        """The value of the label `version`."""
        return self.manifest.label("version")


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
