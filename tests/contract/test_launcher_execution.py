"""The launcher that executes the program of another image, after PID 1 has."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract import test_reexecution
from tests.contract.test_devices import Watched, allowed_devices
from tests.contract.test_health import annotated, is_healthy
from tests.contract.test_reexecution import other_tree
from tests.contract.test_terminal import launcher_of, sized_console
from tests.support.campaign import campaign
from tests.support.faults import mistaken
from tests.support.loopdevices import LoopDevice, needs_loop_devices
from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.processes import children_of, descriptors_of, is_alive, named, status_of
from tests.support.terminal import Terminal
from tests.support.waiting import TIMEOUT_SECONDS, wait_for

__all__ = ["other_tree"]  # a fixture

FOREVER = "while :; do sleep 1; done"
STTY = "/bin/busybox stty"
# Signals, capabilities and name.
LASTING = ("Name", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def until_end(last: str) -> str:
    """Return a script that waits for a file, and then does the last command."""
    return f"while [ ! -e /tmp/end ]; do sleep 0.02; done; {last}"


def execution_of(pid: int) -> bytes:
    """Return what is another value for every execve(2) of a process: the addresses given by the kernel."""
    return Path(f"/proc/{pid}/auxv").read_bytes()


@contextmanager
def in_new_launcher(launcher: int) -> Iterator[None]:
    """Wait, after what has PID 1 tell the launcher, for the new program of the launcher."""
    before, words = execution_of(launcher), words_of(launcher)
    yield
    wait_for(lambda: execution_of(launcher) != before, "the new program of the launcher")
    wait_for(lambda: words_of(launcher) == words, "the words of the launcher")


def offer(pod: PodDirectory, tree: Path | None = None) -> None:
    """Have PID 1 execute the program in a tree, that of the pod if not given, and then tell the launcher."""
    assert test_reexecution.upgrade(pod, tree or pod.tree) == {"ok": True}


def upgrade(pod: PodDirectory, launcher: int, tree: Path | None = None) -> None:
    """Have PID 1 and the launcher execute the program in a tree."""
    with in_new_launcher(launcher):
        offer(pod, tree)


def start_stoppable(make_pod: MakePod) -> tuple[PodDirectory, subprocess.Popen[bytes]]:
    """Start a pod of an app that ends with 6 when stopped."""
    pod = make_pod({"a": shell(f"trap 'exit 6' TERM; touch /tmp/up; {FOREVER}")})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.wait_ready()
    return pod, process


def words_of(pid: int) -> bytes:
    """Return the command line of a process as ps(1) shows it."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")


def rights_of(pid: int) -> dict[str, str]:
    """Return name, ids, signals and capabilities of a process."""
    status = status_of(pid)
    return {name: status[name] for name in LASTING}


def lasting_state(pid: int) -> object:
    """Return what a new program of the launcher must not change."""
    files = sorted(re.sub(r"\d+", "N", name) for name in descriptors_of(pid).values())
    return rights_of(pid), words_of(pid), files, os.readlink(f"/proc/{pid}/cwd")


@pytest.mark.private_users
@pytest.mark.rootless
def test_a_new_program_has_what_the_old_had(make_pod: MakePod) -> None:
    """The same process with the same descriptors, rights and words waits for PID 1, and ends with the pod's code."""
    pod = make_pod({"a": shell(until_end("exit 5"))})
    process = pod.start()
    pod.wait_ready()
    before = lasting_state(process.pid)
    for _ in range(5):
        upgrade(pod, process.pid)
        wait_for(lambda: lasting_state(process.pid) == before, "the same state")
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (5, "")


def test_another_version(make_pod: MakePod, other_tree: Path, stage1_tree: Path) -> None:
    """The launcher executes the program of another image, and later that of the first again."""
    pod = make_pod({"a": shell(until_end("exit 4"))})
    process = pod.start()
    pod.wait_ready()
    before = lasting_state(process.pid)
    for tree in (other_tree, other_tree, stage1_tree):
        upgrade(pod, process.pid, tree)
        program = os.path.basename(os.readlink(f"/proc/{process.pid}/exe"))
        assert program == ("ld.so" if tree == other_tree else "minit")
    wait_for(lambda: lasting_state(process.pid) == before, "the same state")
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (4, "")


