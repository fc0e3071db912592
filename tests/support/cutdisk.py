"""
A disk that loses its power at a write that a test has chosen, with what it had in its cache: a server of NBD for qemu.

The authority is the protocol's own description (doc/proto.md of the NBD project).
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from typing import BinaryIO

_HANDSHAKE = struct.Struct(">8s8sH")
_OPTION = struct.Struct(">8sII")
_OPTION_REPLY = struct.Struct(">QIII")
_INFORMATION = struct.Struct(">HQH")
_REQUEST = struct.Struct(">IHHQQI")
_REPLY = struct.Struct(">IIQ")
_OPTION_MAGIC = b"IHAVEOPT"
_OPTION_REPLY_MAGIC, _REQUEST_MAGIC, _REPLY_MAGIC = 0x3E889045565A9, 0x25609513, 0x67446698
_FIXED_NO_ZEROES = 3
_GO, _ACKNOWLEDGED, _INFORMED, _UNSUPPORTED = 7, 1, 3, 0x80000001
_HAS_FLAGS_AND_FLUSH = 5
_READ, _WRITE, _DISCONNECT, _FLUSH = range(4)
_SECTOR_BYTES = 512


class CutDisk:
    """
    A file as a disk; use it in a with block. `source` is what qemu takes for it.

    The power goes at `cut`, a byte of the disk and the number of the write to it, from 1: of that write every other
    sector is on the disk, and every other one of the writes since the last flush. What comes later is lost, and nobody
    gets an answer any more. `is_cut` is set then.
    """

    def __init__(self, path: Path, socket_path: Path, cut: tuple[int, int] | None) -> None:
        self.source = f"nbd+unix:///?socket={socket_path}"
        self.is_cut = threading.Event()
        self._cut, self._writes = cut, 0
        # Of each write since the last flush: its place, what was there, and what is there now.
        self._cached: list[tuple[int, bytes, bytes]] = []
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        socket_path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(socket_path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> CutDisk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        os.close(self._fd)

    def _serve(self) -> None:
        try:
            while True:
                client, _ = self._listener.accept()
                with client, client.makefile("rb") as requests:
                    try:
                        self._greet(client, requests)
                        while self._answer(client, requests):
                            pass
                    except (ConnectionError, struct.error):
                        pass  # qemu is gone
        except OSError:
            pass  # nobody listens any more

    def _greet(self, client: socket.socket, requests: BinaryIO) -> None:
        read = requests.read
        client.sendall(_HANDSHAKE.pack(b"NBDMAGIC", _OPTION_MAGIC, _FIXED_NO_ZEROES))
        read(4)
        while True:
            _, option, length = _OPTION.unpack(read(_OPTION.size))
            read(length)
            if option != _GO:
                client.sendall(_OPTION_REPLY.pack(_OPTION_REPLY_MAGIC, option, _UNSUPPORTED, 0))
                continue
            size_bytes = os.fstat(self._fd).st_size
            client.sendall(_OPTION_REPLY.pack(_OPTION_REPLY_MAGIC, _GO, _INFORMED, _INFORMATION.size))
            client.sendall(_INFORMATION.pack(0, size_bytes, _HAS_FLAGS_AND_FLUSH))
            client.sendall(_OPTION_REPLY.pack(_OPTION_REPLY_MAGIC, _GO, _ACKNOWLEDGED, 0))
            return

    def _answer(self, client: socket.socket, requests: BinaryIO) -> bool:
        read = requests.read
        magic, _, kind, handle, place, length = _REQUEST.unpack(read(_REQUEST.size))
        assert magic == _REQUEST_MAGIC
        answer = b""
        if kind == _DISCONNECT:
            return False
        if kind == _READ:
            answer = os.pread(self._fd, length, place)
        elif kind == _WRITE:
            self._write(place, read(length))
        elif kind == _FLUSH and not self.is_cut.is_set():
            self._cached.clear()
        if self.is_cut.is_set():
            return True
        client.sendall(_REPLY.pack(_REPLY_MAGIC, 0, handle) + answer)
        return True

    def _write(self, place: int, data: bytes) -> None:
        if self.is_cut.is_set():
            return
        if self._cut is not None and place <= self._cut[0] < place + len(data):
            self._writes += 1
            if self._writes == self._cut[1]:
                self._lose_power(place, data)
                return
        self._cached.append((place, os.pread(self._fd, len(data), place), data))
        os.pwrite(self._fd, data, place)

    def _lose_power(self, place: int, data: bytes) -> None:
        self.is_cut.set()
        for cached_place, before, _ in reversed(self._cached):
            os.pwrite(self._fd, before, cached_place)
        for cached_place, _, after in self._cached[::2]:
            os.pwrite(self._fd, after, cached_place)
        for offset in range(0, len(data), 2 * _SECTOR_BYTES):
            os.pwrite(self._fd, data[offset : offset + _SECTOR_BYTES], place + offset)
