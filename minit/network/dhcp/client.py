"""
A DHCP client for an interface (RFC 2131); the caller polls its sockets and heeds its deadline.

The only well-kept library, pyroute2's, runs on asyncio, which is larger than all of this code and not in the image.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from minit.base.value import replace
from minit.network.dhcp import message as messages
from minit.network.dhcp.message import INFINITE_SECONDS, NO_ADDRESS, Answer, Identity

_ETH_P_IP = 0x0800
_SO_BINDTODEVICE = 25
_HARDWARE_ADDRESS = 4  # in the address of a socket of packet(7)
_ETHERNET_BROADCAST = b"\xff" * 6
_RECEIVE_BYTES = 65536
# At a time: on a busy network there is always another packet, and the caller has more to do.
_MOST_PACKETS = 64
# Between attempts, doubled each time and with some chance, so that a thousand machines do not ask at once.
_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 32.0
_REQUEST_ATTEMPTS = 4
_REBOOT_ATTEMPTS = 2
_RENEWAL_RETRY_SECONDS = 60.0
_MINIMUM_LEASE_SECONDS = 10
_DECLINED_SECONDS = 10.0  # RFC 2131, 3.1: before anything is asked again

# States, named as in the RFC, but for CHECKING, in which neighbours are asked whether they have the address.
INIT, REBOOTING, SELECTING, REQUESTING, CHECKING, BOUND, RENEWING, REBINDING = (
    *("init", "rebooting", "selecting", "requesting", "checking"),
    *("bound", "renewing", "rebinding"),
)

_ETH_P_ARP = 0x0806
# Hardware and protocol, the lengths of addresses, the operation; then both addresses of sender and target.
_ARP = struct.Struct(">HHBBH6sI6sI")
_ETHERNET, _IPV4, _REQUEST = 1, 0x0800, 1
_ARP_BYTES = 1024
_QUESTIONS = 3
_PAUSE_SECONDS = 0.2


class DhcpClient:
    """
    Gets a lease, keeps it, and calls `changed` each time: with an Answer, or with None after the loss of the lease.

    `turn` does the due work; the caller calls it at `deadline` (monotonic), and when `fileno` is readable. `complain`
    gets a line about an unusable address. The last lease ends at `expires_at` (monotonic). A `remembered` address of an
    earlier lease is asked for first; a server that knows it as wrong says so.
    """

    def __init__(
        self,
        interface: str,
        identity: Identity,
        changed: Callable[[Answer | None], None],
        complain: Callable[[str], None],
        remembered: IPv4Address = NO_ADDRESS,
    ) -> None:
        self.state = INIT
        self.deadline: float = 0.0
        self._interface = interface
        self._identity = identity
        self._changed = changed
        self._complain = complain
        self._remembered = remembered
        self._raw: socket.socket | None = None
        self._unicast: socket.socket | None = None
        self._probe: _AddressProbe | None = None
        self._transaction = 0
        self._attempt = 0
        self._begun = 0.0
        self._offer: Answer | None = None
        self._lease: Answer | None = None
        self._renew_at = self._rebind_at = self.expires_at = 0.0

    def fileno(self) -> int | None:
        """Return the descriptor for answers, None while no answer is expected."""
        source = self._probe or self._raw
        return None if source is None else source.fileno()

    @property
    def offer(self) -> Answer | None:
        """The offer that is being accepted, None if there is none."""
        return self._offer if self.state in (REQUESTING, CHECKING) else None

    def turn(self) -> None:
        """Take the answers that have come and do the due work; OSError if the interface cannot be used."""
        try:
            self._receive()
            if self._probe is not None:
                self._check(self._probe)
            elif time.monotonic() >= self.deadline:
                self._act()
        except OSError:
            self.deadline = time.monotonic() + _LAST_RETRY_SECONDS
            raise

    def close(self) -> None:
        """Give up, without a word to the server."""
        for opened in (self._raw, self._unicast, self._probe):
            if opened is not None:
                opened.close()
        self._raw = self._unicast = self._probe = None

    def _act(self) -> None:
        now = time.monotonic()
        if self.state == INIT:
            self._open()
            self._transaction = int.from_bytes(os.urandom(4), "big")
            self._begun, self._attempt = now, 0
            self.state = SELECTING if self._remembered == NO_ADDRESS else REBOOTING
        elif self.state == BOUND:
            assert self._lease is not None
            self._open()
            # Also for the answers, which the kernel would otherwise refuse with a message to the server.
            self._unicast = self._open_unicast(self._lease.address.ip)
            self._transaction = int.from_bytes(os.urandom(4), "big")
            self._begun = now
            self.state = RENEWING
        elif self.state == RENEWING and now >= self._rebind_at:
            self.state = REBINDING
        elif self.state == REBINDING and now >= self.expires_at:
            self._lose()
            return
        elif self.state == REQUESTING and self._attempt >= _REQUEST_ATTEMPTS:
            self.state = INIT
            return
        elif self.state == REBOOTING and self._attempt >= _REBOOT_ATTEMPTS:
            self._lose()
            return
        self._send()

    def _send(self) -> None:
        now = time.monotonic()
        seconds = int(now - self._begun)
        if self.state == SELECTING:
            self._broadcast(self._message(messages.DISCOVER, seconds=seconds))
        elif self.state == REBOOTING:
            self._broadcast(self._message(messages.REQUEST, seconds=seconds, requested=self._remembered))
        elif self.state == REQUESTING:
            assert self._offer is not None
            address, server = self._offer.address.ip, self._offer.server
            self._broadcast(self._message(messages.REQUEST, seconds=seconds, requested=address, server=server))
        else:
            assert self._lease is not None
            message = self._message(messages.REQUEST, seconds=seconds, own=self._lease.address.ip)
            if self.state == RENEWING:
                self._send_to_server(message)
            else:
                self._broadcast(message, self._lease.address.ip)
            until = self._rebind_at if self.state == RENEWING else self.expires_at
            self.deadline = min(until, now + max(_RENEWAL_RETRY_SECONDS, (until - now) / 2))
            return
        self._attempt += 1
        pause_seconds = min(_FIRST_RETRY_SECONDS * 2 ** (self._attempt - 1), _LAST_RETRY_SECONDS)
        self.deadline = now + pause_seconds * random.uniform(0.9, 1.1)

    def _take(self, answer: Answer) -> None:
        if self.state == SELECTING:
            if answer.kind == messages.OFFER and NO_ADDRESS not in (answer.address.ip, answer.server):
                # The request follows in the next turn: the caller can note the offer before, and so give it back later.
                self._offer, self._attempt, self.state, self.deadline = answer, 0, REQUESTING, 0.0
        elif self.state in (REBOOTING, REQUESTING, RENEWING, REBINDING):
            is_given = answer.kind == messages.ACK and answer.address.ip != NO_ADDRESS
            if is_given and self.state in (REBOOTING, REQUESTING):
                self._probe = _AddressProbe(self._interface, self._identity.mac, answer.address.ip)
                self._offer, self.state, self.deadline = answer, CHECKING, 0.0
            elif is_given:
                self._bind(answer)
            elif answer.kind == messages.NAK:
                self._lose()

    def _check(self, probe: _AddressProbe) -> None:
        """Use the address that the server has confirmed unless a neighbour uses it."""
        assert self._offer is not None
        is_known = probe.turn()
        self.deadline = probe.deadline
        if probe.owner is not None:
            self._decline(self._offer, probe.owner)
        elif is_known:
            self._bind(self._offer)

    def _decline(self, offer: Answer, owner: bytes) -> None:
        self._broadcast(self._message(messages.DECLINE, requested=offer.address.ip, server=offer.server))
        self.close()
        self._remembered = NO_ADDRESS
        self.state, self.deadline = INIT, time.monotonic() + _DECLINED_SECONDS
        self._complain(f"{offer.address.ip} is in use by {owner.hex(':')}")

    def _bind(self, lease: Answer) -> None:
        now = time.monotonic()
        lease = replace(lease, lease_seconds=max(lease.lease_seconds, _MINIMUM_LEASE_SECONDS))
        if lease.server == NO_ADDRESS and self._lease is not None:
            lease = replace(lease, server=self._lease.server)
        self._lease, self.state = lease, BOUND
        if lease.lease_seconds == INFINITE_SECONDS:
            self._renew_at = self._rebind_at = self.expires_at = float("inf")
        else:
            seconds = lease.lease_seconds
            # RFC 2131, 4.4.5; times from a server have to be in this order too, and not every second.
            rebind = min(_not_soon(lease.rebinding_seconds, seconds * 7 // 8), seconds)
            renew = min(_not_soon(lease.renewal_seconds, seconds // 2), rebind)
            self._renew_at, self._rebind_at, self.expires_at = now + renew, now + rebind, now + seconds
        self.deadline = self._renew_at
        self.close()
        self._changed(lease)

    def _lose(self) -> None:
        self.close()
        had_lease, self._lease = self._lease is not None, None
        had_memory, self._remembered = self._remembered != NO_ADDRESS, NO_ADDRESS
        self.state, self.deadline = INIT, 0.0
        if had_lease:
            self._changed(None)
        elif not had_memory:
            self.deadline = time.monotonic() + _FIRST_RETRY_SECONDS

    def _message(self, kind: int, **fields: Any) -> bytes:
        return messages.encode_request(kind, self._identity, transaction=self._transaction, **fields)

    def _open(self) -> None:
        if self._raw is None:
            self._raw = _open_raw(self._interface)

    def _open_unicast(self, address: IPv4Address) -> socket.socket | None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, self._interface.encode() + b"\0")
            sock.bind((str(address), messages.CLIENT_PORT))
        except OSError:
            # Somebody else has the port, or the address could not be set: the lease is rebound by broadcast.
            sock.close()
            return None
        return sock

    def _broadcast(self, message: bytes, source: IPv4Address = NO_ADDRESS) -> None:
        assert self._raw is not None
        try:
            self._raw.sendto(messages.wrap(message, source), (self._interface, _ETH_P_IP, 0, 0, _ETHERNET_BROADCAST))
        except BlockingIOError:
            pass  # there is another attempt

    def _send_to_server(self, message: bytes) -> None:
        assert self._lease is not None
        if self._unicast is None or self._lease.server == NO_ADDRESS:
            return
        try:
            self._unicast.sendto(message, (str(self._lease.server), messages.SERVER_PORT))
        except OSError:
            pass  # no way to it any more: it is tried again, and then by broadcast

    def _receive(self) -> None:
        """Take the answers for this client; the socket gets all IP packets of the interface."""
        for _ in range(_MOST_PACKETS):
            if self._raw is None:
                return
            try:
                packet, sender = self._raw.recvfrom(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            message = messages.unwrap(packet)
            answer = None
            if message is not None:
                answer = messages.parse_answer(message, self._transaction, self._identity.mac)
            if answer is not None:
                self._take(replace(answer, hop=sender[_HARDWARE_ADDRESS]))


def _not_soon(told_seconds: int | None, usual_seconds: int) -> int:
    return max(told_seconds or usual_seconds, min(usual_seconds, _MINIMUM_LEASE_SECONDS))


def release_lease(interface: str, identity: Identity, lease: Answer) -> None:
    """Tell the server about the end of a lease, once: there is no answer; OSError if the interface cannot be used."""
    transaction = int.from_bytes(os.urandom(4), "big")
    address = lease.address.ip
    message = messages.encode_request(
        messages.RELEASE, identity, transaction=transaction, own=address, server=lease.server
    )
    with _open_raw(interface) as raw:
        # The kernel might ask where the server is first, and the interface be gone before there is an answer.
        hop = lease.hop or _ETHERNET_BROADCAST
        raw.sendto(messages.wrap(message, address, lease.server), (interface, _ETH_P_IP, 0, 0, hop))


def _open_raw(interface: str) -> socket.socket:
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    raw = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_IP))
    try:
        raw.bind((interface, _ETH_P_IP))
    except OSError:
        raw.close()
        raise
    return raw


class _AddressProbe:
    """
    Asks by ARP whether another machine has an address, before its use (RFC 2131, 4.4.1; RFC 5227, 2.1): three questions
    in less than a second, where the RFC takes up to seven, as apps may be waiting.

    `turn` is called at `deadline` (monotonic) and when `fileno` is readable.
    """

    def __init__(self, interface: str, mac: bytes, address: IPv4Address) -> None:
        self.deadline = 0.0
        self.owner: bytes | None = None
        self._interface = interface
        self._mac = mac
        self._address = address
        self._left = _QUESTIONS
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_PACKET, kind, socket.htons(_ETH_P_ARP))
        try:
            self._socket.bind((interface, _ETH_P_ARP))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor for answers."""
        return self._socket.fileno()

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()

    def turn(self) -> bool:
        """Go on; return whether the answer is known, `owner` then being the hardware address of the address's owner."""
        for _ in range(_MOST_PACKETS):
            try:
                packet = self._socket.recv(_ARP_BYTES)
            except BlockingIOError:
                break
            self.owner = find_owner(packet, self._mac, self._address)
            if self.owner is not None:
                return True
        if time.monotonic() < self.deadline:
            return False
        if not self._left:
            return True
        self._left -= 1
        self.deadline = time.monotonic() + _PAUSE_SECONDS
        question = encode_probe(self._mac, self._address)
        try:
            self._socket.sendto(question, (self._interface, _ETH_P_ARP, 0, 0, _ETHERNET_BROADCAST))
        except BlockingIOError:
            pass  # there is another one
        return False


def encode_probe(mac: bytes, address: IPv4Address) -> bytes:
    """Return the question, without a sender's address, so that no neighbour takes this machine for the owner."""
    return _ARP.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, mac, 0, bytes(6), int(address))


def find_owner(packet: bytes, mac: bytes, address: IPv4Address) -> bytes | None:
    """
    Return the hardware address of another machine whose packet shows that it has an IPv4 address, or is about to take
    it.
    """
    if len(packet) < _ARP.size:
        return None
    hardware, protocol, size, other_size, operation, sender, own, _, target = _ARP.unpack_from(packet)
    if (hardware, protocol, size, other_size) != (_ETHERNET, _IPV4, 6, 4) or sender == mac:
        return None
    takes = operation == _REQUEST and own == 0 and target == int(address)
    return bytes(sender) if own == int(address) or takes else None