@pytest.mark.private_users
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    "mistake", ["arch_prctl:retval=0:when=1", "prctl:error=EPERM:when=2", "prctl:delay_enter=2500000:when=2"]
)
def test_a_version_that_fails_as_the_launcher(make_pod: MakePod, mistake: str) -> None:
    """After a fault, an error or two seconds of silence the launcher is the old program again, and says so."""
    pod = make_pod({"a": shell(until_end("exit 4"))})
    process = pod.start()
    pod.wait_ready()
    before = lasting_state(process.pid)
    with mistaken(process.pid, mistake):
        # A program that fails does not show the words.
        upgrade(pod, process.pid)
    assert lasting_state(process.pid) == before
    upgrade(pod, process.pid)
    assert lasting_state(process.pid) == before
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    line = "stage1: the launcher goes on in the old version of minit: the new version has failed\n"
    assert (result.returncode, result.stderr) == (4, line)


@pytest.mark.private_users
def test_no_byte_of_a_terminal_is_lost(make_pod: MakePod) -> None:
    """Keys and output that wait for their readers pass to the next program; the terminal is as before at the end."""
    blocks = [b"".join(b"%07d " % (1000 * part + number) for number in range(500)) for part in range(8)]
    size = sum(map(len, blocks))
    pod = make_pod({"a": app_section("/bin/sh", "-c", f"{STTY} raw -echo; echo ready; head -c {size + 1}; exit 3")})
    with Terminal() as terminal:
        settings = terminal.settings
        process = terminal.run(pod)
        terminal.expect(rb"ready\n")
        for block in blocks:
            terminal.type(block)
            upgrade(pod, process.pid)
        assert terminal.is_raw
        # Not before: with the last byte the pod ends, and nobody upgrades any more.
        terminal.type(b".")
        assert terminal.finish(process) == 3
        assert terminal.seen == b"".join(blocks) + b"."
        assert terminal.settings == settings


def test_output_without_a_reader_waits(make_pod: MakePod) -> None:
    """What a launcher could not write yet, the next one writes, also after the end of the pod."""
    pod = make_pod({"a": app_section("/bin/sh", "-c", "seq 1 40000; exit 3")})
    with Terminal() as terminal:
        process = terminal.run(pod)
        wait_for(lambda: pod.file("a", "/").exists() and pod.is_ready(), "the pod")
        for _ in range(3):
            upgrade(pod, process.pid)
        assert terminal.finish(process) == 3
        assert terminal.seen == b"".join(b"%d\r\n" % number for number in range(1, 40001))


def test_a_terminal_after_an_upgrade(make_pod: MakePod, tmp_path: Path) -> None:
    """Its size, its suspension, its escape and its first settings are known to the next program."""
    with sized_console(make_pod, tmp_path / "run") as (terminal, pod, before):
        launcher = launcher_of(pod)
        upgrade(pod, launcher)
        os.kill(launcher, signal.SIGTSTP)
        terminal.expect(rb"Stopped.*ready> ")
        assert terminal.settings == before
        terminal.resize(10, 20)
        terminal.type(b"fg\n")
        wait_for(lambda: terminal.is_raw, "the raw mode")
        terminal.type(b"word\r")
        terminal.expect(rb"word 10 20\r\n")
        upgrade(pod, launcher)
        terminal.resize(11, 21)
        terminal.type(b"word\r")
        terminal.expect(rb"word 11 21\r\n")
        terminal.type(b"\x1d" * 3)
        terminal.expect(rb"ready> ")
        assert terminal.settings == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_signal_is_lost(make_pod: MakePod, number: int) -> None:
    """One that comes while the launcher is executed stops the pod."""
    for sample in range(campaign(4)):
        pod, process = start_stoppable(make_pod)
        offer(pod)
        time.sleep(sample * 0.01)
        process.send_signal(number)
        assert pod.finish(process).returncode == 0
        assert pod.status("a") == 6


def test_a_signal_ignored_by_the_caller(make_pod: MakePod) -> None:
    """A hang-up that the caller ignores, as nohup(1) does, is ignored by the next program too."""
    pod = make_pod({"a": shell(until_end("exit 2"))})
    process = pod.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    pod.wait_ready()
    upgrade(pod, process.pid)
    process.send_signal(signal.SIGHUP)
    upgrade(pod, process.pid)
    pod.file("a", "/tmp/end").touch()
    assert pod.finish(process).returncode == 2


