"""The commands on pods: list, status, cat-manifest, port, rename, stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import click

from minit import __version__
from minit.base import jsontext
from minit.base.errors import MinitError, PodError, describe
from minit.base.goflags import BOOLEANS
from minit.cli.flags.filters import Filter, Listed, Subject, chosen, filter_option, listed_pod
from minit.cli.flags.sharedoptions import no_legend_option, pretty_print_option, read_duration, timeout_option
from minit.cli.grammar import MinitCommand, OptionalValue
from minit.cli.invocation import Invocation
from minit.cli.text.formats import format_option, json_text
from minit.cli.text.podtext import OwnFacts, host_place, list_text, pod_json, pod_place, port_json, status_text
from minit.cli.uuidfile import one_pod, some_or_all_pods, uuid_file_first_option
from minit.manifest.names import version_numbers
from minit.pods.caller import Caller
from minit.pods.stopping import Ending, await_end, begin_to_stop, running_pods
from minit.stage0.pods.exposedports import ForwardedPort, forwarded_ports
from minit.stage0.pods.poddirectory import (
    ADDRESSABLE_PLACES,
    DELETED_STATES,
    Pod,
    PodState,
    find_pod,
    name_pod,
    walk_pods,
)
from minit.stage0.pods.podstatus import (
    PodStatus,
    read_manifest_bytes,
    read_pod_manifest,
    read_pod_status,
)
from minit.stage0.pods.waiting import wait_until_ended, wait_until_ready
from minit.stage0.reports.podtraces import count_errors, count_restarts, read_end
from minit.stage0.stage1.calls import read_live

Record = dict[str, object]

_UNREADABLE_UUID_FILE = 1  # rkt's exit code for it in status

T = TypeVar("T")


def read_wait(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """
    Return how long to wait in seconds; a callback of options.

    Infinite for `true` and negative durations, None not to wait at all.
    """
    if value is None:
        return None
    # First of all a boolean, so that 1 means for ever, as in rkt.
    seconds = (-1.0 if BOOLEANS[value] else 0.0) if value in BOOLEANS else read_duration(ctx, parameter, value)
    return math.inf if seconds < 0 else seconds or None


@click.command("list", cls=MinitCommand)
@click.option("--full", is_flag=True, help="Show whole UUIDs, image ids and points in time.")
@click.option("-q", "--quiet", is_flag=True, help="Show the UUIDs alone.")
@filter_option(Subject.PODS, "-f")
@no_legend_option
@format_option
@click.pass_obj
def list_pods(
    invocation: Invocation,
    full: bool,
    quiet: bool,
    filters: tuple[Filter, ...],
    no_legend: bool,
    output_format: str | None,
) -> None:
    """
    \b
      minit list
      minit list --full --no-legend
      minit list --filter=status=running --filter=label=tier=web
      minit list --format=json-pretty
      minit rm $(minit list --quiet)

    """
    if quiet and output_format is not None:
        raise click.UsageError("--quiet and --format exclude each other")
    statuses, own = [], {}
    is_asked = _is_always if _asks_for_health(filters) else _is_in_crash_loop
    for pod in walk_pods(invocation.data, ADDRESSABLE_PLACES, invocation.note):
        try:
            status = read_pod_status(pod)
            facts = _own_facts(invocation, pod, status, is_asked)
        except (OSError, MinitError) as error:
            if pod.refresh() and pod.state not in DELETED_STATES:  # else somebody is deleting it
                invocation.note(f'skipping pod "{pod.uuid}": {describe(error)}')
            continue
        if output_format is not None and status.created_ns is None:
            invocation.note(f'skipping pod "{pod.uuid}": it is {status.state} and has no creation time')
            continue
        statuses.append(status)
        own[status.uuid] = facts
    statuses = chosen(filters, statuses, lambda status: listed_pod(status, _health(own[status.uuid])))
    if quiet:
        for status in statuses:
            invocation.say(status.uuid)
    elif output_format is not None:
        # No pods are null to Go, and so to the readers of this output.
        shown = [pod_json(status, own[status.uuid]) for status in statuses]
        invocation.say(json_text(shown or None, output_format))
    else:
        width = invocation.terminal_width
        text = list_text(statuses, time.time_ns(), full=full, legend=not no_legend, width=width, own=own)
        invocation.say(text, end="")


@click.command(cls=MinitCommand)
@click.option(
    "--wait", cls=OptionalValue, bare="true", metavar="DURATION", callback=read_wait, help="Wait until the pod exited."
)
@click.option(
    "--wait-ready",
    cls=OptionalValue,
    bare="true",
    metavar="DURATION",
    callback=read_wait,
    help="Wait until the pod is ready.",
)
@format_option
@one_pod(exit_code=_UNREADABLE_UUID_FILE)
@click.pass_obj
def status(
    invocation: Invocation,
    wait: float | None,
    wait_ready: float | None,
    output_format: str | None,
    uuid: str,
) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit status 2d381b2a
      minit status --wait-ready=30s --uuid-file=pod.uuid
      minit status --wait --format=json 2d381b2a

    """
    if wait is not None and wait_ready is not None:
        raise click.UsageError("--wait and --wait-ready exclude each other")
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        if wait is not None:
            wait_until_ended(pod, wait)
        if wait_ready is not None:
            wait_until_ready(pod, wait_ready)
        if not pod.refresh():
            raise PodError(f'pod "{pod.uuid}" was removed meanwhile')
        shown = read_pod_status(pod)
        # The text asks PID 1 only if an app has ended that may be started again.
        own = _own_facts(invocation, pod, shown, lambda end, restarts: output_format is not None or "finished" in end)
    if output_format is not None:
        invocation.say(json_text(pod_json(shown, own), output_format))
    else:
        invocation.say(status_text(shown, own), end="")


