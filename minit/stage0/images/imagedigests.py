"""The digests by which others know an image of layers, of its configuration and its manifests, as a line of text."""

from __future__ import annotations

from minit.archives.layered import check_digest
from minit.base.errors import ImageError
from minit.base.value import Value

_MOST_MANIFESTS = 20


class ImageDigests(Value):
    """
    The digest of an image's configuration, which is Docker's image ID, and those by which registries gave it.

    Several manifests, oldest first, may have the same configuration: layers can be compressed in many ways.
    """

    configuration: str
    manifests: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The line that `parse_digests` takes."""
        return " ".join((self.configuration, *self.manifests))


def parse_digests(text: str) -> ImageDigests | None:
    """Return the digests of a line, None if it is none."""
    try:
        configuration, *manifests = (check_digest(word, "digests") for word in text.split())
    except (ImageError, ValueError):
        return None
    return ImageDigests(configuration=configuration, manifests=tuple(manifests))


def joined(earlier: ImageDigests | None, latest: ImageDigests) -> ImageDigests:
    """Return the latest digests, with the manifests that the same configuration had earlier."""
    if earlier is None or earlier.configuration != latest.configuration:
        return latest
    manifests = tuple(dict.fromkeys((*earlier.manifests, *latest.manifests)))
    return ImageDigests(configuration=latest.configuration, manifests=manifests[-_MOST_MANIFESTS:])
