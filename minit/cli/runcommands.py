"""The commands that make and run pods: run, prepare, run-prepared, enter."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from minit.cli.flagwords import FlagError
from minit.cli.grammar import IMAGES, AppOption, ImageCommand, MinitCommand, OptionalValue, invocation_of
from minit.cli.imageargs import ImageArgument, parse_variable
from minit.cli.invocation import Invocation, flush_output
from minit.cli.progressdisplay import show_progress
from minit.errors import PodError, StoreError, describe
from minit.manifest.names import is_environment_name
from minit.progress import Progress
from minit.stage0 import overlay
from minit.stage0.defaultstage1 import default_stage1
from minit.stage0.enter import enter_pod
from minit.stage0.entrypoints import DEFAULT_NETWORK, RunOptions
from minit.stage0.images import resolve_image
from minit.stage0.podmanifest import (
    PlannedApp,
    PodDefaults,
    check_platform,
    complete_manifest,
    image_ids,
    plan_apps,
)
from minit.stage0.pods import find_pod
from minit.stage0.prepare import PodRequest, check_kernel, discarded_on_failure, finish, prepare_pod
from minit.stage0.run import claim_prepared, run_pod
from minit.stage0.store import Store, StoredImage
from minit.stage0.treestore import TreeStore

_SECTION = "Running pods"
_IMAGE_OPERANDS = "IMAGE [APP-OPTION]... [-- ARG...] [--- IMAGE...]"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(*decorators: Decorator) -> Decorator:
    """Return decorators as one, so that the help shows the options in the order written."""
    return lambda function: reduce(lambda inner, outer: outer(inner), reversed(decorators), function)


_app_options = _options(
    click.option("--name", cls=AppOption, help="Name of the app.  [default: end of the image's name]"),
    click.option("--exec", cls=AppOption, metavar="PATH", help="Program to run instead of the image's."),
    click.option("--user", cls=AppOption, help="User, by name, number or a file owned by it."),
    click.option("--group", cls=AppOption, help="Group, by name, number or a file owned by it."),
    click.option("--supplementary-gids", cls=AppOption, metavar="GID,...", help="Further group numbers."),
    click.option("--working-dir", cls=AppOption, metavar="DIR", help="Working directory."),
    click.option("--environment", cls=AppOption, metavar="NAME=VALUE", help="Environment variable; repeatable."),
)

_prepare_options = _options(
    click.option("--stage1-path", metavar="FILE", help="Stage1 image to use: a file.  [default: minit's own]"),
    click.option("--stage1-name", metavar="NAME[:VERSION]", help="Stage1 image to use: one of the store, by name."),
    click.option("--stage1-hash", metavar="ID", help="Stage1 image to use: one of the store, by id."),
    click.option("--no-overlay", is_flag=True, help="Copy images into the pod instead of using overlayfs."),
    click.option(
        "--pod-manifest",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Use this pod manifest instead of images and options for apps.",
    ),
    click.option(
        "--set-env", metavar="NAME=VALUE", multiple=True, help="Environment variable of all apps; repeatable."
    ),
    click.option(
        "--set-env-file",
        metavar="FILE",
        multiple=True,
        type=click.Path(path_type=Path),
        help="File with a NAME=VALUE for all apps in each line.",
    ),
    click.option("--inherit-env", is_flag=True, help="Give all apps minit's own environment, where they set nothing."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)

_run_options = _options(
    click.option(
        "--net",
        cls=OptionalValue,
        bare=DEFAULT_NETWORK,
        multiple=True,
        metavar="LIST",
        help="Networks, separated by commas; `host` and `none`, the only ones that minit's own stage1 has so far, "
        "stand for the host's and for no network.  "
        f"[default: {DEFAULT_NETWORK}]",
    ),
    click.option("--hostname", metavar="NAME", help="Host name of the pod.  [default: rkt-UUID]"),
    click.option("--interactive", is_flag=True, help="Connect the terminal to the pod's only app."),
    click.option("--ipc", type=click.Choice(["auto", "private", "parent"]), help="IPC namespace of the pod."),
)


@click.command(cls=ImageCommand, section=_SECTION, short_help="Run images in a new pod, in the foreground.")
@_prepare_options
@_run_options
@click.option(
    "--uuid-file-save",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the pod's UUID to a file as soon as it is known.",
)
@_app_options
@click.argument("image", nargs=-1, metavar=_IMAGE_OPERANDS, expose_value=False, type=click.Path())
@click.pass_context
def run(ctx: click.Context, /, uuid_file_save: Path | None, quiet: bool, **options: Any) -> None:
    """
    Run images in a new pod, in the foreground.

    IMAGE is a file (.aci), or an image of the store by id, `name` or `name:version`. Options for an app
    follow its image; arguments for it follow `--` and end at `---` or at the end of the line.

    The exit code is that of the first app that fails, 0 if none does, 254 if the pod cannot be run.

    \b
      minit run --net=none busybox.aci --exec /bin/sh -- -c 'exit 42'
      minit run --net=host web.aci --name=web --- client.aci -- http://localhost:8080

    """
    invocation = invocation_of(ctx)
    invocation.require_root()
    run_options = _collect_run_options(invocation, options)
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        with show_progress(invocation, quiet=quiet) as progress:
            request = _request(invocation, store, ctx.meta[IMAGES], progress, **options)
            pod = prepare_pod(
                invocation.data,
                store,
                trees,
                request,
                progress,
                lambda uuid: _save_uuid(uuid_file_save, uuid),
            )
        with discarded_on_failure(pod):
            run_pod(pod, trees, run_options, invocation.note, flush_output)


@click.command(cls=ImageCommand, section=_SECTION, short_help="Make a pod to be run later; print its UUID.")
@_prepare_options
@_app_options
@click.argument("image", nargs=-1, metavar=_IMAGE_OPERANDS, expose_value=False, type=click.Path())
@click.pass_context
def prepare(ctx: click.Context, /, quiet: bool, **options: Any) -> None:
    """
    Make a pod of images, to be run later with run-prepared, and print its UUID.

    IMAGE is a file (.aci), or an image of the store by id, `name` or `name:version`. Options for an app
    follow its image; arguments for it follow `--` and end at `---` or at the end of the line.

    \b
      minit prepare busybox.aci --exec /bin/sh -- -c 'exit 42'

    """
    invocation = invocation_of(ctx)
    invocation.require_root()
    with Store(invocation.data) as store:
        trees = TreeStore(invocation.data, store)
        with show_progress(invocation, quiet=quiet) as progress:
            request = _request(invocation, store, ctx.meta[IMAGES], progress, **options)
            pod = prepare_pod(invocation.data, store, trees, request, progress, lambda uuid: None)
        with pod:
            finish(pod)
            invocation.say(pod.uuid)


@click.command("run-prepared", cls=MinitCommand, section=_SECTION)
@_run_options
@click.argument("uuid", metavar="UUID")
@click.pass_obj
def run_prepared(invocation: Invocation, /, uuid: str, **options: Any) -> None:
    """
    Run a pod that prepare made, in the foreground.

    UUID may be shortened to any prefix that only one pod has.
    """
    invocation.require_root()
    check_kernel()
    run_options = _collect_run_options(invocation, options)
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
    ):
        claim_prepared(pod)
        run_pod(pod, TreeStore(invocation.data, store), run_options, invocation.note, flush_output)


@click.command(cls=MinitCommand, section=_SECTION, stop_at_operand=True)
@click.option("--app", metavar="NAME", help="App to enter, if the pod has several.")
@click.argument("uuid", metavar="UUID")
@click.argument("command", nargs=-1, metavar="[COMMAND [ARG]...]", type=click.UNPROCESSED)
@click.pass_obj
def enter(invocation: Invocation, app: str | None, uuid: str, command: tuple[str, ...]) -> None:
    """
    Run a command, by default /bin/bash, in an app of a running pod.

    The exit code is the command's. UUID may be shortened to any prefix that only one pod has.
    """
    invocation.require_root()
    if not command:
        invocation.note('no command specified, assuming "/bin/bash"')
        command = ("/bin/bash",)
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
    ):
        enter_pod(pod, TreeStore(invocation.data, store), app, command, flush_output)


COMMANDS: tuple[click.Command, ...] = (run, prepare, run_prepared, enter)


def _request(
    invocation: Invocation,
    store: Store,
    images: Sequence[ImageArgument],
    progress: Progress,
    *,
    stage1_path: str | None,
    stage1_name: str | None,
    stage1_hash: str | None,
    no_overlay: bool,
    pod_manifest: Path | None,
    set_env: Sequence[str],
    set_env_file: Sequence[Path],
    inherit_env: bool,
    **_run_options: object,
) -> PodRequest:
    """Return the pod that the command line describes, its images in the store."""
    if pod_manifest is not None and (images or set_env or set_env_file or inherit_env):
        raise click.UsageError("--pod-manifest excludes images and options for their environment")
    if pod_manifest is None and not images:
        raise click.UsageError("no image given")
    if sum(choice is not None for choice in (stage1_path, stage1_name, stage1_hash)) > 1:
        raise click.UsageError("--stage1-path, --stage1-name and --stage1-hash exclude each other")
    if pod_manifest is None:
        defaults = PodDefaults(
            uid=os.getuid(),
            gid=os.getgid(),
            inherited=_own_environment() if inherit_env else (),
            from_file=tuple(variable for path in set_env_file for variable in _read_env_file(path)),
            set=tuple(_parse_variable("--set-env", text) for text in set_env),
        )
        chosen = [(resolve_image(store, image.reference, progress), image.overrides) for image in images]
        apps, manifest = plan_apps(chosen, defaults)
    else:
        apps, manifest = _apps_of_manifest(store, pod_manifest)
    stage1 = _choose_stage1(invocation, store, progress, stage1_path, stage1_name or stage1_hash)
    return PodRequest(
        stage1=stage1,
        apps=apps,
        manifest_bytes=manifest,
        overlay=not no_overlay and _overlay_works(invocation),
    )


def _apps_of_manifest(store: Store, path: Path) -> tuple[tuple[PlannedApp, ...], bytes]:
    source = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PodError(f"cannot read the pod manifest {describe(error)}") from error
    apps = tuple(PlannedApp(name=name, image=store.find(image_id)) for name, image_id in image_ids(data, source))
    for app in apps:
        check_platform(app.image.manifest)
    return apps, complete_manifest(data, source, {app.name: app.image for app in apps})


def _choose_stage1(
    invocation: Invocation, store: Store, progress: Progress, path: str | None, reference: str | None
) -> StoredImage:
    if path is not None:
        return store.import_file(Path(path), progress)
    if reference is not None:
        return store.find(reference)
    from minit.image.stage1 import build_stage1, stage1_fingerprint

    return default_stage1(invocation.data, store, stage1_fingerprint(), build_stage1, progress)


def _overlay_works(invocation: Invocation) -> bool:
    obstacle = overlay.overlay_obstacle(invocation.data)
    if obstacle is not None:
        invocation.note(f"disabling overlay support: {obstacle}")
    return obstacle is None


def _collect_run_options(invocation: Invocation, options: dict[str, Any]) -> RunOptions:
    return RunOptions(
        debug=invocation.debug,
        networks=options["net"],
        interactive=options["interactive"],
        local_config=invocation.local_config,
        hostname=options["hostname"],
        disable_capabilities_restriction="capabilities" in invocation.insecure,
        disable_paths="paths" in invocation.insecure,
        disable_seccomp="seccomp" in invocation.insecure,
        ipc=options["ipc"],
    )


def _save_uuid(path: Path | None, uuid: str) -> None:
    if path is None:
        return
    try:
        path.write_text(uuid)
    except OSError as error:
        raise PodError(f"cannot save the UUID to {describe(error)}") from error


def _own_environment() -> tuple[tuple[str, str], ...]:
    """Return what a manifest can hold of minit's own environment: shells export functions under odd names."""
    return tuple((name, value) for name, value in os.environ.items() if is_environment_name(name) and _is_text(value))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True


def _read_env_file(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the environment file {path}: {describe(error)}") from error
    words = [line.strip() for line in lines]
    return [
        _parse_variable(f"--set-env-file {path}", word) for word in words if word and not word.startswith(("#", ";"))
    ]


def _parse_variable(flag: str, text: str) -> tuple[str, str]:
    try:
        return parse_variable(flag, text)
    except FlagError as error:
        raise click.UsageError(str(error)) from error
