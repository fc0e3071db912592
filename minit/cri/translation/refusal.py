"""The refusal of what minit has no words for."""

from __future__ import annotations

from minit.cri.grpc.framing import CallError, Code


def refuse(is_refused: bool, field: str, expected: str) -> None:
    """Raise CallError if a field has a value that minit has no words for."""
    if is_refused:
        raise CallError(Code.INVALID_ARGUMENT, f"{field}: expected {expected}: minit has nothing else yet")
