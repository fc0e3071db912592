"""
The image that a user means: found in the store, read from a file, or converted from a layout, an archive or a registry.

An image of layers is converted once. For each source a file in `$DATA/minit/cas/known`, named by the SHA-256 of the
manifest that the source is converted to, has the ID of the image.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Container, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from minit.archives.aci import check_processor, convert_manifest
from minit.archives.imagenames import FILE_TRANSPORTS, OCI, ImageName, is_source, parse_image_name
from minit.archives.layered import Document, LayeredImage
from minit.archives.oci import layer_digests, media_type_of
from minit.archives.opening import open_image
from minit.archives.recipe import DamagedLayerError
from minit.archives.squash import Meter
from minit.archives.streams import DEFAULT_LIMITS
from minit.base.errors import ImageError, MinitError, StoreError
from minit.base.processors import Processor, this_processor
from minit.base.progress import Progress
from minit.base.value import replace
from minit.manifest.image import parse_image_manifest
from minit.stage0.files.durable import create_file, disk_errors, make_directory, move_into_place, remove_file
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.registry import RawManifest, Skopeo, SkopeoSource, policy_file, requirements_for, skopeo_source
from minit.stage0.images.signatures import DEFAULT_TRUST, Signature, SignatureKind, Trust
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import (
    ImageDigests,
    Origin,
    PullPolicy,
    StoredImage,
    choose_named,
    name_of_content,
    reference_to,
)

_RULES = b"2"  # to be changed with the rules of conversion, or images by older rules would be used
_ID_LIMIT_BYTES = 100
_OF_DOCKER = "vnd.docker."  # in a media type: skopeo writes such documents anew

_REMOTE_SCHEMES = ("http://", "https://")


def recall(store: Store, origin: bytes) -> StoredImage | None:
    """Return the image of the manifest `origin`, None if the image is not, or no longer, in the store."""
    try:
        with open(_file(store, origin), "rb") as file:
            image_id = file.read(_ID_LIMIT_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    try:
        return store.get(image_id)
    except MinitError:
        return None


def remember(store: Store, origin: bytes, image: StoredImage) -> None:
    """Note `image` as the image of the manifest `origin`; forget images that are gone."""
    target = _file(store, origin)
    with disk_errors(f"remember image {image.id}", store.temporary):
        make_directory(target.parent, 0o770)
        for path in target.parent.iterdir():
            with suppress(FileNotFoundError):
                _forget_if_gone(store, path)
        with scratch_directory(store.temporary) as scratch:
            create_file(scratch / "known", image.id.encode("ascii"), 0o640)
            move_into_place(scratch / "known", target)


def _forget_if_gone(store: Store, path: Path) -> None:
    try:
        store.get(path.read_bytes()[:_ID_LIMIT_BYTES].decode("ascii", "replace"))
    except MinitError:
        remove_file(path)


def _file(store: Store, origin: bytes) -> Path:
    return store.data / "minit" / "cas" / "known" / hashlib.sha256(_RULES + b"\n" + origin).hexdigest()


def import_image(
    store: Store,
    reference: str,
    policy: PullPolicy,
    processor: Processor,
    progress: Progress,
    *,
    verify_tls: bool,
    authfile: bytes | None = None,
    trust: Trust = DEFAULT_TRUST,
) -> StoredImage:
    """
    Return the image of a reference with a transport for a processor, fetched and converted if need be.

    `authfile` is as in `Skopeo`. Reports lines of skopeo, and bytes of layers.
    """
    source = _source(reference)
    if source is not None and source.is_remote and source.name is not None and policy is not PullPolicy.UPDATE:
        known = choose_named(store.list(), reference_to(source.name), processor)
        if known is not None and known.manifest.label("arch") == processor.appc:
            return known
        if policy is PullPolicy.NEVER:
            missing = f'image "{reference}" is not in the store {store.data}'
            raise StoreError(f"{missing}, and --pull-policy=never keeps it so")
    vouched: set[str] = set()
    signed: Signature | None = None
    try:
        with disk_errors(f"import {reference}", store.temporary), store.layers.kept(), ExitStack() as stack:
            if source is None:
                image = stack.enter_context(open_image(reference, store.temporary_file, processor))
            else:
                skopeo = Skopeo(
                    source,
                    processor,
                    progress,
                    verify_tls=verify_tls,
                    authfile=authfile,
                    obeys_policy=trust.is_enforced,
                )
                manifest = skopeo.read_manifest()
                layout = stack.enter_context(scratch_directory(store.temporary)) / "image"
                vouched = store.layers.leave_out(layout, _layers_of_repository(store, source))
                requirements = _requirements_for(source) if trust.is_enforced else None
                by_tag = requirements is not None and source.name is not None and source.name.digest is None
                skopeo.copy(source.wanted if by_tag else manifest.wanted, layout)
                image = stack.enter_context(open_image(f"{OCI}:{layout}", store.temporary_file, processor))
                name = source.name or ImageName(registry="", repository=source.title)
                image = replace(image, name=name, source=source.wanted)
                signed = _signature_by(requirements) if requirements else None
                if by_tag:
                    image = _as_allowed(image, manifest)
                else:
                    image = _as_it_was(replace(image, manifest_digest=manifest.digest), manifest, skopeo)
            # A registry has a policy of its own, which skopeo has obeyed.
            rule = trust if source is None else None
            return _import(store, image, policy, processor, vouched, progress, rule, signed)
    except BaseException:
        store.collect_layers()
        raise


def _requirements_for(source: SkopeoSource) -> tuple[str, ...] | None:
    """Return what the policy of the machine asks of an image of a registry, None if of no image anything is asked."""
    return requirements_for(source.wanted, policy_file()) if source.is_remote else None


def _signature_by(requirements: tuple[str, ...]) -> Signature:
    return Signature(
        kind=SignatureKind.POLICY,
        policy=str(policy_file()),
        requirements=requirements,
        verified_seconds=int(time.time()),
    )


def _as_allowed(image: LayeredImage, manifest: RawManifest) -> LayeredImage:
    """
    Return an image that was copied by tag, with facts of the manifest that was read before only if they are proven.

    A policy may be about the tag, and a registry may answer the two questions about it with two images.
    """
    if image.manifest is not None and image.manifest.data == manifest.document:
        return replace(image, manifest_digest=manifest.digest)
    digests = tuple(layer.digest for layer in image.layers)
    media_type = media_type_of(manifest.document, image.source) or ""
    if _OF_DOCKER not in media_type or digests != layer_digests(manifest.document, image.source):
        raise StoreError(f"{image.source}: the registry has two images for one tag: try again")
    return replace(image, manifest=None)


def _as_it_was(image: LayeredImage, manifest: RawManifest, skopeo: Skopeo) -> LayeredImage:
    """Return a copied image with the documents of the source: skopeo writes those of Docker's form anew."""
    if manifest.configuration in (None, image.id):
        return image
    image = replace(image, id=manifest.configuration, manifest=None)
    media_type = media_type_of(manifest.document, image.source)
    digests = tuple(layer.digest for layer in image.layers)
    if media_type is None or digests != layer_digests(manifest.document, image.source):
        return image
    document = skopeo.read_configuration(manifest.wanted)
    if f"sha256:{hashlib.sha256(document).hexdigest()}" != image.id:
        return image
    return replace(image, document=document, manifest=Document(media_type=media_type, data=manifest.document))


