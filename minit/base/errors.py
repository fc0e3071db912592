"""The failures that minit reports, and any failure as one line."""

from __future__ import annotations

import errno
import os
from enum import StrEnum

from minit.base.harmless import harmless

EXIT_NO_SOURCE = 1  # systemd-nspawn's, which rkt's users see for a volume whose source is missing
EXIT_USAGE = 2  # Go's flag package, which rkt's own entrypoints use
EXIT_UNFINISHED = 75  # EX_TEMPFAIL of sysexits(3): the same call finishes it, sooner or later
EXIT_FAILURE = 254  # rkt's number for nearly every failure of stage0 and stage1
EXIT_EXEC_FAILED = 203  # systemd's EXIT_EXEC, the one set-up number rkt itself knows


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOLCK)


class FailureKind(StrEnum):
    """The kind of a failure, for the program that made the request."""

    INVALID = "invalid"
    """It asked for what it cannot have, however often it asks."""
    STATE = "state"
    """It asked too early or too late."""
    EXHAUSTED = "exhausted"
    """The machine has no room for it: on a disk, in memory, in a table."""
    TIME_OVER = "time-over"
    """It took too long, and may be done all the same."""


class MinitError(Exception):
    """
    A failure with one clear line for the user; the program ends with `exit_code`.

    `kind` is None for an unknown kind.
    """

    exit_code = EXIT_FAILURE
    kind: FailureKind | None = None
    reason: str | None = None
    """The line of another program about the cause, which that program has printed itself."""


class UsageError(MinitError):
    """The arguments of an entrypoint do not fit its flags."""

    exit_code = EXIT_USAGE
    kind = FailureKind.INVALID


class ManifestError(MinitError):
    """A manifest does not match the appc schema; names file, JSON path and expectation."""


class PlanError(MinitError):
    """The manifests ask for something that the pod cannot have."""

    kind = FailureKind.INVALID


class LaunchError(MinitError):
    """A step of starting the pod failed."""


class SourceMissing(LaunchError):
    """The host has nothing where a volume's source should be."""

    exit_code = EXIT_NO_SOURCE
    kind = FailureKind.INVALID


class UnsupportedFieldError(ManifestError):
    """A field of a configuration asks for a known feature that minit does not provide."""


class NetworkError(MinitError):
    """A pod's network could not be set up."""


class PluginError(NetworkError):
    """A plugin's failure in the terms of the CNI (its specification, "Error"): a code, a message, and details."""

    def __init__(self, message: str, code: int, details: str = "") -> None:
        super().__init__(f"{message}; {details}" if details else message)
        self.message = message
        self.code = code
        self.details = details


class UnfinishedError(MinitError):
    """The removal of a pod has to leave something for now, and must be tried again."""

    exit_code = EXIT_UNFINISHED


class StrandedError(BaseException):
    """
    The process cannot get back to the host's network: any later action would change another network.

    Neither MinitError nor Exception: nobody may treat this as a failed step, and undo the step.
    """


class ControlError(MinitError):
    """The supervisor could not be reached, or refused a request."""


class NoAnswerError(ControlError):
    """The supervisor has the request and did not answer in time, but may still carry out the request."""

    kind = FailureKind.TIME_OVER


class AttachError(MinitError):
    """A client cannot be connected to the streams of an app, or not any longer."""


class ImageError(MinitError):
    """An image is broken or cannot be built."""


class StoreError(MinitError):
    """The image store or the tree store cannot carry out a request."""


class PodError(MinitError):
    """A pod is not in a state that allows the operation."""


class NotRunningError(PodError):
    """A pod does not run yet, or not any more."""

    kind = FailureKind.STATE


class UpdateError(MinitError):
    """The other version of a machine cannot be written or booted."""


class Step:
    """A step of a sequence: exceptions within the step carry its name, for `step_of`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # The innermost step counts.
        if error is not None and not hasattr(error, "__notes__"):
            error.add_note(self._name)


def step_of(error: BaseException) -> str:
    """Return the name of the step that raised `error`."""
    notes: list[str] = getattr(error, "__notes__", ["go on"])
    return notes[0]


def kind_of(error: BaseException | None) -> FailureKind | None:
    """Return the kind of a failure, by the first cause with a kind; None for an unknown kind."""
    found = None
    while error is not None:
        found = _own_kind(error) or found
        error = error.__cause__
    return found


def told_reason(error: BaseException | None) -> str | None:
    """Return the line of another program about the cause of a failure; None if none is known."""
    while error is not None:
        if isinstance(error, MinitError) and error.reason is not None:
            return error.reason
        error = error.__cause__
    return None


def _own_kind(error: BaseException) -> FailureKind | None:
    if isinstance(error, MinitError):
        return error.kind
    return FailureKind.EXHAUSTED if isinstance(error, OSError) and error.errno in _NO_ROOM else None


def describe(error: BaseException) -> str:
    """
    Return `error` as one line, system errors in Go's lower-case form (`open /x: no such file or directory`).

    The line is harmless, also with names from images.
    """
    return harmless(_describe(error))


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        # Failures of getaddrinfo(3) have numbers of their own.
        reason = reason_of(error.errno) if error.errno > 0 else (error.strerror or "").lower()
        explanation = getattr(error, "explanation", "")  # the kernel's own, which comes with an error of netlink(7)
        if explanation:
            reason = f"{reason} ({explanation})"
        name = error.filename
        if name is None:
            return reason
        return f"{os.fsdecode(name) if isinstance(name, (str, bytes)) else name}: {reason}"
    return " ".join(str(error).split("\n")) or type(error).__name__


def reason_of(number: int) -> str:
    """Return the text of an errno in Go's form, on which rkt's users match."""
    text = os.strerror(number)
    return text[:1].lower() + text[1:]
