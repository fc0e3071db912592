"""Pods that people start, name, stop and remove without keeping a terminal for each: `--detach`, `--rm`, `--name`."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from minit.stage0.files.locks import key_lock
from tests.support.commands import Stage0
from tests.support.layers import Layout, busybox_layer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

SLEEP = ("--exec=/bin/sh", "--", "-c", "echo up; echo beside >&2; exec busybox sleep 1000")


def pods(minit: Stage0) -> list[str]:
    """Return the UUIDs of all pods, of those that are being made or deleted too."""
    return [path.name for path in minit.data.glob("pods/*/*")]


def mounts(minit: Stage0) -> list[str]:
    """Return what is mounted in the data directory."""
    with open("/proc/self/mountinfo") as lines:
        return [line for line in lines if f" {minit.data}/" in line]


def run(minit: Stage0, *words: object) -> tuple[int, str, str]:
    """Run a pod and return the exit code and what was printed to both streams."""
    result = minit.call("run", minit.stage1_flag, *words)
    return result.returncode, result.stdout, result.stderr


def test_the_first_steps_of_a_person(minit: Stage0) -> None:
    """A pod in the background is known by its name to every command, to another one after a rename, until its end."""
    code, out, err = run(minit, "--net=none", "--detach", "--name=web", minit.image(), *SLEEP)
    assert code == 0
    assert "]: up" not in err
    uuid = out.removesuffix("\n")
    assert minit.call("logs", "web").stdout.split() == ["up", "beside"]
    assert run(minit, "--net=none", "--name", "web", minit.image())[::2] == (
        254,
        f'run: the name "web" is taken by pod "{uuid}": remove that pod, or rename it (minit rename)\n',
    )
    assert pods(minit) == [uuid]
    assert minit.call("enter", "web", "busybox", "echo", "inside").stdout == "inside\n"
    assert minit.call("rename", "web", "db").returncode == 0
    assert minit.call("status", "web").returncode == 254
    assert "pod-name=db\n" in minit.call("status", "db").stdout
    assert [pod["pod_name"] for pod in json.loads(minit.call("list", "--format=json").stdout)] == ["db"]
    assert minit.call("stop", "db").stdout == f'"{uuid}"\n'
    assert "app-busybox=0\n" in minit.call("status", "db").stdout
    assert minit.call("rm", "db").stdout == f'"{uuid}"\n'
    assert (pods(minit), mounts(minit)) == ([], [])


def test_a_pod_in_the_background_that_does_not_start(minit: Stage0) -> None:
    """The command fails as in the foreground, with the same code and line, and nothing is left of the pod."""
    for words, exit_code, said in (
        (("--net=nowhere", minit.image()), 254, "stage1: failed to setup network: networks not found: nowhere\n"),
        (
            ("--net=none", minit.image(), "--exec=/none"),
            203,
            'Error: Unable to open "/none": No such file or directory\n',
        ),
        ((minit.data / "none.aci",), 254, "none.aci: no such file or directory"),
        (("--interactive", minit.image()), 254, "run: --interactive needs the terminal"),
    ):
        code, out, err = run(minit, "--detach", "--name=web", *words)
        assert (code, out) == (exit_code, "")
        assert said in err
        assert (pods(minit), mounts(minit)) == ([], [])


def test_a_quick_pod_in_the_background(minit: Stage0) -> None:
    """A pod whose app fails after its start was started: its UUID is printed, and its end is known."""
    code, out, _ = run(minit, "--net=none", "--detach", minit.image(), "--exec=/bin/sh", "--", "-c", "exit 3")
    assert code == 0
    assert "app-busybox=3\n" in minit.call("status", "--wait", out.strip()).stdout


def test_pods_of_files(minit: Stage0, tmp_path: Path) -> None:
    """Every command takes the UUID from the file in which it was saved; rm --force stops the pod first."""
    file = f"--uuid-file={tmp_path / 'u'}"
    saved = f"--uuid-file-save={tmp_path / 'u'}"
    sandbox = minit.call("app", "sandbox", "--detach", "--net=none", minit.stage1_flag, "--name=box", saved)
    uuid = sandbox.stdout.strip()
    assert uuid
    for words, said in (
        (("app", "add", file, minit.image(), *SLEEP), ""),
        (("app", "start", file, "--app=busybox"), ""),
        (("app", "list", file), "NAME\tSTATE\nbusybox\trunning\n"),
        (("app", "status", file, "--app=busybox"), "name=busybox\n"),
        (("enter", file, "busybox", "echo", "inside"), "inside\n"),
        (("app", "exec", file, "busybox", "echo", "inside"), "inside\n"),
        (("logs", file), "up\n"),
        (("app", "stats", file, "--format=json"), f'{{"uuid":"{uuid}"'),
        (("top", file, "--interval=100ms"), "box"),
        (("rename", file, "other"), ""),
        (("app", "stop", file, "--app=busybox"), ""),
        (("app", "rm", file, "--app=busybox"), ""),
        (("rm", "--force", "other"), f'"{uuid}"\n'),
    ):
        result = minit.call(*words)
        assert (result.returncode, said in result.stdout) == (0, True), (words, result)
    assert pods(minit) == []
    prepared = minit.call("prepare", minit.stage1_flag, minit.image(), "--exec=/bin/sh", "--", "-c", "exit 0").stdout
    (tmp_path / "u").write_text(prepared)
    assert minit.call("run-prepared", "--net=none", file).returncode == 0
    assert minit.call("export", file, tmp_path / "out.aci").returncode == 0
    assert prepared.strip() in minit.call("attach", file).stderr
    refused = minit.call("attach", f"--uuid-file={tmp_path / 'none'}")
    assert (refused.returncode, refused.stderr.count("\n")) == (254, 1)
    assert "cannot read the UUID from" in refused.stderr


def test_removal_at_the_end(minit: Stage0) -> None:
    """The exit code is the app's, and the pod is gone when the command ends; a failed start is no exception."""
    for exit_code, words in ((7, ("--exec=/bin/sh", "--", "-c", "exit 7")), (203, ("--exec=/none",))):
        assert run(minit, "--net=none", "--rm", "--name=web", minit.image(), *words)[0] == exit_code
        assert (pods(minit), mounts(minit)) == ([], [])


