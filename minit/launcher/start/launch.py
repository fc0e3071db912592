"""
The `run` entrypoint's work: from the arguments to a running PID 1, then waiting for the end of PID 1.

The process is rkt's own, with the same pid; the user of `rkt run` sees the exit code.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, LaunchError, MinitError, Step, describe, step_of
from minit.base.value import replace
from minit.launcher import upgradable
from minit.launcher.cgroups import Hierarchy
from minit.launcher.devices.openvolumes import open_kubernetes_log
from minit.launcher.health.healthhelper import HealthHelper, PodChecks
from minit.launcher.ownimage import image_descriptor
from minit.launcher.podhelper import PodHelper
from minit.launcher.portforwarder import PortForwarder, listen
from minit.launcher.start.delegation import usable_hierarchies
from minit.launcher.start.enterprofiles import write_profiles
from minit.launcher.start.killed import KillWitness
from minit.launcher.start.launcher import CODEC, Launcher, kill_left
from minit.launcher.start.listenfds import AppSockets, InheritedSocket, find_sockets, match_sockets
from minit.launcher.start.load import collect_facts, load_pod, read_host_address, read_host_dns
from minit.launcher.start.networkhelper import NetworkHelper
from minit.launcher.start.preparation import (
    Placed,
    Start,
    no_sockets,
    place_groups,
    prepare,
    supervisor_ends,
)
from minit.launcher.start.usernamespace import admit, make_mounts, open_network
from minit.launcher.start.watch import FORWARDED, Watch, heard_signals
from minit.linux import syscalls
from minit.linux.attributes import Attributes, Limit
from minit.linux.forks import PID_1, clone
from minit.linux.hostnotify import DESCRIPTOR_VARIABLE, SOCKET_VARIABLE, Host, find_descriptor, take_host
from minit.linux.messages import Socket, socket_pair
from minit.linux.ownprogram import answer_trial, find_program, go_back, has_way_back
from minit.linux.process import leave_realtime, raise_limits, read_attributes, read_limits
from minit.linux.stdio import complain, complain_at_once, open_standard_streams
from minit.linux.terminal import CallerTerminal, look_at_terminal
from minit.network.podnames import reserve
from minit.network.uplink import hold_uplink
from minit.plan.appspec import AppSpec
from minit.plan.connection import addresses_of, connect, expand_texts
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.runtimeconfig import RuntimeConfig, encode_runtime_config
from minit.plan.networks.networkplan import Connection, NetworkPlan
from minit.plan.podplan import PodPlan, plan_pod
from minit.podfiles import paths
from minit.podfiles.podfile import record_failure, write_pod_file
from minit.podfiles.usersdirectory import hold_namespace, user_network
from minit.supervisor.boot import (
    MadeMounts,
    SupervisorEnds,
    prove_supervisor,
    resume_supervisor,
    run_supervisor,
    tell_failure,
)
from minit.supervisor.kernelsettings import bring_up_loopback, write_sysctls
from minit.supervisor.supervisor import WATCHED_SIGNALS

_CLONE_FLAGS = {
    "mnt": syscalls.CLONE_NEWNS,
    "pid": syscalls.CLONE_NEWPID,
    "uts": syscalls.CLONE_NEWUTS,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "user": syscalls.CLONE_NEWUSER,
}


def lock_descriptor(environment: Mapping[str, str]) -> int:
    """Return the descriptor of the locked pod directory, left open by stage0."""
    text = environment.get("RKT_LOCK_FD")
    if text is None:
        raise LaunchError("failed to get rkt lock fd: RKT_LOCK_FD env var is not set")
    try:
        lock = int(text)
        os.fstat(lock)
    except (ValueError, OSError) as error:
        raise LaunchError(f"failed to get rkt lock fd: RKT_LOCK_FD={text} is not an open descriptor") from error
    return lock


def launch(flags: RunFlags, lock: int) -> int:
    """Run the pod in the working directory and return its exit code."""
    pod = _Launch(flags, lock)
    with _ending_the_pod(lock):
        try:
            launcher = pod.start()
        except BaseException:
            pod.undo()
            raise
        return launcher.follow()


def resume_launcher() -> NoReturn:
    """Be the launcher in a program that the launcher has executed."""
    upgradable.resume(CODEC, _follow)


def _follow(launcher: Launcher) -> int:
    with _ending_the_pod(launcher.lock):
        return launcher.follow()


@contextmanager
def _ending_the_pod(lock: int) -> Iterator[None]:
    """At the end of a pod write down a failure, and wait for the remover; an OSError is a LaunchError with the step."""
    try:
        try:
            yield
        except OSError as error:
            raise LaunchError(f"failed to {step_of(error)}: {describe(error)}") from error
    except MinitError as error:
        record_failure(describe(error))
        raise
    finally:
        _await_remover(os.environ, lock)


def _await_remover(environment: Mapping[str, str], lock: int) -> None:
    """Give up the lock of the pod, and wait for the process that then removes the pod, if stage0 has started one."""
    remover = environment.get(paths.REMOVER_VARIABLE, "")
    if remover.isdecimal():
        os.close(lock)
        with suppress(ChildProcessError):
            os.waitpid(int(remover), 0)


def resume() -> NoReturn:
    """Be PID 1 in a program that PID 1 has executed; the first argument is the descriptor of the state."""
    code: int = EXIT_FAILURE
    try:
        code = resume_supervisor(int(sys.argv[1]))
    except BaseException as error:
        if has_way_back():
            complain_at_once(f"stage1: error of another version of PID 1: {error!r}: the old version goes on")
            go_back()
        traceback.print_exception(error)
    finally:
        os._exit(code)


def prove() -> NoReturn:
    """Show whether this program can be PID 1 with a state, in a child of a PID 1 that executes another program."""
    answer_trial(prove_supervisor)


def prove_launcher() -> NoReturn:
    """Show whether this program can be the launcher with a state, as `prove` for PID 1."""
    upgradable.prove(CODEC)


class _Launch:
    """A pod being started, and the helpers that end with the pod."""

    def __init__(self, flags: RunFlags, lock: int) -> None:
        self._flags = flags
        self._lock = lock
        self._network: NetworkHelper | None = None
        self._helpers: list[PodHelper] = []
        self._host: Host | None = None
        # Descriptors by which things of a user without root stay.
        self._held: list[int] = []
        self._uplink: int | None = None
        self._forward: Callable[[Sequence[str]], PodHelper] | None = None
        self._kubernetes_log: int | None = None
        # The control groups of a pod without a PID namespace: the processes do not end with PID 1.
        self._left: tuple[Sequence[Hierarchy], str] | None = None

    def start(self) -> Launcher:
        """Start the pod, and return what then waits for the end."""
        with Step("shed what the caller left"):
            # Before a descriptor is opened, which would have the number of one that the caller has left closed.
            open_standard_streams()
            inherited = _find_sockets()
            self._uplink = hold_uplink()
            self._held = [fd for fd in (hold_namespace(), self._uplink) if fd is not None]
            # Of the caller, which the apps get: the attributes, and the limits if they are to have those.
            attributes, limits = _shed([self._lock, *self._held, *(each.fd for each in inherited)])
            raise_limits(for_users=bool(self._flags.private_users))
        start = Start(
            plan=lambda hierarchies: self._plan(hierarchies, limits),
            place=place_groups,
            sockets=lambda plan: _match_sockets(plan, inherited),
            begin=self._begin,
            find=usable_hierarchies,
            for_gc=True,
        )
        prepared = prepare(start, self._helpers)
        plan = prepared.plan
        with Step("look at the control groups of PID 1"):
            has_groups = bool(prepared.hierarchies) and plan.group_parent is None
            witness = KillWitness(prepared.own, prepared.subcgroup if has_groups else None)
        with Step("prepare the console"):
            terminal = _prepare_console(plan)
        specs = self._join_network(plan, prepared.specs)
        with Step("prepare the user namespace"):
            made = _make_mounts(plan)
        with Step("make PID 1"):
            link, theirs = socket_pair()
            ends = replace(
                supervisor_ends(prepared, theirs, self._lock, attributes),
                specs=specs,
                image=image_descriptor(),
                terminal=terminal,
                made=made,
                kubernetes_log=self._kubernetes_log,
            )
            if plan.host_pids:
                # Before the first process that no end of a namespace ends.
                write_pod_file(paths.POD_HOST_PIDS, b"")
                self._left = (prepared.hierarchies, prepared.subcgroup)
            pid, pidfd = _clone_supervisor(plan, ends, prepared.groups.supervisor)
        self._complete(plan, specs, pid, pidfd, link, attributes)
        return self._launcher(plan, pid, pidfd, link, terminal, witness)

    def _plan(self, hierarchies: Sequence[Hierarchy], limits: Sequence[Limit]) -> PodPlan:
        with Step("load pod"):
            pod = load_pod(self._flags)
            plan = plan_pod(pod, self._flags, collect_facts(hierarchies, pod, self._flags, limits))
            for line in plan.notices():
                complain(f"stage1: {line}")
        return plan

    def _begin(self, placed: Placed) -> None:
        """Have the network made while the launcher goes on."""
        # For the launcher alone, so before the first fork.
        self._host = _take_host()
        with Step("setup network"):
            network = _network_of(placed.plan, placed.sockets, self._flags)
            if network is not None:
                if user_network() is not None and network.ports:
                    self._forward = partial(PortForwarder, listen(network.ports))
                _reserve_names(placed.plan)
                self._network = NetworkHelper(network, self._flags, self._lock)
        with Step("open volumes"):
            self._kubernetes_log = _open_kubernetes_log(placed.plan)

    def _launcher(
        self,
        plan: PodPlan,
        pid: int,
        pidfd: int,
        link: Socket,
        terminal: CallerTerminal | None,
        witness: KillWitness,
    ) -> Launcher:
        """Return what waits for PID 1, with nothing else open."""
        kept = [helper.fileno() for helper in self._helpers]
        assert self._host is not None
        kept += self._held
        if self._host.descriptor is not None:
            kept.append(self._host.descriptor)
        program = find_program(image_descriptor())
        kept += () if program is None else program.descriptors()
        syscalls.close_all_but((0, 1, 2, self._lock, pidfd, link.fileno(), *kept))
        return Launcher(
            Watch(pid, pidfd, link, terminal, self._host, witness),
            self._lock,
            program,
            held=self._held,
            uplink=self._uplink,
            left=self._left,
            named=plan.uuid if plan.network is not None and plan.network.named is not None else None,
            tells_failure=self._flags.tell_failure,
            helpers=self._helpers,
        )

    def undo(self) -> None:
        """After a failed start end what has begun: the networks too, if there never was a PID 1."""
        try:
            kill_left(self._left)
        finally:
            if self._network is not None:
                self._network.undo()
            for helper in self._helpers:
                helper.end()

    def _join_network(self, plan: PodPlan, apps: tuple[AppSpec, ...]) -> tuple[AppSpec, ...]:
        """Join the pod's network and return the apps with the offers of the network."""
        connection: Connection | None = None
        if self._network is not None:
            with Step("setup network"):
                connection = self._network.wait(heard_signals())
                if self._forward is not None:
                    self._helpers.append(self._forward(connection.pod_addresses))
                apps = connect(apps, connection, self._flags.mds_token)
                _enter_network(plan, connection)
        elif plan.has_dns_of_host and (text := read_host_dns()) is not None:
            connection = Connection(namespace="", resolv_conf=text, is_host_dns=True)
            apps = connect(apps, connection, "")
        if plan.has_host_network and (plan.mutable or any(app.process.expansion for app in apps)):
            connection = _with_address_of_host(connection)
        if plan.mutable:
            with Step("write the options of the pod"):
                _remember_options(self._flags, connection)
        return expand_texts(apps, addresses_of(plan.uuid, connection))

    def _complete(
        self, plan: PodPlan, specs: Sequence[AppSpec], pid: int, pidfd: int, link: Socket, attributes: Attributes
    ) -> None:
        """Finish the start beside PID 1; a failure ends PID 1."""
        try:
            with Step("make PID 1"):
                _admit(plan, pid, link)
            with Step("write the profiles of the apps"):
                # While PID 1 is already at work.
                write_profiles(specs, attributes)
            if any(app.life.health for app in plan.apps):
                with Step("start checking the health of apps"):
                    self._helpers.append(HealthHelper(PodChecks(plan, pid)))
            with Step("setup network"):
                if self._network is not None:
                    self._network.release()
        except BaseException:
            syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
            raise
        self._network = None


