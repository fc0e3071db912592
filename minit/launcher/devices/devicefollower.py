"""Keeping the devices of a running app as on the host: the allowed devices, and the nodes in volumes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base.carried import Carried
from minit.base.errors import ControlError, LaunchError, describe
from minit.base.idrange import IdRange
from minit.base.value import Value
from minit.devices import DeviceLookup
from minit.launcher.devices.devicepolicy import DeviceGroup, change_policy
from minit.launcher.devices.exchange import Identity, exchange_mount, identify
from minit.launcher.devices.openvolumes import is_device_source, open_tree
from minit.linux.stdio import complain
from minit.plan.appplan import AppPlan
from minit.plan.root.devicevolumes import Device, DeviceRule, common_rules, merge_rules
from minit.plan.root.volumes import VolumeMount
from minit.podfiles.controlmessages import FindNamespace
from minit.supervisor.control.ask import ask


class FollowedVolume(Value):
    """
    A volume of devices: the source and the mount at the start of the pod, None if missing.

    Both differ if the pod has `mapped` ids: then the mount is another node for the same device.
    """

    volume: VolumeMount
    source: Identity | None
    identity: Identity | None
    mapped: IdRange | None = None

    @property
    def is_directory(self) -> bool:
        """Tell whether the source was a directory of nodes."""
        return self.identity is not None and self.identity.device == 0


class DeviceVolume(FollowedVolume):
    """The same with the app."""

    app: AppPlan


def device_rules(
    default: Sequence[DeviceRule], volumes: Sequence[FollowedVolume], devices: Sequence[Sequence[Device]]
) -> tuple[DeviceRule, ...]:
    """Return the allowed devices of an app with these volumes and devices."""
    rules = [
        device.rule(volume.volume.device_access or ("r" if volume.volume.read_only else "rw"))
        for volume, found in zip(volumes, devices)
        for device in found
    ]
    return merge_rules((*default, *rules))


class DeviceFollower(Carried):
    """
    One app with minit/hotplug; the working directory is the pod directory, and `group` has the app's device policy.
    """

    _app: str
    _default: tuple[DeviceRule, ...]
    _volumes: list[FollowedVolume]
    _devices: list[tuple[Device, ...]]
    _attached: list[Identity | None]
    _shown: list[Identity | None]
    _static: set[Device]
    _rules: tuple[DeviceRule, ...]
    _group: DeviceGroup | None
    _debug: bool
    _is_done: bool

    def __init__(
        self, volumes: Sequence[tuple[DeviceVolume, Sequence[Device]]], group: DeviceGroup | None, *, debug: bool
    ) -> None:
        app = volumes[0][0].app
        self._app = app.name
        self._default = tuple(app.resources.devices or ())
        self._volumes = [_without_app(volume) for volume, _ in volumes]
        self._devices = [tuple(found) for _, found in volumes]
        # The tops of the mounts in the app, by source; None for a mount taken off.
        self._attached = [volume.identity for volume in self._volumes]
        self._shown = [volume.source for volume in self._volumes]
        # Nodes without a device at the start of the pod: nothing could come or go.
        self._static = {device for found in self._devices for device in found if device.subsystem is None}
        self._rules = self._plan_rules()
        self._group = group
        self._debug = debug
        self._is_done = True

    def look(self, lookup: DeviceLookup) -> bool:
        """
        Deny devices that went, then take off the mounts; allow devices that came, then attach the mounts.

        False if the supervisor could not be asked yet for the app's namespace.
        """
        self._is_done = True
        before = self._devices
        self._devices = [self._find(volume, lookup) for volume in self._volumes]
        if self._debug:
            self._say_changes(before)
        rules = self._plan_rules()
        self._change_rules(common_rules(self._rules, rules))
        for index, volume in enumerate(self._volumes):
            if not (self._devices[index] or volume.is_directory) and self._attached[index] is not None:
                self._exchange(index, volume.volume, None, None)
        self._change_rules(rules)
        for index, volume in enumerate(self._volumes):
            # The kernel removes an emptied directory, and makes a new one for the next device.
            source = identify_source(volume.volume)
            if self._devices[index] and self._shown[index] != source:
                self._show(index, volume, source)
        return self._is_done

    def _find(self, volume: FollowedVolume, lookup: DeviceLookup) -> tuple[Device, ...]:
        source = volume.volume.source
        if not is_device_source(source):
            return ()
        if volume.identity is not None and os.path.isdir(source) != volume.is_directory:
            return ()
        return tuple(device for device in lookup.find(source) if device.subsystem or device in self._static)

    def _plan_rules(self) -> tuple[DeviceRule, ...]:
        return device_rules(self._default, self._volumes, self._devices)

    def _change_rules(self, rules: tuple[DeviceRule, ...]) -> None:
        if self._group is not None and rules != self._rules:
            try:
                change_policy(self._group, self._rules, rules)
            except (LaunchError, OSError) as error:
                complain(f'stage1: warning: app "{self._app}": device policy: {describe(error)}')
        self._rules = rules

    def _show(self, index: int, volume: FollowedVolume, source: Identity | None) -> None:
        try:
            tree = open_tree(volume.volume, volume.mapped)
        except OSError:
            return  # gone again, of which there is another event
        try:
            self._exchange(index, volume.volume, tree, source)
        finally:
            os.close(tree)

    def _exchange(self, index: int, volume: VolumeMount, tree: int | None, source: Identity | None) -> None:
        try:
            _, [namespace] = ask(FindNamespace(app=self._app))
        except ControlError as error:
            # The app has not come so far, or the pod is ending.
            if self._debug:
                complain(f'stage1: app "{self._app}": volume "{volume.volume}": {describe(error)}')
            self._is_done = False
            return
        try:
            exchange_mount(namespace, volume.target, self._attached[index], tree)
            self._attached[index] = None if tree is None else identify(os.fstat(tree))
            self._shown[index] = source
        except (LaunchError, OSError) as error:
            complain(f'stage1: warning: app "{self._app}": volume "{volume.volume}": {describe(error)}')
        finally:
            os.close(namespace)

    def _say_changes(self, before: Sequence[Sequence[Device]]) -> None:
        old = {device.path: device for found in before for device in found}
        new = {device.path: device for found in self._devices for device in found}
        for word, devices, others in (("gone", old, new), ("new", new, old)):
            for path, device in devices.items():
                if others.get(path) != device:
                    complain(f"stage1: app {self._app}: {word}: {device.describe()}")


def _without_app(volume: DeviceVolume) -> FollowedVolume:
    return FollowedVolume(**{name: getattr(volume, name) for name in FollowedVolume._fields})


def identify_source(volume: VolumeMount) -> Identity | None:
    """Return the present source of a volume, None if missing."""
    try:
        return identify(os.lstat(volume.source))
    except FileNotFoundError:
        return None
