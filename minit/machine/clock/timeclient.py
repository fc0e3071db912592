"""
A client of NTP: asks servers what time it is, and has the clock follow (RFC 4330, RFC 5905).

Servers are not trusted. An answer counts if it has a number that only the server could know, comes from a clock that
is right by what it says itself, and agrees with more than half of the others; and the clock is moved within bounds of
the configuration alone.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Sequence

from minit.errors import describe
from minit.machine.clock.kernelclock import KernelClock
from minit.machine.clock.ntpmessage import (
    NONCE_BYTES,
    PORT,
    Answer,
    Sample,
    agreed,
    encode_question,
    measure,
    parse_answer,
)
from minit.manifest.machineconfig import Clock, is_ipv6
from minit.stdio import complain_at_once
from minit.utctime import utc_text

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


class TimeClient:
    """
    Keeps the clock; `turn` is called when one of `filenos` can be read, at `deadline`, and when `servers` may change.

    `built` is the time of the image. A clock that `is_lost` has a time of no meaning.
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
        # The clock as it was, or was set first, and the monotonic time of that: no later step leads away from it.
        self._anchor = None if is_lost else (self._clock.now(), time.monotonic())
        self._known: Sequence[str] = ()
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
        """The monotonic time at which something is due, None if nothing is."""
        if self._round_ends is not None:
            return self._round_ends
        return self._next_round if self._known else None

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        return [question.fileno() for question in self._questions if question.is_open]

    def ask(self) -> None:
        """Ask in the next turn."""
        self._next_round = 0.0

    def turn(self) -> None:
        """Take the answers that have come, and do what is due."""
        servers = list(dict.fromkeys(self._servers()))[:_MAXIMUM_SERVERS]
        if servers != self._known:
            self._close()
            self._known = servers
            self.ask()
        for question in self._questions:
            question.receive(self._built)
        now = time.monotonic()
        if self._round_ends is not None:
            if now >= self._round_ends or not self.filenos():
                self._end_round()
        elif self._known and now >= self._next_round:
            self._begin_round()

    def _begin_round(self) -> None:
        for server in self._known:
            if server not in self._refused:
                question = _Question(server, self._clock)
                if question.is_open:
                    self._questions.append(question)
        if self._questions:
            self._round_ends = time.monotonic() + _ANSWER_SECONDS
        else:
            self._wait(_UNREACHABLE_SECONDS if len(self._refused) < len(self._known) else _UNANSWERED_SECONDS)

    def _end_round(self) -> None:
        questions = list(self._questions)
        self._close()
        kisses = {question.server: question.kiss for question in questions if question.kiss is not None}
        self._refused.update(server for server, kiss in kisses.items() if kiss in _GO_AWAY)
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
            self._wait(_POLL_SECONDS, longest=_TOO_OFTEN in kisses.values())
            try:
                self._follow(sample)
            except OSError as error:
                self._say_once(describe(error))

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

    def _say_once(self, line: str) -> None:
        # The time in it is another one each time.
        key = line.partition(" says ")[0] + line.partition("Z, ")[2]
        if key not in self._said:
            self._said.add(key)
            complain_at_once(f"minit: clock: {line}")


class _Question:
    """A question to one server, from a port of its own; it is open until the answer has come."""

    def __init__(self, server: str, clock: KernelClock) -> None:
        self.server = server
        self.sample: Sample | None = None
        self.kiss: str | None = None
        self._nonce = os.urandom(NONCE_BYTES)
        family = socket.AF_INET6 if is_ipv6(server) else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self.is_open = True
        try:
            # From then on the kernel takes packets of this server alone.
            self._socket.connect((server, PORT))
            self._asked, self._asked_monotonic = clock.now(), time.monotonic()
            self._socket.send(encode_question(self._nonce))
        except OSError:
            self.close()

    def fileno(self) -> int:
        """Return the descriptor on which the answer comes."""
        return self._socket.fileno()

    def receive(self, near: float) -> None:
        """Take the answer if it has come, with a time `near` to which it is; whatever else comes is nothing."""
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
            self.sample = measure(self.server, answer, self._asked, took_seconds)
