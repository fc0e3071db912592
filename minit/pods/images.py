"""Images of the store, fetched and removed."""

from __future__ import annotations

from minit.base.errors import MinitError, StoreError, describe
from minit.base.processors import Processor
from minit.base.progress import Progress
from minit.pods.caller import Caller
from minit.stage0.garbage.storegc import collect_trees
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.images.treestore import TreeStore


def fetch(
    caller: Caller,
    store: Store,
    reference: str,
    progress: Progress,
    *,
    policy: PullPolicy = PullPolicy.UPDATE,
    processor: Processor | None = None,
    authfile: bytes | None = None,
) -> str:
    """Return the id of the image that a reference means, in the store and unpacked; options as in resolve_image."""
    image = resolve_image(
        store,
        reference,
        progress,
        policy,
        processor=processor,
        verify_tls=caller.verifies_tls,
        authfile=authfile,
    )
    TreeStore(caller.data, store).render(image.id, progress)
    return image.id


def remove(caller: Caller, store: Store, reference: str) -> str:
    """Remove an image, and return its id."""
    image = store.find(reference)
    store.remove(image.id)
    return image.id


def remove_all(caller: Caller, store: Store, ids: tuple[str, ...]) -> None:
    """Remove images and what was unpacked of images that are gone; StoreError with the last failure at the end."""
    failure: MinitError | None = None
    for image in ids:
        try:
            remove(caller, store, image)
        except MinitError as error:
            failure = error
    collect_trees(caller.data, TreeStore(caller.data, store), None, caller.note, gone_only=True)
    if failure is not None:
        raise StoreError(f"failed to remove one or more images: {describe(failure)}") from failure
