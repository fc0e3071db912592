"""minit.base.errors: every failure becomes one line in Go's form."""

from __future__ import annotations

import errno
import itertools
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base import errors
from minit.base.errors import (
    FailureKind,
    LaunchError,
    MinitError,
    NoAnswerError,
    NotRunningError,
    PlanError,
    PodError,
    SourceMissing,
    Step,
    StoreError,
    UnfinishedError,
    UsageError,
    describe,
    kind_of,
    reason_of,
    step_of,
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "/x: no such file or directory"),
        (FileNotFoundError(errno.ENOENT, "whatever", b"/x\xff"), "/x\\xff: no such file or directory"),
        (OSError(errno.EBADF, "Bad file descriptor", 7), "7: bad file descriptor"),
        (OSError(errno.EPERM, "Operation not permitted"), "operation not permitted"),
        (TimeoutError("timed out"), "timed out"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "name or service not known"),
        (MinitError("pod: no apps"), "pod: no apps"),
        (ValueError("two\nlines"), "two lines"),
        (KeyError(), "KeyError"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_describe(error: BaseException, line: str) -> None:
    """The file comes first, the reason in lower case, and an error without a text is named by its type."""
    assert describe(error) == line


@given(st.text(), st.sampled_from([ValueError, MinitError, OSError]))
def test_describe_gives_one_line(text: str, kind: type[Exception]) -> None:
    """The description of any text has no line feed and is not empty."""
    line = describe(kind(text))
    assert line
    assert "\n" not in line


def test_reasons_begin_in_lower_case() -> None:
    """Go prints the C library's texts so, except that it keeps acronyms; rkt's users match on them."""
    assert reason_of(errno.ENOENT) == "no such file or directory"
    assert reason_of(errno.ENOSPC) == "no space left on device"


def test_exit_codes() -> None:
    """Usage errors end with Go's 2, a missing source with nspawn's 1, what is unfinished with 75, the rest with 254."""
    children = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MinitError)]
    assert len(children) >= 9
    own = {UsageError: 2, SourceMissing: 1, UnfinishedError: 75}
    assert {kind.exit_code for kind in children if kind not in own} == {254}
    assert {kind: kind.exit_code for kind in own} == own


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        ([PodError("cannot add"), PlanError("no such user")], FailureKind.INVALID),
        ([PodError("cannot add"), UsageError("no such flag"), ValueError()], FailureKind.INVALID),
        ([PodError("cannot add"), NotRunningError("it has ended")], FailureKind.STATE),
        ([StoreError("cannot import"), OSError(errno.ENOSPC, "full")], FailureKind.EXHAUSTED),
        ([PlanError("cannot have it"), OSError(errno.EMFILE, "too many")], FailureKind.EXHAUSTED),
        ([LaunchError("cannot start"), NoAnswerError("no answer")], FailureKind.TIME_OVER),
        ([PodError("cannot add"), FileNotFoundError(errno.ENOENT, "none")], None),
        ([ValueError()], None),
    ],
)
def test_kinds(chain: list[Exception], kind: FailureKind | None) -> None:
    """The kind of a failure is that of the first cause that has one."""
    for effect, cause in itertools.pairwise(chain):
        effect.__cause__ = cause
    assert kind_of(chain[0]) == kind


def test_an_error_of_the_system_keeps_its_path() -> None:
    """An error as the system raises it names the file that was asked for."""
    with pytest.raises(OSError) as caught:
        os.open("/nonexistent/file", os.O_RDONLY)
    assert describe(caught.value) == "/nonexistent/file: no such file or directory"


def test_an_error_tells_the_innermost_step() -> None:
    """An exception keeps its type, and names its step, also from a function that the step calls."""
    with pytest.raises(FileNotFoundError) as caught, Step("start the pod"), Step("open volumes"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")
    assert (step_of(caught.value), describe(caught.value)) == ("open volumes", "/x: no such file or directory")


def test_an_error_outside_of_all_steps_has_a_name_for_it_too() -> None:
    """A report can always finish the sentence."""
    assert step_of(OSError()) == "go on"
