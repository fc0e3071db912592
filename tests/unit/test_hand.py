"""A hand of the daemon: one command line after the other in one process."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from minit.base.errors import FailureKind
from minit.cli import hand
from minit.linux.messages import Socket, receive_message, send_message, socket_pair


def count_words(words: Sequence[str]) -> tuple[int, FailureKind | None]:
    """Pass the input on to the output, and return how many words there are."""
    sys.stdout.write(open(0, closefd=False).read())
    sys.stdout.flush()
    print("an error", file=sys.stderr)
    return len(words), None


def leave_a_descriptor(words: Sequence[str]) -> tuple[int, FailureKind | None]:
    """Leave a descriptor open."""
    os.dup(0)
    return 0, None


def leave_a_child(words: Sequence[str]) -> tuple[int, FailureKind | None]:
    """Leave a process that nobody waits for."""
    if os.fork() == 0:
        os._exit(0)
    return 0, None


def be_ended(words: Sequence[str]) -> tuple[int, FailureKind | None]:
    """End as a command does that gets a SIGTERM."""
    raise SystemExit(143)


@contextmanager
def a_hand(run: hand.CarryOut) -> Iterator[Socket]:
    """Yield the daemon's end of a hand that runs this, and wait for the hand's end, which is without an error."""
    ours, theirs = socket_pair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(theirs.fileno(), 0)
            ours.close()
            theirs.close()
            hand.serve(run)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    with ours:
        yield ours
    assert os.waitpid(pid, 0)[1] == 0


def ask(link: Socket, *words: str) -> tuple[dict[str, object] | None, bytes, bytes]:
    """Return the answer to a command line whose input is "text", and what the command wrote."""
    files = [os.memfd_create(name) for name in ("words", "stdin", "stdout", "stderr")]
    os.pwrite(files[0], b"".join(word.encode() + b"\0" for word in words), 0)
    os.pwrite(files[1], b"text", 0)
    send_message(link, {}, files)
    answer, _ = receive_message(link)
    written = [os.pread(fd, 100, 0) for fd in files[2:]]
    for fd in files:
        os.close(fd)
    return answer, written[0], written[1]


def test_one_after_the_other() -> None:
    """Each command has its own words, streams and exit code, and the next one may follow."""
    with a_hand(count_words) as link:
        assert ask(link, "a", "b") == ({"code": 2, "kind": None, "is_last": False}, b"text", b"an error\n")
        assert ask(link, "c") == ({"code": 1, "kind": None, "is_last": False}, b"text", b"an error\n")


@pytest.mark.parametrize(
    ("run", "code"), [(leave_a_descriptor, 0), (leave_a_child, 0), (be_ended, 143)], ids=["descriptor", "child", "end"]
)
def test_the_last_one(run: hand.CarryOut, code: int) -> None:
    """A hand ends, and says so, with a command that leaves a descriptor or a child, or that is told to end."""
    with a_hand(run) as link:
        assert ask(link)[0] == {"code": code, "kind": None, "is_last": True}
        assert receive_message(link) == (None, [])


def test_end_of_the_daemon() -> None:
    """A hand whose daemon has ended meanwhile ends after its command, with no error."""
    with a_hand(count_words) as link:
        fds = [os.memfd_create("stream") for _ in range(4)]
        send_message(link, {}, fds)
        link.shutdown(socket.SHUT_RDWR)
        for fd in fds:
            os.close(fd)
