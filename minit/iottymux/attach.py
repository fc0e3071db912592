"""
The client of a sidecar: the caller's streams and terminal on one side, those of an app on the other.

Bytes pass as they are. Nothing here waits but poll(2): what one side does not take stays in a small buffer, and then
its source is not read, so that it is the sidecar that decides about clients that are too slow.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import termios
import time

from minit import syscalls
from minit.errors import AttachError, describe
from minit.iottymux.detachkeys import DetachKeys
from minit.iottymux.protocol import (
    EVENT_DROPPED,
    EVENT_ENDED,
    EVENT_STDIN_ENDED,
    EVENT_STDIN_GIVEN,
    EVENT_STDIN_TAKEN,
    EVENT_TOO_SLOW,
    INPUTS,
    POLICY_DROP,
    STDERR,
    STDIN,
    STDIN_NONE,
    STDIN_OTHER,
    STDIN_OWNER,
    TTY_IN,
    TTY_OUT,
    Attach,
    Resize,
)
from minit.iottymux.queries import without_queries
from minit.iottymux.screenmodes import ScreenModes
from minit.iottymux.session import Session, connect
from minit.stdio import complain, expect_raw_terminal, reopen_without_blocking
from minit.terminal import look_at_terminal, read_size
from minit.value import Value

_CHUNK_BYTES = 128 * 1024
# What is typed is read beyond what the app takes, or nobody could detach from an app that reads nothing.
_TYPED_BYTES = 1 << 20
# A write of so much does not block where poll(2) says that there is room, PIPE_BUF of pipe(7).
_BLOCKING_BYTES = 4096
# How often one stream is read before the others are looked at.
_ROUNDS = 16
_REPLY_SECONDS = 15.0
_RETRY_MILLISECONDS = 100
# If nothing else is typed for so long, the first of the detach keys is meant for the app.
_KEYS_SECONDS = 1.0
_INTERRUPT = b"\3"

_RESIZING = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class AttachOptions(Value):
    """How to attach; `detach_keys` are the bytes that they send, empty for none."""

    detach_keys: bytes
    replay: bool = True
    take_stdin: bool = False
    policy: str = POLICY_DROP


def attach(directory: int, app: str, streams: tuple[str, ...], options: AttachOptions) -> None:
    """
    Connect the streams of `app`, some of protocol.STREAMS, to descriptors 0, 1 and 2 until either side ends.

    `directory` is a descriptor of the app's own of attachable streams. SIGINT detaches; other signals that end
    programs end this one. FileNotFoundError if there is no sidecar, AttachError if the connection fails.
    """
    client = _Client(directory, app, streams, options)
    try:
        client.run()
    finally:
        client.restore_screen()
        client.restore_terminal()
    client.say_goodbye()


class _Output:
    """One of the caller's descriptors, with what could not be written to it yet."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = reopen_without_blocking(fd, os.O_WRONLY)
        self.name = name
        self.is_terminal = os.isatty(fd)
        self.last_byte = b"\n"
        self.buffer = b""
        may_block = self.fd == fd and not stat.S_ISREG(os.fstat(fd).st_mode)
        self._most_bytes = _BLOCKING_BYTES if may_block else _CHUNK_BYTES

    def put(self, data: bytes) -> None:
        """Write, or keep what is not taken; AttachError if it never will be."""
        self.last_byte = data[-1:] or self.last_byte
        self.buffer += data
        self.flush()

    def flush(self) -> None:
        """Write once what is kept."""
        try:
            size = os.write(self.fd, self.buffer[: self._most_bytes])
        except BlockingIOError:
            return
        except OSError as error:
            raise AttachError(f"write {self.name}: {describe(error)}") from error
        self.buffer = self.buffer[size:]


class _Source:
    """
    An output of the app.

    `start` is how much the app had written there before what came first in this session, once that is known, and
    `received` how much came, with what markers stand for.
    """

    def __init__(self, name: str, output: _Output) -> None:
        self.name = name
        self.output = output
        self.start: int | None = None
        self.received = 0
        self.has_ended = False

    @property
    def position(self) -> int | None:
        """How much the app had written before what comes next, None if that is not known."""
        return None if self.start is None else max(0, self.start + self.received)

    def begin(self) -> None:
        """Forget the session before."""
        self.start, self.received, self.has_ended = None, 0, False


