"""
PID 1's way from clone3 to running apps: straight down, and lean.

A failure ends the pod with one line; once the apps are executed the supervisor takes over, first in a short poll, so
that a one-shot pod never pays for trio, then under trio.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from minit.base.errors import EXIT_FAILURE, LaunchError, MinitError, Step, describe, step_of
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.iottymux.spawner import Spawner
from minit.linux import syscalls
from minit.linux.attributes import Attributes
from minit.linux.forks import Kept
from minit.linux.messages import Socket, receive_message, send_message
from minit.linux.ownprogram import Program, find_program, has_way_back
from minit.linux.process import enter_own_mounts, join_cgroups
from minit.linux.stdio import complain_at_once, expect_raw_terminal
from minit.linux.terminal import CallerTerminal
from minit.plan.appspec import AppSpec
from minit.plan.podplan import PodPlan
from minit.plan.root.mountoperations import PROC, SYS
from minit.podfiles import paths
from minit.reaper.record import write_file
from minit.supervisor.apps.apprecords import write_environment
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.controlgroup import GroupEnds
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.starts import spawn_app
from minit.supervisor.exec.podconsole import open_console
from minit.supervisor.exec.privileges import become_user, drop_bounding_set, leave_keyring
from minit.supervisor.exec.socketactivation import open_sockets
from minit.supervisor.execution import FirstProcess, go_on, make_supervisor, resume_first_process, settle
from minit.supervisor.journal import Journal
from minit.supervisor.kernelsettings import bring_up_loopback, write_sysctls
from minit.supervisor.lastloop import end_without_objects
from minit.supervisor.launcherlink import LauncherLink, Outside
from minit.supervisor.root.applymounts import apply_mounts, enter_root
from minit.supervisor.supervisor import WATCHED_SIGNALS, Supervisor

# How long the apps are watched before trio is started; most one-shot apps end before.
_QUICK_SECONDS = 0.02
# A longer exec, from a stuck filesystem say, is waited for under trio, where the control socket answers.
_START_SECONDS = 2.0
_CONTROL_BACKLOG = 64
_CGROUPS = "/sys/fs/cgroup"
# The one writable place of the stage1 root holds nothing but data, for any process of the pod.
_STATE = "rkt"
_STATE_ATTRIBUTES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
# -1000 would exempt PID 1 altogether; one more keeps PID 1 the last choice.
_OOM_SCORE = b"-999"
# Everything for the launcher fits into a message.
_MAX_FAILURE_LENGTH = 4000

_Process = TypeVar("_Process", bound=FirstProcess)


class MadeMounts(Value):
    """
    Detached mounts made by root of the host alone: of the pod's root, by target, and the /dev of each app.
    """

    pod: tuple[tuple[str, int], ...] = ()
    apps: tuple[int, ...] = ()

    def descriptors(self) -> list[int]:
        """Return all mounts."""
        return [*(tree for _, tree in self.pod), *self.apps]


class SupervisorEnds(Value):
    """
    Descriptors passed from the launcher to PID 1, opened while host paths could still be resolved.

    `specs` are the apps, `sidecar_filter` is the system call filter of the sidecars. `root` is a detached copy of the
    stage1 root and everything below. The working directory is the origin of the copy: a namespace copies the directory
    with the mounts, while a descriptor would still name the host's mount. `image` is the mount that the interpreter was
    started from. `hierarchies` is a detached copy of the host's control groups, read-only, None for an unusual mount
    point. `attributes` are the caller's, for the apps. `trees` has a detached mount of each volume of each app, in the
    plan's order. `sockets` has a descriptor of each socket of each app, None for one to be opened by PID 1. `terminal`
    is given for a pod with a console, `made` for one with a user namespace. `kubernetes_log` is a detached mount of the
    host's directory for logs. `kept` outlive the pod, on a machine with PID 1 as the first process, without a launcher.
    """

    specs: tuple[AppSpec, ...]
    sidecar_filter: bytes
    launcher: Socket | None
    lock: int
    root: int
    image: int | None
    tasks: tuple[int, ...]
    groups: tuple[GroupEnds, ...]
    hierarchies: int | None
    attributes: Attributes
    trees: tuple[tuple[int, ...], ...]
    sockets: tuple[tuple[int | None, ...], ...]
    terminal: CallerTerminal | None = None
    kubernetes_log: int | None = None
    made: MadeMounts = MadeMounts()
    kept: tuple[int, ...] = ()

    def descriptors(self) -> Mapping[str, Kept]:
        """Return the descriptors kept by PID 1; all others of the launcher are closed."""
        return {
            "launcher": None if self.launcher is None else self.launcher.fileno(),
            "lock": self.lock,
            "image": self.image,
            "stage1 root": self.root,
            "volumes": [tree for trees in self.trees for tree in trees],
            "other mounts": self.made.descriptors(),
            "hierarchies": self.hierarchies,
            "control groups": [*self.tasks, *(fd for group in self.groups for fd in group.descriptors())],
            "sockets": [fd for sockets in self.sockets for fd in sockets if fd is not None],
            "logs of kubernetes": self.kubernetes_log,
            "of the machine": self.kept,
        }


def run_supervisor(plan: PodPlan, ends: SupervisorEnds) -> int:
    """Be PID 1 of the pod until the end; returns the pod's code."""
    program = find_program(ends.image)
    process = run_apps(plan, ends, None, lambda supervisor: FirstProcess(supervisor, ends.launcher, ends.lock, program))
    return _tell_code(process)


