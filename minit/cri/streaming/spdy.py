"""
The server's side of a connection of SPDY/3.1, whose streams a client makes: each stream is a channel.

Windows are kept in both directions. Kubernetes' own clients keep none, and never make one larger: towards a client that
has not said a word about its windows only what TCP takes counts.
"""

from __future__ import annotations

import trio

from minit.cri.streaming.channels import Channel, Connection, ConnectionFailed
from minit.cri.streaming.spdyframes import (
    DEFAULT_WINDOW_BYTES,
    INITIAL_WINDOW_SIZE,
    LARGEST_WINDOW_BYTES,
    REFUSED_STREAM,
    Data,
    Decoder,
    Encoder,
    Frame,
    GoAway,
    HeadersFrame,
    Ping,
    RstStream,
    Settings,
    SpdyError,
    SynReply,
    SynStream,
    WindowUpdate,
)


class SpdyConnection(Connection):
    """
    A connection on which the client may have `most` streams at a time; `opened` yields them as they come.

    A stream is open until both sides have ended the stream, or one side has reset it.
    """

    def __init__(self, stream: trio.SocketStream, most: int) -> None:
        super().__init__(stream)
        self._most = most
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._last = 0
        # The client's room, for all streams (0) and for each; and what of each was taken here without telling it.
        self._keeps_windows = False
        self._first_window = DEFAULT_WINDOW_BYTES
        self._windows = {0: DEFAULT_WINDOW_BYTES}
        self._untold: dict[int, int] = {0: 0}
        self._open, self.opened = trio.open_memory_channel[Channel](most)

    def receive(self, data: bytes) -> None:
        """Give received bytes to the streams."""
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except SpdyError as error:
            raise ConnectionFailed(str(error)) from error

    def frame(self, channel: Channel, data: bytes) -> bytes:
        """Return bytes of a stream as a frame that the stream's window has room for."""
        for number in (0, channel.number):
            self._windows[number] -= len(data)
        return self._encoder.encode(Data(stream=channel.number, data=data))

    def end(self, channel: Channel) -> None:
        """Send the end of a stream."""
        self._queue(Data(stream=channel.number, data=b"", fin=True))
        self._forget_if_over(channel)

    def beat(self) -> None:
        """Send no settings: the answer to a ping may have to wait, as all that the client sends."""
        self._queue(Settings(values=()))

    def close(self) -> None:
        """Send that no more streams are taken."""
        self._queue(GoAway(last=self._last))

    def window_bytes(self, channel: Channel) -> int:
        """Return for how many bytes the client has room."""
        if self._keeps_windows:
            return min(self._windows[0], self._windows[channel.number])
        return super().window_bytes(channel)

    def on_taken(self, channel: Channel, size_bytes: int) -> None:
        """Tell the client of new room, now and then."""
        super().on_taken(channel, size_bytes)
        if channel.number in self.channels and not channel.has_ended:
            self._give_room(channel.number, size_bytes)

    def _give_room(self, number: int, size_bytes: int) -> None:
        self._untold[number] += size_bytes
        if self._untold[number] >= DEFAULT_WINDOW_BYTES // 2:
            self._queue(WindowUpdate(stream=number, size_bytes=self._untold[number]))
            self._untold[number] = 0

    def _on_frame(self, frame: Frame) -> None:
        if isinstance(frame, SynStream):
            self._on_stream(frame)
        elif isinstance(frame, Data):
            if frame.stream > self._last:
                raise SpdyError(f"data of stream {frame.stream}, which was never made")
            # Room for all streams together is there at once: each has its own bound.
            self._give_room(0, len(frame.data))
            self._on_data(frame.stream, frame.data, frame.fin)
        elif isinstance(frame, HeadersFrame):
            self._on_data(frame.stream, b"", frame.fin)
        elif isinstance(frame, RstStream):
            channel = self.channels.get(frame.stream)
            if channel is not None:
                self._forget(channel)
                channel.put_reset()
                self.on_room()
        elif isinstance(frame, Ping):
            if frame.number % 2:
                self._queue(frame)
        elif isinstance(frame, Settings):
            self._on_settings(dict(frame.values))
        elif isinstance(frame, WindowUpdate):
            self._on_window(frame)

    def _on_stream(self, frame: SynStream) -> None:
        if frame.stream % 2 == 0 or frame.stream <= self._last:
            raise SpdyError(f"stream {frame.stream} is none that a client can make after {self._last}")
        self._last = frame.stream
        if len(self.channels) >= self._most:
            self._queue(RstStream(stream=frame.stream, status=REFUSED_STREAM))
            return
        channel = Channel(self, frame.stream, dict(frame.headers))
        try:
            self._open.send_nowait(channel)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._queue(RstStream(stream=frame.stream, status=REFUSED_STREAM))
            return
        self.channels[frame.stream] = channel
        self._windows[frame.stream] = self._first_window
        self._untold[frame.stream] = 0
        self._queue(SynReply(stream=frame.stream))
        if frame.fin:
            channel.put(b"", end=True)

    def _on_data(self, number: int, data: bytes, fin: bool) -> None:
        channel = self.channels.get(number)
        if channel is not None:
            channel.put(data, end=fin)
            self._forget_if_over(channel)

    def _on_settings(self, values: dict[int, int]) -> None:
        window = values.get(INITIAL_WINDOW_SIZE)
        if window is None:
            return
        if window > LARGEST_WINDOW_BYTES:
            raise SpdyError(f"a window of {window} bytes")
        self._keeps_windows = True
        for number in self.channels:
            self._windows[number] += window - self._first_window
        self._first_window = window
        self.on_room()

    def _on_window(self, frame: WindowUpdate) -> None:
        self._keeps_windows = True
        if frame.stream in self._windows:
            self._windows[frame.stream] += frame.size_bytes
            if self._windows[frame.stream] > LARGEST_WINDOW_BYTES:
                raise SpdyError(f"a window of {self._windows[frame.stream]} bytes")
            self.on_room()

    def _forget_if_over(self, channel: Channel) -> None:
        if channel.has_finished and channel.has_ended:
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        self.channels.pop(channel.number, None)
        self._windows.pop(channel.number, None)
        self._untold.pop(channel.number, None)

    def _queue(self, frame: Frame) -> None:
        self.queue(self._encoder.encode(frame))