class _Client:
    def __init__(self, directory: int, app: str, streams: tuple[str, ...], options: AttachOptions) -> None:
        self._directory = directory
        self._app = app
        self._streams = streams
        self._options = options
        # The caller's terminal. Also who only looks on at an app's terminal detaches by keys; but where an app reads a
        # stream, it is the caller's terminal that makes lines of what is typed.
        is_raw = TTY_IN in streams or (TTY_OUT in streams and STDIN not in streams)
        self._terminal = look_at_terminal(is_read=is_raw)
        self._types = self._terminal.settings is not None
        self._is_raw = False
        self._screen_modes = ScreenModes()
        self._keys = DetachKeys(options.detach_keys if self._types else b"")
        self._keys_deadline: float | None = None
        # Input.
        self._input_name = next((name for name in streams if name in INPUTS), None)
        is_read = self._types or self._input_name is not None
        self._own_input = reopen_without_blocking(0, os.O_RDONLY) if is_read else None
        self._to_app = b""
        self._owns_input = False
        self._own_input_has_ended = False
        self._app_takes_input = self._input_name is not None
        self._has_lost_input = False
        # Output.
        outputs = {1: _Output(1, "standard output")}
        if STDERR in streams:
            outputs[2] = _Output(2, "standard error")
        self._outputs = list(outputs.values())
        self._sources = {
            name: _Source(name, outputs[2 if name == STDERR else 1]) for name in streams if name not in INPUTS
        }
        self._signals = _open_signals()
        # The session.
        self._session: Session | None = None
        self._sources_by_fd: dict[int, _Source] = {}
        self._positions: dict[str, int] = {}
        self._is_attached = self._has_been_attached = False
        self._reply_deadline: float | None = None
        # Why it is over.
        self._app_has_ended = self._was_too_slow = self._has_detached = False
        self._signal: int | None = None

    def run(self) -> None:
        """Pass everything on until it is over."""
        self._reply_deadline = time.monotonic() + _REPLY_SECONDS
        self._open_session()
        while not self._is_over():
            poller = select.poll()
            for fd, interest in self._interest().items():
                poller.register(fd, interest)
            for fd, _ in poller.poll(self._timeout_milliseconds()):
                self._handle(fd)
            self._check_deadlines()

    def restore_screen(self) -> None:
        """Switch back what the app has switched on the caller's terminal: who detaches from an editor wants a shell."""
        restoring = self._screen_modes.restore()
        if restoring:
            try:
                os.write(self._outputs[0].fd, restoring)
            except OSError:
                pass  # it is gone, or takes nothing

    def restore_terminal(self) -> None:
        """Give the caller's terminal back."""
        if self._is_raw:
            self._terminal.restore()
            expect_raw_terminal(False)

    def say_goodbye(self) -> None:
        """Say why it is over where that is not plain, or die of the signal that was the reason."""
        if self._has_detached:
            self._say("detached")
        if self._signal is not None:
            signal.signal(self._signal, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (self._signal,))
            os.kill(os.getpid(), self._signal)

    def _interest(self) -> dict[int, int]:
        interest = {self._signals: select.POLLIN}
        if self._wants_input():
            assert self._own_input is not None
            interest[self._own_input] = select.POLLIN
        if self._session is not None:
            interest[self._session.fd] = select.POLLIN
            if self._session.input is not None and self._to_app:
                interest[self._session.input] = select.POLLOUT
        # Not before the answer: what is there then is a replay.
        for fd, source in self._sources_by_fd.items() if self._is_attached else ():
            if not source.has_ended and not source.output.buffer:
                interest[fd] = select.POLLIN
        for output in self._outputs:
            if output.buffer:
                interest[output.fd] = select.POLLOUT
        return interest

    def _handle(self, fd: int) -> None:
        session = self._session
        if fd == self._signals:
            self._on_signals()
        elif fd == self._own_input:
            self._read_own_input()
        elif fd in self._sources_by_fd:
            self._read_source(fd)
        elif session is not None and fd == session.input:
            self._write_input()
        elif session is not None and fd == session.fd:
            self._read_session(session)
        else:
            for output in self._outputs:
                if output.fd == fd and output.buffer:
                    output.flush()

    def _timeout_milliseconds(self) -> float | None:
        deadlines = [deadline for deadline in (self._reply_deadline, self._keys_deadline) if deadline is not None]
        # Rounded up, or it would be polled without waiting until the deadline.
        return max(0.0, min(deadlines) - time.monotonic()) * 1000 + 1 if deadlines else None

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._keys_deadline is not None and now >= self._keys_deadline:
            self._keys_deadline = None
            self._send_typed(self._keys.release())
        if self._reply_deadline is not None and now >= self._reply_deadline:
            raise AttachError(f'app "{self._app}": no answer from its sidecar within {_REPLY_SECONDS:.0f} seconds')

    def _is_over(self) -> bool:
        if self._has_detached or self._signal is not None:
            return True
        if any(output.buffer for output in self._outputs):
            return False
        if self._session is None:
            if self._was_too_slow:
                raise AttachError("disconnected: output was not read as fast as the app writes")
            return True
        # The streams of a sidecar that is killed end as well; that the app's did is said.
        if self._sources:
            return self._app_has_ended and all(source.has_ended for source in self._sources.values())
        if self._has_lost_input:
            raise AttachError(f'app "{self._app}" takes no more input')
        return self._app_has_ended or not self._app_takes_input

    # The session.

    def _open_session(self) -> None:
        # Kept if the sidecar is killed again before it answers.
        self._positions.update(
            (source.name, source.position) for source in self._sources.values() if source.position is not None
        )
        request = Attach(
            streams=self._streams,
            policy=self._options.policy,
            replay=self._options.replay,
            # Who had the input before the sidecar was killed has it after that.
            take_stdin=self._options.take_stdin or self._owns_input,
            size=self._size(),
            resume=tuple(self._positions.items()),
        )
        self._session = connect(self._directory, self._app, request)
        self._sources_by_fd = {self._session.outputs[name]: source for name, source in self._sources.items()}
        for source in self._sources.values():
            source.begin()
        self._is_attached = False

    def _read_session(self, session: Session) -> None:
        while True:
            try:
                message = session.receive()
            except BlockingIOError:
                return
            if message is None:
                self._on_session_end(session)
                return
            if "event" in message:
                self._on_event(message)
            elif not self._is_attached:
                self._on_attached(message)

    def _on_attached(self, reply: dict[str, object]) -> None:
        if reply.get("ok") is not True:
            raise AttachError(f'app "{self._app}": {reply.get("error")}')
        self._is_attached = self._has_been_attached = True
        self._reply_deadline = None
        positions = reply.get("positions")
        for source in self._sources.values():
            start = positions.get(source.name) if isinstance(positions, dict) else None
            source.start = start if isinstance(start, int) else None
        self._owns_input = reply.get("stdin") == STDIN_OWNER
        self._make_raw()
        if not self._positions:
            for fd, source in self._sources_by_fd.items():
                if source.name == TTY_OUT and source.output.is_terminal:
                    self._show_replay(fd, source)
        if reply.get("stdin") == STDIN_OTHER:
            self._say("another client has the input; --take-stdin takes it over")
        elif reply.get("stdin") == STDIN_NONE and self._app_takes_input:
            self._on_input_end()
        if self._own_input_has_ended and not self._to_app and self._session is not None:
            self._session.end_input()

    def _on_event(self, message: dict[str, object]) -> None:
        event = message["event"]
        if event == EVENT_ENDED:
            self._app_has_ended = True
        elif event == EVENT_TOO_SLOW:
            self._was_too_slow = True
        elif event == EVENT_DROPPED:
            source = self._sources.get(str(message.get("stream")))
            size, marker_bytes = message.get("bytes"), message.get("marker_bytes")
            if source is not None and isinstance(size, int) and isinstance(marker_bytes, int):
                source.received += size - marker_bytes
        elif event == EVENT_STDIN_GIVEN:
            self._owns_input = True
            self._say("the input is yours")
        elif event == EVENT_STDIN_TAKEN:
            self._owns_input = False
            if self._types:
                self._to_app = b""
            self._say("another client has taken the input over")
        elif event == EVENT_STDIN_ENDED:
            self._on_input_end()

    def _on_input_end(self) -> None:
        """Take into account that the app reads no more, or knows that there is none."""
        self._app_takes_input = False
        if self._to_app:
            self._lose_input()
        elif not self._sources and not self._own_input_has_ended and _is_readable(self._own_input):
            # Nothing else would look for it before this is over.
            self._read_own_input()

    def _lose_input(self) -> None:
        self._to_app = b""
        if not self._has_lost_input:
            self._has_lost_input = True
            if self._sources:
                self._say("the app takes no more input")

    def _on_session_end(self, session: Session) -> None:
        # What was sent before is still there.
        for fd, source in self._sources_by_fd.items():
            while self._read_once(fd, source):
                pass
        session.close()
        self._session, self._sources_by_fd = None, {}
        if self._app_has_ended or self._was_too_slow:
            return
        if self._is_attached:
            self._say(f'the sidecar of app "{self._app}" was killed; attaching again')
            self._reply_deadline = time.monotonic() + _REPLY_SECONDS
        else:
            # It has too many clients, which may change, or was killed as well.
            _is_readable(self._signals, _RETRY_MILLISECONDS)
        try:
            self._open_session()
        except FileNotFoundError:
            if not self._has_been_attached:
                raise
            self._app_has_ended = True

    # Output.

    def _read_source(self, fd: int) -> None:
        source = self._sources_by_fd[fd]
        for _ in range(_ROUNDS):
            if source.output.buffer or not self._read_once(fd, source):
                return

    def _show_replay(self, fd: int, source: _Source) -> None:
        size = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")
        data = os.read(fd, size)
        source.received += len(data)
        self._screen_modes.feed(data)
        source.output.put(without_queries(data))

    def _read_once(self, fd: int, source: _Source) -> bool:
        """Pass on one read; False if there was nothing."""
        if source.has_ended:
            return False
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""  # it left unread what was sent to it
        if not data:
            source.has_ended = True
            return False
        source.received += len(data)
        if self._is_raw and source.output.is_terminal:
            if source.name == TTY_OUT:
                self._screen_modes.feed(data)
            else:
                # It did not come through a terminal, and this one adds no carriage returns now.
                data = data.replace(b"\n", b"\r\n")
        source.output.put(data)
        return True

    # Input.

    def _wants_input(self) -> bool:
        if self._own_input is None or not self._is_attached:
            return False
        if self._types:
            return len(self._to_app) < _TYPED_BYTES
        if self._own_input_has_ended or self._has_lost_input:
            return False
        return not self._app_takes_input or (self._owns_input and len(self._to_app) < _CHUNK_BYTES)

    def _read_own_input(self) -> None:
        assert self._own_input is not None
        try:
            data = os.read(self._own_input, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise AttachError(f"read standard input: {describe(error)}") from error
            data = b""  # of a terminal that is gone
        if self._types:
            if data:
                self._on_typed(data)
            else:
                self._has_detached = True
            return
        if not data:
            self._own_input_has_ended = True
        self._to_app += data
        if self._to_app and not self._app_takes_input:
            self._lose_input()
        self._write_input()

    def _on_typed(self, data: bytes) -> None:
        data, found = self._keys.feed(data)
        self._keys_deadline = time.monotonic() + _KEYS_SECONDS if self._keys.is_holding else None
        # For who only looks on, there is nobody else whom this could interrupt.
        self._has_detached = found or (self._input_name is None and _INTERRUPT in data)
        self._send_typed(data)

    def _send_typed(self, data: bytes) -> None:
        # What is typed while it is for nobody must not reach the app later.
        if self._owns_input and self._app_takes_input:
            self._to_app += data
            self._write_input()

    def _write_input(self) -> None:
        if self._session is None or self._session.input is None:
            return
        try:
            while self._to_app:
                self._to_app = self._to_app[os.write(self._session.input, self._to_app) :]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # The session says what that means.
            self._session.close_input()
            return
        if self._own_input_has_ended:
            self._session.end_input()

    # The caller's terminal.

    def _size(self) -> tuple[int, int] | None:
        """Return the size that the app's terminal should have; that of one who only looks on does not count."""
        size = read_size() if self._input_name == TTY_IN else None
        if size is None:
            return None
        rows, columns = int.from_bytes(size[0:2], "little"), int.from_bytes(size[2:4], "little")
        return (rows, columns) if rows and columns else None

    def _make_raw(self) -> None:
        if self._types:
            self._is_raw = True
            self._terminal.make_raw()
            expect_raw_terminal()

    def _on_signals(self) -> None:
        for number in syscalls.read_signals(self._signals):
            if number == signal.SIGINT:
                self._has_detached = True
            elif number in _ENDING:
                self._signal = number
            elif number == signal.SIGTSTP:
                self._suspend()
            if number in _RESIZING:
                self._resume()

    def _suspend(self) -> None:
        """Stop as a program without a terminal of its own would, until SIGCONT."""
        self.restore_terminal()
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTSTP,))
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))

    def _resume(self) -> None:
        if self._is_raw:
            self._make_raw()
        size = self._size()
        if size is not None and self._session is not None:
            self._session.send(Resize(size=size).request())

    def _say(self, text: str) -> None:
        """Write a line of ours to standard error, and not at the end of one of the app's."""
        unfinished = any(output.is_terminal and output.last_byte != b"\n" for output in self._outputs)
        for output in self._outputs:
            output.last_byte = b"\n"
        complain(f"attach: {text}", ends_another=unfinished and os.isatty(2))


def _is_readable(fd: int | None, timeout_milliseconds: int = 0) -> bool:
    if fd is None:
        return False
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_milliseconds))


def _open_signals() -> int:
    # A blocked signal stays pending even if it is ignored, as nohup(1) has it.
    heard = [number for number in (*_RESIZING, *_ENDING) if signal.getsignal(number) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    return syscalls.signalfd(heard)
