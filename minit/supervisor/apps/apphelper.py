"""
The helpers of an app that was added: processes of the host that `app/add` has left behind.

Each has the other end of a socket, as its standard error too: what it says comes out of PID 1. The kernel kills it when
PID 1 closes its end of another pipe, or is gone. Its pidfd is for `app/rm`, which waits for its end; PID 1 can neither
see nor signal it.
"""

from __future__ import annotations

import os

from minit.linux.stdio import complain_at_once

DEVICES, HEALTH = "devices", "health"
_LINE_BYTES = 4096
_DEATHS = {
    DEVICES: "devices do not follow those of the host any more",
    HEALTH: "its health is not checked any more",
}


class AppHelper:
    """A helper of the app `app`, which lives by the pipe `life`; all descriptors are its."""

    def __init__(self, app: str, kind: str, *, socket: int, pidfd: int, life: int) -> None:
        self.socket = socket
        self.pidfd = pidfd
        self._life = life
        self.kind = kind
        self._app = app
        # PID 1 waits for nobody.
        os.set_blocking(socket, False)

    def read(self) -> bool:
        """Pass on what it says; False, which is said too, if it died."""
        try:
            text = os.read(self.socket, _LINE_BYTES)
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
        """Return what it holds."""
        return self.socket, self.pidfd, self._life

    def tell(self) -> None:
        """Have it look what the app does now, if it is one that wants to know."""
        if self.kind == HEALTH:
            try:
                os.write(self.socket, b"look")
            except OSError:
                pass  # it has not read the last such message, or is dead

    def close(self) -> None:
        """Let go of it, which ends it."""
        for fd in self.descriptors():
            os.close(fd)
