"""
The events of a pod, and of all pods, from outside; docs/events.md has their form.

Events of all pods come by one descriptor of inotify(7), without an end: changes of the directory of running pods tell
of pods that come and go, changes of a pod's directory of a start, and changes beside its log of events of more to read.
"""

from __future__ import annotations

import errno
import os
import resource
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import ManifestError, MinitError, PodError, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.loop import wait_events
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import (
    EXITED_GARBAGE,
    RUN,
    Note,
    Pod,
    PodState,
    is_whole_uuid,
    open_pod,
    pod_uuids,
    walk_pods,
)
from minit.stage0.pods.podstatus import PodStatus, read_pod_status, read_shown_pid, status_root
from minit.stage0.reports.logfiles import AppLog
from minit.stage0.reports.logreader import open_log_directory, passes

_DIRECTORY, _FILE = os.path.split(paths.STAGE1_EVENTS)
_LOG = _FILE.removesuffix(".log")

_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_OF_PLACE = syscalls.IN_CREATE | syscalls.IN_MOVED_TO | syscalls.IN_MOVED_FROM | syscalls.IN_DELETE
_OF_POD = syscalls.IN_CREATE | syscalls.IN_MOVED_TO
_OF_LOG = syscalls.IN_CREATE | syscalls.IN_MODIFY
_STARTS = (paths.POD_PID.encode(), paths.POD_PPID.encode())
_LOST = -1  # the watch of changes for which there was no room

# As often as the log of one pod is read without a change.
_UNSEEN_PAUSE_SECONDS = 0.25

# The directory and the file of a log; the file outlives a removal of the pod.
_FILES_OF_A_LOG = 2
_OTHER_FILES = 64

Event = dict[str, object]


class Wanted(Value):
    """A choice of events: of `apps`, or of all, after number `since`, or from the first kept event on."""

    apps: frozenset[str] = frozenset()
    since: int | None = None


class EventReader:
    """
    Makes wanted events of the lines of the file; `last` is the number of the last event.

    A pod that is started again has new numbers.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.last = wanted.since
        self._wanted = wanted
        self._first_time: object = None

    def read(self, line: bytes) -> Iterator[Event]:
        """Yield the event of a line, before it an event about missing events; nothing for a broken line."""
        try:
            event = jsontext.parse(line, "event")
        except ManifestError:
            return
        number = event.get("seq") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(number, int):
            return
        if number == 1 and self._wanted.since is None and event.get("time") != self._first_time:
            self._first_time, self.last = event.get("time"), None
        if self.last is not None and number <= self.last:
            return
        if self.last is not None and number > self.last + 1:
            yield {"seq": number - 1, "event": paths.PodEvent.GAP, "lost": number - self.last - 1}
        self.last = number
        # An event without an app is about the whole pod.
        if not self._wanted.apps or event.get("app") in self._wanted.apps:
            yield event

    def read_all(self, log: AppLog, *, final: bool = True, follow: bool = False) -> list[Event]:
        """Return the events in what a log has more by now."""
        chunks = log.chunks(final=final, follow=follow)
        return [event for chunk in chunks for line in chunk.split(b"\n") for event in self.read(line)]


def pod_events(pod: Pod, wanted: Wanted, output: int, *, follow: bool) -> Iterator[list[Event]]:
    """
    Yield the events of a pod as they come, the first list at once; with `follow` until the pod has ended.

    PodError if the stage1 keeps no events. BrokenPipeError when the descriptor `output` has no reader any more.
    """
    directory = open_log_directory(pod, wait=follow, directory=_DIRECTORY, what="events")
    if directory is None:
        return
    reader = EventReader(wanted)
    log = AppLog(_LOG, directory)
    try:
        for moment in passes(pod, [log], directory, output, None):
            yield reader.read_all(log, final=log.app in moment.complete, follow=follow)
            if not follow:
                return
    finally:
        log.close()
        os.close(directory)


class PodsEvent(Value):
    """An event of one of many pods, with the pod's status as far as that is wanted and can be read."""

    uuid: str
    event: Event
    status: PodStatus | None

    @property
    def time(self) -> str:
        """The time, empty for a gap."""
        return str(self.event.get("time", ""))