def resume_supervisor(memory: int) -> int:
    """Be PID 1 of the pod in a program that PID 1 has executed, with the state at a descriptor; returns the code."""
    try:
        process = resume_first_process(memory)
    except Exception as error:
        if has_way_back():
            raise
        with suppress(Exception):
            end_without_objects(memory, describe(error))
        return EXIT_FAILURE
    try:
        resume_apps(process, memory)
        return _tell_code(process)
    except Exception as error:
        if has_way_back():
            raise
        tell_failure(process.launcher, error)
        return EXIT_FAILURE


def prove_supervisor(memory: int) -> None:
    """Make of the state at a descriptor what PID 1 would go on with in this program."""
    make_supervisor(resume_first_process(memory))


def tell_failure(launcher: Socket | None, error: BaseException) -> None:
    """Say why PID 1 ends, to the user and to the launcher."""
    failure: dict[str, object] = {"code": EXIT_FAILURE}
    if isinstance(error, (MinitError, OSError)):
        line = describe(error) if isinstance(error, MinitError) else f"{step_of(error)}: {describe(error)}"
        complain_at_once(f"stage1: {line}")
        failure["failed"] = line[:_MAX_FAILURE_LENGTH]
    else:
        # A defect of ours: the pod cannot go on, and only the traceback says why.
        traceback.print_exception(error)
    _tell_launcher(launcher, failure)


def run_apps(
    plan: PodPlan,
    ends: SupervisorEnds,
    outside: Callable[[Context], Outside] | None,
    process_of: Callable[[Supervisor], _Process],
) -> _Process:
    """
    Be PID 1 of the pod, and return the process with the pod's code when nothing of the pod is left.

    `outside` returns the outside of the pod, without a function the launcher.
    """
    process = process_of(_boot(plan, ends, outside))
    _run(process, lambda supervisor: _begin(supervisor, plan, ends, process.program))
    return process


def resume_apps(process: FirstProcess, memory: int) -> None:
    """Be PID 1 in a program that PID 1 has executed, until nothing of the pod is left."""
    try:
        make_supervisor(process)
        settle(process, memory)
    except Exception as error:
        if has_way_back():
            raise
        process.begin_once_more(error)
        return
    _run(process, lambda _: go_on(process))


def _boot(plan: PodPlan, ends: SupervisorEnds, outside: Callable[[Context], Outside] | None) -> Supervisor:
    """Start the apps."""
    try:
        return _start(plan, ends, outside)
    except OSError as error:
        raise LaunchError(f"{step_of(error)}: {describe(error)}") from error


