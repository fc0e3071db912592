"""The duties of the machine's helper, in order: modules, sysctls, file systems, network, clock; then it waits."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

from minit.base.errors import LaunchError, describe
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message
from minit.linux.stdio import complain_at_once
from minit.machine.clock import image_time, is_lost
from minit.machine.devices import MachineDevices
from minit.machine.hardware import POWER_BUTTON, PowerButtons
from minit.machine.kernellog import KernelLog, keep_panics
from minit.machine.modules import Modules, read_modules
from minit.machine.mounts import CompressedSwap, mount_filesystem
from minit.machine.network import MachineNetwork
from minit.machine.slots import begin_trial, end_trial
from minit.machine.timeclient import TimeClient
from minit.machine.unattended import Updates
from minit.manifest.machineconfig import DeviceRule, MachineConfig, State
from minit.plan.root.mountoperations import MountFilesystem
from minit.podfiles import paths
from minit.supervisor.root.applymounts import new_filesystem

_SYSCTLS = "/proc/sys"
_LOWEST_PRIORITY = 19

_Served = MachineNetwork | TimeClient | Updates | CompressedSwap
"""A part of the machine with descriptors and deadlines."""

_RECORDS = f"{paths.MACHINE_POD}/{paths.POD_STAGE1_ROOTFS}/rkt"
_ROOTS = "roots"
_ROOTS_IN_MEMORY = "/run/minit/roots"
# A directory during its removal: half of a boot's records would be misleading.
_REMOVED = ".removed"
# More than PID 1 writes before the apps start: a full disk must not keep them from starting.
_NEEDED_BYTES = 1 << 18


def do_duties(config: MachineConfig, link: Socket, *, is_first: bool) -> None:
    """
    Prepare the machine (only the first helper does), tell PID 1, and serve until PID 1 is gone.

    LaunchError if something required is missing.
    """
    modules = read_modules()
    for name in config.modules:
        modules.load(name)
    devices = MachineDevices(modules, config.devices)
    devices.look()
    if is_first:
        # Before anything of this version can fail.
        begin_trial(config, link)
        _prepare(config, modules, devices)
    network = _connect(config, devices, waits=is_first)
    # Before the apps, which may have the directory of the socket as a volume.
    updates = [] if config.update is None else [Updates(config.update)]
    clock = _follow_time(config, network)
    served: list[_Served] = [each for each in (network, clock) if each is not None]
    if is_first:
        if config.clock is not None and clock is not None:
            _wait_for_time(clock, served, devices, config.clock.wait_seconds)
        # On a single processor, PID 1 has priority from here on, until the apps have started.
        _set_priority(_LOWEST_PRIORITY)
        send_message(link, {"prepared": True})
    # Swap turned on by an earlier helper stays on.
    swap = [CompressedSwap(config.swap, modules)] if is_first and config.swap is not None else []
    _serve(link, devices, [*served, *updates, *swap], _open_kernel_log())


def _prepare(config: MachineConfig, modules: Modules, devices: MachineDevices) -> None:
    """Do the work of a boot: wait for devices, set sysctls, mount file systems."""
    try:
        # Before the pod, which may have the directory as a volume.
        os.makedirs(os.path.dirname(paths.MACHINE_LOG), exist_ok=True)
    except OSError as error:
        complain_at_once(f"minit: {describe(error)}")
    for rule in config.devices:
        _wait_for_device(rule, devices)
    for name, value in config.sysctls:
        _set_sysctl(name, value)
    for filesystem in config.filesystems:
        modules.load_filesystem(filesystem.fstype)
        try:
            mount_filesystem(filesystem, devices)
        except LaunchError as error:
            if filesystem.required:
                raise
            complain_at_once(f"minit: {error}")
    keep_panics(is_kept=_prepare_state(config, modules))


def _wait_for_device(rule: DeviceRule, devices: MachineDevices) -> None:
    if devices.wait_for(lambda: devices.has(rule) or None, rule.wait_seconds):
        return
    line = f"device {rule.subsystem}/{rule.name}: none within {rule.wait_seconds} s"
    if rule.required:
        raise LaunchError(line)
    if rule.wait_seconds:
        complain_at_once(f"minit: {line}")


def _connect(config: MachineConfig, devices: MachineDevices, *, waits: bool) -> MachineNetwork | None:
    if not config.interfaces and not config.name_servers:
        return None
    network = MachineNetwork(config, state=_state_directory(config))
    if waits:
        network.wait(devices)
    else:
        network.turn()
    return network


def _follow_time(config: MachineConfig, network: MachineNetwork | None) -> TimeClient | None:
    built = image_time()
    if config.clock is None or built is None:
        return None
    servers = config.clock.servers

    def current_servers() -> Sequence[str]:
        return servers or (() if network is None else network.ntp_servers)

    return TimeClient(config.clock, built, is_lost(built), current_servers)


def _wait_for_time(clock: TimeClient, served: Sequence[_Served], devices: MachineDevices, seconds: int) -> None:
    """Wait for the time so long."""
    begun = time.monotonic()
    while not clock.is_set and (left := begun + seconds - time.monotonic()) > 0:
        for each in served:
            each.turn()
        fds, timeout_seconds = _until_due(served, left)
        if not clock.is_set and devices.fileno() in wait_readable([devices.fileno(), *fds], timeout_seconds):
            devices.look()
    if seconds and not clock.is_set:
        complain_at_once(f"minit: clock: no time after {seconds} s")


def _until_due(served: Sequence[_Served], longest_seconds: float | None = None) -> tuple[list[int], float | None]:
    """Return the descriptors of all parts, and the seconds until the next deadline."""
    now = time.monotonic()
    waits = [each.deadline - now for each in served if each.deadline is not None]
    waits += [] if longest_seconds is None else [longest_seconds]
    return [fd for each in served for fd in each.filenos()], min(waits, default=None)


def _open_kernel_log() -> KernelLog | None:
    try:
        return KernelLog()
    except FileNotFoundError:
        return None
    except OSError as error:
        complain_at_once(f"minit: kernel log: {describe(error)}")
        return None


def _serve(link: Socket, devices: MachineDevices, served: Sequence[_Served], kernel_log: KernelLog | None) -> None:
    buttons = PowerButtons()
    buttons.look()
    if kernel_log is not None:
        kernel_log.copy()
    _set_priority(0)
    while True:
        for each in served:
            each.turn()
        fds, timeout_seconds = _until_due(served)
        watched = [link.fileno(), devices.fileno(), *buttons.filenos(), *fds]
        watched += [] if kernel_log is None else [kernel_log.fileno()]
        ready = wait_readable(watched, timeout_seconds)
        if devices.fileno() in ready:
            devices.look()
            buttons.look()
        if kernel_log is not None:
            kernel_log.copy()
        if buttons.take_presses():
            send_message(link, {"event": POWER_BUTTON})
        if link.fileno() in ready:
            message, _ = receive_message(link)
            if message is None:
                return
            end_trial(message, link)
            if "ask" in message:
                send_message(link, {"event": "here"})


def _set_priority(nice: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:
        pass  # without CAP_SYS_NICE, as in a container, it keeps the one it has


def _set_sysctl(name: str, value: str) -> None:
    try:
        fd = os.open(os.path.join(_SYSCTLS, name.replace(".", "/")), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        complain_at_once(f"minit: sysctl {name}: {describe(error)}")


def _prepare_state(config: MachineConfig, modules: Modules) -> bool:
    """
    Make the pod writable where its root is not, and keep the boot's files in the state directory, if there is one:

        DIRECTORY/000012/   the files of the twelfth boot: /rkt of its stage1 root, with statuses, logs and events
        DIRECTORY/roots/    files that apps have written into their own roots, as overlayfs keeps them
        DIRECTORY/network/  the addresses of the last leases, which are asked for first

    Each boot begins with its own directory, so that no file is of another boot; the paths are those of any pod. Without
    the directory all of that is in the pod, and forgotten at the next boot.

    Return whether the files outlive the boot; a line on the console has the reason if not. LaunchError if no app could
    write to a read-only root.
    """
    state = config.state
    obstacle = None if state is None else _obstacle(config, state)
    if state is not None and obstacle is not None:
        complain_at_once(f"minit: state {state.directory}: nothing is kept: {obstacle}")
        state = None
    _make_pod_writable(state, modules)
    if state is not None:
        try:
            syscalls.mount(_begin_boot(state), _RECORDS, None, syscalls.MS_BIND)
        except OSError as error:
            complain_at_once(f"minit: state {state.directory}: this boot is not kept: {describe(error)}")
        else:
            return True
    _forget_records()
    return False


def _state_directory(config: MachineConfig) -> str | None:
    """Return the state directory if the machine has a usable one."""
    state = config.state
    return None if state is None or _obstacle(config, state) is not None else state.directory


def _obstacle(config: MachineConfig, state: State) -> str | None:
    """Return why the directory is unusable, for example a missing file system, None for a usable directory."""
    targets = [each.target for each in config.filesystems if f"{state.directory}/".startswith(f"{each.target}/")]
    missing = next((target for target in targets if not os.path.ismount(target)), None)
    if missing is not None:
        return f"filesystem {missing} is not mounted"
    real = os.path.realpath(state.directory)
    # An app with a parent directory as a volume would choose what is removed.
    return None if real == state.directory else f"a symlink leads to {real}"


def _make_pod_writable(state: State | None, modules: Modules) -> None:
    if state is not None and state.keep_roots:
        try:
            _overlay_pod(os.path.join(state.directory, _ROOTS), modules)
        except OSError as error:
            complain_at_once(f"minit: state {state.directory}: what apps write is not kept: {describe(error)}")
        else:
            return
    if os.statvfs(paths.MACHINE_POD).f_flag & os.ST_RDONLY:
        try:
            _overlay_pod(_ROOTS_IN_MEMORY, modules)
        except OSError as error:
            raise LaunchError(f"the root is read-only, and cannot have an overlay: {describe(error)}") from error


def _overlay_pod(place: str, modules: Modules) -> None:
    modules.load_filesystem("overlay")
    upper, work = os.path.join(place, "upper"), os.path.join(place, "work")
    for directory in (upper, work):
        os.makedirs(directory, exist_ok=True)
    # The directory takes the place of the pod's own.
    os.chmod(upper, os.stat(paths.MACHINE_POD).st_mode & 0o7777)
    layers = ("lowerdir", paths.MACHINE_POD), ("upperdir", upper), ("workdir", work)
    overlay = MountFilesystem(
        fstype="overlay",
        target=paths.MACHINE_POD,
        options=(("source", "overlay"), *layers),
        nosuid=False,
        nodev=False,
        noexec=False,
    )
    tree = new_filesystem(overlay)
    try:
        syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=paths.MACHINE_POD)
    finally:
        os.close(tree)


def _begin_boot(state: State) -> str:
    """Make and return this boot's directory, with the image's directories inside; the oldest boots go."""
    os.makedirs(state.directory, 0o700, exist_ok=True)
    boots = sorted((name for name in os.listdir(state.directory) if name.isascii() and name.isdigit()), key=int)
    # First: there may be no space for another boot.
    _remove_boots(state, boots[: max(0, len(boots) + 1 - state.kept_boots)])
    boot = os.path.join(state.directory, f"{int(boots[-1]) + 1 if boots else 1:06}")
    try:
        for place, _, _ in os.walk(_RECORDS):
            made = boot + place.removeprefix(_RECORDS)
            os.mkdir(made)
            os.chmod(made, os.stat(place).st_mode & 0o7777)
        _require_space(boot)
        for place, _, _ in os.walk(boot):
            _make_durable(place)
        _make_durable(state.directory)
    except OSError:
        _remove(boot, ignore_errors=True)
        raise
    return boot


def _forget_records() -> None:
    """Remove an earlier boot's records where the pod is on a disk: an old status would mislead about this boot."""
    for place, _, names in os.walk(_RECORDS):
        for name in names:
            try:
                os.unlink(os.path.join(place, name))
            except OSError as error:
                complain_at_once(f"minit: of an earlier boot: {describe(error)}")


def _remove_boots(state: State, names: list[str]) -> None:
    removed = os.path.join(state.directory, _REMOVED)
    if os.path.lexists(removed):
        _remove(removed)
    for name in names:
        os.rename(os.path.join(state.directory, name), removed)
        _remove(removed)


def _remove(directory: str, *, ignore_errors: bool = False) -> None:
    if os.path.islink(directory) or (os.path.exists(directory) and not os.path.isdir(directory)):
        os.unlink(directory)  # it is nothing of ours
        return
    shutil.rmtree(directory, ignore_errors=ignore_errors)


def _require_space(directory: str) -> None:
    path = os.path.join(directory, ".space")
    with open(path, "wb", buffering=0) as file:
        os.unlink(path)
        left = _NEEDED_BYTES
        while left:
            left -= file.write(bytes(left)) or 0
        os.fsync(file.fileno())


def _make_durable(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
