"""Pulls that several calls wait for: of one image with the same credentials there is one, as long as somebody waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

Fetch = Callable[[str, bytes], Awaitable[str]]
"""Fetches an image by its name with a file of credentials, returns its id, and undoes all when it is cancelled."""


class SharedPulls:
    """The pulls on their way, tasks of `nursery`."""

    def __init__(self, nursery: trio.Nursery, fetch: Fetch) -> None:
        self._nursery = nursery
        self._fetch = fetch
        self._pulls: dict[tuple[str, bytes], _Pull] = {}

    async def pull(self, name: str, authfile: bytes) -> str:
        """Return the id of an image when it is there; the pull ends with the last call that waits for it."""
        key = (name, authfile)
        pull = self._pulls.get(key)
        if pull is None:
            pull = self._pulls[key] = _Pull()
            self._nursery.start_soon(self._run, key, pull)
        pull.callers += 1
        try:
            await pull.ended.wait()
        finally:
            pull.callers -= 1
            if not pull.callers:
                self._forget(key, pull)  # who comes while it is being undone begins anew
                pull.scope.cancel()
        if pull.error is not None:
            raise pull.error
        return pull.image_id

    async def _run(self, key: tuple[str, bytes], pull: _Pull) -> None:
        with pull.scope:
            try:
                pull.image_id = await self._fetch(*key)
            except Exception as error:
                pull.error = error  # for those who wait
            self._forget(key, pull)
            pull.ended.set()

    def _forget(self, key: tuple[str, bytes], pull: _Pull) -> None:
        if self._pulls.get(key) is pull:
            del self._pulls[key]


class _Pull:
    """A pull on its way, the number of its callers, and what it came to."""

    def __init__(self) -> None:
        self.callers = 0
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self.image_id = ""
        self.error: Exception | None = None
