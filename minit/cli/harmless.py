"""Names and texts that images bring along, so that nothing in them acts on a terminal or makes a line. Pure."""

from __future__ import annotations

_TAB = 0x09
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != _TAB}
# In JSON they stand in strings only, where they mean the same so.
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x80, 0xA0)}


def harmless(text: str) -> str:
    """Return the text with its control characters, but for tabs, as `\\x1b` and the like."""
    return text.translate(_ESCAPES)


def harmless_json(text: str) -> str:
    """Return JSON with the control characters that may stand in it as they are, those beyond ASCII, as `\\u009b`."""
    return text if text.isascii() else text.translate(_JSON_ESCAPES)
