"""
The helpers of an added app: processes of the host left behind by `app/add`.

Each has the other end of a socket, as standard error too: PID 1 passes on the words. The kernel kills a helper when PID
1 closes one end of another pipe, or is gone. The pidfd is for `app/rm`, which waits for the end; PID 1 can neither see
nor signal a helper.
"""

from __future__ import annotations

import os
from contextlib import suppress

from minit.base.carried import Carried, Descriptor
from minit.linux.messages import Socket, send_message
from minit.linux.ownprogram import offer_image
from minit.linux.stdio import complain_at_once

DEVICES, HEALTH = "devices", "health"
_LINE_BYTES = 4096
_DEATHS = {
    DEVICES: "devices do not follow those of the host any more",
    HEALTH: "its health is not checked any more",
}


class AppHelper(Carried):
    """A helper of the app `app`, living by the pipe `life`; the object owns all descriptors."""

    link: Socket
    pidfd: Descriptor
    kind: str
    _life: Descriptor
    _app: str

    def __init__(self, app: str, kind: str, *, socket: int, pidfd: int, life: int) -> None:
        self.link = Socket(fileno=socket)
        self.pidfd = pidfd
        self._life = life
        self.kind = kind
        self._app = app
        # PID 1 waits for nobody.
        self.link.setblocking(False)

    def read(self) -> bool:
        """Pass on words of the helper; False, with a line about the loss, after a death."""
        try:
            text = self.link.recv(_LINE_BYTES)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            text = b""
        if text:
            for line in text.decode("utf-8", "backslashreplace").rstrip("\n").split("\n"):
                complain_at_once(line)
            return True
        what = _DEATHS.get(self.kind, f"{self.kind}: nobody does it any more")
        complain_at_once(f'stage1: warning: app "{self._app}": {what}: the process that did it died')
        return False

    def descriptors(self) -> tuple[int, ...]:
        """Return all descriptors."""
        return self.link.fileno(), self.pidfd, self._life

    def tell(self) -> None:
        """Have a helper for health look at the present state of the app."""
        if self.kind == HEALTH:
            with suppress(OSError):  # it has not read the last such message, or is dead
                send_message(self.link, {"look": True})

    def upgrade(self, image: int) -> None:
        """Have the helper execute the program in a mount of another image; a dead helper is told elsewhere."""
        with suppress(OSError):
            offer_image(self.link, image)

    def close(self) -> None:
        """Let go of the helper, which then ends."""
        self.link.close()
        os.close(self.pidfd)
        os.close(self._life)
