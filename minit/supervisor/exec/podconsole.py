"""The console of a pod: a pty of its own, whose other end the launcher relays to the caller's terminal."""

from __future__ import annotations

import fcntl
import os
import termios

from minit.linux import syscalls
from minit.linux.terminal import CallerTerminal
from minit.plan.root.mountoperations import CONSOLE

# Of the pod's own devpts: /dev/ptmx of another place would make a pty there.
PTMX = "/dev/pts/ptmx"
_TIOCGPTPEER = 0x5441
_TIOCSPTLCK = 0x40045431
_OPEN_FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC


def open_console(uid: int, terminal: CallerTerminal) -> tuple[int, int]:
    """Return the master, which does not block, and the slave of a new pty that belongs to `uid`, bound at CONSOLE."""
    master, slave = open_pty(PTMX)
    os.fchown(slave, uid, -1)
    terminal.prepare(slave)
    os.close(os.open(CONSOLE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    tree = syscalls.open_tree(slave, "", syscalls.OPEN_TREE_CLONE)
    syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=CONSOLE)
    os.close(tree)
    return master, slave


def open_pty(ptmx: str) -> tuple[int, int]:
    """Return the master, which does not block, and the slave of a new pty of the devpts that `ptmx` belongs to."""
    master = os.open(ptmx, _OPEN_FLAGS | os.O_NONBLOCK)
    fcntl.ioctl(master, _TIOCSPTLCK, bytes(4))
    return master, open_slave(master)


def open_slave(master: int) -> int:
    """Return the slave of a pty by its master alone, in whatever mount namespace this is (Linux 4.13)."""
    return fcntl.ioctl(master, _TIOCGPTPEER, _OPEN_FLAGS)


def take_console(slave: int) -> None:
    """Make the console the controlling terminal of this session, unless another app of the pod has it."""
    try:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    except PermissionError:
        pass
