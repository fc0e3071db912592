"""Words of a Containerfile: quotes, escapes and variables as Docker's builder has them; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from minit.base.errors import ImageError

_SPACES = " \t\v\f\r"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]", re.ASCII)
_OPERATOR = re.compile(r":?[-+?]")
_MOST_NESTED = 20


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Return the words of a text, with quotes and escapes as they stand."""
    words: list[str] = []
    word, quote, place = "", "", 0
    while place < len(text):
        character = text[place]
        if quote:
            quote = "" if character == quote else quote
        elif character in _SPACES + "\n":
            if word:
                words.append(word)
            word = ""
            place += 1
            continue
        elif character in "'\"":
            quote = character
        word += character
        place += 1
        if character == escape and quote != "'" and place < len(text):
            word += text[place]
            place += 1
    return [*words, word] if word else words


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Return a word with variables replaced, without quotes and escapes; ImageError for no such form."""
    return _Expansion(text, variables, escape, 0).run("")


def expand_lines(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Return the content of a here-document with variables replaced; quotes are characters as others."""
    return _Expansion(text, variables, escape, 0, quotes=False).run("")


def assignments(text: str, variables: Mapping[str, str], escape: str) -> list[tuple[str, str | None]]:
    """Return the names and default values of ARG; a value may name the arguments before."""
    found: list[tuple[str, str | None]] = []
    known = dict(variables)
    for word in split_words(text, escape):
        name, equals, value = word.partition("=")
        name = expand(name, known, escape)
        if not name:
            raise ImageError(f'expected NAME or NAME=VALUE, got "{word}"')
        default = expand(value, known, escape) if equals else None
        found.append((name, default))
        if default is not None:
            known[name] = default
    return found


def pairs(text: str, variables: Mapping[str, str], escape: str) -> list[tuple[str, str]]:
    """Return the names and values of ENV and LABEL, in the form `NAME=VALUE …` or `NAME VALUE`."""
    words = split_words(text, escape)
    if "=" not in words[0]:
        words = ["=".join(text.split(maxsplit=1))]
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ImageError(f'expected NAME=VALUE, got "{word}"')
        found.append((expand(name, variables, escape), expand(value, variables, escape)))
    if any(not name or "\0" in value for name, value in found):
        raise ImageError("a variable or label without a name")
    return found


class _Expansion:
    """One walk through a text; `run` goes up to a closing character, which stays unread."""

    def __init__(
        self, text: str, variables: Mapping[str, str], escape: str, depth: int, *, quotes: bool = True
    ) -> None:
        if depth > _MOST_NESTED:
            raise ImageError(f'"{text[:80]}": variables within variables, more than {_MOST_NESTED} deep')
        self._text = text
        self._variables = variables
        self._escape = escape
        self._depth = depth
        self._quotes = quotes
        self._place = 0

    def run(self, end: str) -> str:
        parts: list[str] = []
        while self._place < len(self._text):
            character = self._text[self._place]
            if character == end:
                break
            if character == "$":
                parts.append(self._variable())
            elif character == self._escape:
                parts.append(self._escaped())
            elif self._quotes and character == "'":
                parts.append(self._literal())
            elif self._quotes and character == '"':
                parts.append(self._double())
            else:
                parts.append(character)
                self._place += 1
        return "".join(parts)

    def _escaped(self) -> str:
        following = self._text[self._place + 1 : self._place + 2]
        self._place += 2
        if not self._quotes and following not in ("$", self._escape):
            return self._escape + following
        return following or self._escape

    def _literal(self) -> str:
        end = self._text.find("'", self._place + 1)
        if end < 0:
            raise ImageError(f'"{self._text[:80]}": a \' without a second one')
        found = self._text[self._place + 1 : end]
        self._place = end + 1
        return found

    def _double(self) -> str:
        parts: list[str] = []
        self._place += 1
        while True:
            character = self._text[self._place : self._place + 1]
            if not character:
                raise ImageError(f"'{self._text[:80]}': a \" without a second one")
            if character == '"':
                self._place += 1
                return "".join(parts)
            if character == "$":
                parts.append(self._variable())
                continue
            if character == self._escape and self._text[self._place + 1 : self._place + 2] in ('"', "$", self._escape):
                self._place += 1
                character = self._text[self._place]
            parts.append(character)
            self._place += 1

    def _variable(self) -> str:
        self._place += 1
        if self._text[self._place : self._place + 1] != "{":
            match = _NAME.match(self._text, self._place)
            if match is None:
                return "$"
            self._place = match.end()
            return self._variables.get(match[0], "")
        match = _NAME.match(self._text, self._place + 1)
        if match is None:
            raise self._bad()
        name, self._place = match[0], match.end()
        operator = _OPERATOR.match(self._text, self._place)
        if operator is None:
            if self._text[self._place : self._place + 1] != "}":
                raise self._bad()
            self._place += 1
            return self._variables.get(name, "")
        self._place = operator.end()
        inner = _Expansion(self._text[self._place :], self._variables, self._escape, self._depth + 1)
        word = inner.run("}")
        self._place += inner._place
        if self._text[self._place : self._place + 1] != "}":
            raise self._bad()
        self._place += 1
        return self._chosen(name, operator[0], word)

    def _chosen(self, name: str, operator: str, word: str) -> str:
        value = self._variables.get(name)
        is_set = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("-"):
            return (value or "") if is_set else word
        if operator.endswith("+"):
            return word if is_set else ""
        if not is_set:
            raise ImageError(f"variable {name}: {word or 'not set'}")
        return value or ""

    def _bad(self) -> ImageError:
        return ImageError(
            f'"{self._text[:80]}": no form of a variable that is known: $NAME, ${{NAME}}, ${{NAME:-WORD}}'
        )
