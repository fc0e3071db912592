"""
The `enter` entrypoint's work: running a command in an app, as confined as the app, or in the stage1 root.

PID 1 has the mount namespace and the profile of the app. While PID 1 does not answer, the profile is read from the pod
directory, and the namespace comes from a process in the app's control group, if PID 1 holds that namespace too: a
program of the app may have made others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from minit.base.errors import LaunchError, NoAnswerError, describe
from minit.base.value import replace
from minit.launcher.cgroups import app_group, read_hierarchies, read_subcgroup
from minit.launcher.enter.appgroups import AppGroup, find_groups, open_groups
from minit.launcher.enter.commandgroup import CommandGroup, CommandNamespace, Guard
from minit.launcher.enter.enterchild import Entrance, enter
from minit.launcher.enter.enterconsole import open_enter_console, outer_id
from minit.launcher.enter.enterwatch import EnterWatch, hold_signals
from minit.launcher.stop import has_ended, open_supervisor
from minit.linux import syscalls
from minit.linux.forks import numbers
from minit.linux.idmapping import read_held_ids
from minit.linux.messages import Socket, send_message, socket_pair
from minit.linux.stdio import open_standard_streams
from minit.plan.entering import MAXIMUM_PROFILE_BYTES, EnterProfile, changed, decode_profile, held_by
from minit.plan.life.appenvironment import DEFAULT_TERM
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.controlmessages import EnterApp
from minit.podfiles.enterchanges import EnterChanges
from minit.supervisor.control.ask import ask

_STREAMS = (0, 1, 2)
_JOINED = {"ipc": syscalls.CLONE_NEWIPC, "uts": syscalls.CLONE_NEWUTS, "net": syscalls.CLONE_NEWNET}

# PID 1 answers at once; only a PID 1 just starting, on a busy machine, takes part of the time.
_ANSWER_SECONDS = 3.0
_STOPPED = "T"


def enter_pod(
    pid: int,
    app: str | None,
    command: Sequence[str],
    *,
    privileged: bool = False,
    as_app: bool = False,
    timeout_seconds: float | None = None,
    changes: EnterChanges | None = None,
) -> int:
    """
    Run `command` in the pod with PID 1 `pid` on the host and return the exit code.

    With an app the command has the app's root, environment and confinement, as root or, with `as_app`, as the app's
    user; if `privileged`, the root and the environment, but all rights of PID 1, and none of the app's limits. Without
    an app the command has the stage1 root and the caller's environment. If a signal ends the command, the
    signal ends this process too. The working directory is the pod directory. `changes` are for a command in an app.

    Of a command with a time limit nothing is left at the end, and EXIT_TIMED_OUT tells that the time was over. Only a
    command confined as an app can have a limit.
    """
    open_standard_streams()
    hold_signals()
    syscalls.set_dumpable(False)
    pidfd, status = open_supervisor(pid)
    namespace: int | None = None
    pids: int | None = None
    guard: Guard | None = None
    link_to_guard: int | None = None
    profile = EnterProfile(environment=tuple(os.environb.items()))
    if app is not None:
        namespace, profile, pids = _find_app(pid, status["State"], app)
        profile = _adapt(profile, as_app=as_app, privileged=privileged)
        profile = profile if changes is None else changed(profile, changes)
    profile = held_by(profile, read_held_ids(pid))
    groups: Sequence[AppGroup] = () if app is None or privileged else find_groups(app)
    _refuse_frozen(groups)
    terminals = tuple(fd for fd in _STREAMS if os.isatty(fd))
    console = open_enter_console(pid, terminals, profile.confinement.uid) if terminals else None
    if profile.confinement.uid:
        _own_pipes(outer_id(pid, profile.confinement.uid))
    if has_ended(pidfd):
        # The process opened by number may be another one.
        raise LaunchError(f"pod is not running any more: process {pid} has ended")
    if timeout_seconds is not None:
        # Last: the kernel copies each page written between two forks twice.
        own = CommandGroup(groups) if groups else CommandNamespace()
        guard = Guard(own, timeout_seconds)
        if isinstance(own, CommandGroup):
            groups = own.joined
        else:
            link_to_guard = own.theirs.detach()
    entrance = Entrance(
        supervisor=pidfd,
        namespace=namespace,
        pids=pids,
        others=_other_namespaces(pid),
        own_users=not _is_same_file(f"/proc/{pid}/ns/user", "/proc/self/ns/user"),
        groups=tuple(open_groups(groups)),
        bounding=int(status["CapBnd"], 16),
        profile=profile,
        terminal=None if console is None else console.slave,
        terminal_streams=terminals,
        guard=link_to_guard,
    )
    ours, theirs = socket_pair()
    first = enter(entrance, command, theirs)
    theirs.close()
    for fd in numbers(entrance.descriptors().values()):
        os.close(fd)
    return EnterWatch(first, ours, console, guard).run()


def _refuse_frozen(groups: Sequence[AppGroup]) -> None:
    """Raise LaunchError if an app is paused: a command in its groups would not run before the app does."""
    for group in groups:
        name = "cgroup.freeze" if group.hierarchy.is_v2 else "freezer.state"
        # Only the freezer's hierarchy of v1 has the file, and v2 since Linux 5.2.
        with suppress(FileNotFoundError), open(f"{group.path}/{name}", encoding="ascii") as file:
            if file.read().strip() not in ("0", "THAWED"):
                raise LaunchError(f'app "{group.app}" is paused')


def _adapt(profile: EnterProfile, *, as_app: bool, privileged: bool) -> EnterProfile:
    """Return the profile of an app for a command at the caller's terminal, as root unless `as_app`."""
    term = os.environb.get(b"TERM", DEFAULT_TERM.encode())
    profile = replace(
        profile, environment=(*(pair for pair in profile.environment if pair[0] != b"TERM"), (b"TERM", term))
    )
    if not as_app:
        profile = replace(profile, confinement=replace(profile.confinement, uid=0, gid=0))
    if privileged:
        profile = EnterProfile(environment=profile.environment, working_directory=profile.working_directory)
    return profile


