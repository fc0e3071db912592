"""
The way of a terminal's output into its ring.

A pipe that PID 1 holds, as it holds the ring: what was read of a terminal is nowhere else, and outlives the sidecar.
"""

from __future__ import annotations

import os

from minit.iottymux.linebuffer import unread_bytes
from minit.iottymux.streams.counters import INTAKE_FROM, Counters
from minit.iottymux.streams.ring import Ring, Scratch

# The most bytes of one turn of the loop, so that one stream cannot keep the others waiting.
_BURST_BYTES = 64 * 1024
# One read of a full terminal returns one byte less than this (n_tty); much less means that there is no more for now.
_READ_BYTES = 4096
_SPLICE_NONBLOCK = 2


class Intake:
    """
    The pipe `fd`, filled from a terminal and emptied when all of it is in `ring`.

    A sidecar that is killed in between leaves a pipe of which a part is in the ring: the counters have the position at
    which the pipe begins.
    """

    def __init__(self, fd: int, ring: Ring, null: int, scratch: Scratch, counters: Counters) -> None:
        self._fd = fd
        self._ring = ring
        self._null = null
        self._scratch = scratch
        self._counters = counters
        self._teed = 0
        self.size = unread_bytes(fd)

    def fill(self, terminal: int) -> bool:
        """Take what the master of a terminal has, while empty; return whether that was its end."""
        self._counters[INTAKE_FROM] = self._ring.position
        most = self.size + _BURST_BYTES
        try:
            while self.size < most:
                moved = os.splice(terminal, self._fd, _READ_BYTES, flags=_SPLICE_NONBLOCK)
                self.size += moved
                if moved < _READ_BYTES // 2:
                    break
        except BlockingIOError:
            pass
        except OSError:
            return True  # EIO: nobody has the terminal open any more
        return False

    def read(self) -> bytes:
        """Return what it has first, all of it if the scratch is as large, without what is in the ring already."""
        self._teed = self._scratch.tee(self._fd, self.size)
        return self._scratch.take(self._teed)[self._ring.position - self._counters[INTAKE_FROM] :]

    def let_go(self) -> None:
        """Empty it of what was read, which is in the ring."""
        while self._teed:
            gone = os.splice(self._fd, self._null, self._teed)
            self._teed -= gone
            self.size -= gone
        self._counters[INTAKE_FROM] = self._ring.position


def waiting_bytes(fd: int, begin: int, position: int) -> int:
    """Return how much of the pipe `fd`, which begins at `begin`, is not in a ring that has come to `position`."""
    return max(0, unread_bytes(fd) - (position - begin))
