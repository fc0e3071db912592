"""A helper of a pod: a process of the host at work for the apps, which ends with the parent."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from minit.base.carried import Carried
from minit.base.errors import LaunchError
from minit.launcher.ownimage import image_descriptor
from minit.linux.forks import Forked, Kept, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, memory_file, read_memory_file, receive_message, send_message, socket_pair
from minit.linux.stdio import complain_at_once

# Words to a helper of another version of minit: that it hands its work over, and that it goes on all the same.
LEAVE, STAY = b"leave", b"stay"
_BEGIN_SECONDS = 2.0
_WORD_BYTES = 64


class RunningHelper(Carried):
    """The launcher's side of a helper, also of one that another program of the launcher has started."""

    pid: int
    kind: str
    loss: str
    """The consequence of its death, as the beginning of a sentence."""
    _socket: Socket

    def plain(self) -> RunningHelper:
        """Return the helper without what only this program knows."""
        helper = object.__new__(RunningHelper)
        helper.take_over(self)
        return helper

    def tell(self, word: bytes) -> None:
        """Tell the helper to LEAVE, which the helper answers by its state in its own time, or to STAY."""
        with suppress(OSError):
            self._socket.send(word, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def read_state(self) -> bytes | None:
        """Return the state of a helper that has handed its work over; None if it has died."""
        message, descriptors = receive_message(self._socket)
        if message is None or not descriptors:
            return None
        [memory] = descriptors
        try:
            return read_memory_file(memory)
        finally:
            os.close(memory)

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

    def wait_begun(self) -> None:
        """Wait until the helper goes on with the work of another; LaunchError, and no helper, for a failure."""
        begins = wait_readable([self.fileno()], _BEGIN_SECONDS) and receive_message(self._socket)[0] is not None
        if not begins:
            self.end()
            raise LaunchError("the helper of the new version does not go on with the work")

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


def hand_work_over(link: Socket, state: bytes) -> bool:
    """
    Give the work of this process, a helper, to a helper of another version, which has the launcher end this process.

    Return whether this process goes on, since the other cannot.
    """
    memory = memory_file("state", state)
    send_message(link, {"state": True}, [memory])
    os.close(memory)
    while (word := link.recv(_WORD_BYTES)) == LEAVE:
        pass
    return word == STAY
