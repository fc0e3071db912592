"""An app's ends of what it tells PID 1 by that it is ready: its notification socket, and a descriptor as for s6."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

from minit.base.value import Value
from minit.plan.lifeplan import NOTIFY_SOCKET
from minit.supervisor.root.attachvolumes import attach_tree

_FIRST = 3


class NotifyEnds(Value):
    """
    An app's ends: a detached mount of its socket, at its first start, and the descriptor that it writes to.

    `path` is where the socket is until the app has attached it.
    """

    tree: int | None = None
    path: str = ""
    pipe: int | None = None

    def descriptors(self) -> list[int]:
        """Return those there are."""
        return [fd for fd in (self.tree, self.pipe) if fd is not None]


def attach_socket(ends: NotifyEnds, root: int) -> None:
    """Attach the app's socket inside `root`, and take it away from where it was."""
    if ends.tree is not None:
        attach_tree(ends.tree, root, NOTIFY_SOCKET)
        os.close(ends.tree)
        # Not before: what has no name cannot be attached.
        os.unlink(ends.path)


def place_descriptor(fd: int, number: int, others: Sequence[int]) -> list[int]:
    """
    Move `fd` to `number`, where it survives execve(2), and return where `others` are now.

    `others` are close-on-exec, and may have been in the way.
    """
    moved = [fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, _FIRST) if other == number else other for other in others]
    if fd == number:
        os.set_inheritable(fd, True)
    else:
        os.dup2(fd, number)
    return moved