def _source(reference: str) -> SkopeoSource | None:
    """Return the source for skopeo, None if minit itself reads the image."""
    if reference.partition(":")[0] in FILE_TRANSPORTS:
        return None
    try:
        return skopeo_source(reference)
    except ImageError as error:
        raise StoreError(str(error)) from error


def _layers_of_repository(store: Store, source: SkopeoSource) -> set[str]:
    """
    Return the diff_ids of the layers that images of the same repository of a registry have brought.

    Who may fetch from the repository could fetch these layers. Any other image has to bring all layers that it names.
    """
    if source.name is None or not source.is_remote:
        return set()
    found: set[str] = set()
    for image in store.list():
        recipe = store.recipe(image.id) if _is_of(image, source.name) else None
        found.update(() if recipe is None else recipe.layers)
    return found


def _is_of(image: StoredImage, name: ImageName) -> bool:
    original = image.original_name
    return original is not None and parse_image_name(original).whole == name.whole


def _import(
    store: Store,
    image: LayeredImage,
    policy: PullPolicy,
    processor: Processor,
    vouched: Container[str],
    progress: Progress,
    trust: Trust | None,
    signed: Signature | None,
) -> StoredImage:
    check_processor(image, processor)
    # The manifest has name, tag and the digests of all layers.
    origin = convert_manifest(image)
    if not image.name.registry and image.name.tag is None:
        name = name_of_content(store.list(), origin)
        if name is not None:
            image = replace(image, name=name)
            origin = convert_manifest(image)
    if trust is not None:
        trust.refuse_unsigned(parse_image_manifest(origin, image.source).name, image.source)
    meter = Meter(image, progress)
    proven = set()
    for number, layer in enumerate(image.layers):
        if store.layers.proves(layer, vouched):
            proven.add(number)
            meter.complete(number)
    known = None if policy is PullPolicy.UPDATE or len(proven) < len(image.layers) else recall(store, origin)
    if known is not None:
        store.renew(known.id, _origin(image, signed))
        return store.get(known.id)
    try:
        imported = _add(store, image, origin, proven, meter, signed)
    except DamagedLayerError as error:
        # The layer was in the store before: the image's own layer replaces the damaged one.
        store.layers.remove(error.layer.diff_id)
        imported = _add(store, image, origin, proven, meter, signed)
    remember(store, origin, imported)
    return imported


