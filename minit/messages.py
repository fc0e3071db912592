"""Messages with descriptors over the SEQPACKET sockets between minit's own processes (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import _socket  # the C half alone: `socket` brings enum and selectors to the boot path
import os

from minit import jsontext
from minit.errors import ManifestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAXIMUM_MESSAGE_BYTES = 64 * 1024
# Of a reply that has the actual one, which is larger than a message, in the file of its descriptor.
IN_FILE = "in_file"
_MAXIMUM_DESCRIPTORS = 16
_DESCRIPTOR_BYTES = 4

Socket = _socket.socket


def socket_pair() -> tuple[Socket, Socket]:
    """Return two connected SEQPACKET sockets, close-on-exec."""
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC, 0)


def encode_message(message: object, descriptors: Sequence[int]) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    """Return the buffers and the ancillary data that sendmsg(2) takes for a JSON value and descriptors."""
    rights = b"".join(fd.to_bytes(_DESCRIPTOR_BYTES, "little") for fd in descriptors)
    return [jsontext.dump(message)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else []


def send_message(socket: Socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send a JSON value and descriptors as one packet; OSError if the other side is gone."""
    socket.sendmsg(*encode_message(message, descriptors), _socket.MSG_NOSIGNAL)


def receive_message(socket: Socket) -> tuple[dict[str, object] | None, list[int]]:
    """
    Return the next packet's JSON object and descriptors (now the caller's); None at end of file.

    ValueError for anything else, whose descriptors are closed.
    """
    size = _socket.CMSG_SPACE(_MAXIMUM_DESCRIPTORS * _DESCRIPTOR_BYTES)
    arguments = (MAXIMUM_MESSAGE_BYTES, size, _socket.MSG_CMSG_CLOEXEC)
    try:
        data, ancillary, flags, _ = socket.recvmsg(*arguments)
    except ConnectionResetError:
        # Said once, if the other side went away without reading everything; what it sent before comes after that.
        data, ancillary, flags, _ = socket.recvmsg(*arguments)
    descriptors = [
        int.from_bytes(rights[at : at + _DESCRIPTOR_BYTES], "little")
        for level, kind, rights in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(rights), _DESCRIPTOR_BYTES)
    ]
    if not data:
        return None, descriptors
    try:
        if flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
            raise ValueError(f"message: more than {MAXIMUM_MESSAGE_BYTES} bytes or {_MAXIMUM_DESCRIPTORS} descriptors")
        message = jsontext.parse(data, "message")
        if not isinstance(message, dict):
            raise ValueError("message: expected an object")
    except (ManifestError, ValueError) as error:
        for fd in descriptors:
            os.close(fd)
        raise ValueError(str(error)) from error
    return message, descriptors
