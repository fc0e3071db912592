"""The terminal of the caller of `run`, `enter` or `attach`: settings and size, termios(3), ioctl_tty(2)."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from typing import Any

from minit.base.value import Value

_WINSIZE_BYTES = 8
_IFLAG, _OFLAG, _CFLAG, _LFLAG, _CC = 0, 1, 2, 3, 6
_RAW_CLEARS = {
    _IFLAG: termios.IGNBRK | termios.BRKINT | termios.PARMRK | termios.ISTRIP,
    _OFLAG: termios.OPOST,
    _CFLAG: termios.CSIZE | termios.PARENB,
    _LFLAG: termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN,
}
_RAW_CLEARS[_IFLAG] |= termios.INLCR | termios.IGNCR | termios.ICRNL | termios.IXON
CTRL_D = b"\4"
_IUTF8 = 0o40000  # missing in termios


class CallerTerminal(Value):
    """
    The caller's terminal in its first state, at descriptor 0.

    `is_read` says whether any app reads from the terminal; then `settings` are the result of tcgetattr(3), None for
    another kind of file. `size` is a struct winsize, None without a terminal.
    """

    is_read: bool
    settings: list[Any] | None
    size: bytes | None

    def make_raw(self) -> None:
        """
        Pass on every byte unchanged from now on, in both directions.

        In the background the kernel stops this process by SIGTTOU until the process is in the foreground.
        """
        if self.settings is not None:
            try:
                _set(0, _raw(self.settings))
            except OSError:
                pass  # hung up, or of another session: reading says the same

    def restore(self) -> None:
        """Restore the terminal's settings, unless somebody changed them after `make_raw`."""
        if self.settings is None:
            return
        # In the background too: the process in the foreground does not expect a raw terminal.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            if _modes(_get(0)) == _modes(_raw(self.settings)):
                _set(0, self.settings)
        except OSError:
            pass  # hung up
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def prepare(self, slave: int) -> None:
        """Give a new pty the caller's size and keys; without a typist the pty does not echo."""
        if self.size is not None:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, self.size)
        attributes = _get(slave)
        if self.settings is None:
            attributes[_LFLAG] &= ~termios.ECHO
        else:
            attributes[_IFLAG] |= self.settings[_IFLAG] & _IUTF8
            attributes[_CC] = self.settings[_CC]
        _set(slave, attributes)


def keep_line_ends(slave: int) -> None:
    """Have a pty pass output on unchanged, for a caller's terminal that is not raw and makes line ends."""
    attributes = _get(slave)
    attributes[_OFLAG] &= ~termios.OPOST
    _set(slave, attributes)


def look_at_terminal(*, is_read: bool) -> CallerTerminal:
    """Return the caller's terminal."""
    settings = _get(0) if is_read and os.isatty(0) else None
    return CallerTerminal(is_read=is_read, settings=settings, size=read_size())


def read_size() -> bytes | None:
    """Return the size of the first terminal at descriptors 0 to 2, a struct winsize, or None."""
    for fd in (0, 1, 2):
        try:
            return fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(_WINSIZE_BYTES))
        except OSError:
            continue
    return None


def end_of_file_key(fd: int) -> bytes:
    """Return the byte that means end of file to the reader of a terminal; empty if no byte does at present."""
    attributes = _get(fd)
    key = attributes[_CC][termios.VEOF]
    return key if attributes[_LFLAG] & termios.ICANON and key != b"\0" else b""


def edits_lines(fd: int) -> bool:
    """Tell whether the reader of a terminal edits lines itself, as shells do, and treats CTRL_D as the end of file."""
    attributes = _get(fd)
    # Not raw, and without a time limit: the reader gets keys and echoes them itself, and Ctrl-C is a signal.
    modes = attributes[_LFLAG] & (termios.ICANON | termios.ECHO | termios.ISIG)
    return bool(modes == termios.ISIG and attributes[_CC][termios.VMIN] == 1)


def _get(fd: int) -> list[Any]:
    try:
        return termios.tcgetattr(fd)
    except termios.error as error:
        raise OSError(*error.args) from error  # which it is, but for its class


def _set(fd: int, settings: list[Any]) -> None:
    try:
        termios.tcsetattr(fd, termios.TCSANOW, settings)
    except termios.error as error:
        raise OSError(*error.args) from error


def _raw(settings: list[Any]) -> list[Any]:
    """Return the settings with the changes of cfmakeraw(3)."""
    raw = [*settings]
    for index, bits in _RAW_CLEARS.items():
        raw[index] &= ~bits
    raw[_CFLAG] |= termios.CS8
    raw[_CC] = [*settings[_CC]]
    raw[_CC][termios.VMIN], raw[_CC][termios.VTIME] = b"\1", b"\0"
    return raw


def _modes(settings: list[Any]) -> list[Any]:
    # Without the control modes: a pty ignores some changes of these.
    return [settings[index] for index in (_IFLAG, _OFLAG, _LFLAG)]