def _shed(kept: Sequence[int]) -> tuple[Attributes, list[Limit]]:
    """
    Undo the caller's changes to the process, but for the descriptors `kept`.

    Returns the caller's attributes, which the apps get, and limits.
    """
    syscalls.set_process_name("minit-launcher")
    own = [fd for fd in (image_descriptor(), find_descriptor(os.environ)) if fd is not None]
    # Callers leak descriptors into rkt; a descriptor that reached an app or outlived us would be a hole or hold a lock.
    syscalls.close_all_but([0, 1, 2, *own, *kept])
    syscalls.close_range(3, flags=syscalls.CLOSE_RANGE_CLOEXEC)
    # The caller's settings must not decide about the pod's files, nor have the kernel reap the pod's children.
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    leave_realtime()
    attributes, limits = read_attributes(), read_limits()
    # Blocked before PID 1 exists: a SIGTERM to a PID 1 without a handler would vanish.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*WATCHED_SIGNALS, *FORWARDED))
    return attributes, limits


def _find_sockets() -> list[InheritedSocket]:
    if "LISTEN_PID" not in os.environ:
        return []
    sockets, warnings = find_sockets(os.environ, os.getpid())
    for line in warnings:
        complain(f"stage1: {line}")
    return sockets


def _take_host() -> Host:
    """Return the party to tell when the pod is ready, unknown to all processes of the pod."""
    told = {name: os.environ.pop(name) for name in (SOCKET_VARIABLE, DESCRIPTOR_VARIABLE) if name in os.environ}
    return take_host(told, lambda line: complain(f"stage1: {line}"))


