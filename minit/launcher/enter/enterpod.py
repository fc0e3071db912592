"""The `enter` entrypoint's work: running a command in an app, as confined as the app, or in the stage1 root."""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base.errors import LaunchError
from minit.base.value import replace
from minit.launcher.enter.appgroups import AppGroup, find_groups, open_groups
from minit.launcher.enter.commandgroup import CommandGroup, Guard
from minit.launcher.enter.enterchild import Entrance, enter
from minit.launcher.enter.enterconsole import open_enter_console, outer_id
from minit.launcher.enter.enterwatch import EnterWatch, hold_signals
from minit.launcher.enter.findapp import find_app
from minit.launcher.stop import has_ended, open_supervisor
from minit.linux import syscalls
from minit.linux.forks import numbers
from minit.linux.messages import Socket, send_message, socket_pair
from minit.linux.stdio import open_standard_streams
from minit.plan.entering import EnterProfile
from minit.plan.life.appenvironment import DEFAULT_TERM

_STREAMS = (0, 1, 2)


def enter_pod(
    pid: int,
    app: str | None,
    command: Sequence[str],
    *,
    privileged: bool = False,
    as_app: bool = False,
    timeout_seconds: float | None = None,
) -> int:
    """
    Run `command` in the pod whose PID 1 is `pid` on the host and return its exit code.

    With an app it has that app's root, environment and confinement, as root or, with `as_app`, as the app's user; if
    `privileged`, the root and the environment, but all that PID 1 may do, and none of the app's limits. Without an app
    it has the stage1 root and the caller's environment. A command that dies of a signal makes this process die of it
    too. The working directory is the pod directory.

    Of a command with a time limit nothing is left when it has ended, and EXIT_TIMED_OUT tells that its time was over.
    Only one that is confined as an app can have one.
    """
    open_standard_streams()
    hold_signals()
    syscalls.set_dumpable(False)
    pidfd, status = open_supervisor(pid)
    bounding = int(status["CapBnd"], 16)
    namespace: int | None = None
    pids: int | None = None
    groups: Sequence[AppGroup] = ()
    guard: Guard | None = None
    if app is None:
        profile = EnterProfile(environment=tuple(os.environb.items()))
    else:
        namespace, profile, pids = find_app(pid, status["State"], app)
        term = os.environb.get(b"TERM", DEFAULT_TERM.encode())
        profile = replace(
            profile, environment=(*(pair for pair in profile.environment if pair[0] != b"TERM"), (b"TERM", term))
        )
        if not as_app:
            profile = replace(profile, confinement=replace(profile.confinement, uid=0, gid=0))
        if privileged:
            profile = EnterProfile(environment=profile.environment, working_directory=profile.working_directory)
        else:
            groups = find_groups(app)
    terminals = tuple(fd for fd in _STREAMS if os.isatty(fd))
    console = open_enter_console(pid, terminals, profile.confinement.uid) if terminals else None
    if as_app:
        _own_pipes(outer_id(pid, "uid_map", profile.confinement.uid))
    if has_ended(pidfd):
        # The process that was opened by its number may be another one.
        raise LaunchError(f"pod is not running any more: process {pid} has ended")
    if timeout_seconds is not None:
        # Last: of what is written to between two forks the kernel copies each page twice.
        own = CommandGroup(groups)
        guard, groups = Guard(own, timeout_seconds), own.joined
    entrance = Entrance(
        supervisor=pidfd,
        namespace=namespace,
        pids=pids,
        own_users=not _is_same_file(f"/proc/{pid}/ns/user", "/proc/self/ns/user"),
        groups=tuple(open_groups(groups)),
        bounding=bounding,
        profile=profile,
        terminal=None if console is None else console.slave,
        terminal_streams=terminals,
    )
    ours, theirs = socket_pair()
    first = enter(entrance, command, theirs)
    theirs.close()
    for fd in numbers(entrance.descriptors().values()):
        os.close(fd)
    return EnterWatch(first, ours, console, guard).run()


def hand_root(pid: int, app: str, link: int) -> int:
    """
    Send the root that `app` has, in the pod whose PID 1 is `pid` on the host, and return the exit code.

    Two descriptors are sent by `link`, a SEQPACKET socket: the root, and the app's mount namespace, without which what
    is mounted in the root would be gone when the app ends. Nothing is executed, and no path of the app is followed. The
    working directory is the pod directory.
    """
    open_standard_streams()
    syscalls.set_dumpable(False)
    pidfd, status = open_supervisor(pid)
    namespace, _, _ = find_app(pid, status["State"], app)
    if has_ended(pidfd):
        raise LaunchError(f"pod is not running any more: process {pid} has ended")
    syscalls.setns(namespace, syscalls.CLONE_NEWNS)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with Socket(fileno=link) as socket:
        send_message(socket, {}, [root, namespace])
    return 0


def _own_pipes(uid: int) -> None:
    """Let the command open those of its standard streams that are pipes by their names, as scripts do /dev/stderr."""
    for fd in _STREAMS:
        # Not a FIFO, which has a path: it would be the user's of that number on the host for ever.
        if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:["):
            os.fchown(fd, uid, -1)


def _is_same_file(path: str, other: str) -> bool:
    return os.path.samestat(os.stat(path), os.stat(other))
