"""
OCI layouts, as directories and as archives: from the index to one image for a processor. OCI image-layout.md

Every document is read within bounds and checked against digest and size of the descriptor. A document of two kinds is
refused, CVE-2021-41190.
"""

from __future__ import annotations

from functools import partial

from minit.archives.blobs import Blobs, open_again, read_document
from minit.archives.imagenames import ImageName, name_of_file, parse_image_name
from minit.archives.layered import (
    Document,
    Layer,
    LayeredImage,
    Platform,
    check_digest,
    choose_platform,
    digest_text,
    hasher,
    parse_image_config,
    platform_text,
    read_platform,
)
from minit.base.errors import ImageError, ManifestError
from minit.base.processors import Processor, this_processor
from minit.base.value import Value
from minit.manifest.reader import Node, read_json

LAYERS_LIMIT = 1000
_NESTING_LIMIT = 4
_MANIFESTS_LIMIT = 10_000
_SIZE_LIMIT = (1 << 63) - 1

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
REF_NAME = "org.opencontainers.image.ref.name"

_INDEXES = (
    INDEX_TYPE,
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    MANIFEST_TYPE,
    "application/vnd.docker.distribution.manifest.v2+json",
)
_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+"
_CONFIGS = (CONFIG_TYPE, "application/vnd.docker.container.image.v1+json")
_LAYERS = (
    LAYER_TYPE,
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
)
_COMPRESSIONS = ("", "+gzip", "+zstd", ".gzip", ".zstd", ".xz", ".bzip2")
_ENCRYPTED = "+encrypted"

_FULL_NAMES = ("io.containerd.image.name", "com.docker.image.name", REF_NAME)
_ATTESTATION = "vnd.docker.reference.type"


class _Kind(Value):
    """A kind of document: a key of its own, and keys of other kinds."""

    name: str
    media_types: tuple[str, ...]
    own_key: str
    other_keys: tuple[str, ...]


_INDEX = _Kind(name="index", media_types=_INDEXES, own_key="manifests", other_keys=("config", "layers", "fsLayers"))
_IMAGE = _Kind(name="image", media_types=_MANIFESTS, own_key="layers", other_keys=("manifests", "fsLayers"))


class Descriptor(Value):
    """The description of another file in a document: kind, digest and size. OCI descriptor.md"""

    media_type: str
    digest: str
    size_bytes: int
    urls: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    platform: Platform | None = None
    artifact_type: str = ""

    @property
    def path(self) -> str:
        """The file's path in a layout."""
        return "blobs/" + self.digest.replace(":", "/")

    def annotation(self, name: str) -> str | None:
        """Return the value of an annotation."""
        return dict(self.annotations).get(name)

    @property
    def tag(self) -> str | None:
        """The name under which the index of a layout lists the image."""
        return self.annotation(REF_NAME)

    @property
    def is_image(self) -> bool:
        """Tell whether the entry may be an image to run, and no statement of a builder or a signer about an image."""
        unknown = self.platform is not None and self.platform.os == self.platform.architecture == "unknown"
        return not unknown and not self.artifact_type and self.annotation(_ATTESTATION) is None


def read_layout(blobs: Blobs, file_name: str, processor: Processor, reference: str | None = None) -> LayeredImage:
    """
    Return the image `reference` of a layout, for a processor.

    `reference` is a tag, a name with a tag, or a digest; without a reference there must be one image. `file_name`
    becomes the image's name if the layout has no better name. ImageError lists the images if the choice is not clear.
    """
    source = blobs.source
    _check_layout(blobs)
    index = _read_index(_document(blobs, "index.json"), f"{source}: index.json")
    descriptor = _choose_named([entry for entry in index if entry.is_image], reference, processor, source)
    name = _full_name(descriptor) or name_of_file(file_name, descriptor.tag)
    for _ in range(_NESTING_LIMIT):
        document = _read_blob(blobs, descriptor)
        where = f"{source}: {descriptor.digest}"
        if descriptor.media_type in _INDEXES:
            nested = [entry for entry in _read_index(document, where, descriptor.media_type) if entry.is_image]
            descriptor = _choose_for(processor, nested, where)
        else:
            return _read_image(blobs, descriptor, document, name)
    raise ImageError(f"{source}: indexes within indexes, more than {_NESTING_LIMIT} deep")


def entry_for(processor: Processor, document: bytes, where: str) -> str | None:
    """Return the digest of the image for a processor in an index, None for another document."""
    try:
        if not read_json(document, where)["manifests"].given:
            return None
    except ManifestError as error:
        raise ImageError(str(error)) from error
    return _choose_for(processor, [entry for entry in _read_index(document, where) if entry.is_image], where).digest


def configuration_of(document: bytes, where: str) -> str | None:
    """Return the configuration's digest in a manifest; None for a manifest without, as Docker's schema 1."""
    try:
        digest = read_json(document, where)["config"]["digest"]
        return check_digest(digest.string(), digest.where) if digest.given else None
    except ManifestError as error:
        raise ImageError(str(error)) from error


