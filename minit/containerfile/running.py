"""RUN: a command in a pod, as confined as any app, whose changes become a layer."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from minit.base import jsontext
from minit.base.errors import PodError
from minit.base.progress import Progress
from minit.base.value import Value, replace
from minit.containerfile.mounts import BIND, TMPFS, Mount
from minit.containerfile.state import Run
from minit.linux.idmapping import read_held_ids
from minit.linux.stdio import flush_output, write_all
from minit.manifest import pod as manifests
from minit.manifest.annotations import Annotation
from minit.pods.caller import Caller
from minit.stage0.building import bare, discard, run_and_wait
from minit.stage0.files.treeplacing import require_held
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.layeredroot import LayeredRoot
from minit.stage0.pods.appsection import AppOverrides, PodDefaults
from minit.stage0.pods.poddirectory import Pod, open_pod
from minit.stage0.pods.podmanifest import plan_apps
from minit.stage0.pods.podstatus import read_app_tree_id
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.start.newpod import NewPod, prepare_pod
from minit.stage0.start.run import run_pod
from minit.stage0.volumes import NAMED, create_volume, home_of

_CACHE_DIGITS = 16
_CHUNK_BYTES = 1 << 16


class Site(Value):
    """All for the pods of a build; `output` gets what commands print, standard error without it."""

    caller: Caller
    store: Store
    trees: TreeStore
    stage1: StoredImage
    cleanup: Stage1Cleanup
    options: RunOptions
    progress: Progress
    output: BinaryIO | None


def run(site: Site, action: Run, base: StoredImage, root: LayeredRoot, name: str, binds: Sequence[Path]) -> None:
    """
    Run a command in the root, and make the changes the highest layer; the pod is named `name` in the output.

    `binds` are the files for the mounts of the kind `bind`, in their order.
    PodError, with the exit code, if the command fails. Nothing of the pod is left in any case.
    """
    caller = site.caller
    volumes, mounts, memory = _volumes(caller, action.mounts, iter(binds))
    manifest = bare(base.manifest)
    if manifest.app is not None:
        manifest = replace(manifest, app=replace(manifest.app, environment=(), exec=(), isolators=()))
    overrides = _overrides(action, name, mounts)
    defaults = PodDefaults(
        uid=0, gid=0, data=caller.data, insecure=caller.insecure, volumes=volumes, annotations=memory
    )
    apps, document = plan_apps([(replace(base, manifest=manifest), overrides)], defaults)
    request = NewPod(stage1=site.stage1, apps=apps, manifest_bytes=document, overlay=True)
    pod = prepare_pod(caller.data, site.store, site.trees, request, site.progress, lambda uuid: None)
    uuid = pod.uuid
    try:
        tree_id = read_app_tree_id(pod, name)
        code = run_and_wait(pod, lambda pod: _become(site, pod, action, root))
        if code:
            _tell_output(site.output)
            raise PodError(f"exit code {code}" if code > 0 else f"killed by signal {-code}")
        with open_pod(caller.data, uuid) as ended:
            root.take(ended.path / f"overlay/{tree_id}/upper/{name}", [mount.target for mount in action.mounts])
    finally:
        discard(caller.data, uuid, site.cleanup, caller.note)


def _become(site: Site, pod: Pod, action: Run, root: LayeredRoot) -> NoReturn:
    options = site.options
    if action.network is not None and action.network != "default":
        options = replace(options, networks=(action.network,))
    os.dup2(2 if site.output is None else site.output.fileno(), 1)
    if site.output is not None:
        os.dup2(site.output.fileno(), 2)
    run_pod(pod, site.trees, options, site.caller.note, flush_output, between=root.between)


def _overrides(action: Run, name: str, mounts: tuple[manifests.Mount, ...]) -> AppOverrides:
    user, colon, group = action.user.partition(":")
    groups = () if colon else ((Annotation.IMAGE_GROUPS, "primary,supplementary"),)
    return AppOverrides(
        name=name,
        exec=action.command[0],
        arguments=action.command[1:],
        only_arguments=True,
        ignores_healthcheck=True,
        user=user or "0",
        group=group or "0",
        working_directory=action.directory,
        environment=action.environment,
        mounts=mounts,
        annotations=((Annotation.MAKE_WORKING_DIRECTORY, "true"), *groups),
    )


def _volumes(
    caller: Caller, mounts: tuple[Mount, ...], binds: Iterator[Path]
) -> tuple[tuple[manifests.Volume, ...], tuple[manifests.Mount, ...], tuple[tuple[str, str], ...]]:
    """Return the volumes of --mount, the places in the app, and the annotations: caches are named volumes."""
    volumes: list[manifests.Volume] = []
    places: list[manifests.Mount] = []
    memory: dict[str, dict[str, str]] = {}
    for number, mount in enumerate(mounts):
        name = f"mount-{number}"
        places.append(manifests.Mount(volume=name, path=mount.target))
        if mount.kind == BIND:
            source = str(next(binds))
            volumes.append(manifests.Volume(name=name, kind="host", source=source, read_only=not mount.is_writable))
            continue
        if mount.kind == TMPFS:
            volumes.append(manifests.Volume(name=name, kind="empty", mode="1777"))
            memory[name] = {}
            continue
        volume = f"build-cache-{hashlib.sha256(mount.identity.encode()).hexdigest()[:_CACHE_DIGITS]}"
        owner = require_held(mount.owner, f"cache {mount.target}", read_held_ids())
        if create_volume(caller.data, volume):
            files = home_of(caller.data, volume) / "data"
            os.chown(files, *owner)
            files.chmod(mount.mode)
        volumes.append(manifests.Volume(name=name, kind=NAMED, source=volume))
    annotations = ((Annotation.MEMORY_VOLUMES, jsontext.dump(memory).decode("ascii")),) if memory else ()
    return tuple(volumes), tuple(places), annotations


def _tell_output(output: BinaryIO | None) -> None:
    """Print what commands have said, which nobody has seen."""
    if output is None:
        return
    output.seek(0)
    sys.stderr.flush()
    while data := output.read(_CHUNK_BYTES):
        write_all(2, data)
