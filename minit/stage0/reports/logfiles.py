"""
The files of an app's log: finding, reading and searching files that are written and rotated, and the lines in them.

The reader takes no lock, so that a reader that stands still holds up no app. docs/logs.md has the guarantees for
readers. The files have records of the CRI log format, `TIME STREAM F|P TEXT`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from minit.linux import syscalls
from minit.podfiles.hostlogs import rotated_names

# minit writes times, and so heads of records, of one width: the order of times is the order of bytes.
_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"
_HEAD = re.compile(rb"(%s) (stdout|stderr) ([FP]) " % _TIME)
_HEAD_BYTES = len("2026-11-21T18:00:00.123456789Z stdout F ")
_RECORD_START = re.compile(rb"^(%s) (?:stdout|stderr) [FP] " % _TIME, re.MULTILINE)
_LAST_RECORD_START = re.compile(rb"^%s (stdout|stderr) F " % _TIME, re.MULTILINE)
# A line that an app never ends must not fill the memory of the reader.
_LONGEST_LINE = 1 << 20

CHUNK_BYTES = 1 << 20
"""The bytes of one read; no record is so long."""

BLOCK_BYTES = 1 << 18
"""The bytes of each step of a search: larger than any record, and small enough for a step."""

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
# A log that is rotated faster than the files can be opened would be searched without end.
_ATTEMPTS = 20

# Open files of a log, for a slow reader: deleted files are among them.
_MOST_HELD = 64

Identity = tuple[int, int]


class LogLine(NamedTuple):
    """A line of output without line feed; `ended` tells of a line feed. `time` is the time of the first part."""

    time: bytes
    stream: bytes
    text: bytes
    ended: bool


class LineAssembler:
    """Makes lines of the records of one app, whose parts may come one by one; `skipped` counts broken records."""

    def __init__(self) -> None:
        self.skipped = 0
        self._begun: dict[bytes, tuple[bytes, bytearray]] = {}

    def add(self, data: bytes) -> Iterator[LogLine]:
        """Yield the lines that end in `data`, whole records."""
        begun = self._begun
        heads: dict[bytes, tuple[bytes, bytes, bool] | None] = {}
        for record in data.split(b"\n")[:-1]:
            head = record[:_HEAD_BYTES]
            # Records that were written at once have the same head, so few heads are parsed.
            if head not in heads:
                heads[head] = _parse_head(head)
            parsed = heads[head]
            if parsed is None:
                self.skipped += 1
                continue
            time, stream, ended = parsed
            if ended and not begun:
                yield LogLine(time, stream, record[_HEAD_BYTES:], True)
                continue
            first, text = begun.pop(stream) if stream in begun else (time, bytearray())
            text += record[_HEAD_BYTES:]
            if ended or len(text) > _LONGEST_LINE:
                yield LogLine(first, stream, bytes(text), ended)
            else:
                begun[stream] = first, text

    def plain_text(self, data: bytes) -> bytes:
        """Return the same lines as text of the app, faster if no line has parts."""
        if not self._begun:
            records = data.split(b"\n")[:-1]
            heads = [_parse_head(head) for head in {record[:_HEAD_BYTES] for record in records}]
            if all(head is not None and head[2] for head in heads):
                return b"\n".join([record[_HEAD_BYTES:] for record in records] + [b""])
        return b"".join(line.text + b"\n" if line.ended else line.text for line in self.add(data))

    def rest(self) -> Iterator[LogLine]:
        """Yield the unfinished lines at the end of the log."""
        begun, self._begun = self._begun, {}
        for stream, (time, text) in begun.items():
            yield LogLine(time, stream, bytes(text), False)


def torn_record(data: bytes) -> bytes:
    """Return the rest of a record that was not written to the end, as a record of a line without end."""
    match = _HEAD.match(data)
    return match[1] + b" " + match[2] + b" P " + data[_HEAD_BYTES:] + b"\n" if match else b""


def find_time(data: bytes, at: int = 0) -> tuple[int, bytes] | None:
    """Return offset and time of the first record from `at` on; None if there is no record."""
    match = _RECORD_START.search(data, at)
    return (match.start(), match[1]) if match else None


def count_lines(data: bytes, streams: frozenset[bytes]) -> int:
    """Return the number of lines of `streams` that end in `data`, whole records."""
    return sum(1 for stream in _LAST_RECORD_START.findall(data) if stream in streams)


def _parse_head(head: bytes) -> tuple[bytes, bytes, bool] | None:
    """Return time, stream and whether the line ends with the record; None for a broken record."""
    match = _HEAD.fullmatch(head)
    return (match[1], match[2], match[3] == b"F") if match else None


class LogFile:
    """An open file of a log; `offset` is the beginning of the next line to read."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.identity = _identity(os.fstat(fd))
        self.offset = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def size_bytes(self) -> int:
        """Return the present size."""
        return os.fstat(self.fd).st_size

    def read_lines(self, end: int | None = None) -> bytes:
        """Return some of the next whole lines, at most up to `end`; empty there, or before an unfinished line."""
        if self.size_bytes() < self.offset:
            self.offset = 0  # the file was truncated, by logrotate's copytruncate perhaps
        size_bytes = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - self.offset)
        data = os.pread(self.fd, max(0, size_bytes), self.offset)
        taken = data.rfind(b"\n") + 1
        if not taken and len(data) == CHUNK_BYTES:
            taken = len(data)  # no record is so long: the content does not matter
        self.offset += taken
        return data[:taken]

    def read_rest(self) -> bytes:
        """Return the unfinished line at the end."""
        data = os.pread(self.fd, CHUNK_BYTES, self.offset)
        self.offset += len(data)
        return data

    def first_time(self) -> bytes | None:
        """Return the time of the first record; None without a record."""
        found = find_time(os.pread(self.fd, BLOCK_BYTES, 0))
        return found[1] if found else None

    def seek_time(self, moment: bytes) -> None:
        """Go to the first record not older than `moment`, by bisection: times do not go back."""
        low, high = 0, self.size_bytes()
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            data = os.pread(self.fd, BLOCK_BYTES, middle)
            found = find_time(data, data.find(b"\n") + 1)
            if found is None or middle + found[0] >= high or found[1] >= moment:
                high = middle
            else:
                low = middle + found[0]
        self.offset = low
        while data := self.read_lines():
            start = self.offset - len(data)
            at = 0
            while found := find_time(data, at):
                if found[1] >= moment:
                    self.offset = start + found[0]
                    return
                at = data.index(b"\n", found[0]) + 1

    def seek_lines(self, count: int, streams: frozenset[bytes], start: int) -> int:
        """Go back from the end by `count` lines, at most to `start`; return the number of missing lines."""
        end = self.size_bytes()
        self.offset = start
        at = end
        while at > start and count > 0:
            begin = max(start, at - BLOCK_BYTES)
            data = os.pread(self.fd, at - begin, begin)
            if begin > start:
                cut = data.find(b"\n") + 1
                begin, data = begin + cut, data[cut:]
                if not data:
                    break  # not a log
            count -= count_lines(data, streams)
            at = begin
        if count <= 0:
            self.offset = at
        return max(0, count)


