"""
Telling the kernel which devices the processes of an app's control group may use.

By the `devices` controller of v1 where it is mounted (Documentation/admin-guide/cgroup-v1/devices.rst), else by a BPF
program on the v2 group.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

from minit.base.errors import LaunchError, describe
from minit.base.value import Value
from minit.launcher.cgroups import Hierarchy, app_group
from minit.launcher.devices.devicefilter import set_filter
from minit.plan.root.devicevolumes import DeviceRule, rule_changes

_CONTROLLER = "devices"
# bpf(2) is missing, or this kind of program is.
_NOT_BUILT_IN = (errno.ENOSYS, errno.EINVAL)
_GONE = (errno.ENOENT, errno.ENODEV)


class DeviceGroup(Value):
    """The directory of the group that an app's device policy holds for, of the v1 controller or of v2."""

    directory: str
    is_v2: bool


class NoDeviceControl(LaunchError):
    """This kernel cannot keep an app from using devices."""


def device_group(hierarchies: Sequence[Hierarchy], subcgroup: str, app: str) -> DeviceGroup | None:
    """Return the group that decides about an app's devices; None if there is no hierarchy that does."""
    for hierarchy in sorted(hierarchies, key=lambda hierarchy: hierarchy.is_v2):
        if _CONTROLLER in hierarchy.controllers or hierarchy.is_v2:
            return DeviceGroup(directory=app_group(hierarchy, subcgroup, app), is_v2=hierarchy.is_v2)
    return None


def apply_policies(
    hierarchies: Sequence[Hierarchy], subcgroup: str, policies: Iterable[tuple[str, Sequence[DeviceRule] | None]]
) -> list[str]:
    """
    Restrict the group of each app, in which nobody is yet, to the devices of its rules; return the warnings to show.

    Without rules it may use every device. LaunchError names the app and the device that failed.
    """
    unrestricted = []
    for app, rules in policies:
        if rules is None:
            continue
        group = device_group(hierarchies, subcgroup, app)
        try:
            if group is None:
                raise NoDeviceControl("no hierarchy has the devices controller, and cgroup v2 is not mounted")
            set_policy(group, rules)
        except NoDeviceControl as error:
            unrestricted.append(f'warning: app "{app}" can use every device it can make: {error}')
        except (LaunchError, OSError) as error:
            # Rather than start it without: nobody asked for that.
            hint = "--insecure-options=paths does without"
            raise LaunchError(f'app "{app}": {describe(error)} ({hint})') from error
    return unrestricted


def set_policy(group: DeviceGroup, rules: Sequence[DeviceRule]) -> None:
    """Allow a group what the rules say and nothing else; NoDeviceControl if this kernel cannot."""
    if group.is_v2:
        _set_filter(group, rules)
        return
    _write(group, "devices.deny", ["a"])
    _write(group, "devices.allow", [rule.describe() for rule in rules])


def change_policy(group: DeviceGroup, old: Sequence[DeviceRule], new: Sequence[DeviceRule]) -> None:
    """Change the rules of a group, whose app may be running; nothing if the group is gone with its pod."""
    try:
        if group.is_v2:
            _set_filter(group, new)
            return
        denied, allowed = rule_changes(old, new)
        _write(group, "devices.deny", [rule.describe() for rule in denied])
        _write(group, "devices.allow", [rule.describe() for rule in allowed])
    except OSError as error:
        if error.errno not in _GONE:
            raise


def _set_filter(group: DeviceGroup, rules: Sequence[DeviceRule]) -> None:
    directory = os.open(group.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        set_filter(directory, rules)
    except OSError as error:
        if error.errno in _NOT_BUILT_IN:
            raise NoDeviceControl("this kernel has no BPF programs for the devices of a control group") from error
        raise OSError(error.errno, error.strerror, group.directory) from error
    finally:
        os.close(directory)


def _write(group: DeviceGroup, name: str, rules: Sequence[str]) -> None:
    fd = os.open(f"{group.directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        for rule in rules:
            try:
                os.write(fd, rule.encode())
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"{group.directory}/{name}: {rule}") from error
    finally:
        os.close(fd)
