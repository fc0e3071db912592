"""Shows logs: the chosen lines, in the chosen order and form, now and as new lines come."""

from __future__ import annotations

import heapq
import json
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import click

from minit.base.errors import PodError
from minit.base.harmless import harmless, harmless_json
from minit.base.moment import SECOND_NS
from minit.base.utctime import utc_text_ns
from minit.base.value import Value
from minit.cli.invocation import Invocation
from minit.linux.process import raise_open_files
from minit.podfiles.paths import POD_PRIVATE_USERS
from minit.stage0.pods.poddirectory import Pod, find_pod
from minit.stage0.pods.podstatus import read_pod_manifest
from minit.stage0.reports.logfiles import AppLog, LineAssembler, LogLine
from minit.stage0.reports.logreader import Pass, PodLogs, open_app_logs, open_log_directory, passes_of_pods
from minit.stage0.reports.logreader import reopen_logs as reopen_moved_logs

_BOTH_STREAMS = 2
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")

Entry = tuple[bytes, str, LogLine]
"""The key that lines are sorted by, the app, and the line."""

_Format = Callable[[str, LogLine], bytes]
"""Makes of an app's name and a line what is printed, with its line feed."""

# Characters that a terminal acts on: all control characters but tab, and those that turn text around or end a line.
# Colours are harmless, and wanted; so are characters that join letters.
_COLOUR = r"\x1b\[[0-9;:]*m"
_DIRECTION = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"({_COLOUR})|[\x00-\x08\x0a-\x1f\x7f-\x9f{_DIRECTION}]")
_ENDS_IN_COLOUR = "\x1b[0m"


class Choice(Value):
    """A choice of lines; no `apps` are all, times are in nanoseconds since 1970, no `tail` is all lines."""

    apps: tuple[str, ...]
    follow: bool
    since_ns: int | None
    until_ns: int | None
    tail: int | None
    streams: frozenset[bytes]
    timestamps: bool
    json: bool

    @property
    def until_seconds(self) -> float | None:
        """When to stop following."""
        return None if self.until_ns is None else self.until_ns / SECOND_NS

    @property
    def is_raw(self) -> bool:
        """Tell whether all output of an app is shown, and nothing else."""
        return not (self.timestamps or self.json) and len(self.streams) == _BOTH_STREAMS and self.until_ns is None


class Source:
    """The log of one app, as lines."""

    def __init__(self, log: AppLog, choice: Choice, name: str | None = None) -> None:
        self.log = log
        self._name = name or log.app
        self._assembler = LineAssembler()
        self._choice = choice
        self._until = None if choice.until_ns is None else utc_text_ns(choice.until_ns).encode()
        self._is_over = False

    def seek(self) -> None:
        """Leave out files that need not be read."""
        if self._choice.since_ns is not None:
            self.log.seek_time(utc_text_ns(self._choice.since_ns).encode())
        # With an end before the log's end, the last lines are not at the log's end.
        if self._choice.tail is not None and self._until is None:
            self.log.seek_lines(self._choice.tail, self._choice.streams)

    def entries(self, moment: Pass) -> Iterator[Entry]:
        """Yield the lines there are to read now."""
        for line in self._lines(moment):
            if self._is_over or (self._until is not None and line.time > self._until):
                self._is_over = True
                return
            if line.stream in self._choice.streams:
                yield line.time, self._name, line

    def raw(self, moment: Pass) -> Iterator[bytes]:
        """Yield the same as the app wrote it."""
        for chunk in self._chunks(moment):
            yield self._assembler.plain_text(chunk)
        if self._is_last(moment):
            yield b"".join(line.text for line in self._assembler.rest())

    def complaints(self) -> Iterator[str]:
        """Yield the faults of the log."""
        if self._assembler.skipped:
            yield f'app "{self.log.app}": lines of the log that are no records: {self._assembler.skipped}'
        if self.log.has_gap:
            yield f'app "{self.log.app}": files of the log may have been deleted before they were read'

    def _lines(self, moment: Pass) -> Iterator[LogLine]:
        for chunk in self._chunks(moment):
            yield from self._assembler.add(chunk)
        if self._is_last(moment):
            yield from self._assembler.rest()

    def _chunks(self, moment: Pass) -> Iterator[bytes]:
        return self.log.chunks(final=self.log.app in moment.complete, follow=self._choice.follow)

    def _is_last(self, moment: Pass) -> bool:
        return not self._choice.follow or self.log.app in moment.complete


def show_logs(invocation: Invocation, uuid: str, choice: Choice) -> None:
    """Write the chosen lines of a pod's logs to standard output; PodError if the pod can have no logs."""
    raise_open_files()  # every file of a log may be open at a time
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        invocation.look_into_pod(has_own_ids=pod.has_file(POD_PRIVATE_USERS))
        directory = open_log_directory(pod, wait=choice.follow)
        names = _chosen_apps(pod, choice.apps)
        if directory is None:
            return
        logs = open_app_logs(read_pod_manifest(pod), names, directory)
        sources = [Source(log, choice) for log in logs]
        terminal = sys.stdout.isatty()
        is_raw = choice.is_raw and len(sources) == 1 and not terminal
        prefixes = _prefixes(names, terminal) if len(names) > 1 else {names[0]: b""}
        watched = [PodLogs(pod=pod, logs=logs, directory=directory)]
        LogView(invocation, watched, [sources], choice, prefixes).show(is_raw=is_raw)


