"""The command that connects the caller's terminal or streams to an app's: attach."""

from __future__ import annotations

import click

from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import uuid_file_first_option
from minit.linux.stdio import flush_output
from minit.stage0.apps.appattach import attach as attach_app
from minit.stage0.pods.poddirectory import find_pod

_SLOW_POLICIES = ("wait", "drop", "disconnect", "block")


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App to attach to, if the pod has several.")
@click.option(
    "--mode",
    metavar="MODE",
    default="auto",
    help="`auto` for all that is attachable, `list` to show what is, or names separated by commas: "
    "stdin, stdout, stderr; or tty, tty-in, tty-out.  [default: auto]",
)
@click.option(
    "--detach-keys",
    metavar="KEYS",
    help="What is typed to detach from a terminal: keys separated by commas, each a character or ctrl-CHARACTER; "
    "`none` for none.  [default: ctrl-p,ctrl-q]",
)
@click.option("--read-only", is_flag=True, help="Pass nothing on to the app, neither input nor the window's size.")
@click.option("--take-stdin", is_flag=True, help="Take the input over from the client that has it.")
@click.option("--no-replay", is_flag=True, help="Do not show what the app wrote last, before the attachment.")
@click.option(
    "--on-slow",
    type=click.Choice(_SLOW_POLICIES),
    help="What happens when output is not read as fast as the app writes: the app waits for a client that reads, the "
    "oldest is dropped, the client is disconnected, or the app waits for ever.  [default: wait]",
)
@uuid_file_first_option
@click.argument("uuid", metavar="UUID")
@click.pass_obj
def attach(
    invocation: Invocation,
    app: str | None,
    mode: str,
    detach_keys: str | None,
    read_only: bool,
    take_stdin: bool,
    no_replay: bool,
    on_slow: str | None,
    uuid: str,
) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit attach 2d381b2a
      minit attach --app=web --mode=stdout,stderr 2d381b2a > output
      minit attach --mode=list 2d381b2a

    """
    invocation.require_root()
    options = {"detach-keys": detach_keys, "on-slow": on_slow}
    switches = {"read-only": read_only, "take-stdin": take_stdin, "no-replay": no_replay}
    given = {name: value for name, value in options.items() if value is not None}
    given.update({name: "true" for name, value in switches.items() if value})
    if read_only and take_stdin:
        raise click.UsageError("--read-only and --take-stdin exclude each other")
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        attach_app(pod, app, mode, given, flush_output, debug=invocation.debug)