def _start(plan: PodPlan, ends: SupervisorEnds, make: Callable[[Context], Outside] | None) -> Supervisor:
    if plan.host_pids:
        # Orphans of the pod would go to the host's first process, unrecognizable among others.
        syscalls.set_child_subreaper()
    with Step("listen to signals"):
        signals = syscalls.signalfd(WATCHED_SIGNALS)
    _enter_root(plan, ends)
    with Step("listen on the control socket"):
        control = _listen()
    with Step("set the host name"):
        syscalls.sethostname(plan.hostname)
    if plan.has_loopback_only:
        with Step("bring up lo"):
            bring_up_loopback()
    with Step("set sysctls"):
        write_sysctls([setting for setting in plan.sysctls if plan.has_loopback_only or not setting.of_network])
    with Step("open sockets"):
        sockets = [open_sockets(app.name, app.process.sockets, fds) for app, fds in zip(ends.specs, ends.sockets)]
    with Step("drop capabilities"):
        effective, permitted, _ = syscalls.get_capabilities()
        # A program that PID 1 executes has these, whatever leaves the bounding set.
        syscalls.set_capabilities(effective, permitted, permitted)
        drop_bounding_set(plan.bounding)
    with Step("join a session keyring"):
        leave_keyring()
    with Step("write the apps' environment"):
        for spec in ends.specs:
            write_environment(spec.name, spec.process.environment)
            write_file(paths.created_marker(spec.name), b"")
    master = slave = None
    if ends.terminal is not None and plan.console_uid is not None:
        with Step("open the console"):
            master, slave = open_console(plan.console_uid, ends.terminal)
            if ends.terminal.settings is not None:
                expect_raw_terminal()
    with Step("start the apps"):
        apps, spawner = _start_apps(plan, ends, sockets, master, slave)
    with Step("watch the apps"):
        context = Context(plan.traits, apps, ends.launcher, Journal(plan.debug), ends.sidecar_filter)
        if make is None:
            assert ends.launcher is not None
            outside: Outside = LauncherLink(context, ends.launcher, ends.terminal, master)
        else:
            outside = make(context)
        supervisor = Supervisor(context, outside, control, signals, ends.attributes)
        supervisor.start(spawner)
    return supervisor


def _enter_root(plan: PodPlan, ends: SupervisorEnds) -> None:
    """Be root of the pod, in its control group, and build and enter the pod's root."""
    if plan.private_users is not None:
        with Step("become root of the user namespace"):
            assert ends.launcher is not None
            _become_root(ends.launcher, keeps_saved_user=plan.keeps_saved_user)
    with Step("join control group"):
        join_cgroups(ends.tasks)
    if plan.private_users is None:
        with Step("protect from the OOM killer"):
            _protect_from_oom_killer()
    with Step("build the pod's root"):
        _build_root(plan, ends)
    with Step("make directories"):
        _make_directories()
    if ends.kubernetes_log is not None:
        with Step("mount the directory for logs"):
            _mount_kubernetes_log(ends.kubernetes_log)


def _start_apps(
    plan: PodPlan,
    ends: SupervisorEnds,
    sockets: Sequence[tuple[int, ...]],
    master: int | None,
    slave: int | None,
) -> tuple[list[App], Spawner | None]:
    """Fork the apps, on the console that is `slave`, and the spawner if needed; close descriptors only for forks."""
    _tell_launcher(ends.launcher, {"entered": True}, [] if master is None else [master])
    apps = []
    groups = {group.app: group for group in ends.groups}
    devs = ends.made.apps or (None,) * len(ends.specs)
    for spec, trees, listening, dev in zip(ends.specs, ends.trees, sockets, devs):
        app = App(spec, groups[spec.name], ends.attributes, listening)
        spawn_app(app, trees, slave, dev)
        apps.append(app)
    # After the apps, which meanwhile prepare themselves on another processor.
    has_output = plan.mutable or any(app.run.streams.need_sidecar or app.spec.life.has_handlers for app in apps)
    spawner = Spawner(ends.sidecar_filter) if has_output else None
    ours = ends.root, *ends.tasks, *ends.made.apps, *(tree for trees in ends.trees for tree in trees)
    for fd in ours:
        os.close(fd)
    for app in apps:
        if not app.spec.life.is_joined_later:
            app.forget_tasks()
    if slave is not None:
        os.close(slave)
    return apps, spawner


def _run(process: FirstProcess, begin: Callable[[Supervisor], None]) -> None:
    try:
        process.supervise(begin)
    except OSError as error:
        raise LaunchError(f"supervise the apps: {describe(error)}") from error


def _tell_code(process: FirstProcess) -> int:
    """Tell the launcher the code of a pod that has ended, and return the code."""
    code, cause = process.pod.exit_code or 0, process.pod.cause
    last: dict[str, object] = {"code": code}
    if cause is not None:
        last["cause"] = cause[:_MAX_FAILURE_LENGTH]
    # Said before: the kernel keeps PID 1 until every process of the pod has been reaped, perhaps by others.
    _tell_launcher(process.launcher, last)
    return code


def _begin(supervisor: Supervisor, plan: PodPlan, ends: SupervisorEnds, program: Program | None) -> None:
    """Have the apps execute their programs, and watch for a moment whether that was all."""
    pod = supervisor.pod
    start_until = time.monotonic() + _START_SECONDS
    while pod.order.starting and not pod.finished and (left := start_until - time.monotonic()) > 0:
        supervisor.turn(left)
    supervisor.sidecars.start_all()
    quick_until = time.monotonic() + _QUICK_SECONDS
    while not pod.finished and (left := quick_until - time.monotonic()) > 0:
        supervisor.turn(left)
    if not pod.finished:
        if ends.image is not None and (program is None or program.image is None):
            os.close(ends.image)
        _keep_plan(plan)


