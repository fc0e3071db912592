"""The words before a colon that say what kind of image follows, as skopeo spells them."""

from __future__ import annotations

OCI = "oci"
OCI_ARCHIVE = "oci-archive"
DOCKER_ARCHIVE = "docker-archive"
FILE_TRANSPORTS = (OCI, OCI_ARCHIVE, DOCKER_ARCHIVE)
"""Those that minit reads itself."""

CONTAINERS_STORAGE = "containers-storage"
DOCKER_DAEMON = "docker-daemon"
DIR = "dir"
SKOPEO_TRANSPORTS = (CONTAINERS_STORAGE, DOCKER_DAEMON, DIR)
"""Those of other stores of this machine, which skopeo reads."""

REGISTRY_SCHEMES = ("docker://", "docker:")


def is_source(reference: str) -> bool:
    """Tell whether `reference` begins with a transport, and so names an image that is not meant in the store."""
    word, colon, _ = reference.partition(":")
    return bool(colon) and word in (*FILE_TRANSPORTS, *SKOPEO_TRANSPORTS, "docker")
