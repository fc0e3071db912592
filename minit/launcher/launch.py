"""
The `run` entrypoint's work: from the arguments to a running PID 1, then waiting for its end.

The process is rkt's own: same pid, and its exit code is what the user of `rkt run` sees.
"""

from __future__ import annotations

import _signal
import os
import resource

from minit import paths, syscalls
from minit.errors import LaunchError, describe
from minit.launcher.cgroups import make_pod_groups, open_hierarchies, pod_subcgroup, read_hierarchies
from minit.launcher.devices import apply_policies, device_group
from minit.launcher.load import collect_facts, load_pod, open_stage1_root
from minit.launcher.ownimage import image_descriptor, image_root
from minit.launcher.seccomp import add_filters
from minit.launcher.watch import FORWARDED, Watch
from minit.messages import Socket, socket_pair
from minit.plan.flags import RunFlags
from minit.plan.pod import PodPlan, plan_pod
from minit.podfile import write_pod_file
from minit.stdio import complain, open_standard_streams
from minit.supervisor.boot import MadeMounts, SupervisorEnds, run_supervisor
from minit.supervisor.supervisor import WATCHED_SIGNALS
from minit.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from minit.launcher.cgroups import Hierarchy
    from minit.launcher.devicefollower import DeviceVolume
    from minit.launcher.devicehelper import DeviceHelper
    from minit.launcher.healthhelper import HealthHelper
    from minit.launcher.network import NetworkHelper
    from minit.launcher.sockets import InheritedSocket
    from minit.plan.network import Connection
    from minit.terminal import CallerTerminal

_CLONE_FLAGS = {
    "mnt": syscalls.CLONE_NEWNS,
    "pid": syscalls.CLONE_NEWPID,
    "uts": syscalls.CLONE_NEWUTS,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "user": syscalls.CLONE_NEWUSER,
}


def lock_descriptor(environment: Mapping[str, str]) -> int:
    """Return the descriptor of the locked pod directory that stage0 left open."""
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
    step = "shed what the caller left"
    network: NetworkHelper | None = None
    devices: DeviceHelper | None = None
    health: HealthHelper | None = None
    try:
        open_files, inherited = _shed(lock)
        step = "find the control groups of this process"
        hierarchies = read_hierarchies()
        step = "load pod"
        pod = load_pod(flags)
        plan = plan_pod(pod, flags, collect_facts(hierarchies, pod, flags))
        for line in (*plan.warnings, *(plan.describe() if plan.debug else ())):
            complain(f"stage1: {line}")
        host = _take_notify_socket()
        step = "load seccomp filters"
        plan = add_filters(plan)
        step = "take over sockets"
        plan, sockets = _match_sockets(plan, inherited)
        if plan.private_users is not None and plan.has_host_network:
            step = "open sockets"
            sockets = _open_sockets(plan, sockets)
        step = "place control groups"
        subcgroup = _place_groups(plan, hierarchies)
        step = "setup network"
        network = _start_network(plan, flags, lock)
        step = "open volumes"
        trees = open_volumes_of(plan)
        kubernetes_log = _open_kubernetes_log(plan)
        step = "look for devices"
        devices = look_for_devices(plan, trees)
        step = "make control groups"
        # Written first: gc could not find the groups of a pod that died between the two.
        write_pod_file(paths.POD_SUBCGROUP, os.fsencode(subcgroup))
        names = [app.name for app in plan.apps]
        groups = make_pod_groups(hierarchies, subcgroup, names, private_users=plan.private_users is not None)
        if plan.controllers:
            step = "set limits"
            set_limits_of(plan, hierarchies, subcgroup)
        step = "open the control group hierarchies"
        shown = open_hierarchies(hierarchies)
        step = "set device policy"
        plan, devices = _restrict_devices(plan, devices, hierarchies, subcgroup)
        if any(app.handlers for app in plan.apps):
            # Here, since PID 1 cannot import it between leaving the image's old paths and finding the new ones.
            import minit.supervisor.handler  # noqa: F401
        if plan.mutable or any(app.is_attachable for app in plan.apps):
            # For the spawner, too, which never finds the new ones.
            import minit.supervisor.attachable  # noqa: F401
        if any(app.tells_readiness for app in plan.apps):
            import minit.supervisor.readiness  # noqa: F401
        if any(app.restart for app in plan.apps):
            import minit.supervisor.restarts  # noqa: F401
        if any(app.after for app in plan.apps):
            import minit.supervisor.order  # noqa: F401
        step = "prepare the console"
        terminal = _prepare_console(plan)
        connection: Connection | None = None
        if network is not None:
            step = "setup network"
            plan, connection = _join_network(plan, network, flags)
        if plan.mutable:
            step = "write the options of the pod"
            _remember_options(flags, connection)
        step = "prepare the user namespace"
        made = _make_mounts(plan)
        step = "make PID 1"
        link, theirs = socket_pair()
        ends = SupervisorEnds(
            launcher=theirs,
            lock=lock,
            root=open_stage1_root(),
            stage1_root=image_root(),
            image=image_descriptor(),
            tasks=groups.tasks,
            groups=groups.apps,
            hierarchies=shown,
            open_files=open_files,
            terminal=terminal,
            made=made,
            trees=trees,
            kubernetes_log=kubernetes_log,
            sockets=sockets,
        )
        pid, pidfd = _clone_supervisor(plan, ends, groups.supervisor)
        try:
            _admit(plan, pid, link)
            step = "write the profiles of the apps"
            _write_profiles(plan, open_files)
            step = "start checking the health of apps"
            health = _start_health(plan, pid)
            step = "setup network"
            if network is not None:
                network.release()
        except BaseException:
            syscalls.pidfd_send_signal(pidfd, _signal.SIGKILL)
            raise
        network = None
        helpers = [helper for helper in (devices, health) if helper is not None]
        kept = [helper.fileno() for helper in helpers]
        syscalls.close_all_but((0, 1, 2, lock, pidfd, link.fileno(), *kept))
        step = "wait for PID 1"
        watch = Watch(pidfd, link, terminal, entered=lambda: write_pod_file(paths.POD_PID, b"%d\n" % pid))
        if host is not None:
            watch.notify_host(host)
        for helper in helpers:
            watch.add_helper(helper.fileno(), helper.report_death)
        return watch.run()
    except (OSError, ImportError) as error:
        raise LaunchError(f"failed to {step}: {describe(error)}") from error
    finally:
        if network is not None:
            network.undo()
        if devices is not None:
            devices.end()
        if health is not None:
            health.end()


