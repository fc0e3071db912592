"""Keeping the devices of an app that runs as they are on the host: what it may use, and what its volumes show."""

from __future__ import annotations

import os
from collections.abc import Sequence

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


class DeviceVolume(Value):
    """
    A volume of devices: whose it is, and what its source and its mount were when the pod started, None if not there.

    They differ if the pod has `mapped` ids, where a node is another one for the same device.
    """

    app: AppPlan
    volume: VolumeMount
    source: Identity | None
    identity: Identity | None
    mapped: IdRange | None = None

    @property
    def is_directory(self) -> bool:
        """Tell whether it was a directory of nodes."""
        return self.identity is not None and self.identity.device == 0


def device_rules(
    default: Sequence[DeviceRule], volumes: Sequence[DeviceVolume], devices: Sequence[Sequence[Device]]
) -> tuple[DeviceRule, ...]:
    """Return what an app may use that has these volumes with these devices."""
    rules = [
        device.rule(volume.volume.device_access or ("r" if volume.volume.read_only else "rw"))
        for volume, found in zip(volumes, devices)
        for device in found
    ]
    return merge_rules((*default, *rules))


class DeviceFollower:
    """One app with minit/hotplug; the working directory is the pod directory, and `group` has its device policy."""

    def __init__(
        self, volumes: Sequence[tuple[DeviceVolume, Sequence[Device]]], group: DeviceGroup | None, *, debug: bool
    ) -> None:
        self._volumes = [volume for volume, _ in volumes]
        self._devices = [tuple(found) for _, found in volumes]
        # The tops of the mounts in the app, by source; None for one that has been taken off.
        self._attached = [volume.identity for volume in self._volumes]
        self._shown = [volume.source for volume in self._volumes]
        self._app = self._volumes[0].app
        # Nodes that stood for no device when the pod started: there is nothing that could come or go.
        self._static = {device for found in self._devices for device in found if device.subsystem is None}
        self._rules = self._plan_rules()
        self._group = group
        self._debug = debug
        self._is_done = True

    def look(self, lookup: DeviceLookup) -> bool:
        """
        Deny what is gone, then take it off; allow what came, then put it there.

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
            # A directory that was emptied is removed by the kernel, and made anew for the next device.
            source = identify_source(volume.volume)
            if self._devices[index] and self._shown[index] != source:
                self._show(index, volume, source)
        return self._is_done

    def _find(self, volume: DeviceVolume, lookup: DeviceLookup) -> tuple[Device, ...]:
        source = volume.volume.source
        if not is_device_source(source):
            return ()
        if volume.identity is not None and os.path.isdir(source) != volume.is_directory:
            return ()
        return tuple(device for device in lookup.find(source) if device.subsystem or device in self._static)

    def _plan_rules(self) -> tuple[DeviceRule, ...]:
        return device_rules(self._app.resources.devices or (), self._volumes, self._devices)

    def _change_rules(self, rules: tuple[DeviceRule, ...]) -> None:
        if self._group is not None and rules != self._rules:
            try:
                change_policy(self._group, self._rules, rules)
            except (LaunchError, OSError) as error:
                complain(f'stage1: warning: app "{self._app.name}": device policy: {describe(error)}')
        self._rules = rules

    def _show(self, index: int, volume: DeviceVolume, source: Identity | None) -> None:
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
            _, [namespace] = ask(FindNamespace(app=self._app.name))
        except ControlError as error:
            # The app has not come so far, or the pod is ending.
            if self._debug:
                complain(f'stage1: app "{self._app.name}": volume "{volume.volume}": {describe(error)}')
            self._is_done = False
            return
        try:
            exchange_mount(namespace, volume.target, self._attached[index], tree)
            self._attached[index] = None if tree is None else identify(os.fstat(tree))
            self._shown[index] = source
        except (LaunchError, OSError) as error:
            complain(f'stage1: warning: app "{self._app.name}": volume "{volume.volume}": {describe(error)}')
        finally:
            os.close(namespace)

    def _say_changes(self, before: Sequence[Sequence[Device]]) -> None:
        old = {device.path: device for found in before for device in found}
        new = {device.path: device for found in self._devices for device in found}
        for word, devices, others in (("gone", old, new), ("new", new, old)):
            for path, device in devices.items():
                if others.get(path) != device:
                    complain(f"stage1: app {self._app.name}: {word}: {device.describe()}")


def identify_source(volume: VolumeMount) -> Identity | None:
    """Return what is at the source of a volume, None if there is nothing."""
    try:
        return identify(os.lstat(volume.source))
    except FileNotFoundError:
        return None
