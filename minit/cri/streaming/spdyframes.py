"""
Frames of SPDY/3.1 and the frames' bytes (the SPDY Protocol, drafts 3 and 3.1). No code here waits or has a connection.

A control frame begins with 0x8003, its type, 8 bits of flags and 24 of length; one of data with its stream, flags and
length. Headers are compressed as one zlib stream for each direction of a connection.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from minit.base.errors import MinitError
from minit.base.value import Value

REFUSED_STREAM = 3
CANCEL = 5
INITIAL_WINDOW_SIZE = 7
"""The setting by this number is the window of every stream, in bytes."""

DEFAULT_WINDOW_BYTES = 1 << 16
LARGEST_WINDOW_BYTES = (1 << 31) - 1
LARGEST_HEADERS_BYTES = 1 << 16

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _HEADERS, _WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
_VERSION = 0x8003
_FIN = 0x01
_NUMBER = 0x7FFFFFFF
_LARGEST_CONTROL_BYTES = 1 << 17
_HEAD = struct.Struct(">II")
_WORD = struct.Struct(">I")
_PAIR = struct.Struct(">II")
_STREAM_HEAD_BYTES = 10  # the stream, the one it is associated to, its priority and a slot
_LENGTH = 0xFFFFFF

# What header blocks are compressed with at first (section 2.6.10.1): words with their lengths, then words without.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    words = [*_WORDS.split(), "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"]
    return b"".join(_WORD.pack(len(word)) + word.encode() for word in words) + _REST.encode()


DICTIONARY = _dictionary()

Headers = tuple[tuple[str, str], ...]
"""Names, in lower case, and values; a name may be there more than once."""


class SpdyError(MinitError):
    """The peer violates the protocol: later bytes cannot be understood."""


class SynStream(Value):
    """A new stream of the sender."""

    stream: int
    headers: Headers
    fin: bool = False


class SynReply(Value):
    """A stream is accepted."""

    stream: int
    headers: Headers = ()
    fin: bool = False


class HeadersFrame(Value):
    """More headers of a stream."""

    stream: int
    headers: Headers
    fin: bool = False


class RstStream(Value):
    """A stream has ended at once, for a reason by number."""

    stream: int
    status: int


class Settings(Value):
    """Settings of the sender, by number."""

    values: tuple[tuple[int, int], ...]


class Ping(Value):
    """A question whether anybody is there, or its answer; a client's has an odd number."""

    number: int


class GoAway(Value):
    """The sender takes no new streams; `last` is the last accepted stream."""

    last: int
    status: int = 0


class WindowUpdate(Value):
    """The sender has room for more bytes of a stream, or of all streams together (0)."""

    stream: int
    size_bytes: int


class Data(Value):
    """Bytes of a stream, the last ones with `fin`; a decoder has a large frame in pieces."""

    stream: int
    data: bytes
    fin: bool = False


Frame = SynStream | SynReply | HeadersFrame | RstStream | Settings | Ping | GoAway | WindowUpdate | Data


class Encoder:
    """Frames to bytes, in the order in which they are sent."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def encode(self, frame: Frame) -> bytes:
        """Return a frame's bytes."""
        if isinstance(frame, Data):
            return _HEAD.pack(frame.stream, (_FIN if frame.fin else 0) << 24 | len(frame.data)) + frame.data
        if isinstance(frame, SynStream):
            slots = bytes(_STREAM_HEAD_BYTES - _WORD.size)
            return _control(_SYN_STREAM, _WORD.pack(frame.stream) + slots + self._block(frame.headers), fin=frame.fin)
        if isinstance(frame, SynReply | HeadersFrame):
            kind = _SYN_REPLY if isinstance(frame, SynReply) else _HEADERS
            return _control(kind, _WORD.pack(frame.stream) + self._block(frame.headers), fin=frame.fin)
        if isinstance(frame, Settings):
            entries = b"".join(_PAIR.pack(number, value) for number, value in frame.values)
            return _control(_SETTINGS, _WORD.pack(len(frame.values)) + entries)
        if isinstance(frame, Ping):
            return _control(_PING, _WORD.pack(frame.number))
        if isinstance(frame, RstStream):
            return _control(_RST_STREAM, _PAIR.pack(frame.stream, frame.status))
        if isinstance(frame, GoAway):
            return _control(_GOAWAY, _PAIR.pack(frame.last, frame.status))
        return _control(_WINDOW_UPDATE, _PAIR.pack(frame.stream, frame.size_bytes))

    def _block(self, headers: Headers) -> bytes:
        values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            values.setdefault(name.encode(), []).append(value.encode())
        block = _WORD.pack(len(values))
        for key, several in values.items():
            joined = b"\0".join(several)
            block += _WORD.pack(len(key)) + key + _WORD.pack(len(joined)) + joined
        return self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


