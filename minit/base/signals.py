"""Signals by the names that users give. Pure."""

from __future__ import annotations

import signal

_LAST_SIGNAL = 64


def parse_signal(text: str) -> int:
    """
    Return the number of a signal; ValueError for what is none.

    A name with or without SIG in any case, RTMIN+N, RTMAX-N, or a number from 1 to 64, as Docker's STOPSIGNAL.
    """
    # Letters beyond ASCII have upper cases within it.
    name = text.upper().removeprefix("SIG") if text.isascii() else ""
    if name.isdecimal() and name == text:
        number = int(name) if len(name) <= 2 else 0
    elif name.startswith("RTMIN+"):
        number = signal.SIGRTMIN + _offset(name)
    elif name.startswith("RTMAX-"):
        number = signal.SIGRTMAX - _offset(name)
    elif name.isalnum():
        # SIG_BLOCK and its like are no signals; their names have an underscore.
        number = getattr(signal, f"SIG{name}", 0)
    else:
        number = 0
    if not 1 <= number <= _LAST_SIGNAL or (name.startswith("RT") and number < signal.SIGRTMIN):
        raise ValueError(f'no signal "{text}"')
    return number


def _offset(name: str) -> int:
    digits = name[len("RTMIN+") :]
    # Two digits are enough for any; others lead out of the range.
    return int(digits) if digits.isdecimal() and len(digits) <= 2 else _LAST_SIGNAL