def events_of_all(
    data: Path, apps: frozenset[str], output: int, note: Note, *, follow: bool, with_status: bool
) -> Iterator[list[PodsEvent]]:
    """
    Yield the events of all pods of a data directory, each list by time: those that there are, with `follow` more.

    An event of a gap has no time, and comes first. Faults of a pod are noted. BrokenPipeError as `pod_events`.
    """
    wanted = Wanted(apps=apps)
    follower = _Follower(data, wanted, note, with_status=with_status) if follow else None
    try:
        found = [] if follower is None else follower.begin()
        # Pods in other places have not run, or are being removed.
        for pod in walk_pods(data, (RUN, EXITED_GARBAGE) if follower is None else (EXITED_GARBAGE,), note):
            if follower is None or not follower.has(pod.uuid):
                found += _kept_events(pod, wanted, output, note, with_status=with_status)
        yield sorted(found, key=lambda each: each.time)
        while follower is not None:
            if output in wait_events({follower.fd: select.POLLIN, output: 0}, follower.pause_seconds):
                raise BrokenPipeError
            yield sorted(follower.turn(), key=lambda each: each.time)
    finally:
        if follower is not None:
            follower.close()


def _kept_events(pod: Pod, wanted: Wanted, output: int, note: Note, *, with_status: bool) -> Iterator[PodsEvent]:
    try:
        status = read_pod_status(pod) if with_status else None
        for some in pod_events(pod, wanted, output, follow=False):
            yield from (PodsEvent(uuid=pod.uuid, event=event, status=status) for event in some)
    except (MinitError, OSError) as error:
        note(f'pod "{pod.uuid}": {describe(error)}')


class _Followed:
    """A pod whose events are followed; `watches` are its own."""

    def __init__(self, wanted: Wanted) -> None:
        self.reader = EventReader(wanted)
        self.status: PodStatus | None = None
        self.watches: set[int] = set()
        self.is_told = False
        """Whether the user knows of the last fault."""


