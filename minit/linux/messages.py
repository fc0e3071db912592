"""Messages with descriptors over the SEQPACKET sockets between minit's own processes (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence

from minit.base import jsontext
from minit.base.errors import ManifestError
from minit.linux.stdio import write_all

MAXIMUM_MESSAGE_BYTES = 64 * 1024
# Key of a reply whose actual content, larger than a message, is in the file of the descriptor.
IN_FILE = "in_file"
_MAXIMUM_DESCRIPTORS = 16
_DESCRIPTOR_BYTES = 4
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

Socket = socket.socket


def socket_pair() -> tuple[Socket, Socket]:
    """Return two connected SEQPACKET sockets, close-on-exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC, 0)


def memory_file(name: str, data: bytes) -> int:
    """Return a file in memory with this, at its start: a content that nobody can change, memfd_create(2)."""
    fd = reserve_memory_file(name)
    try:
        fill_memory_file(fd, data)
    except OSError:
        os.close(fd)
        raise
    return fd


def reserve_memory_file(name: str, size_bytes: int = 0) -> int:
    """Return a file in memory that has all memory for so many bytes, for `fill_memory_file`."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if size_bytes:
            os.posix_fallocate(fd, 0, size_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def fill_memory_file(fd: int, data: bytes) -> None:
    """Give a reserved file in memory its content, which nobody can change."""
    write_all(fd, data)
    os.ftruncate(fd, len(data))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    os.lseek(fd, 0, os.SEEK_SET)


def read_memory_file(fd: int) -> bytes:
    """Return the content of a file in memory, wherever the descriptor stands."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def encode_message(message: object, descriptors: Sequence[int]) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    """Return a JSON value and descriptors as the buffers and the ancillary data of sendmsg(2)."""
    rights = b"".join(fd.to_bytes(_DESCRIPTOR_BYTES, "little") for fd in descriptors)
    return [jsontext.dump(message)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []


def send_message(link: Socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send a JSON value and descriptors as one packet; OSError if the other side is gone."""
    link.sendmsg(*encode_message(message, descriptors), socket.MSG_NOSIGNAL)


def receive_message(link: Socket) -> tuple[dict[str, object] | None, list[int]]:
    """
    Return the next packet's JSON object and descriptors (now the caller's); None at end of file.

    ValueError for anything else, whose descriptors are closed.
    """
    size = socket.CMSG_SPACE(_MAXIMUM_DESCRIPTORS * _DESCRIPTOR_BYTES)
    arguments = (MAXIMUM_MESSAGE_BYTES, size, socket.MSG_CMSG_CLOEXEC)
    try:
        data, ancillary, flags, _ = link.recvmsg(*arguments)
    except ConnectionResetError:
        # Reported once, if the other side went away with unread data; its own last messages follow.
        data, ancillary, flags, _ = link.recvmsg(*arguments)
    descriptors = [
        int.from_bytes(rights[at : at + _DESCRIPTOR_BYTES], "little")
        for level, kind, rights in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for at in range(0, len(rights), _DESCRIPTOR_BYTES)
    ]
    if not data:
        return None, descriptors
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError(f"message: more than {MAXIMUM_MESSAGE_BYTES} bytes or {_MAXIMUM_DESCRIPTORS} descriptors")
        message = jsontext.parse(data, "message")
        if not isinstance(message, dict):
            raise ValueError("message: expected an object")
    except (ManifestError, ValueError) as error:
        for fd in descriptors:
            os.close(fd)
        raise ValueError(str(error)) from error
    return message, descriptors
