"""The command that starts pods again that have ended: start."""

from __future__ import annotations

import click

from minit.cli.commands.pods.stopcommand import for_each
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import some_pods
from minit.pods.running import start_again
from minit.stage0.images.store import Store
from minit.stage0.pods.poddirectory import PodState, find_pod
from minit.stage0.start.newpod import check_kernel


@click.command(cls=MinitCommand)
@some_pods
@click.pass_obj
def start(invocation: Invocation, uuids: tuple[str, ...]) -> None:
    """
    A pod has the options of its last run, its UUID, name and volumes, and all that its apps have written. One with
    --interactive is run in the foreground.

    \b
      minit start web
      minit start 2d381b2a 6a9c

    """
    invocation.require_root()
    check_kernel()
    with Store(invocation.data) as store:

        def start_one(uuid: str) -> None:
            with find_pod(invocation.data, uuid, invocation.note) as pod:
                if pod.state is PodState.RUNNING:
                    invocation.say(f'pod "{pod.uuid}" is already running')
                else:
                    invocation.say(start_again(invocation.caller, store, pod))

        for_each(invocation, uuids, start_one, "failed to start one or more pods")
