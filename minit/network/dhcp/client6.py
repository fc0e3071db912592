"""
A client of DHCP for IPv6 for an interface (RFC 8415); the caller polls its socket and heeds its deadline.

The client asks for an address, or only for the network's other settings.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable

from minit.base.value import replace
from minit.network.dhcp import message6 as messages
from minit.network.dhcp.message6 import INFINITE_SECONDS, Answer6

_SO_BINDTODEVICE = 25
_RECEIVE_BYTES = 65536
_MOST_PACKETS = 64  # at a time
_HIGHEST_PREFERENCE = 255
# The first pause and the longest of each kind of message (RFC 8415, 7.6), in seconds.
_PAUSES = {
    messages.SOLICIT: (1.0, 3600.0),
    messages.REQUEST: (1.0, 30.0),
    messages.RENEW: (10.0, 600.0),
    messages.REBIND: (10.0, 600.0),
    messages.INFORMATION_REQUEST: (1.0, 3600.0),
}
_REQUEST_ATTEMPTS = 10
_UNREADY_SECONDS = 1.0  # until the interface has a link-local address that nobody else has
_DECLINED_SECONDS = 10.0
_BROKEN_SECONDS = 32.0
_MINIMUM_SECONDS = 10
_REFRESH_SECONDS = 24 * 3600
_SHORTEST_REFRESH_SECONDS = 600
_FOREVER = float("inf")

BOUND = 0
"""The state with nothing to ask for; any other state is the kind of the message to send."""


class Dhcp6Client:
    """
    Asks, keeps the lease, and calls `changed` for each answer: with an Answer6, or with None after the loss of the
    address.

    `turn` does the due work; the caller calls it at `deadline` (monotonic), and when `fileno` is readable. With
    `wants_address` the client asks for an address. `duid` identifies this machine, `association` is the number of the
    interface's lease.
    """

    def __init__(
        self,
        interface: str,
        duid: bytes,
        association: int,
        wants_address: bool,
        changed: Callable[[Answer6 | None], None],
    ) -> None:
        self.wants_address = wants_address
        self.state = self._first
        self.deadline = 0.0
        self._interface = interface
        self._duid = duid
        self._association = association
        self._changed = changed
        self._lease: Answer6 | None = None
        self._offer: Answer6 | None = None
        self._renew_at = self._rebind_at = self._expires_at = _FOREVER
        self._socket: socket.socket | None = None
        self._begin(self._first)

    @property
    def _first(self) -> int:
        return messages.SOLICIT if self.wants_address else messages.INFORMATION_REQUEST

    def fileno(self) -> int | None:
        """Return the descriptor for answers, None before the first question."""
        return None if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """Give up, without a word to the server."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def decline(self) -> None:
        """Tell the server that a neighbour has the address, and ask for another address."""
        if self._lease is not None:
            self._begin(messages.DECLINE)
            self._send()
        self._lose()
        self.deadline = time.monotonic() + _DECLINED_SECONDS

    def turn(self) -> None:
        """Take the answers that have come, and do the due work; OSError if the interface cannot be used."""
        try:
            self._receive()
            if time.monotonic() >= self.deadline:
                self._act()
        except OSError:
            self.close()
            self.deadline = time.monotonic() + _BROKEN_SECONDS
            raise

    def _act(self) -> None:
        now = time.monotonic()
        if self.state in (BOUND, messages.RENEW) and self._lease is not None and now >= self._rebind_at:
            self._begin(messages.REBIND)
        elif self.state == BOUND:
            self._begin(messages.RENEW if self.wants_address else messages.INFORMATION_REQUEST)
        elif self.state == messages.SOLICIT and self._offer is not None:
            self._begin(messages.REQUEST)
        elif self.state == messages.REQUEST and self._attempt >= _REQUEST_ATTEMPTS:
            self._offer = None
            self._begin(messages.SOLICIT)
        if self._lease is not None and self.wants_address and now >= self._expires_at:
            self._lose()
            return
        self._send()

    def _begin(self, state: int) -> None:
        self.state = state
        self._transaction = int.from_bytes(os.urandom(3), "big")
        self._begun, self._attempt, self._pause_seconds, self.deadline = time.monotonic(), 0, 0.0, 0.0

    def _send(self) -> None:
        if self._socket is None:
            self._socket = _open(self._interface)
        now = time.monotonic()
        source = self._offer if self.state == messages.REQUEST else self._lease
        names_server = self.state in (messages.REQUEST, messages.RENEW, messages.DECLINE)
        leased = None if source is None else source.leased
        question = messages.encode_question(
            self.state,
            self._duid,
            transaction=self._transaction,
            elapsed_seconds=now - self._begun,
            association=self._association if self.wants_address else None,
            address=None if leased is None else leased.address,
            server=source.server if names_server and source is not None else None,
        )
        try:
            index = socket.if_nametoindex(self._interface)
            self._socket.sendto(question, (messages.ALL_SERVERS, messages.SERVER_PORT, 0, index))
        except OSError:
            self.deadline = now + _UNREADY_SECONDS
            return
        if self.state not in _PAUSES:
            return
        first, longest = _PAUSES[self.state]
        self._attempt += 1
        self._pause_seconds = min(2 * self._pause_seconds or first, longest)
        # The first SOLICIT waits for all servers (RFC 8415, 18.2.1): at least its pause.
        least = 1.0 if self.state == messages.SOLICIT and self._attempt == 1 else 0.9
        self.deadline = now + self._pause_seconds * random.uniform(least, 1.1)
        if self.state == messages.RENEW:
            self.deadline = min(self.deadline, self._rebind_at)
        elif self.state == messages.REBIND:
            self.deadline = min(self.deadline, self._expires_at)

    def _receive(self) -> None:
        for _ in range(_MOST_PACKETS):
            if self._socket is None:
                return
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            answer = messages.parse_answer(data, self._duid, self._transaction, self._association)
            if answer is not None:
                self._take(answer)

    def _take(self, answer: Answer6) -> None:
        if self.state == messages.SOLICIT and answer.kind == messages.ADVERTISE and answer.leased is not None:
            if self._offer is None or answer.preference > self._offer.preference:
                self._offer = answer
            if answer.preference == _HIGHEST_PREFERENCE or self._attempt > 1:
                self.deadline = 0.0
        elif answer.kind != messages.REPLY:
            return
        elif self.state == messages.INFORMATION_REQUEST:
            refresh = _REFRESH_SECONDS if answer.refresh_seconds is None else answer.refresh_seconds
            self._bind(replace(answer, leased=None), max(refresh, _SHORTEST_REFRESH_SECONDS))
        elif self.state in (messages.REQUEST, messages.RENEW, messages.REBIND):
            if answer.leased is not None:
                self._bind(answer, 0)
            elif self.state != messages.REQUEST and self._lease is not None:
                # The server does not know the address any more (RFC 8415, 18.2.10.1).
                self._offer = replace(answer, leased=self._lease.leased)
                self._begin(messages.REQUEST)
            else:
                self._offer = None
                self._pause_seconds, self.deadline = 0.0, time.monotonic() + _PAUSES[messages.SOLICIT][0]
                self.state = messages.SOLICIT

    def _bind(self, answer: Answer6, refresh_seconds: int) -> None:
        now = time.monotonic()
        self._lease, self._offer, self.state = answer, None, BOUND
        if answer.leased is None:
            self.deadline = now + refresh_seconds
        else:
            leased = answer.leased
            self._expires_at = _moment(now, max(leased.valid_seconds, _MINIMUM_SECONDS))
            self._rebind_at = min(_moment(now, max(leased.rebinding_seconds, _MINIMUM_SECONDS)), self._expires_at)
            self._renew_at = min(_moment(now, max(leased.renewal_seconds, _MINIMUM_SECONDS)), self._rebind_at)
            self.deadline = self._renew_at
        self._changed(answer)

    def _lose(self) -> None:
        self._lease = self._offer = None
        self._begin(self._first)
        self._changed(None)


def _moment(now: float, seconds: int) -> float:
    return _FOREVER if seconds == INFINITE_SECONDS else now + seconds


def _open(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode() + b"\0")
        sock.bind(("::", messages.CLIENT_PORT))
    except OSError:
        sock.close()
        raise
    return sock
