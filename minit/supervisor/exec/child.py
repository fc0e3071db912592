"""
The child half of starting an app: from fork to execve, straight through.

Runs in a process of its own, first with PID 1's view of the pod, then inside the app's root, where nothing may be
imported: a file of the image would run as root. So everything is bound at import, and the import system is emptied
before the root changes. Reports go to PID 1 over a close-on-exec socket: {"pids"} with the descriptor of the PID
namespace, if the app has its own, {"prepared": [warnings]} with the descriptor of a new mount namespace, or {"step",
"errno", "path"}; end of file after "go" means a successful exec.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from minit.base.errors import EXIT_EXEC_FAILED, EXIT_FAILURE, MinitError, Step, step_of
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.attributes import Attributes
from minit.linux.forks import APP, Kept, clone
from minit.linux.messages import Socket, send_message
from minit.linux.process import admit_limits, join_cgroups, join_v2_group, set_oom_score, take_attributes
from minit.plan.appspec import AppSpec
from minit.plan.life.hooks import Hook
from minit.plan.lifeplan import NOTIFY_SOCKET
from minit.plan.process import ProcessPlan
from minit.plan.root.mountoperations import DEV, PROC
from minit.plan.streams import STREAM_CONSOLE, TTY_STREAMS
from minit.reaper.diagnose import diagnose_exec
from minit.reaper.exit_status import STEP_EXEC
from minit.supervisor.exec.notifyends import NotifyEnds, attach_socket, place_descriptor
from minit.supervisor.exec.podconsole import take_console
from minit.supervisor.exec.privileges import Command, choose_profile, execute
from minit.supervisor.exec.socketactivation import place_sockets, socket_environment
from minit.supervisor.root.applymounts import apply_mounts, enter_root
from minit.supervisor.root.attachvolumes import attach_files, attach_volumes, make_directory, open_memory_volume
from minit.supervisor.root.maskpaths import hide_hierarchies, protect_paths


class ChildEnds(Value):
    """
    Descriptors for an app's process from PID 1: the report socket, the streams (None for null) and cgroup files.

    `console` is the slave of the pod's console for the streams on the console, `tty` the slave of the app's own
    terminal. `attributes` replace those of PID 1. `trees` are detached mounts, one for each volume, `dev` is a detached
    /dev made by the launcher. The app listens on `sockets`. By `notify` the app says that the app is ready.

    The builder of the root of an added app (`is_builder`) gets the root as the detached mount `root`. An app with a
    root already made has `namespace`, the mount namespace of the root, and `group`, the directory of the v2 group to
    join, if any.
    """

    report: Socket
    stdin: int | None = None
    stdout: int | None
    stderr: int | None
    console: int | None = None
    tty: int | None = None
    cgroup_tasks: tuple[int, ...] = ()
    attributes: Attributes
    trees: tuple[int, ...] = ()
    dev: int | None = None
    sockets: tuple[int, ...] = ()
    root: int | None = None
    is_builder: bool = False
    notify: NotifyEnds | None = None
    namespace: int | None = None
    group: int | None = None

    def descriptors(self) -> Mapping[str, Kept]:
        """Return the descriptors kept by the process; all others of PID 1 are closed."""
        return {
            "report": self.report.fileno(),
            "streams": (self.stdin, self.stdout, self.stderr),
            "terminals": (self.console, self.tty),
            "mount namespace": self.namespace,
            "control groups": (self.group, *self.cgroup_tasks),
            "root": self.root,
            "volumes": self.trees,
            "/dev": self.dev,
            "notification": None if self.notify is None else self.notify.descriptors(),
            "sockets": self.sockets,
        }


class NotFound(Exception):
    """No candidate for the executable exists in the app's root."""


