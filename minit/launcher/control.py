"""The `control` entrypoint's work: requests from standard input to the supervisor, its replies to standard output."""

from __future__ import annotations

import os

from minit.base import jsontext
from minit.base.errors import ControlError, ManifestError, NoAnswerError
from minit.launcher.ownimage import image_descriptor
from minit.linux.messages import MAXIMUM_MESSAGE_BYTES
from minit.linux.stdio import write_all
from minit.podfiles.controlmessages import Upgrade
from minit.supervisor.control.ask import exchange

# An interpreter that is not dumped has ten seconds to prove itself.
_UPGRADE_SECONDS = 15.0


def relay_requests() -> None:
    """
    Answer each line of standard input, a request of minit.podfiles.controlmessages, by a line with its reply.

    An impossible request is answered too: `{"ok": false, "error": ...}`, with a true `is_unanswered` if PID 1
    may still carry out the request. The working directory is the pod directory.
    """
    with open(0, "rb", closefd=False) as requests:
        while line := requests.readline(MAXIMUM_MESSAGE_BYTES + 1):
            reply = jsontext.dump(_reply(line)) + b"\n"
            while len(line) > MAXIMUM_MESSAGE_BYTES and not line.endswith(b"\n"):
                line = requests.readline(MAXIMUM_MESSAGE_BYTES + 1)
            write_all(1, reply)


def _reply(line: bytes) -> dict[str, object]:
    try:
        if len(line) > MAXIMUM_MESSAGE_BYTES:
            raise ControlError(f"request: expected at most {MAXIMUM_MESSAGE_BYTES} bytes")
        request = jsontext.parse(line, "request")
        if not isinstance(request, dict):
            raise ControlError("request: expected an object")
        reply, descriptors = _upgrade(request) if request.get("op") == Upgrade.op else exchange(request)
        for fd in descriptors:
            os.close(fd)
        if reply.get("ok") is not True:
            raise ControlError(f"supervisor of this pod: {reply.get('error')}")
    except NoAnswerError as error:
        return {"ok": False, "error": str(error), "is_unanswered": True}
    except (ControlError, ManifestError) as error:
        return {"ok": False, "error": str(error)}
    return reply


def _upgrade(request: dict[str, object]) -> tuple[dict[str, object], list[int]]:
    """Have PID 1 go on in the program of the image of this program."""
    image = image_descriptor()
    return exchange(request, _UPGRADE_SECONDS, () if image is None else (image,))
