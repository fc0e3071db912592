"""Names of images as Docker writes them, taken apart as rkt did, and skopeo's words for kinds of images; pure."""

from __future__ import annotations

import re

from minit.base.errors import ImageError
from minit.base.value import Value, replace

OCI = "oci"
OCI_ARCHIVE = "oci-archive"
DOCKER_ARCHIVE = "docker-archive"
FILE_TRANSPORTS = (OCI, OCI_ARCHIVE, DOCKER_ARCHIVE)
"""Transports that minit reads itself."""

CONTAINERS_STORAGE = "containers-storage"
DOCKER_DAEMON = "docker-daemon"
DIR = "dir"
SKOPEO_TRANSPORTS = (CONTAINERS_STORAGE, DOCKER_DAEMON, DIR)
"""Transports of other stores of this machine, which skopeo reads."""

REGISTRY_SCHEMES = ("docker://", "docker:")

DEFAULT_REGISTRY = "registry-1.docker.io"

_DEFAULT_HOSTS = ("docker.io", "index.docker.io", DEFAULT_REGISTRY)
_NAME = re.compile(
    r"(?P<path>[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5}(?=/))?(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>[a-z0-9]+:[0-9a-f]{32,128}))?"
)


def is_source(reference: str) -> bool:
    """Tell whether `reference` begins with a transport, and so names an image outside the store."""
    word, colon, _ = reference.partition(":")
    return bool(colon) and word in (*FILE_TRANSPORTS, *SKOPEO_TRANSPORTS, "docker")


class ImageName(Value):
    """
    The origin of an image; `original` is the name in the words of the user or the archive.

    `registry` is empty if only the name of a file is known.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    original: str = ""

    @property
    def whole(self) -> str:
        """The name without tag and digest, for comparisons."""
        return f"{self.registry}/{self.repository}" if self.registry else self.repository

    @property
    def host(self) -> str:
        """The registry as users write it."""
        return "docker.io" if self.registry == DEFAULT_REGISTRY else self.registry

    @property
    def canonical(self) -> str:
        """The whole name with the digest, or else the tag, whatever the original form."""
        return f"{self.whole}@{self.digest}" if self.digest else f"{self.whole}:{self.tag}" if self.tag else self.whole


class ImageReference(Value):
    """The image that a user means: an image with any of the `names`, with all `labels`, and fetched by `digest`."""

    names: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    digest: str | None = None


def parse_image_name(text: str) -> ImageName:
    """
    Take a name apart; a name without host belongs to Docker's own registry. ImageError for any other text.

    As in docker, no tag and no digest mean the tag `latest`.
    """
    name = _parse(text)
    return name if name.tag or name.digest else replace(name, tag="latest")


def parse_image_reference(text: str) -> ImageReference:
    """
    Take apart a name of an image of the store: docker's form, or rkt's `NAME[:VERSION][,LABEL=VALUE]`.

    A text that is no name becomes a reference that fits no image.
    """
    head, *pairs = text.split(",")
    labels = tuple((name, value) for name, _, value in (pair.partition("=") for pair in pairs))
    directory, slash, last = head.rpartition("/")
    last, _, version = last.partition(":")
    names, digest = [directory + slash + last], None
    try:
        name = _parse(next((head.removeprefix(scheme) for scheme in REGISTRY_SCHEMES if head.startswith(scheme)), head))
        names, version, digest = [*names, sanitize_ac_identifier(name.whole)], name.tag or "", name.digest
    except ImageError:
        pass  # only rkt's form
    if version:
        labels = (("version", version), *labels)
    return ImageReference(names=tuple(names), labels=labels, digest=digest)


def reference_of(name: ImageName) -> str:
    """Return a name as other programs have names in full, with the registry, and with the digest or else the tag."""
    return f"{name.host}/{name.repository}" + (f"@{name.digest}" if name.digest else f":{name.tag}")


def familiar_name(name: str, version: str | None) -> str:
    """Return the name of an ACI in the short form that users write."""
    for prefix in (f"{DEFAULT_REGISTRY}/library/", f"{DEFAULT_REGISTRY}/"):
        name = name.removeprefix(prefix)
    return f"{name}:{version}" if version else name


def _parse(text: str) -> ImageName:
    match = _NAME.fullmatch(text)
    if match is None:
        raise ImageError(f'"{text}" is no name of an image: expected [HOST[:PORT]/]NAME[:TAG][@DIGEST]')
    host, slash, rest = match["path"].partition("/")
    if not slash or not (":" in host or "." in host or host == "localhost"):
        host, rest = DEFAULT_REGISTRY, match["path"]
    elif host in _DEFAULT_HOSTS:
        host = DEFAULT_REGISTRY
    if host == DEFAULT_REGISTRY and "/" not in rest:
        rest = f"library/{rest}"
    return ImageName(registry=host, repository=rest, tag=match["tag"], digest=match["digest"], original=text)


def name_of_file(file_name: str, tag: str | None) -> ImageName:
    """Return the name that docker2aci made up for an image without a name, from the name of the file."""
    return ImageName(registry="", repository=file_name.split(".")[0] or file_name, tag=tag)


def sanitize_ac_identifier(text: str) -> str:
    """
    Return `text` as an ACIdentifier the way rkt does.

    Letters become lower-case, any other character an underscore, and characters not allowed at the edges are cut.
    ImageError if nothing is left.
    """
    name = re.sub(r"[^a-z0-9._~/-]", "_", text.lower()).strip("-._~/")
    if not name:
        raise ImageError(f'"{text}" has no letter or digit that the name of an image could keep')
    return name
