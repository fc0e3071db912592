"""The commands that run pods: run, prepare, run-prepared, start, restart, upgrade."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from minit.base.errors import PodError, describe
from minit.cli.commandgroups import COMMANDS
from minit.cli.commands.podcommands import for_each, pods_meant
from minit.cli.commands.podrequest import pod_request, refuse_ports, stage1_request
from minit.cli.commands.podrequest import run_options as run_options_of
from minit.cli.flags.filters import Filter, Subject, filter_option
from minit.cli.flags.imageargs import IMAGES, ImageCommand
from minit.cli.flags.runoptions import (
    app_options,
    background_options,
    prepare_options,
    run_options,
    stage1_image_options,
    uuid_file_save_option,
)
from minit.cli.flags.sharedoptions import quiet_option, timeout_option
from minit.cli.grammar import MinitCommand, invocation_of
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.cli.uuidfile import some_or_all_pods, some_pods, uuid_file_first_option
from minit.linux.stdio import flush_output
from minit.podfiles import paths
from minit.podfiles.usersdirectory import is_of_user
from minit.pods import preparing, running
from minit.pods.requests import StartRequest
from minit.pods.running import await_name, make_way, options_for, start_again
from minit.pods.stopping import await_stopping, running_pods
from minit.stage0.images.store import Store
from minit.stage0.pods.poddirectory import Pod, PodState, find_pod
from minit.stage0.pods.podmanifest import unused_volumes
from minit.stage0.start.newpod import check_kernel, finish
from minit.stage0.start.run import claim_prepared

_IMAGE_OPERANDS = "IMAGE [APP-OPTION]... [-- ARG...] [--- IMAGE...]"


@click.command(cls=ImageCommand)
@prepare_options
@run_options
@background_options
@click.option("--replace", is_flag=True, help="Before, stop and remove the pod of the same --name, if there is one.")
@uuid_file_save_option
@app_options
@click.argument("image", nargs=-1, metavar=_IMAGE_OPERANDS, expose_value=False, type=click.Path())
@click.pass_context
def run(
    ctx: click.Context,
    /,
    uuid_file_save: Path | None,
    quiet: bool,
    detach: bool,
    removed: bool,
    replace: bool,
    **options: Any,
) -> None:
    """
    IMAGE is a file (.aci), oci:DIR, oci-archive:FILE, docker-archive:FILE, docker://NAME, an image of the store by id,
    `name` or `name:version`, or else one that skopeo fetches by its name. Options for an app follow its image, or stand
    before the only one. Arguments for it follow `--` and end at `---` or at the end of the line.

    A word behind IMAGE means another image if it is one of the above with a transport, a registry or .aci, or in the
    store; `---` stands before an image in any case. Any other word begins the arguments of the app, which are in the
    place of the command of an image of Docker or OCI.

    The exit code is that of the first app that fails, 0 if none does, 254 if the pod cannot be run.

    \b
      minit run -d --name web -p 8080:80 -v ./site:/www:ro --restart always -m 64m nginx:1
      minit run --rm -it debian:12 ls -l /
      minit run busybox.aci --exec /bin/sh -- -c 'exit 42'
      minit run --port=http:8080 web.aci --name=web --- client.aci -- http://localhost
      minit run --net=none --volume=data,kind=host,source=/srv/data \\
        web.aci --mount=volume=data,target=/www --readonly-rootfs
      minit run --net=lan:IP=10.1.0.7 --dns=192.0.2.53 --hosts-entry=192.0.2.7=db --set-env-file=web.env web.aci

    """
    invocation = invocation_of(ctx)
    invocation.become_root(in_scope=True)
    chosen = options_for(invocation.caller, run_options_of(**options, quiet=quiet))
    how = StartRequest(options=chosen, is_detached=detach, is_removed=removed)
    refuse_detached_terminal(how)
    refuse_ports(options["net"], options["port"])
    request = pod_request(ctx.meta[IMAGES], **options)
    if replace:
        if request.name is None:
            raise click.UsageError("--replace needs the name of the pod: --name before the first image")
        make_way(invocation.caller, request.name)
    elif request.name is not None:
        await_name(invocation.caller, request.name)
    with Store(invocation.data) as store:
        with show_progress(invocation, quiet=quiet) as progress:
            pod = preparing.prepare(invocation.caller, store, request, progress, partial(save_uuid, uuid_file_save))
        start_pod(invocation, store, pod, how)


@click.command(cls=ImageCommand, short_help=COMMANDS["prepare"].help)
@prepare_options
@app_options
@click.argument("image", nargs=-1, metavar=_IMAGE_OPERANDS, expose_value=False, type=click.Path())
@click.pass_context
def prepare(ctx: click.Context, /, quiet: bool, **options: Any) -> None:
    """
    Make a pod of images, to be run later with run-prepared, and print its UUID.

    IMAGE is a file (.aci), oci:DIR, oci-archive:FILE, docker-archive:FILE, docker://NAME, or an image of the store by
    id, `name` or `name:version`. Options for an app follow its image; arguments for it follow `--` and end at `---` or
    at the end of the line.

    \b
      minit prepare busybox.aci --exec /bin/sh -- -c 'exit 42'
      minit prepare --volume=tmp,kind=empty,mode=1777 --mount=volume=tmp,target=/tmp a.aci b.aci

    """
    invocation = invocation_of(ctx)
    invocation.become_root()
    request = pod_request(ctx.meta[IMAGES], **options)
    with Store(invocation.data) as store:
        with show_progress(invocation, quiet=quiet) as progress:
            pod = preparing.prepare(invocation.caller, store, request, progress)
        with pod:
            finish(pod)
            for name in unused_volumes(pod.read_file(paths.POD_MANIFEST)):
                invocation.note(f'warning: no app mounts the volume "{name}"')
            invocation.say(pod.uuid)


@click.command("run-prepared", cls=MinitCommand)
@run_options
@background_options
@uuid_file_first_option
@click.argument("uuid", metavar="UUID")
@click.pass_obj
def run_prepared(invocation: Invocation, /, uuid: str, detach: bool, removed: bool, **options: Any) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit run-prepared --net=host --dns=host --hosts-entry=host 2d381b2a

    """
    invocation.become_root(in_scope=True)
    check_kernel()
    chosen = options_for(invocation.caller, run_options_of(**options))
    how = StartRequest(options=chosen, is_detached=detach, is_removed=removed)
    refuse_detached_terminal(how)
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
    ):
        claim_prepared(pod)
        start_pod(invocation, store, pod, how)


