"""Images of the store as other programs want images: in files and directories of OCI and Docker, and in registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.archives.aci import beyond_oci
from minit.archives.imagenames import (
    DEFAULT_REGISTRY,
    OCI,
    familiar_name,
    parse_image_name,
    parse_image_reference,
)
from minit.archives.layered import Document, Layer
from minit.archives.oci import configuration_of, layer_digests
from minit.archives.ociwriting import OutgoingImage, new_layer, stored_layer, write_archive, write_directory
from minit.archives.unpackedlayer import UnpackedLayer
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.base.processors import this_processor
from minit.base.progress import Progress
from minit.base.value import replace
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.temporary import output_directory, output_file, scratch_directory
from minit.stage0.images.making import configuration_document, spool_image
from minit.stage0.images.registry import Skopeo, SkopeoSource
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage, tag_meant

Json = dict[str, object]


def full_name(image: StoredImage, reference: str | None) -> str:
    """
    Return the name that leaves with an image: of several the one that `reference` means, with a tag.

    Empty for an image whose name is none in docker's form.
    """
    tag = None if reference is None else tag_meant(image, parse_image_reference(reference))
    if tag is None and not image.names.keeps_own and image.names.tags:
        tag = image.names.tags[0]
    text = image.original_name or image.own_name if tag is None else tag.name
    try:
        name = parse_image_name(text)
    except ImageError:
        return ""
    if name.digest is not None:
        return ""
    host = "" if name.registry == DEFAULT_REGISTRY and tag is None and image.original_name is None else f"{name.host}/"
    repository = familiar_name(name.whole, None) if not host else name.repository
    return f"{host}{repository}:{name.tag}"


@contextmanager
def outgoing(
    store: Store, image: StoredImage, name: str, note: Callable[[str], None], progress: Progress
) -> Iterator[OutgoingImage]:
    """
    Yield an image as it leaves: with the layers, configuration and manifest that it came with, as far as they are kept.

    An image of whose layers not all are kept is one new layer, and `note` is told so, and what an image of appc loses.
    """
    document = store.configuration(image.id)
    with store.layers.kept(), store.temporary_file() as file:
        layers = [store.layers.get(diff_id) for diff_id in image.diff_ids]
        if document is not None and layers and all(layer.has_bytes for layer in layers):
            original = store.registry_manifest(image.id)
            digests = _digests_of(original, document, len(layers))
            if digests is not None and all(map(UnpackedLayer.brings, layers, digests)):
                sent = tuple(map(stored_layer, layers, digests))
                yield OutgoingImage(name=name, configuration=document, layers=sent, original=original)
            else:
                sent = tuple(stored_layer(layer) for layer in layers)
                yield OutgoingImage(name=name, configuration=document, layers=sent)
            return
        if image.diff_ids:
            note(
                f"image {image.own_name} was imported before layers were kept: it leaves as one new layer"
                " (fetch it again to have its own)"
            )
        lost = beyond_oci(image.manifest) if document is None else []
        if lost:
            note(f"image {image.own_name}: OCI has no words for {', '.join(lost)}: left out")
        layer = spool_image(store, image, file, progress)
        configuration = _of_one_layer(configuration_document(store, image), layer)
        yield OutgoingImage(name=name, configuration=configuration, layers=(new_layer(layer),))


def with_layer(image: OutgoingImage, layer: Layer, history: Json, changes: Json) -> OutgoingImage:
    """Return an image with one more layer, an entry of the history about the layer, and `changes` of the document."""
    document = jsontext.parse(image.configuration, "configuration")
    assert isinstance(document, dict)
    diff_ids = [*(one.tar.digest for one in image.layers), layer.diff_id]
    document |= changes
    document["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    known = _history(document, len(image.layers))
    document["history"] = [*known, history]
    configuration = jsontext.dump(document)
    return replace(image, configuration=configuration, layers=(*image.layers, new_layer(layer)), original=None)


def write_image(image: OutgoingImage, kind: str, output: Path, *, overwrite: bool, progress: Progress) -> None:
    """Write an image in a format to a file, or to a directory; nothing is left of a failure."""
    if kind == OCI:
        with output_directory(output, overwrite=overwrite) as directory:
            write_directory(image, directory, progress)
        return
    with output_file(output, overwrite=overwrite, exists="output file exists (try --overwrite)") as file:
        write_archive(image, kind, file.write, progress)


def push_image(
    store: Store,
    image: OutgoingImage,
    target: SkopeoSource,
    progress: Progress,
    *,
    verify_tls: bool,
    authfile: bytes | None,
) -> str:
    """
    Bring an image to a registry, and return the manifest's digest there; other arguments are as in `Skopeo`.

    Files of the store are not copied for that.
    """
    skopeo = Skopeo(target, this_processor(), progress, verify_tls=verify_tls, authfile=authfile, action="push")
    with scratch_directory(store.temporary) as scratch, disk_errors(f"push {target.wanted}", store.temporary):
        layout = scratch / "image"
        layout.mkdir()
        write_directory(image, layout, progress, link=True)
        return skopeo.push(layout, scratch / "digest", as_it_is=image.original is not None)


def _digests_of(original: Document | None, document: bytes, count: int) -> tuple[str, ...] | None:
    """Return the digests of `count` layers in a manifest, None for a manifest of another image."""
    if original is None:
        return None
    configuration = Document(media_type="", data=document).digest
    try:
        digests = layer_digests(original.data, "manifest")
        is_same = configuration_of(original.data, "manifest") == configuration
    except ImageError:
        return None
    return digests if is_same and len(digests) == count else None


def _of_one_layer(document: Json, layer: Layer) -> bytes:
    """Return a configuration for all files in one layer; earlier entries of the history have no layer any more."""
    earlier = [{**entry, "empty_layer": True} for entry in _entries(document)]
    history = [*earlier, {"created_by": "minit", "comment": "all files in one layer"}]
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id]}
    return jsontext.dump({**document, "rootfs": rootfs, "history": history})


def _history(document: Json, layers: int) -> list[Json]:
    """Return the history of an image with a number of layers: with an entry for each, or none is known."""
    known = _entries(document)
    with_layer = sum(not entry.get("empty_layer") for entry in known)
    return known if with_layer == layers else [{"comment": "unknown"}] * layers


def _entries(document: Json) -> list[Json]:
    entries = document.get("history")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