def fork_app(
    spec: AppSpec, rootfs: str, ends: ChildEnds, birthplace: int | None = None, pids: int | None = None
) -> tuple[int, int]:
    """
    Fork the process of the app with its root at `rootfs` in the stage1 root, and return number and pidfd.

    The process starts in the v2 group of the directory `birthplace`, and in the PID namespace `pids`, of another app or
    with a first process of ours.
    """
    child = _Child(spec, rootfs, ends)
    is_born_elsewhere = pids is not None or spec.process.pids_of is not None or ends.is_builder
    flags = syscalls.CLONE_NEWPID if spec.process.own_pids and not is_born_elsewhere else 0
    return clone(APP, child.run, ends.descriptors(), flags=flags, cgroup=birthplace, pids=pids, tell=child.fail)


class _Child:
    """
    The process on the way to become the app.

    `namespace` is the mount namespace of the app's root, `null` the pod's /dev/null, which no app can have replaced.
    `pipe` is the descriptor by which the app says that the app is ready, if any.
    """

    namespace: int
    null: int

    def __init__(self, spec: AppSpec, rootfs: str, ends: ChildEnds) -> None:
        self._spec = spec
        self._rootfs = rootfs
        self._ends = ends
        self._report = ends.report
        self._pipe = None if ends.notify is None else ends.notify.pipe
        self._path = ""
        self._notes: list[str] = []

    def run(self) -> NoReturn:
        """Go all the way to execve(2)."""
        self._take_terminal()
        self._tell_pids()
        self._join_groups()
        arguments, environment = self._encode()
        choose_profile(self._spec.confinement)
        self._enter_root()
        limits = self._spec.resources.rlimits
        execute(self._spec.confinement, limits, self._look_up, lambda: self._get_ready(arguments, environment))

    def fail(self, error: BaseException) -> int:
        """Tell PID 1 of an error, and the readers of the app's errors if the executable is at fault; return a code."""
        step = step_of(error)
        with suppress(OSError):
            _report(self._report, step, error)
            if step == STEP_EXEC:
                number = error.errno if isinstance(error, OSError) else None
                reason = diagnose_exec(self._path, errno.ENOENT if number is None else number)
                os.write(2, f"Error: {harmless(reason)}\n".encode())
        return EXIT_EXEC_FAILED if step == STEP_EXEC else EXIT_FAILURE

    @property
    def _has_new_namespace(self) -> bool:
        """Tell whether the mount namespace is new to PID 1."""
        return self._ends.namespace is None or self._spec.process.own_pids

    def _take_terminal(self) -> None:
        has_console = self._spec.streams.stdin == STREAM_CONSOLE
        terminal = self._ends.console if has_console else self._ends.tty
        if terminal is not None:
            with Step(f"take the {'console' if has_console else 'terminal'}"):
                take_console(terminal)

    def _tell_pids(self) -> None:
        if self._spec.process.own_pids and not (self._spec.process.has_init or self._ends.is_builder):
            with Step("open the PID namespace"):
                own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
                send_message(self._report, {"pids": True}, [own])
                os.close(own)

    def _join_groups(self) -> None:
        with Step("join control groups"):
            if self._ends.group is not None:
                join_v2_group(self._ends.group)
            join_cgroups(self._ends.cgroup_tasks)
        if self._spec.has_group_namespace:
            with Step("unshare control group namespace"):
                syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        with Step("set oom_score_adj"):
            # Without a score the app starts neutral, as under rkt's stage1.
            score = self._spec.resources.oom_score_adj
            if not set_oom_score(score or 0) and score is not None:
                self._notes.append(f"oom_score_adj cannot be lowered to {score} without CAP_SYS_RESOURCE, skipping")

    def _encode(self) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Return the app's arguments, without the first, and the environment."""
        with Step("encode arguments"):
            arguments = [os.fsencode(word) for word in self._spec.process.arguments]
            variables = dict(self._spec.process.environment)
            if self._ends.sockets:
                variables |= socket_environment(self._spec.process.sockets)
            if self._spec.life.notifies and self._ends.notify is not None:
                variables["NOTIFY_SOCKET"] = NOTIFY_SOCKET
            return arguments, {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}

    def _enter_root(self) -> None:
        """Make the app's root, or find an existing one, and enter the root with the app's streams."""
        if self._ends.namespace is None:
            with Step("unshare mount namespace"):
                syscalls.unshare(syscalls.CLONE_NEWNS)
                self.namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            with Step("mount"):
                root, self.null = _build_root(self._spec, self._rootfs, self._ends)
        else:
            with Step("open /dev/null"):
                self.namespace, self.null = self._ends.namespace, os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            if self._spec.process.own_pids:
                with Step("mount"):
                    root = copy_root(self._spec, self._rootfs, self._ends.namespace)
                    self.namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        with Step("take the attributes of the app"):
            take_attributes(self._ends.attributes)
            # While this process may: an app without a filter can have narrowed those of PID 1.
            admit_limits(self._spec.resources.rlimits)
            # In a user namespace PID 1 is dumpable, but nobody may look into a process in a root of somebody else's.
            syscalls.set_dumpable(False)
        if self._has_new_namespace:
            with Step("pivot root"):
                enter_root(root)
        else:
            with Step("join mount namespace"):
                syscalls.setns(self.namespace, syscalls.CLONE_NEWNS)
        with Step("open standard streams"):
            _open_streams(self._spec, self._ends, self.null)
        with Step("close descriptors"):
            # Before any path of the manifest or the image is followed: /proc/self/fd leads past the mounts of the root.
            pipe = () if self._pipe is None else (self._pipe,)
            syscalls.close_all_but((0, 1, 2, self._report.fileno(), self.namespace, *self._ends.sockets, *pipe))

    def _look_up(self) -> None:
        """Find the executable, and change to the working directory; a builder of the root ends here."""
        if not (self._ends.is_builder and self._spec.process.finds_executable_late):
            with Step("find executable"):
                self._path = find_executable(self._spec.process)
        if self._ends.is_builder:
            with Step("report"):
                send_message(self._report, {"prepared": self._notes}, [self.namespace])
                raise SystemExit
        with Step("change directory to"):
            os.chdir(self._spec.process.working_directory)

    def _get_ready(self, arguments: list[bytes], environment: dict[bytes, bytes]) -> Command:
        self._place_descriptors()
        self._wait()
        return self._path, [os.fsencode(self._spec.process.command or self._path), *arguments], environment

    def _place_descriptors(self) -> None:
        """Put the passed descriptors to the numbers that the app expects, and let execve(2) close the rest."""
        with Step("close descriptors"):
            syscalls.close_range(3, flags=syscalls.CLOSE_RANGE_CLOEXEC)
        if self._ends.sockets:
            with Step("pass sockets"):
                others = (self._report.fileno(), self.namespace, *(() if self._pipe is None else (self._pipe,)))
                moved, self.namespace, *pipes = place_sockets(self._ends.sockets, others)
                self._report, self._pipe = Socket(fileno=moved), pipes[0] if pipes else None
        if self._pipe is not None and self._spec.life.notify_fd is not None:
            with Step("pass the notification descriptor"):
                # Detached, or the old object would close the new descriptor of that number.
                others = (self._report.detach(), self.namespace)
                moved, self.namespace = place_descriptor(self._pipe, self._spec.life.notify_fd, others)
                self._report = Socket(fileno=moved)

    def _wait(self) -> None:
        with Step("wait for the other apps"):
            namespaces = [self.namespace] if self._has_new_namespace else []
            send_message(self._report, {"prepared": self._notes}, namespaces)
            if self._report.recv(16) != b"go":
                raise SystemExit(EXIT_FAILURE)


