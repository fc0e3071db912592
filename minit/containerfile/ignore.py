"""Files that a context leaves out: the patterns of .containerignore and .dockerignore, in Docker's meaning; pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from minit.base.errors import ImageError
from minit.base.value import Value

NAMES = (".containerignore", ".dockerignore")
MOST_BYTES = 1 << 20

_MAGIC = re.compile(r"[*?\[\\]")


class IgnorePattern(Value):
    """One line; `is_exception` for a line with an exclamation mark, which takes files in again."""

    expression: re.Pattern[str]
    is_exception: bool


class Ignored(Value):
    """All lines of a file; of several that fit a path, or a directory above the path, the last one decides."""

    patterns: tuple[IgnorePattern, ...] = ()

    @property
    def has_exceptions(self) -> bool:
        """Tell whether a directory that is left out may have files that are not."""
        return any(pattern.is_exception for pattern in self.patterns)

    def leaves_out(self, path: str) -> bool:
        """Tell whether the file at a relative path is left out."""
        if not self.patterns:
            return False
        places = [path, *_above(path)]
        is_out = False
        for pattern in self.patterns:
            if pattern.is_exception is is_out and any(pattern.expression.fullmatch(place) for place in places):
                is_out = not pattern.is_exception
        return is_out


def parse_ignored(text: str, source: str) -> Ignored:
    """Return the patterns of a file; ImageError with `source` and line for no pattern."""
    return Ignored(patterns=tuple(_patterns(text.removeprefix("\ufeff").splitlines(), source)))


def _patterns(lines: Iterable[str], source: str) -> Iterable[IgnorePattern]:
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        text = line.strip()
        is_exception = text.startswith("!")
        cleaned = posixpath.normpath("/./" + text.removeprefix("!").strip()).lstrip("/")
        if not cleaned:
            if is_exception or text.strip("/.") == "":
                continue  # the whole context, which Docker keeps as well
            raise ImageError(f"{source}:{number}: a pattern without a name")
        yield IgnorePattern(expression=compile_pattern(cleaned, f"{source}:{number}"), is_exception=is_exception)


def is_pattern(text: str) -> bool:
    """Tell whether a path may mean several files, or none."""
    return _MAGIC.search(text) is not None


def compile_pattern(pattern: str, where: str) -> re.Pattern[str]:
    """Return a pattern of `*`, `?` and `[...]` within names, and `**` across names; ImageError with `where`."""
    parts: list[str] = []
    place = 0
    while place < len(pattern):
        character = pattern[place]
        place += 1
        if character == "*" and pattern[place : place + 1] == "*":
            place += 1
            if pattern[place : place + 1] == "/":
                place += 1
                parts.append("(?:.*/)?")
            else:
                parts.append(".*" if place == len(pattern) else "(?:.*/)?[^/]*")
        elif character == "*":
            parts.append("[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            end = pattern.find("]", place + 2 if pattern[place : place + 1] in ("^", "!") else place + 1)
            if end < 0:
                raise ImageError(f'{where}: "{pattern}": a [ without a ]')
            parts.append(_class(pattern[place:end]))
            place = end + 1
        else:
            if character == "\\":
                if place == len(pattern):
                    raise ImageError(f'{where}: "{pattern}": a backslash at the end')
                character = pattern[place]
                place += 1
            parts.append(re.escape(character))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ImageError(f'{where}: "{pattern}": {error}') from error


def _class(inside: str) -> str:
    negated = "^" if inside[:1] in ("^", "!") else ""
    inside = inside[1:] if negated else inside
    # A range keeps its dash; nothing else of Python's classes means anything here.
    return f"(?!/)[{negated}{re.sub(r'([][&~|^])', _backslashed, inside)}]"


def _backslashed(match: re.Match[str]) -> str:
    return "\\" + match[0]


def _above(path: str) -> Iterable[str]:
    while path := posixpath.dirname(path):
        yield path
