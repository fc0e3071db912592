"""
The instructions of a Containerfile, each with line, flags and here-documents; pure.

The form is that of Docker's builder: continued lines, comments and empty lines among them, the directive `escape`, and
here-documents of RUN, COPY and ADD. A file is bounded, and every line belongs to an instruction or is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from minit.base.errors import ImageError
from minit.base.value import Value
from minit.containerfile.words import split_words

MOST_BYTES = 1 << 20

_DIRECTIVE = re.compile(r"\s*#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.*?)\s*")
_HERE_DOCUMENT = re.compile(r"(\d*)<<(-?)([^<]+)")
_WITH_DOCUMENTS = ("ADD", "COPY", "RUN")
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?", re.DOTALL)
_BLANKS = re.compile(r"[ \t\v\f\r\n]+")


class HereDocument(Value):
    """Lines between an instruction and a line with only `name`; `expands` if the name was not quoted."""

    name: str
    content: str
    expands: bool
    word: str
    """The word of the instruction, as `<<-EOF`."""


class Instruction(Value):
    """An instruction, its name in capitals; `rest` is what follows the flags."""

    name: str
    line: int
    flags: tuple[tuple[str, str], ...]
    rest: str
    documents: tuple[HereDocument, ...] = ()
    escape: str = "\\"

    @property
    def text(self) -> str:
        """The instruction in one line, for people."""
        flags = [f"--{name}={value}" if value else f"--{name}" for name, value in self.flags]
        return " ".join((self.name, *flags, *self.rest.split()))

    def words(self) -> tuple[str, ...] | None:
        """The words of the JSON form, None for another form."""
        if not self.rest.startswith("["):
            return None
        try:
            words = json.loads(self.rest)
        except ValueError:
            return None
        if not all(isinstance(word, str) for word in words):
            raise ImageError("a list has words in double quotes alone")
        return tuple(words)

    def arguments(self) -> tuple[str, ...]:
        """The words of the JSON form, or else those between blanks, unexpanded."""
        words = self.words()
        return tuple(word for word in _BLANKS.split(self.rest) if word) if words is None else words


def parse(text: str, source: str) -> tuple[Instruction, ...]:
    """Return the instructions of a file; ImageError with `source` and line."""
    if "\0" in text:
        raise ImageError(f"{source}: a NUL byte: no Containerfile")
    return _Reader(text.removeprefix("\ufeff").split("\n"), source).read()


class _Reader:
    def __init__(self, lines: Sequence[str], source: str) -> None:
        self._lines = [line.removesuffix("\r") for line in lines]
        self._source = source
        self._next = 0
        self._escape = "\\"

    def read(self) -> tuple[Instruction, ...]:
        self._directives()
        found = []
        while self._next < len(self._lines):
            line = self._lines[self._next].strip()
            if not line or line.startswith("#"):
                self._next += 1
                continue
            found.append(self._instruction())
        return tuple(found)

    def _directives(self) -> None:
        while self._next < len(self._lines):
            match = _DIRECTIVE.fullmatch(self._lines[self._next])
            if match is None:
                return
            if match[1].lower() == "escape":
                if match[2] not in ("\\", "`"):
                    raise self._error(self._next, f'escape: expected \\ or `, got "{match[2]}"')
                self._escape = match[2]
            self._next += 1

    def _instruction(self) -> Instruction:
        first = self._next
        name, _, rest = _partition(self._logical_line())
        name = name.upper()
        flags, rest = self._flags(rest, first)
        inner, _, inner_rest = _partition(rest)
        documents: tuple[HereDocument, ...] = ()
        if name in _WITH_DOCUMENTS or (name == "ONBUILD" and inner.upper() in _WITH_DOCUMENTS):
            documents = self._documents(inner_rest if name == "ONBUILD" else rest, first)
        return Instruction(name=name, line=first + 1, flags=flags, rest=rest, documents=documents, escape=self._escape)

    def _logical_line(self) -> str:
        """Return the line with all that continue the line; comments and empty lines between these are left out."""
        parts: list[str] = []
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            if parts and (not line.strip() or line.lstrip().startswith("#")):
                continue
            stripped = line.rstrip(" \t")
            if not stripped.endswith(self._escape) or stripped.endswith(self._escape * 2):
                parts.append(line)
                break
            parts.append(stripped[:-1])
        return "".join(parts).strip()

    def _flags(self, rest: str, line: int) -> tuple[tuple[tuple[str, str], ...], str]:
        flags: list[tuple[str, str]] = []
        while rest.startswith("--"):
            word = split_words(rest, self._escape)[0]
            rest = rest[len(word) :].lstrip()
            if word == "--":
                break
            match = _FLAG.fullmatch(word)
            if match is None:
                raise self._error(line, f'"{word[:80]}" is no option of an instruction')
            flags.append((match[1], match[2] or ""))
        return tuple(flags), rest

    def _documents(self, rest: str, line: int) -> tuple[HereDocument, ...]:
        if rest.startswith("["):
            return ()
        found = []
        for word in split_words(rest, self._escape):
            match = _HERE_DOCUMENT.fullmatch(word)
            if match is None:
                continue
            name = match[3].replace("'", "").replace('"', "")
            if not name:
                continue
            content = self._content(name, line, without_tabs=bool(match[2]))
            found.append(HereDocument(name=name, content=content, expands=name == match[3], word=word))
        return tuple(found)

    def _content(self, name: str, first: int, *, without_tabs: bool) -> str:
        lines: list[str] = []
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            line = line.lstrip("\t") if without_tabs else line
            if line == name:
                return "".join(f"{line}\n" for line in lines)
            lines.append(line)
        raise self._error(first, f'the here-document has no end: no line with "{name}" alone')

    def _error(self, line: int, text: str) -> ImageError:
        return ImageError(f"{self._source}:{line + 1}: {text}")


def _partition(line: str) -> tuple[str, str, str]:
    name, *rest = _BLANKS.split(line, maxsplit=1)
    return name, " ", rest[0] if rest else ""
