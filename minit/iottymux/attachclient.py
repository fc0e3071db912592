"""
The client of a sidecar: the caller's streams and terminal on one side, the app's streams on the other.

Bytes pass unchanged. Only the loop waits: bytes that a side does not take stay in a small buffer, and their source is
not read meanwhile, so that the sidecar decides about slow clients.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from minit.base.errors import AttachError
from minit.base.value import Value
from minit.iottymux.callerinput import CallerInput
from minit.iottymux.calleroutput import CallerOutput
from minit.iottymux.callersession import Session, connect
from minit.iottymux.callerterminal import RawTerminal
from minit.iottymux.protocol import (
    EVENT_DROPPED,
    EVENT_ENDED,
    EVENT_STDIN_ENDED,
    EVENT_STDIN_GIVEN,
    EVENT_STDIN_TAKEN,
    EVENT_TOO_SLOW,
    POLICY_WAIT,
    STDIN_NONE,
    STDIN_OTHER,
    STDIN_OWNER,
    Attach,
    Reading,
    Resize,
)
from minit.linux import syscalls
from minit.linux.loop import Interest, Loop, wait_readable

_REPLY_SECONDS = 15.0
_RETRY_SECONDS = 0.1
# The interval for telling the sidecar that a slow reader reads, far within its patience.
_TELL_SECONDS = 1.0

_RESIZING = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class AttachOptions(Value):
    """
    The options of attaching; `detach_keys` are the bytes sent by the detach keys, empty for none.

    `ready` is a descriptor that gets a line, and is closed, as soon as no more output can be missed. With `is_quiet` no
    words of minit go to a standard error that is no terminal.
    """

    detach_keys: bytes
    replay: bool = True
    take_stdin: bool = False
    policy: str = POLICY_WAIT
    ready: int | None = None
    is_quiet: bool = False


def attach(directory: int, app: str, streams: tuple[str, ...], options: AttachOptions) -> None:
    """
    Connect the streams of `app`, some of protocol.STREAMS, to descriptors 0, 1 and 2 until either side ends.

    `directory` is a descriptor of the app's own of attachable streams. SIGINT detaches; other signals that end programs
    end this program. FileNotFoundError if there is no sidecar, AttachError if the connection fails, or if output is
    missing where no line says so.
    """
    terminal = RawTerminal(streams)
    output = CallerOutput(streams, terminal, is_quiet=options.is_quiet)
    client = _Client(directory, app, streams, options, terminal, output)
    try:
        client.run()
    finally:
        output.restore_screen()
        terminal.restore()
    client.say_goodbye()
    lost = ", ".join(f"{size_bytes} bytes of {name}" for name, size_bytes in output.lost_bytes().items())
    if lost:
        raise AttachError(f'app "{app}": {lost} are missing: nobody read them in time')


class _Client:
    """The sessions with the sidecars of `app`, one after another, until the end."""

    def __init__(
        self,
        directory: int,
        app: str,
        streams: tuple[str, ...],
        options: AttachOptions,
        terminal: RawTerminal,
        output: CallerOutput,
    ) -> None:
        self._directory = directory
        self._app = app
        self._streams = streams
        self._options = options
        self._terminal = terminal
        self._output = output
        self._loop = Loop()
        self._interest = Interest(self._loop, self._handle)
        self._no_reply = self._loop.deadline(self._on_no_reply)
        self._tell_reading = self._loop.deadline(self._on_tell_reading)
        self._taken_bytes = 0
        self._input = CallerInput(self._loop, streams, options.detach_keys if terminal.is_typed_on else None, output)
        self._signals = _open_signals()
        self._loop.watch(self._signals, lambda _: self._on_signals())
        self._session: Session | None = None
        self._is_attached = self._has_been_attached = False
        # The reason of the end.
        self._app_has_ended = self._was_too_slow = self._is_interrupted = False
        self._signal: int | None = None

    def run(self) -> None:
        """Pass everything on until the end."""
        self._no_reply.set(time.monotonic() + _REPLY_SECONDS)
        self._open_session()
        while not self._is_over():
            self._rewatch()
            self._loop.turn()

    def say_goodbye(self) -> None:
        """Say the reason of the end where it is not plain, or die of the signal behind it."""
        if self._has_detached:
            self._output.say("detached")
        if self._signal is not None:
            signal.signal(self._signal, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (self._signal,))
            os.kill(os.getpid(), self._signal)

    @property
    def _has_detached(self) -> bool:
        return self._is_interrupted or self._input.has_detached

    def _rewatch(self) -> None:
        interest = {} if self._session is None else {self._session.fd: select.POLLIN}
        # Not before the answer: any output before is a replay.
        interest |= self._input.interest(is_read=self._is_attached)
        interest |= self._output.interest(is_read=self._is_attached)
        self._interest.set(interest)
        if self._output.is_waiting and self._tell_reading.moment is None:
            self._tell_reading.set(time.monotonic() + _TELL_SECONDS)

    def _handle(self, fd: int, _: int) -> None:
        if self._is_interrupted:
            return  # in this turn: the end of the input is the caller's, not the app's
        if self._session is not None and fd == self._session.fd:
            self._read_session(self._session)
        elif not self._input.handle(fd):
            self._output.handle(fd)

    def _on_no_reply(self) -> None:
        raise AttachError(f'app "{self._app}": no answer from its sidecar within {_REPLY_SECONDS:.0f} seconds')

    def _on_tell_reading(self) -> None:
        """Tell the sidecar about a slow reader, which the sidecar sees only when reading makes room in a socket."""
        taken_bytes = self._output.taken_bytes()
        if taken_bytes != self._taken_bytes and self._session is not None and self._is_attached:
            self._session.send(Reading().request())
        self._taken_bytes = taken_bytes

    def _is_over(self) -> bool:
        if self._has_detached or self._signal is not None:
            return True
        if self._output.is_waiting:
            return False
        if self._session is None:
            if self._was_too_slow:
                raise AttachError("disconnected: output was not read as fast as the app writes")
            return True
        # The streams of a killed sidecar end as well; the sidecar says when the app's output ends.
        if self._output.is_wanted:
            return self._app_has_ended and self._output.has_ended
        if self._input.is_lost:
            raise AttachError(f'app "{self._app}" takes no more input')
        return self._app_has_ended or not self._input.is_taken

    # The session.

    def _open_session(self) -> None:
        request = Attach(
            streams=self._streams,
            policy=self._options.policy,
            replay=self._options.replay,
            # The client that had the input before a kill of the sidecar has the input afterwards.
            take_stdin=self._options.take_stdin or self._input.is_owner,
            size=self._terminal.size(),
            resume=self._output.positions(),
            unmarked=self._output.unmarked,
        )
        self._session = connect(self._directory, self._app, request)
        self._input.use(self._session)
        self._output.use(self._session.outputs)
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
        is_first = not self._has_been_attached
        self._is_attached = self._has_been_attached = True
        self._no_reply.clear()
        self._terminal.make_raw()
        self._output.start(reply.get("positions"))
        stdin = reply.get("stdin")
        if stdin == STDIN_OTHER:
            self._output.say("another client has the input; --take-stdin takes it over")
        self._input.start(is_owner=stdin == STDIN_OWNER, is_taken=stdin != STDIN_NONE)
        if is_first:
            self._tell_ready()

    def _tell_ready(self) -> None:
        if self._options.ready is not None:
            with suppress(BrokenPipeError):
                os.write(self._options.ready, b"\n")
            os.close(self._options.ready)

    def _on_event(self, message: dict[str, object]) -> None:
        event = message["event"]
        if event == EVENT_ENDED:
            self._app_has_ended = True
        elif event == EVENT_TOO_SLOW:
            self._was_too_slow = True
        elif event == EVENT_DROPPED:
            self._output.note_dropped(message.get("stream"), message.get("bytes"), message.get("marker_bytes"))
        elif event == EVENT_STDIN_GIVEN:
            self._input.give()
            self._output.say("the input is yours")
        elif event == EVENT_STDIN_TAKEN:
            self._input.take()
            self._output.say("another client has taken the input over")
        elif event == EVENT_STDIN_ENDED:
            self._input.end()

    def _on_session_end(self, session: Session) -> None:
        # Bytes sent before are still in the socket. Without an answer their position is unknown: they come again.
        self._output.drain(is_read=self._is_attached)
        self._interest.set({})
        session.close()
        self._input.use(None)
        self._session = None
        if self._app_has_ended or self._was_too_slow:
            return
        if self._is_attached:
            self._output.say(f'the sidecar of app "{self._app}" was killed; attaching again')
            self._no_reply.set(time.monotonic() + _REPLY_SECONDS)
        else:
            # The sidecar has too many clients, which may change, or was killed as well.
            wait_readable([self._signals], _RETRY_SECONDS)
        try:
            self._open_session()
        except FileNotFoundError:
            if not self._has_been_attached:
                raise
            self._app_has_ended = True

    # Signals.

    def _on_signals(self) -> None:
        for number in syscalls.read_signals(self._signals):
            if number == signal.SIGINT:
                self._is_interrupted = True
            elif number in _ENDING:
                self._signal = number
            elif number == signal.SIGTSTP:
                self._terminal.suspend()
            if number in _RESIZING:
                self._resume()

    def _resume(self) -> None:
        self._terminal.resume()
        size = self._terminal.size()
        if size is not None and self._session is not None:
            self._session.send(Resize(size=size).request())


def _open_signals() -> int:
    # A blocked signal stays pending even if ignored, as under nohup(1).
    heard = [number for number in (*_RESIZING, *_ENDING) if signal.getsignal(number) is not signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    return syscalls.signalfd(heard)