def media_type_of(document: bytes, where: str) -> str | None:
    """Return the media type of a manifest of an image that says its own, None for any other document."""
    try:
        stated = read_json(document, where)["mediaType"].optional(Node.string)
    except ManifestError as error:
        raise ImageError(str(error)) from error
    return stated if stated in _MANIFESTS else None


def layer_digests(document: bytes, where: str) -> tuple[str, ...]:
    """Return the digests of the layers in a manifest, the lowest first; ImageError."""
    try:
        return read_json(document, where)["layers"].each(lambda node: check_digest(node["digest"].string(), node.where))
    except ManifestError as error:
        raise ImageError(str(error)) from error


def _document(blobs: Blobs, path: str) -> bytes:
    return read_document(blobs.open(path), f"{blobs.source}: {path}")


def _check_layout(blobs: Blobs) -> None:
    marker = blobs.open("oci-layout")
    if marker is None:
        legacy = blobs.open("manifest.json")
        if legacy is not None:
            legacy.close()
            raise ImageError(f"{blobs.source}: no OCI layout but a docker archive: give it as docker-archive:FILE")
        raise ImageError(f"{blobs.source}: no file oci-layout: not an OCI layout, or not at the top of the archive")
    source = f"{blobs.source}: oci-layout"
    try:
        version = read_json(read_document(marker, source), source)["imageLayoutVersion"].string()
    except ManifestError as error:
        raise ImageError(str(error)) from error
    if not version.startswith("1."):
        raise ImageError(f'{source}: version "{version}" of the layout is unknown (expected 1.0.0)')


def _read_blob(blobs: Blobs, descriptor: Descriptor) -> bytes:
    """Return a document after a check of size and digest."""
    where = f"{blobs.source}: {descriptor.digest}"
    data = read_document(blobs.open(descriptor.path), where)
    if len(data) != descriptor.size_bytes:
        raise ImageError(f"{where} has {len(data)} bytes, expected {descriptor.size_bytes}: damaged, copy it again")
    computed = hasher(descriptor.digest)
    computed.update(data)
    if digest_text(descriptor.digest, computed) != descriptor.digest:
        raise ImageError(f"{where} has another digest: damaged, copy the image again")
    return data


def _read_index(data: bytes, where: str, media_type: str | None = None) -> tuple[Descriptor, ...]:
    try:
        root = read_json(data, where)
        _check_kind(root, where, media_type, _INDEX)
        if not isinstance(root["manifests"].raw(), list):
            raise root["manifests"].error("a list")
        if len(root["manifests"].each(Node.raw)) > _MANIFESTS_LIMIT:
            raise ImageError(f"{where}: an index of more than {_MANIFESTS_LIMIT} manifests")
        return root["manifests"].each(_read_descriptor)
    except ManifestError as error:
        raise ImageError(str(error)) from error


def _check_kind(root: Node, where: str, media_type: str | None, kind: _Kind) -> None:
    """Refuse a document of another kind than `media_type`, which its descriptor has, or of two kinds."""
    if root["schemaVersion"].given and root["schemaVersion"].raw() == 1:
        raise ImageError(f"{where}: {_OLD_SCHEMA}")
    root["schemaVersion"].integer(2, 2)
    stated = root["mediaType"].optional(Node.string) or ""
    if stated and stated != (media_type or stated):
        raise ImageError(f"{where}: says it is {stated}, but is listed as {media_type}: refused as ambiguous")
    if stated and stated not in kind.media_types:
        raise ImageError(f'{where}: expected an {kind.name}, got media type "{stated[:120]}"')
    given = [key for key in kind.other_keys if root[key].given]
    if given:
        raise ImageError(f"{where}: an {kind.name} with {kind.own_key} and {given[0]}: refused as ambiguous")


_OLD_SCHEMA = (
    "an image of Docker's schema 1, which is no longer read: convert it with: skopeo copy --format oci SOURCE oci:DIR"
)


def _read_descriptor(node: Node) -> Descriptor:
    return Descriptor(
        media_type=node["mediaType"].non_empty(),
        digest=check_digest(node["digest"].string(), node.where),
        size_bytes=node["size"].integer(0, _SIZE_LIMIT),
        urls=node["urls"].each(Node.string),
        annotations=node["annotations"].string_map(),
        platform=node["platform"].optional(read_platform),
        artifact_type=node["artifactType"].optional(Node.string) or "",
    )


def _choose_named(entries: list[Descriptor], reference: str | None, processor: Processor, source: str) -> Descriptor:
    """Return the wanted entry of the top index."""
    if reference is not None:
        chosen = [entry for entry in entries if _is_meant(entry, reference)]
        if not chosen:
            raise ImageError(f'{source}: no image "{reference}": {_listing(entries)}')
    else:
        chosen = entries
    if not chosen:
        raise ImageError(f"{source}: no image in its index")
    if len({entry.digest for entry in chosen}) == 1:
        return chosen[0]
    # Several platforms of one image, without a nested index.
    if len({entry.tag for entry in chosen}) == 1 and all(entry.platform is not None for entry in chosen):
        return _choose_for(processor, chosen, source)
    raise ImageError(f"{source}: more than one image: {_listing(chosen)}: choose one by adding :TAG or @DIGEST")


