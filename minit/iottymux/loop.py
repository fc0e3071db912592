"""The event loop of a sidecar: descriptors and what is called with the events of epoll(7) that they have."""

from __future__ import annotations

import select
from collections.abc import Callable

_EVENTS_PER_TURN = 256


class Loop:
    """Calls what belongs to the descriptors that are ready. EPOLLHUP and EPOLLERR are told whatever is asked for."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}

    def __len__(self) -> int:
        return len(self._callbacks)

    def watch(self, fd: int, callback: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        """Have `callback` called with the events of `fd`, until `unwatch`."""
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a watched descriptor."""
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, before it is closed; nothing happens if it is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def turn(self, timeout_seconds: float | None = None) -> None:
        """Handle the events at hand, waiting at most so long for the first; None for as long as it takes."""
        ready = self._epoll.poll(timeout_seconds, _EVENTS_PER_TURN)
        for fd, events, callback in [(fd, events, self._callbacks.get(fd)) for fd, events in ready]:
            # One before may have closed the descriptor, and its number may be another one's by now.
            if callback is not None and self._callbacks.get(fd) is callback:
                callback(events)
