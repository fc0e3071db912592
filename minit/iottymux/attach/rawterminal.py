"""The caller's terminal in front of an app: raw while attached, as large as the app's, and given back at the end."""

from __future__ import annotations

import os
import signal

from minit.iottymux.protocol import STDIN, TTY_IN, TTY_OUT
from minit.linux.stdio import expect_raw_terminal
from minit.linux.terminal import look_at_terminal, read_size


class RawTerminal:
    """
    The terminal at descriptor 0, for these streams of an app.

    `is_typed_on` says that the keys typed there go through as they are, `is_raw` that it has been made raw.
    """

    def __init__(self, streams: tuple[str, ...]) -> None:
        # Also who only looks on at an app's terminal detaches by keys; but where an app reads a stream, it is the
        # caller's terminal that makes lines of what is typed.
        is_raw = TTY_IN in streams or (TTY_OUT in streams and STDIN not in streams)
        self._terminal = look_at_terminal(is_read=is_raw)
        self._has_size = TTY_IN in streams
        self.is_typed_on = self._terminal.settings is not None
        self.is_raw = False

    def size(self) -> tuple[int, int] | None:
        """Return the size that the app's terminal should have; that of one who only looks on does not count."""
        size = read_size() if self._has_size else None
        if size is None:
            return None
        rows, columns = int.from_bytes(size[0:2], "little"), int.from_bytes(size[2:4], "little")
        return (rows, columns) if rows and columns else None

    def make_raw(self) -> None:
        """Pass on every key from now on, if anything is typed on it."""
        if self.is_typed_on:
            self.is_raw = True
            self._terminal.make_raw()
            expect_raw_terminal()

    def restore(self) -> None:
        """Give it back as it was."""
        if self.is_raw:
            self._terminal.restore()
            expect_raw_terminal(False)

    def suspend(self) -> None:
        """Stop as a program without a terminal of its own would, until SIGCONT."""
        self.restore()
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTSTP,))
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))

    def resume(self) -> None:
        """Make it raw again if it was, after a stop."""
        if self.is_raw:
            self.make_raw()
