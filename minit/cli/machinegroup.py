"""
The `minit` command of a machine that minit boots: the commands on one pod, for the machine's only pod.

The commands are a host's, with the name of an app in place of the pod's UUID, and with the same output. Commands on
images and other pods are left out, and so are all modules that such commands would bring into the image.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from minit.base.errors import EXIT_FAILURE
from minit.cli.commandgroups import APP_COMMANDS, COMMANDS
from minit.cli.grammar import CommandTable, Listing, MinitGroup
from minit.cli.main import run_here
from minit.cli.uuidfile import UuidFileOption
from minit.linux.stdio import complain
from minit.podfiles import paths

_MACHINE = "Machine"
_OF_A_HOST = ("attach", "list", "status", "cat-manifest", "stop", "diagnose", "logs", "events", "help")
_OF_A_HOSTS_APPS = ("stats", "list", "status")
_COMMANDS = {
    "enter": Listing(
        place="commands.machinecommands:enter",
        help="Run a command, by default /bin/sh, in an app.",
        section=COMMANDS["enter"].section,
    ),
    "app": Listing(
        place="machinegroup:app_group",
        help="Work with the apps of the machine.",
        section=COMMANDS["app"].section,
    ),
    **{name: COMMANDS[name] for name in _OF_A_HOST},
    "init": Listing(
        place="machinegroup:init_group",
        help="Look at the versions of the machine and choose between them.",
        section=_MACHINE,
    ),
    "shell": Listing(
        place="commands.machinecommands:shell",
        help="Run /bin/sh outside of all apps, though none runs.",
        section=_MACHINE,
    ),
    "console": Listing(
        place="commands.machinecommands:console",
        help="Read commands like these from the terminal, one a line.",
        section=_MACHINE,
    ),
    "poweroff": Listing(
        place="commands.machinecommands:poweroff",
        help="Stop the apps and switch the machine off.",
        section=_MACHINE,
    ),
    "reboot": Listing(
        place="commands.machinecommands:reboot",
        help="Stop the apps and start the machine again.",
        section=_MACHINE,
    ),
}
_APP_COMMANDS = {
    "start": Listing(
        place="commands.machinecommands:start",
        help="Start an app that has exited; one that runs goes on.",
    ),
    "stop": Listing(
        place="commands.machinecommands:stop",
        help="Stop an app, and return when it has stopped; one that does not run is no error.",
    ),
    **{name: APP_COMMANDS[name] for name in _OF_A_HOSTS_APPS},
}
_INIT_COMMANDS = {
    "status": Listing(
        place="commands.slotcommands:status",
        help="Show which version runs, which one is kept, and what came of the last trial.",
    ),
    "update": Listing(
        place="commands.slotcommands:update",
        help="Write another version to the slot that does not run, and have the firmware boot it once.",
    ),
    "rollback": Listing(
        place="commands.slotcommands:rollback",
        help="Start the machine again with the other version, on trial.",
    ),
}

# The operands by which a command of a host gets the pod, and the values here.
_POD: dict[str, object] = {"uuid": paths.MACHINE_UUID, "uuids": (paths.MACHINE_UUID,)}
_APP = ("app", "apps")
_OPERAND = "operand"
# In the help of commands of a host.
_UUIDS = ("2d381b2a 6a9c", "2d381b2a")
_ABOUT_UUIDS = "UUID may be shortened to any prefix that only one pod has, or be the pod's name."


class _MachineTable(CommandTable):
    """Commands of a host without the operand for the pod."""

    def __getitem__(self, name: str) -> click.Command:
        """Return a command; KeyError for an unknown name."""
        return _for_the_only_pod(super().__getitem__(name))


_COMMAND_TABLE = _MachineTable(_COMMANDS)
_APP_COMMAND_TABLE = _MachineTable(_APP_COMMANDS)
_INIT_COMMAND_TABLE = _MachineTable(_INIT_COMMANDS)


@click.group(cls=MinitGroup, name="minit", commands=_COMMAND_TABLE)
def commands() -> None:
    """Look at the apps of this machine and work with them."""


app_group = MinitGroup("app", commands=_APP_COMMAND_TABLE)
init_group = MinitGroup("init", commands=_INIT_COMMAND_TABLE)


def main() -> NoReturn:
    """Run the command line of this process; refused outside of a machine that minit boots."""
    if not os.path.isdir(paths.MACHINE_POD):
        complain("minit: this command is for machines that minit boots")
        os._exit(EXIT_FAILURE)
    run_here(commands)


def _for_the_only_pod(command: click.Command) -> click.Command:
    """Return a command with the name of an app in the place of the UUID."""
    names = [parameter.name for parameter in command.params]
    if not _POD.keys() & names:
        return command
    told = {one.name: _POD[one.name] for one in command.params if one.name in _POD}
    app = next((name for name in _APP if name in names), None)
    ours = copy.copy(command)
    ours.params = [one for one in command.params if one.name not in _POD and not isinstance(one, UuidFileOption)]
    if app is not None:
        several = app == "apps"
        ours.params.append(click.Argument([_OPERAND], metavar="[APP]...", nargs=-1 if several else 1, required=False))
    call = command.callback
    assert call is not None

    def tell(operand: str | Sequence[str] | None = None, **values: Any) -> Any:
        if operand and app is not None:
            if values[app]:
                raise click.UsageError("give the app either with --app or without")
            values[app] = operand
        return call(**values, **told)

    ours.callback = tell
    ours.help = _without_uuids(command.help or "", "web" if app is not None else "")
    return ours


def _without_uuids(text: str, app: str) -> str:
    text = text.replace(_ABOUT_UUIDS, "")
    if app:
        text = text.replace("--app=web ", "")
    for uuid in _UUIDS:
        text = text.replace(f" {uuid}", f" {app}".rstrip())
    return text


for table in (_COMMAND_TABLE, _APP_COMMAND_TABLE, _INIT_COMMAND_TABLE):
    table.import_all()
