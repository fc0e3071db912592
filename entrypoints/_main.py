"""The frame of every entrypoint: flags in Go's style, one line for an error, an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, MinitError, UsageError, describe, kind_of
from minit.base.jsontext import dump
from minit.linux.process import forget_imports
from minit.linux.stdio import complain
from minit.podfiles.paths import FAILURE_VARIABLE


def run_entrypoint(component: str, usage: str, work: Callable[[list[str]], int]) -> NoReturn:
    """Exit with what `work` returns for the arguments; a failure is one line on stderr, prefixed by `component`."""
    forget_imports()
    code = outcome(component, usage, lambda: _telling_callers(lambda: work(sys.argv[1:])))
    # Not sys.exit: tearing the interpreter down costs milliseconds that every caller waits for.
    os._exit(code)


def _telling_callers(work: Callable[[], int]) -> int:
    """
    Return the exit code of some work.

    The kind of a failure and a line about it, as JSON, go to the descriptor that the environment names.
    """
    failures = read_descriptor(FAILURE_VARIABLE, os.environ.pop(FAILURE_VARIABLE, ""))
    try:
        return work()
    except (MinitError, OSError) as error:
        if failures is not None:
            os.write(failures, dump({"kind": kind_of(error), "reason": describe(error)}))
        raise


def outcome(component: str, usage: str, work: Callable[[], int]) -> int:
    """Return the exit code of some work, which says in one line why it failed."""
    try:
        return work()
    except UsageError as error:
        complain(f"{component}: {describe(error)}")
        if error.exit_code < EXIT_FAILURE:
            for line in usage.split("\n"):
                complain(line)
        return error.exit_code
    except (MinitError, OSError) as error:
        complain(f"{component}: {describe(error)}")
        return error.exit_code if isinstance(error, MinitError) else EXIT_FAILURE
    except Exception:
        # An error in minit: 1, with which an interpreter ends, could be an app's.
        sys.excepthook(*sys.exc_info())
        return EXIT_FAILURE


def read_descriptor(flag: str, text: str) -> int | None:
    """
    Return the descriptor that a flag names, None for no text. No other process inherits it.

    UsageError if it is none.
    """
    if not text:
        return None
    try:
        number = int(text) if text.isdecimal() else -1
        os.set_inheritable(number, False)
    except (OSError, OverflowError) as error:
        raise UsageError(f'--{flag}: expected a descriptor, got "{text}"') from error
    return number


def telling_failures(failures: int | None, work: Callable[[], int]) -> int:
    """Return the exit code of some work; why it failed is written to `failures`, if that is given, not to stderr."""
    try:
        return work()
    except (MinitError, OSError) as error:
        if failures is None or getattr(error, "exit_code", EXIT_FAILURE) != EXIT_FAILURE:
            raise
        os.write(failures, describe(error).encode(errors="replace"))
        return EXIT_FAILURE
