"""`minit attach`, with a stage1 that writes down how it is called."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.support.stage0_world import World, write_stage1
from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

ENTRYPOINTS = ("run", "enter", "gc", "stop", "attach")
OPTIONS = "minit/stage1/attach-options"


@pytest.fixture
def world(world: World) -> World:
    """A data directory of its own, and a stage1 that declares `attach`."""
    write_stage1(world.stage1, entrypoints=ENTRYPOINTS)
    return world


def test_attach(world: World) -> None:
    """The pod's own entrypoint is called with rkt's three variables and nothing else, and the caller's streams."""
    with world.start() as pod:
        path = world.pod_path("run", pod.uuid)
        result = world.minit("attach", pod.uuid[:8], PATH=os.environ["PATH"])
        assert (result.stdout, result.stderr) == ("attach on stdout\n", "attach on stderr\n")
        call = world.call("attach")
        rootfs = f"{path}/stage1/rootfs"
        assert call.argv == [f"{rootfs}/ex/attach", "--action=auto-attach", "--app=busybox", "--debug=false"]
        assert call.cwd == str(path)
        assert {name: value for name, value in call.environment.items() if name != "PWD"} == {
            "RKT_STAGE1_ENTERCMD": f"{rootfs}/ex/enter",
            "RKT_STAGE1_ENTERPID": str(pod.process.pid),
            "PATH": os.environ["PATH"],
        }
        held = {target for target in call.fds.values() if target.startswith(str(world.data))}
        assert held == {call.argv[0]}, "its script, by the shell"
        world.minit("attach", "--app=other", "--mode", "tty-in", "--debug", pod.uuid)
        assert world.call("attach").argv[1:] == [
            "--action=custom-attach",
            *("--tty-in=true", "--tty-out=false", "--stdin=false", "--stdout=false", "--stderr=false"),
            *("--app=other", "--debug=true"),
        ]
        assert 'unknown endpoint "x"' in world.minit("attach", "--mode=x", pod.uuid, code=254).stderr
        assert "is no app name" in world.minit("attach", "--app=../x", pod.uuid, code=254).stderr
    assert "isn't currently running" in world.minit("attach", pod.uuid, code=254).stderr


def test_options_of_minits_own(world: World) -> None:
    """Options that rkt does not have go to a stage1 that says it knows them; for another one they are an error."""
    given = ("--detach-keys=ctrl-a", "--read-only", "--no-replay", "--on-slow=block")
    with world.start() as pod:
        result = world.minit("attach", *given, pod.uuid, code=254)
        assert 'stage1 image "example.com/recorder" does not know it (annotation minit/stage1/attach-options)' in (
            result.stderr
        )
        assert result.stderr.startswith("attach: --")
    write_stage1(
        world.stage1, entrypoints=ENTRYPOINTS, annotations={OPTIONS: "detach-keys,no-replay,on-slow,read-only"}
    )
    with world.start() as pod:
        world.minit("attach", *given, pod.uuid)
        flags = ["--detach-keys=ctrl-a", "--on-slow=block", "--read-only=true", "--no-replay=true"]
        assert world.call("attach").argv[-4:] == flags
        assert "--take-stdin: " in world.minit("attach", "--take-stdin", pod.uuid, code=254).stderr
        assert "exclude each other" in world.minit("attach", "--take-stdin", "--read-only", pod.uuid, code=254).stderr


def test_a_stage1_without_it(world: World) -> None:
    """A stage1 image that cannot attach is named, with the annotation that it lacks."""
    write_stage1(world.stage1)
    with world.start() as pod:
        result = world.minit("attach", pod.uuid, code=254)
        assert 'declares no "attach" entrypoint (annotation coreos.com/rkt/stage1/attach)' in result.stderr


def test_failures(world: World) -> None:
    """A failure of stage1 is rkt's message and code, and a signal that ends it ends the command, too."""
    with world.start() as pod:
        (world.dump / "attach-code").write_text("3")
        assert (
            "attach: attach failed: error executing stage1 entrypoint: exit status 3\n"
            in world.minit("attach", pod.uuid, code=254).stderr
        )
        (world.dump / "attach-signal").write_text("TERM")
        assert world.minit("attach", pod.uuid, code=128 + signal.SIGTERM).stderr == "attach on stderr\n"
        (world.dump / "attach-signal").write_text("KILL")
        result = world.minit("attach", pod.uuid, code=254)
        assert "attach failed: stage1 was killed by signal 9" in result.stderr


class Ended(subprocess.Popen[bytes]):
    """A process that has ended when its parent hears of it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def test_a_stage1_that_ends_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is told though it has ended before anybody waits for it."""
    with world.start() as pod:
        (world.dump / "attach-code").write_text("3")
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", Ended)
            result = world.minit("attach", pod.uuid, code=254)
        assert result.stderr.endswith("attach failed: error executing stage1 entrypoint: exit status 3\n")


def test_a_terminal_that_a_killed_stage1_left_raw(world: World) -> None:
    """It is given back as it was."""
    with world.start() as pod, Terminal() as terminal:
        before = terminal.settings
        (world.dump / "attach-raw").touch()
        (world.dump / "attach-signal").write_text("KILL")
        process = subprocess.Popen(world.command("attach", pod.uuid), env=world.environment(), **terminal.options)
        terminal.expect(rb"stage1 was killed by signal 9")
        assert terminal.finish(process) == 254
        assert terminal.settings == before
