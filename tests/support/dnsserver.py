"""A server of DNS that tells the addresses of the hosts that a test names (RFC 1035)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence

_HEADER = struct.Struct(">HHHHHH")
_ANSWER, _NAME_ERROR = 0x8180, 0x8183
_POINTER_TO_QUESTION = 0xC00C
_IPV4, _INTERNET = 1, 1

NO_SUCH_NAME: Sequence[str] = ()


class DnsServer:
    """
    A server at an IPv4 address of this machine; use it in a with block, which ends it.

    `hosts` are the addresses of IPv4 that it tells; of one with NO_SUCH_NAME, as of all others, it says that there is
    none, and to questions about one with None it says nothing. Names that were `asked` for stand there once for each.
    """

    def __init__(self, address: str) -> None:
        self.hosts: dict[str, Sequence[str] | None] = {}
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> DnsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, sender = self._socket.recvfrom(1024)
            if not data:
                return
            labels, at = [], _HEADER.size
            while length := data[at]:
                labels.append(data[at + 1 : at + 1 + length].decode())
                at += 1 + length
            name, question = ".".join(labels), data[_HEADER.size : at + 5]
            self.asked.append(name)
            addresses = self.hosts.get(name, NO_SUCH_NAME)
            if addresses is None:
                continue
            (kind,) = struct.unpack_from(">H", data, at + 1)
            records = [
                struct.pack(">HHHIH", _POINTER_TO_QUESTION, _IPV4, _INTERNET, 60, 4) + socket.inet_aton(one)
                for one in (addresses if kind == _IPV4 else ())
            ]
            flags = _ANSWER if addresses else _NAME_ERROR
            head = _HEADER.pack(struct.unpack_from(">H", data)[0], flags, 1, len(records), 0, 0)
            self._socket.sendto(head + question + b"".join(records), sender)
