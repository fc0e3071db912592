"""
System calls made to fail, one in each start, of the helper that connects a pod to its networks, and of the launcher.

Of the helper an ordinary run fails one call of each name, and a long one every call. Of the launcher, whose other calls
tests/contract/test_faults.py has, it is those by which it deals with the helper and joins the networks.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from minit.base.errors import reason_of
from tests.support.campaign import LONG, thinned
from tests.support.faults import LAUNCHER, LOOKS, NEVER_FAIL, Call, Faults, Roles
from tests.support.hostnet import left_by, leftovers
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for

# The launcher of the image executes the interpreter, which is the second program.
EXECS = 2
ERRORS = (errno.ENOMEM, errno.EIO, errno.EPERM)
NETWORKS = "default,default-restricted"
PORTS = itertools.count(20000)

# Calls that may fail, and why. In a long run others may too, those for a sysctl(8) of IPv6 say.
HARMLESS = {
    *LOOKS,
    "ioctl",  # the same
    "mkdir",  # of a directory that is there
    "epoll_create1",  # importing selectors tries whether there is epoll
    "recvmsg",  # when the pod has what it needs
    "read",  # at the end of a file that is read: Python 3.14 is content with what it has
}
LAUNCHERS = {"socketpair", "clone", "signalfd4", "poll", "recvmsg", "setns", "sendmsg", "wait4"}
# After these nothing is undone at once, but by gc: the helper cannot get back to the host's network, or has been told
# that the pod goes on.
LEFT_TO_GC = {"setns", "wait4"}
# What a file that seems not to be there leads to.
MISSED = (
    r"no such file or directory|file exists|No module named '[\w.]+'|cannot import name '\w+' from .*"
    r"|AttributeError: module '\w+' has no attribute '\w+'"
)


class Case(NamedTuple):
    """A call, and the error it fails with."""

    call: Call
    errno: int


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """In the end there is nothing in the host's network, of whatever pod."""
    yield
    assert leftovers() == []


def server(make_pod: MakePod) -> PodDirectory:
    """Return a pod with a forwarded port that says how many addresses and routes it has."""
    script = "ip -4 -o addr | wc -l; ip route | wc -l"
    section = shell(script, ports=[{"name": "http", "protocol": "tcp", "port": 80}])
    return make_pod({"a": section}, ports=[{"name": "http", "hostPort": next(PORTS)}])


def cases(calls: list[Call]) -> list[Case]:
    """Return what is to fail."""
    chosen = [call for call in calls if call.name not in NEVER_FAIL]
    if not LONG:
        chosen = list({call.name: call for call in chosen}.values())
    return [Case(call, ERRORS[count % len(ERRORS)]) for count, call in enumerate(chosen)]


class Outcome(NamedTuple):
    """The result of a good start: output of the app, and the number of its remains until gc."""

    output: str
    parts: int


def run(faults: Faults, pod: PodDirectory, case: Case, right: Outcome) -> str:
    """Start a pod of which one call fails, and return what is wrong with how it ended; empty if nothing is."""
    reader, writer = os.pipe()
    process = pod.start(under=faults.fault(writer, case.call, case.errno), pass_fds=(writer,), net=NETWORKS)
    os.close(writer)
    result = pod.finish(process)
    with open(reader) as events:
        was_reached = bool(events.read())
    pod.wait_exited()
    wait_for(lambda: pod.members() == [], "the end of all processes")
    problems = []
    if result.returncode == 0:
        if was_reached and not LONG and case.call.name not in HARMLESS:
            problems.append("no failure")
        if result.stderr or Outcome(result.stdout, len(left_by(pod.uuid))) != right:
            problems.append("not unharmed")
    else:
        problems += _check_failure(pod, case, result)
    collected = pod.gc()
    if collected.returncode or collected.stderr:
        problems.append(f"gc: {collected}")
    problems += left_by(pod.uuid)
    if problems:
        return f"{' '.join(problems)}: {case}: {result.returncode} {result.stdout!r} {result.stderr!r}"
    pod.remove()
    return ""


def _check_failure(pod: PodDirectory, case: Case, result: subprocess.CompletedProcess[str]) -> list[str]:
    reasons = f"{reason_of(case.errno)}|{os.strerror(case.errno)}|{MISSED}"
    line = rf"stage1: failed to (setup network|make PID 1): (.*: )?({reasons})\n"
    problems = []
    if (result.returncode, result.stdout) != (254, "") or not re.fullmatch(line, result.stderr):
        problems.append("not one line")
    if case.call.name not in LEFT_TO_GC:
        problems += left_by(pod.uuid)
        problems += [name for name in ("netns", "net-info.json") if (pod.path / name).exists()]
    return problems


@pytest.mark.parametrize("victim", ["helper", "launcher"])
def test_every_step_that_fails_is_named(make_pod: MakePod, faults: Faults, victim: str) -> None:
    """
    A call that fails ends the start with 254 and one line of the reason, or does no harm at all.

    Nothing hangs, and nothing is left even before gc.
    """
    pod = server(make_pod)
    with tempfile.TemporaryFile("w+") as log:
        under = faults.recording(log.fileno())
        result = pod.run(under=under, pass_fds=(log.fileno(),), net=NETWORKS)
        assert (result.returncode, result.stderr) == (0, "")
        log.seek(0)
        calls = faults.read_calls(log)
    helper = Roles(calls).network_helper
    if victim == "helper":
        todo = cases([call for call in calls if call.who == helper])
    else:
        started = calls.index(Call(LAUNCHER, "socketpair", 1))
        own = [call for call in calls[started:] if call.who == LAUNCHER and call.name in LAUNCHERS]
        # Until the helper is gone: what comes then is the pod's.
        ended = next(index for index, call in enumerate(own) if call.name == "wait4")
        todo = cases(own[: ended + 1])
    right = Outcome(result.stdout, len(left_by(pod.uuid)))
    with ThreadPoolExecutor(2) as executor:
        wrong = list(executor.map(lambda case: run(faults, server(make_pod), case, right), thinned(todo)))
    assert not any(wrong), "\n".join(filter(None, wrong))
