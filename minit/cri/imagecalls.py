"""The calls about images: those of the store, by their ids there, and the registries that skopeo reaches."""

from __future__ import annotations

import os
import time

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Node
from minit.cri.owncommands import OwnCommands
from minit.errors import StoreError
from minit.paths import ANNOTATION_STAGE1
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage


class ImageCalls:
    """ListImages to ImageFsInfo."""

    def __init__(self, node: Node, commands: OwnCommands) -> None:
        self._data = node.data
        self._commands = commands

    async def list(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        """Return the images of the store, or the one that a filter names."""
        wanted = request.filter.image.image
        if wanted:
            found = self._find(wanted)
            return api.ListImagesResponse(images=[] if found is None else [_described(found)])
        with Store(self._data) as store:
            return api.ListImagesResponse(images=[_described(image) for image in store.list() if _is_app_image(image)])

    async def status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        """Return an image by its id or name; an empty answer if there is none."""
        found = self._find(request.image.image)
        return api.ImageStatusResponse(image=None if found is None else _described(found))

    async def pull(self, request: api.PullImageRequest) -> api.PullImageResponse:
        """Fetch an image from a registry, and return its id."""
        if any(value for _, value in request.auth.ListFields()):
            raise CallError(Code.UNIMPLEMENTED, "auth: minit pulls without credentials yet")
        name = request.image.image
        if not name:
            raise CallError(Code.INVALID_ARGUMENT, "image.image: expected a name")
        image_id = await self._commands.run("fetch", "--full", "--quiet", f"docker://{name}")
        return api.PullImageResponse(image_ref=image_id)

    async def remove(self, request: api.RemoveImageRequest) -> api.Nothing:
        """Remove an image; no error if there is none."""
        found = self._find(request.image.image)
        if found is not None:
            await self._commands.run("image", "rm", found.id)
        return api.Nothing()

    async def filesystem(self, _: api.Nothing) -> api.ImageFsInfoResponse:
        """Return how much there is of images, and on which file system."""
        usage = os.statvfs(self._data)
        with Store(self._data) as store:
            size_bytes = sum(image.size_bytes for image in store.list())
        return api.ImageFsInfoResponse(
            image_filesystems=[
                api.FilesystemUsage(
                    timestamp=time.time_ns(),
                    fs_id=api.FilesystemIdentifier(mountpoint=str(self._data)),
                    used_bytes=api.UInt64Value(value=size_bytes),
                    inodes_used=api.UInt64Value(value=usage.f_files - usage.f_ffree),
                )
            ]
        )

    def _find(self, reference: str) -> StoredImage | None:
        with Store(self._data) as store:
            try:
                return store.find(reference)
            except StoreError:
                return None


def _is_app_image(image: StoredImage) -> bool:
    return image.manifest.annotation(f"{ANNOTATION_STAGE1}run") is None


def _described(image: StoredImage) -> api.Image:
    name = image.name if image.version is None else f"{image.name}:{image.version}"
    described = api.Image(id=image.id, repo_tags=[name], size=image.size_bytes, spec=api.ImageSpec(image=image.id))
    user = image.manifest.app.user if image.manifest.app is not None else "0"
    if user.isdecimal():
        described.uid.value = int(user)
    else:
        described.username = user
    return described
