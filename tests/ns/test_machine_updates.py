"""minit.machine.unattended: a machine's helper, with apps and servers that keep it busy."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.machine.unattended import Updates
from minit.manifest.machineconfig import Update
from minit.podfiles import paths
from tests.support.forked import succeed_in_child
from tests.support.processes import children_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the socket is at its usual place, in a tmpfs of the test's")

LOWEST_PRIORITY = 19
TIMEOUT_SECONDS = 60.0


def on_a_machine(action: Callable[[], object]) -> None:
    """Do something where nobody else has a socket for updates."""

    def act() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("tmpfs", "/run", "tmpfs", 0)
        action()

    succeed_in_child(act)


def serve() -> tuple[socket.socket, Update]:
    """Return a server that only takes connections, and a configuration with its URL, where a look is due at once."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(TIMEOUT_SECONDS)
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    return server, Update(model="m", version="1", keys=(), url=url, check_seconds=0, socket=True)


def test_turns() -> None:
    """A server that is always due and apps that have always connected come by turns, the server first."""

    def act() -> None:
        server, update = serve()
        with server, ExitStack() as stack:
            updates = Updates(update)
            apps = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
            for app in apps:
                app.connect(f"{paths.MACHINE_UPDATES}/socket")
                app.settimeout(TIMEOUT_SECONDS)
            for app in apps:
                updates.turn()
                server.accept()[0].close()
                wait_readable(updates.filenos(), TIMEOUT_SECONDS)
                updates.turn()
                # This is no machine, and the end of its answer that of the process.
                assert app.recv(1) == b""
                wait_readable(updates.filenos(), TIMEOUT_SECONDS)

    on_a_machine(act)


def test_a_server_that_says_nothing() -> None:
    """Before its first byte the process that asks it gives way to the apps, and has an end."""

    def act() -> None:
        server, update = serve()
        with server:
            Updates(update).turn()
            connection = server.accept()[0]
            [updater] = children_of(os.getpid())
            assert os.getpriority(os.PRIO_PROCESS, updater) == LOWEST_PRIORITY
            connection.close()

    on_a_machine(act)


@pytest.mark.timeout(method="thread")  # by SIGALRM it would have a handler, which the process inherits
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGALRM, "not done after 3600 s"), (signal.SIGKILL, "killed by signal 9")]
)
def test_an_update_that_is_ended(number: int, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One that takes too long, or that somebody kills, is told of."""

    def act() -> None:
        server, update = serve()
        with server:
            updates = Updates(update)
            updates.turn()
            connection = server.accept()[0]
            [updater] = children_of(os.getpid())
            os.kill(updater, number)
            wait_readable(updates.filenos(), TIMEOUT_SECONDS)
            updates.turn()
            connection.close()

    on_a_machine(act)
    assert capfd.readouterr().err.splitlines()[0] == f"minit: update: {reason}"


def test_the_socket_is_for_every_user() -> None:
    """Whoever has its directory may connect; a link in its place is no way to another file."""

    def act() -> None:
        os.makedirs(paths.MACHINE_UPDATES)
        os.symlink("/run/other", f"{paths.MACHINE_UPDATES}/socket")
        updates = Updates(Update(model="m", version="1", keys=(), socket=True))
        state = os.lstat(f"{paths.MACHINE_UPDATES}/socket")
        assert stat.S_ISSOCK(state.st_mode) and stat.S_IMODE(state.st_mode) == 0o666
        assert not os.path.lexists("/run/other")
        assert updates.deadline is None and len(updates.filenos()) == 1

    on_a_machine(act)
