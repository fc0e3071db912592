"""
Flags as rkt takes them, before click sees them.

rkt's flags follow Go: `--x=v` and `--x v`, `--switch=false`, and flags whose value is optional and only ever follows
`=`. This module splits a command line by those rules and writes the flags in the one form that means the same to
click.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum

from minit.base.errors import UsageError
from minit.base.goflags import take_value
from minit.base.value import Value

_LIKENESS = 0.75  # one letter of four may differ

_MAX_DIGITS = 19


class FlagError(Exception):
    """A command line does not fit the command's flags."""


class UnknownFlag(FlagError):
    """A command line has a flag that the command does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown flag: {name}")
        self.name = name


class Mistakes(FlagError):
    """All that is wrong with a command line."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[FlagError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep the FlagError of a block."""
        try:
            yield
        except FlagError as error:
            self.add(error)

    def add(self, error: FlagError) -> None:
        """Keep an error, unless the same was told before."""
        if str(error) not in map(str, self.errors):
            self.errors.append(error)

    def tell(self) -> None:
        """Raise the only error, or all of them as one; nothing without any."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise self

    def __str__(self) -> str:
        """Return the errors, separated as in a sentence."""
        return "; ".join(map(str, self.errors))


class FlagKind(StrEnum):
    """The place of a flag's value."""

    VALUE = "after = or in the next word"
    OPTIONAL = "after = or nowhere"
    SWITCH = "a boolean after = or nowhere"


class Flag(Value):
    """A flag; `bare` is the meaning of a flag with an optional value that is left out."""

    kind: FlagKind
    bare: str = ""


def suggest(word: str, names: Iterable[str]) -> str:
    """Return `, did you mean NAME?` for the name most like the word, nothing without a similar name."""
    matches = get_close_matches(word, list(names), n=1, cutoff=_LIKENESS)
    return f", did you mean {matches[0]}?" if matches else ""


def is_flag(word: str) -> bool:
    """Return whether a word is meant as a flag; a single dash is an operand, as everywhere."""
    return word.startswith("-") and word != "-"


def take_flag(words: list[str], flags: Mapping[str, Flag]) -> tuple[str, str]:
    """Remove the first flag of `words` and return name and value; UnknownFlag for a flag that is not in `flags`."""
    word = words.pop(0)
    name, has_value, text = word.partition("=")
    flag = flags.get(name)
    if flag is None and word[:2] in flags and not word.startswith("--"):
        # Several flags of one letter in a word, the last one perhaps with its value, as in -it and -p8080:80.
        if flags[word[:2]].kind is not FlagKind.SWITCH:
            return word[:2], word[2:]
        words.insert(0, f"-{word[2:]}")
        return word[:2], "true"
    if flag is None:
        raise UnknownFlag(name)
    if flag.kind is FlagKind.OPTIONAL:
        return name, text if has_value else flag.bare
    try:
        value = take_value(name, text if has_value else None, words, is_boolean=flag.kind is FlagKind.SWITCH)
    except UsageError as error:
        raise FlagError(str(error)) from error
    if isinstance(value, bool):
        value = "true" if value else "false"
    return name, value


def split_words(
    arguments: Sequence[str], flags: Mapping[str, Flag], *, stop_at_operand: bool = False
) -> tuple[list[tuple[str, str]], list[str]]:
    """
    Return the flags and the operands of a command line; everything after `--` is an operand.

    With `stop_at_operand` the first operand ends the flags, and later words are left as they are.
    """
    words = list(arguments)
    found: list[tuple[str, str]] = []
    operands: list[str] = []
    mistakes = Mistakes()
    while words:
        if words[0] == "--":
            operands += words[1:]
            break
        if is_flag(words[0]):
            with mistakes.collected():
                found.append(take_flag(words, flags))
        elif stop_at_operand:
            operands = words
            break
        else:
            operands.append(words.pop(0))
    mistakes.tell()
    return found, operands


def click_words(found: Sequence[tuple[str, str]], flags: Mapping[str, Flag]) -> list[str]:
    """Return flags in click's form. Switches have no negation there, so the last use of each decides."""
    words: list[str] = []
    for name, value in found:
        if flags[name].kind is not FlagKind.SWITCH:
            # After one dash click takes the = for a part of the value.
            words.append(f"{name}={value}" if name.startswith("--") else f"{name}{value}")
            continue
        words = [word for word in words if word != name]
        if value == "true":
            words.append(name)
    return words


def parse_number(place: str, text: str, lowest: int, highest: int) -> int:
    """Return a number from `lowest` to `highest`, both included; FlagError, naming `place`, if `text` is none."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS and lowest <= int(text) <= highest:
        return int(text)
    raise FlagError(f'{place}: expected a number from {lowest} to {highest}, got "{text}"')
