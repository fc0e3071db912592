"""The `minit` command on a machine that minit boots, called by programs and at the prompt on its console."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest

from minit.cli.machinegroup import commands
from minit.podfiles import paths
from tests.support.firstprogram import NamespaceMachine
from tests.support.pods import MakePod, shell
from tests.support.processes import children_of, named
from tests.support.terminal import CTRL_C, CTRL_D, Terminal
from tests.support.waiting import wait_for

Boot = Callable[..., NamespaceMachine]

_MINIT = "/bin/minit"
_ONE = "trap 'echo bye; exit 3' TERM; echo up; sleep 1000 & wait"
_TWO = "echo hello; sleep 1000"


@pytest.fixture
def boot(make_pod: MakePod, tmp_path: Path) -> Iterator[Boot]:
    """A function that boots a machine with these apps; it ends with the test."""
    with ExitStack() as stack:

        def start(
            apps: dict[str, Any], config: str = "", console: str | None = None, command_line: str = ""
        ) -> NamespaceMachine:
            prepared = make_pod(apps, overlay=False)
            return stack.enter_context(NamespaceMachine(tmp_path, prepared, config, command_line, console=console))

        yield start


def _lines(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


def test_what_is_shown(boot: Boot) -> None:
    """list, status, logs and events show of the machine's pod what they show of one on a host, without its UUID."""
    machine = boot({"one": shell(_ONE), "two": shell(_TWO)})
    for _ in range(2):
        machine.wait_for_line("]: ")
    assert [row[0] for row in _lines(machine.run(_MINIT, "list"))] == ["UUID", "00000000", "two"]
    status = json.loads(machine.run(_MINIT, "status", "--format=json").stdout)
    assert (status["name"], status["state"]) == (paths.MACHINE_UUID, "running")
    assert [(app["name"], app["state"]) for app in status["apps"]] == [("one", "running"), ("two", "running")]
    assert _lines(machine.run(_MINIT, "logs", "two")) == [["hello"]]
    events = [json.loads(line) for line in machine.run(_MINIT, "events").stdout.splitlines()]
    assert "pod.ready" in [event["event"] for event in events]


def test_apps_are_stopped_and_started(boot: Boot) -> None:
    """An app that is stopped by a command is the end of nothing, not even as the last one, and can be started."""
    machine = boot({"one": shell(_ONE), "two": shell(_TWO)})
    machine.wait_for_line("up")
    for app in ("two", "one"):
        assert _lines(machine.run(_MINIT, "app", "stop", app)) == []
    assert machine.status("one") == 3
    assert _lines(machine.run(_MINIT, "app", "list")) == [["NAME", "STATE"], ["one", "exited"], ["two", "exited"]]
    assert _lines(machine.run(_MINIT, "app", "start", "one")) == []
    machine.wait_for_line("up")
    assert "state=running" in machine.run(_MINIT, "app", "status", "one").stdout
    assert _lines(machine.run(_MINIT, "enter", "one", "/bin/sh", "-c", "echo $0")) == [["/bin/sh"]]
    done = machine.run(_MINIT, "app", "start", "three")
    assert (done.returncode, done.stderr) == (254, 'start: nonexistent app "three" (apps: one, two)\n')


@pytest.mark.parametrize(("command", "ending"), [("poweroff", "off"), ("reboot", "reboot"), ("stop", "reboot")])
def test_the_end(boot: Boot, command: str, ending: str) -> None:
    """poweroff and reboot stop the apps in order and do what they say; after stop the configuration counts."""
    machine = boot({"one": shell(_ONE)}, 'on_exit = "reboot"')
    machine.wait_for_line("up")
    machine.run(_MINIT, command)
    assert machine.wait().ending == ending
    assert any(line.endswith(": bye") for line in machine.lines)


def test_a_machine_that_stays(boot: Boot) -> None:
    """When the pod has ended the command says how, and ends the machine."""
    machine = boot({"one": shell("exit 3")}, 'on_exit = "stay"')
    machine.wait_for_line("the machine stays")
    status = json.loads(machine.run(_MINIT, "status", "--format=json").stdout)
    assert (status["state"], status["apps"][0]["exit_code"]) == ("exited", 3)
    done = machine.run(_MINIT, "app", "start", "one")
    assert (done.returncode, done.stderr.count("\n")) == (254, 1) and 'its state is "exited"' in done.stderr
    machine.run(_MINIT, "poweroff")
    assert machine.wait().ending == "off"


