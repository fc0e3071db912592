"""Refusals of fields, with their names."""

from __future__ import annotations

import os
from collections.abc import Sequence

from google.protobuf.message import Message

from minit.cri.grpc.framing import CallError, Code

# Those of execve(2): what is longer no container can execute either.
_LONGEST_WORD_BYTES = 32 * 4096
LONGEST_COMMAND_BYTES = 2 << 20


def refuse(is_refused: bool, field: str, expected: str) -> None:
    """Raise CallError if a field has a value that minit cannot carry out."""
    if is_refused:
        raise CallError(Code.INVALID_ARGUMENT, f"{field}: expected {expected}: minit has nothing else yet")


def check_message(message: Message, place: str) -> None:
    """
    Raise CallError if a field at any depth has no value of its enumeration, or a text that no program can have.

    An unknown value may stand for a restriction.
    """
    if message.ByteSize() > LONGEST_COMMAND_BYTES:
        raise CallError(Code.INVALID_ARGUMENT, f"{place}: expected at most {LONGEST_COMMAND_BYTES} bytes")
    for field, value in message.ListFields():
        inner = f"{place}.{field.name}"
        each = [value] if isinstance(value, (int, str, bytes, float, Message)) else [*value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            each = [*value, *value.values()]
        if field.enum_type is not None:
            known = field.enum_type.values_by_number
            refuse(not {*each} <= {*known}, inner, f"one of {', '.join(each.name for each in known.values())}")
        for one in each:
            if isinstance(one, Message):
                check_message(one, inner)
            elif isinstance(one, str):
                refuse_impossible_words([one], f"{inner}: ")


def refuse_impossible_words(words: Sequence[str], place: str = "") -> None:
    """Raise CallError for words that no command line can have."""
    if any("\0" in word for word in words):
        raise CallError(Code.INVALID_ARGUMENT, f"{place}a value has a NUL in it")
    sizes = [len(os.fsencode(word)) + 1 for word in words]
    if max(sizes, default=0) > _LONGEST_WORD_BYTES or sum(sizes) > LONGEST_COMMAND_BYTES:
        reason = f"a value has at most {_LONGEST_WORD_BYTES} bytes, and all together {LONGEST_COMMAND_BYTES}"
        raise CallError(Code.INVALID_ARGUMENT, f"{place}{reason}")
