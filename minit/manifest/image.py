"""The image manifest: what an ACI says about itself."""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.app import App, read_app
from minit.manifest.labels import find, read_annotations, read_labels
from minit.manifest.reader import Node, read_document

_ANNOTATION_DOCKER = "appc.io/docker/repository"  # docker2aci's
ANNOTATION_ENTRYPOINT = "appc.io/docker/entrypoint"
_MAX_IMAGE_SIZE_BYTES = (1 << 63) - 1

APPC_VERSION = "0.8.11"  # of the specification that manifests written by minit follow


class Dependency(Value):
    """An image whose files lie below those of this one; `size` is in bytes and a hint only."""

    image_name: str
    image_id: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    size: int | None = None


class ImageManifest(Value):
    """An image's name, labels and default app; stage1 images have no app. appc spec/aci.md."""

    ac_version: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    app: App | None = None
    annotations: tuple[tuple[str, str], ...] = ()
    dependencies: tuple[Dependency, ...] = ()
    path_whitelist: tuple[str, ...] = ()

    @property
    def from_docker(self) -> bool:
        """Tell whether the image was converted from Docker's format."""
        return self.annotation(_ANNOTATION_DOCKER) is not None

    def label(self, name: str) -> str | None:
        """Return the value of a label."""
        return find(self.labels, name)

    def annotation(self, name: str) -> str | None:
        """Return the value of an annotation."""
        return find(self.annotations, name)


def parse_image_manifest(data: bytes, source: str) -> ImageManifest:
    """Return the image manifest in `data`; ManifestError calls the file `source`."""
    root = read_document(data, source, "ImageManifest")
    return ImageManifest(
        ac_version=root["acVersion"].string(),
        name=root["name"].ac_identifier(),
        labels=read_labels(root["labels"]),
        app=root["app"].optional(read_app),
        annotations=read_annotations(root["annotations"]),
        dependencies=root["dependencies"].each(_read_dependency),
        path_whitelist=root["pathWhitelist"].each(Node.string),
    )


def _read_dependency(node: Node) -> Dependency:
    return Dependency(
        image_name=node["imageName"].ac_identifier(),
        image_id=node["imageID"].optional(Node.image_id),
        labels=read_labels(node["labels"]),
        size=node["size"].optional(lambda size: size.integer(0, _MAX_IMAGE_SIZE_BYTES)),
    )
