"""The command that writes a pod down for Kubernetes: generate kube."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import click

from minit import paths
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import one_pod
from minit.errors import MinitError, PodError
from minit.stage0.images.store import Store
from minit.stage0.kubernetes.generate import generate_pod, volume_of_files
from minit.stage0.kubernetes.reading.yamlwriting import write_documents
from minit.stage0.pods.poddirectory import Pod, find_pod
from minit.stage0.pods.podnames import read_name
from minit.stage0.pods.podstatus import read_pod_manifest

_MOST_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@click.command(cls=MinitCommand)
@one_pod()
@click.pass_obj
def kube(invocation: Invocation, uuid: str) -> None:
    """
    Print a pod as the YAML of a Kubernetes Pod, of which play makes an equal one.

    Files of its ConfigMaps and Secrets become a Secret. What a Pod cannot say is a warning.

    \b
      minit generate kube web > web.yaml
      minit play web.yaml

    """
    invocation.require_root()

    def warn(text: str) -> None:
        invocation.note(f"warning: {text}")

    with find_pod(invocation.data, uuid, invocation.note) as pod, Store(invocation.data) as store:
        manifest = read_pod_manifest(pod)
        images = {app.name: _reference(store, app.image_id or "") for app in manifest.apps}
        name = read_name(pod.fd) or (manifest.apps[0].name if manifest.apps else "pod")
        document = generate_pod(manifest, name.lower().replace("_", "-").replace(".", "-"), images, pod.data, warn)
        others = [
            volume_of_files(document, volume.name, _files(pod, volume.name))
            for volume in manifest.volumes
            if volume.kind == "empty" and volume.read_only
        ]
    invocation.say(write_documents([document, *others]), end="")


def _reference(store: Store, image_id: str) -> str:
    """Return the name of an image if the store finds it by that, else its id."""
    try:
        image = store.find(image_id)
    except MinitError:
        return image_id
    version = dict(image.manifest.labels).get("version")
    for reference in (f"{image.name}:{version}", image.name):
        try:
            if store.find(reference).id == image.id:
                return reference
        except MinitError:
            continue
    return image_id


def _files(pod: Pod, volume: str) -> list[tuple[str, int, str]]:
    """Return the files of a volume that no app can write: path, mode, and what they hold, in base64."""
    top = pod.path / paths.POD_SHARED_VOLUMES / volume
    found = []
    left = _MOST_BYTES
    for directory, _, names in sorted(os.walk(top)):
        for name in sorted(names):
            path = Path(directory, name)
            fd = os.open(path, _READ)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or status.st_size > left:
                    raise PodError(f'volume "{volume}": {path}: no file that a Secret can hold')
                left -= status.st_size
                data = os.read(fd, _MOST_BYTES)
            finally:
                os.close(fd)
            encoded = base64.b64encode(data).decode("ascii")
            found.append((str(path.relative_to(top)), stat.S_IMODE(status.st_mode), encoded))
    return found
