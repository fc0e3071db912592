"""
Every system call of a pod's start made to fail, one in each start, in every process that takes part.

An ordinary run fails one call of each name in each process, a long one every call.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from minit.errors import reason_of
from tests.support.campaign import LONG
from tests.support.faults import LAUNCHER, Call, Faults, Roles
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for

# The launcher of the image executes the interpreter, which is the second program.
EXECS = 2
ERRORS = (errno.ENOMEM, errno.EIO)
ALL = {"all"}

# Calls that cannot fail, that the C library and the interpreter make for their own memory, or that end the process.
NEVER_FAIL = {"close", "umask", "lseek", "getpid", "gettid", "geteuid", "rseq", "brk", "mmap", "munmap", "exit_group"}

# Where a failure does no harm, and why: all others end the start.
HARMLESS = {
    "launcher": {
        *("newfstatat", "ioctl", "readlink"),  # looks at a file that decide nothing, before a mkdir(2) say
    },
    "PID 1": {
        "newfstatat",
        *("openat", "fchmod", "fsync", "renameat", "write"),  # of a status, which is written again
        "unlink",  # of the readiness, which no longer matters
    },
    "app": set(),
    "spawner": {"recvmsg"},  # once it has nothing more to do
    "sidecar": ALL,  # another one takes over
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


def two_apps(make_pod: MakePod, script: str = "echo hello") -> PodDirectory:
    """Return a pod of two apps, whose set-up has what there is to set up."""
    return make_pod({name: shell(script, user="/bin/busybox", group="/etc") for name in ("a", "b")})


def record(faults: Faults, pod: PodDirectory) -> list[Call]:
    """Return the calls of a start in order, those of the launcher from its own first one on."""
    with tempfile.TemporaryFile("w+") as log:
        assert pod.run(under=faults.recording(log.fileno()), pass_fds=(log.fileno(),)).returncode == 0
        log.seek(0)
        calls = faults.read_calls(log)
    first = calls.index(Call(LAUNCHER, "prctl", 1))
    return [call for index, call in enumerate(calls) if index >= first and call.name not in NEVER_FAIL]


def cases_of(calls: Iterable[Call], kind: str) -> Iterator[tuple[Call, int]]:
    """Yield each call to fail with the error it fails with: in an ordinary run the last of each name."""
    chosen = list(calls)
    if not LONG:
        chosen = list({call.name: call for call in chosen}.values())
    for index, call in enumerate(chosen):
        # A console with an I/O error is given up, which is no failure of the sidecar.
        yield call, errno.ENOMEM if kind == "sidecar" else ERRORS[index % len(ERRORS)]


def fail(faults: Faults, pod: PodDirectory, call: Call, number: int, kind: str) -> str:
    """Start a pod of which one call fails, and return what is wrong with how it ended; empty if nothing is."""
    mounts = pod.mounts()
    reader, writer = os.pipe()
    process = pod.start(under=faults.fault(writer, call, number), pass_fds=(writer,))
    os.close(writer)
    result = pod.finish(process)
    with open(reader) as events:
        was_reached = bool(events.read())
    pod.wait_exited()
    wait_for(lambda: pod.members() == [], "the end of all processes")
    statuses = (pod.status("a"), pod.status("b"))
    problems = [] if pod.mounts() == mounts else ["mounts"]
    if pod.gc().returncode or pod.control_groups():
        problems.append("gc")
    line = _expected_line(call, number, kind)
    if result.returncode == 0:
        if was_reached and HARMLESS[kind] is not ALL and call.name not in HARMLESS[kind]:
            problems.append("no failure")
        # A sidecar says why it ends before another one goes on.
        said = [text for text in result.stderr.splitlines() if not text.startswith("iottymux: app a: ")]
        if statuses != (0, 0) or said or "a[" not in result.stdout or "b[" not in result.stdout:
            problems.append("not unharmed")
    elif result.returncode != (203 if line.startswith("a") else 254) or not re.fullmatch(line, result.stderr):
        problems.append("not one line")
    if problems:
        end = f"{result.returncode} {statuses} {result.stdout!r} {result.stderr!r}"
        return f"{' '.join(problems)}: {' '.join(map(str, call))} {reason_of(number)}: {end}"
    pod.remove()
    return ""


def _expected_line(call: Call, number: int, kind: str) -> str:
    if kind == "app" and call.name == "execve":
        return rf'a\[\d+\]: Error: Unable to execute "/bin/sh": {os.strerror(number)}\n'
    who = 'app "a": ' if kind == "app" else ""
    # The interpreter does not say why a file that it looked for is not there.
    return rf"stage1: {who}[^:]+.*: ({reason_of(number)}|No module named '[a-z.]+')\n"


@pytest.mark.parametrize("kind", HARMLESS)
def test_every_step_that_fails_is_named(make_pod: MakePod, faults: Faults, kind: str) -> None:
    """
    A call that fails ends the start with 254 and one line of the step and the reason, or does no harm at all.

    Nothing hangs, nothing is left, and what is harmless stands in a list.
    """
    calls = record(faults, two_apps(make_pod))
    roles = Roles(calls)
    processes = {
        "launcher": LAUNCHER,
        "PID 1": roles.pid_1,
        "app": roles.apps[0],
        "spawner": roles.spawner,
        "sidecar": roles.sidecars[0],
    }
    cases = list(cases_of((call for call in calls if call.who == processes[kind]), kind))
    assert len(cases) >= 8
    with ThreadPoolExecutor(2) as executor:
        wrong = list(executor.map(lambda case: fail(faults, two_apps(make_pod), *case, kind), cases))
    assert not any(wrong), "\n".join(filter(None, wrong))