def _is_meant(entry: Descriptor, reference: str) -> bool:
    if reference in (entry.digest, *(value for key, value in entry.annotations if key in _FULL_NAMES)):
        return True
    name = _full_name(entry)
    try:
        wanted = parse_image_name(reference)
    except ImageError:
        return False
    return name is not None and (name.whole, name.tag) == (wanted.whole, wanted.tag)


def _listing(entries: list[Descriptor]) -> str:
    names = sorted({_shown_name(entry) for entry in entries})
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"there is {', '.join(names[:20])}{more}" if names else "there is none"


def _shown_name(entry: Descriptor) -> str:
    return entry.tag or f"@{entry.digest}"


def _choose_for(processor: Processor, entries: list[Descriptor], where: str) -> Descriptor:
    if not entries:
        raise ImageError(f"{where}: an index without an image")
    if len(entries) == 1 and entries[0].platform is None:
        return entries[0]  # the configuration has the platform
    unknown = Platform(os="", architecture="")
    index = choose_platform([entry.platform or unknown for entry in entries], processor)
    if index is None:
        offered = ", ".join(sorted({(entry.platform or unknown).text or "unknown" for entry in entries}))
        own = ", which this machine is" if processor == this_processor() else ""
        raise ImageError(f"{where}: no image for {platform_text(processor)}{own}: there is {offered}")
    return entries[index]


def _full_name(entry: Descriptor) -> ImageName | None:
    """Return the name of an entry, None if only a tag is known."""
    for key in _FULL_NAMES:
        text = entry.annotation(key)
        if text is not None and ("/" in text or ":" in text):
            try:
                return parse_image_name(text)
            except ImageError:
                continue
    return None


def _read_image(blobs: Blobs, descriptor: Descriptor, document: bytes, name: ImageName) -> LayeredImage:
    source = blobs.source
    where = f"{source}: {descriptor.digest}"
    if descriptor.media_type.startswith(_SCHEMA_1):
        raise ImageError(f"{where}: {_OLD_SCHEMA}")
    if descriptor.media_type not in _MANIFESTS:
        raise ImageError(f'{where}: unknown media type "{descriptor.media_type[:120]}": not an image')
    try:
        root = read_json(document, where)
        _check_kind(root, where, descriptor.media_type, _IMAGE)
        config_descriptor = _read_descriptor(root["config"])
        layer_descriptors = root["layers"].each(_read_descriptor)
    except ManifestError as error:
        raise ImageError(str(error)) from error
    if config_descriptor.media_type not in _CONFIGS:
        raise ImageError(
            f'{where}: a configuration of media type "{config_descriptor.media_type[:120]}":'
            " an artifact of another kind, not an image to run"
        )
    configuration = _read_blob(blobs, config_descriptor)
    config = parse_image_config(configuration, f"{source}: {config_descriptor.digest}")
    if len(layer_descriptors) > LAYERS_LIMIT:
        raise ImageError(f"{where}: {len(layer_descriptors)} layers (at most {LAYERS_LIMIT})")
    if len(config.diff_ids) != len(layer_descriptors):
        raise ImageError(
            f"{where}: {len(layer_descriptors)} layers, but {len(config.diff_ids)} diff_ids in the configuration"
        )
    return LayeredImage(
        source=source,
        name=name,
        id=config_descriptor.digest,
        config=config,
        document=configuration,
        manifest=Document(media_type=descriptor.media_type, data=document),
        layers=tuple(
            _layer(blobs, layer, check_digest(diff_id, f"{source}: {config_descriptor.digest}"))
            for layer, diff_id in zip(layer_descriptors, config.diff_ids, strict=True)
        ),
    )


def _layer(blobs: Blobs, descriptor: Descriptor, diff_id: str) -> Layer:
    where = f"{blobs.source}: layer {descriptor.digest}"
    kind = descriptor.media_type
    if kind.endswith(_ENCRYPTED):
        raise ImageError(f"{where} is encrypted: decrypt it with: skopeo copy --decryption-key KEY SOURCE oci:DIR")
    if not any(kind.startswith(layer) and kind[len(layer) :] in _COMPRESSIONS for layer in _LAYERS):
        raise ImageError(f'{where} has the unknown media type "{kind[:120]}": an image of another kind, or too new')
    section = blobs.open(descriptor.path)
    if section is None:
        if descriptor.urls:
            raise ImageError(
                f"{where} is not in the image but at {descriptor.urls[0][:200]}, and nothing is downloaded:"
                f" save it as {descriptor.path}"
            )
        raise ImageError(f"{where} is missing: copy the image again")
    with section:
        size_bytes = section.size_bytes
    if size_bytes != descriptor.size_bytes:
        raise ImageError(f"{where} has {size_bytes} bytes, expected {descriptor.size_bytes}: copy the image again")
    return Layer(
        name=where,
        open=partial(open_again, blobs, descriptor.path, where),
        size_bytes=size_bytes,
        diff_id=diff_id,
        digest=descriptor.digest,
    )
