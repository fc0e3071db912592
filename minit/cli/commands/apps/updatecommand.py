"""The command app update: other limits of an app while its pod runs."""

from __future__ import annotations

import click

from minit.base.errors import ManifestError
from minit.cli.commands.apps.appcommands import app_of_pod
from minit.cli.flags.isolatorflags import parse_cpu, parse_memory
from minit.cli.flags.scalars import parse_number
from minit.cli.flagwords import FlagError
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import uuid_file_first_option
from minit.manifest.limits import (
    BILLION,
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    MIN_MICROSECONDS,
    PERIOD_MICROSECONDS,
    CpuQuota,
    Limits,
    parse_quantity,
    with_annotation,
)
from minit.pods import apps


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App whose limits are changed.")
@click.option("--memory", metavar="BYTES", help="The most memory, as in 64M.")
@click.option("--cpu", metavar="N", help="The most processor time, in processors, as in 1.5 or 500m.")
@click.option("--cpu-shares", metavar="SHARES", help="The weight against other apps, 2 to 262144; 1024 without one.")
@click.option("--limits", metavar="JSON", help="Further limits, in the words of the annotation minit/limits.")
@uuid_file_first_option
@click.argument("uuid", metavar="UUID", required=False)
@click.pass_obj
def update(
    invocation: Invocation,
    uuid: str | None,
    app: str | None,
    memory: str | None,
    cpu: str | None,
    cpu_shares: str | None,
    limits: str | None,
) -> None:
    """
    Limits that are not given stay. If one cannot be set, all stay as they were. They count as long as the pod runs.

    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app update --app=web --memory=256M --cpu=1.5 2d381b2a
      minit app update --app=web --limits='{"cpus": "0-1"}' 2d381b2a

    """
    try:
        wanted = _read_limits(memory, cpu, cpu_shares, limits)
    except (FlagError, ManifestError) as error:
        raise click.UsageError(str(error)) from error
    if wanted == Limits():
        raise click.UsageError("must provide a limit, as with --memory=256M")
    with app_of_pod(invocation, uuid, app, "update") as (pod, name):
        apps.update(pod, name, wanted)


def _read_limits(memory: str | None, cpu: str | None, cpu_shares: str | None, further: str | None) -> Limits:
    quota = shares = memory_bytes = None
    if memory is not None:
        parse_memory("--memory", memory)
        memory_bytes = -(-parse_quantity(memory) // BILLION)
    if cpu is not None:
        parse_cpu("--cpu", cpu)
        microseconds = -(-parse_quantity(cpu) * PERIOD_MICROSECONDS // BILLION)
        quota = CpuQuota(quota=max(microseconds, MIN_MICROSECONDS))
    if cpu_shares is not None:
        shares = parse_number("--cpu-shares", cpu_shares, MIN_CPU_SHARES, MAX_CPU_SHARES)
    return with_annotation(Limits(memory_bytes=memory_bytes, cpu_quota=quota, cpu_shares=shares), further, "--limits")
