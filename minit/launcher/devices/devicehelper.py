"""
The device helper: a process of the host that finds out what the devices are that apps have as volumes.

It loads what the launcher must not have in its memory, since PID 1 is a copy of that. For a pod with minit/hotplug it
stays as long as the launcher does, and has the apps follow: what is gone is denied, then taken off; what came is
allowed, then put there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from minit.base.carried import CarriedCodec
from minit.base.errors import LaunchError, MinitError, describe
from minit.devices import DeviceEvents, DeviceLookup
from minit.launcher.devices.devicefollower import DeviceFollower, DeviceVolume, device_rules, identify_source
from minit.launcher.devices.devicepolicy import DeviceGroup
from minit.launcher.devices.exchange import identify
from minit.launcher.devices.openvolumes import has_devices
from minit.launcher.leftbehind import settle
from minit.launcher.ownimage import image_descriptor
from minit.launcher.podhelper import HelperWork, PodHelper
from minit.launcher.upgradable import prove, resume
from minit.linux.forks import DEVICE_HELPER
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message
from minit.linux.stdio import complain
from minit.plan.appplan import AppPlan
from minit.plan.podplan import PodPlan
from minit.plan.root.devicevolumes import Device, DeviceRule

_RETRY_SECONDS = 1.0


def find_device_volumes(plan: PodPlan, trees: Sequence[Sequence[int]]) -> tuple[DeviceVolume, ...]:
    """Return the volumes of the pod that are devices, or will be; `trees` has a detached mount of those there are."""
    present = tuple(
        DeviceVolume(
            app=app,
            volume=volume,
            source=identify_source(volume),
            identity=identify(os.fstat(tree)),
            mapped=plan.private_users,
        )
        for app, fds in zip(plan.apps, trees)
        for volume, tree in zip(app.storage.volumes, fds)
        if has_devices(volume)
    )
    late = tuple(
        DeviceVolume(app=app, volume=volume, source=None, identity=None, mapped=plan.private_users)
        for app in plan.apps
        for volume in app.storage.late_volumes
    )
    return present + late


class DeviceHelper(PodHelper):
    """The launcher's side of the helper."""

    kind = "devices"
    loss = "devices do not follow those of the host"

    def __init__(self, volumes: Sequence[DeviceVolume], *, debug: bool) -> None:
        self._volumes = volumes
        self._debug = debug
        super().__init__(DEVICE_HELPER, lambda socket: _help(volumes, socket, debug), _fail)

    @property
    def follows(self) -> bool:
        """Tell whether there is an app whose devices follow those of the host."""
        return _any_follows(self._volumes)

    def find_rules(self, apps: Sequence[AppPlan]) -> list[Sequence[DeviceRule] | None]:
        """Return the rules of each app, and of the devices of its volumes; LaunchError if they cannot be found out."""
        found = list(zip(self._volumes, self._wait()))
        rules: list[Sequence[DeviceRule] | None] = []
        for app in apps:
            own = [(volume, devices) for volume, devices in found if volume.app is app]
            for line in (device.describe() for _, devices in own for device in devices) if self._debug else ():
                complain(f"stage1: app {app.name}: {line}")
            volumes, devices = [volume for volume, _ in own], [devices for _, devices in own]
            rules.append(
                None if app.resources.devices is None else device_rules(app.resources.devices, volumes, devices)
            )
        return rules

    def _wait(self) -> list[list[Device]]:
        found: list[list[Device]] = [[] for _ in self._volumes]
        while True:
            message, _ = receive_message(self._socket)
            if message is None:
                raise LaunchError("the process that looks for devices died")
            if "failed" in message:
                raise LaunchError(str(message["failed"]))
            if "volume" not in message:
                return found
            index = message["volume"]
            assert isinstance(index, int) and isinstance(message["device"], dict)
            found[index].append(Device(**message["device"]))

    def follow(self, groups: dict[str, DeviceGroup | None]) -> None:
        """Have the apps follow from now on; `groups` are those with the device policies, by app."""
        self._follow(groups, None)

    def follow_and_stay(self, groups: dict[str, DeviceGroup | None], pod: int) -> int:
        """
        Do it for an app that is added, whose helper outlives this process and stays with PID 1, `pod`.

        Returns what it lives by from then on, the caller's; see minit.launcher.leftbehind.
        """
        self._follow(groups, pod)
        return self.wait_settled()

    def _follow(self, groups: dict[str, DeviceGroup | None], stays_with: int | None) -> None:
        places = {app: None if group is None else [group.directory, group.is_v2] for app, group in groups.items()}
        send_message(self._socket, {"follow": places, "stays_with": stays_with})


