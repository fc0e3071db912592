"""Images made here of layers: the configuration of any image, an image as one layer, a new image of the store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import BinaryIO

from minit.archives.aci import convert_manifest, image_configuration
from minit.archives.blobs import Section
from minit.archives.imagenames import ImageName
from minit.archives.layered import Layer, LayeredImage, parse_image_config
from minit.archives.streams import DEFAULT_LIMITS
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.base.processors import this_processor
from minit.base.progress import Progress, silent
from minit.base.value import replace
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.treetar import TreeWriter
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import ImageDigests, Origin, StoredImage
from minit.stage0.images.treestore import TreeStore

Json = dict[str, object]

LIMITS = replace(DEFAULT_LIMITS, ratio=DEFAULT_LIMITS.size_bytes)
"""Those of a layer that is made here, which may be a sparse file alone."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def configuration_document(store: Store, image: StoredImage) -> Json:
    """Return the configuration of an image, in OCI's form: the original one, or one made of the manifest."""
    data = store.configuration(image.id)
    document = None if data is None else jsontext.parse(data, image.id)
    return document if isinstance(document, dict) else image_configuration(image.manifest, image.diff_ids)


def make_image(
    store: Store,
    name: ImageName,
    base: StoredImage | None,
    layers: Sequence[Layer],
    configuration: Json,
    progress: Progress = silent,
) -> StoredImage:
    """
    Add the image of the layers of `base`, if any, with `layers` above, and return the image.

    Layers in the store are not copied, nor are the base's checked for right: the caller has the base. `rootfs` of the
    configuration is filled in, and so is the platform, if missing. A failure leaves nothing. ImageError if a layer is
    damaged or cannot be applied, or the configuration is impossible.
    """
    what = f"image {name.canonical}"
    try:
        with disk_errors(f"make {what}", store.temporary), store.layers.kept():
            below = () if base is None else base.diff_ids
            if base is not None and not below:
                with store.temporary_file() as file:
                    lowest = spool_image(store, base, file, progress)
                    store.layers.add([lowest], LIMITS, lambda *_: None)
                below = (lowest.diff_id,)
            new = {layer.diff_id: layer for layer in layers if not _is_whole(store, layer.diff_id)}
            added = store.layers.add(list(new.values()), LIMITS, _teller(what, list(new.values()), progress))
            unpacked = [store.layers.get(diff_id) for diff_id in (*below, *(layer.diff_id for layer in layers))]
            if sum(layer.size_bytes for layer in unpacked) > DEFAULT_LIMITS.size_bytes:
                raise ImageError(f"{what}: layers of more than {DEFAULT_LIMITS.size_bytes} bytes")
            diff_ids = [layer.diff_id for layer in unpacked]
            document = jsontext.dump(_complete(configuration, diff_ids))
            digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
            config = parse_image_config(document, what)
            image = LayeredImage(source=what, name=name, id=digest, config=config, document=document, layers=())
            return store.add_layered(
                f"make {what}",
                convert_manifest(image),
                unpacked,
                [f"layer {diff_id}" for diff_id in diff_ids],
                Origin(digests=ImageDigests(configuration=digest), configuration=document),
                added,
            )
    except BaseException:
        store.collect_layers()
        raise


def spool_image(store: Store, image: StoredImage, file: BinaryIO, progress: Progress = silent) -> Layer:
    """Write all files of an image, with those of its dependencies, to the empty `file`; return the only layer."""
    trees = TreeStore(store.data, store)
    root = os.open(trees.path(trees.render(image.id, progress)) / "rootfs", _DIRECTORY)
    digest = hashlib.sha256()

    def write(data: memoryview) -> None:
        digest.update(data)
        file.write(data)

    try:
        writer = TreeWriter(write, None, lambda _: None, lambda count: progress(f"packing {image.name}", count, None))
        writer.add_tree(root, ".")
        writer.finish()
    finally:
        os.close(root)
    return spooled(file, digest, f"the files of image {image.name}")


def spooled(file: BinaryIO, digest: hashlib._Hash, name: str) -> Layer:
    """Return the layer that was written to a file, and is read there."""
    file.flush()
    size_bytes = file.tell()
    return Layer(
        name=name,
        open=partial(Section, file.fileno(), 0, size_bytes, close_fd=False),
        size_bytes=size_bytes,
        diff_id=f"sha256:{digest.hexdigest()}",
    )


def _is_whole(store: Store, diff_id: str) -> bool:
    return store.layers.has(diff_id) and store.layers.get(diff_id).has_bytes


def _complete(configuration: Json, diff_ids: Sequence[str]) -> Json:
    processor = this_processor()
    platform: Json = {"architecture": processor.architecture, "os": "linux"}
    if "architecture" not in configuration and (variant := processor.name.partition("/")[2]):
        platform["variant"] = variant
    return {**platform, **configuration, "rootfs": {"type": "layers", "diff_ids": list(diff_ids)}}


def _teller(what: str, layers: Sequence[Layer], progress: Progress) -> Callable[[int, int, int], None]:
    """Return the function that takes the progress of layers by number."""
    read = [0] * len(layers)

    def tell(number: int, read_bytes: int, _: int) -> None:
        read[number] = read_bytes
        progress(f"making {what}", sum(read), sum(layer.size_bytes for layer in layers))

    return tell
