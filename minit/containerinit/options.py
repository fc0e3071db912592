"""The command line of `minit -- COMMAND`: the options before the first `--`, and the command after it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from minit.value import Value

USAGE = "minit [--group] [--session] [--parent-death=SIGNAL] -- COMMAND [ARG]..."


class InitOptions(Value):
    """
    The options of a run: `group` has the whole process group signalled, `session` gives it a session of its own.

    `parent_death_signal` is passed on, too, when the process that started this one ends.
    """

    group: bool = False
    session: bool = False
    parent_death_signal: int | None = None


def split_command(words: Sequence[str]) -> tuple[InitOptions, list[str]] | None:
    """
    Return the options before the first `--` and the command after it; None if this line is not `minit -- COMMAND`.

    ValueError says what is wrong with one that is.
    """
    end = list(words).index("--") if "--" in words else -1
    if end < 0:
        return None
    group = session = False
    death: int | None = None
    options = iter(words[:end])
    for word in options:
        name, given, value = word.partition("=")
        if word == "--group":
            group = True
        elif word == "--session":
            session = True
        elif name == "--parent-death":
            death = _signal_number(value if given else next(options, ""))
        else:
            return None
    if not words[end + 1 :]:
        raise ValueError("a command must follow --")
    return InitOptions(group=group, session=session, parent_death_signal=death), list(words[end + 1 :])


def _signal_number(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    number = getattr(signal, f"SIG{name}", None) if name.isalnum() else None
    if number is None and name.isascii() and name.isdigit():
        number = int(name)
    if number is None or number not in signal.valid_signals():
        raise ValueError(f'--parent-death: expected a signal such as TERM, got "{text}"')
    return int(number)
