"""The command that serves the Container Runtime Interface: cri."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from typing import NoReturn

import click

from minit.base import jsontext
from minit.cli.flags.sharedoptions import stage1_path_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.linux.stdio import flush_output
from minit.podfiles.networkfiles import CNI_DIRECTORY
from minit.stage0.devices import CDI_DIRECTORIES

_SCHEME = "unix://"
_HANDLER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

_PLAIN = "-plain"


def _read_address(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise click.BadParameter(f'expected an IP address, got "{value}"', ctx, parameter) from error


def _read_handlers(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    for value in values:
        if not _HANDLER.fullmatch(value):
            message = f'expected a name that Kubernetes allows, up to 63 of a-z, 0-9 and -, got "{value}"'
            raise click.BadParameter(message, ctx, parameter)
    return list(dict.fromkeys(values))


@click.command(cls=MinitCommand)
@click.option(
    "--listen",
    metavar="unix://PATH",
    default="unix:///run/minit/cri.sock",
    show_default=True,
    help="The socket to serve at, which is root's alone.",
)
@click.option(
    "--net",
    metavar="NAME",
    help=f"Network of the sandboxes.  [default: the first one of {CNI_DIRECTORY}, else the default network]",
)
@click.option(
    "--wait-for-cni",
    is_flag=True,
    help=f"Have no network, and say so to the kubelet, until {CNI_DIRECTORY} has one: for a node of a cluster.",
)
@click.option(
    "--stream-address",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    callback=_read_address,
    help="Where streams of commands, containers and ports are served, for a kubelet on this host.",
)
@click.option(
    "--stream-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port there.  [default: any that is free]",
)
@click.option(
    "--cdi-spec-dir",
    metavar="DIR",
    multiple=True,
    default=CDI_DIRECTORIES,
    show_default=True,
    help="Directory with files of the Container Device Interface; repeatable, the last one counts most.",
)
@click.option(
    "--runtime-handler",
    metavar="NAME",
    multiple=True,
    callback=_read_handlers,
    help="Handler of RuntimeClasses that means minit itself; repeatable.  [default: only the one without a name]",
)
@stage1_path_option
@click.pass_obj
def cri(
    invocation: Invocation,
    listen: str,
    net: str | None,
    wait_for_cni: bool,
    stream_address: str,
    stream_port: int,
    cdi_spec_dir: tuple[str, ...],
    runtime_handler: list[str],
    stage1_path: str | None,
) -> NoReturn:
    """
    Sandboxes are pods of the data directory, which should be one of their own. They go on when this ends, and are found
    again by the next one.

    \b
      minit --dir=/var/lib/minit-cri cri --listen=unix:///run/minit/cri.sock

    """
    invocation.require_root()
    if invocation.insecure:
        raise click.UsageError(
            "--insecure-options: a node has none; registries without TLS are named in registries.conf"
        )
    if not listen.startswith(f"{_SCHEME}/"):
        raise click.UsageError(f'--listen: expected unix://PATH with an absolute path, got "{listen}"')
    if net is not None and wait_for_cni:
        raise click.UsageError("--wait-for-cni: --net names the network already")
    settings = {
        "data": str(invocation.data),
        "socket": listen.removeprefix(_SCHEME),
        "stream_address": stream_address,
        "stream_port": stream_port,
        "cdi_directories": [os.path.abspath(directory) for directory in cdi_spec_dir],
        "runtime_handlers": runtime_handler,
        "program": own_command(),
        "local_config": invocation.local_config,
        "system_config": invocation.system_config,
        "network": net,
        "waits_for_cni": wait_for_cni,
        "stage1_path": None if stage1_path is None else os.path.abspath(stage1_path),
    }
    flush_output()
    # With packages of its own, that no other command needs.
    daemon = _own_module("minit.cri")
    os.execv(daemon[0], [*daemon, jsontext.dump(settings).decode()])


def own_command() -> list[str]:
    """Return the words by which another process is this command."""
    program = sys.argv[0]
    # An interpreter that runs this module has no command of its own.
    return [sys.executable, "-m", "minit"] if program.endswith(".py") else [program.removesuffix(_PLAIN)]


def _own_module(name: str) -> list[str]:
    """
    Return the words by which an interpreter runs a module, from where this one has its modules and nowhere else.

    Python's `-m` would look into the working directory first, and not where the Debian package has them.
    """
    run = f"import runpy, sys; sys.path[:] = {sys.path!r}; runpy.run_module({name!r}, None, '__main__', True)"
    return [sys.executable, "-I", "-c", run]
