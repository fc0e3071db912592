"""Having another process of minit do what a call asks for, and what it says if it fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext

import trio

from minit.base.harmless import harmless
from minit.cri.grpc.framing import CallError, Code, code_of
from minit.cri.hands.pool import MOST_IDLE, Done, Hands
from minit.cri.hands.turns import Turns
from minit.cri.openfiles import with_limit_given_back

_PATIENCE_SECONDS = 60.0
_LONGEST_SECONDS = 365 * 24 * 3600
# Those of execve(2): what is longer no container can execute either.
_LONGEST_WORD_BYTES = 32 * 4096
_LONGEST_COMMAND_BYTES = 2 << 20


class OwnCommands:
    """The command minit, by its program, its global options, and the hands that carry out all but pulls."""

    def __init__(self, nursery: trio.Nursery, program: Sequence[str], options: Sequence[str]) -> None:
        self._program = tuple(program)
        self._options = tuple(options)
        self._hands = Hands(nursery, program)
        self._turns = Turns(nursery, MOST_IDLE)

    async def run(
        self,
        *command: str,
        stdin: bytes = b"",
        held: int | None = None,
        lasts: bool = False,
        begins: bool = False,
    ) -> str:
        """
        Run a command to its end and return what it prints; CallError with its last lines if it fails.

        It waits for its turn, but for one that `lasts`, which mostly waits for something itself; one that `begins` a
        pod lets all others go first. A call that is cancelled before has done nothing. What has begun goes on when the
        call that wanted it is cancelled: the caller asks again. It inherits the descriptor `held`.
        """
        refuse_impossible_words(command)
        async with nullcontext() if lasts else self._turns.taken(begins=begins):
            with trio.CancelScope(shield=True):
                done = await self._hands.run([*self._options, *command], stdin, held)
        return _printed(done)

    async def run_cancellable(self, *command: str, stdin: bytes) -> str:
        """Run a command as `run` does, in a program of its own, which is told to end when the call is cancelled."""
        refuse_impossible_words(command)
        return _printed(await _run_program([*self._program, *self._options, *command], stdin))


def _printed(done: Done) -> str:
    if done.code != 0:
        raise CallError(code_of(done.kind), failure(done.stderr) or f"exit status {done.code}")
    return done.stdout.decode("utf-8", "replace").strip()


async def _run_program(words: Sequence[str], stdin: bytes) -> Done:
    done = await trio.run_process(
        with_limit_given_back(words),
        stdin=stdin,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        deliver_cancel=_end,
    )
    return Done(code=done.returncode, kind=None, stdout=done.stdout, stderr=done.stderr)


def refuse_impossible_words(command: Sequence[str]) -> None:
    """Raise CallError for words that no command line can have."""
    if any("\0" in word for word in command):
        raise CallError(Code.INVALID_ARGUMENT, "a value has a NUL in it")
    sizes = [len(os.fsencode(word)) + 1 for word in command]
    if max(sizes) > _LONGEST_WORD_BYTES or sum(sizes) > _LONGEST_COMMAND_BYTES:
        reason = f"a value has at most {_LONGEST_WORD_BYTES} bytes, and all together {_LONGEST_COMMAND_BYTES}"
        raise CallError(Code.INVALID_ARGUMENT, reason)


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