def test_removal_after_a_kill(minit: Stage0) -> None:
    """A pod whose launcher is killed, or that ends in the background, is removed too."""
    words = minit.run_words("--rm", minit.image(), *SLEEP)
    process = minit.start(*words, stdout=-1, stderr=-1)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"up\n")
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: not pods(minit), "the removal of the pod")
    code, out, _ = run(minit, "--net=none", "--rm", "--detach", "--name=web", minit.image(), *SLEEP)
    assert (code, [out.strip()]) == (0, pods(minit))
    minit.call("stop", "web")
    wait_for(lambda: not pods(minit), "the removal of the pod")
    assert not mounts(minit)


@pytest.mark.parametrize("flags", [(), ("--no-overlay",), ("--no-overlay", "--private-users")])
def test_a_pod_that_is_started_again(minit: Stage0, flags: tuple[str, ...]) -> None:
    """It has its UUID, name, options, volumes and written files, and its log goes on; however it ended before."""
    script = "for file in /v/f /f; do echo again >> $file; busybox wc -l $file; done; hostname; exec busybox sleep 1000"
    flags = ("--detach", "--name=web", "--hostname=h", "--volume=v,kind=empty", *flags)
    words = (
        minit.image(),
        "--mount=volume=v,target=/v",
        "--exec=/bin/sh",
        "--",
        "-c",
        script.replace("host", "busybox host"),
    )
    code, out, err = run(minit, "--net=none", *flags, *words)
    assert code == 0, err
    seen = []
    for count, ending in enumerate((("--wait",), ("--wait", "--force"), None), 1):
        seen += [f"{count} /v/f", f"{count} /f", "h"]
        # The pod is ready before the app has said all.
        wait_for(lambda: minit.call("logs", "web").stdout.splitlines() == seen, f"the lines {seen}")  # noqa: B023
        assert minit.call("status", "web").stdout.startswith("state=running\n")
        if ending is not None:
            assert minit.call("stop", "web", *ending).returncode == 0
            assert minit.call("start", "web").stdout == out
    assert minit.call("start", "web").stdout == f'pod "{out.strip()}" is already running\n'
    assert minit.call("rm", "--force", "web").returncode == 0
    assert (pods(minit), mounts(minit)) == ([], [])


