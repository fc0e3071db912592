"""The `minit` command's first and last steps: a command line is run, and every error is one line."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click
import click._textwrap  # noqa: F401  # which click imports when it first wraps a text

from minit.base.errors import EXIT_FAILURE, EXIT_USAGE, FailureKind, MinitError, describe, kind_of
from minit.base.harmless import harmless
from minit.cli import completioncommand
from minit.cli.commandgroups import commands
from minit.cli.invocation import Invocation
from minit.cli.standardstreams import abandon_output, open_streams
from minit.linux.stdio import flush_output, open_standard_streams

_INTERRUPTED = 128 + signal.SIGINT
_AGAIN_SECONDS = 0.001


def main() -> NoReturn:
    """Run the command line of this process."""
    run_here(commands)


def run_here(root: click.Group) -> NoReturn:
    """Run the command line of this process, one of the commands of `root`."""
    settle()
    if sys.argv[1:2] == [completioncommand.ASK]:
        _answer_shell(root, sys.argv[2:])
    sys.exit(run(sys.argv[1:], root))


def settle() -> None:
    """Give this process streams and signals as all commands have them."""
    open_standard_streams()
    open_streams()
    for number in (signal.SIGHUP, signal.SIGTERM):
        # An ignored signal (nohup) stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    sys.unraisablehook = _raise_again


def _answer_shell(root: click.Group, words: Sequence[str]) -> NoReturn:
    """Answer a shell that completes a line; silently, as what is typed may be anything."""
    try:
        print(completioncommand.answer(root, words), end="", flush=True)
    except Exception:
        sys.exit(EXIT_FAILURE)
    sys.exit(0)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End as by a signal, but undo first what is half done."""
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
    """Run one command line and return its exit code, which is none of success if not all of its output was written."""
    return run_telling(arguments, root)[0]


def run_telling(arguments: Sequence[str], root: click.Group = commands) -> tuple[int, FailureKind | None]:
    """Do as run(), and return with the exit code what kind of failure there was, if that is known."""
    invocation = Invocation()
    return _run_flushed(invocation, arguments, root), invocation.failure_kind


def _run_flushed(invocation: Invocation, arguments: Sequence[str], root: click.Group) -> int:
    code = _run(invocation, arguments, root)
    try:
        flush_output()
    except OSError as error:
        abandon_output()
        # The reader of our output may have enough of it, and a command that has failed has told why.
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
    """Print what led to an error, each cause below its effect."""
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
