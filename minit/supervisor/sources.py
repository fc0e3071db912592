"""The sources of events of PID 1, gathered in one epoll descriptor that trio can wait for (epoll(7))."""

from __future__ import annotations

import select
from collections.abc import Callable

_EVENTS_PER_TURN = 64


class Sources:
    """Descriptors and what to call when one of them is ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def __contains__(self, fd: object) -> bool:
        return fd in self._callbacks

    @property
    def event_fd(self) -> int:
        """The descriptor that is readable when `handle` has something to do."""
        return self._epoll.fileno()

    def watch(self, fd: int, callback: Callable[[], None], event: int = select.EPOLLIN) -> None:
        """Have `callback` called whenever `fd` is ready, until `unwatch`."""
        self._epoll.register(fd, event)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, before it is closed."""
        del self._callbacks[fd]
        self._epoll.unregister(fd)

    def handle(self, timeout_seconds: float, begin: Callable[[], object] = lambda: None) -> None:
        """Call `begin`, then what belongs to the descriptors that are ready, waiting at most so long for the first."""
        ready = [(fd, self._callbacks.get(fd)) for fd, _ in self._epoll.poll(timeout_seconds, _EVENTS_PER_TURN)]
        begin()
        for fd, callback in ready:
            # One before may have closed the descriptor, and its number may be another source's by now.
            if callback is not None and self._callbacks.get(fd) is callback:
                callback()
