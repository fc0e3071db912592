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
    The digest of an image's configuration, which is Docker's image ID, and digests of manifests in registries.

    Several manifests, oldest first, may have the same configuration: layers can be compressed in many ways.
    """

    configuration: str
    manifests: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line for `parse_digests`."""
        return " ".join((self.configuration, *self.manifests))


def parse_digests(text: str) -> ImageDigests | None:
    """Return the digests of a line, None for a broken line."""
    try:
        configuration, *manifests = (check_digest(word, "digests") for word in text.split())
    except (ImageError, ValueError):
        return None
    return ImageDigests(configuration=configuration, manifests=tuple(manifests))


def joined(earlier: ImageDigests | None, latest: ImageDigests) -> ImageDigests:
    """Return the latest digests, with earlier manifests of the same configuration."""
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
    An image of the store; `size_bytes` is the size of the blob and of a tree that minit rendered.

    `digests` are None for an image that did not come of layers. `diff_ids` has the layers, the lowest first.
    """

    id: str
    manifest: ImageManifest
    manifest_bytes: bytes
    size_bytes: int
    import_time_ns: int
    last_used_ns: int
    """The last preparation of a pod from the image, or the import."""
    digests: ImageDigests | None = None
    diff_ids: tuple[str, ...] = ()
    is_untagged: bool = False
    """Whether a kubelet has taken the tag away; without the mark an older image of the name would have the tag."""

    @property
    def name(self) -> str:
        """The image's name without version."""
        return self.manifest.name

    @property
    def original_name(self) -> str | None:
        """The name in a registry; None for an image without a name of Docker's form."""
        return self.manifest.annotation(ORIGINAL_NAME)

    @property
    def version(self) -> str | None:
        """The value of the label `version`."""
        return self.manifest.label("version")


def choose_named(images: Sequence[StoredImage], reference: ImageReference, processor: Processor) -> StoredImage | None:
    """
    Return the wanted image of `images`, which are in the order of imports, None if no image fits.

    The last import of images for the processor is chosen, or else for a processor whose programs run on this one, or
    else for any. Without a version an image with the tag `latest` goes before others, as in docker.
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
    """Return the reference that fits only images of exactly this name."""
    labels = (("version", name.tag),) if name.tag else ()
    return ImageReference(names=(sanitize_ac_identifier(name.whole),), labels=labels, digest=name.digest)


def name_of_content(images: Sequence[StoredImage], manifest: bytes) -> ImageName | None:
    """Return the name of the last import with the same content as a converted manifest, None without one."""
    content = _content(manifest)
    for image in reversed(images):
        annotations = dict(image.manifest.annotations)
        repository = annotations.get(_REPOSITORY)
        if repository is not None and _content(image.manifest_bytes) == content:
            original = annotations.get(ORIGINAL_NAME)
            return name_of_file(repository, image.version) if original is None else parse_image_name(original)
    return None


def _content(manifest: bytes) -> object:
    """Return a manifest without the fields that depend on the image's name."""
    document = jsontext.parse(manifest, "manifest")
    assert isinstance(document, dict)
    document.pop("name")
    for key, named in (("labels", ("version",)), ("annotations", _NAMES)):
        document[key] = [pair for pair in document.get(key) or () if pair["name"] not in named]
    return document


class MissingImage(StoreError):
    """An image is not in the store; `problem` is the text without the command that imports the image."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem


def missing_image(reference: str, images: Sequence[StoredImage], data: Path, *, is_id: bool) -> MissingImage:
    """Return the error with the images nearest to `reference`, and the command that imports the image."""
    nearest = " and ".join(f'"{name}"' for name in _nearest(reference, images))
    has = f", which has {nearest}" if nearest else ""
    problem = f'image "{reference}" is not in the store {data}{has}'
    return MissingImage(problem, f"import it with: minit fetch {_source(reference, is_id)}")


def _fits(image: StoredImage, reference: ImageReference) -> bool:
    if image.name not in reference.names or not set(reference.labels) <= set(image.manifest.labels):
        return False
    original = image.original_name or ""
    return reference.digest is None or original.partition("@")[2] == reference.digest


def _nearest(reference: str, images: Sequence[StoredImage]) -> list[str]:
    """Return the nearest names, in the short form of users."""
    spellings: dict[str, str] = {}
    for image in images:
        # The original name keeps the colon of a port, which no name of an ACI can have.
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
