"""
The images of the store as Kubernetes knows images, and the space of the images.

An image is one configuration, known by the configuration's digest. The store has the image once for each name;
the names are the image's tags. A tag that was given to another image since belongs to the other image alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from minit.archives.aci import image_configuration
from minit.archives.imagenames import ImageName, parse_image_name, reference_of
from minit.archives.layered import parse_image_config
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.base.processors import Processor, this_processor
from minit.base.value import Value, replace
from minit.podfiles.paths import ANNOTATION_STAGE1
from minit.stage0.files.untrusted import DiskUsage, disk_usage
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage

_ID_BEGINNING = re.compile(r"(sha256:|sha512-)?[0-9a-f]{2,}")

_STORES = ("cas", "minit/cas")
# Manifests, of which the time is that of the last import, and the directories of what else images are described by.
_TELLING = ("imageManifest/sha512/*/*", "digests/sha512/*", "treeSize/sha512/*", "names/sha512/*", "untagged/sha512/*")
_SETTLED_NS = 1_000_000_000
"""Beyond the steps of a file system's clock: a change within one of them would not be seen."""

_PLACES = ("minit/cas", "cas")
_CHANGING = ("minit/cas/layer", "cas/tree", "minit/cas/imageManifest/sha512/*")


class NodeImage(Value):
    """
    An image; `id` is the digest of its configuration, or the store's id of an ACI that never had one.

    `stored` are the store's images, oldest import first, `tags` and `digests` the names, all with the registry.
    `user` is the configuration's user, empty if the configuration names none.
    """

    id: str
    stored: tuple[StoredImage, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    user: str = ""

    def name_of(self, reference: str) -> str:
        """Return the name that a reference is, or for an id any name, or else the id."""
        named = _named(reference)
        names = (named,) if named in self.tags or named in self.digests else (*self.tags, *self.digests, self.id)
        return names[0]

    def digest_of(self, reference: str) -> str:
        """Return the digest of the repository that a name is of, with that, or else any digest, or else the id."""
        name = self.name_of(reference)
        repository = name.rpartition(":")[0]
        own = (digest for digest in self.digests if digest == name or digest.partition("@")[0] == repository)
        return next(own, next(iter(self.digests), self.id))


def node_images(stored: Sequence[StoredImage], processor: Processor) -> list[NodeImage]:
    """
    Return the images that some of the store are, given in the order of their imports.

    Images of stage1 are left out, and so are images that a node with the processor does not run: somebody has fetched
    such images for other machines.
    """
    of_apps = [
        image
        for image in stored
        if image.manifest.annotation(f"{ANNOTATION_STAGE1}run") is None
        and image.manifest.label("arch") in (None, processor.appc, *processor.older)
    ]
    given = sorted(
        ((time_ns, tag, image.id) for image in of_apps for time_ns, tag in _tags(image)), key=lambda one: one[0]
    )
    owners = {tag: image_id for _, tag, image_id in given}
    by_id: dict[str, list[StoredImage]] = {}
    for image in of_apps:
        by_id.setdefault(_id(image), []).append(image)
    return [
        NodeImage(
            id=image_id,
            stored=tuple(images),
            tags=tuple(dict.fromkeys(tag for image in images for _, tag in _tags(image) if owners[tag] == image.id)),
            digests=tuple(dict.fromkeys(digest for image in images for digest in _digests(image))),
        )
        for image_id, images in by_id.items()
    ]


def find_image(images: Sequence[NodeImage], reference: str) -> NodeImage | None:
    """Return the image of an id, a tag, a digest, or the beginning of one id alone; None for an unknown image."""
    for image in images:
        if reference in (image.id, image.id.removeprefix("sha256:"), *(one.id for one in image.stored)):
            return image
    wanted = _named(reference)
    for image in images:
        if wanted in image.tags or wanted in image.digests:
            return image
    if not _ID_BEGINNING.fullmatch(reference):
        return None
    beginnings = (reference, f"sha256:{reference}")
    found = [image for image in images if image.id.startswith(beginnings)]
    return found[0] if len(found) == 1 else None


def outdated(images: Sequence[NodeImage]) -> tuple[str, ...]:
    """Return the ids of the images of the store whose tag is another one's, which must not get it back."""
    tags = ((one.id, _tag(one), image) for image in images for one in image.stored)
    return tuple(stored_id for stored_id, tag, image in tags if tag is not None and tag not in image.tags)


def _named(reference: str) -> str:
    """Return a reference as a name, empty if the reference is no name."""
    try:
        return reference_of(parse_image_name(reference))
    except ImageError:
        return ""


def _id(image: StoredImage) -> str:
    return image.id if image.digests is None else image.digests.configuration


def _name(image: StoredImage) -> ImageName | None:
    """Return an image's name, None for a name unlike Docker's."""
    aci_name = image.name if image.version is None else f"{image.name}:{image.version}"
    try:
        return parse_image_name(image.original_name or aci_name)
    except ImageError:
        return None


def _tag(image: StoredImage) -> str | None:
    name = _name(image)
    is_gone = image.is_untagged or not image.names.keeps_own
    return None if name is None or name.digest or is_gone else reference_of(name)


def _tags(image: StoredImage) -> list[tuple[int, str]]:
    """Return the tags of an image, each with the time since when the image has the tag."""
    own = _tag(image)
    given = [(tag.time_ns, reference_of(parse_image_name(tag.name))) for tag in image.names.tags]
    return given if own is None else [(image.import_time_ns, own), *given]


def _digests(image: StoredImage) -> tuple[str, ...]:
    name = _name(image)
    if name is None:
        return ()
    manifests = () if image.digests is None else image.digests.manifests
    known = [*manifests, *([name.digest] if name.digest else [])]
    return tuple(f"{name.host}/{name.repository}@{digest}" for digest in known)


class ImageList:
    """The images of a data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._state: object = None
        self._images: Sequence[NodeImage] = ()

    def read(self) -> Sequence[NodeImage]:
        """Return the present images."""
        state = self._read_state()
        if state != self._state:
            with Store(self._data) as store:
                images = node_images(store.list(), this_processor())
                documents = [store.configuration(image.stored[-1].id) for image in images]
            self._images = [
                replace(image, user=_image_user(image, document))
                for image, document in zip(images, documents, strict=True)
            ]
            newest_ns = max((time_ns for _, time_ns in state), default=0)
            self._state = state if newest_ns < time.time_ns() - _SETTLED_NS else None
        return self._images

    def configuration(self, image: NodeImage) -> bytes | None:
        """Return the original configuration of an image, None if unknown."""
        with Store(self._data) as store:
            return store.configuration(image.stored[-1].id)

    def _read_state(self) -> list[tuple[str, int]]:
        places = (self._data / store for store in _STORES)
        paths = [path for place in places for pattern in _TELLING for path in place.glob(pattern)]
        found = []
        for path in paths:
            try:
                found.append((str(path), path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue  # removed just now
        return sorted(found)


def _image_user(image: NodeImage, document: bytes | None) -> str:
    """Return the user of an image whose configuration is `document`, empty if that names none; an ACI has one."""
    if document is not None:
        with suppress(ImageError):  # which a damaged disk has written: the other images are still told of
            return parse_image_config(document, image.id).user.partition(":")[0]
    app = image.stored[-1].manifest.app
    return app.user if app is not None else "0"


def image_info(image: NodeImage, document: bytes | None) -> Mapping[str, str]:
    """Return the configuration of an image, in the form of OCI, as JSON under the key `info`."""
    latest = image.stored[-1]
    spec = (
        image_configuration(latest.manifest, latest.diff_ids)
        if document is None
        else jsontext.parse(document, image.id)
    )
    return {"info": jsontext.dump({"imageSpec": spec}).decode()}


class ImageUsage:
    """The space of the images of a data directory, packed and unpacked."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._measuring = trio.Lock()
        self._state: object = None
        self._usage = DiskUsage()

    async def read(self) -> DiskUsage:
        """Return how much it is; who asks while that is measured waits for it."""
        async with self._measuring:
            state = self._read_state()
            if state != self._state:
                self._usage = await trio.to_thread.run_sync(self._measure)
                self._state = state
            return self._usage

    def _read_state(self) -> object:
        """Return something else whenever an image, a layer or a tree has come or gone."""
        paths = sorted(path for pattern in _CHANGING for path in self._data.glob(pattern))
        return [(path, path.stat().st_mtime_ns) for path in paths]

    def _measure(self) -> DiskUsage:
        seen: set[int] = set()
        parts = [disk_usage(self._data / place, seen) for place in _PLACES]
        return DiskUsage(size_bytes=sum(part.size_bytes for part in parts), inodes=sum(part.inodes for part in parts))
