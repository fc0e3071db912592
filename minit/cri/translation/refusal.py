"""The refusal of what minit has no words for."""

from __future__ import annotations

from google.protobuf.message import Message

from minit.cri.grpc.framing import CallError, Code


def refuse(is_refused: bool, field: str, expected: str) -> None:
    """Raise CallError if a field has a value that minit has no words for."""
    if is_refused:
        raise CallError(Code.INVALID_ARGUMENT, f"{field}: expected {expected}: minit has nothing else yet")


def refuse_unknown_words(message: Message, place: str) -> None:
    """Raise CallError if a field at any depth has no value of its enumeration: it may stand for a restriction."""
    for field, value in message.ListFields():
        inner = f"{place}.{field.name}"
        if field.enum_type is not None:
            given = {value} if isinstance(value, int) else {*value}
            known = field.enum_type.values_by_number
            refuse(not given <= {*known}, inner, f"one of {', '.join(each.name for each in known.values())}")
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                refuse_unknown_words(each, inner)
