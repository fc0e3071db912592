"""What a client knows of the terminal of its caller: modes to switch back, and queries, checked with an emulator."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.iottymux.callerterminal import ScreenModes, without_queries

_MODES = (1, 5, 6, 7, 25, 47, 1000, 1002, 1003, 1004, 1006, 1047, 1049, 2004)
_SWITCHES = st.builds(
    lambda modes, letter: b"\x1b[?" + b";".join(b"%d" % mode for mode in modes) + letter,
    st.lists(st.sampled_from(_MODES), min_size=1, max_size=3),
    st.sampled_from((b"h", b"l")),
)
_OTHERS = st.sampled_from(
    (
        *(b"text", b"\r\n", b"\x1b[31m", b"\x1b[1;4m", b"\x1b[m", b"\x1b[0m", b"\x1b[3;9r", b"\x1b[r", b"\x1b[4h"),
        *(b"\x1b[4l", b"\x1b(0", b"\x1b(B", b"\x1b[5;5H", b"\x1b]0;title\x07", b"\x1bc", b"\x1b[2J"),
    )
)

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


def shown(screen: pyte.Screen) -> tuple[object, ...]:
    """Return what of a screen is to be as it was at first."""
    return set(screen.mode), screen.cursor.attrs, screen.margins, screen.g0_charset, screen.cursor.hidden


def show(output: bytes) -> pyte.Screen:
    """Return a screen on which this was shown."""
    screen = pyte.Screen(40, 12)
    pyte.ByteStream(screen).feed(output)
    return screen


@given(st.lists(_SWITCHES | _OTHERS, max_size=20), st.data())
def test_everything_is_switched_back(parts: list[bytes], data: st.DataObject) -> None:
    """After any switches of an app, with its output cut anywhere, the screen ends as a new one."""
    output = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=6)))
    modes = ScreenModes()
    for begin, end in zip([0, *cuts], [*cuts, len(output)]):
        modes.feed(output[begin:end])
    assert shown(show(output + modes.restore())) == shown(pyte.Screen(40, 12))
    assert modes.restore() == b""


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes(output: bytes, cut: int) -> None:
    """Any output is taken, in one piece or in two, with the same result."""
    whole, halves = ScreenModes(), ScreenModes()
    whole.feed(output)
    halves.feed(output[:cut])
    halves.feed(output[cut:])
    assert whole.restore() == halves.restore()


@pytest.mark.parametrize(
    ("output", "restored"),
    [
        (b"plain text \x1b[2J\x1b[5;7H\x1b[31mred\x1b[0m", b""),
        (b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"),
        (b"\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l", b""),
        (b"\x1b[?1;2004h\x1b=", b"\x1b>\x1b[?1l\x1b[?2004l"),
        (b"\x1b[2 q", b"\x1b[0 q"),
        (b"\x1b[?25l\x1bc", b""),
        (b"\x1b[" + b"1;" * 10_000 + b"1m", b""),
        (b"\x1b\x1b[?25l", b"\x1b[?25h"),
    ],
)
def test_what_is_sent(output: bytes, restored: bytes) -> None:
    """Nothing more than what was changed is switched back."""
    modes = ScreenModes()
    modes.feed(output)
    assert modes.restore() == restored


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
def test_queries_in_any_bytes(output: bytes) -> None:
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
