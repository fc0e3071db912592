"""
Waiting: the one event loop, by epoll(7), and the wait for a few descriptors just once, by poll(2).

Times are in seconds, None for as long as it takes; moments are of the monotonic clock. More than a day is waited for
as a day, since the kernel's milliseconds end after 24 of them.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

_EVENTS_PER_TURN = 256
_LONGEST_WAIT_SECONDS = 24 * 3600.0


class Loop:
    """
    Calls what belongs to the descriptors that are ready, and to the deadlines that have passed.

    `begin` is called in every turn, after the wait and before anything else.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        self._epoll = select.epoll()
        self._begin = begin
        self._callbacks: dict[int, Callable[[int], object]] = {}
        # Files that epoll(7) does not take, and poll(2) always finds ready.
        self._files: dict[int, int] = {}
        # Descriptors watched since the last wait: no event that was found by it belongs to them.
        self._new: set[int] = set()
        self._moments: dict[Deadline, float] = {}

    def __contains__(self, fd: object) -> bool:
        return fd in self._callbacks

    def __len__(self) -> int:
        return len(self._callbacks)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `turn` has events to handle; of deadlines it says nothing."""
        return self._epoll.fileno()

    def watch(self, fd: int, callback: Callable[[int], object], events: int = select.EPOLLIN) -> None:
        """
        Have `callback` called with the events of `fd`, until `unwatch`.

        EPOLLHUP and EPOLLERR are told whatever is asked for. A regular file has whatever is asked for.
        """
        try:
            self._epoll.register(fd, events)
        except PermissionError:
            self._files[fd] = events
        self._callbacks[fd] = callback
        self._new.add(fd)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        if fd in self._files:
            self._files[fd] = events
        else:
            self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, before it is closed; nothing happens if it is not watched."""
        if self._callbacks.pop(fd, None) is not None and self._files.pop(fd, None) is None:
            self._epoll.unregister(fd)

    def deadline(self, callback: Callable[[], object]) -> Deadline:
        """Return a deadline, not set yet, at which `callback` is called."""
        return Deadline(self._moments, callback)

    @property
    def next_deadline(self) -> float | None:
        """The moment of the first deadline, None if none is set."""
        return min(self._moments.values(), default=None)

    def turn(self, timeout_seconds: float | None = None) -> None:
        """Handle the events at hand, waiting at most so long for the first, then the deadlines that have passed."""
        if self._moments:
            left = max(0.0, min(self._moments.values()) - time.monotonic())
            timeout_seconds = left if timeout_seconds is None else min(left, timeout_seconds)
        if timeout_seconds is not None and timeout_seconds > _LONGEST_WAIT_SECONDS:
            timeout_seconds = _LONGEST_WAIT_SECONDS
        files = [(fd, events) for fd, events in self._files.items() if events] if self._files else None
        self._new.clear()
        ready = self._epoll.poll(0 if files else timeout_seconds, _EVENTS_PER_TURN)
        if files:
            ready += files
        if self._begin is not None:
            self._begin()
        for fd, events in ready:
            callback = self._callbacks.get(fd)
            # One before may have closed the descriptor, and its number may be another one's by now.
            if callback is not None and fd not in self._new:
                callback(events)
        if self._moments and min(self._moments.values()) <= (now := time.monotonic()):
            self._meet_deadlines(now)

    def _meet_deadlines(self, now: float) -> None:
        for deadline in sorted(self._moments, key=self._moments.__getitem__):
            # One before may have cleared it, or set it anew.
            if self._moments.get(deadline, now + 1) <= now:
                del self._moments[deadline]
                deadline.callback()


class Deadline:
    """A moment at which a Loop calls `callback`, once; it can be set again and again."""

    def __init__(self, moments: dict[Deadline, float], callback: Callable[[], object]) -> None:
        self.callback = callback
        self._moments = moments

    @property
    def moment(self) -> float | None:
        """When it is, None while it is not set."""
        return self._moments.get(self)

    def set(self, moment: float) -> None:
        """Have it at this moment, and at no other."""
        self._moments[self] = moment

    def clear(self) -> None:
        """Have it at no moment."""
        self._moments.pop(self, None)


class Interest:
    """
    Descriptors of a loop that are waited for while there is something to do with them, by what is known before a turn.

    `handle` is called with a descriptor and its events.
    """

    def __init__(self, loop: Loop, handle: Callable[[int, int], object]) -> None:
        self._loop = loop
        self._handle = handle
        self._events: dict[int, int] = {}

    def set(self, events: Mapping[int, int]) -> None:
        """Wait for these events by descriptor, and for no others; before one of them is closed, for none."""
        for fd in self._events.keys() - events.keys():
            self._loop.unwatch(fd)
        for fd, wanted in events.items():
            if fd not in self._events:
                self._loop.watch(fd, partial(self._handle, fd), wanted)
            elif wanted != self._events[fd]:
                self._loop.change(fd, wanted)
        self._events = dict(events)


class Wait:
    """
    A wait for descriptors that is made again and again; `interest` has the events of poll(2) to wait for.

    POLLHUP, POLLERR and POLLNVAL are told whatever is asked for.
    """

    def __init__(self, interest: Mapping[int, int]) -> None:
        self._poller = select.poll()
        for fd, events in interest.items():
            self._poller.register(fd, events)

    def ready(self, timeout_seconds: float | None = None) -> list[tuple[int, int]]:
        """Return the descriptors that are ready, with their events, as soon as one is or after so long."""
        if not timeout_seconds:
            return self._poller.poll(timeout_seconds)
        # Which rounds up: a millisecond too soon is a turn for nothing.
        return self._poller.poll(1000 * max(0.0, min(timeout_seconds, _LONGEST_WAIT_SECONDS)))


def wait_events(interest: Mapping[int, int], timeout_seconds: float | None = None) -> dict[int, int]:
    """Make one Wait, and return the descriptors that are ready with their events."""
    return dict(Wait(interest).ready(timeout_seconds))


def wait_readable(fds: Iterable[int], timeout_seconds: float | None = None) -> set[int]:
    """Return those that can be read or are at their end, as soon as one is or after so long."""
    return set(wait_events(dict.fromkeys(fds, select.POLLIN), timeout_seconds))
