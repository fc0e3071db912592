"""
The log of a machine: the kernel's log, which has minit's lines too, and a copy in bounded files.

The kernel's Documentation/ABI/testing/dev-kmsg is the authority. A write there never waits, and the kernel keeps the
lines if the machine's helper, which makes the copy, dies.

A kernel that panicked keeps the end of its log in memory that survives a reset: pstore
(Documentation/ABI/testing/pstore). A record is a file. A panic has several records; the first has the end of the log.
"""

from __future__ import annotations

import os
import re
import time

from minit.base.carried import Carried, Descriptor
from minit.base.errors import describe
from minit.base.utctime import utc_text
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.stdio import complain_at_once, record_complaints
from minit.machine.requests import is_container
from minit.plan.root.mountoperations import MountFilesystem
from minit.podfiles import paths
from minit.podfiles.boundedfile import BoundedLog
from minit.reaper.record import write_durably, write_file
from minit.supervisor.root.applymounts import new_filesystem

FILE_BYTES = 1 << 18
"""Of each of the two files."""

_DEVICE = "/dev/kmsg"
# Without "on" the kernel takes ten lines in five seconds, too few for a failing boot.
_LIMIT = "/proc/sys/kernel/printk_devkmsg"
# Of daemons, for debugging: the console has had the line from minit itself.
_PRIORITY = b"<31>"
# The kernel refuses longer lines.
_LINE_BYTES = 900
_RECORD_BYTES = 8192
# An endless log must not keep the helper from its duties.
_RECORDS_AT_ONCE = 1000
_LOST = b"minit: messages were lost\n"
_PSTORE = "/sys/fs/pstore"
_OF_POD = f"{paths.MACHINE_POD}/{paths.POD_STAGE1_ROOTFS}{paths.STAGE1_PANIC}"
_HEAD = re.compile(rb"(\w+)#\d+ Part(\d+)\n")
_ANY_PRIORITY = re.compile(rb"^<\d+>", re.MULTILINE)
_REASON = re.compile(r"(?:Kernel panic - not syncing|Oops|BUG): ?[^\n]*")
_PANIC_BYTES = 1 << 17
_MOST_BYTES = 1 << 18
# The limit for records that may not be removed, since nothing else outlives a boot.
_MOST_RECORDS = 16


class Recorder(Carried):
    """Writes the lines of this process, but not of its forks, into the kernel's log."""

    fd: Descriptor
    _pid: int

    def __init__(self) -> None:
        """OSError if there is no such log, as in a container."""
        self.fd = os.open(_DEVICE, os.O_WRONLY | os.O_CLOEXEC)
        self._pid = os.getpid()
        try:
            write_file(_LIMIT, b"on")
        except OSError:
            pass  # the kernel was told otherwise on its command line

    def write(self, line: str) -> None:
        """Write a line; a failure loses the line, which is on the console."""
        if os.getpid() != self._pid:
            return
        try:
            os.write(self.fd, _PRIORITY + line.encode(errors="backslashreplace")[:_LINE_BYTES])
        except OSError:
            pass


def start_recording() -> Recorder | None:
    """Copy this process's console lines to the kernel's log; return the recorder, None if there is no such log."""
    try:
        recorder = Recorder()
    except OSError:
        return None
    record_complaints(recorder.write)
    return recorder


class KernelLog:
    """Copies the kernel's log, from its beginning on or from where an earlier helper stopped."""

    def __init__(self, device: str = _DEVICE) -> None:
        """OSError if there is no such log, or no permission."""
        self._fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.makedirs(os.path.dirname(paths.MACHINE_LOG), exist_ok=True)
        self._file = BoundedLog(paths.MACHINE_LOG, FILE_BYTES)
        self._last = _last_time(paths.MACHINE_LOG)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._fd

    def copy(self) -> None:
        """Append the kernel's new records."""
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
    """Return the time of a record of /dev/kmsg, in seconds since the boot, and its text."""
    head, _, text = record.partition(b";")
    # The lines after the first are attributes.
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
    # An app may have the log as a volume, and write impossible times there.
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for line in data.splitlines():
        try:
            moment = float(line.split()[0])
        except (ValueError, IndexError):
            continue  # messages were lost, or it is an app's
        if moment <= now:
            last = max(last, moment)
    return last


class _Record(Value):
    """A file of pstore: its time, its part of the log, and its text."""

    path: str
    seconds: float
    kind: str
    part: int
    text: bytes


def keep_panics(*, is_kept: bool) -> None:
    """
    Save the kernel's records of panics, for `minit diagnose` and for apps, and report each in a line.

    Records are removed if the saved files outlive this boot (`is_kept`), else only the oldest of very many.
    """
    # The store is the machine's, even where this machine is only a container.
    if is_container() or not os.path.isdir(_PSTORE):
        return
    try:
        tree = new_filesystem(MountFilesystem(fstype="pstore", target=_PSTORE))
        try:
            syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=_PSTORE)
        finally:
            os.close(tree)
        for line in copy_panics(_PSTORE, (paths.MACHINE_PANIC, _OF_POD), is_kept=is_kept):
            complain_at_once(f"minit: {line}")
    except OSError as error:
        complain_at_once(f"minit: pstore: {describe(error)}")


def copy_panics(directory: str, copies: tuple[str, ...], *, is_kept: bool) -> list[str]:
    """Write all records to each of the `copies`, remove records that may go, and return a line for each panic."""
    records = sorted(_read_records(directory), key=lambda record: (record.seconds, record.path))
    if not records:
        return []
    panics: list[list[_Record]] = []
    for record in records:
        # The parts of a panic count from 1 on.
        if not panics or record.part <= panics[-1][-1].part or record.kind != panics[-1][-1].kind:
            panics.append([])
        panics[-1].append(record)
    lines, texts = [], []
    for panic in panics:
        text = b"".join(record.text for record in reversed(panic))
        reason = _REASON.search(text.decode(errors="replace"))
        why = reason[0] if reason else "for no known reason"
        lines.append(f"{panic[0].kind} at {utc_text(panic[0].seconds)}: {why}")
        texts.append(lines[-1].encode() + b"\n" + text.rstrip(b"\n") + b"\n")
    for copy in copies:
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        write_durably(copy, b"".join(texts)[-_MOST_BYTES:])
    for record in records if is_kept else records[:-_MOST_RECORDS]:
        os.unlink(record.path)
    return lines


def _read_records(directory: str) -> list[_Record]:
    found = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with open(path, "rb") as file:
            text = file.read(_PANIC_BYTES)
        head = _HEAD.match(text)
        kind, part = (head[1].decode().lower(), int(head[2])) if head else (name, 1)
        text = _ANY_PRIORITY.sub(b"", text[head.end() :] if head else text)
        found.append(_Record(path=path, seconds=os.stat(path).st_mtime, kind=kind, part=part, text=text))
    return found
