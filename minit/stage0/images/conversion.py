"""Images of layers into the store: from a layout, an archive, a registry or another store, each converted once."""

from __future__ import annotations

import platform
from contextlib import ExitStack

from minit.archives.acimanifest import check_machine, convert_manifest
from minit.archives.imagenames import ImageName
from minit.archives.layered import LayeredImage
from minit.archives.opening import open_image
from minit.archives.squash import write_aci
from minit.archives.transports import FILE_TRANSPORTS, OCI
from minit.errors import ImageError, StoreError
from minit.progress import Progress
from minit.stage0.files.diskerrors import disk_errors
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.imagelookup import choose_named, name_of_content, reference_to
from minit.stage0.images.knownimages import recall, remember
from minit.stage0.images.pullpolicy import PullPolicy
from minit.stage0.images.registry import SkopeoSource, copy_by_skopeo, skopeo_source
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.value import replace


def import_image(
    store: Store, reference: str, policy: PullPolicy, progress: Progress, *, verify_tls: bool
) -> StoredImage:
    """
    Return the image that a reference with a transport means, which is fetched and converted if need be.

    Reports what skopeo says, and bytes of layers.
    """
    if reference.partition(":")[0] in FILE_TRANSPORTS:
        with disk_errors(f"import {reference}", store.temporary), open_image(reference, store.temporary_file) as image:
            return _import(store, image, policy, progress)
    try:
        source = skopeo_source(reference)
    except ImageError as error:
        raise StoreError(str(error)) from error
    if source.is_remote and source.name is not None and policy is not PullPolicy.UPDATE:
        known = choose_named(store.list(), reference_to(source.name))
        if known is not None:
            return known
        if policy is PullPolicy.NEVER:
            missing = f'image "{reference}" is not in the store {store.data}'
            raise StoreError(f"{missing}, and --pull-policy=never keeps it so")
    with disk_errors(f"import {reference}", store.temporary), ExitStack() as stack:
        layout = stack.enter_context(scratch_directory(store.temporary)) / "image"
        copy_by_skopeo(source.wanted, layout, progress, verify_tls=verify_tls)
        image = stack.enter_context(open_image(f"{OCI}:{layout}", store.temporary_file))
        return _import(store, replace(image, name=_name(source), source=source.wanted), policy, progress)


def _name(source: SkopeoSource) -> ImageName:
    return ImageName(registry="", repository=source.title) if source.name is None else source.name


def _import(store: Store, image: LayeredImage, policy: PullPolicy, progress: Progress) -> StoredImage:
    check_machine(image, platform.machine())
    # Name, tag and the digests of all layers are in it.
    origin = convert_manifest(image)
    if not image.name.registry and image.name.tag is None:
        name = name_of_content(store.list(), origin)
        if name is not None:
            image = replace(image, name=name)
            origin = convert_manifest(image)
    known = None if policy is PullPolicy.UPDATE else recall(store, origin)
    if known is not None:
        store.renew(known.id)
        return store.get(known.id)
    imported = store.add(
        f"import {image.source}", lambda write: write_aci(image, write, store.temporary_file, progress)
    )
    remember(store, origin, imported)
    return imported
