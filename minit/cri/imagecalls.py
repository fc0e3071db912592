"""The calls about images: lists of the store, and pulls from registries; calls for one image share a pull."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import trio

from minit.archives.imagenames import parse_image_name, reference_of
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.base.processors import this_processor
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.hands import Hands
from minit.cri.node import Node
from minit.cri.nodeimages import (
    ImageList,
    ImageUsage,
    NodeImage,
    find_image,
    image_info,
    node_images,
    outdated,
)
from minit.pods.requests import ImagePull, ImageRemoval
from minit.stage0.images.registry import tells_absence
from minit.stage0.images.store import Store

_ID = re.compile(r"(sha256:)?[0-9a-f]{64}")
_LARGEST_USER_ID = (1 << 32) - 1

_TOKEN_USER = b"<token>:"  # without a name no entry counts, whatever token it has

_Fetch = Callable[[str, bytes], Awaitable[str]]
"""Fetches an image by its name with a file of credentials, returns its id, and undoes all when it is cancelled."""


class ImageCalls:
    """ListImages to ImageFsInfo."""

    def __init__(self, node: Node, hands: Hands, nursery: trio.Nursery) -> None:
        self._data = node.data
        self._hands = hands
        self._pulls = SharedPulls(nursery, self._fetch)
        self._images = ImageList(node.data)
        self._usage = ImageUsage(node.data)
        self._removing = trio.Lock()

    def find(self, reference: str) -> NodeImage | None:
        """Return an image by id or a name, None for an unknown image."""
        return find_image(self._images.read(), reference)

    def get(self, reference: str) -> NodeImage:
        """Return an image by id or a name; CallError for an unknown image."""
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
        return api.PullImageResponse(image_ref=await self._pulls.pull(reference_of(name), credentials))

    async def _fetch(self, name: str, credentials: bytes) -> str:
        pull = ImagePull(reference=f"docker://{name}", credentials=credentials)
        try:
            stored = await self._hands.carry_out_cancellable(pull)
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
                await self._hands.carry_out(ImageRemoval(ids=tuple(image.id for image in found.stored)))
        return api.Nothing()

    def _settle_tags(self) -> None:
        """Keep each tag for the image of the tag's last import, even after that image is removed."""
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


def authfile(auth: api.AuthConfig, host: str) -> bytes:
    """Return the file's content for a registry, empty for none; CallError if skopeo cannot be given them."""
    _refuse(bool(auth.registry_token), "registry_token", "a password or an identity token: skopeo hides no other")
    _refuse(bool(auth.server_address) and _host(auth.server_address) != host, "server_address", host)
    if auth.username:
        _refuse(":" in auth.username, "username", "a name without a colon")
        entry = {"auth": _encoded(f"{auth.username}:{auth.password}".encode())}
    elif auth.identity_token:
        entry = {"auth": _encoded(_TOKEN_USER), "identitytoken": auth.identity_token}
    elif auth.auth:
        entry = {"auth": _encoded(_decoded(auth.auth))}
    else:
        _refuse(bool(auth.password), "username", "a name beside the password")
        return b""
    return jsontext.dump({"auths": {host: entry}})


def _host(address: str) -> str:
    """Return the registry of an address, which may be the address of the API: `https://index.docker.io/v1/`."""
    try:
        netloc = urlsplit(address if "//" in address else f"//{address}").netloc
        return parse_image_name(f"{netloc}/image").host
    except (ImageError, ValueError):
        return ""


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode("ascii")


def _decoded(text: str) -> bytes:
    expected = "a name, a colon and a password in base64"
    try:
        decoded = base64.b64decode(text, validate=True).rstrip(b"\0")
    except (binascii.Error, ValueError):
        raise _refused("auth", expected) from None  # the text is in the other error
    if b":" not in decoded:
        raise _refused("auth", expected)
    return decoded


def _refuse(is_refused: bool, field: str, expected: str) -> None:
    if is_refused:
        raise _refused(field, expected)


def _refused(field: str, expected: str) -> CallError:
    return CallError(Code.INVALID_ARGUMENT, f"auth.{field}: expected {expected}")


class SharedPulls:
    """The pulls in progress, tasks of `nursery`."""

    def __init__(self, nursery: trio.Nursery, fetch: _Fetch) -> None:
        self._nursery = nursery
        self._fetch = fetch
        self._pulls: dict[tuple[str, bytes], _Pull] = {}

    async def pull(self, name: str, authfile: bytes) -> str:
        """Return the id of an image when it is there; the pull ends with the last call that waits for it."""
        key = (name, authfile)
        pull = self._pulls.get(key)
        if pull is None:
            pull = self._pulls[key] = _Pull()
            self._nursery.start_soon(self._run, key, pull)
        pull.callers += 1
        try:
            await pull.ended.wait()
        finally:
            pull.callers -= 1
            if not pull.callers:
                self._forget(key, pull)  # who comes while it is being undone begins anew
                pull.scope.cancel()
        if pull.error is not None:
            raise pull.error
        return pull.image_id

    async def _run(self, key: tuple[str, bytes], pull: _Pull) -> None:
        with pull.scope:
            try:
                pull.image_id = await self._fetch(*key)
            except Exception as error:
                pull.error = error  # for those who wait
            self._forget(key, pull)
            pull.ended.set()

    def _forget(self, key: tuple[str, bytes], pull: _Pull) -> None:
        if self._pulls.get(key) is pull:
            del self._pulls[key]


class _Pull:
    """A pull in progress, the number of callers, and the outcome."""

    def __init__(self) -> None:
        self.callers = 0
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self.image_id = ""
        self.error: Exception | None = None