def find_executable(spec: ProcessPlan | Hook) -> str:
    """
    Return the first candidate with an executable file inside the present root; NotFound if none is.

    A path given as such is not checked: exec shows any fault. The search settles for any execute bit, as rkt's does,
    whichever user the app has.
    """
    if spec.search is None:
        return spec.candidates[0]
    for candidate in spec.candidates:
        try:
            mode = os.stat(candidate).st_mode
        except OSError:
            continue
        if not stat.S_ISDIR(mode) and mode & 0o111:
            return candidate
    name = spec.candidates[0].rpartition("/")[2]
    raise NotFound(f'unable to find "{name}" in "{spec.search}"')


def _build_root(spec: AppSpec, rootfs: str, ends: ChildEnds) -> tuple[int, int]:
    """Return descriptors of the app's root, made a mount of this namespace and filled, and of the /dev/null there."""
    os.umask(0)
    tree = ends.root
    if tree is None:
        tree = syscalls.open_tree(syscalls.AT_FDCWD, f"/{rootfs}", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    where = os.open(f"/{rootfs}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.move_mount(tree, where)
    apply_mounts(spec.storage.mounts, tree, None if ends.dev is None else {DEV: ends.dev})
    # Before the volumes, one of which may hide /dev.
    dev = syscalls.openat2(tree, DEV, os.O_PATH | os.O_DIRECTORY, resolve=syscalls.RESOLVE_IN_ROOT)
    null = os.open("null", os.O_RDWR | os.O_CLOEXEC, dir_fd=dev)
    volumes = (*spec.storage.volumes, *spec.storage.memory_volumes)
    trees = (*ends.trees, *map(open_memory_volume, spec.storage.memory_volumes))
    places = attach_volumes(volumes, trees, tree, spec.storage.sysfs, sysfs_yields=spec.storage.sysfs_yields)
    if spec.process.makes_working_directory:
        make_directory(spec.process.working_directory, tree)
    attach_files(spec.storage.files, tree, dev, places, read_only=spec.storage.read_only_root)
    os.close(dev)
    if ends.notify is not None:
        attach_socket(ends.notify, tree)
    placed = list(zip(volumes, places))
    if spec.storage.protection.is_exact:
        hide_hierarchies(tree, placed, spec.groups)
    protect_paths(spec.storage.protection, tree, placed, spec.groups)
    if spec.storage.read_only_root:
        syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_RDONLY)
    os.umask(0o022)
    return tree, null


def copy_root(spec: AppSpec, rootfs: str, namespace: int) -> int:
    """
    Return a descriptor of a copy of the root of a mount namespace, in a new namespace, with a /proc of its own.

    Root of a user namespace may mount /proc where another whole /proc is seen, as PID 1's.
    """
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(namespace, syscalls.CLONE_NEWNS)
    tree = syscalls.open_tree(syscalls.AT_FDCWD, "/", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    syscalls.setns(own, syscalls.CLONE_NEWNS)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    where = os.open(f"/{rootfs}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.move_mount(tree, where)
    # No link, which the app could have changed since the mount of the old one, which would stay.
    resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
    old = syscalls.openat2(tree, PROC.target, os.O_PATH, resolve=resolve)
    syscalls.umount2(f"/proc/self/fd/{old}", syscalls.MNT_DETACH)
    apply_mounts((PROC,), tree)
    protect_paths(spec.storage.protection.below(PROC.target), tree, (), ())
    return tree


def _open_streams(spec: AppSpec, ends: ChildEnds, null: int) -> None:
    terminals = {STREAM_CONSOLE: ends.console, **dict.fromkeys(TTY_STREAMS, ends.tty)}
    for number, mode, fd in (
        (0, spec.streams.stdin, ends.stdin),
        (1, spec.streams.stdout, ends.stdout),
        (2, spec.streams.stderr, ends.stderr),
    ):
        source = terminals.get(mode, fd)
        os.dup2(null if source is None else source, number)


def _report(socket: Socket, step: str, error: BaseException) -> None:
    failure: dict[str, object] = {"step": step}
    if isinstance(error, OSError):
        failure["errno"] = error.errno
        if error.filename is not None:
            failure["path"] = _text(os.fsdecode(error.filename))
    else:
        failure["path"] = _text(str(error)) if isinstance(error, (NotFound, MinitError)) else repr(error)
    send_message(socket, failure)


def _text(name: str) -> str:
    """Return a name, perhaps of the image and any bytes, as text for a message."""
    return os.fsencode(name).decode(errors="backslashreplace")
