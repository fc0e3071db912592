"""An app's input from the caller: typed on a terminal, with keys that detach, or read from anything else."""

from __future__ import annotations

import errno
import os
import select
import time

from minit.base.errors import AttachError, describe
from minit.iottymux.calleroutput import CallerOutput
from minit.iottymux.callersession import Session
from minit.iottymux.protocol import INPUTS
from minit.linux.loop import Loop, wait_readable
from minit.linux.stdio import reopen_without_blocking

_CHUNK_BYTES = 128 * 1024
# Keys are read beyond the app's appetite: otherwise nobody could detach from an app that reads nothing.
_TYPED_BYTES = 1 << 20
# If nothing else is typed for so long, the first of the detach keys is meant for the app.
_KEYS_SECONDS = 1.0
_INTERRUPT = b"\3"

_NONE = ("", "none")
_CONTROL = "ctrl-"
# The characters whose codes, without the bits removed by Ctrl, are the control characters; ctrl-@ is NUL.
_CONTROLLED = "@abcdefghijklmnopqrstuvwxyz[\\]^_"
_MAXIMUM_KEYS = 16


class CallerInput:
    """
    Descriptor 0 of the caller, for the app's input among `streams`, if there is one.

    `detach_keys` are None unless descriptor 0 is a terminal for typing. `is_owner` says that the app gets this input
    and not another client's, `is_taken` that the app reads any input, `is_lost` that the app did not take all of it,
    `has_detached` that the caller wants no more.
    """

    def __init__(self, loop: Loop, streams: tuple[str, ...], detach_keys: bytes | None, output: CallerOutput) -> None:
        self.is_owner = self.is_lost = self.has_detached = False
        self._is_wanted = self.is_taken = any(name in INPUTS for name in streams)
        # After the deadline the held keys are sent, as nothing else was typed.
        self._keys_deadline = loop.deadline(lambda: self._send_typed(self._keys.release()))
        self._is_typed = detach_keys is not None
        self._keys = DetachKeys(detach_keys or b"")
        self._output = output
        self._fd = reopen_without_blocking(0, os.O_RDONLY) if self._is_typed or self._is_wanted else None
        self._waiting = b""
        self._has_ended = False
        self._session: Session | None = None

    def use(self, session: Session | None) -> None:
        """Send the input by a session from now on; None without a session."""
        self._session = session

    def start(self, *, is_owner: bool, is_taken: bool) -> None:
        """Take the sidecar's answer into account: whether the app gets this input, and whether it reads any."""
        self.is_owner = is_owner
        if self.is_taken and not is_taken:
            self.end()
        if self._has_ended and not self._waiting and self._session is not None:
            self._session.end_input()

    def give(self) -> None:
        """Become the owner of the app's input."""
        self.is_owner = True

    def take(self) -> None:
        """Lose the ownership, as another client has taken the input over."""
        self.is_owner = False
        if self._is_typed:
            self._waiting = b""

    def end(self) -> None:
        """Take into account that the app reads no more, or knows the end of the input."""
        self.is_taken = False
        if self._waiting:
            self._lose()
            return
        is_looked_for = self._output.is_wanted or self._has_ended  # before this is over
        if self._fd is not None and not is_looked_for and wait_readable([self._fd], 0):
            self._read()

    def interest(self, *, is_read: bool) -> dict[int, int]:
        """
        Return the events of epoll(7) to wait for, by descriptor; with `is_read` the caller's descriptor is included.
        """
        interest = {}
        if self._fd is not None and is_read and self._has_room():
            interest[self._fd] = select.POLLIN
        if self._session is not None and self._session.input is not None and self._waiting:
            interest[self._session.input] = select.POLLOUT
        return interest

    def handle(self, fd: int) -> bool:
        """Pass on input at a ready descriptor; False for an unknown descriptor."""
        if fd == self._fd:
            self._read()
        elif self._session is not None and fd == self._session.input:
            self._write()
        else:
            return False
        return True

    def _has_room(self) -> bool:
        if self._is_typed:
            return len(self._waiting) < _TYPED_BYTES
        if self._has_ended or self.is_lost:
            return False
        return not self.is_taken or (self.is_owner and len(self._waiting) < _CHUNK_BYTES)

    def _read(self) -> None:
        assert self._fd is not None
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise AttachError(f"read standard input: {describe(error)}") from error
            data = b""  # of a terminal that is gone
        if self._is_typed:
            self._on_typed(data)
            return
        if not data:
            self._has_ended = True
        self._waiting += data
        if self._waiting and not self.is_taken:
            self._lose()
        self._write()

    def _on_typed(self, data: bytes) -> None:
        if not data:
            self.has_detached = True
            return
        data, found = self._keys.feed(data)
        self._keys_deadline.clear()
        if self._keys.is_holding:
            self._keys_deadline.set(time.monotonic() + _KEYS_SECONDS)
        # A client that only looks on has no app to interrupt.
        self.has_detached = found or (not self._is_wanted and _INTERRUPT in data)
        self._send_typed(data)

    def _send_typed(self, data: bytes) -> None:
        # Unowned keys must not reach the app later.
        if self.is_owner and self.is_taken:
            self._waiting += data
            self._write()

    def _lose(self) -> None:
        self._waiting = b""
        if not self.is_lost:
            self.is_lost = True
            if self._output.is_wanted:
                self._output.say("the app takes no more input")

    def _write(self) -> None:
        if self._session is None or self._session.input is None:
            return
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._session.input, self._waiting) :]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # The session has the reason.
            self._session.close_input()
            return
        if self._has_ended:
            self._session.end_input()


def parse_detach_keys(text: str) -> bytes:
    """
    Return the bytes sent by the keys of `text`: `ctrl-X` or a character each, separated by commas.

    Empty for `none` and for nothing. AttachError names an invalid key.
    """
    if text in _NONE:
        return b""
    keys = text.split(",")
    if len(keys) > _MAXIMUM_KEYS:
        raise AttachError(f"detach keys: expected at most {_MAXIMUM_KEYS}, got {len(keys)}")
    return bytes(_parse_key(key) for key in keys)


def _parse_key(key: str) -> int:
    if len(key) == 1 and " " < key <= "~":
        return ord(key)
    letter = key.removeprefix(_CONTROL).lower()
    if key.startswith(_CONTROL) and len(letter) == 1 and letter in _CONTROLLED:
        return _CONTROLLED.index(letter)
    raise AttachError(f'detach keys: expected a character or ctrl- and one of {_CONTROLLED}, got "{key}"')


class DetachKeys:
    """
    Finds the detach keys, as written by the user, among typed keys.

    A possible beginning is held back until the decision, so that the app never sees a part of the keys.
    """

    def __init__(self, sequence: bytes) -> None:
        self._sequence = sequence
        self._held = b""

    @property
    def is_holding(self) -> bool:
        """Tell whether something is held back."""
        return bool(self._held)

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return the app's part of the input, and whether the detach keys follow, after which everything is ignored."""
        data = self._held + typed
        if not self._sequence:
            return data, False
        found = data.find(self._sequence)
        if found >= 0:
            self._held = b""
            return data[:found], True
        held = next(
            size
            for size in range(min(len(self._sequence) - 1, len(data)), -1, -1)
            if data.endswith(self._sequence[:size])
        )
        end = len(data) - held
        self._held = data[end:]
        return data[:end], False

    def release(self) -> bytes:
        """Return the held keys: nothing more was typed."""
        held, self._held = self._held, b""
        return held
