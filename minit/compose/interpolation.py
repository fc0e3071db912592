"""
Variables in texts of compose files, and files of variables. Pure.

The forms are those of the Compose Specification, "Interpolation": `$NAME`, `${NAME}`, and `${NAME}` with a default, a
demand or a replacement, in which variables may stand again. `$$` is one dollar, and any other dollar stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from minit.base.errors import ManifestError

Look = Callable[[str], str | None]
"""Returns the value of a variable, None without one."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = (":-", "-", ":?", "?", ":+", "+")
_KEY = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def interpolate(text: str, look: Look, missing: Callable[[str], None]) -> str:
    """Return a text with its variables replaced; `missing` hears the name of an unset one. ManifestError for others."""
    parts: list[str] = []
    position = 0
    while (dollar := text.find("$", position)) >= 0:
        parts.append(text[position:dollar])
        value, position = _replace(text, dollar, look, missing)
        parts.append(value)
    return "".join((*parts, text[position:]))


def _replace(text: str, dollar: int, look: Look, missing: Callable[[str], None]) -> tuple[str, int]:
    """Return what stands for the dollar, and the position behind."""
    if text.startswith("$$", dollar):
        return "$", dollar + 2
    if text.startswith("${", dollar):
        end = _closing(text, dollar)
        return _braced(text[dollar + 2 : end], look, missing), end + 1
    name = _NAME.match(text, dollar + 1)
    if name is None:
        return "$", dollar + 1
    return _plain(name[0], look, missing), name.end()


def _closing(text: str, dollar: int) -> int:
    depth, position = 0, dollar
    while position < len(text):
        if text.startswith("$$", position):
            position += 1
        elif text.startswith("${", position):
            depth += 1
            position += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    raise ManifestError(f'expected a }} that ends "{text[dollar : dollar + 30]}" (write $$ for a dollar)')


def _braced(inner: str, look: Look, missing: Callable[[str], None]) -> str:
    match = _NAME.match(inner)
    operator = next((each for each in _OPERATORS if match and inner.startswith(each, match.end())), "")
    if match is None or not (operator or match.end() == len(inner)):
        raise ManifestError(
            f'"${{{inner}}}" is no variable: expected ${{NAME}}, ${{NAME:-default}} or ${{NAME:?error}}'
        )
    name, word = match[0], inner[match.end() + len(operator) :]
    if not operator:
        return _plain(name, look, missing)
    value = look(name)
    is_there = bool(value) if operator.startswith(":") else value is not None
    if operator.endswith("+"):
        return interpolate(word, look, missing) if is_there else ""
    if is_there:
        return value or ""
    if operator.endswith("-"):
        return interpolate(word, look, missing)
    reason = interpolate(word, look, missing)
    raise ManifestError(f"the variable {name} is {'not set' if value is None else 'empty'}{reason and f': {reason}'}")


def _plain(name: str, look: Look, missing: Callable[[str], None]) -> str:
    value = look(name)
    if value is None:
        missing(name)
    return value or ""


def parse_variables(text: str, source: str, outer: Mapping[str, str]) -> dict[str, str | None]:
    """
    Return the variables of a file of the form of `.env`, None for a name without a value; ManifestError with the line.

    `outer` variables, and earlier ones of the file, may stand in values, but not in single quotes.
    """
    found: dict[str, str | None] = {}
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    position = 0
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        number = text.count("\n", 0, position) + 1
        stripped = line.lstrip(" \t")
        if not stripped or stripped.startswith("#"):
            position = end + 1
            continue
        start = position + len(line) - len(stripped)
        key = _KEY.match(text, start)
        if key is None:
            raise ManifestError(f'{source}:{number}: expected NAME=VALUE, got "{stripped[:40]}"')
        if key.end() >= end:
            found[key[1]] = outer.get(key[1])
            position = end + 1
            continue
        if text[key.end()] not in "=:":
            raise ManifestError(f'{source}:{number}: expected = after {key[1]}, got "{text[key.end()]}"')

        def look(name: str) -> str | None:
            return outer.get(name, found.get(name))

        try:
            value, position = _read_value(text, key.end() + 1, look)
        except ManifestError as error:
            raise ManifestError(f"{source}:{number}: {error}") from error
        found[key[1]] = value
    return found


def _read_value(text: str, start: int, look: Look) -> tuple[str, int]:
    """Return a value and the beginning of the next line."""
    while text[start : start + 1] in (" ", "\t"):
        start += 1
    quote = text[start : start + 1]
    if quote in ("'", '"'):
        end = start + 1
        while end < len(text) and text[end] != quote:
            end += 2 if text[end] == "\\" else 1
        if end >= len(text):
            raise ManifestError(f"expected {quote} at the end of the value")
        rest, _, _ = text[end + 1 :].partition("\n")
        if rest.strip() and not rest.lstrip().startswith("#"):
            raise ManifestError(f'expected nothing after the quoted value, got "{rest.strip()[:40]}"')
        inner = text[start + 1 : end]
        value = inner.replace("\\'", "'") if quote == "'" else interpolate(_unescape(inner), look, lambda name: None)
        return value, end + 1 + len(rest) + 1
    line, _, _ = text[start:].partition("\n")
    plain = re.sub(r"(^|[ \t]+)#.*", "", line).strip()
    return interpolate(plain, look, lambda name: None), start + len(line) + 1


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        # An escaped dollar is one that names no variable.
        return "$$" if match[1] == "$" else _ESCAPES.get(match[1], match[0])

    return re.sub(r"\\(.)", one, text, flags=re.DOTALL)
