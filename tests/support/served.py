"""The attachable streams of an app without a pod: made as PID 1 makes them, served by forked sidecars."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minit.iottymux.logfile import Log
from minit.iottymux.mux import PREDECESSOR, SUPERVISOR
from minit.iottymux.sidecar import LEAVE, SIGNALS, run_sidecar
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, socket_pair
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.process import ProcessPlan
from minit.plan.streams import StreamsPlan
from minit.podfiles import paths
from minit.supervisor.output.streams import Attachable
from tests.support.attached import Session, connect
from tests.support.sidecarfilter import sidecar_filter


def fork_sidecar() -> int:
    """Fork as the spawner does, and return the pid, 0 in the child."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def die_in_next_log_write(torn: bool) -> None:
    """Have this process, a sidecar, end like a killed sidecar once output is in the log, `torn` only the first half."""
    write = Log.write

    def write_and_die(self: Log, stream: str, data: bytes, note_time: Callable[[int], object]) -> None:
        write(self, stream, data[: len(data) // 2] if torn else data, note_time)
        os._exit(9)

    Log.write = write_and_die  # type: ignore[method-assign, assignment]


class Served:
    """
    The streams of an app with these modes, below `directory`, and the sidecars that serve them.

    `app` are the app's ends: `stdin`, `stdout`, `stderr` and `tty`. `limits` are those of its log.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, **modes: str) -> None:
        monkeypatch.setattr(paths, "STAGE1_IOTTYMUX", str(directory))
        none: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), "null")
        self.directory = directory / "web"
        self.attachable = Attachable("web")
        self.app = self.attachable.open(
            AppSpec(
                name="web",
                process=ProcessPlan(candidates=("/bin/app",)),
                confinement=Confinement(),
                streams=StreamsPlan(**{**none, **modes}),
            )
        )
        self.limits = (0, 1)
        self.sidecar: int | None = None
        self._feeders: list[int] = []

    def start(self, *, renewed: bool = False, prepare: Callable[[], object] = lambda: None) -> int:
        """Fork a sidecar and return its pid."""
        theirs = self.connect_sidecar()
        descriptors = {**self.attachable.held, SUPERVISOR: theirs.fileno()}
        if self.attachable.predecessor is not None:
            descriptors[PREDECESSOR] = self.attachable.predecessor.fileno()
        filter = sidecar_filter()
        pid = fork_sidecar()
        if pid == 0:
            try:
                # As the spawner does; what the test has open would count against the limits of the sidecar.
                syscalls.close_all_but([0, 1, 2, *descriptors.values()])
                prepare()
                syscalls.set_no_new_privileges()
                log = Log("web", os.open(self.directory, os.O_RDONLY), *self.limits)
                logged = self.attachable.logged
                run_sidecar("web", 7, [], log, renewed, descriptors, logged, filter=filter)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        theirs.close()
        self.attachable.close_fields("predecessor")
        self.sidecar = pid
        return pid

    def connect_sidecar(self) -> Socket:
        """Return the end of a new link that is a sidecar's."""
        self.attachable.supervisor, theirs = socket_pair()
        self.attachable.supervisor.setblocking(False)
        return theirs

    def kill(self) -> None:
        """Kill the sidecar and act on its last words, as PID 1 does."""
        assert self.sidecar is not None
        os.kill(self.sidecar, signal.SIGKILL)
        os.waitpid(self.sidecar, 0)
        self.forget_sidecar()

    def forget_sidecar(self) -> None:
        """Act on the last words of a dead sidecar, as PID 1 does."""
        self.sidecar = None
        assert self.attachable.supervisor is not None
        self.attachable.hear()
        self.attachable.supervisor.close()
        self.attachable.supervisor = None

    def renew(self) -> None:
        """Kill the sidecar and let another one take over."""
        self.kill()
        self.start(renewed=True)

    def leave(self) -> int:
        """Have the sidecar leave its clients to the next, and return its pid."""
        assert self.sidecar is not None
        assert self.attachable.supervisor is not None
        pid, self.sidecar = self.sidecar, None
        os.kill(pid, LEAVE)
        while self.attachable.hear(is_leaving=True):
            wait_readable([self.attachable.supervisor.fileno()], None)
        assert self.attachable.predecessor is not None
        return pid

    def exchange(self) -> None:
        """Have another sidecar take over from one that leaves in order."""
        pid = self.leave()
        self.start(renewed=True)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0

    def write(self, data: bytes, name: str = "stdout") -> None:
        """Write all of the data as the app."""
        while data:
            data = data[os.write(self.app[name], data) :]

    def feed(self, data: bytes, name: str = "stdout") -> int:
        """Write all of the data as the app in a process of its own and return its pid."""
        pid = os.fork()
        if pid == 0:
            # It must not hold the connections that the test means to close.
            end = self.app[name]
            os.closerange(3, end)
            os.closerange(end + 1, 4096)
            self.write(data, name)
            os._exit(0)
        self._feeders.append(pid)
        return pid

    def fed(self, pid: int) -> None:
        """Wait until a process has written all of its data."""
        os.waitpid(pid, 0)
        self._feeders.remove(pid)

    def close_app(self, *names: str) -> None:
        """Close these ends of the app, all of them if none is named."""
        for name in names or [*self.app]:
            os.close(self.app.pop(name))

    def end(self) -> None:
        """Close the app's ends and wait for the sidecar to end well."""
        self.close_app()
        self.wait_end()

    def wait_end(self) -> None:
        """Wait for the sidecar to end well."""
        assert self.sidecar is not None
        _, status = os.waitpid(self.sidecar, 0)
        self.forget_sidecar()
        assert os.waitstatus_to_exitcode(status) == 0

    def connect(self, name: str) -> socket.socket:
        """Return a connection to one of rkt's sockets, `sock-NAME`."""
        return connect(self.directory, f"sock-{name}")

    def session(self, *streams: str, **options: object) -> Session:
        """Return a session, attached if streams are named."""
        return Session(self.directory, streams, **options)

    def status(self) -> dict[str, int]:
        """Return the counters."""
        return self.attachable.counters()

    def close(self) -> None:
        """Let go of everything that is left."""
        if self.sidecar is not None:
            self.kill()
        for pid in [*self._feeders]:
            os.kill(pid, signal.SIGKILL)
            self.fed(pid)
        self.close_app()
        self.attachable.close()
