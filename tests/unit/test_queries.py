"""Queries in output that is shown again, checked with a terminal emulator."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.iottymux.callerterminal import without_queries

QUERIES = [
    *(b"\x1b[6n", b"\x1b[5n", b"\x1b[?6n", b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[=0c", b"\x1bZ", b"\x05"),
    *(b"\x1b[?2026$p", b"\x1b[4$p", b"\x1b[>0q", b"\x1b[?u", b"\x1b[18t", b"\x1b[14;2t", b"\x1b[x"),
    *(b"\x1b]10;?\x1b\\", b"\x1b]11;?\x07", b"\x1b]4;7;?\x07", b"\x1b]52;c;?\x07"),
    *(b"\x1bP$qm\x1b\\", b"\x1bP+q544e\x1b\\"),
]
OTHERS = [
    *(b"text", b"\r\n", b"\x1b[31;1m", b"\x1b[2J", b"\x1b[3;5H", b"\x1b[?1049h", b"\x1b[K", b"\x1b[2 q", b"\x1b[22;0t"),
    *(b"\x1b]0;what?\x07", b"\x1b]8;;http://x/?a\x1b\\", b"\x1b(0", b"\x1b7", b"\x1b=", b"\x1b[>4;1m", b"\x1b[u"),
    *(b"\x1b[!p", b"\x1b[>4n", b"\xc3\xbc"),
]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_left_out(query: bytes) -> None:
    """Each of them, and nothing around it."""
    assert without_queries(b"a" + query + b"b" + query) == b"ab"


@given(st.lists(st.sampled_from([*((True, query) for query in QUERIES), *((False, other) for other in OTHERS)])))
def test_everything_else_stays(parts: list[tuple[bool, bytes]]) -> None:
    """All other output is as it was."""
    assert without_queries(b"".join(part for _, part in parts)) == b"".join(
        part for is_query, part in parts if not is_query
    )


@given(st.binary(max_size=200) | st.lists(st.sampled_from(b"\x1b[?6nc0;\\]P\x07"), max_size=40).map(bytes))
def test_any_bytes(output: bytes) -> None:
    """Any output is taken, and what is left is part of it, in order."""
    left = without_queries(output)
    rest = iter(output)
    assert all(byte in rest for byte in left)


class Answering(pyte.Screen):
    """An emulator that keeps what it answers to the program."""

    def __init__(self, columns: int, lines: int) -> None:
        self.answers: list[str] = []
        super().__init__(columns, lines)

    def write_process_input(self, data: str) -> None:
        """Keep an answer."""
        self.answers.append(data)


@given(st.lists(st.sampled_from([*QUERIES, *OTHERS]), max_size=20))
def test_the_emulator_answers_nothing(parts: list[bytes]) -> None:
    """A terminal emulator has nothing to answer to what is left."""
    screen = Answering(40, 12)
    pyte.ByteStream(screen).feed(without_queries(b"".join(parts)))
    assert screen.answers == []
