"""A helper of a pod: a process of the host at work for the apps, which ends with the parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from minit.base.carried import Carried
from minit.base.errors import LaunchError
from minit.launcher.ownimage import image_descriptor
from minit.linux.forks import Forked, Kept, fork
from minit.linux.messages import Socket, receive_message, socket_pair
from minit.linux.stdio import complain_at_once


class RunningHelper(Carried):
    """The launcher's side of a helper, also of one that another program of the launcher has started."""

    pid: int
    loss: str
    """The consequence of its death, as the beginning of a sentence."""
    _socket: Socket

    def plain(self) -> RunningHelper:
        """Return the helper without what only this program knows."""
        helper = object.__new__(RunningHelper)
        helper.take_over(self)
        return helper

    def fileno(self) -> int:
        """Return a descriptor, readable after the death of the helper."""
        return self._socket.fileno()

    def report_death(self) -> None:
        """Say that nobody does the helper's work any more."""
        complain_at_once(f"stage1: warning: {self.loss} any more: the process that did it died")

    def end(self) -> None:
        """Have the helper gone, with its children."""
        self._socket.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class PodHelper(RunningHelper):
    """
    The launcher's side of a helper; the process exists from the beginning until `end`, or as long as the launcher.

    The process does `work`, and `fail` is told of an error; both get the helper's end of the socket. The process has
    the descriptors `kept`, too. The helper of an
    added app may outlive the parent, see minit.launcher.leftbehind.
    """

    kind = ""
    """For PID 1, of an added app's helper."""

    def __init__(
        self,
        row: Forked,
        work: Callable[[Socket], None],
        fail: Callable[[Socket, BaseException], None],
        **kept: Kept,
    ) -> None:
        self._socket, theirs = socket_pair()
        self.pid = fork(
            row,
            lambda: work(theirs),
            {"socket": theirs.fileno(), "image": image_descriptor(), **kept},
            tell=lambda error: fail(theirs, error),
        )
        theirs.close()

    def wait_settled(self) -> int:
        """
        Wait until a staying helper does without this process; LaunchError for a failure.

        Returns the end of a pipe by which the helper lives from then on; the caller owns the descriptor.
        """
        message, descriptors = receive_message(self._socket)
        if message is None:
            raise LaunchError("it died")
        if "failed" in message:
            raise LaunchError(str(message["failed"]))
        [life] = descriptors
        return life
