"""The duties of the machine's helper, in order: modules, sysctls, file systems, network, clock; then it waits."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from minit.base.errors import LaunchError, describe
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message
from minit.linux.stdio import complain_at_once
from minit.machine.clock.starttime import image_time, is_lost
from minit.machine.clock.timeclient import TimeClient
from minit.machine.compressedswap import CompressedSwap
from minit.machine.devices import MachineDevices
from minit.machine.disk.trialduty import begin_trial, end_trial
from minit.machine.kernellog import KernelLog, keep_panics
from minit.machine.modules import Modules, read_modules
from minit.machine.mounts import mount_filesystem
from minit.machine.network.machinenetwork import MachineNetwork
from minit.machine.powerbutton import POWER_BUTTON, PowerButtons
from minit.machine.state import prepare_state, state_directory
from minit.machine.update.unattended import Updates
from minit.manifest.machineconfig import DeviceRule, MachineConfig
from minit.podfiles import paths

_SYSCTLS = "/proc/sys"
_LOWEST_PRIORITY = 19

_Served = MachineNetwork | TimeClient | Updates | CompressedSwap
"""A part of the machine with descriptors and deadlines of its own."""


def do_duties(config: MachineConfig, link: Socket, *, is_first: bool) -> None:
    """
    Prepare the machine, which only the first helper does, tell PID 1, and serve until PID 1 is gone.

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
    # Before the apps, which may have the directory of its socket as a volume.
    updates = [] if config.update is None else [Updates(config.update)]
    clock = _follow_time(config, network)
    served: list[_Served] = [each for each in (network, clock) if each is not None]
    if is_first:
        if config.clock is not None and clock is not None:
            _wait_for_time(clock, served, devices, config.clock.wait_seconds)
        # Where there is one processor, it is PID 1's from here on, until the apps have started.
        _set_priority(_LOWEST_PRIORITY)
        send_message(link, {"prepared": True})
    # What another helper has turned on stays so.
    swap = [CompressedSwap(config.swap, modules)] if is_first and config.swap is not None else []
    _serve(link, devices, [*served, *updates, *swap], _open_kernel_log())


def _prepare(config: MachineConfig, modules: Modules, devices: MachineDevices) -> None:
    """Do what is done once: wait for devices, set the kernel's parameters, mount file systems."""
    try:
        # Before the pod, of which it may be a volume.
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
    keep_panics(is_kept=prepare_state(config, modules))


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
    network = MachineNetwork(config, state=state_directory(config))
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
    """Return the descriptors of all, and the seconds until one of them has something to do."""
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