def _shed(lock: int) -> tuple[tuple[int, int], list[InheritedSocket]]:
    """
    Undo what the caller did to this process.

    Returns what is kept of it: its limits of open files, soft and hard, and the sockets that it passed.
    """
    syscalls.set_process_name("minit-launcher")
    open_standard_streams()
    sockets = _find_sockets()
    own = [lock] if (image := image_descriptor()) is None else [lock, image]
    # Callers leak descriptors into rkt; one that reached an app or outlived us would be a hole or hold a lock.
    syscalls.close_all_but([0, 1, 2, *own, *(socket.fd for socket in sockets)])
    syscalls.close_range(3, flags=syscalls.CLOSE_RANGE_CLOEXEC)
    # What the caller made of these must not decide about the pod's files, nor have the kernel reap its children.
    os.umask(0o022)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    open_files = _raise_descriptor_limit()
    # Blocked before PID 1 exists: a SIGTERM that met PID 1 without a handler would vanish.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (*WATCHED_SIGNALS, *FORWARDED))
    return open_files, sockets


def _find_sockets() -> list[InheritedSocket]:
    if "LISTEN_PID" not in os.environ:
        return []
    from minit.launcher.sockets import find_sockets

    sockets, warnings = find_sockets(os.environ, os.getpid())
    for line in warnings:
        complain(f"stage1: {line}")
    return sockets


def _raise_descriptor_limit() -> tuple[int, int]:
    """Let this process and PID 1 open as many files as they may, and return the caller's limits, soft and hard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def _take_notify_socket() -> str | None:
    """Return where the host's service manager listens, and keep that from all processes of the pod."""
    address = os.environ.pop("NOTIFY_SOCKET", None)
    if address is None:
        return None
    from minit.launcher.hostnotify import is_usable

    if is_usable(address):
        return address
    complain(f"stage1: warning: ignoring NOTIFY_SOCKET={address}: no socket of this machine")
    return None


