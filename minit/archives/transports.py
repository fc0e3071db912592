"""The words before a colon that say what kind of image follows, as skopeo spells them."""

from __future__ import annotations

OCI = "oci"
OCI_ARCHIVE = "oci-archive"
DOCKER_ARCHIVE = "docker-archive"
TRANSPORTS = (OCI, OCI_ARCHIVE, DOCKER_ARCHIVE)

REGISTRY_SCHEMES = ("docker://", "docker:")


def has_transport(reference: str) -> bool:
    """Tell whether `reference` begins with one of the TRANSPORTS and a colon."""
    word, colon, _ = reference.partition(":")
    return bool(colon) and word in TRANSPORTS