def _add(
    store: Store, image: LayeredImage, manifest: bytes, proven: Container[int], meter: Meter, signed: Signature | None
) -> StoredImage:
    """Add an image; layers that are `proven`, and not gone meanwhile, are taken from the store."""
    sizes = [0] * len(image.layers)
    missing: dict[tuple[str, str], int] = {}  # a layer may be in an image twice
    for number, layer in enumerate(image.layers):
        if number in proven and store.layers.has(layer.diff_id):
            sizes[number] = store.layers.get(layer.diff_id).size_bytes
        else:
            missing.setdefault((layer.diff_id, layer.digest or layer.name), number)
    numbers = list(missing.values())

    def tell(place: int, read_bytes: int, size_bytes: int) -> None:
        sizes[numbers[place]] = size_bytes
        _check_size(image, sizes)
        meter.tell(numbers[place], read_bytes)

    added = store.layers.add([image.layers[number] for number in numbers], DEFAULT_LIMITS, tell)
    layers = [store.layers.get(layer.diff_id) for layer in image.layers]
    for number in range(len(layers)):
        meter.complete(number)
    _check_size(image, [layer.size_bytes for layer in layers])
    names = [layer.name for layer in image.layers]
    action = f"import {image.source}"
    return store.add_layered(action, manifest, layers, names, _origin(image, signed), added)


def _check_size(image: LayeredImage, sizes: Sequence[int]) -> None:
    if sum(sizes) > DEFAULT_LIMITS.size_bytes:
        raise ImageError(f"{image.source}: layers of more than {DEFAULT_LIMITS.size_bytes} bytes when uncompressed")


def _origin(image: LayeredImage, signed: Signature | None) -> Origin:
    manifests = () if image.manifest_digest is None else (image.manifest_digest,)
    digests = ImageDigests(configuration=image.id, manifests=manifests)
    return Origin(digests=digests, configuration=image.document, manifest=image.manifest, signature=signed)


def resolve_image(
    store: Store,
    reference: str,
    progress: Progress,
    policy: PullPolicy = PullPolicy.NEW,
    *,
    processor: Processor | None = None,
    verify_tls: bool = True,
    authfile: bytes | None = None,
    trust: Trust = DEFAULT_TRUST,
    signature: Path | None = None,
) -> StoredImage:
    """
    Return the image `reference` means, imported if `reference` is a file; StoreError if none is for `processor`.

    Without `processor` a multi-platform source gives the image for this machine, and a file or the store any image.

    `policy` is about images that are fetched, converted or read from a file, which the store may have already. Without
    `verify_tls` the identity of a registry is not checked. `authfile` is as in `Skopeo`. `trust` and `signature` are as
    in `Store.import_file`; registries have a policy of signatures instead, containers-policy.json(5).
    """
    if signature is not None and (is_source(reference) or image_file(reference) is None):
        raise StoreError(f'--signature {signature}: image "{reference}" is no ACI file, which alone is signed so')
    if reference.startswith(_REMOTE_SCHEMES):
        raise StoreError(
            f'cannot fetch "{reference}": minit does not download images (download it, then give the file)'
        )
    if is_source(reference):
        wanted = processor or this_processor()
        return import_image(
            store, reference, policy, wanted, progress, verify_tls=verify_tls, authfile=authfile, trust=trust
        )
    path = image_file(reference)
    if path is None:
        image = store.find(reference, processor)
    else:
        image = store.import_file(path, progress, again=policy is PullPolicy.UPDATE, trust=trust, signature=signature)
    architecture = image.manifest.label("arch")
    if processor is not None and not processor.runs(architecture):
        told = f'image "{reference}" is for {architecture or "no processor"}, and not for {processor.appc}'
        raise StoreError(
            f"{told}: images for it have that label arch, or come with: minit fetch --arch={processor.name}"
        )
    return image


def image_file(reference: str) -> Path | None:
    """Return the ACI of an image argument, None for an image of the store."""
    if reference.startswith("file://"):
        return Path(unquote(urlsplit(reference).path))
    if reference.startswith("sha512-"):
        return None
    path = Path(reference)
    is_file = (
        path.is_absolute()
        or "./" in reference
        or (reference.endswith(".aci") and ":" not in reference)
        or path.is_file()
    )
    return path if is_file else None
