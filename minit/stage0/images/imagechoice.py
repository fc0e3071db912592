"""The image that a user means: a file, a layout or an archive to import, one of a registry, or one of the store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from minit.archives.imagenames import is_source
from minit.base.errors import StoreError
from minit.base.processors import Processor, this_processor
from minit.base.progress import Progress
from minit.stage0.images.conversion import import_image
from minit.stage0.images.pullpolicy import PullPolicy
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage

_REMOTE_SCHEMES = ("http://", "https://")


def resolve_image(
    store: Store,
    reference: str,
    progress: Progress,
    policy: PullPolicy = PullPolicy.NEW,
    *,
    processor: Processor | None = None,
    verify_tls: bool = True,
    authfile: bytes | None = None,
) -> StoredImage:
    """
    Return the image `reference` means, imported if it is a file; StoreError if there is none for `processor`.

    Without one it is that for this machine, where there is one for several, and of a file or the store any.

    `policy` is about images that are fetched, converted or read from a file, which the store may have already. Without
    `verify_tls` a registry may be anybody. `authfile` is as in `Skopeo`.
    """
    if reference.startswith(_REMOTE_SCHEMES):
        raise StoreError(
            f'cannot fetch "{reference}": minit does not download images (download it, then give the file)'
        )
    if is_source(reference):
        wanted = processor or this_processor()
        return import_image(store, reference, policy, wanted, progress, verify_tls=verify_tls, authfile=authfile)
    path = image_file(reference)
    if path is None:
        image = store.find(reference, processor)
    else:
        image = store.import_file(path, progress, again=policy is PullPolicy.UPDATE)
    architecture = image.manifest.label("arch")
    if processor is not None and not processor.runs(architecture):
        told = f'image "{reference}" is for {architecture or "no processor"}, and not for {processor.appc}'
        raise StoreError(
            f"{told}: images for it have that label arch, or come with: minit fetch --arch={processor.name}"
        )
    return image


def image_file(reference: str) -> Path | None:
    """Return the ACI an image argument means, None if it means an image of the store."""
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