def hand_root(pid: int, app: str, link: int) -> int:
    """
    Send the root that `app` has, in the pod with PID 1 `pid` on the host, and return the exit code.

    Two descriptors are sent by `link`, a SEQPACKET socket: the root, and the app's mount namespace, without which what
    is mounted in the root would be gone when the app ends. Nothing is executed, and no path of the app is followed. The
    working directory is the pod directory.
    """
    open_standard_streams()
    syscalls.set_dumpable(False)
    pidfd, status = open_supervisor(pid)
    namespace, _, _ = _find_app(pid, status["State"], app)
    if has_ended(pidfd):
        raise LaunchError(f"pod is not running any more: process {pid} has ended")
    syscalls.setns(namespace, syscalls.CLONE_NEWNS)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with Socket(fileno=link) as socket:
        send_message(socket, {}, [root, namespace])
    return 0


def _own_pipes(uid: int) -> None:
    """Let the command open standard streams that are pipes by name, as scripts open /dev/stderr."""
    for fd in _STREAMS:
        # Not a FIFO, which has a path: a FIFO would stay the property of a user of the host.
        if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:["):
            # Without root, the pipe may be another user's.
            with suppress(PermissionError):
                os.fchown(fd, uid, -1)


def _other_namespaces(pid: int) -> int:
    """Return the kinds of the pod's namespaces that this process has to join: no user may join the machine's."""
    return sum(
        kind for name, kind in _JOINED.items() if not _is_same_file(f"/proc/{pid}/ns/{name}", f"/proc/self/ns/{name}")
    )


def _is_same_file(path: str, other: str) -> bool:
    return os.path.samestat(os.stat(path), os.stat(other))


def _find_app(pid: int, state: str, app: str) -> tuple[int, EnterProfile, int | None]:
    """
    Return a descriptor of the mount namespace of `app`, and the profile, in the pod with PID 1 `pid`.

    The last one is a descriptor of the app's own PID namespace, else None. `state` is the state of PID 1 in
    /proc/PID/status. ControlError if PID 1 refuses, LaunchError if PID 1 says nothing and the app cannot be found
    otherwise.
    """
    try:
        if state.startswith(_STOPPED):
            raise NoAnswerError("supervisor of this pod: it is stopped")
        _, [namespace, file, *pids] = ask(EnterApp(app=app), _ANSWER_SECONDS)
    except NoAnswerError as silence:
        return (*_find_alone(pid, app, silence), None)
    # By position: others entering the app read the same open file.
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
    """Return the pids on the host in the control group of an app, the oldest first."""
    subcgroup = read_subcgroup()
    for hierarchy in read_hierarchies():
        try:
            with open(f"{app_group(hierarchy, subcgroup, app)}/cgroup.procs", encoding="ascii") as pids:
                return sorted(map(int, pids.read().split()))
        except FileNotFoundError:
            continue
    return []


def _namespace_of(pid: int, app: str) -> int | None:
    """Return the mount namespace of a process, None for a process no longer the app's."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        # While the pidfd's process lives, both were about that process, not an earlier one of the number.
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
