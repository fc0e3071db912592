"""The modes that a client switches back on its terminal, checked with a terminal emulator."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.iottymux.callerterminal import ScreenModes

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
