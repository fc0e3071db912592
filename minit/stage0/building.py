"""
Images made of other images: files are copied into the root of an app, commands run there, the root becomes an image.

The root belongs to an app in a pod without overlay. Before a command runs, files of this machine are put there as `cp`
puts files. Then the pod runs like any other, and the app is as confined as any. If more files are to be copied
afterwards, a new pod inherits the root of the ended pod. `image build --from` calls this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import MinitError, PodError
from minit.base.progress import Progress
from minit.base.value import Value, replace
from minit.image.appimage import ImageFields
from minit.linux import syscalls
from minit.linux.forks import IMAGE_BUILD, fork
from minit.linux.process import ended_on_failure
from minit.manifest.image import ImageManifest, parse_image_manifest
from minit.podfiles import paths
from minit.stage0.apps.copying import copy_content, make_directories
from minit.stage0.apps.podfiles import AppPlace
from minit.stage0.garbage.podgc import remove
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import deletion
from minit.stage0.pods.appsection import AppOverrides, PodDefaults
from minit.stage0.pods.poddirectory import PREPARE, Note, Pod, open_pod
from minit.stage0.pods.podmanifest import plan_apps
from minit.stage0.start.appfiles import remove_directory
from minit.stage0.start.newpod import NewPod, prepare_pod

Pairs = Sequence[tuple[str, str]]

# Only true for the converted image, in Docker's words.
_OF_THE_SOURCE = ("originalname", "imageid", "parentimageid", "manifesthash")
_COMMANDS = ("entrypoint", "cmd")
_DOCKER = "appc.io/docker/"

_APP = "build"
_ROOTFS = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(_APP)}"
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_SHELL = "/bin/sh"
# Each command has a shell of its own. The first failure ends the build.
_SCRIPT = 'for command do /bin/sh -c "$command" || { code=$?; echo "failed: $command" >&2; exit $code; }; done'


def built_manifest(base: bytes, fields: ImageFields) -> bytes:
    """Return the manifest of an image with all files; ManifestError for an impossible manifest."""
    document = jsontext.parse(base, "image manifest")
    assert isinstance(document, dict)
    # The image has the files of its dependencies now.
    manifest = {key: value for key, value in document.items() if key not in ("dependencies", "pathWhitelist")}
    manifest["name"] = fields.name
    version = [] if any(name == "version" for name, _ in fields.labels) else ["version"]
    manifest["labels"] = _merged(manifest.get("labels"), fields.labels, dropped=version)
    dropped = [*_OF_THE_SOURCE, *(_COMMANDS if fields.exec else ())]
    manifest["annotations"] = _merged(manifest.get("annotations"), (), dropped=[f"{_DOCKER}{word}" for word in dropped])
    app = dict(manifest.get("app") or {"exec": [], "user": "0", "group": "0"})
    given = {"user": fields.user, "group": fields.group, "workingDirectory": fields.working_directory}
    app |= {key: value for key, value in given.items() if value is not None}
    if fields.exec:
        app["exec"] = list(fields.exec)
    app["environment"] = _merged(app.get("environment"), fields.environment)
    ports = [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in fields.ports]
    points = [{"name": name, "path": path} for name, path in fields.mounts]
    for key, added in (("ports", ports), ("mountPoints", points)):
        names = {entry["name"] for entry in added}
        app[key] = [entry for entry in app.get(key) or () if entry["name"] not in names] + added
    manifest["app"] = app
    data = jsontext.dump(manifest)
    parse_image_manifest(data, "new image")
    return data


def _merged(pairs: object, changes: Pairs, dropped: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return name-value pairs of a manifest with changes, which keep the order of the pairs."""
    entries = pairs if isinstance(pairs, list) else []
    values = {entry["name"]: entry["value"] for entry in entries if entry["name"] not in dropped} | dict(changes)
    return [{"name": name, "value": value} for name, value in values.items()]


class CopyStep(Value):
    """Files of this machine to be copied to an absolute path of the image."""

    source: str
    target: str


class RunStep(Value):
    """A command line for the image's shell."""

    command: str


Step = CopyStep | RunStep