def test_stop_and_start_in_one_line(minit: Stage0) -> None:
    """A stopped pod starts at once, after its end while somebody stops it, and a name of --rm is free then."""
    ended_late = (
        "--exec=/bin/sh",
        "--",
        "-c",
        "trap 'busybox sleep 0.5; exit 0' TERM; echo up; busybox sleep 1000 & wait",
    )
    code, out, err = run(minit, "--net=none", "--detach", "--name=web", minit.image(), *ended_late)
    assert code == 0, err
    uuid = out.strip()
    for flags in ((), ("--no-wait",)):
        assert minit.call("stop", *flags, "web").stdout == f'"{uuid}"\n'
        assert flags or minit.call("status", "web").stdout.startswith("state=exited\n")
        started = minit.call("start", "web")
        assert (started.returncode, started.stdout) == (0, out), started.stderr
        assert minit.call("status", "web").stdout.startswith("state=running\n")
    assert minit.call("rm", "-f", "web").returncode == 0
    for flags in ((), ("--no-wait",)):
        words = ("--net=none", "--detach", "--rm", "--name=web", minit.image(), *ended_late)
        code, out, err = run(minit, *words)
        assert code == 0, err
        assert run(minit, *words)[0] == 254
        assert minit.call("stop", *flags, "web").stdout == f'"{out.strip()}"\n'
        assert flags or pods(minit) == []
    code, out, err = run(minit, *words)
    assert code == 0, err
    assert minit.call("stop", "web").returncode == 0
    assert (pods(minit), mounts(minit)) == ([], [])


def test_restarts_of_pods(minit: Stage0) -> None:
    """A running pod ends and starts, an ended pod starts, a pod that cannot start again goes on; a list has UUIDs."""
    words = ("--net=none", "--detach", minit.image(), *SLEEP)
    uuids = [run(minit, f"--name={name}", *flags, *words)[1].strip() for name, *flags in (("web",), ("gone", "--rm"))]
    assert sorted(minit.call("list", "--quiet").stdout.split()) == sorted(uuids)
    pids = set()
    for stopped in (False, True, False):
        if stopped:
            assert minit.call("stop", "web").returncode == 0
        assert minit.call("restart", "--time=30", "web").stdout == f"{uuids[0]}\n"
        pids |= {line for line in minit.call("status", "web").stdout.splitlines() if line.startswith("pid=")}
    assert len(pids) == 3
    refused = minit.call("restart", "--all")
    assert (refused.returncode, refused.stdout) == (254, f"{uuids[0]}\n")
    assert f'pod "{uuids[1]}" was run with --rm' in refused.stderr
    assert minit.call("status", "gone").stdout.startswith("state=running\n")
    assert minit.call("stop", "web").returncode == 0
    refused = minit.call("rm", "--all")
    assert (refused.returncode, refused.stdout) == (254, f'"{uuids[0]}"\n')
    assert f'pod "{uuids[1]}" is running, not removed (stop it first)' in refused.stderr
    assert minit.call("rm", "-a", "-f").stdout == f'"{uuids[1]}"\n'
    assert (pods(minit), mounts(minit)) == ([], [])


