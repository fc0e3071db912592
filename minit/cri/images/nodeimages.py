"""
The images of the store as Kubernetes knows them. Pure.

An image is one configuration, by whose digest it is called. In the store it is there once for each of its names, which
are its tags. A tag that was given to another image since is that one's alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from minit.archives.imagenames import ImageName, parse_image_name
from minit.base.errors import ImageError
from minit.base.processors import Processor
from minit.base.value import Value
from minit.podfiles.paths import ANNOTATION_STAGE1
from minit.stage0.images.storedimage import StoredImage

_ID_BEGINNING = re.compile(r"(sha256:|sha512-)?[0-9a-f]{2,}")


class NodeImage(Value):
    """
    An image; `id` is the digest of its configuration, or the store's id of an ACI that never had one.

    `stored` are the store's images of it, oldest import first, `tags` and `digests` its names, all with their registry.
    `user` is that of its configuration, empty if that names none.
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

    Those of stage1 are none of them, nor are those that a node with that processor does not run: somebody has fetched
    them for other machines.
    """
    of_apps = [
        image
        for image in stored
        if image.manifest.annotation(f"{ANNOTATION_STAGE1}run") is None
        and image.manifest.label("arch") in (None, processor.appc, *processor.older)
    ]
    owners = {tag: image.id for image in of_apps if (tag := _tag(image)) is not None}
    by_id: dict[str, list[StoredImage]] = {}
    for image in of_apps:
        by_id.setdefault(_id(image), []).append(image)
    return [
        NodeImage(
            id=image_id,
            stored=tuple(images),
            tags=tuple(tag for image in images if (tag := _tag(image)) is not None and owners[tag] == image.id),
            digests=tuple(dict.fromkeys(digest for image in images for digest in _digests(image))),
        )
        for image_id, images in by_id.items()
    ]


def find_image(images: Sequence[NodeImage], reference: str) -> NodeImage | None:
    """Return the image of an id, a tag, a digest, or the beginning of one id alone; None if there is none."""
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


def reference_text(name: ImageName) -> str:
    """Return a name as Kubernetes has it, with the registry, and with its digest or else its tag."""
    return f"{name.host}/{name.repository}" + (f"@{name.digest}" if name.digest else f":{name.tag}")


def _named(reference: str) -> str:
    """Return a reference as a name, empty if it is none."""
    try:
        return reference_text(parse_image_name(reference))
    except ImageError:
        return ""


def _id(image: StoredImage) -> str:
    return image.id if image.digests is None else image.digests.configuration


def _name(image: StoredImage) -> ImageName | None:
    """Return an image's name, None if it is no name of Docker's."""
    aci_name = image.name if image.version is None else f"{image.name}:{image.version}"
    try:
        return parse_image_name(image.original_name or aci_name)
    except ImageError:
        return None


def _tag(image: StoredImage) -> str | None:
    name = _name(image)
    return None if name is None or name.digest or image.is_untagged else reference_text(name)


def _digests(image: StoredImage) -> tuple[str, ...]:
    name = _name(image)
    if name is None:
        return ()
    manifests = () if image.digests is None else image.digests.manifests
    known = [*manifests, *([name.digest] if name.digest else [])]
    return tuple(f"{name.host}/{name.repository}@{digest}" for digest in known)
