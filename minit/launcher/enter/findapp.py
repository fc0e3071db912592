"""
Finding an app of a running pod to enter: its mount namespace and its profile.

PID 1 has both. While it does not answer the profile is read from the pod directory, and the namespace is that
of a process in the app's control group, if PID 1 holds it too: a program of the app may have made others.
"""

from __future__ import annotations

import os

from minit.base.errors import LaunchError, NoAnswerError, describe
from minit.launcher.cgroups import app_group, read_hierarchies, read_subcgroup
from minit.launcher.stop import has_ended
from minit.plan.entering import MAXIMUM_PROFILE_BYTES, EnterProfile, decode_profile
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.controlmessages import EnterApp
from minit.supervisor.control.ask import ask

# PID 1 answers at once; only one that is just starting, on a machine with much to do, takes part of this.
_ANSWER_SECONDS = 3.0
_STOPPED = "T"


def find_app(pid: int, state: str, app: str) -> tuple[int, EnterProfile, int | None]:
    """
    Return a descriptor of the mount namespace of `app`, and its profile, in the pod whose PID 1 is `pid`.

    The last one is one of its PID namespace if it has one of its own, else None. `state` is that of PID 1 in
    /proc/PID/status. ControlError if PID 1 refuses, LaunchError if it says nothing and the app cannot be found
    without it.
    """
    try:
        if state.startswith(_STOPPED):
            raise NoAnswerError("supervisor of this pod: it is stopped")
        _, [namespace, file, *pids] = ask(EnterApp(app=app), _ANSWER_SECONDS)
    except NoAnswerError as silence:
        return (*_find_alone(pid, app, silence), None)
    # By position: whoever else enters the app reads the same open file.
    data = os.pread(file, MAXIMUM_PROFILE_BYTES, 0)
    os.close(file)
    profile = decode_profile(data, f'app "{app}": profile')
    if profile.own_pids and not pids:
        raise LaunchError(f'app "{app}" does not run: its PID namespace is gone')
    return namespace, profile, next(iter(pids), None)


def _find_alone(pid: int, app: str, silence: NoAnswerError) -> tuple[int, EnterProfile]:
    path = paths.enter_profile(app)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise LaunchError(f'no app "{app}" in this pod; {describe(silence)}') from error
    profile = decode_profile(read_bounded(fd, path, MAXIMUM_PROFILE_BYTES), path)
    if profile.own_pids:
        raise LaunchError(f'app "{app}": nobody else knows its PID namespace; {describe(silence)}')
    held = _held_namespaces(pid)
    for process in _processes(app):
        namespace = _namespace_of(process, app)
        if namespace is None:
            continue
        if _identity(namespace) in held:
            return namespace, profile
        os.close(namespace)
    raise LaunchError(f'app "{app}": no process of it runs in which to find its root; {describe(silence)}')


def _held_namespaces(pid: int) -> set[tuple[int, int]]:
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("mnt:["):
                status = os.stat(f"/proc/{pid}/fd/{fd}")
                held.add((status.st_dev, status.st_ino))
        except FileNotFoundError:
            pass  # closed meanwhile
    return held


def _processes(app: str) -> list[int]:
    """Return the pids on the host of those in the control group of an app, the oldest first."""
    subcgroup = read_subcgroup()
    for hierarchy in read_hierarchies():
        try:
            with open(f"{app_group(hierarchy, subcgroup, app)}/cgroup.procs", encoding="ascii") as pids:
                return sorted(map(int, pids.read().split()))
        except FileNotFoundError:
            continue
    return []


def _namespace_of(pid: int, app: str) -> int | None:
    """Return the mount namespace of a process, None if it is no process of the app's any more."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        # While the pidfd's process lives, both were about it, whoever had the number before.
        if pid in _processes(app) and not has_ended(pidfd):
            return namespace
        os.close(namespace)
    except OSError:
        pass  # it has just ended
    finally:
        os.close(pidfd)
    return None


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
