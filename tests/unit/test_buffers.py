"""minit.iottymux: queues of clients, the ring and the session protocol, against what they promise."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.iottymux.buffers import Queue
from minit.iottymux.protocol import (
    POLICIES,
    STREAMS,
    AskStatus,
    Attach,
    ProtocolError,
    Reading,
    Resize,
    TakeStdin,
    parse_request,
)
from minit.iottymux.ring import RING_BYTES, Counters, Ring, Scratch, make_counters, make_pipe, read_counters

MARKER = re.compile(rb"\n\[minit: (\d+) bytes dropped\]\n")


@given(st.lists(st.one_of(st.integers(1, 9000), st.integers(-3000, -1)), max_size=60), st.integers(4096, 20_000))
def test_a_queue_loses_only_what_it_tells(steps: list[int], limit: int) -> None:
    """Each byte comes out in order or is counted in a marker at its place, in any order of puts and takes."""
    queue = Queue(limit)
    text = bytes(97 + number % 26 for number in range(sum(step for step in steps if step > 0)))
    put = 0
    out = b""

    def take(most: int | None) -> None:
        nonlocal out
        while queue:
            pieces, _ = queue.next_pieces()
            data = b"".join(pieces)[:most]
            queue.taken(len(data))
            out += data
            if most is not None:
                return

    for step in steps:
        if step > 0:
            queue.put(memoryview(text)[put : put + step])
            put += step
            if queue.is_over_limit and step % 3:
                queue.drop_to_fit()
            elif queue.is_over_limit:
                queue.note_gap(sum(queue.give_up()))
            assert queue.size <= limit
        else:
            take(-step)
    take(None)
    assert not queue
    at = 0
    parts = MARKER.split(out)
    for index, part in enumerate(parts):
        if index % 2:
            at += int(part)
        else:
            assert text[at : at + len(part)] == part
            at += len(part)
    assert at == len(text)


def taken_from(queue: Queue) -> list[bytes | memoryview]:
    """Return all pieces that a queue holds, taken out of it."""
    taken = []
    while queue:
        pieces, _ = queue.next_pieces()
        taken += pieces
        queue.taken(sum(map(len, pieces)))
    return taken


def test_queues_share_what_waits_in_them() -> None:
    """A thousand queues cost little more than one, also if the app writes single bytes."""
    queues = [Queue(65_536) for _ in range(1000)]
    pieces = [b"%d" % number for number in range(900)]
    for piece in pieces:
        for queue in queues:
            queue.put(piece)
    assert not queues[0].is_over_limit
    for queue in queues:
        waiting = taken_from(queue)
        assert all(one is other for one, other in zip(waiting, pieces, strict=True))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 100_000), st.integers(0, 200_000)), max_size=12))
def test_a_ring_keeps_what_it_is_asked_to(steps: list[tuple[bool, int, int]]) -> None:
    """It holds the last of all that was moved or written into it, and the next sidecar finds the same."""
    ring_fd, scratch_fd, counters_fd = make_pipe(), make_pipe(), make_counters()
    null, (reader, writer) = os.open("/dev/null", os.O_WRONLY), os.pipe()
    scratch = Scratch(scratch_fd, null)
    counters = Counters(counters_fd)
    ring = Ring("stdout", ring_fd, null, scratch, counters)
    text = b""
    try:
        for is_written, size, keep in steps:
            data = bytes((len(text) + number) % 251 for number in range(size))
            ring.keep_bytes = max(RING_BYTES, keep)
            before = ring.size
            if is_written:
                ring.write(data)
            else:
                for at in range(0, size, 65_536):
                    piece = data[at : at + 65_536]
                    os.write(writer, piece)
                    ring.move_from(reader, len(piece))
            text += data
            ring.trim()
            for each in (ring, Ring("stdout", ring_fd, null, scratch, counters)):
                kept = each.read()
                assert each.position == len(text)
                assert text.endswith(kept)
                assert len(kept) >= min(before + size, ring.keep_bytes)
        assert read_counters(counters_fd)["bytes_out"] == len(text)
    finally:
        for fd in (ring_fd, counters_fd, null, reader, writer, scratch_fd):
            os.close(fd)


@pytest.mark.parametrize("request_", [Resize(size=(1, 65_535)), TakeStdin(), Reading(), AskStatus()])
def test_requests_are_read_as_they_are_written(request_: Resize | TakeStdin | Reading | AskStatus) -> None:
    """The request of one side is understood by the other."""
    assert parse_request(request_.request()) == request_


@given(
    st.lists(st.sampled_from(STREAMS), min_size=1, unique=True).filter(
        lambda names: not {"stdin", "tty-in"} <= {*names}
    ),
    st.sampled_from(POLICIES),
    st.integers(4096, 1 << 24),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 65_535), st.integers(0, 65_535)),
)
def test_attachments_are_read_as_they_are_written(
    streams: list[str], policy: str, queue_bytes: int, flag: bool, size: tuple[int, int] | None
) -> None:
    """So are the wishes of a client about its attachment."""
    resume = tuple((name, 7) for name in streams if name not in ("stdin", "tty-in"))
    attach = Attach(
        streams=tuple(streams),
        policy=policy,
        queue_bytes=queue_bytes,
        replay=flag,
        take_stdin=not flag,
        size=size,
        resume=resume,
        unmarked=tuple(streams[:1]),
    )
    assert parse_request(attach.request()) == attach


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(STREAMS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = ("streams", "policy", "queue_bytes", "replay", "take_stdin", "size", "resume", "unmarked")


@given(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["attach", "resize", "take-stdin", "reading", "status"]) | _JSON},
        optional=dict.fromkeys(_FIELDS, _JSON),
    )
)
def test_any_message_is_a_request_or_refused(message: dict[str, object]) -> None:
    """Nothing that JSON can say does anything else."""
    try:
        parse_request(message)
    except ProtocolError as error:
        assert len(str(error)) < 300
