"""Stopping a function before any of the calls by which it changes something, or failing one of them."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator

from minit.base.errors import MinitError, describe

# Methods and functions written in C, by their own names.
_EFFECTS = {"send", "sendto", "rename", "unlink", "setns", "write", "pwrite", "__exit__", "mkdir", "fork", "lockf"}
_EFFECTS |= {"pidfd_open"}  # before somebody is killed


def at_effect(number: int, act: Callable[[], None]) -> list[int]:
    """Have `act` happen before the `number`-th call of this process that changes anything; return the counter."""
    count = [0]

    def watch(_: object, event: str, argument: object) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") in _EFFECTS:
            count[0] += 1
            if count[0] == number:
                act()

    sys.setprofile(watch)
    return count


def each_failure(
    function: Callable[[], object], at: Callable[[Callable[[], None]], object] = lambda work: work(), stride: int = 1
) -> Iterator[str | None]:
    """
    Run a function as often as it changes something, `at` a place; each time another change fails, or each `stride`th.

    What is yielded is the error, of one line, or None for a failure that does no harm.
    """
    step, count = 1, [1]

    def work() -> None:
        nonlocal count
        count = at_effect(step, _fail)
        try:
            function()
        finally:
            sys.setprofile(None)

    while True:
        error = None
        try:
            at(work)
        except (MinitError, OSError) as caught:
            error = describe(caught)
            assert "\n" not in error
        yield error
        if count[0] < step:
            return
        step += stride


def killed_child(function: Callable[[], object], number: int) -> bool:
    """Run a function in a child that is killed before its `number`-th effect; tell whether it got that far."""
    child = os.fork()
    if child == 0:
        try:
            at_effect(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            function()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def _fail() -> None:
    sys.setprofile(None)
    raise OSError(errno.ENOMEM, "Cannot allocate memory")