def _keep_plan(plan: PodPlan) -> None:
    """Write the plan down for whoever diagnoses the pod; what ran for a moment only has none."""
    text = "".join(f"{harmless(line)}\n" for line in plan.describe())
    try:
        write_file(paths.STAGE1_PLAN, text.encode())
    except OSError:
        pass  # a full disk, say


def _tell_launcher(launcher: Socket | None, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
    if launcher is None:
        return
    try:
        send_message(launcher, message, descriptors)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it is gone, which the supervisor finds out in a moment


def _protect_from_oom_killer() -> None:
    try:
        write_file("/proc/self/oom_score_adj", _OOM_SCORE)
    except PermissionError:
        pass  # without CAP_SYS_RESOURCE, as in a container, minit is as likely a choice as any


def _become_root(launcher: Socket, *, keeps_saved_user: bool) -> None:
    """
    Wait for the launcher to map the ids of the user namespace, and take the ids of the namespace's root.

    The saved user may stay: nobody in the namespace can take an id that the namespace does not have.
    """
    message, _ = receive_message(launcher)
    if message is None:
        # The launcher gives the reason itself.
        raise SystemExit(EXIT_FAILURE)
    become_user(0, 0, (), saved_uid=-1 if keeps_saved_user else 0)
    # The memory of PID 1 belongs to the host's user namespace, like the launcher's: without dumpable memory not even a
    # process of the pod with CAP_SYS_PTRACE could look at /proc/1, nor PID 1 at its own files there. Processes without
    # the capability are kept off, since PID 1 holds more capabilities (ptrace(2), "access mode checking").
    syscalls.set_dumpable(True)
    # The change of ids took the signal away.
    syscalls.set_parent_death_signal(signal.SIGTERM)


def _hidden(path: str) -> str:
    """Return why the kernel refuses root of a user namespace a new filesystem, mount_namespaces(7)."""
    return (
        f"cannot mount {path} for the pod: parts of {path} are hidden here, as in a container: "
        f"start the container with the whole {path} (docker: --security-opt systempaths=unconfined)"
    )


def _build_root(plan: PodPlan, ends: SupervisorEnds) -> None:
    # Slave before anything is attached: a mount made here must never reach the host.
    enter_own_mounts(syscalls.MS_SLAVE)
    syscalls.move_mount(ends.root, syscalls.AT_FDCWD, to_path=".")
    writable = [_STATE, *(paths.app_rootfs(spec.name) for spec in ends.specs)]
    for path in writable:
        tree = syscalls.open_tree(ends.root, path, syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
        if path == _STATE:
            syscalls.mount_setattr(tree, set=_STATE_ATTRIBUTES)
        where = syscalls.openat2(ends.root, path, os.O_PATH | os.O_DIRECTORY, resolve=syscalls.RESOLVE_IN_ROOT)
        syscalls.move_mount(tree, where)
        os.close(where)
        os.close(tree)
    syscalls.mount_setattr(ends.root, set=syscalls.MOUNT_ATTR_RDONLY)
    os.umask(0)
    try:
        apply_mounts(plan.mounts, ends.root, dict(ends.made.pod))
    except PermissionError as error:
        if error.filename in (PROC.target, SYS):
            raise LaunchError(_hidden(error.filename)) from error
        raise
    os.umask(0o022)
    if ends.hierarchies is not None:
        where = syscalls.openat2(ends.root, _CGROUPS, os.O_PATH | os.O_DIRECTORY, resolve=syscalls.RESOLVE_IN_ROOT)
        syscalls.move_mount(ends.hierarchies, where)
        os.close(where)
        os.close(ends.hierarchies)
    enter_root(ends.root)


def _make_directories() -> None:
    for path, mode in ((paths.STAGE1_STATE, 0o755), (paths.STAGE1_LOG, 0o750)):
        os.makedirs(path, mode, exist_ok=True)


def _mount_kubernetes_log(tree: int) -> None:
    os.makedirs(paths.STAGE1_KUBERNETES_LOG, 0o755, exist_ok=True)
    syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=paths.STAGE1_KUBERNETES_LOG)
    os.close(tree)


def _listen() -> Socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    sock.bind(paths.STAGE1_CONTROL)
    os.umask(mask)
    sock.listen(_CONTROL_BACKLOG)
    return sock
