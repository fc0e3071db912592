"""The calls about images: those of the store, and the registries that skopeo reaches."""

from __future__ import annotations

import re
import time

import trio

from minit.archives.imagenames import parse_image_name
from minit.base.errors import ImageError
from minit.base.processors import this_processor
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.images.credentials import authfile
from minit.cri.images.imageinfo import image_info
from minit.cri.images.imagelist import ImageList
from minit.cri.images.imageusage import ImageUsage
from minit.cri.images.nodeimages import NodeImage, find_image, node_images, outdated, reference_text
from minit.cri.images.sharedpulls import SharedPulls
from minit.cri.node import Node
from minit.cri.owncommands import OwnCommands
from minit.stage0.images.registry import tells_absence
from minit.stage0.images.store import Store

_ID = re.compile(r"(sha256:)?[0-9a-f]{64}")
_LARGEST_USER_ID = (1 << 32) - 1


class ImageCalls:
    """ListImages to ImageFsInfo."""

    def __init__(self, node: Node, commands: OwnCommands, nursery: trio.Nursery) -> None:
        self._data = node.data
        self._commands = commands
        self._pulls = SharedPulls(nursery, self._fetch)
        self._images = ImageList(node.data)
        self._usage = ImageUsage(node.data)
        self._removing = trio.Lock()

    def find(self, reference: str) -> NodeImage | None:
        """Return an image by its id or one of its names, None if there is none."""
        return find_image(self._images.read(), reference)

    def get(self, reference: str) -> NodeImage:
        """Return an image by its id or one of its names; CallError if there is none."""
        found = self.find(reference)
        if found is None:
            raise CallError(Code.NOT_FOUND, f'image "{reference}" is not in the store {self._data}: pull it first')
        return found

    async def list(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        """Return the images of the store, or the one that a filter names."""
        wanted = request.filter.image.image
        found = self.find(wanted) if wanted else None
        images = self._images.read() if not wanted else [] if found is None else [found]
        return api.ListImagesResponse(images=[_described(image) for image in images])

    async def status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        """Return an image by its id or name; an empty answer if there is none."""
        found = self.find(request.image.image)
        if found is None:
            return api.ImageStatusResponse()
        info = image_info(found, self._images.configuration(found)) if request.verbose else None
        return api.ImageStatusResponse(image=_described(found), info=info)

    async def pull(self, request: api.PullImageRequest) -> api.PullImageResponse:
        """Fetch an image from a registry, and return its id."""
        text = request.image.image
        try:
            name = parse_image_name(text)
        except ImageError as error:
            raise CallError(Code.INVALID_ARGUMENT, f"image.image: {error}") from error
        if _ID.fullmatch(text):
            raise CallError(Code.INVALID_ARGUMENT, f"image.image: expected a name, not the id {text}")
        credentials = authfile(request.auth, name.host)
        return api.PullImageResponse(image_ref=await self._pulls.pull(reference_text(name), credentials))

    async def _fetch(self, name: str, credentials: bytes) -> str:
        words = ("fetch", "--full", "--quiet", "--authfile=/dev/stdin", f"docker://{name}")
        try:
            stored = await self._commands.run_cancellable(*words, stdin=credentials)
        except CallError as error:
            if tells_absence(str(error)):  # of its kind a program tells nothing
                raise CallError(Code.NOT_FOUND, str(error)) from error
            raise
        self._settle_tags()
        image = self.find(stored)
        if image is None:
            raise CallError(Code.NOT_FOUND, f"image {name} was removed while it was pulled")
        return image.id

    async def remove(self, request: api.RemoveImageRequest) -> api.Nothing:
        """Remove an image with all its tags and digests, whichever of them the call has; no error if there is none."""
        async with self._removing:
            found = self.find(request.image.image)
            if found is not None:
                self._settle_tags()
                await self._commands.run("image", "rm", "--unpacked", *(image.id for image in found.stored))
        return api.Nothing()

    def _settle_tags(self) -> None:
        """Have each tag be that of its last import for good, even when that is removed."""
        with Store(self._data) as store:
            for image_id in outdated(node_images(store.list(), this_processor())):
                store.untag(image_id)

    async def filesystem(self, _: api.Nothing) -> api.ImageFsInfoResponse:
        """Return how much there is of images, and on which file system."""
        usage = await self._usage.read()
        return api.ImageFsInfoResponse(
            image_filesystems=[
                api.FilesystemUsage(
                    timestamp=time.time_ns(),
                    fs_id=api.FilesystemIdentifier(mountpoint=str(self._data)),
                    used_bytes=api.UInt64Value(value=usage.size_bytes),
                    inodes_used=api.UInt64Value(value=usage.inodes),
                )
            ]
        )


def _described(image: NodeImage) -> api.Image:
    described = api.Image(
        id=image.id,
        repo_tags=image.tags,
        repo_digests=image.digests,
        size=image.stored[-1].size_bytes,
        spec=api.ImageSpec(image=image.id),
    )
    if image.user.isascii() and image.user.isdigit() and int(image.user) <= _LARGEST_USER_ID:
        described.uid.value = int(image.user)
    else:
        described.username = image.user
    return described
