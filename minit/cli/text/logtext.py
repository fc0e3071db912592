"""Lines of logs as `minit logs` prints them: text or JSON, made harmless for a terminal. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from minit.harmless import harmless, harmless_json
from minit.stage0.reports.loglines import LogLine

Format = Callable[[str, LogLine], bytes]
"""Makes of an app's name and a line what is printed, with its line feed."""

# Characters that a terminal acts on: all control characters but tab, and those that turn text around or end a line.
# Colours are harmless, and wanted; so are characters that join letters.
_COLOUR = r"\x1b\[[0-9;:]*m"
_DIRECTION = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"({_COLOUR})|[\x00-\x08\x0a-\x1f\x7f-\x9f{_DIRECTION}]")
_ENDS_IN_COLOUR = "\x1b[0m"


def text_format(prefixes: dict[str, bytes], *, times: bool, terminal: bool) -> Format:
    """
    Return the format of plain text: the time if wanted, the app's prefix, and the line.

    Where nothing else is shown, a line that the app did not end stays so.
    """
    may_be_open = not (times or terminal or any(prefixes.values()))

    def format_line(app: str, line: LogLine) -> bytes:
        text = visible(line.text) if terminal else line.text
        end = b"" if may_be_open and not line.ended else b"\n"
        return (line.time + b" " if times else b"") + prefixes[app] + text + end

    return format_line


def json_format(app: str, line: LogLine) -> bytes:
    """Return the line as an object of JSON; bytes that are no UTF-8 become U+FFFD."""
    fields: dict[str, object] = {
        "app": app,
        "time": line.time.decode(),
        "stream": line.stream.decode(),
        "text": line.text.decode(errors="replace"),
    }
    if not line.ended:
        fields["partial"] = True
    return harmless_json(json.dumps(fields, ensure_ascii=False)).encode() + b"\n"


def visible(text: bytes) -> bytes:
    """Return the text with what would control a terminal made visible, all but colours."""
    decoded = text.removesuffix(b"\r").decode(errors="backslashreplace")
    shown = _CONTROL.sub(_show, decoded)
    if "\x1b" in shown:
        shown += _ENDS_IN_COLOUR
    return shown.encode()


def _show(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    code = ord(match[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else harmless(match[0])
