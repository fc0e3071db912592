"""
A client of NTP: asks servers for the time, and has the clock follow (RFC 4330, RFC 5905).

Servers are not trusted. An answer counts if it has a number known only to the server, comes from a clock that is right
by its own words, and agrees with more than half of the others; and the clock is moved within bounds of the
configuration alone. A name is a single server, however many addresses it has.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from minit.base.errors import describe
from minit.base.jsontext import dump, parse
from minit.base.utctime import utc_text
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import NAME_LOOKUP, fork
from minit.linux.stdio import complain_at_once
from minit.machine.clock import KernelClock
from minit.machine.ntpmessage import (
    NONCE_BYTES,
    PORT,
    Answer,
    Sample,
    agreed,
    encode_question,
    measure,
    parse_answer,
)
from minit.manifest.machineconfig import Clock
from minit.manifest.machinefields import is_address, is_ipv6

_MAXIMUM_SERVERS = 8
_ANSWER_SECONDS = 3.0
# Between rounds, doubled each time: while nothing can be sent, while nobody answers, and while the clock follows. No
# server is asked twice in 15 seconds (RFC 4330, 10).
_UNREACHABLE_SECONDS = 1.0, 64.0
_UNANSWERED_SECONDS = 17.0, 1088.0
_POLL_SECONDS = 17.0, 1088.0
# From there on the clock steps: the kernel takes up 0.5 seconds at most.
_STEP_SECONDS = 0.4
_KEEP_SECONDS = 3600.0
_DAY_SECONDS = 24 * 3600
_TOO_OFTEN = "RATE"
_GO_AWAY = ("DENY", "RSTR")
_RECEIVE_BYTES = 1024
_MOST_PACKETS = 64  # at a time: whoever sends more in the name of a server is not waited for

_LONGEST_SECONDS = 20.0
_READ_BYTES = 1 << 16
_MOST_ADDRESSES = 8  # of a name
_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)


class TimeClient:
    """
    Keeps the clock; `turn` is called when a descriptor of `filenos` is readable, at `deadline`, and when `servers` may
    change.

    A name is looked up when none of its addresses answers. `built` is the time of the image. A clock that `is_lost` has
    a meaningless time.
    """

    def __init__(
        self,
        config: Clock,
        built: float,
        is_lost: bool,
        servers: Callable[[], Sequence[str]],
        clock: KernelClock | None = None,
    ) -> None:
        self.is_set = False
        self._config = config
        self._built = built
        self._servers = servers
        self._clock = clock or KernelClock()
        # The clock's first trusted time, and the monotonic time then: no later step leads away from it.
        self._anchor = None if is_lost else (self._clock.now(), time.monotonic())
        self._known: Sequence[str] = ()
        # Of names; the first address is asked.
        self._addresses: dict[str, list[str]] = {}
        self._lookup: _NameLookup | None = None
        self._unknown_names: set[str] = set()
        # Addresses of servers that refuse clients.
        self._refused: set[str] = set()
        self._questions: list[_Question] = []
        self._round_ends: float | None = None
        self._next_round = 0.0
        self._pause_seconds = 0.0
        self._bounds: tuple[float, float] | None = None
        self._kept_at: float | None = None
        self._said: set[str] = set()

    @property
    def deadline(self) -> float | None:
        """The monotonic time of the next work, None without any."""
        if self._lookup is not None:
            return self._lookup.deadline
        if self._round_ends is not None:
            return self._round_ends
        return self._next_round if self._known else None

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        lookup = [] if self._lookup is None else [self._lookup.fileno()]
        return lookup + [question.fileno() for question in self._questions if question.is_open]

    def ask(self) -> None:
        """Ask in the next turn."""
        self._next_round = 0.0

    def turn(self) -> None:
        """Take the answers that have come, and do the due work."""
        servers = list(dict.fromkeys(self._servers()))[:_MAXIMUM_SERVERS]
        if servers != self._known:
            self._close()
            self._known = servers
            self._addresses = {name: addresses for name, addresses in self._addresses.items() if name in servers}
            self._unknown_names &= set(servers)
            self.ask()
        for question in self._questions:
            question.receive(self._built)
        now = time.monotonic()
        if self._lookup is not None:
            if self._lookup.turn():
                self._end_lookup(self._lookup)
                self._ask_servers()
        elif self._round_ends is not None:
            if now >= self._round_ends or not self.filenos():
                self._end_round()
        elif self._known and now >= self._next_round:
            self._begin_round()

    def _begin_round(self) -> None:
        names = [server for server in self._known if not is_address(server) and not self._addresses.get(server)]
        if not names:
            self._ask_servers()
            return
        try:
            self._lookup = _NameLookup(names)
        except OSError as error:
            self._say_once(describe(error))
            self._ask_servers()

    def _end_lookup(self, lookup: _NameLookup) -> None:
        self._lookup = None
        for found in lookup.close():
            self._addresses[found.name] = [one for one in found.addresses if one not in self._refused]
            if found.failure is not None and found.name not in self._unknown_names:
                self._unknown_names.add(found.name)
                complain_at_once(f"minit: clock: {found.name}: {found.failure}")

    def _ask_servers(self) -> None:
        asked: set[str] = set()
        for server in self._known:
            addresses = [server] if is_address(server) else self._addresses.get(server, ())
            address = next((one for one in addresses if one not in self._refused | asked), None)
            if address is None:
                continue
            asked.add(address)
            question = _Question(server, address, self._clock)
            if question.is_open:
                self._questions.append(question)
            else:
                self._leave(question)
        if self._questions:
            self._round_ends = time.monotonic() + _ANSWER_SECONDS
        else:
            self._wait(_UNREACHABLE_SECONDS if len(self._refused) < len(self._known) else _UNANSWERED_SECONDS)

    def _end_round(self) -> None:
        questions = list(self._questions)
        self._close()
        for question in questions:
            if question.kiss in _GO_AWAY:
                self._refused.add(question.address)
            if question.sample is None and question.kiss != _TOO_OFTEN:
                self._leave(question)
        samples = [question.sample for question in questions if question.sample is not None]
        if not samples:
            self._wait(_UNANSWERED_SECONDS)
            return
        sample = agreed(samples)
        if sample is None:
            self._say_once(f"{', '.join(one.server for one in samples)} do not agree about the time")
            self._wait(_UNANSWERED_SECONDS)
        elif obstacle := self._obstacle(sample):
            self._say_once(obstacle)
            self._wait(_UNANSWERED_SECONDS)
        else:
            self._wait(_POLL_SECONDS, longest=any(question.kiss == _TOO_OFTEN for question in questions))
            try:
                self._follow(sample)
            except OSError as error:
                self._say_once(describe(error))

    def _leave(self, question: _Question) -> None:
        """Have another address of a name asked the next time."""
        addresses = self._addresses.get(question.server, [])
        if question.address in addresses:
            addresses.remove(question.address)

    def _obstacle(self, sample: Sample) -> str | None:
        """Return why the clock must not be set so."""
        told = self._clock.now() + sample.offset
        says = f"{sample.server} says {utc_text(told)}, which is"
        if told < self._built:
            return f"{says} before the time of the image"
        if self._anchor is None:
            if told - self._built > self._config.first_step_days * _DAY_SECONDS:
                return f"{says} more than first_step_days after the time of the image"
            return None
        wall, monotonic = self._anchor
        if abs(told - (wall + time.monotonic() - monotonic)) > self._config.maximum_step_seconds:
            return f"{says} more than maximum_step_seconds away"
        return None

    def _follow(self, sample: Sample) -> None:
        is_step = abs(sample.offset) >= _STEP_SECONDS
        if is_step:
            self._clock.step(sample.offset)
            complain_at_once(
                f"minit: clock: now it is {utc_text(self._clock.now())} ({sample.offset:+.1f} s), by {sample.server}"
            )
        else:
            self._clock.slew(sample.offset, self._pause_seconds)
        now = time.monotonic()
        if self._anchor is None:
            self._anchor = self._clock.now(), now
        self.is_set = True
        self._said.clear()
        if is_step or self._kept_at is None or now >= self._kept_at + _KEEP_SECONDS:
            self._kept_at = now
            try:
                self._clock.keep()
            except FileNotFoundError:
                pass  # the machine has no such chip

    def _wait(self, bounds: tuple[float, float], *, longest: bool = False) -> None:
        first, last = bounds
        begins = bounds != self._bounds
        self._bounds = bounds
        self._pause_seconds = last if longest else first if begins else min(2 * self._pause_seconds, last)
        self._next_round = time.monotonic() + self._pause_seconds * random.uniform(0.9, 1.1)

    def _close(self) -> None:
        for question in self._questions:
            question.close()
        self._questions, self._round_ends = [], None
        if self._lookup is not None:
            self._end_lookup(self._lookup)

    def _say_once(self, line: str) -> None:
        # The time in the line differs each time.
        key = line.partition(" says ")[0] + line.partition("Z, ")[2]
        if key not in self._said:
            self._said.add(key)
            complain_at_once(f"minit: clock: {line}")


class _Question:
    """A question to a server's address, from its own port, which is open until the answer has come."""

    def __init__(self, server: str, address: str, clock: KernelClock) -> None:
        self.server = server
        self.address = address
        self.sample: Sample | None = None
        self.kiss: str | None = None
        self._nonce = os.urandom(NONCE_BYTES)
        family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self.is_open = True
        try:
            # From then on the kernel takes packets of this server alone.
            self._socket.connect((address, PORT))
            self._asked, self._asked_monotonic = clock.now(), time.monotonic()
            self._socket.send(encode_question(self._nonce))
        except OSError:
            self.close()

    def fileno(self) -> int:
        """Return the descriptor for the answer."""
        return self._socket.fileno()

    def receive(self, near: float) -> None:
        """Take the answer if there is one, with a time `near` the true time; other packets are ignored."""
        for _ in range(_MOST_PACKETS):
            if not self.is_open:
                return
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self.close()  # nobody listens there
                return
            took_seconds = time.monotonic() - self._asked_monotonic
            answer = parse_answer(data, self._nonce, near)
            if answer is not None:
                self._take(answer, took_seconds)
                self.close()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()
        self.is_open = False

    def _take(self, answer: Answer, took_seconds: float) -> None:
        self.kiss = answer.kiss
        if answer.kiss is None:
            name = self.server if self.server == self.address else f"{self.server} ({self.address})"
            self.sample = measure(name, answer, self._asked, took_seconds)