class Following(HelperWork):
    """All that a helper knows of the apps that follow."""

    followers: list[DeviceFollower]

    who = "the device helper"
    name = "minit-devices"
    resume = "from minit.launcher.devices.devicehelper import resume_following; resume_following()"
    prove = "from minit.launcher.devices.devicehelper import prove_following; prove_following()"

    def __init__(self, followers: list[DeviceFollower]) -> None:
        self.followers = followers


_CODEC = CarriedCodec(Following)


def resume_following() -> NoReturn:
    """Be the helper in a program that the helper has executed."""
    resume(_CODEC, lambda following: _follow(following, DeviceLookup(), DeviceEvents()))


def prove_following() -> NoReturn:
    """Show whether this program can be the helper with a state."""
    prove(_CODEC)


def _any_follows(volumes: Sequence[DeviceVolume]) -> bool:
    return any(volume.app.resources.hotplug for volume in volumes)


def _help(volumes: Sequence[DeviceVolume], socket: Socket, debug: bool) -> None:
    is_following = False
    try:
        lookup = DeviceLookup()
        # Before looking: what happens in between is an event.
        events = DeviceEvents() if _any_follows(volumes) else None
        devices = [lookup.find(volume.volume.source) for volume in volumes]
        for index, found in enumerate(devices):
            for device in found:
                fields = {name: getattr(device, name) for name in device._fields}
                send_message(socket, {"volume": index, "device": fields})
        send_message(socket, {"found": True})
        if events is None:
            return
        message, _ = receive_message(socket)
        if message is None:
            return
        pod = message["stays_with"]
        life = settle(socket, pod) if isinstance(pod, int) else None
        is_following = True
        following = Following(_make_followers(volumes, devices, message["follow"], debug))
        following.begin(socket, life)
        _follow(following, lookup, events)
    except BrokenPipeError:
        pass  # the launcher is gone
    except Exception as error:
        if is_following:
            complain(f"stage1: device helper: {_reason(error)}")
        else:
            _fail(socket, error)


def _fail(socket: Socket, error: BaseException) -> None:
    send_message(socket, {"failed": _reason(error)})


def _reason(error: BaseException) -> str:
    # Others are defects.
    return describe(error) if isinstance(error, (MinitError, OSError)) else f"{type(error).__name__}: {describe(error)}"


def _make_followers(
    volumes: Sequence[DeviceVolume], devices: Sequence[Sequence[Device]], places: object, debug: bool
) -> list[DeviceFollower]:
    assert isinstance(places, dict)
    followers = []
    for app in dict.fromkeys(volume.app for volume in volumes if volume.app.resources.hotplug):
        own = [(volume, found) for volume, found in zip(volumes, devices) if volume.app is app]
        place = places[app.name]
        group = None if place is None else DeviceGroup(directory=place[0], is_v2=place[1])
        followers.append(DeviceFollower(own, group, debug=debug))
    return followers


def _follow(following: Following, lookup: DeviceLookup, events: DeviceEvents) -> None:
    image = image_descriptor()
    if image is not None and (following.program is None or following.program.image is None):
        os.close(image)
    while True:
        # An event only tells when to look. What is there then counts: whatever somebody wrote to an `uevent` file, and
        # however many events were lost for want of room.
        answers = [follower.look(lookup) for follower in following.followers]
        link = following.link.fileno()
        if link in wait_readable([link, events.fileno()], None if all(answers) else _RETRY_SECONDS):
            if not following.hear():
                return
            if following.image is not None:
                following.go_on(_CODEC)
        events.drain()
