"""
The child half of starting an app: from fork to execve, straight through.

Runs in a process of its own, first with PID 1's view of the pod, then inside the app's root, where nothing may be
imported: a file of the image would run as root. So everything is bound at import, and the import system is emptied
before the root changes. Reports go to PID 1 over a close-on-exec socket: {"prepared": [warnings]} with the descriptor
of the mount namespace, if it is a new one, or {"step", "errno", "path"}; end of file after "go" means that the exec
happened.
"""

from __future__ import annotations

import errno
import os
import resource
import stat

from minit import syscalls
from minit.errors import EXIT_EXEC_FAILED, EXIT_FAILURE, MinitError
from minit.messages import Socket, send_message
from minit.plan.app import STREAM_CONSOLE, STREAM_TTY
from minit.plan.mounts import DEV
from minit.plan.seccomp import DEFAULT_POLICY
from minit.process import forget_imports, join_cgroups, join_v2_group, reset_signals, set_oom_score
from minit.reaper.diagnose import check_exec, diagnose_exec
from minit.reaper.exit_status import STEP_EXEC
from minit.supervisor.credentials import become_user, drop_bounding_set, give_up_capabilities, leave_keyring
from minit.supervisor.mounts import apply_mounts, enter_root
from minit.supervisor.protection import protect_paths
from minit.supervisor.volumes import attach_files, attach_volumes
from minit.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from minit.plan.app import AppSpec
    from minit.supervisor.readiness import NotifyEnds


class ChildEnds(Value):
    """
    What an app's process takes over from PID 1: the report socket, its streams (None for null) and cgroup files.

    `console` is the slave of the pod's console for the streams that are it, `tty` that of the app's own terminal.
    `open_files` is the RLIMIT_NOFILE it gets, soft and hard. `trees` are detached mounts, one of each of its volumes,
    `dev` is one of a /dev that the launcher made. `sockets` are what it listens on. By `notify` it tells that it is
    ready, if it does.

    What only builds the root of an app that is added (`is_builder`) gets that as the detached mount `root`. An app
    whose root is there already has `namespace`, the mount namespace in which it is, and `group`, the directory
    of its v2 group, if it has to join that.
    """

    report: Socket
    stdin: int | None = None
    stdout: int | None
    stderr: int | None
    console: int | None = None
    tty: int | None = None
    cgroup_tasks: tuple[int, ...] = ()
    open_files: tuple[int, int]
    trees: tuple[int, ...] = ()
    dev: int | None = None
    sockets: tuple[int, ...] = ()
    root: int | None = None
    is_builder: bool = False
    notify: NotifyEnds | None = None
    namespace: int | None = None
    group: int | None = None

    def descriptors(self) -> list[int]:
        """Return the descriptors that the process keeps; all others of PID 1 are closed."""
        streams = (self.stdin, self.stdout, self.stderr, self.console, self.tty)
        possible = (*streams, self.dev, self.root, self.namespace, self.group)
        single = [fd for fd in possible if fd is not None]
        single += [] if self.notify is None else self.notify.descriptors()
        return [self.report.fileno(), *single, *self.cgroup_tasks, *self.trees, *self.sockets]


class NotFound(Exception):
    """No candidate for the executable exists in the app's root."""