class _Found(Value):
    """The addresses of a name; with a `failure` there is no such name, and without both nobody could tell."""

    name: str
    addresses: tuple[str, ...] = ()
    failure: str | None = None


class _NameLookup:
    """
    A lookup of several names by the C library, in a process that can be killed: the library may wait for long, cannot
    be stopped, and reads packets of anybody on the network.

    `turn` when `fileno` is readable, and at `deadline` (monotonic), until the end.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """OSError if no process can be made."""
        self.deadline = time.monotonic() + _LONGEST_SECONDS
        self._told = b""
        self._pipe, writer = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            pid = fork(NAME_LOOKUP, lambda: _look_up(names, writer), {"pipe": writer})
            self._process = os.pidfd_open(pid)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writer)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._pipe

    def turn(self) -> bool:
        """Take the results so far; return whether the lookup is over, complete or out of time."""
        while time.monotonic() < self.deadline:
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._told += data
        return True

    def close(self) -> Iterator[_Found]:
        """End the lookup, and return its results."""
        syscalls.pidfd_send_signal(self._process, signal.SIGKILL)
        os.waitid(os.P_PIDFD, self._process, os.WEXITED)
        os.close(self._process)
        os.close(self._pipe)
        # The text after the last line feed is incomplete.
        for line in self._told.split(b"\n")[:-1]:
            found = parse(line, "lookup of names")
            assert isinstance(found, dict)  # it is of our own process
            yield _Found(name=found["name"], addresses=tuple(found["addresses"]), failure=found["failure"])


def _look_up(names: Sequence[str], pipe: int) -> None:
    """Write the addresses of each name as soon as they are known."""
    for name in names:
        addresses, failure = [], None
        try:
            # As bytes: the interpreter of an image has no codec for international names.
            found = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_DGRAM)
            addresses = list(dict.fromkeys(address[0] for *_, address in found))[:_MOST_ADDRESSES]
        except socket.gaierror as error:
            failure = describe(error) if error.errno in _NO_SUCH_NAME else None
        os.write(pipe, dump({"name": name, "addresses": addresses, "failure": failure}) + b"\n")
