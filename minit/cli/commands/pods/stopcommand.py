"""The command that stops pods: stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TypeVar

import click

from minit.base.errors import MinitError, PodError, describe
from minit.cli.commands.pods.podcommands import read_wait
from minit.cli.grammar import MinitCommand, OptionalValue
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import some_pods
from minit.stage0.pods.poddirectory import Pod, find_pod
from minit.stage0.pods.podwaiting import wait_until_ended
from minit.stage0.stage1.calls import stop_pod

T = TypeVar("T")


@click.command(cls=MinitCommand)
@click.option("--force", is_flag=True, help="Kill the pod instead of letting its apps end.")
@click.option(
    "--wait", cls=OptionalValue, bare="true", metavar="DURATION", callback=read_wait, help="Wait until the pods ended."
)
@some_pods
@click.pass_obj
def stop(invocation: Invocation, force: bool, wait: float | None, uuids: tuple[str, ...]) -> None:
    """
    Returns at once, or with --wait when they have ended.

    \b
      minit stop 2d381b2a 6a9c
      minit stop --wait web
      minit stop --force --uuid-file=pod.uuid

    """
    with ExitStack() as stack:
        asked: list[Pod] = []

        def stop_one(uuid: str) -> None:
            pod = stack.enter_context(find_pod(invocation.data, uuid, invocation.note))
            if stop_pod(pod, force=force):
                invocation.say(f'"{pod.uuid}"')
                asked.append(pod)
            else:
                invocation.say(f'pod "{pod.uuid}" is already stopped')

        failed = _try_each(invocation, uuids, stop_one)
        if wait is not None:
            # All of them end at the same time.
            failed |= _try_each(invocation, asked, lambda pod: wait_until_ended(pod, wait))
    if failed:
        raise PodError("failed to stop one or more pods")


def for_each(invocation: Invocation, names: Iterable[str], action: Callable[[str], None], failure: str) -> None:
    """Act on each of several things, telling the failures; PodError with `failure` at the end if there were any."""
    if _try_each(invocation, names, action):
        raise PodError(failure)


def _try_each(invocation: Invocation, pods: Iterable[T], action: Callable[[T], None]) -> bool:
    """Act on each pod, telling the failures, and return whether there were any."""
    failed = False
    for pod in pods:
        try:
            action(pod)
        except (OSError, MinitError) as error:
            invocation.note(describe(error))
            failed = True
    return failed