def _network_of(plan: PodPlan, sockets: AppSockets, flags: RunFlags) -> NetworkPlan | None:
    """Return the networks to join; a pod without any has that told."""
    if plan.network is None:
        if plan.has_loopback_only:
            if not flags.quiet:
                complain("networking: networking namespace with loopback only")
            # As rkt: an empty list of networks.
            write_pod_file(paths.POD_NET_INFO, b"null")
        return None
    # Packets to the host's own socket already reach the app.
    taken = [
        (socket.protocol, socket.port)
        for app, fds in zip(plan.apps, sockets)
        for socket, fd in zip(app.process.sockets, fds)
        if fd is not None
    ]
    return plan.network.without_ports(taken) if taken else plan.network


def _reserve_names(plan: PodPlan) -> None:
    """Make the hosts file mounted in the apps, written to by the network helper and other pods."""
    if plan.network is not None and plan.network.named is not None:
        reserve(replace(plan.network.named, directory=os.getcwd(), started=time.time_ns()))


def _enter_network(plan: PodPlan, connection: Connection) -> None:
    """Move the launcher, from which PID 1 is made, into the pod's network."""
    namespace = os.open(connection.namespace, os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(namespace, syscalls.CLONE_NEWNET)
    os.close(namespace)
    bring_up_loopback()
    # Root of a user namespace of the pod's may not.
    write_sysctls([setting for setting in plan.sysctls if setting.of_network])
    if plan.private_users is not None:
        open_network(plan.private_users)


def _with_address_of_host(connection: Connection | None) -> Connection:
    """Return the connection of a pod in the network of the host: the pod has the host's address."""
    address = read_host_address()
    connection = connection or Connection(namespace="")
    return connection if address is None else replace(connection, host_address=address, pod_addresses=(address,))


def _remember_options(flags: RunFlags, connection: Connection | None) -> None:
    config = RuntimeConfig(
        flags=flags,
        host_address=None if connection is None else connection.host_address,
        resolv_conf=None if connection is None else connection.resolv_conf,
        is_host_dns=connection is not None and connection.is_host_dns,
        pod_addresses=() if connection is None else connection.pod_addresses,
    )
    write_pod_file(paths.POD_RUNTIME_CONFIG, encode_runtime_config(config))


def _open_kubernetes_log(plan: PodPlan) -> int | None:
    if plan.kubernetes_log_directory is None:
        return None
    return open_kubernetes_log(plan.kubernetes_log_directory, plan.private_users)


def _match_sockets(plan: PodPlan, inherited: list[InheritedSocket]) -> AppSockets:
    """Return of each socket of each app the inherited descriptor, if there is one."""
    if not inherited:
        return no_sockets(plan)
    matched, warnings = match_sockets(plan.apps, inherited)
    for line in warnings:
        complain(f"stage1: {line}")
    return matched


def _prepare_console(plan: PodPlan) -> CallerTerminal | None:
    """Return the caller's terminal, None if no app has a console."""
    if plan.console_uid is None:
        return None
    return look_at_terminal(is_read=plan.reads_console)


def _make_mounts(plan: PodPlan) -> MadeMounts:
    if plan.private_users is None:
        return MadeMounts()
    return make_mounts(plan, plan.private_users)


def _clone_supervisor(plan: PodPlan, ends: SupervisorEnds, supervisor_group: int | None) -> tuple[int, int]:
    """Make PID 1 with the pod's namespaces, in its v2 control group, and return pid and pidfd."""
    flags = 0
    for name in plan.namespaces:
        flags |= _CLONE_FLAGS[name]
    pod_directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(paths.POD_STAGE1_ROOTFS)
    try:
        pid, pidfd = clone(
            PID_1,
            lambda: run_supervisor(plan, ends),
            ends.descriptors(),
            flags=flags,
            cgroup=supervisor_group,
            tell=lambda error: tell_failure(ends.launcher, error),
        )
    except OSError as error:
        reason = describe(error)
        if plan.private_users is not None and error.errno == errno.EPERM:
            reason += ": in a chroot the kernel makes no user namespaces, leave out --private-users"
        raise LaunchError(f"failed to make the pod's namespaces: {reason}") from error
    os.fchdir(pod_directory)
    assert ends.launcher is not None
    ends.launcher.close()
    return pid, pidfd


def _admit(plan: PodPlan, pid: int, link: Socket) -> None:
    """Let PID 1 of a pod with a user namespace go on."""
    if plan.private_users is not None:
        admit(plan, plan.private_users, pid, link)
