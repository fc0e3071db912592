"""Events as `minit events` prints them: JSON as it is, or text that is harmless for a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from minit import jsontext

_PLAIN = re.compile(r"[\w./:@%+,-]+", re.ASCII)
_HEAD = ("seq", "time", "event", "app")


def json_line(event: Mapping[str, object]) -> str:
    """Return an event as one line of JSON."""
    return jsontext.dump(event).decode("ascii")


def text_line(event: Mapping[str, object]) -> str:
    """Return an event as `NUMBER TIME EVENT APP NAME=VALUE…`, with `-` where it has no time or app."""
    head = [_word(event.get(name, "-")) for name in _HEAD]
    return " ".join([*head, *(f"{name}={_word(value)}" for name, value in event.items() if name not in _HEAD)])


def _word(value: object) -> str:
    # Texts of apps are among them: what is not plain is quoted, with all but ASCII escaped.
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else jsontext.dump(value).decode("ascii")