def _is_in_crash_loop(end: Record, restarts: int) -> bool:
    """Tell whether an app may wait for another start: an app that runs again has begun more often."""
    return "finished" in end and restarts > 0 and restarts == end.get("restarts")


def _asks_for_health(filters: Sequence[Filter]) -> bool:
    return any("health" in each.key.words for each in filters)


def _is_always(end: Record, restarts: int) -> bool:
    return True


def _health(facts: OwnFacts) -> str:
    """Return the word for the results of the checks of a pod's apps, nothing without results."""
    checks = [each for fields in facts.fields.values() if isinstance(each := fields.get("health"), Mapping)]
    results = [result["healthy"] for check in checks for result in check.values()]
    return "" if not results else "healthy" if all(results) else "unhealthy"


def pods_meant(
    invocation: Invocation,
    uuids: Sequence[str],
    filters: Sequence[Filter],
    candidates: Callable[[Caller], list[str]],
    *,
    every: bool,
) -> Sequence[str]:
    """Return the operands of a command, or with --all or filters the candidates that fit."""
    if not every and not filters:
        return uuids
    found = candidates(invocation.caller)
    if not filters:
        return found
    things: list[tuple[str, Listed]] = []
    for pod in walk_pods(invocation.data, ADDRESSABLE_PLACES, invocation.note):
        try:
            shown = read_pod_status(pod)
            health = _health(_own_facts(invocation, pod, shown, _is_always)) if _asks_for_health(filters) else ""
            things.append((pod.uuid, listed_pod(shown, health)))
        except (OSError, MinitError) as error:
            if pod.refresh() and pod.state not in DELETED_STATES:
                invocation.note(f'skipping pod "{pod.uuid}": {describe(error)}')
    fitting = {uuid for uuid, _ in chosen(filters, things, lambda thing: thing[1])}
    return [uuid for uuid in found if uuid in fitting]


def _own_facts(invocation: Invocation, pod: Pod, shown: PodStatus, is_asked: Callable[[Record, int], bool]) -> OwnFacts:
    """Return minit's own facts about a pod: PID 1 is asked if `is_asked` of an app's record and of its restarts."""
    ends = {app.name: read_end(pod, app.name) or {} for app in shown.apps}
    restarts = {name: count_restarts(pod, name, end) for name, end in ends.items()}
    fields = {name: _recorded(end, restarts[name]) for name, end in ends.items()}
    if shown.state is not PodState.RUNNING:
        return OwnFacts(fields=fields, errors=count_errors(pod))
    if any(is_asked(end, restarts[name]) for name, end in ends.items()):
        live = _live(invocation, pod)
        fields = {name: {**found, **live.get(name, {})} for name, found in fields.items()}
    return OwnFacts(
        fields=fields,
        ports=_ports(invocation, pod),
        errors=count_errors(pod),
        is_behind=is_older(shown.version, __version__),
    )


def is_older(version: str | None, other: str) -> bool:
    """Tell whether a version is older than another one; False for versions that are not numbers and dots."""
    try:
        return version is not None and version_numbers(version) < version_numbers(other)
    except ValueError:
        return False


def _recorded(end: Record, restarts: int) -> dict[str, object]:
    """Return the facts in the record of an app's end beyond rkt's status."""
    found: dict[str, object] = {}
    if isinstance(end.get("lost_output_bytes"), int):
        found["lost_output_bytes"] = end["lost_output_bytes"]
    if restarts:
        found["restarts"] = restarts
        if "end" in end:
            found["end"] = end["end"]
    return found


def _ports(invocation: Invocation, pod: Pod) -> tuple[ForwardedPort, ...]:
    try:
        return forwarded_ports(read_pod_manifest(pod))
    except MinitError as error:
        invocation.note(f'warning: the ports of pod "{pod.uuid}" are not known: {describe(error)}')
        return ()