def _start_network(plan: PodPlan, flags: RunFlags, lock: int) -> NetworkHelper | None:
    if plan.network is None:
        if plan.has_loopback_only:
            complain("networking: networking namespace with loopback only")
            # As rkt's: the pod has networks, none of them.
            write_pod_file(paths.POD_NET_INFO, b"null")
        return None
    from minit.launcher.network import NetworkHelper

    return NetworkHelper(plan.network, flags, lock)


def _join_network(plan: PodPlan, network: NetworkHelper, flags: RunFlags) -> tuple[PodPlan, Connection]:
    """
    Move this process, from which PID 1 is made, into the pod's network.

    Returns the plan with what it offers to the apps, and that.
    """
    from minit.plan.connection import connect
    from minit.supervisor.loopback import bring_up_loopback

    connection = network.wait(FORWARDED)
    plan = connect(plan, connection, flags.mds_token)
    namespace = os.open(connection.namespace, os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(namespace, syscalls.CLONE_NEWNET)
    os.close(namespace)
    bring_up_loopback()
    if plan.private_users is not None:
        from minit.launcher.privateusers import open_network

        open_network(plan.private_users)
    return plan, connection


def _remember_options(flags: RunFlags, connection: Connection | None) -> None:
    from minit.plan.runtimeconfig import RuntimeConfig, encode_runtime_config

    config = RuntimeConfig(
        flags=flags,
        host_address=None if connection is None else connection.host_address,
        resolv_conf=None if connection is None else connection.resolv_conf,
    )
    write_pod_file(paths.POD_RUNTIME_CONFIG, encode_runtime_config(config))


def _place_groups(plan: PodPlan, hierarchies: Sequence[Hierarchy]) -> str:
    """Return the path of the pod's groups, before there is another process of ours, which might be in the way."""
    if not plan.controllers:
        return pod_subcgroup(hierarchies, plan.uuid)
    from minit.launcher.delegation import place_pod

    return place_pod(hierarchies, plan.uuid, plan.controllers)


def set_limits_of(plan: PodPlan, hierarchies: Sequence[Hierarchy], subcgroup: str) -> None:
    """Set the limits of a plan, and show the warnings."""
    from minit.launcher.limits import set_limits

    for line in set_limits(plan, hierarchies, subcgroup):
        complain(f"stage1: {line}")


def open_volumes_of(plan: PodPlan) -> tuple[tuple[int, ...], ...]:
    """Return a detached mount of each volume of each app."""
    if not any(app.volumes for app in plan.apps):
        return ((),) * len(plan.apps)
    from minit.launcher.volumes import open_volumes

    trees = tuple(open_volumes(app, plan.private_users) for app in plan.apps)
    if plan.private_users is not None and any(volume.idmap for app in plan.apps for volume in app.volumes):
        from minit.launcher.idmap import map_owners

        map_owners(plan.apps, trees, plan.private_users)
    return trees


def _open_kubernetes_log(plan: PodPlan) -> int | None:
    if plan.kubernetes_log_directory is None:
        return None
    from minit.launcher.kuberneteslog import open_kubernetes_log

    return open_kubernetes_log(plan.kubernetes_log_directory, plan.private_users)


def look_for_devices(plan: PodPlan, trees: tuple[tuple[int, ...], ...]) -> DeviceHelper | None:
    """Start finding out about the apps' volumes that are devices, if there are any it matters for."""
    volumes: tuple[DeviceVolume, ...] = ()
    if any(trees):
        from minit.launcher.volumes import has_devices

        if any(has_devices(volume) for app in plan.apps for volume in app.volumes):
            from minit.launcher.devicehelper import DeviceHelper, find_device_volumes

            volumes = find_device_volumes(plan, trees)
    for app in plan.apps:
        if app.hotplug and not any(volume.app is app for volume in volumes):
            complain(f'stage1: warning: app "{app.name}": minit/hotplug: no volume of it is a device')
    return DeviceHelper(volumes, debug=plan.debug) if volumes else None


def _restrict_devices(
    plan: PodPlan, devices: DeviceHelper | None, hierarchies: Sequence[Hierarchy], subcgroup: str
) -> tuple[PodPlan, DeviceHelper | None]:
    """Let each app use its devices and no others; returns the plan with them, and the helper if it has more to do."""
    if devices is not None:
        plan = replace(plan, apps=devices.allow_devices(plan.apps))
    for line in apply_policies(hierarchies, subcgroup, plan.apps):
        complain(f"stage1: {line}")
    if devices is not None:
        if devices.follows:
            devices.follow({app.name: device_group(hierarchies, subcgroup, app.name) for app in plan.apps})
        else:
            devices.end()
            devices = None
    return plan, devices


def _write_profiles(plan: PodPlan, open_files: tuple[int, int]) -> None:
    # Imported and done while PID 1 is already at work.
    from minit.launcher.profiles import write_profiles

    write_profiles(plan.apps, open_files)


def _start_health(plan: PodPlan, pid: int) -> HealthHelper | None:
    """Start checking apps in the pod whose PID 1 is `pid`, if any has a check."""
    if not any(app.health for app in plan.apps):
        return None
    from minit.launcher.healthhelper import HealthHelper

    return HealthHelper(plan, pid, image_descriptor())


def _match_sockets(
    plan: PodPlan, inherited: list[InheritedSocket]
) -> tuple[PodPlan, tuple[tuple[int | None, ...], ...]]:
    """Return of each socket of each app the inherited descriptor, if there is one, and the plan that goes with it."""
    if any(app.sockets for app in plan.apps):
        # Here, since PID 1 cannot import it later.
        import minit.supervisor.sockets  # noqa: F401
    if not inherited:
        return plan, tuple((None,) * len(app.sockets) for app in plan.apps)
    from minit.launcher.sockets import match_sockets

    matched, warnings = match_sockets(plan.apps, inherited)
    for line in warnings:
        complain(f"stage1: {line}")
    if plan.network is not None:
        # What is said to the host's own socket already reaches the app.
        taken = [
            (socket.protocol, socket.port)
            for app, fds in zip(plan.apps, matched)
            for socket, fd in zip(app.sockets, fds)
            if fd is not None
        ]
        plan = replace(plan, network=plan.network.without_ports(taken))
    return plan, matched


def _open_sockets(plan: PodPlan, inherited: tuple[tuple[int | None, ...], ...]) -> tuple[tuple[int | None, ...], ...]:
    """Return each app's sockets, opened here, as root of a user namespace may not bind to low ports of the host."""
    if not any(app.sockets for app in plan.apps):
        return inherited
    from minit.supervisor.sockets import open_sockets

    return tuple(open_sockets(app, fds) for app, fds in zip(plan.apps, inherited))


def _prepare_console(plan: PodPlan) -> CallerTerminal | None:
    """Return what the caller has for a terminal, None if no app has a console."""
    if plan.console_uid is None:
        return None
    # With all that PID 1 needs of it: once it is cloned the image's files may have no path there, nor here if they are
    # reached through a descriptor.
    import minit.launcher.relay  # noqa: F401
    from minit.terminal import look_at_terminal

    return look_at_terminal(is_read=plan.reads_console)


def _make_mounts(plan: PodPlan) -> MadeMounts:
    if plan.private_users is None:
        return MadeMounts()
    from minit.launcher.privateusers import make_mounts

    return make_mounts(plan, plan.private_users)


def _clone_supervisor(plan: PodPlan, ends: SupervisorEnds, supervisor_group: int | None) -> tuple[int, int]:
    """Make PID 1 with the pod's namespaces, in its v2 control group, and return its pid and pidfd."""
    flags = 0
    for name in plan.namespaces:
        flags |= _CLONE_FLAGS[name]
    pod_directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(paths.POD_STAGE1_ROOTFS)
    try:
        pid, pidfd = syscalls.clone3(flags, supervisor_group)
    except OSError as error:
        raise LaunchError(f"failed to make the pod's namespaces: {describe(error)}") from error
    if pid == 0:
        run_supervisor(plan, ends)
    os.fchdir(pod_directory)
    ends.launcher.close()
    return pid, pidfd


def _admit(plan: PodPlan, pid: int, link: Socket) -> None:
    """Let PID 1 of a pod with a user namespace go on."""
    if plan.private_users is not None:
        from minit.launcher.privateusers import admit

        admit(plan, plan.private_users, pid, link)