def start_pod(invocation: Invocation, store: Store, pod: Pod, how: StartRequest) -> None:
    """Run a locked, complete pod, and print the UUID if the pod runs in the background."""
    if how.options.interactive and not how.options.quiet and os.isatty(0):
        invocation.note("press ^] three times within 1s to kill the pod")
    invocation.say(running.start(invocation.caller, store, pod, how))


def refuse_detached_terminal(how: StartRequest) -> None:
    """Refuse a pod connected to the terminal that the command leaves."""
    if how.is_detached and how.options.interactive:
        raise click.UsageError("--interactive needs the terminal that --detach leaves")


def save_uuid(path: Path | None, uuid: str) -> None:
    """Write a UUID to the file chosen by the user, if any."""
    if path is None:
        return
    try:
        path.write_text(uuid)
    except OSError as error:
        # A write names no file.
        error.filename = path
        raise PodError(f"cannot save the UUID to {describe(error)}") from error


@click.command(cls=MinitCommand)
@click.option("-a", "--attach", is_flag=True, help="Run one pod in the foreground, as with run: for supervisors.")
@some_pods
@click.pass_obj
def start(invocation: Invocation, uuids: tuple[str, ...], attach: bool) -> None:
    """
    A pod has the options of its last run, its UUID, name and volumes, and all that its apps have written. One with
    --interactive is run in the foreground. A pod that somebody stops is started after its end.

    \b
      minit start web
      minit start 2d381b2a 6a9c

    """
    invocation.become_root(in_scope=True)
    check_kernel()
    if attach:
        _start_in_foreground(invocation, uuids)
    with Store(invocation.data) as store:

        def start_one(uuid: str) -> None:
            with find_pod(invocation.data, uuid, invocation.note) as pod:
                _require_there(pod)
                if pod.state is PodState.RUNNING:
                    invocation.say(f'pod "{pod.uuid}" is already running')
                else:
                    invocation.say(start_again(invocation.caller, store, pod))

        for_each(invocation, uuids, start_one, "failed to start one or more pods")