def test_signals_of_a_person(minit: Stage0) -> None:
    """A signal reaches the main process of an app; KILL for a pod ends the pod, whatever its restart policy."""
    script = "trap 'echo hup' HUP; echo up; while :; do busybox sleep 0.1; done"
    words = ("--net=none", "--detach", "--name=web", "--annotation=minit/restart=always", minit.image())
    code, out, err = run(minit, *words, "--exec=/bin/sh", "--", "-c", script)
    assert code == 0, err
    uuid = out.strip()
    wait_for(lambda: "up" in minit.call("logs", "web").stdout, "the app")
    assert minit.call("kill", "-s", "SIGHUP", "web").stdout == f'"{uuid}"\n'
    wait_for(lambda: "hup" in minit.call("logs", "web").stdout, "the signal")
    assert 'nonexistent app "none"' in minit.call("kill", "--signal=1", "--app=none", "web").stderr
    assert 'no signal "FOO"' in minit.call("kill", "-s", "FOO", "web").stderr
    assert minit.call("kill", "--app=busybox", "web").returncode == 0
    wait_for(lambda: "app.started-again" in minit.call("events", "web").stdout, "the restart")
    assert minit.call("kill", "web").stdout == f'"{uuid}"\n'
    assert minit.call("status", "web").stdout.startswith("state=exited\n")
    assert f'pod "{uuid}" is not running' in minit.call("kill", "web").stderr
    assert minit.call("rm", "web").returncode == 0
    assert (pods(minit), mounts(minit)) == ([], [])


def test_stop_several_pods(minit: Stage0) -> None:
    """A missing pod does not keep others from ending; a pod that ignores the signal is killed after --time."""
    stubborn = ("--exec=/bin/sh", "--", "-c", "trap '' TERM; echo up; while :; do busybox sleep 1000; done")
    grace = "--annotation=minit/stop-grace=1h"
    uuids = []
    for name in ("one", "two"):
        code, out, err = run(minit, "--net=none", "--detach", f"--name={name}", minit.image(), grace, *stubborn)
        assert code == 0, err
        uuids.append(out.strip())
    refused = minit.call("stop", "none", "--wait=10ms", "one")
    assert (refused.returncode, refused.stdout) == (254, "")
    assert refused.stderr.splitlines() == [
        'stop: no matches found for "none"',
        f'stop: waiting for pod "{uuids[0]}" to exit: context deadline exceeded',
        "stop: failed to stop one or more pods",
    ]
    assert sorted(minit.call("stop", "--all", "--time=1").stdout.split()) == sorted(f'"{uuid}"' for uuid in uuids)
    assert minit.call("stop", "--all").returncode == 0
    assert minit.call("stop", "--all", "one").returncode == 254
    assert minit.call("rm", "one", "two").returncode == 0
    assert (pods(minit), mounts(minit)) == ([], [])


def test_an_interrupted_stop(minit: Stage0) -> None:
    """Ctrl-C ends the wait without an error, and the pod goes on ending."""
    stubborn = ("--exec=/bin/sh", "--", "-c", "trap '' TERM; echo up; while :; do busybox sleep 1000; done")
    code, out, err = run(
        minit, "--net=none", "--detach", "--name=web", minit.image(), "--annotation=minit/stop-grace=1h", *stubborn
    )
    assert code == 0, err
    stop = minit.start("stop", "web", stdout=-1, stderr=-1)
    wait_for(lambda: "pod.stopping" in minit.call("events", "web").stdout, "the begin of the stop")
    stop.send_signal(signal.SIGINT)
    assert stop.communicate(timeout=90) == (b"", b"\n")  # behind the ^C of a terminal
    assert stop.returncode == 130
    assert minit.call("status", "web").stdout.startswith("state=running\n")
    assert minit.call("stop", "--force", "web").stdout == f'"{out.strip()}"\n'
    assert minit.call("rm", "web").returncode == 0