def become_app(spec: AppSpec, rootfs: str, ends: ChildEnds) -> NoReturn:
    """Turn this forked process into the app whose root is at `rootfs` in the stage1 root; never returns."""
    step, path = "close descriptors", ""
    notes: list[str] = []
    report = ends.report
    try:
        syscalls.close_all_but((0, 1, 2, *ends.descriptors()))
        step = "start session"
        os.setsid()
        has_console = spec.stdin == STREAM_CONSOLE
        terminal = ends.console if has_console else ends.tty
        if terminal is not None:
            step = f"take the {'console' if has_console else 'terminal'}"
            from minit.supervisor.console import take_console  # loaded already, as PID 1 has opened it

            take_console(terminal)
        step = "join control groups"
        if ends.group is not None:
            join_v2_group(ends.group)
        join_cgroups(ends.cgroup_tasks)
        step = "set oom_score_adj"
        # Without one it starts neutral, as under rkt's stage1.
        if not set_oom_score(spec.oom_score_adj or 0) and spec.oom_score_adj is not None:
            notes.append(f"oom_score_adj cannot be lowered to {spec.oom_score_adj} without CAP_SYS_RESOURCE, skipping")
        step = "encode arguments"
        arguments = [os.fsencode(word) for word in spec.arguments]
        variables = dict(spec.environment)
        if ends.sockets:
            from minit.supervisor.sockets import place_sockets, socket_environment  # loaded by the launcher

            variables |= socket_environment(spec)
        pipe: int | None = None
        if ends.notify is not None:
            from minit.plan.readiness import NOTIFY_SOCKET  # loaded by the launcher, as is the next
            from minit.supervisor.readiness import place_descriptor

            pipe = ends.notify.pipe
            if spec.notifies:
                variables["NOTIFY_SOCKET"] = NOTIFY_SOCKET
        environment = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
        if ends.namespace is None:
            step = "unshare mount namespace"
            syscalls.unshare(syscalls.CLONE_NEWNS)
            namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            step = "mount"
            root, null = _build_root(spec, rootfs, ends)
        else:
            step = "open /dev/null"
            # The pod's, which no app can have replaced.
            namespace, null = ends.namespace, os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        step = "set resource limits"
        # Not before: each of the volumes is a descriptor until it is mounted.
        resource.setrlimit(resource.RLIMIT_NOFILE, ends.open_files)
        # In a user namespace PID 1 is dumpable, but what runs in a root of somebody else's must not be looked into.
        syscalls.set_dumpable(False)
        forget_imports()
        if ends.namespace is None:
            step = "pivot root"
            enter_root(root)
        else:
            step = "join mount namespace"
            syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        step = "open standard streams"
        _open_streams(spec, ends, null)
        step = "close descriptors"
        # Before any path of the manifest or the image is followed: /proc/self/fd leads past the mounts of the root.
        syscalls.close_all_but((0, 1, 2, report.fileno(), namespace, *ends.sockets, *(() if pipe is None else (pipe,))))
        step = "drop capabilities"
        drop_bounding_set(spec.bounding)
        give_up_capabilities()
        step = "find executable"
        path = find_executable(spec)
        if ends.is_builder:
            step = "report"
            send_message(report, {"prepared": notes}, [namespace])
            os._exit(0)
        step = "change directory to"
        os.chdir(spec.working_directory)
        step = "join a session keyring"
        # While it is root: keys of others are counted against small quotas, across all pods.
        leave_keyring()
        step = "change user"
        become_user(spec.uid, spec.gid, spec.supplementary_gids)
        if spec.sheds_privileges:
            step = "set no_new_privs"
            syscalls.set_no_new_privileges()
        step = "reset signals"
        reset_signals()
        step = "close descriptors"
        syscalls.close_range(3, flags=syscalls.CLOSE_RANGE_CLOEXEC)
        if ends.sockets:
            step = "pass sockets"
            others = (report.fileno(), namespace, *(() if pipe is None else (pipe,)))
            moved, namespace, *pipes = place_sockets(ends.sockets, others)
            report, pipe = Socket(fileno=moved), pipes[0] if pipes else None
        if pipe is not None and spec.notify_fd is not None:
            step = "pass the notification descriptor"
            # Detached, or the old object would close what is in its place.
            moved, namespace = place_descriptor(pipe, spec.notify_fd, (report.detach(), namespace))
            report = Socket(fileno=moved)
        step = "wait for the other apps"
        send_message(report, {"prepared": notes}, [namespace] if ends.namespace is None else [])
        if report.recv(16) != b"go":
            os._exit(EXIT_FAILURE)
        step = STEP_EXEC
        if spec.filters:
            if spec.seccomp != DEFAULT_POLICY:
                # Under filters of the user's own nothing may be left by which a failed exec could be reported.
                check_exec(path)
            step = "install seccomp filters"
            for program in spec.filters:
                syscalls.install_seccomp_filter(program)
            step = STEP_EXEC
        os.execve(path, [os.fsencode(path), *arguments], environment)
    except BaseException as error:
        # The last frame of a forked process: whatever went wrong is reported, and nothing returns to PID 1's code.
        try:
            _report(report, step, error)
            if step == STEP_EXEC:
                number = error.errno if isinstance(error, OSError) else None
                reason = diagnose_exec(path, errno.ENOENT if number is None else number)
                os.write(2, f"Error: {reason}\n".encode(errors="surrogateescape"))
        finally:
            os._exit(EXIT_EXEC_FAILED if step == STEP_EXEC else EXIT_FAILURE)


def find_executable(spec: AppSpec) -> str:
    """
    Return the first candidate that is an executable file inside the present root; NotFound if none is.

    A path given as such is not checked: what is wrong with it shows at exec. The search settles for any execute
    bit, as rkt's does, whoever the app runs as.
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
    """Return descriptors of the app's root, made a mount of this namespace and filled, and of its /dev/null."""
    os.umask(0)
    tree = ends.root
    if tree is None:
        tree = syscalls.open_tree(syscalls.AT_FDCWD, f"/{rootfs}", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    where = os.open(f"/{rootfs}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.move_mount(tree, where)
    apply_mounts(spec.mounts, tree, None if ends.dev is None else {DEV: ends.dev})
    # Before the volumes, one of which may hide it.
    null = syscalls.openat2(tree, "/dev/null", os.O_RDWR, resolve=syscalls.RESOLVE_IN_ROOT)
    places = attach_volumes(spec.volumes, ends.trees, tree, spec.sysfs)
    attach_files(spec.files, tree)
    if ends.notify is not None:
        from minit.supervisor.readiness import attach_socket  # loaded by the launcher

        attach_socket(ends.notify, tree)
    protect_paths(spec.protection, tree, places)
    if spec.read_only_root:
        syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_RDONLY)
    os.umask(0o022)
    return tree, null


def _open_streams(spec: AppSpec, ends: ChildEnds, null: int) -> None:
    terminals = {STREAM_CONSOLE: ends.console, STREAM_TTY: ends.tty}
    for number, mode, fd in ((0, spec.stdin, ends.stdin), (1, spec.stdout, ends.stdout), (2, spec.stderr, ends.stderr)):
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
    """Return a name, which may be of the image and any bytes, as text that a message can hold."""
    return os.fsencode(name).decode(errors="backslashreplace")