class _Follower:
    """
    Follows the events of the pods that run, or that may be started again.

    The log of a pod stays open, so that a removal of the pod takes no events. Logs that are too many for the limit of
    open files are opened when there is more to read.
    """

    def __init__(self, data: Path, wanted: Wanted, note: Note, *, with_status: bool) -> None:
        self.fd = syscalls.inotify_init()
        self._data = data
        self._wanted = wanted
        self._note = note
        self._with_status = with_status
        self._top: tuple[int, bool] = (_LOST, False)
        """The watch of the directory of running pods, or of the nearest directory above, and which of them."""
        self._pods_of_watches: dict[int, str] = {}
        self._pods: dict[str, _Followed] = {}
        self._unseen: set[str] = set()
        """Running pods whose mounts are in another mount namespace, as those of a user without root are."""
        self._logs: dict[str, AppLog] = {}
        """The open ones, that of the longest silence first."""
        self._most_logs = max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES) // _FILES_OF_A_LOG)

    def close(self) -> None:
        """Follow nothing any more."""
        for uuid in [*self._logs]:
            self._close_log(uuid)
        os.close(self.fd)

    @property
    def pause_seconds(self) -> float | None:
        """How long to wait at most for `fd`."""
        return _UNSEEN_PAUSE_SECONDS if self._unseen else None

    def has(self, uuid: str) -> bool:
        """Return whether a pod is followed."""
        return uuid in self._pods

    def begin(self) -> list[PodsEvent]:
        """Return the events of all pods that there are to follow."""
        self._watch_top()
        return [event for uuid in pod_uuids(self._data, RUN, self._note) for event in self._look(uuid)]

    def turn(self) -> list[PodsEvent]:
        """Return the events that have come; empty if other things have happened."""
        written, changed = dict[str, None](), dict.fromkeys(self._unseen)
        for watch, name in syscalls.read_inotify(self.fd):
            top, is_place = self._top
            if watch == _LOST or (watch == top and not (is_place and name)):
                self._watch_top()
                changed |= dict.fromkeys((*self._pods, *pod_uuids(self._data, RUN, self._note)))
            elif watch == top:
                if is_whole_uuid(uuid := name.decode(errors="replace")):
                    changed[uuid] = None
            elif watch in self._pods_of_watches:
                uuid = self._pods_of_watches[watch]
                if not name:  # the directory is gone, or what was mounted there
                    del self._pods_of_watches[watch]
                    self._pods[uuid].watches.discard(watch)
                elif name in _STARTS:
                    changed[uuid] = None
                elif name == _FILE.encode():
                    written[uuid] = None
        found = [event for uuid in written if uuid not in changed for event in self._read(uuid)]
        return found + [event for uuid in changed for event in self._look(uuid)]

    def _watch_top(self) -> None:
        """Watch the directory of running pods, or of the directories on the way there the last one that there is."""
        place = self._data.absolute() / "pods" / RUN
        way = (place, *place.parents)
        while True:
            at = next(index for index, path in enumerate(way) if path.is_dir())
            with suppress(FileNotFoundError):
                self._top = self._add_watch(str(way[at]), _OF_PLACE), at == 0
                # The watch tells of what is made from now on.
                if at == 0 or not way[at - 1].is_dir():
                    return

    def _look(self, uuid: str) -> list[PodsEvent]:
        """Return the new events of a pod that may have been started, or have gone to another place."""
        try:
            with open_pod(self._data, uuid) as pod:
                if pod.place == RUN:
                    followed = self._pods.setdefault(uuid, _Followed(self._wanted))
                    self._open(pod, followed)
                    return self._read(uuid)
        except PodError:
            pass  # there is no such pod any more
        except OSError as error:
            self._note(f'pod "{uuid}": {describe(error)}')
        found = self._read(uuid)
        self._forget(uuid)
        return found

    def _open(self, pod: Pod, followed: _Followed) -> None:
        """Watch a pod, and open its log."""
        self._watch(pod.uuid, followed, pod.fd, _OF_POD)
        try:
            # Through a present mount: writes to an overlay give no events on the upper directory.
            seen = syscalls.openat2(pod.fd, paths.POD_STAGE1_ROOTFS + _DIRECTORY, _FLAGS, resolve=_RESOLVE)
        except OSError:
            # Nothing is mounted here.
            if pod.state is PodState.RUNNING and read_shown_pid(pod) is not None:
                self._unseen.add(pod.uuid)
            else:
                self._unseen.discard(pod.uuid)
        else:
            self._unseen.discard(pod.uuid)
            try:
                self._watch(pod.uuid, followed, seen, _OF_LOG)
            finally:
                os.close(seen)
        try:
            if self._with_status:
                followed.status = read_pod_status(pod)
            self._open_log(pod)
        except (MinitError, OSError) as error:
            if read_shown_pid(pod) is not None and not followed.is_told:
                followed.is_told = True
                self._note(f'pod "{pod.uuid}": {describe(error)}')

    def _open_log(self, pod: Pod) -> None:
        if pod.uuid in self._logs:
            return
        try:
            # Not through the mount, which a removal of the pod has to unmount.
            directory = syscalls.openat2(pod.fd, status_root(pod) + _DIRECTORY, _FLAGS, resolve=_RESOLVE)
        except FileNotFoundError as error:
            raise PodError("its stage1 keeps no events that minit can read") from error
        self._logs[pod.uuid] = AppLog(_LOG, directory)
        while len(self._logs) > self._most_logs:
            self._close_log(next(iter(self._logs)))

    def _read(self, uuid: str) -> list[PodsEvent]:
        """Return the new events in the log of a pod."""
        followed = self._pods.get(uuid)
        if followed is None:
            return []
        if uuid not in self._logs:
            with suppress(MinitError, OSError), open_pod(self._data, uuid) as pod:
                self._open_log(pod)
        log = self._logs.pop(uuid, None)
        if log is None:
            return []
        self._logs[uuid] = log
        with suppress(FileNotFoundError):  # of the directory of a pod that is gone
            log.find_files()
        events = followed.reader.read_all(log, final=False)
        apps = {event["app"] for event in events if "app" in event}
        if followed.status is not None and not apps <= {app.name for app in followed.status.apps}:
            with suppress(MinitError, OSError), open_pod(self._data, uuid) as pod:
                followed.status = read_pod_status(pod)
        return [PodsEvent(uuid=uuid, event=event, status=followed.status) for event in events]

    def _close_log(self, uuid: str) -> None:
        log = self._logs.pop(uuid)
        log.close()
        os.close(log.directory)

    def _forget(self, uuid: str) -> None:
        self._unseen.discard(uuid)
        if uuid in self._logs:
            self._close_log(uuid)
        followed = self._pods.pop(uuid, None)
        for watch in followed.watches if followed is not None else ():
            self._pods_of_watches.pop(watch, None)
            with suppress(OSError):  # it went with the directory
                syscalls.inotify_rm_watch(self.fd, watch)

    def _watch(self, uuid: str, followed: _Followed, directory: int, events: int) -> None:
        watch = self._add_watch(f"/proc/self/fd/{directory}", events)
        self._pods_of_watches[watch] = uuid
        followed.watches.add(watch)

    def _add_watch(self, path: str, events: int) -> int:
        try:
            return syscalls.inotify_add_watch(self.fd, path, events)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise MinitError("too many pods to follow: raise fs.inotify.max_user_watches by sysctl(8)") from error
            raise
