"""Messages of NTP: the answer to a question is read, anything else is nothing; servers agree or do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.machine.ntpmessage import Answer, Sample, agreed, encode_question, measure, parse_answer
from tests.support.ntpserver import answer

NONCE = bytes(range(8))
QUESTION = encode_question(NONCE)
BUILT, NOW = 1700000000.0, 1790000000.0


def test_an_answer() -> None:
    """The server's times and its distance from a true clock are read."""
    data = answer(QUESTION, NOW, held=0.5, delay=0.5, dispersion=0.25)
    read = parse_answer(data, NONCE, BUILT)
    assert read == Answer(received=NOW, sent=NOW + 0.5, root_distance_seconds=0.5)
    assert len(QUESTION) == 48 and QUESTION[0] == 0x23, "version 4, a client, and nothing about this machine"
    assert QUESTION[1:40] == bytes(39)


@pytest.mark.parametrize(
    "changed",
    [
        {"first": 0x25},
        {"first": 0x23},
        {"first": 0x1C},
        {"first": 0xE4},
        {"stratum": 16},
        {"delay": 3.1},
        {"dispersion": 2.0},
        {"held": -0.5},
        {"reference": NOW + 60},
    ],
    ids=str,
)
def test_what_is_no_answer(changed: dict[str, float]) -> None:
    """Another mode or version, a clock that is not set or too far from a true one, and impossible times are nothing."""
    assert parse_answer(answer(QUESTION, NOW, **changed), NONCE, BUILT) is None  # type: ignore[arg-type]


def test_an_answer_to_another_question() -> None:
    """Whoever does not know the number in the question has no answer, a word that sends clients away neither."""
    for data in (answer(QUESTION, NOW), answer(QUESTION, NOW, stratum=0, identifier=b"DENY")):
        assert parse_answer(data, NONCE[::-1], BUILT) is None
        assert parse_answer(data[:47], NONCE, BUILT) is None


def test_a_server_that_sends_clients_away() -> None:
    """It says a word instead of the time."""
    assert parse_answer(answer(QUESTION, NOW, stratum=0, identifier=b"RATE"), NONCE, BUILT) == Answer(kiss="RATE")


def test_the_year_2036() -> None:
    """Timestamps begin anew then; those near the image's time are meant."""
    later = 2_200_000_000.0
    read = parse_answer(answer(QUESTION, later), NONCE, BUILT)
    assert read is not None and read.received == later


def test_an_exchange() -> None:
    """The way of a message counts as the same in both directions; a server cannot have had it longer than it took."""
    read = Answer(received=NOW + 100.25, sent=NOW + 100.5, root_distance_seconds=0.125)
    sample = measure("a", read, NOW, 0.75)
    assert sample is not None
    assert sample.offset == pytest.approx(100.0) and sample.distance == pytest.approx(0.25 + 0.125 + 0.001)
    assert measure("a", read, NOW, 0.2) is None


def test_servers_agree() -> None:
    """A liar is outvoted, the best of the others counts, and of two that contradict each other none does."""
    liar, far, near = (
        Sample(server=n, offset=o, distance=d) for n, o, d in (("l", 9e8, 0), ("f", 1.2, 0.3), ("n", 1, 0))
    )
    assert agreed([liar, far, near]) == near
    assert agreed([liar, near]) is None
    assert agreed([near]) == near
    assert agreed([liar, near, Sample(server="o", offset=5.0, distance=0.5)]) is None


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1e3)), min_size=1, max_size=6))
def test_any_servers(pairs: list[tuple[float, float]]) -> None:
    """What they agree on is within the reach of more than half of them."""
    samples = [Sample(server=str(number), offset=o, distance=d) for number, (o, d) in enumerate(pairs)]
    found = agreed(samples)
    if found is not None:
        reached = [one for one in samples if abs(one.offset - found.offset) <= one.distance + found.distance + 1e-6]
        assert 2 * len(reached) > len(samples)


@given(st.binary(max_size=80), st.binary(min_size=8, max_size=8))
def test_any_message(data: bytes, nonce: bytes) -> None:
    """No message makes reading it fail, and times are near the image's."""
    for each in (data, data[:24] + nonce + data[32:]):
        read = parse_answer(each, nonce, BUILT)
        if read is not None and read.kiss is None:
            assert all(abs(each - BUILT) <= 2**31 for each in (read.received, read.sent))
