"""
Waiting: the event loop, by epoll(7), and the single wait for a few descriptors, by poll(2).

Times are in seconds, None for no limit; moments are of the monotonic clock. A wait lasts a day at most, since the
kernel's milliseconds end after 24 days.
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
    Calls the callbacks of ready descriptors and of passed deadlines.

    `begin` is called in every turn, after the wait and before anything else.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        self._epoll = select.epoll()
        self._begin = begin
        self._callbacks: dict[int, Callable[[int], object]] = {}
        # Files that epoll(7) refuses, and that poll(2) always reports as ready.
        self._files: dict[int, int] = {}
        # Descriptors watched since the last wait: no event of that wait belongs to them.
        self._new: set[int] = set()
        self._moments: dict[Deadline, float] = {}

    def __contains__(self, fd: object) -> bool:
        return fd in self._callbacks

    def __len__(self) -> int:
        return len(self._callbacks)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `turn` has events to handle; deadlines do not show."""
        return self._epoll.fileno()

    def watch(self, fd: int, callback: Callable[[int], object], events: int = select.EPOLLIN) -> None:
        """
        Have `callback` called with the events of `fd`, until `unwatch`.

        EPOLLHUP and EPOLLERR are always reported. A regular file always has all requested events.
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
        """Forget `fd`, before its close; nothing happens for an unwatched descriptor."""
        if self._callbacks.pop(fd, None) is not None and self._files.pop(fd, None) is None:
            self._epoll.unregister(fd)

    def deadline(self, callback: Callable[[], object]) -> Deadline:
        """Return an unset deadline, at which `callback` is called."""
        return Deadline(self._moments, callback)

    @property
    def next_deadline(self) -> float | None:
        """The moment of the first deadline, None if none is set."""
        return min(self._moments.values(), default=None)

    def turn(self, timeout_seconds: float | None = None) -> None:
        """Handle present events, after a wait of at most so many seconds for the first, then passed deadlines."""
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
            # An earlier callback may have closed the descriptor, and another file may have the number by now.
            if callback is not None and fd not in self._new:
                callback(events)
        if self._moments and min(self._moments.values()) <= (now := time.monotonic()):
            self._meet_deadlines(now)

    def _meet_deadlines(self, now: float) -> None:
        for deadline in sorted(self._moments, key=self._moments.__getitem__):
            # An earlier callback may have cleared the deadline, or set it anew.
            if self._moments.get(deadline, now + 1) <= now:
                del self._moments[deadline]
                deadline.callback()


class Deadline:
    """A moment at which a Loop calls `callback`, once for each time the deadline is set."""

    def __init__(self, moments: dict[Deadline, float], callback: Callable[[], object]) -> None:
        self.callback = callback
        self._moments = moments

    @property
    def moment(self) -> float | None:
        """The moment, None while unset."""
        return self._moments.get(self)

    def set(self, moment: float) -> None:
        """Set the deadline to this moment alone."""
        self._moments[self] = moment

    def clear(self) -> None:
        """Unset the deadline."""
        self._moments.pop(self, None)


class Interest:
    """
    Descriptors of a loop that are watched only as long as needed, as known before each turn.

    `handle` is called with a descriptor and its events.
    """

    def __init__(self, loop: Loop, handle: Callable[[int, int], object]) -> None:
        self._loop = loop
        self._handle = handle
        self._events: dict[int, int] = {}

    def set(self, events: Mapping[int, int]) -> None:
        """Wait for these events by descriptor, and for no others; leave a descriptor out before its close."""
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
    A repeatable wait for descriptors; `interest` has the events of poll(2) for each descriptor.

    POLLHUP, POLLERR and POLLNVAL are always reported.
    """

    def __init__(self, interest: Mapping[int, int]) -> None:
        self._poller = select.poll()
        for fd, events in interest.items():
            self._poller.register(fd, events)

    def ready(self, timeout_seconds: float | None = None) -> list[tuple[int, int]]:
        """Return the ready descriptors with their events, as soon as one is ready or after so many seconds."""
        if not timeout_seconds:
            return self._poller.poll(timeout_seconds)
        # Rounded up: a millisecond too soon is a useless turn.
        return self._poller.poll(1000 * max(0.0, min(timeout_seconds, _LONGEST_WAIT_SECONDS)))


def wait_events(interest: Mapping[int, int], timeout_seconds: float | None = None) -> dict[int, int]:
    """Make one Wait, and return the ready descriptors with their events."""
    return dict(Wait(interest).ready(timeout_seconds))


def wait_readable(fds: Iterable[int], timeout_seconds: float | None = None) -> set[int]:
    """Return the descriptors that are readable or at their end, as soon as one is or after so many seconds."""
    return set(wait_events(dict.fromkeys(fds, select.POLLIN), timeout_seconds))
