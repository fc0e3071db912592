"""An image of the store as a value."""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.image import ImageManifest
from minit.stage0.images.imagedigests import ImageDigests

ORIGINAL_NAME = "appc.io/docker/originalname"


class StoredImage(Value):
    """
    An image of the store; `size_bytes` is its blob and, if minit rendered it, its tree.

    `digests` are None of an image that was no image of layers. `diff_ids` are those of its layers, the lowest first.
    """

    id: str
    manifest: ImageManifest
    manifest_bytes: bytes
    size_bytes: int
    import_time_ns: int
    last_used_ns: int
    """When a pod was last prepared from it, or its import."""
    digests: ImageDigests | None = None
    diff_ids: tuple[str, ...] = ()
    is_untagged: bool = False
    """Whether a kubelet has taken the tag away, which an older image of the name would be found by again."""

    @property
    def name(self) -> str:
        """The image's name, without version."""
        return self.manifest.name

    @property
    def original_name(self) -> str | None:
        """The name that it has in its registry; None if it has none of Docker's."""
        return self.manifest.annotation(ORIGINAL_NAME)

    @property
    def version(self) -> str | None:
        """The value of the label `version`."""
        return self.manifest.label("version")
