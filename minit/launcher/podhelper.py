"""A helper of a pod: a process of the host at work for the apps, which ends with the parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from minit.base.carried import Carried, CarriedCodec, Descriptor
from minit.base.errors import LaunchError, describe
from minit.launcher.ownimage import image_descriptor
from minit.launcher.upgradable import Upgradable
from minit.linux.forks import Forked, Kept, fork
from minit.linux.messages import Socket, receive_message, socket_pair
from minit.linux.ownprogram import find_program, offer_image
from minit.linux.stdio import complain_at_once


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

    def upgrade(self, image: int) -> None:
        """Have the helper execute the program in a mount of another image; a dead helper is told elsewhere."""
        with suppress(OSError):
            offer_image(self._socket, image)

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
    the descriptors `kept`, too. The helper of an added app may outlive the parent, see minit.launcher.leftbehind.
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


class HelperWork(Upgradable):
    """
    What a helper knows, and another program of the helper goes on with.

    `link` leads to the launcher, or to PID 1 from a helper left behind, which lives by the pipe `life`. `image` is a
    mount with another version of minit, in which the helper is to go on.
    """

    link: Socket
    life: Descriptor | None
    image: Descriptor | None

    def begin(self, link: Socket, life: int | None = None) -> None:
        """Be the helper, with one end of the socket."""
        super().__init__(find_program(image_descriptor()))
        self.link = link
        self.life = life
        self.image = None

    def hear(self) -> bool:
        """Take a word, and an image that comes along; False if the other end of the socket is gone."""
        try:
            message, descriptors = receive_message(self.link)
        except ValueError as error:
            # There is no room for another descriptor.
            self.refuse(describe(error))
            return True
        for image in descriptors:
            self.close_fields("image")
            self.image = image
        return message is not None

    def go_on(self, codec: CarriedCodec) -> None:
        """Execute the program in the image; a failure is one line, and changes nothing."""
        image, self.image = self.image, None
        assert image is not None
        self.go_on_in(image, codec)
