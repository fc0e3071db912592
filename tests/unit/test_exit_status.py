"""minit.reaper.exit_status: how a process ended, and the number for it."""

from __future__ import annotations

import errno
import os
import resource
import signal

import pytest

from minit.reaper.exit_status import STEP_EXEC, ExitStatus, from_wait_status

DEADLY = sorted(
    {*range(1, signal.NSIG)}
    - {32, 33}  # the C library's own
    - {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)


def death_by(number: int) -> ExitStatus:
    """Return the status of a child that sends itself a signal."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return from_wait_status(status)


def test_every_exit_code_is_its_own_number() -> None:
    """All 256 codes come through as they are, whether a stop was requested or not."""
    for code in range(256):
        status = from_wait_status(code << 8)  # as wait(2) has it
        assert status == ExitStatus(code=code)
        assert status.number() == status.number(signal.SIGTERM) == code


@pytest.mark.parametrize("number", DEADLY)
def test_every_deadly_signal_is_128_more(number: int) -> None:
    """Death by signal n is 128+n, and 0 if n is the signal of a requested stop."""
    status = death_by(number)
    assert (status.signal, status.code) == (number, None)
    assert status.number() == 128 + number
    assert status.number(number) == 0
    assert status.number(signal.SIGTERM) == (0 if number == signal.SIGTERM else 128 + number)


def test_kill_after_the_grace_period_is_137() -> None:
    """SIGKILL is never the polite stop."""
    assert ExitStatus(signal=signal.SIGKILL).number(signal.SIGTERM) == 137


def test_failures_before_the_program() -> None:
    """A failed exec is rkt's 203, a failed step before it 254, stop requested or not."""
    assert ExitStatus(step=STEP_EXEC, errno=errno.ENOENT, path="/x").number() == 203
    assert ExitStatus(step="change directory to", errno=errno.ENOENT, path="/x").number(signal.SIGTERM) == 254


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExitStatus(code=0), "exited with 0"),
        (ExitStatus(code=3), "exited with 3"),
        (ExitStatus(signal=9), "killed by signal 9"),
        (ExitStatus(signal=11, core_dumped=True), "killed by signal 11 (core dumped)"),
        (ExitStatus(step="exec", errno=errno.ENOENT, path="/x"), "exec /x: no such file or directory"),
        (ExitStatus(step="mount", errno=errno.EPERM), "mount: operation not permitted"),
        (
            ExitStatus(step="find executable", path='unable to find "x" in "/bin"'),
            'find executable: unable to find "x" in "/bin"',
        ),
    ],
)
def test_words(status: ExitStatus, words: str) -> None:
    """The end in words names code, signal, or step with path and reason."""
    assert status.describe() == words