class Builder(Value):
    """All for a build; `run` becomes the stage1 of a pod, as `run_pod` does."""

    data: Path
    store: Store
    trees: TreeStore
    stage1: StoredImage
    base: StoredImage
    insecure: frozenset[str]
    run: Callable[[Pod], int]
    cleanup: Stage1Cleanup
    note: Note
    progress: Progress

    @contextmanager
    def root(
        self, steps: Sequence[Step], environment: tuple[tuple[str, str], ...], working_directory: str | None
    ) -> Iterator[int]:
        """
        Yield a descriptor of the root that the steps make, in order; the root is gone after the with block.

        PodError, with the exit code, if a command fails. Nothing of the build is left in either case.
        """
        with ExitStack() as stack:
            last: Pod | None = None
            for copies, commands in _groups(steps):
                pod = self._prepare(commands, environment, working_directory)
                stack.callback(self._discard, pod.uuid)
                with pod:
                    if last is not None:
                        remove_directory(pod, _ROOTFS)
                        os.rename(last.path / _ROOTFS, pod.path / _ROOTFS)
                    self._copy(pod, copies, working_directory)
                    if commands:
                        self._run(pod)
                last = stack.enter_context(open_pod(self.data, pod.uuid))
            assert last is not None
            root = _open_root(last)
            stack.callback(os.close, root)
            yield root

    def _prepare(
        self, commands: Sequence[str], environment: tuple[tuple[str, str], ...], working_directory: str | None
    ) -> Pod:
        overrides = AppOverrides(
            name=_APP,
            exec=_SHELL,
            arguments=("-c", _SCRIPT, _APP, *commands),
            only_arguments=True,
            ignores_healthcheck=True,
            user="0",
            group="0",
            working_directory=working_directory,
            environment=environment,
        )
        base = replace(self.base, manifest=bare(self.base.manifest))
        defaults = PodDefaults(uid=0, gid=0, data=self.data, insecure=self.insecure)
        apps, manifest = plan_apps([(base, overrides)], defaults)
        request = NewPod(stage1=self.stage1, apps=apps, manifest_bytes=manifest, overlay=False)
        return prepare_pod(self.data, self.store, self.trees, request, self.progress, lambda uuid: None)

    def _copy(self, pod: Pod, copies: Sequence[CopyStep], working_directory: str | None) -> None:
        root = _open_root(pod)
        try:
            place = AppPlace(root=root, path="", ids=None)
            if working_directory is not None:
                make_directories(place, working_directory.strip("/"))
            for step in copies:
                self.progress(f"copying {step.source}", 0, None)
                copy_content(step.source, place, step.target, self.note)
        finally:
            os.close(root)

    def _run(self, pod: Pod) -> None:
        code = run_and_wait(pod, self.run)
        if code:
            raise PodError(f"--run failed with exit code {code}" if code > 0 else f"--run was killed by signal {-code}")

    def _discard(self, uuid: str) -> None:
        discard(self.data, uuid, self.cleanup, self.note)


def run_and_wait(pod: Pod, run: Callable[[Pod], int]) -> int:
    """Have `run` become the stage1 of a pod in a process of its own; return the exit code, negative for a signal."""
    child = fork(IMAGE_BUILD, lambda: run(pod))
    # After the pod's end this process would hold the lock.
    pod.close()
    with ended_on_failure(child):
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def discard(data: Path, uuid: str, cleanup: Stage1Cleanup, note: Note) -> None:
    """Remove the pod of a build, which has run or not; a failure is noted."""
    try:
        with open_pod(data, uuid) as pod:
            if pod.place == PREPARE:
                pod.lock(blocking=True)
                deletion.discard(pod)
            else:
                remove(pod, cleanup, note)
    except (OSError, MinitError) as error:
        note(f'pod "{uuid}" of the build is left: {error}')


def bare(manifest: ImageManifest) -> ImageManifest:
    """Return a manifest without mount points, event handlers and ports, so that nothing hides files of the image."""
    app = manifest.app
    return (
        manifest if app is None else replace(manifest, app=replace(app, mount_points=(), event_handlers=(), ports=()))
    )


def _groups(steps: Sequence[Step]) -> list[tuple[list[CopyStep], list[str]]]:
    """Return the steps as copies and the commands after them, one group at least."""
    groups: list[tuple[list[CopyStep], list[str]]] = [([], [])]
    for step in steps:
        if isinstance(step, RunStep):
            groups[-1][1].append(step.command)
            continue
        if groups[-1][1]:
            groups.append(([], []))
        groups[-1][0].append(step)
    return groups


def _open_root(pod: Pod) -> int:
    return syscalls.openat2(pod.fd, _ROOTFS, os.O_RDONLY | os.O_DIRECTORY, resolve=_BENEATH)
