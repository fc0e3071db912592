"""Doing something in a process of its own, which leaves no descriptors behind."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_child(action: Callable[[], object]) -> int:
    """Do something in a process of its own and return its pid; its exit code is 1 after an exception."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def succeed_in_child(action: Callable[[], object]) -> None:
    """Do something in a process of its own, which must not fail."""
    assert os.waitstatus_to_exitcode(os.waitpid(in_child(action), 0)[1]) == 0