@click.command(cls=MinitCommand)
@timeout_option
@filter_option(Subject.PODS, help_text="All running pods that fit")
@some_or_all_pods("running pods")
@click.pass_obj
def restart(
    invocation: Invocation, timeout: float | None, filters: tuple[Filter, ...], every: bool, uuids: tuple[str, ...]
) -> None:
    """
    A pod that has ended is only started. A pod that cannot start again is not stopped.

    \b
      minit restart web
      minit restart --time=5 2d381b2a 6a9c
      minit restart --all

    """
    invocation.become_root(in_scope=True)
    check_kernel()
    with Store(invocation.data) as store:

        def restart_one(uuid: str) -> None:
            with find_pod(invocation.data, uuid, invocation.note) as pod:
                invocation.say(running.restart(invocation.caller, store, pod, timeout))

        names = pods_meant(invocation, uuids, filters, running_pods, every=every)
        for_each(invocation, names, restart_one, "failed to restart one or more pods")


@click.command(cls=MinitCommand)
@stage1_image_options
@quiet_option
@filter_option(Subject.PODS, help_text="All running pods that fit")
@some_or_all_pods("running pods of minit's stage1")
@click.pass_obj
def upgrade(
    invocation: Invocation,
    /,
    quiet: bool,
    filters: tuple[Filter, ...],
    every: bool,
    uuids: tuple[str, ...],
    **stage1: str | None,
) -> None:
    """
    The apps go on, and notice nothing. Each pod has a line with the version before and after. A pod that cannot go on
    in the new version stays as it is, and an upgrade that was interrupted is finished by another one.

    \b
      minit upgrade web
      minit upgrade --all
      minit upgrade --stage1-path=stage1.aci 2d381b2a 6a9c

    """
    invocation.become_root()
    with Store(invocation.data) as store, show_progress(invocation, quiet=quiet) as progress:
        upgrade_pod = running.upgrade(invocation.caller, store, stage1_request(**stage1), progress)

        def upgrade_one(name: str) -> None:
            uuid, versions = upgrade_pod(name)
            changed = "has this version already" if versions is None else f"{versions.before} -> {versions.after}"
            invocation.say(f'"{uuid}" {changed}')

        names = pods_meant(invocation, uuids, filters, running.upgradable_pods, every=every)
        for_each(invocation, names, upgrade_one, "failed to upgrade one or more pods")


def _start_in_foreground(invocation: Invocation, uuids: tuple[str, ...]) -> NoReturn:
    if len(uuids) != 1:
        raise click.UsageError("--attach takes one pod")
    with Store(invocation.data) as store, find_pod(invocation.data, uuids[0], invocation.note) as pod:
        _require_there(pod)
        if pod.state is PodState.RUNNING:
            raise PodError(f'pod "{pod.uuid}" is already running')
        start_again(invocation.caller, store, pod, in_foreground=True)
    raise AssertionError("the process has become the pod's stage1")


def _require_there(pod: Pod) -> None:
    """Wait while somebody stops the pod; PodError for a pod of `--rm`, which is gone then."""
    if not await_stopping(pod):
        raise PodError(f'pod "{pod.uuid}" is gone: it was run with --rm, or removed meanwhile')


@click.command(cls=MinitCommand, stop_at_operand=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def unshare(invocation: Invocation, command: tuple[str, ...]) -> NoReturn:
    """
    For users without root: files of apps with other users belong to ids that only this namespace maps, and overlays
    are mounted in no other. Commands of minit work there as outside.

    
      minit unshare ls -l ~/.local/share/minit
      minit unshare

    """
    if not is_of_user():
        raise click.UsageError("root needs no namespace")
    invocation.become_root()
    words = command or (os.environ.get("SHELL") or "/bin/sh",)
    flush_output()
    os.execvp(words[0], words)