class Decoder:
    """Bytes, in pieces of any size, to frames; it keeps no more of them than a control frame may have."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._bytes = bytearray()
        # What is still to come of a frame of data: its stream, how much, and whether it is the last one.
        self._stream = self._rest_bytes = 0
        self._fin = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete now; SpdyError if there is something else."""
        self._bytes += data
        while True:
            if self._rest_bytes:
                if not self._bytes:
                    return
                piece = bytes(self._bytes[: self._rest_bytes])
                del self._bytes[: len(piece)]
                self._rest_bytes -= len(piece)
                yield Data(stream=self._stream, data=piece, fin=self._fin and not self._rest_bytes)
                continue
            if len(self._bytes) < _HEAD.size:
                return
            first, second = _HEAD.unpack_from(self._bytes)
            flags, size_bytes = second >> 24, second & _LENGTH
            if first >> 31 == 0:
                del self._bytes[: _HEAD.size]
                if first == 0:
                    raise SpdyError("data of no stream")
                self._stream, self._rest_bytes, self._fin = first, size_bytes, bool(flags & _FIN)
                if not size_bytes:
                    yield Data(stream=first, data=b"", fin=self._fin)
                continue
            if first >> 16 != _VERSION or size_bytes > _LARGEST_CONTROL_BYTES:
                raise SpdyError(f"a frame that begins with {first:#x} and has {size_bytes} bytes is none of SPDY/3")
            if len(self._bytes) < _HEAD.size + size_bytes:
                return
            body = bytes(self._bytes[_HEAD.size : _HEAD.size + size_bytes])
            del self._bytes[: _HEAD.size + size_bytes]
            frame = self._control(first & 0xFFFF, bool(flags & _FIN), body)
            if frame is not None:
                yield frame

    def _control(self, kind: int, fin: bool, body: bytes) -> Frame | None:
        """Return a control frame, None for a type unknown to SPDY/3.1, which is left out."""
        try:
            if kind == _SYN_STREAM:
                headers = self._headers(body[_STREAM_HEAD_BYTES:])
                return SynStream(stream=_number(body), headers=headers, fin=fin)
            if kind == _SYN_REPLY:
                return SynReply(stream=_number(body), headers=self._headers(body[_WORD.size :]), fin=fin)
            if kind == _HEADERS:
                return HeadersFrame(stream=_number(body), headers=self._headers(body[_WORD.size :]), fin=fin)
            if kind == _SETTINGS:
                (count,) = _WORD.unpack_from(body)
                if count * _PAIR.size != len(body) - _WORD.size:
                    raise SpdyError("settings are not as many as they say")
                # The eight bits before a number are flags.
                values = tuple((number & _LENGTH, value) for number, value in _PAIR.iter_unpack(body[_WORD.size :]))
                return Settings(values=values)
            if kind == _PING:
                return Ping(number=_WORD.unpack(body)[0])
            if kind == _RST_STREAM:
                return RstStream(stream=_number(body), status=_PAIR.unpack(body)[1])
            if kind == _GOAWAY:
                return GoAway(last=_number(body), status=_PAIR.unpack(body)[1])
            if kind == _WINDOW_UPDATE:
                return WindowUpdate(stream=_number(body), size_bytes=_PAIR.unpack(body)[1] & _NUMBER)
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a control frame of type {kind} is not complete: {error}") from error
        return None

    def _headers(self, block: bytes) -> Headers:
        plain = self._inflate.decompress(block, LARGEST_HEADERS_BYTES)
        if self._inflate.unconsumed_tail or self._inflate.eof:
            raise SpdyError(f"headers have at most {LARGEST_HEADERS_BYTES} bytes, and no end of compression")
        (count,) = _WORD.unpack_from(plain)
        at = _WORD.size
        found = []
        for _ in range(count):
            name, at = _text(plain, at)
            value, at = _text(plain, at)
            found += [(name.lower(), one) for one in value.split("\0")]
        if at != len(plain):
            raise SpdyError("headers are followed by something else")
        return tuple(found)


def _control(kind: int, body: bytes, *, fin: bool = False) -> bytes:
    return _HEAD.pack(_VERSION << 16 | kind, (_FIN if fin else 0) << 24 | len(body)) + body


def _number(body: bytes) -> int:
    number: int = _WORD.unpack_from(body)[0] & _NUMBER
    return number


def _text(plain: bytes, at: int) -> tuple[str, int]:
    (size_bytes,) = _WORD.unpack_from(plain, at)
    at += _WORD.size
    if size_bytes > len(plain) - at:
        raise SpdyError("a header is longer than all of them")
    return plain[at : at + size_bytes].decode(), at + size_bytes
