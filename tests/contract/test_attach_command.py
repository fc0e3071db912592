"""`minit attach` at a real terminal, on a pod that `minit run` made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.linux.loop import wait_readable
from tests.support.processes import children_of
from tests.support.stage0_world import World
from tests.support.terminal import Terminal
from tests.support.tmux import Tmux
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on PATH"),
]


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1 = stage1_image
    return world


@pytest.fixture
def uuid(world: World) -> Iterator[str]:
    """A pod with a shell on a terminal that can be attached to."""
    saved = world.root / "uuid"
    words = ("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", f"--uuid-file-save={saved}", world.app)
    streams = ("--stdin=tty", "--stdout=tty", "--stderr=tty", "--environment=PS1=app> ", "--environment=TERM=screen")
    command = world.command(*words, *streams, "--exec=/bin/busybox", "--", "sh", "-i")
    process = subprocess.Popen(command, env=world.environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        uuid = wait_for(lambda: saved.exists() and saved.read_text().strip(), "the pod's UUID")
        wait_for(lambda: world.succeeds("attach", "--mode=list", uuid), "what can be attached to")
        yield uuid
        world.minit("stop", "--force", uuid)
    finally:
        process.kill()
        process.communicate()
        wait_for(lambda: "running" not in world.minit("list", "--no-legend").stdout, "the end")


def test_a_person_edits_a_file(world: World, uuid: str) -> None:
    """
    A shell and an editor of the app's on the caller's screen: its size, a change of it, detaching in the middle,
    a shell that is usable then, and attaching again.
    """
    shell = ["env", "PS1=host> ", "TERM=screen", "bash", "--norc", "--noprofile", "--noediting"]
    with Tmux(world.root / "tmux", shell, columns=100, rows=30, env=world.environment()) as tmux:
        tmux.expect("host>")
        attach = " ".join(world.command("attach", uuid))
        tmux.press(attach, "Enter")
        tmux.expect("\napp>")
        tmux.press("busybox stty size", "Enter")
        tmux.expect("\n30 100\n")
        tmux.resize(90, 20)
        tmux.press("until busybox stty size | busybox grep '^20 9'; do :; done", "Enter")
        tmux.expect("\n20 90\n")
        tmux.press("busybox vi /tmp/file", "Enter")
        tmux.expect("\n~\n~\n")
        assert tmux.show("alternate_on") == "1"
        tmux.press("i", "first line", "C-p", "x")
        tmux.expect("first line")
        tmux.press("C-p", "C-q")
        tmux.expect("attach: detached\nhost>")
        assert tmux.show("alternate_on") == "0"
        tmux.press("echo $((6*7))", "Enter")
        tmux.expect("\n42\nhost>")
        tmux.press("clear", "Enter", attach, "Enter")
        tmux.expect("first line")
        # One by one, or it is the key of another terminal.
        tmux.press("Escape")
        tmux.expect("\n- /tmp/file [Modified]")
        tmux.press(":wq", "Enter")
        tmux.expect("\napp>")
        tmux.press("busybox cat /tmp/file", "Enter")
        tmux.expect("\nfirst line")
        tmux.press("exit", "Enter")
        tmux.expect("\nhost>")


def test_signals_to_either_process(world: World, uuid: str) -> None:
    """
    The command stops when its stage1 does and goes on as it does, passes on what asks it to end, and restores the
    terminal if its stage1 is killed.
    """
    with Terminal() as terminal:
        shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            env={**world.environment(), "PS1": "shell> "},
            **terminal.options,
        )
        terminal.expect(rb"shell> ")
        before = terminal.settings

        def attach() -> tuple[int, int]:
            terminal.type(b" ".join(map(os.fsencode, world.command("attach", uuid))) + b"\n")
            terminal.expect(rb"\r\napp> ")
            assert terminal.is_raw
            [command] = children_of(shell.pid)
            [stage1] = children_of(command)
            return command, stage1

        command, stage1 = attach()
        os.kill(stage1, signal.SIGTSTP)
        terminal.expect(rb"Stopped.*shell> ")
        assert terminal.settings == before
        terminal.type(b"fg\n")
        terminal.read_until(lambda: terminal.is_raw)
        terminal.type(b"echo $((6*7))\r")
        terminal.expect(rb"42\r\napp> ")
        os.kill(command, signal.SIGTERM)
        terminal.expect(rb"shell> ")
        assert terminal.settings == before
        terminal.type(b"echo $?\n")
        terminal.expect(rb"\r\n143\r\nshell> ")
        command, stage1 = attach()
        os.kill(stage1, signal.SIGKILL)
        terminal.expect(rb"attach failed: stage1 was killed by signal 9\r\nshell> ")
        assert terminal.settings == before
        terminal.type(b"exit\n")
        assert terminal.finish(shell) == 254


def test_an_entrypoint_ends_with_its_command(world: World, uuid: str) -> None:
    """A command that is killed leaves no entrypoint behind, which would take part of the app's input for ever."""
    words = world.command("attach", "--mode=tty", uuid)
    with subprocess.Popen(words, env=world.environment(), stdin=subprocess.PIPE) as process:
        [stage1] = wait_for(lambda: children_of(process.pid), "the entrypoint")
        pidfd = os.pidfd_open(stage1)
        process.kill()
        # Not the end of the input, which the client would take for its own.
        process.wait()
        assert wait_readable([pidfd], 60.0)
        os.close(pidfd)


ENDS = {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGQUIT: 131}


@pytest.mark.parametrize("number", ENDS)
def test_signals_of_no_terminal(world: World, uuid: str, number: signal.Signals) -> None:
    """SIGINT detaches also who is sent it by kill(1), and the others end the command, alone and once."""
    process = subprocess.Popen(
        world.command("attach", "--mode=tty", uuid),
        env=world.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    shown = b""
    while b"app> " not in shown:
        shown += os.read(process.stdout.fileno(), 1 << 16)
    [stage1] = children_of(process.pid)
    process.send_signal(number)
    # Before its input is closed, whose end would be the shell's.
    assert process.wait(timeout=90) == ENDS[number]
    _, errors = process.communicate()
    assert errors == (b"attach: detached\n" if number == signal.SIGINT else b"")
    assert not os.path.exists(f"/proc/{stage1}")
    world.minit("attach", "--mode=list", uuid)
