"""
Every system call of a pod's start made to fail, one in each start, in every process that takes part.

An ordinary run fails one call of each name in each process, a long one every call.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from minit.base.errors import reason_of
from tests.support.campaign import LONG, thinned
from tests.support.faults import ANY, KILL, LAUNCHER, LOOKS, NEVER_FAIL, Call, Faults, Roles
from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

# The launcher of the image executes the interpreter, which is the second program.
EXECS = 2
ERRORS = (errno.ENOMEM, errno.EIO)
ALL = {"all"}
LIMITS = [
    {"name": "resource/memory", "value": {"limit": "64Mi"}},
    {"name": "os/linux/cpu-shares", "value": 512},
]

NEWER = {
    *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "mount_setattr", "openat2", "clone3", "close_range")
}

# Where a failure during the start may do no harm, and why: all others end it.
HARMLESS = {
    "launcher": {
        *LOOKS,
        *("ioctl", "readlink"),  # the same
        *("mkdir", "getsockname"),  # of a directory for volumes that is there; by which Python knows a socket to be one
    },
    # The same, of a sidecar's sockets, which are made anew; by which PID 1 shows other words than the launcher's.
    "PID 1": {*LOOKS, "getsockname", "process_vm_writev"},
    "app": set(),
    **dict.fromkeys(("spawner", "sidecar"), ALL),  # another one takes over
}


class Case(NamedTuple):
    """A call of a process of that kind, and the error it fails with."""

    kind: str
    call: Call
    errno: int
    may_be_harmless: bool


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


def two_apps(make_pod: MakePod) -> PodDirectory:
    """Return a pod of two apps, whose set-up has what there is to set up."""
    volumes: list[dict[str, Any]] = [
        {"name": "directory", "kind": "host", "source": "/usr/share", "readOnly": True},
        {"name": "file", "kind": "host", "source": "/etc/passwd", "readOnly": True},
        {"name": "device", "kind": "host", "source": "/dev/zero"},
        {"name": "empty", "kind": "empty", "mode": "0750", "uid": 5, "gid": 6},
    ]
    names = [volume["name"] for volume in volumes]
    app = shell(
        "echo hello",
        user="/bin/busybox",
        group="/etc",
        mounts=[{"volume": name, "path": f"/volumes/{name}"} for name in names],
        readOnlyRootFS=True,
        isolators=[
            *([] if SURROUNDING == NO_GROUPS else LIMITS),
            {"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_NET_ADMIN"]}},
        ],
    )
    return make_pod({"a": app, "b": app}, volumes=volumes)


def record(faults: Faults, pod: PodDirectory) -> list[Call]:
    """Return the calls of a start in order, those of the launcher from its own first one on."""
    with tempfile.TemporaryFile("w+") as log:
        assert pod.run(under=faults.recording(log.fileno()), pass_fds=(log.fileno(),)).returncode == 0
        log.seek(0)
        calls = faults.read_calls(log)
    first = calls.index(Call(LAUNCHER, "prctl", 1))
    return [call for index, call in enumerate(calls) if index >= first and call.name not in NEVER_FAIL]


def cases_of(calls: list[Call], kind: str) -> Iterator[Case]:
    """
    Yield the calls to fail in one process: in an ordinary run the last of each name during the start.

    Of a sidecar it is the first of each name: how far it comes during the start, and what it does in which portions,
    is a matter of time.
    """
    roles = Roles(calls)
    who = {
        "launcher": LAUNCHER,
        "PID 1": roles.pid_1,
        "app": roles.apps[0],
        "spawner": roles.spawner,
        "sidecar": roles.sidecars[0],
    }[kind]
    # Until the pod is ready, or an app has ended already; in PID 1 until all apps are told to exec, as it gives them
    # sidecars then, which is tried again.
    started = min(calls.index(Call(roles.pid_1, name, 1)) for name in ("symlink", "wait4"))
    if kind == "PID 1":
        started = calls.index(Call(roles.pid_1, "sendto", len(roles.apps)))
    chosen = [index for index, call in enumerate(calls) if call.who == who]
    if not LONG and kind == "sidecar":
        chosen = list({calls[index].name: index for index in reversed(chosen)}.values())
    elif not LONG:
        chosen = list({calls[index].name: index for index in chosen if index <= started}.values())
    for count, index in enumerate(chosen):
        # A console with an I/O error is given up, which is no failure of the sidecar.
        number = errno.ENOMEM if kind == "sidecar" else ERRORS[count % len(ERRORS)]
        tolerated = HARMLESS[kind]
        harmless = index >= started or tolerated is ALL or calls[index].name in tolerated
        yield Case(kind, calls[index], number, harmless)


def run(faults: Faults, pod: PodDirectory, case: Case) -> str:
    """Start a pod of which one call fails, and return what is wrong with how it ended; empty if nothing is."""
    mounts = pod.mounts()
    reader, writer = os.pipe()
    process = pod.start(under=faults.fault(writer, case.call, case.errno), pass_fds=(writer,))
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
    line = _expected_line(case)
    survived = [text for text in _said(result) if re.fullmatch(r"stage1: error of PID 1.*: PID 1 goes on", text)]
    if result.returncode == 0:
        if was_reached and not (case.may_be_harmless or survived):
            problems.append("no failure")
        # A sidecar says why it ends before another one goes on.
        said = [text for text in _said(result) if not text.startswith("iottymux: app a: ") and text not in survived]
        if statuses != (0, 0) or said or "a[" not in result.stdout or "b[" not in result.stdout:
            problems.append("not unharmed")
    elif result.returncode != (203 if line.startswith("a") else 254) or not re.fullmatch(
        line, "\n".join(_said(result))
    ):
        problems.append("not one line")
    if problems:
        return f"{' '.join(problems)}: {case}: {result.returncode} {statuses} {result.stdout!r} {result.stderr!r}"
    pod.remove()
    return ""


def _expected_line(case: Case) -> str:
    if case.kind == "app" and case.call.name == "execve":
        return rf'a\[\d+\]: Error: Unable to execute "/bin/sh": {os.strerror(case.errno)}'
    who = 'app "a": ' if case.kind == "app" else ""
    # A file that seemed not to be there: the reason shows in what comes of it.
    missed = "|file exists|No module named '[a-z.]+'" if case.call.name in LOOKS else ""
    return rf"stage1: {who}[^:]+.*: ({reason_of(case.errno)}{missed})"


def _said(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines on stderr, without the one about the network that every such pod has."""
    return [line for line in result.stderr.splitlines() if not line.startswith("networking: ")]


