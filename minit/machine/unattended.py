"""
Updates without a person: the machine's helper looks for updates at a server, and takes those of apps.

An app with the socket's directory as a volume may send the bytes of an update there, on a stream. The answer is a line
of JSON. An app can bring only updates of the owners of signing keys, and no older version.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from minit.base import jsontext
from minit.base.errors import MinitError, UpdateError, describe
from minit.base.progress import silent
from minit.linux.forks import UPDATER, fork
from minit.linux.stdio import complain_at_once
from minit.machine.requests import request_ending
from minit.machine.update import Installed, NothingNewer, install_from
from minit.machine.updatesource import Read, open_source
from minit.manifest.machineconfig import REBOOT, Update
from minit.podfiles import paths

# By then there may be a network.
_FIRST_CHECK_SECONDS = 60
_ANSWER_SECONDS = 60.0
# A longer update is given up, so that no slow app keeps others away.
_LONGEST_SECONDS = 3600
_BACKLOG = 4
_READ_BYTES = 1 << 16
_LOWEST_PRIORITY = 19
_SOCKET = f"{paths.MACHINE_UPDATES}/socket"


class Updates:
    """All updates; `turn` is called when a descriptor of `filenos` is readable, and at `deadline`."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._listener = _listen() if update.socket else None
        # Only one updater at a time: memory is short, and there is a single slot.
        self._updater: int | None = None
        self._was_check = False
        self._next_check: float | None = None
        if update.url is not None:
            self._next_check = time.monotonic() + min(update.check_seconds, _FIRST_CHECK_SECONDS)

    @property
    def deadline(self) -> float | None:
        """The monotonic time of the next work, None without any."""
        return self._next_check if self._updater is None else None

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        if self._updater is not None:
            return [self._updater]
        return [] if self._listener is None else [self._listener.fileno()]

    def turn(self) -> None:
        """Do the due work: see the end of an update, begin another."""
        if self._updater is not None:
            ended = os.waitid(os.P_PIDFD, self._updater, os.WEXITED | os.WNOHANG)
            if ended is None:
                return
            if ended.si_code != os.CLD_EXITED:
                is_late = ended.si_status == signal.SIGALRM
                reason = f"not done after {_LONGEST_SECONDS} s" if is_late else f"killed by signal {ended.si_status}"
                complain_at_once(f"minit: update: {reason}")
            os.close(self._updater)
            self._updater = None
        is_due = self._next_check is not None and time.monotonic() >= self._next_check
        # By turns: neither a slow server nor an app with many updates keeps the other away.
        client = self._accept() if self._was_check or not is_due else None
        self._was_check = client is None
        if client is not None:
            with client:
                self._begin(client)
        elif is_due:
            self._next_check = time.monotonic() + self._update.check_seconds
            self._begin(None)

    def _accept(self) -> socket.socket | None:
        if self._listener is None:
            return None
        try:
            return self._listener.accept()[0]
        except OSError:
            return None  # nobody is there, or not any more

    def _begin(self, client: socket.socket | None) -> None:
        try:
            pid = fork(
                UPDATER,
                lambda: _check(self._update) if client is None else _answer(client, self._update),
                {"client": None if client is None else client.fileno()},
                tell=lambda error: complain_at_once(f"minit: update: {describe(error)}"),
            )
            self._updater = os.pidfd_open(pid)
        except OSError as error:
            complain_at_once(f"minit: update: {describe(error)}")


def _listen() -> socket.socket | None:
    """Make the socket in its directory, which an earlier helper may have made."""
    try:
        os.makedirs(paths.MACHINE_UPDATES, exist_ok=True)
        if os.path.lexists(_SOCKET):
            os.unlink(_SOCKET)
        listener = socket.socket(socket.AF_UNIX)
        # Any user with the directory as a volume may connect. A later change of mode might hit another file: such an
        # app can put a link there.
        before = os.umask(0o111)
        try:
            listener.bind(_SOCKET)
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        complain_at_once(f"minit: update.socket: {describe(error)}")
        return None
    return listener


def _check(update: Update) -> None:
    """Look whether the server has another version, and install it."""
    assert update.url is not None
    _give_way()
    with open_source(update.url) as read:
        try:
            done = _install(read, update.url)
        except NothingNewer:
            return
    _tell(done)
    if update.reboot:
        _restart()


def _answer(client: socket.socket, update: Update) -> None:
    """Install an app's update, and tell the app the outcome."""
    _give_way()
    client.settimeout(_ANSWER_SECONDS)
    place = f"{_SOCKET}: an app's update"
    try:
        done = _install(lambda size_bytes: _receive(client, size_bytes, place), place)
    except MinitError as error:
        complain_at_once(f"minit: update: {describe(error)}")
        _send(client, {"error": describe(error)})
        return
    _tell(done)
    _send(client, {"version": done.version, "slot": done.slot})
    if update.reboot:
        _restart()


def _restart() -> None:
    """Have PID 1 stop the apps and start the machine again."""
    request_ending(REBOOT)


def _give_way() -> None:
    """Let the apps go first, and set a time limit, before any read: the sender may be very slow."""
    os.nice(_LOWEST_PRIORITY)
    signal.alarm(_LONGEST_SECONDS)


def _install(read: Read, source: str) -> Installed:
    return install_from(read, source, silent, allow_downgrade=False, by_hand=False)


def _receive(client: socket.socket, size_bytes: int, place: str) -> bytes:
    try:
        return client.recv(size_bytes)
    except OSError as error:
        raise UpdateError(f"{place}: {describe(error)}") from error


def _send(client: socket.socket, answer: object) -> None:
    try:
        client.sendall(jsontext.dump(answer) + b"\n")
        client.shutdown(socket.SHUT_WR)
        # The app may still be sending bytes that nobody reads, which would destroy the answer.
        until = time.monotonic() + _ANSWER_SECONDS
        while client.recv(_READ_BYTES) and time.monotonic() < until:
            pass
    except OSError:
        pass  # it does not want to know


def _tell(done: Installed) -> None:
    complain_at_once(f"minit: update: version {done.version} is in slot {done.slot}")
