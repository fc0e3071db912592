"""minit.linux.messages: JSON objects with descriptors over SEQPACKET sockets."""

from __future__ import annotations

import array
import fcntl
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.linux.messages import (
    MAXIMUM_MESSAGE_BYTES,
    Socket,
    encode_message,
    receive_message,
    send_message,
    socket_pair,
)


@pytest.fixture
def pair() -> Iterator[tuple[Socket, Socket]]:
    """Two connected sockets, the second of which never waits forever."""
    one, other = socket_pair()
    other.settimeout(10)
    yield one, other
    one.close()
    other.close()


def open_descriptors() -> set[str]:
    """Return what this process has open."""
    names = set(os.listdir("/proc/self/fd"))
    return {name for name in names if os.path.lexists(f"/proc/self/fd/{name}")}


def test_a_message_arrives_as_it_was(pair: tuple[Socket, Socket]) -> None:
    """An object comes out equal, without descriptors if none were sent."""
    message = {"ok": True, "list": [1, "ü", None], "nested": {"a": 1.5}}
    send_message(pair[0], message)
    assert receive_message(pair[1]) == (message, [])


def test_messages_keep_their_bounds(pair: tuple[Socket, Socket]) -> None:
    """Two sends are two receives."""
    send_message(pair[0], {"n": 1})
    send_message(pair[0], {"n": 2})
    assert [receive_message(pair[1])[0] for _ in range(2)] == [{"n": 1}, {"n": 2}]


def test_descriptors_arrive_in_order_and_close_on_exec(pair: tuple[Socket, Socket]) -> None:
    """Received descriptors name the same files, belong to the receiver and do not survive an exec."""
    files = [os.memfd_create(f"file{index}") for index in range(16)]
    send_message(pair[0], {}, files)
    _, received = receive_message(pair[1])
    assert [os.fstat(fd).st_ino for fd in received] == [os.fstat(fd).st_ino for fd in files]
    assert not set(received) & set(files)
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received)
    for fd in (*files, *received):
        os.close(fd)


def test_end_of_file_is_none(pair: tuple[Socket, Socket]) -> None:
    """A closed peer is told from any message."""
    pair[0].close()
    assert receive_message(pair[1]) == (None, [])


def test_a_peer_that_went_away_without_reading_was_heard(pair: tuple[Socket, Socket]) -> None:
    """Its earlier messages are received, and then its end."""
    send_message(pair[1], {"for": "nobody"})
    send_message(pair[0], {"last": "words"})
    pair[0].close()
    assert receive_message(pair[1]) == ({"last": "words"}, [])
    assert receive_message(pair[1]) == (None, [])


def test_a_peer_that_is_gone_is_an_error_not_a_signal(pair: tuple[Socket, Socket]) -> None:
    """Sending to nobody raises and does not kill."""
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        send_message(pair[0], {})


@pytest.mark.parametrize("data", [b"x", b"[]", b'"text"', b"1", b"null", b"{", b'{"a":1,"a":2}', b"\xff", b"{}{}"])
def test_garbage_is_a_value_error_and_its_descriptors_are_closed(pair: tuple[Socket, Socket], data: bytes) -> None:
    """A message that is no JSON object leaves nothing open in the receiver, and the next one is read as ever."""
    file = os.memfd_create("file")
    before = open_descriptors()
    pair[0].sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file, file]))])
    with pytest.raises(ValueError, match="^message: "):
        receive_message(pair[1])
    assert open_descriptors() == before
    os.close(file)
    send_message(pair[0], {"next": True})
    assert receive_message(pair[1]) == ({"next": True}, [])


def test_a_message_of_the_greatest_size_fits(pair: tuple[Socket, Socket]) -> None:
    """64 KiB go through whole; one byte more is refused, never cut."""
    room = MAXIMUM_MESSAGE_BYTES - len(b'{"a":""}')
    send_message(pair[0], {"a": "x" * room})
    assert receive_message(pair[1]) == ({"a": "x" * room}, [])
    send_message(pair[0], {"a": "x" * (room + 1)})
    with pytest.raises(ValueError, match="more than 65536 bytes"):
        receive_message(pair[1])


def test_more_descriptors_than_expected_are_refused(pair: tuple[Socket, Socket]) -> None:
    """A message that lost some of its descriptors is not taken for whole."""
    file = os.memfd_create("file")
    before = open_descriptors()
    send_message(pair[0], {}, [file] * 17)
    with pytest.raises(ValueError, match="16 descriptors"):
        receive_message(pair[1])
    assert open_descriptors() == before
    os.close(file)


def test_without_descriptors_there_is_no_ancillary_data() -> None:
    """An empty SCM_RIGHTS would be an error to some kernels."""
    assert encode_message({"a": 1}, ()) == ([b'{"a":1}'], [])


@given(st.binary(min_size=1, max_size=200))
def test_any_packet_is_an_object_or_a_value_error(data: bytes) -> None:
    """No bytes raise anything else."""
    one, other = socket_pair()
    try:
        one.send(data)
        try:
            message, _ = receive_message(other)
        except ValueError:
            return
        assert isinstance(message, dict)
    finally:
        one.close()
        other.close()