class LogView:
    """The lines of apps of pods; `show` may be called again, and goes on where the last call ended."""

    def __init__(
        self,
        invocation: Invocation,
        watched: Sequence[PodLogs],
        sources: Sequence[Sequence[Source]],
        choice: Choice,
        prefixes: dict[str, bytes],
    ) -> None:
        self._invocation = invocation
        self._watched = watched
        self._sources = sources
        self._choice = choice
        self._format: _Format = json_format
        if not choice.json:
            self._format = text_format(prefixes, times=choice.timestamps, terminal=sys.stdout.isatty())
        self._is_first = True

    def show(self, *, is_raw: bool = False, until: Callable[[], bool] | None = None) -> None:
        """Write the lines to standard output; with `follow` until all pods have ended, or `until` says so."""
        choice = self._choice
        for moments in passes_of_pods(self._watched, sys.stdout.fileno(), choice.until_seconds):
            if self._is_first:
                for source in self._every():
                    source.seek()
            tail = choice.tail if self._is_first else None
            self._is_first = False
            if is_raw and tail is None:
                _write(self._sources[0][0].raw(moments[0]))
            else:
                every = [
                    _last(heapq.merge(*(source.entries(moment) for source in sources), key=_time_of), tail)
                    for sources, moment in zip(self._sources, moments, strict=True)
                ]
                entries = heapq.merge(*every, key=_time_of)
                _write(self._format(app, line) for _, app, line in entries)
            sys.stdout.flush()
            if not choice.follow or (until is not None and until()):
                break
        for source in self._every():
            for text in source.complaints():
                self._invocation.note(text)

    def _every(self) -> Iterator[Source]:
        return (source for sources in self._sources for source in sources)


def _time_of(entry: Entry) -> bytes:
    return entry[0]


def view_pods(invocation: Invocation, pods: Sequence[tuple[Pod, str]], choice: Choice) -> LogView | None:
    """Return the view of the logs of pods with names for their lines, None without any log."""
    raise_open_files()  # every file of a log may be open at a time
    watched, sources = [], []
    for pod, name in pods:
        directory = open_log_directory(pod, wait=choice.follow)
        if directory is not None:
            manifest = read_pod_manifest(pod)
            logs = open_app_logs(manifest, [app.name for app in manifest.apps], directory)
            watched.append(PodLogs(pod=pod, logs=logs, directory=directory))
            sources.append([Source(log, choice, name) for log in logs])
    width = max((len(name) for _, name in pods), default=0)
    prefixes = _prefixes([name for _, name in pods], sys.stdout.isatty(), lambda name: f"{name.ljust(width)}  | ")
    return LogView(invocation, watched, sources, choice, prefixes) if watched else None


def reopen_logs(invocation: Invocation, uuid: str, apps: Sequence[str]) -> None:
    """Have a running pod let go of moved log files, so that the pod writes to none of them. PodError on failure."""
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        reopen_moved_logs(pod, _chosen_apps(pod, apps))


def _last(entries: Iterable[Entry], tail: int | None) -> Iterable[Entry]:
    return entries if tail is None else deque(entries, tail)


def _write(parts: Iterable[bytes]) -> None:
    write = sys.stdout.buffer.write
    for part in parts:
        write(part)


def _chosen_apps(pod: Pod, wanted: Sequence[str]) -> list[str]:
    names = [app.name for app in read_pod_manifest(pod).apps]
    for name in wanted:
        if name not in names:
            raise PodError(f'no app "{name}" in pod "{pod.uuid}": it has {", ".join(names)}')
    return [name for name in names if name in wanted] if wanted else names


def _prefixes(
    names: Sequence[str], terminal: bool, shown: Callable[[str], str] = lambda name: f"{name}: "
) -> dict[str, bytes]:
    """Return the prefix of the lines of each app."""
    if not terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return {name: shown(name).encode() for name in names}
    return {
        name: click.style(shown(name), fg=_COLOURS[number % len(_COLOURS)]).encode()
        for number, name in enumerate(names)
    }


# Lines of logs as `minit logs` prints them: text or JSON, made harmless for a terminal. Pure.


def text_format(prefixes: dict[str, bytes], *, times: bool, terminal: bool) -> _Format:
    """
    Return the format of plain text: the time if wanted, the app's prefix, and the line.

    Where nothing else is shown, a line that the app did not end stays so.
    """
    may_be_open = not (times or terminal or any(prefixes.values()))

    def format_line(app: str, line: LogLine) -> bytes:
        text = visible(line.text) if terminal else line.text
        end = b"" if may_be_open and not line.ended else b"\n"
        return (line.time + b" " if times else b"") + prefixes[app] + text + end

    return format_line


def json_format(app: str, line: LogLine) -> bytes:
    """Return the line as an object of JSON; bytes outside UTF-8 become U+FFFD."""
    fields: dict[str, object] = {
        "app": app,
        "time": line.time.decode(),
        "stream": line.stream.decode(),
        "text": line.text.decode(errors="replace"),
    }
    if not line.ended:
        fields["partial"] = True
    return harmless_json(json.dumps(fields, ensure_ascii=False)).encode() + b"\n"


def visible(text: bytes) -> bytes:
    """Return the text with terminal controls made visible, all but colours."""
    decoded = text.removesuffix(b"\r").decode(errors="backslashreplace")
    shown = _CONTROL.sub(_show, decoded)
    if "\x1b" in shown:
        shown += _ENDS_IN_COLOUR
    return shown.encode()


def _show(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    code = ord(match[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else harmless(match[0])