def test_the_starter_is_told_by_the_next_program(make_pod: MakePod, tmp_path: Path) -> None:
    """It hears of readiness and of the stop, by the socket of which no process of the pod knows."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(TIMEOUT_SECONDS)
        pod = make_pod({"a": shell(until_end("exit 0"))})
        process = pod.start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert listener.recv(100) == b"READY=1"
        upgrade(pod, process.pid)
        assert pod.stop().returncode == 0
        assert listener.recv(100) == b"STOPPING=1"
        assert pod.finish(process).returncode == 0


def test_a_failure_is_told_by_the_next_program(make_pod: MakePod) -> None:
    """The line about the failed app is the last one, as without an upgrade."""
    pod = make_pod({"a": shell(until_end("exit 9"))})
    process = pod.start("--tell-failure")
    pod.wait_ready()
    upgrade(pod, process.pid)
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    assert result.returncode == 9
    assert re.fullmatch(r'run: app "?a"? .*\n', result.stderr)


def test_a_launcher_that_cannot_execute(make_pod: MakePod) -> None:
    """The old program goes on and says why, whether the trial could not be made or the new program died in it."""
    pod = make_pod({"a": shell(until_end("exit 5"))})
    process = pod.start(bufsize=0)
    pod.wait_ready()
    before, descriptors, lines = execution_of(process.pid), descriptors_of(process.pid), []
    assert process.stderr is not None
    while b"loopback" not in process.stderr.readline():
        pass
    for resource_number, limit in ((resource.RLIMIT_NOFILE, len(descriptors) + 1), (resource.RLIMIT_AS, 4096)):
        limits = resource.prlimit(process.pid, resource_number)
        resource.prlimit(process.pid, resource_number, (limit, limits[1]))
        offer(pod)
        lines.append(process.stderr.readline().decode())
        resource.prlimit(process.pid, resource_number, limits)
    assert execution_of(process.pid) == before
    wait_for(lambda: descriptors_of(process.pid) == descriptors, "the same descriptors")
    upgrade(pod, process.pid)
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (5, "")
    assert all(line.startswith("stage1: the launcher goes on in the old version of minit: ") for line in lines)
    assert "the program died" in lines[1]


@pytest.mark.private_users
def test_a_program_of_another_user(make_pod: MakePod, tmp_path: Path) -> None:
    """The launcher, root of the host, executes nothing that root of a pod's user namespace could have made."""
    files = tmp_path / "rootfs/usr/lib/minit"
    pod = make_pod({"a": shell(until_end("exit 5"))})
    shutil.copytree(pod.tree / "rootfs/usr/lib/minit", files, symlinks=True)
    os.chown(files / "bin/minit", 65534, 0)
    process = pod.start()
    pod.wait_ready()
    offer(pod, tmp_path)
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    assert result.returncode == 5
    line = "stage1: the launcher goes on in the old version of minit: the program is not the own user's"
    assert line in result.stderr.splitlines()


@pytest.mark.private_users
def test_libraries_of_another_user(
    make_pod: MakePod, private_users: tuple[int, int] | None, other_tree: Path, tmp_path: Path
) -> None:
    """With private users an interpreter that is not dumped is refused: PID 1 could have mounted other libraries."""
    files = tmp_path / "rootfs/usr/lib/minit"
    shutil.copytree(other_tree / "rootfs/usr/lib/minit", files, symlinks=True)
    for path in (files / "lib").rglob("*.so*"):
        os.chown(path, 65534, 0, follow_symlinks=False)
    pod = make_pod({"a": shell(until_end("exit 5"))})
    process = pod.start(bufsize=0)
    pod.wait_ready()
    before, line = execution_of(process.pid), b""
    offer(pod, tmp_path)
    if private_users is None:
        wait_for(lambda: execution_of(process.pid) != before, "the new program of the launcher")
    else:
        assert process.stderr is not None
        while not line.endswith(b": with private users only a dumped program is taken from PID 1\n"):
            line = process.stderr.readline()
            assert line
        assert execution_of(process.pid) == before
    pod.file("a", "/tmp/end").touch()
    assert pod.finish(process).returncode == 5


def test_a_link_to_a_program(make_pod: MakePod, stage1_tree: Path, tmp_path: Path) -> None:
    """A link in an image leads PID 1 and the launcher to no program elsewhere."""
    place = tmp_path / "rootfs/usr/lib/minit/bin"
    place.mkdir(parents=True)
    (place / "minit").symlink_to(stage1_tree / "rootfs/usr/lib/minit/bin/minit")
    pod = make_pod({"a": shell(until_end("exit 5"))})
    process = pod.start()
    pod.wait_ready()
    error = "usr/lib/minit/bin/minit: too many levels of symbolic links"
    assert test_reexecution.upgrade(pod, tmp_path) == {"ok": False, "error": error}
    pod.file("a", "/tmp/end").touch()
    assert pod.finish(process).returncode == 5