def test_what_cannot_start_again(minit: Stage0) -> None:
    """Of two starts at once one starts the pod; a pod in the garbage, or one whose apps were added, is refused."""
    assert (
        run(minit, "--net=none", "--name=web", minit.image(), "--exec=/bin/sh", "--", "-c", "busybox sleep 0")[0] == 0
    )
    starts = [minit.start("start", "web", stdout=-1, stderr=-1) for _ in range(3)]
    ends = [(process.communicate(timeout=90), process.returncode) for process in starts]
    assert any(code == 0 for _, code in ends), ends
    assert minit.call("status", "--wait", "web").returncode == 0
    minit.call("gc", "--mark-only")
    assert 'cannot start again: its state is "exited garbage"' in minit.call("start", "web").stderr
    sandbox = minit.call("app", "sandbox", "--detach", "--net=none", minit.stage1_flag, "--name=box")
    assert sandbox.returncode == 0, sandbox.stderr
    minit.call("stop", "--wait", "box")
    refused = minit.call("start", "box")
    assert (refused.returncode, "cannot start again: apps were added" in refused.stderr) == (254, True)


@pytest.mark.parametrize("words", [("gc", "--grace-period=0s"), ("rm", "web")])
def test_a_start_and_a_removal_at_once(minit: Stage0, words: tuple[str, ...]) -> None:
    """One of the two has the pod: it runs and stays, or it is gone and the start was refused with one line."""
    script = "[ ! -e /again ] || exec busybox sleep 1000; busybox touch /again"
    for _ in range(4):
        ran = run(minit, "--net=none", "--name=web", minit.image(), "--exec=/bin/sh", "--", "-c", script)
        assert ran[0] == 0, ran
        with key_lock(minit.data / "locks", "endedPods", exclusive=True) as lock:
            calls = [minit.start(*each, stdout=-1, stderr=-1) for each in (("start", "web"), words)]
            wait_for(lambda lock=lock: _waiters(lock) == 2, "both commands at the lock")  # type: ignore[misc]
        refusal, complaint = [process.communicate(timeout=90)[1].decode() for process in calls]
        started, removed = (process.returncode for process in calls)
        if started == 0:
            assert minit.call("status", "web").stdout.startswith("state=running\n")
            assert removed == (0 if words[0] == "gc" else 254), complaint
            assert "moving pod" not in complaint
            assert minit.call("rm", "--force", "web").returncode == 0
        else:
            assert (started, removed) == (254, 0), (refusal, complaint)
            assert "cannot start again: its state is" in refusal.splitlines()[0]
        assert (pods(minit), mounts(minit)) == ([], [])


def _waiters(lock: int) -> int:
    """Return how many wait for the lock of a file, proc_locks(5)."""
    inode = f":{os.fstat(lock).st_ino} "
    return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_an_image_of_docker(minit: Stage0, tmp_path: Path) -> None:
    """Its command is replaced alone by --cmd, and ports lead to the pod by number, of whichever app they are."""
    layout = Layout()
    layout.add(busybox_layer(), config={"Entrypoint": ["/bin/busybox"], "Cmd": ["echo", "of", "the", "image"]})
    image = f"oci:{layout.write_directory(tmp_path / 'layout')}"

    def said(*words: object) -> str:
        return run(minit, "--net=none", "--rm", image, *words)[1].partition(": ")[2]

    assert said() == "of the image\n"
    assert said("--", "again") == "of the image again\n"
    assert said("--cmd=echo", "--", "something", "else") == "something else\n"
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [taken.getsockname()[1], other.getsockname()[1]]
    conflict = f"--port={ports[0]}:80", f"--port=127.0.0.1:{ports[0]}:81"
    assert "both want tcp port" in run(minit, *conflict, image)[2]
    flags = f"--port={ports[0]}:80", f"--port=127.0.0.1:{ports[1]}:81/tcp"
    servers = [
        (image, f"--name=s{number}", "--cmd=nc", "--", "-ll", "-p", number, "-e", "/bin/busybox", "echo", number, "---")
        for number in (80, 81)
    ]
    code, out, err = run(minit, "--detach", "--name=web", *flags, *servers[0], *servers[1])
    assert code == 0, err
    wait_for(lambda: [answer(port) for port in ports] == ["80", "81"], "the servers' answers")
    assert minit.call("rm", "--force", "web").stdout == f'"{out.strip()}"\n'


def answer(port: int) -> str:
    """Return what a server at a port of the host says, nothing if there is none yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            return client.recv(100).decode().strip()
    except OSError:
        return ""
