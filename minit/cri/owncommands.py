"""Having another process of minit do what a call asks for, and what it says if it fails."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from minit.cri.grpc.framing import CallError, Code
from minit.cri.hands.pool import Done, Hands
from minit.cri.openfiles import with_limit_given_back
from minit.harmless import harmless

_PATIENCE_SECONDS = 60.0
_LONGEST_SECONDS = 365 * 24 * 3600


class OwnCommands:
    """The command minit, by its program, its global options, and the hands that carry out what is short."""

    def __init__(self, program: Sequence[str], options: Sequence[str], hands: Hands) -> None:
        self._program = tuple(program)
        self._options = tuple(options)
        self._hands = hands

    def words(self, *command: str) -> list[str]:
        """Return a command line of minit; CallError for what no command line can have."""
        refuse_nul(command)
        return [*self._program, *self._options, *command]

    async def run(
        self, *command: str, stdin: bytes = b"", held: int | None = None, is_cancellable: bool = False
    ) -> str:
        """
        Run a command to its end and return what it prints; CallError with its last lines if it fails.

        It goes on when the call that wanted it is cancelled: the caller asks again. One that is cancellable ends then.
        It inherits the descriptor `held`.
        """
        words = self.words(*command)
        with trio.CancelScope(shield=not is_cancellable):
            done = await self._carry_out(words, stdin, held, is_cancellable=is_cancellable)
        if done.code != 0:
            raise CallError(Code.UNKNOWN, failure(done.stderr) or f"exit status {done.code}")
        return done.stdout.decode("utf-8", "replace").strip()

    async def _carry_out(self, words: Sequence[str], stdin: bytes, held: int | None, *, is_cancellable: bool) -> Done:
        # A hand cannot be told to give up.
        if not is_cancellable:
            done = await self._hands.run(words[len(self._program) :], stdin, held)
            if done is not None:
                return done
        return await _run_program(words, stdin, held)


async def _run_program(words: Sequence[str], stdin: bytes, held: int | None) -> Done:
    done = await trio.run_process(
        with_limit_given_back(words),
        stdin=stdin,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        pass_fds=() if held is None else (held,),
        deliver_cancel=_end,
    )
    return Done(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def refuse_nul(command: Sequence[str]) -> None:
    """Raise CallError for words that no command line can have."""
    if any("\0" in word for word in command):
        raise CallError(Code.INVALID_ARGUMENT, "a value has a NUL in it")


async def _end(process: trio.Process) -> None:
    """Have a command undo what is half done, and end."""
    process.terminate()
    await trio.sleep(_PATIENCE_SECONDS)
    process.kill()


def failure(errors: bytes) -> str:
    """Return the error of a command by what it wrote: its last line, and the one before, which has the reason."""
    lines = [_text(line) for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    reasons = [line for line in lines[-2:-1] if not line.startswith("warning: ")]
    return harmless(": ".join(lines[-1:] + reasons))


def _text(line: str) -> str:
    """Return a line without the name of the command that wrote it."""
    name, _, text = line.strip().partition(": ")
    return text or name


def option(name: str, values: Sequence[str]) -> list[str]:
    """Return an option that is given once for each value."""
    return [f"{name}={value}" for value in values]


def duration(seconds: int) -> str:
    """Return a time as options have it: none for a negative one, and no more than a year, which nobody waits for."""
    return f"{limited(seconds)}s"


def limited(seconds: int) -> int:
    """Return a time that is not negative, and no more than a year."""
    return min(max(seconds, 0), _LONGEST_SECONDS)
