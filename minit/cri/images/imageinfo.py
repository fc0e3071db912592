"""What the configuration of an image tells, as it came, or else as the manifest of its ACI has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from minit.archives.layered import parse_image_config
from minit.base import jsontext
from minit.base.errors import ImageError, MinitError
from minit.base.processors import processor_of_appc
from minit.cri.images.nodeimages import NodeImage
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import ANNOTATION_ENTRYPOINT, ImageManifest
from minit.stage0.images.storedimage import StoredImage

_COMMAND = "appc.io/docker/cmd"


def image_user(image: NodeImage, document: bytes | None) -> str:
    """Return the user of an image whose configuration is `document`, empty if that names none; an ACI has one."""
    if document is not None:
        with suppress(ImageError):  # which a damaged disk has written: the other images are still told of
            return parse_image_config(document, image.id).user.partition(":")[0]
    app = image.stored[-1].manifest.app
    return app.user if app is not None else "0"


def image_info(image: NodeImage, document: bytes | None) -> Mapping[str, str]:
    """Return the configuration of an image, in the form of OCI, as JSON under the key `info`."""
    spec = _spec(image.stored[-1]) if document is None else jsontext.parse(document, image.id)
    return {"info": jsontext.dump({"imageSpec": spec}).decode()}


def _spec(latest: StoredImage) -> dict[str, object]:
    manifest = latest.manifest
    processor = processor_of_appc(manifest.label("arch") or "")
    machine = {"architecture": processor.architecture, "os": manifest.label("os") or ""}
    config = {} if manifest.app is None else _image_config(manifest, manifest.app)
    created = manifest.annotation("created")
    return {
        **({} if created is None else {"created": created}),
        **machine,
        "config": {name: value for name, value in config.items() if value},
        "rootfs": {"type": "layers", "diff_ids": list(latest.diff_ids)},
    }


def _image_config(manifest: ImageManifest, app: App) -> dict[str, object]:
    entrypoint, command = _words(manifest, ANNOTATION_ENTRYPOINT), _words(manifest, _COMMAND)
    user = app.user if app.group in (app.user, "0") else f"{app.user}:{app.group}"
    return {
        "User": user,
        "ExposedPorts": {f"{port.port}/{port.protocol}": {} for port in app.ports},
        "Env": [f"{name}={value}" for name, value in app.environment],
        "Entrypoint": entrypoint,
        "Cmd": command if entrypoint or command else list(app.exec),
        "Volumes": {point.path: {} for point in app.mount_points},
        "WorkingDir": app.working_directory,
        "Labels": dict(app.user_labels),
        "StopSignal": manifest.annotation(Annotation.STOP_SIGNAL),
    }


def _words(manifest: ImageManifest, annotation: str) -> list[str]:
    text = manifest.annotation(annotation)
    words: object = None
    with suppress(MinitError):
        words = jsontext.parse(text.encode(), annotation) if text else None
    return [str(word) for word in words] if isinstance(words, Sequence) and not isinstance(words, str) else []
