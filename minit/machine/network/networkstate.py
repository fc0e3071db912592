"""Short texts about the network that outlive a boot, in the machine's state directory: the address of a lease, say."""

from __future__ import annotations

import os

from minit.base.errors import LaunchError, describe
from minit.linux.stdio import complain_at_once
from minit.podfiles.podfile import write_pod_file

_DIRECTORY = "network"
_MAXIMUM_BYTES = 4096


class NetworkState:
    """The texts by their names; nothing is kept without the state directory of the machine."""

    def __init__(self, directory: str | None) -> None:
        self._directory = None if directory is None else os.path.join(directory, _DIRECTORY)

    def read(self, name: str) -> str:
        """Return a text, an empty one if there is none, or none that can be read."""
        if self._directory is None:
            return ""
        try:
            fd = os.open(os.path.join(self._directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.read(fd, _MAXIMUM_BYTES).decode("ascii", "replace").strip()
            finally:
                os.close(fd)
        except OSError:
            return ""

    def write(self, name: str, text: str) -> None:
        """Keep a text, unless it is there already; a failure is a line on the console."""
        if self._directory is None or self.read(name) == text:
            return
        try:
            os.makedirs(self._directory, 0o700, exist_ok=True)
            write_pod_file(os.path.join(self._directory, name), f"{text}\n".encode())
        except (OSError, LaunchError) as error:
            complain_at_once(f"minit: network: {name} is not kept: {describe(error)}")
