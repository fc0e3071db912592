"""
The log of a machine: that of the kernel, in which minit writes its lines as well, and a copy of it in bounded files.

The kernel's Documentation/ABI/testing/dev-kmsg is the authority. Writing there waits for nobody, and what is written is
kept though the machine's helper, which makes the copy, should die.
"""

from __future__ import annotations

import os
import time

from minit import paths
from minit.boundedlog import BoundedLog
from minit.reaper.record import write_file
from minit.stdio import record_complaints

FILE_BYTES = 1 << 18
"""Of each of the two files."""

_DEVICE = "/dev/kmsg"
# Without "on" the kernel takes ten lines in five seconds, and a boot that goes wrong has more to say.
_LIMIT = "/proc/sys/kernel/printk_devkmsg"
# Of daemons, for debugging: the console has had the line from minit itself.
_PRIORITY = b"<31>"
# The kernel refuses longer ones.
_LINE_BYTES = 900
_RECORD_BYTES = 8192
# A kernel that does not stop must not keep the helper from its duties.
_RECORDS_AT_ONCE = 1000
_LOST = b"minit: messages were lost\n"


class Recorder:
    """Writes the lines of this process, and not of those that it forks, into the kernel's log."""

    def __init__(self) -> None:
        """OSError if there is no such log, as in a container."""
        self.fd = os.open(_DEVICE, os.O_WRONLY | os.O_CLOEXEC)
        self._pid = os.getpid()
        try:
            write_file(_LIMIT, b"on")
        except OSError:
            pass  # the kernel was told otherwise on its command line

    def write(self, line: str) -> None:
        """Write a line; one that cannot be written is lost, for the console has it."""
        if os.getpid() != self._pid:
            return
        try:
            os.write(self.fd, _PRIORITY + line.encode(errors="backslashreplace")[:_LINE_BYTES])
        except OSError:
            pass


def start_recording() -> Recorder | None:
    """Have what this process says on the console in the kernel's log as well, None if there is no such log."""
    try:
        recorder = Recorder()
    except OSError:
        return None
    record_complaints(recorder.write)
    return recorder


class KernelLog:
    """Copies the kernel's log, from its beginning on or from where an earlier helper stopped."""

    def __init__(self, device: str = _DEVICE) -> None:
        """OSError if there is no such log, or it is not for us."""
        self._fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.makedirs(os.path.dirname(paths.MACHINE_LOG), exist_ok=True)
        self._file = BoundedLog(paths.MACHINE_LOG, FILE_BYTES)
        self._last = _last_time(paths.MACHINE_LOG)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._fd

    def copy(self) -> None:
        """Append what the kernel has said since."""
        lines = []
        for _ in range(_RECORDS_AT_ONCE):
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # it was overwritten before it was read
                lines.append(_LOST)
                continue
            moment, text = parse_record(record)
            if moment > self._last:
                lines.append(b"%12.6f %s\n" % (moment, text))
        try:
            self._file.append(b"".join(lines))
        except OSError:
            pass  # there is no space, and the kernel's own copy is as good


def parse_record(record: bytes) -> tuple[float, bytes]:
    """Return when a record of /dev/kmsg was written, in seconds since the boot, and its text."""
    head, _, text = record.partition(b";")
    # The lines after the first one are attributes.
    return int(head.split(b",")[2]) / 10**6, text.partition(b"\n")[0]


def _last_time(path: str) -> float:
    """Return the time of the last line of a log, -1 if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1.0
    try:
        data = os.read(fd, FILE_BYTES)
    finally:
        os.close(fd)
    last = -1.0
    # An app may have the log as a volume, and write times there that never come.
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for line in data.splitlines():
        try:
            moment = float(line.split()[0])
        except (ValueError, IndexError):
            continue  # messages were lost, or it is an app's
        if moment <= now:
            last = max(last, moment)
    return last
