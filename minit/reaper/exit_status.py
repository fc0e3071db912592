"""The end of an app, and its status number for rkt."""

from __future__ import annotations

import os
import signal

from minit.base.errors import EXIT_EXEC_FAILED, EXIT_FAILURE, reason_of
from minit.base.harmless import harmless
from minit.base.value import Value


class ExitStatus(Value):
    """
    The end of a process: `code`, `signal`, or the set-up `step` that failed with `errno` at `path`.

    A failure without a failed system call has no `errno`, and the reason as `path`.
    """

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    step: str | None = None
    errno: int | None = None
    path: str | None = None

    def number(self, stop_signal: int | None = None) -> int:
        """
        Return the number for `rkt/status/APP`.

        An exit code unchanged; 0 for death by `stop_signal`, the signal of a requested stop; 128+n for any other
        signal, as in shells, Docker and Kubernetes; 203 for a failed exec, 254 for a failure before the exec.
        """
        if self.step is not None:
            return EXIT_EXEC_FAILED if self.step == STEP_EXEC else EXIT_FAILURE
        if self.signal is not None:
            return 0 if self.signal == stop_signal else 128 + self.signal
        assert self.code is not None
        return self.code

    def describe(self) -> str:
        """Return the end as words: `exited with 3`, `killed by signal 9`, `exec /x: no such file or directory`."""
        if self.step is not None:
            if self.errno is None:
                return harmless(f"{self.step}: {self.path}")
            return harmless(f"{self.step}{f' {self.path}' if self.path else ''}: {reason_of(self.errno)}")
        if self.signal is not None:
            return f"killed by signal {self.signal}{' (core dumped)' if self.core_dumped else ''}"
        return f"exited with {self.code}"


STEP_EXEC = "exec"
STEP_SUPERVISOR = "supervisor"


def signal_name(number: int) -> str:
    """Return the name of a signal, as in `SIGKILL`; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def from_wait_status(status: int) -> ExitStatus:
    """Return the status in the form of wait(2)."""
    if os.WIFSIGNALED(status):
        return ExitStatus(signal=os.WTERMSIG(status), core_dumped=os.WCOREDUMP(status))
    return ExitStatus(code=os.WEXITSTATUS(status))
