"""An image of the store as a value, its digests, and which of several images a name means; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path

from minit.archives.imagenames import (
    DEFAULT_REGISTRY,
    ImageName,
    ImageReference,
    familiar_name,
    name_of_file,
    parse_image_name,
    sanitize_ac_identifier,
)
from minit.archives.layered import Document, check_digest
from minit.base import jsontext
from minit.base.errors import ImageError, ManifestError, StoreError
from minit.base.processors import Processor
from minit.base.value import Value, replace
from minit.manifest.image import ImageManifest
from minit.manifest.reader import Node, read_json
from minit.stage0.images.signatures import Signature

_MOST_MANIFESTS = 20

ORIGINAL_NAME = "appc.io/docker/originalname"

_REPOSITORY = "appc.io/docker/repository"
_NAMES = (ORIGINAL_NAME, _REPOSITORY, "appc.io/docker/registryurl", "appc.io/docker/tag")
_DEFAULT_PREFIX = f"{DEFAULT_REGISTRY}/library/"
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


class Tag(Value):
    """A name that an image was given beside its own, in the form of `canonical`, with the time in nanoseconds."""

    name: str
    time_ns: int

    @property
    def shown(self) -> str:
        """The name in the form that users see."""
        return self.name.removeprefix(_DEFAULT_PREFIX)


class ImageNames(Value):
    """The names that an image was given since the import, oldest first, and whether its own name is one still."""

    tags: tuple[Tag, ...] = ()
    keeps_own: bool = True

    @property
    def text(self) -> bytes:
        """The document for `parse_names`."""
        return jsontext.dump(
            {"tags": [{"name": tag.name, "time_ns": tag.time_ns} for tag in self.tags], "own": self.keeps_own}
        )

    def without(self, name: str) -> ImageNames:
        """Return the names but one."""
        return replace(self, tags=tuple(tag for tag in self.tags if tag.name != name))


def parse_names(data: bytes, source: str) -> ImageNames:
    """Return the names of a document; ImageError, about `source`, for a damaged document."""
    try:
        root = read_json(data, source)
        return ImageNames(tags=root["tags"].each(_read_tag), keeps_own=root["own"].boolean())
    except ManifestError as error:
        raise ImageError(str(error)) from error


def _read_tag(node: Node) -> Tag:
    return Tag(name=node["name"].non_empty(), time_ns=node["time_ns"].integer(0, 1 << 63))


class Origin(Value):
    """How an image of layers came: its digests, its configuration and manifest as in the source, and its signature."""

    digests: ImageDigests
    configuration: bytes
    manifest: Document | None = None
    signature: Signature | None = None


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
    names: ImageNames = ImageNames()
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

    @property
    def own_name(self) -> str:
        """The name in the manifest, with the version."""
        return self.name if self.version is None else f"{self.name}:{self.version}"

    @property
    def all_names(self) -> tuple[str, ...]:
        """All names in the form that users see; the name in the manifest is the first, if the image has it still."""
        own = (self.own_name,) if self.names.keeps_own else ()
        return (*own, *(tag.shown for tag in self.names.tags))


def choose_named(images: Sequence[StoredImage], reference: ImageReference, processor: Processor) -> StoredImage | None:
    """
    Return the wanted image of `images`, which are in the order of imports, None if no image fits.

    The last import of images for the processor is chosen, or else for a processor whose programs run on this one, or
    else for any. Without a version an image with the tag `latest` goes before others, as in docker.
    """
    fitting = sorted(
        ((time_ns, version, image) for image in images for time_ns, version in _named(image, reference)),
        key=lambda found: found[0],
    )
    for appc in (processor.appc, *processor.older):
        of_processor = [found for found in fitting if found[2].manifest.label("arch") == appc]
        if of_processor:
            fitting = of_processor
            break
    if not any(name == "version" for name, _ in reference.labels):
        fitting = [found for found in fitting if found[1] == _LATEST] or fitting
    return fitting[-1][2] if fitting else None


def named_images(images: Sequence[StoredImage]) -> frozenset[str]:
    """Return the ids of images that a name means; an earlier image of a name, for the same processor, has no name."""
    latest: dict[tuple[str, str | None], tuple[int, str]] = {}
    for image in images:
        own = [(image.own_name, image.import_time_ns)] if image.names.keeps_own else []
        for name, time_ns in (*own, *((tag.shown, tag.time_ns) for tag in image.names.tags)):
            key, found = (name, image.manifest.label("arch")), (time_ns, image.id)
            latest[key] = max(found, latest.get(key, found))
    return frozenset(image_id for _, image_id in latest.values())


def tag_meant(image: StoredImage, reference: ImageReference) -> Tag | None:
    """Return the tag of an image that a reference means, None for the image's own name."""
    found = [tag for tag in image.names.tags if _is_named(image, tag, reference)]
    return found[-1] if found else None


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


def _named(image: StoredImage, reference: ImageReference) -> Iterator[tuple[int, str | None]]:
    """Yield since when, and with which version, an image has names that a reference means."""
    original = image.original_name or ""
    is_fetched = reference.digest is None or original.partition("@")[2] == reference.digest
    is_meant = image.name in reference.names and set(reference.labels) <= set(image.manifest.labels)
    if image.names.keeps_own and is_meant and is_fetched:
        yield image.import_time_ns, image.version
    for tag in image.names.tags:
        if _is_named(image, tag, reference):
            yield tag.time_ns, tag.name.rpartition(":")[2]


def _is_named(image: StoredImage, tag: Tag, reference: ImageReference) -> bool:
    whole, _, version = tag.name.rpartition(":")
    labels = {*(label for label in image.manifest.labels if label[0] != "version"), ("version", version)}
    is_meant = reference.digest is None and sanitize_ac_identifier(whole) in reference.names
    return is_meant and set(reference.labels) <= labels


def _nearest(reference: str, images: Sequence[StoredImage]) -> list[str]:
    """Return the nearest names, in the short form of users."""
    spellings: dict[str, str] = {}
    for image in images:
        # The original name keeps the colon of a port, which no name of an ACI can have.
        original = image.original_name
        familiar = familiar_name(original, None) if original else familiar_name(image.name, image.version)
        name = familiar_name(image.name, None)
        for other in image.all_names[image.names.keeps_own :]:
            spellings[other.lower()] = other
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
