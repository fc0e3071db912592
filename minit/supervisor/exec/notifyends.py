"""An app's ends for telling PID 1 that the app is ready: the notification socket, and a descriptor as for s6."""

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
    An app's ends: a detached mount of the socket, at the first start, and the descriptor to write to.

    `path` is the place of the socket until the app has attached the mount.
    """

    tree: int | None = None
    path: str = ""
    pipe: int | None = None

    def descriptors(self) -> list[int]:
        """Return the present descriptors."""
        return [fd for fd in (self.tree, self.pipe) if fd is not None]


def attach_socket(ends: NotifyEnds, root: int) -> None:
    """Attach the app's socket inside `root`, and remove the socket from the old place."""
    if ends.tree is not None:
        attach_tree(ends.tree, root, NOTIFY_SOCKET)
        os.close(ends.tree)
        # Not before: a socket without a name cannot be attached.
        os.unlink(ends.path)


def place_descriptor(fd: int, number: int, others: Sequence[int]) -> list[int]:
    """
    Move `fd` to `number`, where `fd` survives execve(2), and return the new numbers of `others`.

    `others` are close-on-exec, and may have been in the way.
    """
    moved = [fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, _FIRST) if other == number else other for other in others]
    if fd == number:
        os.set_inheritable(fd, True)
    else:
        os.dup2(fd, number)
    return moved
