"""
Every system call of a machine's first program made to fail, one in each boot, and some that never return.

An ordinary run fails one call of each name, and a fifth of those at that; a long one every call.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.campaign import LONG, few
from tests.support.faults import HANG, LAUNCHER, LOOKS, NEVER_FAIL, Call, Faults
from tests.support.firstprogram import NamespaceMachine
from tests.support.pods import MakePod, shell

# The programs that are executed: that of the tests, the launcher of the image, the interpreter.
EXECS = 3
ERRORS = (errno.ENOMEM, errno.EIO)
FIRST = Call(LAUNCHER, "prctl", 1)  # of minit's own, after those of the interpreter's start
CONFIG = """
    on_exit = "reboot"
    failure_wait_seconds = 0
    unmount_seconds = 1
    [watchdog]
    device = "/run-watchdog"
"""
# What a boot without a failure says beside the app's line.
USUAL = {"minit: the pod has ended with 0", "minit: reboot"}


pytestmark = pytest.mark.host_users("a machine has all users there are")


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """A tracer of the first process alone."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS, alone=True)


def boot(
    make_pod: MakePod, under: Callable[[int], list[str]], config: str = CONFIG
) -> tuple[NamespaceMachine, list[str]]:
    """Boot a machine of one app under a tracer; return it when it has ended, and what the tracer has written."""
    prepared = make_pod({"one": shell("echo hello")}, overlay=False)
    directory = Path(tempfile.mkdtemp(dir=prepared.path.parent))
    with tempfile.TemporaryFile("w+") as log:
        fd = log.fileno()
        with NamespaceMachine(directory, prepared, config, under=under(fd), pass_fds=(fd,)) as machine:
            machine.wait()
        # The machine has had a copy of its own; other tests look at all pods beside it.
        for path in (prepared.path, directory):
            shutil.rmtree(path)
        log.seek(0)
        return machine, log.readlines()


def record(make_pod: MakePod, faults: Faults) -> list[Call]:
    """Return the calls of the first process from its first own one on, to the end of the machine."""
    machine, lines = boot(make_pod, faults.recording)
    assert machine.ending == "reboot"
    calls = faults.read_calls(lines)
    return [call for call in calls[calls.index(FIRST) :] if call.name not in NEVER_FAIL]


def fail(make_pod: MakePod, faults: Faults, call: Call, number: int) -> str:
    """Boot a machine of which one call fails, and return what is wrong with its end; empty if nothing is."""
    machine, _ = boot(make_pod, lambda fd: faults.fault(fd, call, number))
    ran = any(line.startswith("one[") and line.endswith("]: hello") for line in machine.lines)
    said = [line for line in machine.lines if line not in USUAL and not line.startswith("one[")]
    # A file of the image that seems not to be there is no error that is expected.
    is_defect = call.name not in LOOKS and any("a bug in minit" in line for line in said)
    is_unread = any(line.endswith("going on as without it") for line in said)
    right = machine.ending == ("off" if is_unread else "reboot") and (ran or said) and not is_defect
    return "" if right else f"{call} {errno.errorcode[number]}: {machine.ending} {machine.lines}"


def test_no_failure_ends_the_first_program(make_pod: MakePod, faults: Faults) -> None:
    """After any failure the machine ends as configured, and has run its app or told why it could not."""
    calls = record(make_pod, faults)
    if not LONG:
        calls = list({call.name: call for call in calls}.values())
    cases = few([(call, ERRORS[count % len(ERRORS)]) for count, call in enumerate(calls)])
    assert len(cases) >= 9
    with ThreadPoolExecutor(2) as executor:
        wrong = list(executor.map(lambda case: fail(make_pod, faults, *case), cases))
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_a_disk_that_does_not_answer(make_pod: MakePod, tmp_path: Path) -> None:
    """That a file system cannot be left in time is said, and the machine ends all the same."""
    # The process that PID 1 forks last: after helper, app and spawner.
    faults, call = Faults(tmp_path, EXECS), Call(f"{LAUNCHER}.3", "sync", 1)
    machine, reached = boot(make_pod, lambda fd: faults.fault(fd, call, HANG))
    assert reached
    assert "minit: file systems are still in use after 1 s: left as they are" in machine.lines
    assert machine.ending == "reboot"


def test_a_supervisor_that_fails(make_pod: MakePod, faults: Faults) -> None:
    """After an error of the supervisor the first process goes on in another program: the machine ends as configured."""
    call = Call(LAUNCHER, "epoll_wait", 1)
    machine, reached = boot(make_pod, lambda fd: faults.fault(fd, call, errno.EIO))
    assert reached
    assert "stage1: error of PID 1: OSError: [Errno 5] Input/output error: PID 1 goes on" in machine.lines
    assert any(line.endswith("]: hello") for line in machine.lines)
    assert machine.lines[-2:] == ["minit: the pod has ended with 0", "minit: reboot"]
    assert machine.ending == "reboot"


def test_a_machine_that_cannot_be_rebooted(make_pod: MakePod, faults: Faults) -> None:
    """It is tried again."""
    call = Call(LAUNCHER, "reboot", 2)  # the first one is about Ctrl-Alt-Del
    machine, reached = boot(make_pod, lambda fd: faults.fault(fd, call, errno.EIO))
    assert reached
    assert "minit: reboot: input/output error" in machine.lines
    assert machine.ending == "reboot"
