"""The commands that kill or remove pods, or what they have beside their files: rm, kill, release, gc."""

from __future__ import annotations

import click

from minit.base.errors import EXIT_FAILURE
from minit.base.signals import parse_signal
from minit.cli.commands.podcommands import for_each, pods_meant
from minit.cli.flags.filters import Filter, Subject, filter_option
from minit.cli.flags.sharedoptions import apps_option, read_duration
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import some_or_all_pods, some_pods
from minit.pods import apps as pods_of_apps
from minit.pods import ending
from minit.pods.ending import cleanup_of
from minit.pods.stopping import removable_pods, running_pods
from minit.stage0.garbage import podgc as collection
from minit.stage0.images.store import Store
from minit.stage0.pods.poddirectory import find_pod


@click.command("rm", cls=MinitCommand)
@click.option("-f", "--force", is_flag=True, help="Stop pods that run, as `minit stop` does, and remove them then.")
@filter_option(Subject.PODS, help_text="All pods that fit")
@some_or_all_pods("pods")
@click.pass_obj
def remove(
    invocation: Invocation, force: bool, filters: tuple[Filter, ...], every: bool, uuids: tuple[str, ...]
) -> None:
    """
    \b
      minit rm 2d381b2a
      minit rm --uuid-file=pod.uuid
      minit rm --force web
      minit rm --all
      minit rm --filter=status=exited --filter=until=24h

    """
    invocation.become_root()
    with Store(invocation.data) as store, cleanup_of(invocation.caller, store) as cleanup:

        def remove_one(uuid: str) -> None:
            removed = ending.remove(invocation.caller, cleanup, uuid, force=force)
            invocation.say(f'"{removed}"')

        names = pods_meant(invocation, uuids, filters, removable_pods, every=every)
        for_each(invocation, names, remove_one, "failed to remove one or more pods")


def _read_signal(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return parse_signal(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}: expected a name as in signal(7), or a number", ctx, parameter) from error


@click.command(cls=MinitCommand)
@click.option(
    "-s",
    "--signal",
    "number",
    metavar="SIGNAL",
    default="KILL",
    callback=_read_signal,
    help="A name, with or without SIG, or a number.  [default: KILL]",
)
@apps_option
@some_or_all_pods("running pods")
@click.pass_obj
def kill(invocation: Invocation, number: int, apps: tuple[str, ...], every: bool, uuids: tuple[str, ...]) -> None:
    """
    Each app's main process gets the signal. KILL without --app kills whole pods, as stop --force does.

    \b
      minit kill web
      minit kill --signal=HUP --app=nginx web

    """
    invocation.become_root()

    def kill_one(uuid: str) -> None:
        with find_pod(invocation.data, uuid, invocation.note) as pod:
            pods_of_apps.kill(pod, number, apps)
            invocation.say(f'"{pod.uuid}"')

    names = running_pods(invocation.caller) if every else uuids
    for_each(invocation, names, kill_one, "failed to kill one or more pods")


@click.command(cls=MinitCommand)
@click.option("--force", is_flag=True, help="Kill pods that run, as `minit stop --force` does.")
@some_pods
@click.pass_obj
def release(invocation: Invocation, force: bool, uuids: tuple[str, ...]) -> None:
    """
    The pods stay, with their files and logs. What was given back already is no error.

    
      minit release 2d381b2a
      minit release --force web

    """
    invocation.become_root()
    with Store(invocation.data) as store, cleanup_of(invocation.caller, store) as cleanup:

        def release_one(uuid: str) -> None:
            released = ending.release(invocation.caller, cleanup, uuid, force=force)
            invocation.say(f'"{released}"')

        for_each(invocation, uuids, release_one, "failed to release one or more pods")


@click.command(cls=MinitCommand)
@click.option(
    "--grace-period",
    metavar="DURATION",
    callback=read_duration,
    default="30m",
    help="How long pods that exited are kept after gc first saw them.  [default: 30m]",
)
@click.option(
    "--expire-prepared",
    metavar="DURATION",
    callback=read_duration,
    default="24h",
    help="How long prepared pods are kept that nobody runs.  [default: 24h]",
)
@click.option("--mark-only", is_flag=True, help="Only mark pods to be removed by a later gc.")
@click.pass_obj
def gc(invocation: Invocation, grace_period: float, expire_prepared: float, mark_only: bool) -> None:
    """
    \b
      minit gc
      minit gc --grace-period=0s

    """
    invocation.become_root()
    with Store(invocation.data) as store:
        collection.mark(invocation.data, invocation.note)
        if mark_only:
            return
        collection.expire_prepared(invocation.data, expire_prepared, invocation.note)
        with cleanup_of(invocation.caller, store) as cleanup:
            # rkt's gc never fails because of single pods, but neither does it leave one for this reason.
            if not collection.collect(invocation.data, grace_period, cleanup, invocation.say, invocation.note):
                raise click.exceptions.Exit(EXIT_FAILURE)
