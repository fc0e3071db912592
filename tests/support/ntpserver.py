"""A server of NTP that tells what a test wants to have told."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

SECONDS_TO_1970 = 2208988800
_FORM = struct.Struct(">BBbbIIIQ8sQQ")


def ntp(seconds: float) -> int:
    """Return the timestamp of a time since 1970."""
    return round((seconds + SECONDS_TO_1970) * 2**32) % 2**64


def answer(
    question: bytes,
    seconds: float,
    *,
    first: int = 0x24,
    stratum: int = 2,
    delay: float = 0.0,
    dispersion: float = 0.0,
    identifier: bytes = b"\0\0\0\0",
    reference: float | None = None,
    held: float = 0.0,
) -> bytes:
    """Return the answer of a server whose clock says `seconds`, and which had the question for `held` seconds."""
    return _FORM.pack(
        *(first, stratum, 6, -20, round(delay * 65536), round(dispersion * 65536)),
        *(int.from_bytes(identifier, "big"), ntp(seconds if reference is None else reference)),
        *(question[40:48], ntp(seconds), ntp(seconds + held)),
    )


class NtpServer:
    """
    A server at an address of this machine; use it in a with block, which ends it.

    Its clock is `offset_seconds` before that of the machine. `reply` can make other answers of a question: any number.
    """

    def __init__(self, address: str, offset_seconds: float = 0.0) -> None:
        self.offset_seconds = offset_seconds
        self.reply: Callable[[bytes], list[bytes]] = self.truth
        self.asked: list[tuple[str, int]] = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((address, 123))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> NtpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def truth(self, question: bytes) -> list[bytes]:
        """Return the right answer."""
        return [answer(question, time.time() + self.offset_seconds)]

    def _serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(1024)
            if not question:
                return
            self.asked.append(sender[:2])
            for reply in self.reply(question):
                self._socket.sendto(reply, sender)
