"""The command that shows the resource use of apps: app stats."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import click

from minit.base import jsontext
from minit.base.errors import MinitError, PodError, describe
from minit.cli.flags.sharedoptions import apps_option, read_duration
from minit.cli.grammar import MinitCommand, OptionalValue
from minit.cli.invocation import Invocation
from minit.cli.text.usagetext import prometheus_text, samples_text, stats_json
from minit.cli.uuidfile import uuid_file_first_option
from minit.pods.stopping import running_pods
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.reports.stats import PodMeter, PodSample

_MIN_INTERVAL_SECONDS = 0.1
_FIRST_LOOK_SECONDS = 0.2
_FORMATS = ("text", "json", "prometheus")


def read_interval(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return a Go duration in seconds that is long enough to look again after it; a callback of options."""
    if value is None:
        return None
    seconds = read_duration(ctx, parameter, value)
    if seconds < _MIN_INTERVAL_SECONDS:
        raise click.BadParameter(f'expected at least {_MIN_INTERVAL_SECONDS} s, got "{value}"', ctx, parameter)
    return seconds


@click.command("stats", cls=MinitCommand)
@apps_option
@click.option(
    "--watch",
    cls=OptionalValue,
    bare="2s",
    metavar="INTERVAL",
    callback=read_interval,
    help="Show it again and again until the pods have ended, every 2 seconds without a value.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    default="text",
    help="Text, one JSON object a pod and line, or what Prometheus reads.  [default: text]",
)
@click.option("--full", "--no-trunc", is_flag=True, help="Show whole UUIDs and all columns, however wide the terminal.")
@click.option("--no-stream", is_flag=True, help="Show it once, as without --watch.")
@uuid_file_first_option
@click.argument("uuids", metavar="[UUID...]", nargs=-1)
@click.pass_obj
def stats(
    invocation: Invocation,
    apps: tuple[str, ...],
    watch: float | None,
    output_format: str,
    full: bool,
    no_stream: bool,
    uuids: tuple[str, ...],
) -> None:
    """
    Without a UUID it is about all running pods. Numbers that the machine does not count are dashes, or left out of
    JSON. A narrow terminal lacks some columns.

    \b
      minit stats
      minit stats --watch=5s --format=json 2d381b2a
      minit app stats --format=prometheus > /var/lib/node-exporter/minit.prom

    """
    if watch is not None and output_format == "prometheus":
        raise click.UsageError("--watch is not for --format=prometheus: whoever collects asks again")
    if watch is not None and no_stream:
        raise click.UsageError("--watch and --no-stream exclude each other")
    with ExitStack() as stack:
        meters = [stack.enter_context(meter) for meter in _meters(invocation, stack, uuids, apps)]
        _show(invocation, meters, watch, output_format, named=bool(uuids), whole=not apps, full=full)


def _meters(
    invocation: Invocation, stack: ExitStack, uuids: tuple[str, ...], apps: tuple[str, ...]
) -> Iterator[PodMeter]:
    """Yield a meter for each chosen pod."""
    for uuid in uuids:
        yield PodMeter(stack.enter_context(find_pod(invocation.data, uuid, invocation.note)), apps)
    if uuids:
        return
    for running in running_pods(invocation.caller):
        try:
            pod = stack.enter_context(find_pod(invocation.data, running, invocation.note))
            yield PodMeter(pod, apps)
        except (OSError, MinitError) as error:
            invocation.note(f'skipping pod "{running}": {describe(error)}')


def _show(
    invocation: Invocation,
    meters: list[PodMeter],
    watch: float | None,
    output_format: str,
    *,
    named: bool,
    whole: bool,
    full: bool,
) -> None:
    before: dict[str, PodSample] = {}
    if output_format == "text" and (first := _read(invocation, meters, named=named)):
        # The use of processors is that of a time.
        before = {sample.uuid: sample for sample in first}
        time.sleep(_FIRST_LOOK_SECONDS)
    is_first = True
    while True:
        samples = _read(invocation, meters, named=named)
        if is_first and named and not samples:
            raise PodError("the pod has ended meanwhile")
        if output_format == "text" and samples and not is_first:
            invocation.say("")
        invocation.say(_text(invocation, samples, before, output_format, whole=whole, full=full), end="")
        sys.stdout.flush()
        if watch is None or not samples:
            return
        before = {sample.uuid: sample for sample in samples}
        meters = [meter for meter in meters if meter.pod.uuid in before]
        is_first = False
        time.sleep(watch)


def _read(invocation: Invocation, meters: list[PodMeter], *, named: bool) -> list[PodSample]:
    samples = []
    for meter in meters:
        try:
            sample = meter.read()
        except (OSError, MinitError) as error:
            if named:
                raise
            invocation.note(f'skipping pod "{meter.pod.uuid}": {describe(error)}')
            continue
        if sample is not None:
            samples.append(sample)
    return samples


def _text(
    invocation: Invocation,
    samples: list[PodSample],
    before: dict[str, PodSample],
    output_format: str,
    *,
    whole: bool,
    full: bool,
) -> str:
    if output_format == "json":
        return "".join(f"{jsontext.dump(stats_json(sample)).decode('ascii')}\n" for sample in samples)
    if output_format == "prometheus":
        return prometheus_text(samples)
    return samples_text(samples, before, whole=whole, width=invocation.terminal_width, full=full) if samples else ""
