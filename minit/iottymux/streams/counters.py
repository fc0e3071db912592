"""
The counts of an app's sidecar, in a file in memory that outlives it: PID 1 makes and keeps it (memfd_create(2)).

Each number has 64 bits. A sidecar that takes over from a killed one goes on with them.
"""

from __future__ import annotations

import mmap
import os
import struct

from minit.iottymux.logfile import LOG
from minit.iottymux.plainlog import PLAIN_LOG

_NUMBER = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_BYTES = 4096

CLIENTS = "clients"
ROWS = "rows"
COLUMNS = "columns"
BYTES_IN = "bytes_in"
DROPPED_BYTES = "dropped_bytes"
FLUSHES = "flushes"
INTAKE_FROM = "intake-from"
_RING = ("stdout", "stderr", "tty-out")
# The position at which the intake of the terminal begins; and of each output how much has gone into its ring, how much
# was in there then, whether it ever had a client, how many it has, and how much of it is in each log, with the time of
# what is being written there, since 1970.
_FIELDS = (
    CLIENTS,
    ROWS,
    COLUMNS,
    BYTES_IN,
    DROPPED_BYTES,
    FLUSHES,
    INTAKE_FROM,
    *(f"{n}:{x}" for n in _RING for x in ("at", "in", "seen", "peers")),
    *(f"{n}:{log}{x}" for n in _RING for log in (LOG, PLAIN_LOG) for x in ("", ":ns")),
)
OFFSETS = {name: number * _NUMBER.size for number, name in enumerate(_FIELDS)}


def make_counters() -> int:
    """Return the descriptor of a new file, all zero."""
    fd = os.memfd_create("counters", os.MFD_CLOEXEC)
    os.ftruncate(fd, _BYTES)
    return fd


def read_counters(fd: int) -> dict[str, int]:
    """
    Return the numbers as they are now: `clients` that are attached, `rows` and `columns` of the terminal (0 without
    one), `bytes_in` that went to the app's input, `bytes_out` that the app wrote, and `dropped_bytes` that slow clients
    did not get.
    """
    data = os.pread(fd, _BYTES, 0)
    numbers = {name: _number(data, name) for name in (CLIENTS, ROWS, COLUMNS, BYTES_IN, DROPPED_BYTES)}
    return {**numbers, "bytes_out": sum(_number(data, f"{name}:at") for name in _RING)}


def read_flushes(fd: int) -> int:
    """Return a number that grows whenever a client takes something that waited for it."""
    return _number(os.pread(fd, _BYTES, 0), FLUSHES)


def read_intake(fd: int) -> tuple[int, int]:
    """Return the position at which the intake of the terminal begins, and that to which its ring has come."""
    data = os.pread(fd, _BYTES, 0)
    return _number(data, INTAKE_FROM), _number(data, "tty-out:at")


def read_unlogged(fd: int, name: str) -> int:
    """Return how much of an output is in its ring and not in the log."""
    data = os.pread(fd, _BYTES, 0)
    return max(0, _number(data, f"{name}:at") - _number(data, f"{name}:{LOG}"))


def _number(data: bytes, name: str) -> int:
    # A sidecar that was taken over could have cut the file short.
    return int.from_bytes(data[OFFSETS[name] :][: _NUMBER.size], "little")


class Counters:
    """The numbers by name, as the sidecar changes them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, _BYTES)

    def __getitem__(self, name: str) -> int:
        number: int = _NUMBER.unpack_from(self._memory, OFFSETS[name])[0]
        return number

    def __setitem__(self, name: str, number: int) -> None:
        _NUMBER.pack_into(self._memory, OFFSETS[name], number)

    def set_ring(self, name: str, position: int, size_bytes: int) -> None:
        """Note the two numbers about the ring of an output together."""
        _PAIR.pack_into(self._memory, OFFSETS[f"{name}:at"], position, size_bytes)

    def ring(self, name: str) -> tuple[int, int]:
        """Return what `set_ring` noted last."""
        position, size_bytes = _PAIR.unpack_from(self._memory, OFFSETS[f"{name}:at"])
        return position, size_bytes

    def set_logged(self, name: str, log: str, position: int, now_ns: int = 0) -> None:
        """Note how much of an output is in a log, and that more is written there at `now_ns`."""
        _PAIR.pack_into(self._memory, OFFSETS[f"{name}:{log}"], position, now_ns)

    def logged(self, name: str, log: str) -> tuple[int, int]:
        """Return what `set_logged` noted last."""
        position, now_ns = _PAIR.unpack_from(self._memory, OFFSETS[f"{name}:{log}"])
        return position, now_ns

    def is_seen(self, name: str) -> bool:
        """Return whether an output ever had a client."""
        return bool(self[f"{name}:seen"])

    def see(self, name: str) -> bool:
        """Note that an output has a client, and return whether it had one before."""
        seen = self.is_seen(name)
        self[f"{name}:seen"] = 1
        return seen

    def peers(self, name: str) -> int:
        """Return how many clients an output has, or had when the sidecar before was killed."""
        return self[f"{name}:peers"]

    def set_peers(self, name: str, count: int) -> None:
        """Note how many clients an output has."""
        self[f"{name}:peers"] = count

    def read(self) -> dict[str, int]:
        """Return them as `read_counters` does."""
        return read_counters(self._fd)
