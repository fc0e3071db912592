"""From the command line of run, prepare and app sandbox to the pod that it describes, its images in the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from minit.base.errors import ImageError, PodError, StoreError, describe
from minit.base.idrange import IdRange
from minit.base.processors import Processor
from minit.base.progress import Progress
from minit.base.value import replace
from minit.cli.commands.run.chosendevices import with_devices
from minit.cli.commands.run.seccompfile import with_profile
from minit.cli.commands.run.stage1choice import stage1_of_options
from minit.cli.flags.appoptions import parse_annotation, parse_pair
from minit.cli.flags.environmentflags import Variables, parse_environment_files, parse_variables
from minit.cli.flags.imageargs import ImageArgument
from minit.cli.flags.portflags import parse_direct_port, parse_port
from minit.cli.flags.volumeflags import check_volumes, parse_mount, parse_storage, parse_volume
from minit.cli.flagwords import FlagError
from minit.cli.invocation import Invocation
from minit.linux.hostnotify import DESCRIPTOR_VARIABLE, SOCKET_VARIABLE
from minit.manifest.names import is_environment_name
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import IMAGE, ImageVolumes, TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.appsection import PodDefaults
from minit.stage0.pods.podmanifest import (
    PlannedApp,
    check_platform,
    complete_manifest,
    image_ids,
    plan_apps,
    plan_sandbox,
)
from minit.stage0.pods.podnames import check_name
from minit.stage0.pods.privateusers import supports_user_namespaces
from minit.stage0.stage1.entrypoints import require_mutable_support
from minit.stage0.start.newpod import PodRequest

# sd_notify(3), sd_listen_fds(3) and sd_watchdog_enabled(3): of sockets, descriptors and processes that no app has.
_OF_THE_MANAGER = frozenset(
    {
        SOCKET_VARIABLE,
        DESCRIPTOR_VARIABLE,
        *("LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"),
        *("WATCHDOG_PID", "WATCHDOG_USEC"),
    }
)

_HOST = "host"


def make_request(
    invocation: Invocation,
    store: Store,
    images: Sequence[ImageArgument],
    progress: Progress,
    *,
    no_overlay: bool,
    private_users: IdRange | bool,
    name: str | None,
    pod_manifest: Path | None,
    volume: Sequence[str],
    mount: Sequence[str],
    port: Sequence[str],
    set_env: Sequence[str],
    set_env_file: Sequence[Path],
    inherit_env: bool,
    pull_policy: str,
    processor: Processor | None,
    pid: str | None = None,
    **options: Any,
) -> PodRequest:
    """Return the pod that the command line describes."""
    if name is not None:
        check_name(name)
    with_overlay = choose_overlay(invocation, no_overlay=no_overlay, private_users=bool(private_users))
    put_stage1 = stage1_of_options(invocation, store, **options)
    if pod_manifest is None:
        # First what is wrong with options: one without its value may have taken the image for it.
        defaults = _parse_defaults(
            invocation, images, volume, mount, port, set_env, set_env_file, inherit_env, bool(private_users), pid
        )
        if not images:
            raise click.UsageError("no image given")
        settings = [with_devices(with_profile(image.overrides)) for image in images]
        resolve = partial(
            resolve_image,
            store,
            progress=progress,
            policy=PullPolicy(pull_policy),
            processor=processor,
            verify_tls=invocation.verifies_tls,
        )
        chosen = [
            (_resolved(resolve, image.reference, is_first=number == 0), overrides)
            for number, (image, overrides) in enumerate(zip(images, settings))
        ]
        of_images = ImageVolumes(store, TreeStore(invocation.data, store), resolve, progress)
        chosen = [(image, replace(own, mounts=of_images.provide_mounts(own.mounts))) for image, own in chosen]
        apps, manifest = plan_apps(chosen, replace(defaults, volumes=of_images.provide(defaults.volumes)))
    else:
        _refuse_beside_manifest(
            {
                "images": images,
                "--volume": volume,
                "--mount": mount,
                "--port": port,
                "--set-env": set_env,
                "--set-env-file": set_env_file,
                "--inherit-env": inherit_env,
                "--pid": pid,
                "--pull-policy": pull_policy != PullPolicy.NEW.value,
                "--arch": processor,
            }
        )
        apps, manifest = apps_of_manifest(store, pod_manifest, invocation.insecure)
    return PodRequest(
        stage1=put_stage1(progress),
        apps=apps,
        manifest_bytes=manifest,
        overlay=with_overlay,
        private_users=private_users,
        name=name,
    )


def _resolved(resolve: Callable[[str], StoredImage], reference: str, *, is_first: bool) -> StoredImage:
    """Return an image; the error of one behind another says where arguments of an app stand."""
    try:
        return resolve(reference)
    except (ImageError, StoreError) as error:
        if is_first:
            raise
        raise StoreError(f"{describe(error)} (arguments of an app follow --)") from error


def make_sandbox_request(
    invocation: Invocation,
    store: Store,
    progress: Progress,
    *,
    no_overlay: bool,
    private_users: IdRange | bool,
    name: str | None,
    volume: Sequence[str],
    port: Sequence[str],
    annotation: Sequence[str],
    user_annotation: Sequence[str],
    user_label: Sequence[str],
    pid: str | None = None,
    **options: Any,
) -> PodRequest:
    """Return the pod without apps that the command line describes."""
    with_overlay = choose_overlay(invocation, no_overlay=no_overlay, private_users=bool(private_users))
    try:
        defaults = PodDefaults(
            uid=os.getuid(),
            gid=os.getgid(),
            data=invocation.data,
            host_pids=pid == _HOST,
            volumes=tuple(parse_volume("--volume", text) for text in volume),
            ports=tuple(parse_direct_port("--port", text) for text in port),
        )
        check_volumes(defaults.volumes, (), ())
        if any(volume.kind == IMAGE for volume in defaults.volumes):
            raise FlagError("--volume: apps bring volumes of kind image with them: --mnt-volume of app add")
        manifest = plan_sandbox(
            defaults,
            annotations=tuple(parse_annotation("--annotation", text) for text in annotation),
            user_annotations=tuple(parse_pair("--user-annotation", text) for text in user_annotation),
            user_labels=tuple(parse_pair("--user-label", text) for text in user_label),
        )
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    stage1 = stage1_of_options(invocation, store, **options)(progress)
    require_mutable_support(stage1.manifest)
    return PodRequest(
        stage1=stage1, apps=(), manifest_bytes=manifest, overlay=with_overlay, private_users=private_users, name=name
    )


def choose_overlay(invocation: Invocation, *, no_overlay: bool, private_users: bool) -> bool:
    """Return whether the pod gets overlays; PodError if the kernel has no user namespaces for one that wants one."""
    if private_users and not supports_user_namespaces():
        raise PodError("--private-users is not supported, kernel compiled without user namespace support")
    return not no_overlay and _overlay_works(invocation, private_users=private_users)


def _parse_defaults(
    invocation: Invocation,
    images: Sequence[ImageArgument],
    volumes: Sequence[str],
    mounts: Sequence[str],
    ports: Sequence[str],
    set_env: Sequence[str],
    set_env_file: Sequence[Path],
    inherit_env: bool,
    private_users: bool,
    pid: str | None,
) -> PodDefaults:
    try:
        storage, short_mounts = parse_storage("--volume", volumes)
        defaults = PodDefaults(
            uid=os.getuid(),
            gid=os.getgid(),
            inherited=_own_environment() if inherit_env else (),
            from_file=variables_of_files(set_env_file),
            set=parse_variables("--set-env", set_env),
            data=invocation.data,
            private_users=private_users,
            host_pids=pid == _HOST,
            volumes=storage,
            mounts=(*short_mounts, *(parse_mount("--mount", text) for text in mounts)),
            ports=tuple(parse_port("--port", text) for text in ports),
            insecure=invocation.insecure,
        )
        check_volumes(defaults.volumes, defaults.mounts, [image.overrides.mounts for image in images])
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    return defaults


def variables_of_files(paths: Sequence[Path]) -> Variables:
    """Return the environment in the files of --set-env-file; PodError if one cannot be read, FlagError for its text."""
    return parse_environment_files("--set-env-file", [(str(path), _read_environment_file(path)) for path in paths])


def _refuse_beside_manifest(given: dict[str, object]) -> None:
    excluded = ", ".join(what for what, values in given.items() if values)
    if excluded:
        raise click.UsageError(f"--pod-manifest excludes {excluded}: write what you mean into the manifest")


def apps_of_manifest(store: Store, path: Path, insecure: frozenset[str]) -> tuple[tuple[PlannedApp, ...], bytes]:
    """Return the apps of a user's pod manifest, their images in the store, and the manifest that stage1 gets."""
    source = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PodError(f"cannot read the pod manifest {describe(error)}") from error
    apps = tuple(PlannedApp(name=name, image=store.find(image_id)) for name, image_id in image_ids(data, source))
    for app in apps:
        check_platform(app.image.manifest)
    return apps, complete_manifest(data, source, {app.name: app.image for app in apps}, insecure)


def _overlay_works(invocation: Invocation, *, private_users: bool) -> bool:
    obstacle = overlay.overlay_obstacle(invocation.data)
    if obstacle is None and private_users:
        obstacle = overlay.idmap_obstacle(invocation.data)
    if obstacle is not None:
        invocation.note(f"disabling overlay support: {obstacle}")
    return obstacle is None


def _own_environment() -> Variables:
    """
    Return what a manifest can hold of minit's own environment: shells export functions under odd names.

    What a service manager says to the process that it has started is for that one alone.
    """
    return tuple(
        (name, value)
        for name, value in os.environ.items()
        if is_environment_name(name) and _is_text(value) and name not in _OF_THE_MANAGER
    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True


def _read_environment_file(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise PodError(f"--set-env-file: {describe(error)}") from error
    except UnicodeDecodeError as error:
        raise PodError(f"--set-env-file: {path}: expected UTF-8, got 0x{error.object[error.start]:02x}") from error
