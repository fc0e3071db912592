"""From the request for a pod to the pod: fetches images, plans the manifest, fills the directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import which

from minit.archives.imagenames import is_source
from minit.base.errors import ImageError, MinitError, PodError, StoreError, describe
from minit.base.idrange import IdRange
from minit.base.progress import Progress
from minit.base.value import replace
from minit.linux.idmapping import read_held_ids
from minit.manifest.annotations import Annotation
from minit.manifest.app import CAPABILITIES_REMOVE, CAPABILITIES_RETAIN, SECCOMP_REMOVE, SECCOMP_RETAIN
from minit.manifest.capabilities import capability_isolators
from minit.manifest.pod import PodManifest, parse_pod_manifest
from minit.manifest.seccomp import WORD_CAPABILITIES
from minit.pods.caller import Caller
from minit.pods.hostfiles import with_devices, with_profile
from minit.pods.images import choose_stage1, trust_of
from minit.pods.requests import AppRequest, PodRequest
from minit.stage0.images.fetching import image_file, resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import MissingImage, PullPolicy, StoredImage
from minit.stage0.images.treestore import ImageVolumes, TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.appsection import AppOverrides, PodDefaults
from minit.stage0.pods.poddirectory import Pod, check_name
from minit.stage0.pods.podmanifest import PlannedApp, check_platform, complete_manifest, image_ids, plan_apps
from minit.stage0.pods.privateusers import ids_obstacle, supports_user_namespaces
from minit.stage0.stage1.entrypoints import require_mutable_support
from minit.stage0.start.newpod import NewPod, prepare_pod


def prepare(
    caller: Caller,
    store: Store,
    request: PodRequest,
    progress: Progress,
    announce: Callable[[str], None] = lambda uuid: None,
) -> Pod:
    """
    Return a new pod, locked and complete; `announce` gets the UUID as soon as the pod's directory exists.

    MinitError for a request that cannot be carried out, with nothing of the pod left behind.
    """
    if request.name is not None:
        check_name(request.name)
    overlay = _choose_overlay(caller, request)
    put_stage1 = choose_stage1(caller, store, request.stage1)
    trees = TreeStore(caller.data, store)
    if request.manifest is None:
        apps, manifest = _plan(caller, store, trees, request, progress)
    else:
        apps, manifest = apps_of_manifest(store, request.manifest, caller.insecure)
    if request.private_users:
        _refuse_mapped_volumes(parse_pod_manifest(manifest, "new pod"))
    stage1 = put_stage1(progress)
    if request.is_mutable:
        require_mutable_support(stage1.manifest)
    pod = NewPod(
        stage1=stage1,
        apps=apps,
        manifest_bytes=manifest,
        overlay=overlay,
        private_users=request.private_users,
        name=request.name,
    )
    return prepare_pod(caller.data, store, trees, pod, progress, announce)


def _refuse_mapped_volumes(manifest: PodManifest) -> None:
    """Raise PodError if volumes have the owners of the disk, which the kernel shows only for root of the machine."""
    sections = [("", manifest.annotation(Annotation.IDMAP))]
    sections += [(f'app "{app.name}": ', app.annotation(Annotation.IDMAP)) for app in manifest.apps]
    wanted = next(((where, text) for where, text in sections if text not in (None, "false")), None)
    if wanted is not None and read_held_ids() is not None:
        raise PodError(
            f"{wanted[0]}{Annotation.IDMAP}={wanted[1]}: the kernel maps owners of files for root of the machine alone:"
            " leave out --private-users, or these volumes and named volumes (see docs/rootless.md)"
        )


def defaults_of(caller: Caller, request: PodRequest) -> PodDefaults:
    """Return the settings of a request for all apps and for the pod."""
    return PodDefaults(
        uid=os.getuid(),
        gid=os.getgid(),
        data=caller.data,
        insecure=caller.insecure,
        private_users=bool(request.private_users),
        host_pids=request.host_pids,
        is_mutable=request.is_mutable,
        inherited=request.inherited,
        from_file=request.from_file,
        environment=request.environment,
        volumes=request.volumes,
        mounts=request.mounts,
        ports=request.ports,
        ports_place=request.ports_place,
        annotations=request.annotations,
        user_annotations=request.user_annotations,
        user_labels=request.user_labels,
    )


def find_image(caller: Caller, store: Store, request: AppRequest, progress: Progress) -> StoredImage:
    """Return the image of a request, fetched or imported as the policy says."""
    given = request.overrides.signature
    signature = None if given is None else Path(given)
    return _find(caller, store, request, progress, request.reference, signature)


def find_image_or_fetch(caller: Caller, store: Store, request: AppRequest, progress: Progress) -> StoredImage:
    """Return the image of a reference in minit's form, or else of a registry's, perhaps without `docker://`."""
    reference = request.reference
    if not is_source(reference) and image_file(reference) is None:
        if request.pull_policy is not PullPolicy.UPDATE:
            try:
                return store.find(reference)
            except MinitError:
                if reference.startswith("sha512-"):
                    raise
        request = replace(request, reference=f"docker://{reference}")
    return find_image(caller, store, request, progress)


def settled_overrides(
    caller: Caller, store: Store, trees: TreeStore, request: AppRequest, progress: Progress
) -> AppOverrides:
    """Return the settings of an app with the named files of the host read, and image volumes unpacked."""
    overrides = with_devices(with_profile(_with_capabilities(request.overrides)))
    of_images = ImageVolumes(store, trees, partial(_find, caller, store, request, progress), progress)
    return replace(overrides, mounts=of_images.provide_mounts(overrides.mounts))


def _find(
    caller: Caller, store: Store, request: AppRequest, progress: Progress, reference: str, signature: Path | None = None
) -> StoredImage:
    return resolve_image(
        store,
        reference,
        progress,
        request.pull_policy,
        processor=request.processor,
        verify_tls=caller.verifies_tls,
        trust=trust_of(caller),
        signature=signature,
    )


def _plan(
    caller: Caller, store: Store, trees: TreeStore, request: PodRequest, progress: Progress
) -> tuple[tuple[PlannedApp, ...], bytes]:
    images = [_named(caller, store, app, progress, is_first=number == 0) for number, app in enumerate(request.apps)]
    settings = [settled_overrides(caller, store, trees, app, progress) for app in request.apps]
    volumes = request.volumes
    if request.apps:
        find = partial(_find, caller, store, request.apps[0], progress)
        volumes = ImageVolumes(store, trees, find, progress).provide(volumes)
    defaults = defaults_of(caller, replace(request, volumes=volumes))
    return plan_apps([*zip(images, settings, strict=True)], defaults)


def _named(caller: Caller, store: Store, app: AppRequest, progress: Progress, *, is_first: bool) -> StoredImage:
    """Return an image; the error of an image behind another says where arguments of an app stand."""
    try:
        try:
            return find_image(caller, store, app, progress)
        except MissingImage as missing:
            if app.pull_policy is PullPolicy.NEVER or app.reference.startswith("sha512-") or which("skopeo") is None:
                raise
            try:
                return find_image(caller, store, replace(app, reference=f"docker://{app.reference}"), progress)
            except StoreError as failure:
                raise StoreError(f"{missing.problem}, and {describe(failure)}") from failure
    except (ImageError, StoreError) as error:
        if is_first:
            raise
        raise StoreError(f"{describe(error)} (arguments of an app follow --)") from error


def _with_capabilities(overrides: AppOverrides) -> AppOverrides:
    """Return the settings of an app with capabilities as isolators, and with the system calls of the added ones."""
    added, dropped = overrides.added_capabilities, overrides.dropped_capabilities
    if not added and not dropped:
        return overrides
    names = {isolator.name for isolator in overrides.isolators}
    if names & {CAPABILITIES_RETAIN, CAPABILITIES_REMOVE}:
        raise PodError("--cap-add and --cap-drop exclude --caps-retain and --caps-remove for one image")
    is_plain = overrides.seccomp is None and not names & {SECCOMP_RETAIN, SECCOMP_REMOVE}
    return replace(
        overrides,
        added_capabilities=frozenset(),
        dropped_capabilities=frozenset(),
        isolators=(*overrides.isolators, *capability_isolators(added, dropped)),
        seccomp=WORD_CAPABILITIES if added and is_plain else overrides.seccomp,
    )


def apps_of_manifest(store: Store, path: Path, insecure: frozenset[str]) -> tuple[tuple[PlannedApp, ...], bytes]:
    """Return the apps of a user's pod manifest, the images in the store, and the manifest for stage1."""
    source = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PodError(f"cannot read the pod manifest {describe(error)}") from error
    apps = tuple(PlannedApp(name=name, image=store.find(image_id)) for name, image_id in image_ids(data, source))
    for app in apps:
        check_platform(app.image.manifest)
    return apps, complete_manifest(data, source, {app.name: app.image for app in apps}, insecure)


def _choose_overlay(caller: Caller, request: PodRequest) -> bool:
    """Return whether the pod gets overlays; PodError if the pod wants a user namespace and the kernel has none."""
    wanted = request.private_users
    if wanted and not supports_user_namespaces():
        raise PodError("--private-users is not supported, kernel compiled without user namespace support")
    lack = ids_obstacle(wanted if isinstance(wanted, IdRange) else None) if wanted else None
    if lack is not None:
        raise PodError(lack)
    if not request.wants_overlay:
        return False
    obstacle = overlay.overlay_obstacle(caller.data)
    if obstacle is None and request.private_users:
        obstacle = overlay.idmap_obstacle(caller.data)
    if obstacle is not None:
        caller.note(f"disabling overlay support: {obstacle}")
    return obstacle is None
