"""Files that stage1 left of a pod: the reason of its failure, its plan, ends of apps, events, last lines of logs."""

from __future__ import annotations

import os
import stat
import sys

from minit.base import jsontext
from minit.base.errors import MinitError
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podstatus import status_root

# Of a larger file only the end is read.
_MAX_BYTES = 1 << 18
_EVENTS_OF_A_STOP = 1000
_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def read_failure(pod: Pod) -> str | None:
    """Return the line about the failure of the pod's start, None without a failure, or for another stage1."""
    text = _read(pod, paths.STAGE1_FAILURE)
    return text.strip() if text is not None else None


def count_errors(pod: Pod) -> int:
    """Return the number of errors of PID 1's own code."""
    text = (_read(pod, paths.STAGE1_ERRORS) or "").strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def read_plan(pod: Pod) -> list[str] | None:
    """Return the decisions about the pod as --debug shows them, None for a pod that ended before the write."""
    text = _read(pod, paths.STAGE1_PLAN)
    return text.removesuffix("\n").split("\n") if text is not None else None


def read_end(pod: Pod, app: str) -> dict[str, object] | None:
    """Return minit's own record of an app's end, None without a readable record."""
    text = _read(pod, paths.state_file(app))
    if text is None:
        return None
    try:
        value = jsontext.parse(text.encode(errors="replace"), app)
    except MinitError:
        return None
    return value if isinstance(value, dict) else None


def read_lost_output(pod: Pod, app: str) -> int | None:
    """Return the number of lost bytes of an app's output, None if no loss is known."""
    end = read_end(pod, app) or {}
    lost = end.get("lost_output_bytes")
    return lost if isinstance(lost, int) else None


def count_restarts(pod: Pod, app: str, record: dict[str, object]) -> int:
    """Return the number of restarts of an app, by the record of the end."""
    restarts = record.get("restarts")
    # The record is about the last end; a restart removes the status of that end.
    runs_again = "finished" in record and _read(pod, paths.status_file(app)) is None
    return (restarts if isinstance(restarts, int) else 0) + runs_again


def was_started(pod: Pod, app: str) -> bool:
    """Return whether the app's program was to be executed."""
    return _read(pod, paths.started_marker(app)) is not None


def read_events(pod: Pod, count: int) -> list[str] | None:
    """Return the last events of the pod, a JSON object each; None if the stage1 keeps no events."""
    return _last_lines(_read(pod, paths.STAGE1_EVENTS), count)


def read_last_event(pod: Pod) -> dict[str, object]:
    """Return the last event of the pod; an empty event without a readable one."""
    last = read_events(pod, 1) or ["{}"]
    try:
        event = jsontext.parse(last[0].encode(errors="replace"), paths.STAGE1_EVENTS)
    except MinitError:
        return {}
    return event if isinstance(event, dict) else {}


def has_ended_in_order(pod: Pod) -> bool:
    """Return whether PID 1 has reported the end of the whole pod."""
    return read_last_event(pod).get("event") == paths.PodEvent.POD_ENDED


def is_stopping(pod: Pod) -> bool:
    """Return whether the shutdown of a running pod has begun, as far as minit's stage1 tells."""
    begun = [f'"event":"{event}"' for event in (paths.PodEvent.POD_STOPPING, paths.PodEvent.POD_KILLED)]
    return any(event in line for line in read_events(pod, _EVENTS_OF_A_STOP) or () for event in begun)


def read_kill(pod: Pod) -> dict[str, object] | None:
    """Return the event that PID 1 of the pod was killed, None without such an event."""
    event = read_last_event(pod)
    return event if event.get("event") == paths.PodEvent.POD_KILLED else None


def read_supervisor_log(pod: Pod, count: int) -> list[str] | None:
    """Return the last lines of PID 1's own log, None without a log."""
    return _last_lines(_read(pod, paths.STAGE1_SUPERVISOR_LOG), count)


def read_panic(pod: Pod, count: int) -> list[str] | None:
    """Return the last lines of the kernel that panicked before the machine's start; the first line has the time."""
    lines = _last_lines(_read(pod, paths.STAGE1_PANIC), sys.maxsize)
    return None if not lines else lines if len(lines) <= count else [lines[0], *lines[1:][-count:]]


def read_log(pod: Pod, app: str, count: int) -> list[str] | None:
    """Return the last lines that an app wrote, each as `TIME STREAM TEXT`; None without a log."""
    lines = _last_lines(_read(pod, paths.log_file(app)), count)
    return None if lines is None else [_without_tag(line) for line in lines]


def _without_tag(line: str) -> str:
    parts = line.split(" ", 3)
    return " ".join((*parts[:2], *parts[3:])) if len(parts) > 2 and parts[2] in ("F", "P") else line


def _last_lines(text: str | None, count: int) -> list[str] | None:
    if text is None:
        return None
    # Only a line feed ends a line.
    lines = text.split("\n")
    return [line for line in lines if line][-count:] if count else []


def _read(pod: Pod, path: str) -> str | None:
    """Return the end of a file of the stage1 root, through the mount or behind the mount; None without a file."""
    for root in (paths.POD_STAGE1_ROOTFS, _behind_the_mount(pod)):
        if root is None:
            continue
        try:
            # Processes of the pod write there: no link may lead out of the pod directory.
            fd = syscalls.openat2(pod.fd, root + path, _FLAGS, resolve=_RESOLVE)
        except OSError:
            continue
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                data = os.pread(fd, _MAX_BYTES, max(0, status.st_size - _MAX_BYTES))
                return data.decode("utf-8", "backslashreplace")
        except OSError:
            continue
        finally:
            os.close(fd)
    return None


def _behind_the_mount(pod: Pod) -> str | None:
    try:
        return status_root(pod)
    except (OSError, MinitError):
        return None