def test_a_launcher_that_is_killed(make_pod: MakePod) -> None:
    """At any moment of an upgrade its end stops the pod, as ever: apps end in their own way."""
    for sample in range(campaign(5)):
        pod, process = start_stoppable(make_pod)
        offer(pod)
        time.sleep(sample * 0.008)
        process.kill()
        assert pod.wait_status("a") == 6
        pod.wait_exited()
        process.wait()


def test_a_pid_1_that_is_killed(make_pod: MakePod) -> None:
    """At any moment of an upgrade its end is seen by the launcher, which ends by the same signal."""
    for sample in range(campaign(5)):
        pod = make_pod({"a": shell(FOREVER)})
        process = pod.start()
        pod.wait_ready()
        offer(pod)
        time.sleep(sample * 0.008)
        os.kill(pod.pid, signal.SIGKILL)
        result = pod.finish(process)
        assert result.returncode == -signal.SIGKILL
        assert result.stderr.count("PID 1 of the pod was killed by somebody on the host") == 1


def test_a_pod_without_a_pid_namespace(make_pod: MakePod) -> None:
    """The next program kills what is left of the pod when PID 1 is killed."""
    pod = make_pod({"a": shell(FOREVER)}, annotations={"minit/pid-namespace": "host"})
    process = pod.start()
    pod.wait_ready()
    upgrade(pod, process.pid)
    members = pod.members()
    os.kill(pod.pid, signal.SIGKILL)
    assert pod.finish(process).returncode == -signal.SIGKILL
    assert members
    assert not any(is_alive(pid) for pid in members)


# Helpers.


def helper_of(launcher: int, name: str) -> int:
    """Return the helper of the launcher with this name."""
    [helper] = named(children_of(launcher), name)
    return helper


@contextmanager
def with_new_helper(launcher: int, name: str) -> Iterator[None]:
    """Wait, after an upgrade, for the new program of the helper."""
    helper = helper_of(launcher, name)
    before, words = execution_of(helper), words_of(helper)
    yield
    wait_for(lambda: execution_of(helper) != before, "the new program of the helper")
    # The words come last.
    wait_for(lambda: words_of(helper) == words, "the words of the helper")
    assert helper_of(launcher, name) == helper


@pytest.mark.private_users
def test_checks_go_on(make_pod: MakePod) -> None:
    """A check under way ends, none is made twice or left out for long, and results and counts are known."""
    startup = {"exec": ["/bin/sh", "-c", "echo >> /tmp/startup"]}
    liveness = {
        "exec": ["/bin/sh", "-c", "echo begin >> /tmp/log; sleep 0.3; echo end >> /tmp/log; [ ! -e /tmp/ill ]"],
        "action": "none",
        "failures": 3,
    }
    pod = make_pod({"web": annotated("exec sleep 1000", startup=startup, liveness=liveness)})
    process = pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    wait_for(lambda: is_healthy(pod, "liveness") is True, "a good result")
    for _ in range(3):
        wait_for(lambda: pod.file("web", "/tmp/log").read_text().endswith("begin\n"), "a check under way")
        with with_new_helper(process.pid, "minit-health"):
            upgrade(pod, process.pid)
    assert pod.file("web", "/tmp/startup").read_text() == "\n"
    pod.file("web", "/tmp/ill").touch()
    with with_new_helper(process.pid, "minit-health"):
        upgrade(pod, process.pid)
    wait_for(lambda: is_healthy(pod, "liveness") is False, "a bad result")
    lines = pod.file("web", "/tmp/log").read_text().split()
    assert lines[::2] == ["begin"] * len(lines[::2])
    assert lines[1::2] == ["end"] * len(lines[1::2])
    assert pod.stop("--force").returncode == 0
    assert pod.finish(process).stderr == ""


