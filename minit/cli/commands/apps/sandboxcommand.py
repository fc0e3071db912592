"""The command that makes a pod without apps: app sandbox."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from minit.base.errors import MinitError
from minit.cli.commandgroups import APP_COMMANDS
from minit.cli.commands.apps.appviewcommands import failed_in_app_group
from minit.cli.commands.run.podrequest import refuse_ports, run_options, sandbox_request
from minit.cli.commands.run.runcommands import save_uuid, start_pod
from minit.cli.flags.runoptions import (
    background_options,
    ipc_option,
    name_options,
    pid_option,
    required_network_option,
    stage1_options,
    uuid_file_save_option,
    volume_option,
)
from minit.cli.grammar import MinitCommand, invocation_of
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.pods.preparing import prepare
from minit.pods.requests import StartRequest
from minit.stage0.images.store import Store


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
    invocation.require_root()
    how = StartRequest(options=run_options(**options, mutable=True), is_detached=detach, is_removed=removed)
    refuse_ports(options["net"], options["port"])
    request = sandbox_request(**options)
    with Store(invocation.data) as store:
        with show_progress(invocation, quiet=False) as progress:
            pod = prepare(invocation.caller, store, request, progress, partial(save_uuid, uuid_file_save))
        start_pod(invocation, store, pod, how)
