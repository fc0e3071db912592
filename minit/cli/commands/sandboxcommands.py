"""The commands that make a mutable pod and add apps: app sandbox, app add."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from minit.base.errors import MinitError
from minit.base.value import replace
from minit.cli.commandgroups import APP_COMMANDS
from minit.cli.commands.appviewcommands import failed_in_app_group
from minit.cli.commands.podrequest import refuse_ports, run_options, sandbox_request, variables_of_files
from minit.cli.commands.runcommands import save_uuid, start_pod
from minit.cli.flags.imageargs import IMAGES, ImageCommand
from minit.cli.flags.runoptions import (
    added_app_options,
    background_options,
    environment_file_option,
    ipc_option,
    name_options,
    pid_option,
    required_network_option,
    stage1_options,
    uuid_file_save_option,
    volume_option,
)
from minit.cli.flags.sharedoptions import pull_policy_option, quiet_option
from minit.cli.flagwords import Flag, FlagError, is_flag, take_flag
from minit.cli.grammar import MinitCommand, invocation_of
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.cli.uuidfile import uuid_file_first_option
from minit.pods import apps
from minit.pods.preparing import prepare
from minit.pods.requests import StartRequest
from minit.pods.running import options_for
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy
from minit.stage0.pods.poddirectory import find_pod


class _AddCommand(ImageCommand):
    """A command whose first operand is a pod, and all that follows as for images."""

    one_image = True

    def split(
        self, ctx: click.Context, arguments: Sequence[str], flags: dict[str, Flag]
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Leave the images in the context, and their names to click, after the UUID."""
        words = list(arguments)
        before: list[str] = []
        while words and is_flag(words[0]) and words[0] != "--":
            name, value = take_flag(words, flags)
            before.append(f"{name}={value}")
        if words and words[0] == "--":
            raise FlagError("must provide the pod UUID and an IMAGE")
        # In a file, else it is the first operand.
        uuid = [] if any(word.startswith("--uuid-file=") for word in before) else words[:1]
        del words[: len(uuid)]
        found, references = super().split(ctx, [*before, *words], flags)
        return found, [*uuid, *references]


@click.command(cls=_AddCommand, short_help=APP_COMMANDS["add"].help)
@added_app_options
@pull_policy_option(PullPolicy.NEW, "--pull")
@quiet_option
@environment_file_option
@uuid_file_first_option
@click.argument("uuid", metavar="UUID", required=False)
@click.argument("image", nargs=-1, metavar="IMAGE [APP-OPTION]... [-- ARG...]", expose_value=False, type=click.Path())
@click.pass_context
def add(ctx: click.Context, /, uuid: str | None, pull_policy: str, quiet: bool, set_env_file: tuple[Path, ...]) -> None:
    """
    Put an image as an app into a running pod made by `minit app sandbox`; `minit app start` starts it.

    IMAGE is what it is for `minit run`. All words after `--` replace the arguments of the image. If the app
    cannot be added, the pod is as it was before.

    \b
      minit app add 2d381b2a busybox.aci --name=shell --exec=/bin/sh -- -c 'sleep 60'
      minit app add 2d381b2a web.aci --mnt-volume=name=data,kind=host,source=/srv/data,target=/www

    """
    invocation = invocation_of(ctx)
    invocation.become_root()
    images = ctx.meta[IMAGES]
    if not uuid or not images:
        raise click.UsageError("must provide the pod UUID and an IMAGE")
    if len(images) > 1:
        raise click.UsageError("must give only one app")
    [chosen] = images
    try:
        from_file = variables_of_files(set_env_file)
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    with (
        find_pod(invocation.data, uuid, invocation.note) as pod,
        Store(invocation.data) as store,
        show_progress(invocation, quiet=quiet) as progress,
    ):
        request = replace(chosen, pull_policy=PullPolicy(pull_policy))
        apps.add(invocation.caller, pod, store, request, from_file, progress)


@click.command(cls=MinitCommand, short_help=APP_COMMANDS["sandbox"].help)
@stage1_options
@volume_option
@required_network_option
@name_options
@ipc_option
@pid_option
@click.option(
    "--port",
    metavar="NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT",
    multiple=True,
    help="Port of the host for a port of the pod; repeatable.",
)
@click.option("--annotation", metavar="NAME=VALUE", multiple=True, help="Annotation of the pod; repeatable.")
@click.option("--user-annotation", metavar="NAME=VALUE", multiple=True, help="User annotation of the pod; repeatable.")
@click.option("--user-label", metavar="NAME=VALUE", multiple=True, help="User label of the pod; repeatable.")
@uuid_file_save_option
@click.option("--name", help="Name of the pod, which commands take in the place of its UUID.")
@background_options
@click.pass_context
def sandbox(ctx: click.Context, /, uuid_file_save: Path | None, detach: bool, removed: bool, **options: Any) -> None:
    """
    Start a pod without apps, in the foreground, which runs until it is stopped.

    Apps are put into it with `minit app add`, and their output appears here. With --detach it only goes to their logs.

    \b
      minit app sandbox --uuid-file-save=uuid --net=default --port=http:tcp:80:0.0.0.0:8080
      uuid=$(minit app sandbox --detach)

    """
    invocation = invocation_of(ctx)
    try:
        _run_sandbox(invocation, uuid_file_save, options, detach=detach, removed=removed)
    except (MinitError, OSError) as error:
        failed_in_app_group(error)


def _run_sandbox(
    invocation: Invocation, uuid_file_save: Path | None, options: dict[str, Any], *, detach: bool, removed: bool
) -> None:
    invocation.become_root(in_scope=True)
    chosen = options_for(invocation.caller, run_options(**options, mutable=True))
    how = StartRequest(options=chosen, is_detached=detach, is_removed=removed)
    refuse_ports(options["net"], options["port"])
    request = sandbox_request(**options)
    with Store(invocation.data) as store:
        with show_progress(invocation, quiet=False) as progress:
            pod = prepare(invocation.caller, store, request, progress, partial(save_uuid, uuid_file_save))
        start_pod(invocation, store, pod, how)
