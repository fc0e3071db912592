"""
The log file of an app: the form of its records, and how sidecars share and rotate the file; and rkt's plain log.

docs/logs.md has the guarantees for readers: a rotated file is complete as soon as it has its new name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from minit.base.errors import describe
from minit.base.utctime import utc_text_ns
from minit.linux.stdio import complain_at_once
from minit.podfiles.hostlogs import open_log, open_parent, rotated_names

# A longer line is logged in parts, tagged P as in the CRI log format. No read from a pipe is larger either: consumption
# in small steps shows PID 1 that a slow reader of the console does read.
LINE_BYTES = 16 * 1024
# More than any line of the log with time and stream.
_TORN_BYTES = LINE_BYTES + 128
# More than the records of the largest write, even of empty lines.
_WRITE_BYTES = 6 << 20
LOG = "log"
_LOG_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

PLAIN_LOG = "plain-log"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Log:
    """
    The log files of an app in `directory`: APP.log, and APP.log.1 and so on, the larger the older.

    There are at most `files` files, each of at most `size_bytes` unless a record is larger; 0 bytes for no limit. With
    `place`, a directory of the host and a path below it, the log is the file there, which only the host rotates.

    Without `waits` a lock that somebody else has is an OSError.
    """

    kind = LOG

    def __init__(
        self,
        app: str,
        directory: int,
        size_bytes: int = 0,
        files: int = 1,
        place: tuple[int, str] | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self._app = app
        self._directory = directory
        self._place = place
        self._top, self._name = place or (directory, f"{app}.log")
        self._size_bytes = size_bytes
        self._files = files
        self._fd: int | None = None
        self._lock: int | None = None
        self._lock_operation = fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB
        self._identity = (0, 0)
        self._end = 0
        self._lost_bytes = 0

    def write(self, stream: str, data: bytes, note_time: Callable[[int], object] = lambda _: None) -> None:
        """
        Append output; a full disk loses the output, with a note once there is space, but blocks no app.

        `note_time` is called with the time of the records, in nanoseconds since 1970, before any of them is written.
        """
        records, pending = data, None
        try:
            lock = self._take_lock()
            try:
                # Not before: another sidecar may have had the lock, and times would go backwards.
                now_ns = time.time_ns()
                note_time(now_ns)
                records = pending = format_records(stream, data, now_ns)
                if self._lost_bytes:
                    # Of another time: `written_bytes` is about output.
                    text = b"minit: %d bytes of log were lost\n" % self._lost_bytes
                    pending = format_records(stream, text, now_ns - 1) + records
                while pending:
                    pending = pending[self._append(pending) :]
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
            self._lost_bytes = 0
        except OSError as error:
            if self._place is not None and not self._lost_bytes:
                complain_at_once(f"iottymux: app {self._app}: log {self._name}: {describe(error)}")
            if pending is not None and len(pending) <= len(records):
                self._lost_bytes = len(pending)
            else:
                self._lost_bytes += len(records)

    def written_bytes(self, stream: str, now_ns: int) -> int:
        """
        Return how many bytes of the output of `now_ns`, the last of a sidecar, were written before the sidecar's death.
        """
        head = _record_head(stream, now_ns)
        size_bytes = 0
        try:
            lock = self._take_lock()
            try:
                for name in self._names():
                    data = _read_end(self._top, name)
                    texts = [line[len(head) :] for line in data.split(b"\n") if line.startswith(head)]
                    size_bytes += sum(len(text) - len(b"F ") + text.startswith(b"F") for text in texts)
                    if data and not data.startswith(head):
                        break
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
        except OSError:
            pass  # what cannot be read is written once more
        return size_bytes

    def note_lost(self, size_bytes: int) -> None:
        """Report so many missing bytes before the next output."""
        self._lost_bytes += size_bytes

    def reopen(self) -> None:
        """Close a file that was moved or deleted, and make the new file even without output."""
        try:
            lock = self._take_lock()
            try:
                self._open_current()
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
        except OSError:
            pass  # the next line tries again, and says what it lost

    def finish(self) -> None:
        """Cut off the torn line of a killed sidecar, if no other sidecar will; OSError on a failure."""
        lock = self._take_lock()
        try:
            fd = open_log(self._top, self._name, os.O_RDWR)
            try:
                _cut_torn_line(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files of the log, not the directories."""
        for fd in (self._fd, self._lock):
            if fd is not None:
                os.close(fd)
        self._fd = self._lock = None

    def _take_lock(self) -> int:
        # A separate file: the locked file must not be the renamed one.
        if self._lock is None:
            self._lock = os.open(f"{self._app}.lock", _LOCK_FLAGS, 0o600, dir_fd=self._directory)
        fcntl.flock(self._lock, self._lock_operation)
        return self._lock

    def _append(self, data: bytes) -> int:
        """Write as many records as fit into a file; return the number of their bytes."""
        fd = self._open_current()
        size_bytes = os.fstat(fd).st_size
        if size_bytes != self._end:
            size_bytes = _cut_torn_line(fd, size_bytes)
        if self._size_bytes and size_bytes + len(data) > self._size_bytes:
            fitting = data.rfind(b"\n", 0, max(0, self._size_bytes - size_bytes)) + 1
            if not fitting and size_bytes:
                self._rotate()
                return 0
            # A record larger than a file's limit is alone in its file.
            data = data[: fitting or data.index(b"\n") + 1]
        if os.write(fd, data) < len(data):
            # The disk is full: half a line would spoil the next line too.
            os.ftruncate(fd, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end = size_bytes + len(data)
        return len(data)

    def _open_current(self) -> int:
        """
        Return the file with the log's name; another sidecar or a program of the host may have renamed the old one.
        """
        if self._fd is not None:
            try:
                status = os.stat(self._name, dir_fd=self._top, follow_symlinks=False)
                if (status.st_dev, status.st_ino) == self._identity:
                    return self._fd
            except (FileNotFoundError, NotADirectoryError):
                pass
            fd, self._fd = self._fd, None
            os.close(fd)
        self._fd = open_log(self._top, self._name, _LOG_FLAGS, 0o640)
        status = os.fstat(self._fd)
        self._identity = status.st_dev, status.st_ino
        self._end = 0
        return self._fd

    def _rotate(self) -> None:
        """Move every file up by a number, from the oldest on, so that no file is ever without a name."""
        names = self._names()
        if self._files == 1:
            os.unlink(self._name, dir_fd=self._directory)
        for newer, older in zip(names[-2::-1], names[:0:-1]):
            try:
                os.rename(newer, older, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            except FileNotFoundError:
                pass  # there are not that many yet

    def _names(self) -> list[str]:
        if self._place is not None:
            parent = posixpath.dirname(self._name)
            return [self._name, *(posixpath.join(parent, other) for other in _rotated(self._top, self._name))]
        return [self._name, *(f"{self._name}.{number}" for number in range(1, self._files))]


@contextmanager
def finished_log(
    app: str, directory: str, size_bytes: int, files: int, place: tuple[str, str] | None = None
) -> Iterator[Log]:
    """
    Yield the log of a killed sidecar, for reading, without the torn line; OSError on a failure.

    The arguments are a Log's, with the paths of the directories. Nobody is waited for: the holder of the lock has cut
    the line, and may be stopped.
    """
    with ExitStack() as stack:

        def opened(path: str) -> int:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        top = None if place is None else (opened(place[0]), place[1])
        log = Log(app, opened(directory), size_bytes, files, top, waits=False)
        stack.callback(log.close)
        log.finish()
        yield log


def format_records(stream: str, data: bytes, now_ns: int) -> bytes:
    """
    Return output of an app as records of the CRI log format, `TIME STREAM F|P TEXT`, the time in UTC.

    Text without a line feed has the tag P, as have all but the last part of a line longer than LINE_BYTES.
    """
    start = _record_head(stream, now_ns)
    full, part = start + b"F ", start + b"P "
    whole, end, rest = data.rpartition(b"\n")
    if len(data) > LINE_BYTES and max(map(len, data.split(b"\n"))) > LINE_BYTES:
        lines = [_cut_line(line, full, part) for line in whole.split(b"\n")] if end else []
        return b"".join(lines) + (_cut_line(rest, part, part) if rest else b"")
    # A single replacement for all lines: a loop over lines would limit the speed of the log.
    records = full + whole.replace(b"\n", b"\n" + full) + b"\n" if end else b""
    return records + (part + rest + b"\n" if rest else b"")


def _record_head(stream: str, now_ns: int) -> bytes:
    """Return time and stream, with a space at the end."""
    return f"{utc_text_ns(now_ns)} {stream} ".encode()


def _rotated(top: int, path: str) -> list[str]:
    directory = open_parent(top, path)
    try:
        return rotated_names(directory, posixpath.basename(path))
    finally:
        os.close(directory)


def _read_end(top: int, path: str) -> bytes:
    """Return the whole lines at the end of a file, enough for all records of a write; nothing without a file."""
    try:
        fd = open_log(top, path, os.O_RDWR)
    except FileNotFoundError:
        return b""
    try:
        size_bytes = _cut_torn_line(fd, os.fstat(fd).st_size)
        return os.pread(fd, _WRITE_BYTES, max(0, size_bytes - _WRITE_BYTES))
    finally:
        os.close(fd)


def _cut_line(line: bytes, last: bytes, part: bytes) -> bytes:
    """Return the records of a line; `last` is the beginning of the last record."""
    records = []
    while len(line) > LINE_BYTES:
        records.append(part + line[:LINE_BYTES] + b"\n")
        line = line[LINE_BYTES:]
    return b"".join(records) + last + line + b"\n"


def _cut_torn_line(fd: int, size_bytes: int) -> int:
    """Return the size without the torn line of a killed sidecar: its text is still in the pipe."""
    if not size_bytes or os.pread(fd, 1, size_bytes - 1) == b"\n":
        return size_bytes
    start = max(0, size_bytes - _TORN_BYTES)
    size_bytes = start + os.pread(fd, _TORN_BYTES, start).rfind(b"\n") + 1
    os.ftruncate(fd, size_bytes)
    return size_bytes


class PlainLog:
    """
    The log of rkt's log mode k8s-plain: lines `TIME STREAM LINE` in the file `name` in `directory`, a directory of the
    host named by the pod's manifest.

    The file begins anew unless a killed sidecar has written there; the maker of the directory rotates it, and asks for
    `reopen`.
    """

    kind = PLAIN_LOG

    def __init__(self, name: str, directory: int, renewed: bool = False) -> None:
        self._name = name
        self._directory = directory
        self._flags = _FLAGS if renewed else _FLAGS | os.O_TRUNC
        self._fd: int | None = None
        self._lost_bytes = 0
        self._is_in_line = False

    def write(self, stream: str, data: bytes, note_time: Callable[[int], object] = lambda _: None) -> None:
        """Append output; a full disk loses the output, with a note once there is space, but blocks no app."""
        now_ns = time.time_ns()
        note_time(now_ns)
        lines = format_lines(stream, data, now_ns)
        note = b"\n" if self._is_in_line else b""
        if self._lost_bytes:
            note += format_lines(stream, b"minit: %d bytes of log were lost\n" % self._lost_bytes, now_ns)
        try:
            self._append(note + lines)
            self._lost_bytes = 0
            # A stream may end without a newline while the other stream goes on.
            self._is_in_line = not lines.endswith(b"\n")
        except OSError:
            self._lost_bytes += len(lines)

    def written_bytes(self, stream: str, now_ns: int) -> int:
        """Return 0: the interrupted output of a killed sidecar is written once more."""
        return 0

    def note_lost(self, size_bytes: int) -> None:
        """Report so many missing bytes before the next output."""
        self._lost_bytes += size_bytes

    def reopen(self) -> None:
        """Go on in the file that has the name now."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._is_in_line = False
        try:
            self._open()
        except OSError:
            pass  # the next line tries again, and says what was lost

    def _append(self, data: bytes) -> None:
        fd = self._open()
        size_bytes = os.fstat(fd).st_size
        if os.write(fd, data) < len(data):
            os.ftruncate(fd, size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> int:
        if self._fd is None:
            # rkt's mode, restricted by the umask.
            self._fd = open_log(self._directory, self._name, self._flags, 0o777)
            self._flags = _FLAGS
        return self._fd


def format_lines(stream: str, data: bytes, now_ns: int) -> bytes:
    """Return the lines with time and stream; the time is Go's RFC3339Nano in UTC."""
    seconds, fraction_ns = divmod(now_ns, 10**9)
    fraction = f".{fraction_ns:09d}".rstrip("0").rstrip(".")
    start = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}{fraction}Z {stream} ".encode()
    whole, end, rest = data.rpartition(b"\n")
    lines = start + whole.replace(b"\n", b"\n" + start) + b"\n" if end else b""
    return lines + (start + rest if rest else b"")
