"""Single keys from the terminal, while a command shows something on it."""

from __future__ import annotations

import os
import re
import signal
import termios
import tty
from types import FrameType
from typing import Self

from minit.linux.loop import wait_readable

_STDIN, _STDOUT = 0, 1
_END_OF_INPUT = "\x04"
_CHARACTERS = 6
_NO_CHARACTER = b"\0"
_READ_BYTES = 64
_ESCAPE = b"\x1b"
# The codes of arrows and the like, ECMA-48; the rest of one follows its first byte at once.
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.)")
_REST_SECONDS = 0.05


def is_terminal() -> bool:
    """Return whether what the command prints is seen on a terminal."""
    return os.isatty(_STDOUT)


class Keys:
    """
    Keys as they are pressed, neither shown nor kept until the end of a line; a context manager.

    Ctrl-C stays what it is, Ctrl-Z is a key. A new size of the window ends a wait, too. Without a terminal as standard
    input there are no keys.
    """

    def __init__(self) -> None:
        self._settings: list[object] | None = None
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        if os.isatty(_STDIN):
            self._settings = termios.tcgetattr(_STDIN)
            tty.setcbreak(_STDIN)
            changed = termios.tcgetattr(_STDIN)
            # A stop would leave the terminal like this to the shell.
            changed[_CHARACTERS][termios.VSUSP] = _NO_CHARACTER
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, changed)
        self._old_handler = signal.signal(signal.SIGWINCH, self._on_resize)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._old_handler)
        if self._settings is not None:
            try:
                termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._settings)  # type: ignore[arg-type]
            except termios.error:
                pass  # the terminal is gone
        for fd in self._wake:
            os.close(fd)

    def wait(self, seconds: float) -> str:
        """
        Return the keys pressed by then without those of several bytes, such as arrows.

        It is empty if there were none, the window has another size now, or a day is over. The end of the
        input, by a hang-up or Ctrl-D, is the key Ctrl-D.
        """
        ready = wait_readable([self._wake[0], *([] if self._settings is None else [_STDIN])], seconds)
        if self._wake[0] in ready:
            os.read(self._wake[0], 64)
        if _STDIN not in ready:
            return ""
        try:
            data = os.read(_STDIN, _READ_BYTES)
            if data.endswith(_ESCAPE) and wait_readable([_STDIN], _REST_SECONDS):
                data += os.read(_STDIN, _READ_BYTES)
        except OSError:  # the terminal is gone
            return _END_OF_INPUT
        return _SEQUENCE.sub(b"", data).decode("utf-8", "replace") if data else _END_OF_INPUT

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._wake[1], b"\0")
        except BlockingIOError:
            pass  # there is one already
