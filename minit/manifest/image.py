"""The image manifest of an ACI, and labels and annotations: lists of {name, value} objects, as pairs in file order."""

from __future__ import annotations

from minit.base.jsontext import quote
from minit.base.value import Value
from minit.manifest.app import App, read_app
from minit.manifest.reader import Node, read_document

_ANNOTATION_DOCKER = "appc.io/docker/repository"  # docker2aci's
ANNOTATION_ENTRYPOINT = "appc.io/docker/entrypoint"
ANNOTATION_HEALTHCHECK = "appc.io/docker/healthcheck"
"""Fields of a check of minit/health, of the HEALTHCHECK of an image; docker2aci has no such annotation."""

_MAX_IMAGE_SIZE_BYTES = (1 << 63) - 1

APPC_VERSION = "0.8.11"  # of the specification that manifests written by minit follow

_Pairs = tuple[tuple[str, str], ...]

# appc spec/aci.md, "labels": the possible values of `arch` for each `os`
_ARCHITECTURES = {
    "linux": "amd64 i386 aarch64 aarch64_be armv6l armv7l armv7b ppc64 ppc64le s390x",
    "freebsd": "amd64 i386 arm",
    "darwin": "x86_64 i386",
}


class Dependency(Value):
    """An image whose files lie below the files of this image; `size` is in bytes and a hint only."""

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


def read_annotations(node: Node) -> _Pairs:
    """Read annotations, which have unique names."""
    return node.each_named("annotation", _read_pair)


def read_labels(node: Node) -> _Pairs:
    """Read labels, which have unique names other than `name`, and name a known platform if any."""
    labels = node.each_named("label", _read_label)
    system, architecture = find(labels, "os"), find(labels, "arch")
    if system is not None:
        known = _ARCHITECTURES.get(system, "").split()
        if not known or (architecture is not None and architecture not in known):
            platform = system if architecture is None else f"{system}/{architecture}"
            raise node.error("an os and arch that appc knows", quote(platform)[:60])
    return labels


def find(pairs: _Pairs, name: str) -> str | None:
    """Return the value of the pair called `name`."""
    for key, value in pairs:
        if key == name:
            return value
    return None


def _read_pair(node: Node) -> tuple[str, str]:
    return node["name"].ac_identifier(), node["value"].string()


def _read_label(node: Node) -> tuple[str, str]:
    name, value = _read_pair(node)
    if name == "name":
        raise node["name"].error("a label other than the image's name")
    return name, value