@pytest.mark.parametrize("kind", HARMLESS)
def test_every_step_that_fails_is_named(make_pod: MakePod, faults: Faults, kind: str) -> None:
    """
    A call that fails ends the start with 254 and one line of the step and the reason, or does no harm at all.

    Of an error of PID 1 beside starting apps a line tells, and nothing else. Nothing hangs, nothing is left, and what
    is harmless stands in a list.
    """
    cases = list(cases_of(record(faults, two_apps(make_pod)), kind))
    assert len(cases) >= 8
    with ThreadPoolExecutor(2) as executor:
        wrong = list(executor.map(lambda case: run(faults, two_apps(make_pod), case), thinned(cases)))
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_calls_that_a_kernel_does_not_have(make_pod: MakePod, faults: Faults) -> None:
    """Each call of Linux 5.2 or newer that is missing ends the start with 254 and one line, and leaves nothing."""
    calls = record(faults, two_apps(make_pod))
    roles = Roles(calls)
    kinds = {LAUNCHER: "launcher", roles.pid_1: "PID 1", roles.apps[0]: "app"}
    cases = [
        Case(kinds[call.who], call, errno.ENOSYS, False)
        for call in calls
        if call.who in kinds and call.name in NEWER and call.nth == 1
    ]
    assert {case.call.name for case in cases} == NEWER
    with ThreadPoolExecutor(2) as executor:
        wrong = list(executor.map(lambda case: run(faults, two_apps(make_pod), case), thinned(cases)))
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_a_first_process_that_is_killed(make_pod: MakePod, faults: Faults) -> None:
    """Without groups the start ends with one line that names the process, or the app; with groups there is none."""
    # The app may have been forked before, and is killed by the kernel.
    ends = (
        (254, ["stage1: start the apps: the first process of the app's PID namespace has ended"]),
        (137, ['stage1: app "a": killed by signal 9']),
    )
    for who in Roles(record(faults, two_apps(make_pod))).first_processes:
        pod = two_apps(make_pod)
        with tempfile.TemporaryFile("w+") as log:
            words = faults.fault(log.fileno(), Call(who, ANY, 1), KILL)
            result = pod.run(under=words, pass_fds=(log.fileno(),))
        assert (result.returncode, _said(result)) in ends, result
        assert pod.gc().returncode == 0


def test_every_step_of_an_event_handler_that_fails_is_named(make_pod: MakePod, faults: Faults) -> None:
    """Its own output says which and why, and the app whose pre-start handler failed is never started."""

    def pod() -> PodDirectory:
        return make_pod({"a": shell("echo hello", eventHandlers=handlers(pre_start=["/bin/true"]))})

    recorded = record(faults, pod())
    [who] = Roles(recorded).handlers
    calls = [call for call in recorded if call.who == who]
    # The first and the last of each name.
    cases = {*{call.name: call for call in calls}.values(), *{call.name: call for call in reversed(calls)}.values()}
    assert len(cases) > 20

    def fail(call: Call) -> tuple[bool, str]:
        own = pod()
        reader, writer = os.pipe()
        process = own.start(under=faults.fault(writer, call, errno.ENOMEM), pass_fds=(writer,))
        os.close(writer)
        result = own.finish(process)
        with open(reader) as events:
            was_reached = bool(events.read())
        own.wait_exited()
        # One comes from the sidecar, the other one from PID 1.
        lines = sorted(_said(result), key=lambda line: line.startswith("stage1: "))
        if was_reached:
            reason = r"(a\[\d+\]: )?Error: [^:]+.*: [cC]annot allocate memory"
            verdict = r'stage1: app "a": pre-start: exited with (203|254)'
            right = (result.returncode, result.stdout, len(lines)) == (254, "", 2)
            right = right and bool(re.fullmatch(reason, lines[0]) and re.fullmatch(verdict, lines[1]))
        else:
            right = result.returncode == 0 and not lines and result.stdout.endswith(": hello\n")
        right = own.gc().returncode == 0 and right
        own.remove()
        return was_reached, "" if right else f"{call}: {result}"

    with ThreadPoolExecutor(2) as executor:
        outcomes = list(executor.map(fail, sorted(cases)))
    wrong = [problem for _, problem in outcomes if problem]
    assert not wrong, "\n".join(wrong)
    # How many calls of close_range(2) there are depends on the numbers that PID 1's descriptors happen to have.
    assert [was_reached for was_reached, _ in outcomes].count(True) > 0.8 * len(outcomes)