def _live(invocation: Invocation, pod: Pod) -> dict[str, dict[str, object]]:
    try:
        invocation.become_root()
        return read_live(pod)
    except MinitError as error:
        # It is just starting or ending, or it hangs: what the files say is true all the same.
        invocation.note(f"warning: nothing is known about what its apps do: {describe(error)}")
        return {}


@click.command("cat-manifest", cls=MinitCommand)
@pretty_print_option
@one_pod()
@click.pass_obj
def cat_manifest(invocation: Invocation, pretty_print: bool, uuid: str) -> None:
    """
    \b
      minit cat-manifest 2d381b2a

    """
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        manifest = jsontext.parse(read_manifest_bytes(pod), f'pod "{pod.uuid}"')
    invocation.say(json_text(manifest, "json-pretty" if pretty_print else "json"))


@click.command(cls=MinitCommand)
@format_option
@click.argument("uuid", metavar="UUID")
@click.argument("port", metavar="[PORT[/PROTOCOL]|NAME]", required=False)
@click.pass_obj
def port(invocation: Invocation, output_format: str | None, uuid: str, port: str | None) -> None:
    """
    \b
      minit port 2d381b2a
      minit port web 80/tcp

    """
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        if pod.state is not PodState.RUNNING:
            raise PodError(f'pod "{pod.uuid}" is {pod.state}: ports lead to running pods')
        ports = forwarded_ports(read_pod_manifest(pod))
    if port is not None:
        ports = tuple(each for each in ports if port in _words(each))
        if not ports:
            raise PodError(f'no port of the host leads to port "{port}" of the pod')
    if output_format is not None:
        invocation.say(json_text([port_json(each) for each in ports], output_format))
        return
    for each in ports:
        place = host_place(each)
        invocation.say(place if port is not None else f"{pod_place(each)} -> {place}")


def _words(each: ForwardedPort) -> tuple[str, ...]:
    """Return the words by which a user may ask for a port."""
    number = str(each.pod_port)
    return each.name, f"{number}/{each.protocol}", *((number,) if each.protocol == "tcp" else ())


@click.command(cls=MinitCommand)
@uuid_file_first_option
@click.argument("words", metavar="UUID NAME", nargs=-1)
@click.pass_obj
def rename(invocation: Invocation, words: tuple[str, ...]) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's present name. All commands take the name
    in the place of the UUID. It is the pod's alone until the pod is removed.

    \b
      minit rename 2d381b2a web
      minit rename web web-old

    """
    invocation.become_root()
    if len(words) != 2:
        raise click.UsageError("must provide the pod's UUID and its new name")
    uuid, name = words
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        name_pod(pod, name)


@click.command(cls=MinitCommand)
@click.option("-f", "--force", is_flag=True, help="Kill the pod instead of letting its apps end.")
@timeout_option
@click.option(
    "--wait",
    cls=OptionalValue,
    bare="true",
    metavar="DURATION",
    default="true",
    callback=read_wait,
    help="Wait until the pods ended, at most so long.  [default: as long as it takes]",
)
@click.option("--no-wait", is_flag=True, help="Return as soon as the pods are asked to end.")
@filter_option(Subject.PODS, help_text="All running pods that fit")
@some_or_all_pods("running pods")
@click.pass_obj
def stop(
    invocation: Invocation,
    force: bool,
    timeout: float | None,
    wait: float | None,
    no_wait: bool,
    filters: tuple[Filter, ...],
    every: bool,
    uuids: tuple[str, ...],
) -> None:
    """
    Returns when they have ended, and a pod of run --rm is gone.

    \b
      minit stop 2d381b2a 6a9c
      minit stop --time=5 web
      minit stop --all
      minit stop --filter=label=tier=web
      minit stop --force --uuid-file=pod.uuid

    """
    if no_wait and timeout:
        raise click.UsageError("--time needs the wait that --no-wait leaves out")
    invocation.become_root()
    meant = pods_meant(invocation, uuids, filters, running_pods, every=every)
    with ExitStack() as stack:
        asked: list[Ending] = []

        def stop_one(uuid: str) -> None:
            pod = stack.enter_context(find_pod(invocation.data, uuid, invocation.note))
            ending = begin_to_stop(pod, force=force, grace_seconds=timeout)
            if ending is None:
                invocation.say(f'pod "{pod.uuid}" is already stopped')
            elif no_wait or wait is None:
                invocation.say(f'"{pod.uuid}"')
            else:
                asked.append(ending)

        def await_one(ending: Ending) -> None:
            await_end(ending, wait or 0)
            invocation.say(f'"{ending.pod.uuid}"')

        failed = _try_each(invocation, meant, stop_one)
        # All pods end at the same time.
        failed |= _try_each(invocation, asked, await_one)
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
