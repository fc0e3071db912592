"""Images of layers into the store: from a layout, an archive or a registry, each converted once."""

from __future__ import annotations

import platform
from contextlib import ExitStack

from minit.archives.acimanifest import check_machine, convert_manifest
from minit.archives.imagenames import ImageName, parse_image_name
from minit.archives.layered import LayeredImage
from minit.archives.opening import open_image
from minit.archives.squash import write_aci
from minit.archives.transports import OCI, REGISTRY_SCHEMES
from minit.errors import ImageError, StoreError
from minit.progress import Progress
from minit.stage0.files.diskerrors import disk_errors
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.knownimages import recall, remember
from minit.stage0.images.pullpolicy import PullPolicy
from minit.stage0.images.registry import copy_from_registry
from minit.stage0.images.store import Store, StoredImage
from minit.value import replace


def import_layers(store: Store, reference: str, policy: PullPolicy, progress: Progress) -> StoredImage:
    """Return the image of a layout or an archive, which is converted if need be; reports bytes of layers."""
    with disk_errors(f"import {reference}", store.temporary), open_image(reference, store.temporary_file) as image:
        return _import(store, image, policy, progress)


def import_from_registry(store: Store, reference: str, policy: PullPolicy, progress: Progress) -> StoredImage:
    """Return the image of a registry, fetched by skopeo if need be."""
    name = _registry_name(reference)
    origin = f"docker://{name.whole}:{name.tag}@{name.digest}".encode()
    known = None if policy is PullPolicy.UPDATE else recall(store, origin)
    if known is not None:
        return known
    if policy is PullPolicy.NEVER:
        raise StoreError(f'image "{reference}" is not in the store {store.data}, and --pull-policy=never keeps it so')
    with disk_errors(f"import {reference}", store.temporary), ExitStack() as stack:
        layout = stack.enter_context(scratch_directory(store.temporary)) / "image"
        copy_from_registry(name, layout, progress)
        image = stack.enter_context(open_image(f"{OCI}:{layout}", store.temporary_file))
        imported = _import(store, replace(image, name=name, source=f"docker://{name.original}"), policy, progress)
    remember(store, origin, imported)
    return imported


def _registry_name(reference: str) -> ImageName:
    scheme = next(scheme for scheme in REGISTRY_SCHEMES if reference.startswith(scheme))
    try:
        return parse_image_name(reference.removeprefix(scheme))
    except ImageError as error:
        raise StoreError(str(error)) from error


def _import(store: Store, image: LayeredImage, policy: PullPolicy, progress: Progress) -> StoredImage:
    check_machine(image, platform.machine())
    # Name, tag and the digest of the configuration are in it, and with that the digests of all layers.
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