def test_a_machine_without_slots(boot: Boot) -> None:
    """What is about another version is refused in one line where there is no disk with two."""
    machine = boot({"one": shell(_ONE)})
    machine.wait_for_line("up")
    for command in ("status", "rollback"):
        done = machine.run(_MINIT, "init", command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (254, "", 1)
        assert done.stderr.startswith(f"{command}: the root of this machine is in no slot"), done.stderr


def _leaves(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    return [
        words
        for name, command in group.commands.items()
        for words in (_leaves(command, *path, name) if isinstance(command, click.Group) else [(*path, name)])
    ]


def test_the_image_has_all_of_it(boot: Boot) -> None:
    """Every command explains itself on a machine, and none mentions a UUID that it would take."""
    machine = boot({"one": shell(_ONE)})
    machine.wait_for_line("up")
    names = [" ".join(words) for words in _leaves(commands)]
    done = machine.run(_MINIT, "console", typed="".join(f"{name} --help\n" for name in names))
    assert (done.returncode, done.stderr) == (0, "")
    _, *helps = done.stdout.split("Usage: minit ")
    for name, text in zip(names, helps, strict=True):
        assert text.startswith(f"{name} [OPTIONS]") and f"\n    minit {name}" in text
        assert "2d381b2a" not in text and "UUID may" not in text


class Console(Terminal):
    """The console of a machine."""

    @property
    def path(self) -> str:
        """The terminal's node."""
        return os.ttyname(self.slave)


@pytest.fixture
def console() -> Iterator[Console]:
    """A terminal for a machine to have as its console."""
    with Console() as terminal:
        yield terminal


def test_no_prompt(boot: Boot, console: Console) -> None:
    """Without being asked for there is nothing on the console that listens."""
    machine = boot({"one": shell(_ONE)}, "", console.path)
    machine.wait_for_line("up")
    assert named(children_of(machine.first_process), "minit-console") == []


def test_a_prompt_without_a_console(boot: Boot) -> None:
    """A machine that has no console says so in one line, and runs its apps."""
    machine = boot({"one": shell("sleep 0.1")}, "console = true").wait()
    assert "minit: console: /dev/console: no such file or directory" in machine.lines
    assert (machine.status("one"), machine.ending) == (0, "off")


def test_a_prompt(boot: Boot, console: Console) -> None:
    """Enter gives a prompt; a command that fails or is interrupted leads back to it, and so does Ctrl-D after Enter."""
    machine = boot({"one": shell(_ONE)}, 'console = true\nhostname = "sensor"', console.path)
    machine.wait_for_line("up")
    console.expect(rb"minit: press Enter for a prompt\r\n")
    console.type(b"\n")
    console.expect(rb"\r\nsensor> ")
    console.type(b"\0minit app list\n")
    console.expect(rb"\r\none\trunning\r\nsensor> ")
    console.type(b"logs 'one\n")
    console.expect(rb"minit: no closing quotation\r\nsensor> ")
    console.type(b"frob\n")
    console.expect(rb'unknown command "frob" \(see minit --help\)\r\nsensor> ')
    console.type(b"logs -f one\n")
    console.expect(rb"\r\nup\r\n")
    console.type(CTRL_C)
    console.expect(rb"\^C\r\nsensor> ")
    console.type(CTRL_D)
    console.expect(rb"minit: press Enter for a prompt\r\n")
    console.type(b"poweroff\n")
    assert machine.wait().ending == "off"


def test_attaching_at_the_prompt(boot: Boot, console: Console) -> None:
    """An app with a terminal gets the console's size and keys; detaching gives the prompt back."""
    annotations = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "tty"} for name in ("stdin", "stdout", "stderr")]
    app = shell("while read word; do stty size; echo got $word; done", annotations=annotations)
    console.resize(30, 100)
    machine = boot({"one": app}, "console = true", console.path)
    console.expect(rb"minit: press Enter for a prompt\r\n")
    console.type(b"status --wait-ready\n")
    console.expect(rb"state=running")
    console.type(b"attach one\n")
    wait_for(lambda: console.is_raw, "the attachment")
    console.type(b"word\r")
    console.expect(rb"30 100\r\ngot word\r\n")
    console.type(b"\x10\x11")  # Ctrl-P Ctrl-Q
    console.expect(rb"minit> ")
    wait_for(lambda: not console.is_raw, "the terminal as it was")
    console.type(b"poweroff\n")
    assert machine.wait().ending == "off"


def test_a_machine_to_look_at(boot: Boot, console: Console) -> None:
    """With minit.rescue no app is started, and at the prompt there is a shell, that of an image if need be."""
    machine = boot({"one": shell(_ONE)}, 'hostname = "sensor"', console.path, "minit.rescue")
    machine.wait_for_line("minit: rescue: no app is started")
    console.expect(rb"minit: press Enter for a prompt\r\n")
    console.type(b"\n")
    console.expect(rb"sensor> ")
    console.type(b"shell\n")
    console.expect(rb"# ")
    console.type(b"cat /proc/1/comm /proc/1/root/etc/minit/machine.toml\n")
    console.expect(rb'minit\r\nhostname = "sensor"')
    console.type(b"exit\n")
    console.expect(rb"sensor> ")
    console.type(b"poweroff\n")
    assert machine.wait().ending == "off"
    assert machine.status("one") is None