def test_a_helper_that_does_not_go_on(make_pod: MakePod) -> None:
    """A helper that cannot try the program goes on with the old one, says why, and follows the next time."""
    # After its first check the helper is at rest.
    pod = make_pod({"web": annotated("exec sleep 1000", liveness={"exec": ["/bin/true"], "interval": "1h"})})
    process = pod.start(stdout=subprocess.DEVNULL, bufsize=0)
    pod.wait_ready()
    assert process.stderr is not None
    assert b"loopback" in process.stderr.readline()
    wait_for(lambda: is_healthy(pod, "liveness") is True, "a good result")
    helper = helper_of(process.pid, "minit-health")
    before, taken, limits = (
        execution_of(helper),
        descriptors_of(helper),
        resource.prlimit(helper, resource.RLIMIT_NOFILE),
    )
    # The image comes by one more.
    most = 1 + next(number for number in range(len(taken) + 1) if number not in taken)
    resource.prlimit(helper, resource.RLIMIT_NOFILE, (most, limits[1]))
    upgrade(pod, process.pid)
    line = process.stderr.readline()
    assert line.startswith(b"stage1: the health helper goes on in the old version of minit: "), line
    assert line.endswith(b": too many open files\n"), line
    resource.prlimit(helper, resource.RLIMIT_NOFILE, limits)
    assert execution_of(helper) == before
    with with_new_helper(process.pid, "minit-health"):
        upgrade(pod, process.pid)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("mistake", ["arch_prctl:retval=0:when=1", "prctl:error=EPERM:when=2"])
def test_a_version_that_fails_as_a_helper(make_pod: MakePod, mistake: str) -> None:
    """After a fault or an error the helper is the old program again, says so, checks on, and ends with the launcher."""
    check = {"exec": ["/bin/sh", "-c", "echo >> /tmp/log"], "timeout": "10s"}
    pod = make_pod({"web": annotated("exec sleep 1000", liveness=check)})
    process = pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    pod.wait_file("web", "/tmp/log")
    helper = helper_of(process.pid, "minit-health")
    before = rights_of(helper), words_of(helper)
    with mistaken(helper, mistake), with_new_helper(process.pid, "minit-health"):
        upgrade(pod, process.pid)
    assert (rights_of(helper), words_of(helper)) == before
    with with_new_helper(process.pid, "minit-health"):
        upgrade(pod, process.pid)
    assert (rights_of(helper), words_of(helper)) == before
    size = pod.file("web", "/tmp/log").stat().st_size
    wait_for(lambda: pod.file("web", "/tmp/log").stat().st_size > size, "another check")
    process.kill()
    said = process.communicate()[1]
    text = said if isinstance(said, str) else said.decode()
    assert "stage1: the health helper goes on in the old version of minit: the new version has failed\n" in text
    wait_for(lambda: not is_alive(helper), "the end of the helper")
    pod.wait_exited()


def test_a_helper_that_is_killed_meanwhile(make_pod: MakePod) -> None:
    """At any moment of an upgrade its end is told once, and the pod goes on."""
    check = {"exec": ["/bin/true"], "timeout": "10s"}
    line = "stage1: warning: the health of apps is not checked any more: the process that did it died"
    for sample in range(campaign(5)):
        pod = make_pod({"web": annotated("exec sleep 1000", liveness=check)})
        process = pod.start()
        pod.wait_ready()
        helper = helper_of(process.pid, "minit-health")
        with in_new_launcher(process.pid):
            offer(pod)
            time.sleep(sample * 0.008)
            os.kill(helper, signal.SIGKILL)
        assert pod.stop().returncode == 0
        result = pod.finish(process)
        assert (result.returncode, result.stderr.splitlines().count(line)) == (0, 1)


@needs_loop_devices
@pytest.mark.private_users
def test_devices_follow_after_an_upgrade(
    make_pod: MakePod, private_users: tuple[int, int] | None, loop: LoopDevice, other_tree: Path
) -> None:
    """What the old helper has taken off and put there is known to the new one, whichever interpreter has it."""
    watched = Watched(make_pod, loop.path)
    launcher, words = watched.process.pid, ["opens"]
    watched.expect(*words)
    for tree in (None, other_tree if private_users is None else None, None):
        with with_new_helper(launcher, "minit-devices"):
            upgrade(watched.pod, launcher, tree)
        loop.remove()
        words.append("missing")
        watched.expect(*words)
        with with_new_helper(launcher, "minit-devices"):
            upgrade(watched.pod, launcher, tree)
        loop.add()
        words.append("opens")
        watched.expect(*words)
        assert f"{loop.rule} rw" in allowed_devices(watched.pod)
    assert watched.end() == ""
