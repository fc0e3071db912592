"""
The words of running apps, ready or about to end, heard by PID 1.

A module beside its one importer, the context, which only puts such parts together.
"""

from __future__ import annotations

from collections.abc import Callable

from minit.linux.loop import Loop
from minit.podfiles.paths import PodEvent
from minit.supervisor.apps.notifysocket import Readiness
from minit.supervisor.apps.podapp import App
from minit.supervisor.journal import Journal


class Listener:
    """
    Hears what one app says, and says what others should know of it.

    `retry` is called when the app sends too many messages, until `resume`; `on_word` after everything that was heard.
    """

    def __init__(
        self,
        app: App,
        readiness: Readiness,
        loop: Loop,
        journal: Journal,
        retry: Callable[[], None],
        on_word: Callable[[App], None],
    ) -> None:
        self._app = app
        self._readiness = readiness
        self._loop = loop
        self._journal = journal
        self._retry = retry
        self._on_word = on_word

    def listen(self) -> None:
        """Hear a new process of the app."""
        self.resume()
        if self._readiness.pipe is not None:
            self._loop.watch(self._readiness.pipe, lambda _: self._hear_pipe())

    def resume(self) -> None:
        """Have messages read, if the app sends any; the socket stays the same when it is started again."""
        socket = self._readiness.socket
        if socket is not None and socket.fileno() not in self._loop:
            self._loop.watch(socket.fileno(), lambda _: self._hear_socket())

    def hear_last_words(self) -> None:
        """Hear what the app said before its end."""
        if self._readiness.socket is not None:
            self._hear_socket()
        if self._readiness.pipe is not None:
            self._readiness.read_pipe()
            self._end_pipe(self._readiness.pipe)
        self._on_word(self._app)

    def stop(self) -> None:
        """Hear nothing any more."""
        for fd in self._readiness.descriptors():
            self._loop.unwatch(fd)

    def _hear_socket(self) -> None:
        app, readiness = self._app, self._readiness
        told, was_stopping = readiness.refused, readiness.is_stopping
        if not readiness.read_socket(app.run.pid if app.run.end is None else None, app.group):
            self._put_off()
        if readiness.refused is not None and told is None:
            # Once: what an app sends must not fill the log.
            self._journal.event(PodEvent.APP_MESSAGE_REFUSED, app=app.name, reason=readiness.refused)
        if readiness.is_stopping and not was_stopping:
            self._journal.event(PodEvent.APP_STOPPING, app=app.name)
        self._on_word(app)

    def _put_off(self) -> None:
        """Read no more messages until it is time to try things again."""
        socket = self._readiness.socket
        if socket is not None and socket.fileno() in self._loop:
            self._loop.unwatch(socket.fileno())
            self._retry()

    def _hear_pipe(self) -> None:
        assert self._readiness.pipe is not None
        if not self._readiness.read_pipe():
            self._end_pipe(self._readiness.pipe)
        self._on_word(self._app)

    def _end_pipe(self, pipe: int) -> None:
        self._loop.unwatch(pipe)
        self._readiness.close_pipe()


class Listeners:
    """The listeners to those of a pod's apps that say anything; `retry` and `on_word` are as for Listener."""

    def __init__(self, loop: Loop, journal: Journal, retry: Callable[[], None], on_word: Callable[[App], None]) -> None:
        self._loop = loop
        self._journal = journal
        self._retry = retry
        self._on_word = on_word
        self._of_apps: dict[str, Listener] = {}

    def listen(self, app: App) -> None:
        """Hear what the present process of an app says of itself, if it does."""
        if app.readiness is None:
            return
        if app.name not in self._of_apps:
            self._of_apps[app.name] = Listener(
                app, app.readiness, self._loop, self._journal, self._retry, self._on_word
            )
        self._of_apps[app.name].listen()

    def hear_last_words(self, app: App) -> None:
        """Hear what an app said before its end."""
        if app.name in self._of_apps:
            self._of_apps[app.name].hear_last_words()

    def resume(self) -> None:
        """Have messages read of those that sent too many."""
        for listener in self._of_apps.values():
            listener.resume()

    def stop(self, app: App) -> None:
        """Hear nothing of an app any more."""
        if app.name in self._of_apps:
            self._of_apps.pop(app.name).stop()
