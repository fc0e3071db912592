"""The command that starts pods again that have ended: start."""

from __future__ import annotations

from typing import NoReturn

import click

from minit.cli.commands.pods.endingcommands import cleanup_of
from minit.cli.commands.pods.stopcommand import for_each
from minit.cli.commands.run.podstart import start_in_background
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation, flush_output
from minit.cli.uuidfile import some_pods
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Pod, PodState, find_pod
from minit.stage0.start.newpod import check_kernel
from minit.stage0.start.startagain import claim_ended, clear_last_run, is_interactive, run_again


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
                    _start(invocation, store, pod)

        for_each(invocation, uuids, start_one, "failed to start one or more pods")


def _start(invocation: Invocation, store: Store, pod: Pod) -> None:
    arguments = claim_ended(pod)
    with cleanup_of(invocation, store) as cleanup:
        clear_last_run(pod, cleanup, invocation.note)

    def run() -> NoReturn:
        run_again(pod, TreeStore(invocation.data, store), arguments, flush_output, invocation.note)

    if is_interactive(arguments):
        run()
    uuid = pod.uuid
    start_in_background(invocation, pod, run)
    invocation.say(uuid)
