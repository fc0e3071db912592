"""
Foreign texts, of images above all, in a form that neither acts on a terminal, nor hides, nor makes a line. Pure.

Everything but printable characters is escaped: controls, separators of lines, characters that change the direction of
text or have no width. Letters of any script stay unchanged.
"""

from __future__ import annotations

_SURROGATE_ESCAPES = range(0xDC80, 0xDD00)  # bytes that are no UTF-8, PEP 383


def harmless(text: str) -> str:
    """Return the text with unprintable characters, but for tabs, as `\\x1b`, `\\u202e` and the like."""
    return text if text.isprintable() else "".join([_shown(character) for character in text])


def harmless_json(text: str) -> str:
    """Return JSON with unprintable characters beyond ASCII as `\\u202e`, the same text in a string of JSON."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join([_shown_in_json(character) for character in text])


def _shown(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    code = ord(character)
    if code in _SURROGATE_ESCAPES:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _shown_in_json(character: str) -> str:
    if character < "\x7f" or character.isprintable():
        return character
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
