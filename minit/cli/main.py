"""The `minit` command's first and last steps: a command line is run, and every error is one line."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn, TextIO

import click
import click._textwrap  # noqa: F401  # which click imports when it first wraps a text

from minit.base.errors import EXIT_FAILURE, EXIT_USAGE, FailureKind, MinitError, describe, kind_of
from minit.base.harmless import harmless
from minit.cli.commandgroups import commands
from minit.cli.invocation import Invocation
from minit.linux.stdio import await_room, flush_output, open_standard_streams

_INTERRUPTED = 128 + signal.SIGINT
_AGAIN_SECONDS = 0.001

_BUFFER_BYTES = 1 << 16
_ASK = "__complete"
"""The first word of a shell's question: `minit __complete SHELL …`, see `answer` in `completion.py`."""


def main() -> NoReturn:
    """Run the command line of this process."""
    run_here(commands)


def run_here(root: click.Group) -> NoReturn:
    """Run the command line of this process, one of the commands of `root`."""
    settle()
    if sys.argv[1:2] == [_ASK]:
        _answer_shell(root, sys.argv[2:])
    sys.exit(run(sys.argv[1:], root))


def settle() -> None:
    """Give this process the streams and signals of all commands."""
    open_standard_streams()
    _open_streams()
    for number in (signal.SIGHUP, signal.SIGTERM):
        # An ignored signal (nohup) stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    sys.unraisablehook = _raise_again


def _answer_shell(root: click.Group, words: Sequence[str]) -> NoReturn:
    """Answer a shell that completes a line; silently, as the typed words may be anything."""
    from minit.cli.completion import answer  # imports the store, and is not in the image of a machine

    try:
        print(answer(root, words), end="", flush=True)
    except Exception:
        sys.exit(EXIT_FAILURE)
    sys.exit(0)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End as by a signal, but undo half-done work first."""
    raise SystemExit(128 + number)


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise a moment later what a signal raised in a callback, one of the importer's say, where nothing can end."""
    error = lost.exc_value
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(lost)
        return

    def again(number: int, frame: FrameType | None) -> NoReturn:
        raise error

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)


def run(arguments: Sequence[str], root: click.Group = commands) -> int:
    """Run one command line and return the exit code, which is a failure if not all of the output was written."""
    return run_telling(arguments, root)[0]


def run_telling(arguments: Sequence[str], root: click.Group = commands) -> tuple[int, FailureKind | None]:
    """Do as run(), and return with the exit code the kind of the failure, if known."""
    invocation = Invocation()
    return _run_flushed(invocation, arguments, root), invocation.failure_kind


def _run_flushed(invocation: Invocation, arguments: Sequence[str], root: click.Group) -> int:
    code = _run(invocation, arguments, root)
    try:
        flush_output()
    except OSError as error:
        _abandon_output()
        # The reader of our output may have enough, and a command that has failed has given the reason.
        if code == 0 and not isinstance(error, BrokenPipeError):
            return _fail(invocation, describe(error), error)
        return code or EXIT_FAILURE
    return code


def _run(invocation: Invocation, arguments: Sequence[str], root: click.Group) -> int:
    try:
        result = root.main(list(arguments), "minit", standalone_mode=False, obj=invocation)
    except click.exceptions.NoArgsIsHelpError as error:
        # rkt, too, takes a call without a command for no success, but for no failure either.
        error.show()
        return EXIT_USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "minit"
        return _fail(invocation, f"{_sentence(error)} (see {path} --help)", error)
    except click.ClickException as error:
        return _fail(invocation, _sentence(error), error)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILURE
    except MinitError as error:
        return _fail(invocation, describe(error), error, error.exit_code)
    except OSError as error:
        return _fail(invocation, describe(error), error)
    except Exception as error:
        return _fail(invocation, describe(error), error, unexpected=True)
    return result if isinstance(result, int) else 0


def _fail(
    invocation: Invocation,
    text: str,
    error: Exception,
    code: int = EXIT_FAILURE,
    *,
    unexpected: bool = False,
) -> int:
    invocation.failure_kind = FailureKind.INVALID if isinstance(error, click.UsageError) else kind_of(error)
    invocation.note(f"{type(error).__name__}: {text} (a bug in minit)" if unexpected else text)
    if invocation.debug:
        _show_causes(error)
        if unexpected:
            traceback.print_exception(error)
    return code


def _show_causes(error: BaseException) -> None:
    """Print the causes of an error, each cause below the effect."""
    indent = ""
    cause = error.__cause__
    while cause is not None:
        print(f"{indent}└─{type(cause).__name__}: {harmless(describe(cause))}", file=sys.stderr)
        indent += "  "
        cause = cause.__cause__


def _sentence(error: click.ClickException) -> str:
    """Return click's message in the form of all others: one line, lower-case, without a full stop."""
    text = " ".join(error.format_message().split()).rstrip(".")
    return text[:1].lower() + text[1:]


class _Output(io.BufferedWriter):
    """
    A descriptor for writing that stays open.

    Written bytes have been counted when a signal is handled, so that nothing is written twice after Ctrl-C; a raw file
    in Python could not do that.
    """

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(io.FileIO(fd, "w", closefd=False), _BUFFER_BYTES)
        self._name = name

    def write(self, data: Any, /) -> int:
        """Take all of the data, waiting for room."""
        rest = memoryview(data)
        while True:
            try:
                super().write(rest)
                return len(data)
            except BlockingIOError as error:
                rest = rest[error.characters_written :]
                await_room(self.fileno())
            except OSError as error:
                error.filename = self._name
                raise

    def flush(self) -> None:
        """Write all taken bytes, waiting for room."""
        while True:
            try:
                super().flush()
                return
            except BlockingIOError:
                await_room(self.fileno())
            except OSError as error:
                error.filename = self._name
                raise


def _open_streams() -> None:
    """Put our streams in the place of Python's, since Python has no stream where the caller has closed a descriptor."""
    sys.stdout = _text_stream(1, "standard output", sys.stdout, "strict")
    sys.stderr = _text_stream(2, "standard error", sys.stderr, "backslashreplace")


def _abandon_output() -> None:
    """Forget the bytes that standard output could not take; Python would try, and complain, once more at the end."""
    buffer = getattr(sys.stdout, "buffer", None)
    if isinstance(buffer, _Output):
        # The layers above a raw file that is closed have nothing left to write.
        buffer.raw.close()
    sys.stdout = None


def _text_stream(fd: int, name: str, like: TextIO | None, errors: str) -> TextIO:
    is_by_lines = fd == 2
    encoding = None
    if isinstance(like, io.TextIOWrapper):
        encoding, errors = like.encoding, like.errors or errors
        is_by_lines = like.line_buffering or like.write_through
    return io.TextIOWrapper(_Output(fd, name), encoding, errors, newline="\n", line_buffering=is_by_lines)