class AppLog:
    """
    The log of an app in the open `directory`; `files` are not yet read to the end, the oldest first.

    `place`, an open directory of the host and a name there, is another place of the log. `has_gap` is set when files
    may have been deleted unread.
    """

    def __init__(self, app: str, directory: int, place: tuple[int, str] | None = None) -> None:
        self.app = app
        self.files: list[LogFile] = []
        self.has_gap = False
        self._markers = directory
        self._is_of_host = place is not None
        self.directory, self._name = place or (directory, f"{app}.log")
        self._newest: Identity | None = None

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
        self.files.clear()

    def is_complete(self) -> bool:
        """Return whether stage1 has ended the log: nothing will be written any more."""
        try:
            os.stat(f"{self.app}.ended", dir_fd=self._markers, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def find_files(self) -> None:
        """Open the files that are new since the last call."""
        for attempt in range(_ATTEMPTS):
            current = self._current()
            # Between two renames there is no current file, also if a sidecar was killed there.
            if self._newest is not None and current in (None, self._newest):
                return
            files, found_last = self._open_newer()
            # Without a rotation meanwhile no file was missed and the order is right.
            if self._current() == current or attempt == _ATTEMPTS - 1:
                break
            for file in files:
                file.close()
        if files:
            self.has_gap = self.has_gap or (self._newest is not None and not found_last)
            self._newest = files[-1].identity
            self.files += files

    def seek_time(self, moment: bytes) -> None:
        """Leave out all records older than `moment`, a time as in the log."""
        while len(self.files) > 1:
            second = self.files[1].first_time()
            if second is not None and second >= moment:
                break
            self.files.pop(0).close()
        if self.files:
            self.files[0].seek_time(moment)

    def seek_lines(self, count: int, streams: frozenset[bytes]) -> None:
        """Skip text that surely is not among the last `count` lines of `streams`."""
        index = len(self.files)
        # One more: a line may begin before the first wanted record.
        missing = count + 1
        while index and missing:
            index -= 1
            missing = self.files[index].seek_lines(missing, streams, self.files[index].offset)
        for file in self.files[:index]:
            file.close()
        self.files = self.files[index:]

    def chunks(self, *, final: bool, follow: bool = False) -> Iterator[bytes]:
        """
        Yield all whole lines; `final` tells that no process writes any more.

        With `follow` lines that are written meanwhile are included, and files that are deleted unread are held.
        """
        while self.files:
            file = self.files[0]
            end = None if final or follow or len(self.files) > 1 else file.size_bytes()
            while True:
                # A file is complete if a younger file was there before the search for the end.
                complete = final or len(self.files) > 1
                data = file.read_lines(end)
                if not data:
                    break
                yield data
                # Not without bound: held files take space on the disk.
                if follow and len(self.files) < _MOST_HELD:
                    self.find_files()
            if complete and (rest := torn_record(file.read_rest())):
                yield rest
            if len(self.files) == 1:
                return
            self.files.pop(0).close()

    def _open_newer(self) -> tuple[list[LogFile], bool]:
        """Return the files newer than the newest known file, oldest first, and whether the known file is there."""
        files: list[LogFile] = []
        seen: set[Identity] = set()
        found_last = False
        # Upwards, as files are renamed: a file may be met twice so, but none is missed.
        for name in self._names():
            if found_last:
                break
            file = self._open(name)
            if file is None:
                continue
            if file.identity == self._newest:
                found_last = True
            if found_last or file.identity in seen:
                file.close()
            else:
                files.append(file)
                seen.add(file.identity)
        return files[::-1], found_last

    def _names(self) -> list[str]:
        """Return the possible names of the log's files, from the newest on."""
        if self._is_of_host:
            return [self._name, *rotated_names(self.directory, self._name)]
        return [self._name, *(f"{self._name}.{number}" for number in range(1, self._last_number() + 2))]

    def _last_number(self) -> int:
        pattern = re.compile(re.escape(self._name) + r"\.([1-9][0-9]{0,5})")
        matches = (pattern.fullmatch(name) for name in os.listdir(self.directory))
        return max((int(match[1]) for match in matches if match), default=0)

    def _open(self, name: str) -> LogFile | None:
        try:
            # Without waiting for the writer of a named pipe.
            fd = syscalls.openat2(self.directory, name, os.O_RDONLY | os.O_NONBLOCK, resolve=_RESOLVE)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return LogFile(fd)
        os.close(fd)
        return None

    def _current(self) -> Identity | None:
        try:
            return _identity(os.stat(self._name, dir_fd=self.directory, follow_symlinks=False))
        except FileNotFoundError:
            return None


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
