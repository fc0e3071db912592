"""minit.launcher.devices.exchange and devicefollower on mounts, groups and devices of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.base.errors import LaunchError
from minit.devices import DeviceLookup
from minit.launcher.cgroups import read_hierarchies
from minit.launcher.devices.devicefollower import DeviceFollower, DeviceVolume
from minit.launcher.devices.devicepolicy import DeviceGroup
from minit.launcher.devices.exchange import exchange_mount, identify
from minit.linux import syscalls
from minit.linux.messages import Socket, receive_message, send_message
from minit.plan.appplan import AppPlan
from minit.plan.process import ProcessPlan
from minit.plan.resources import ResourcePlan
from minit.plan.root.volumes import HOST, VolumeMount
from minit.podfiles import paths
from tests.support.loopdevices import LoopDevice
from tests.support.owngroup import group_below_own


class OtherNamespace:
    """A process with a mount namespace of its own."""

    def __init__(self) -> None:
        ready, started = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            os.write(started, b"x")
            while True:
                signal.pause()
        os.read(ready, 1)
        os.close(ready)
        os.close(started)
        self.fd = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY)

    def path(self, path: Path) -> Path:
        """Return where a path of the namespace is from here."""
        return Path(f"/proc/{self.pid}/root{path}")

    def mounts_at(self, path: Path) -> int:
        """Return how many mounts there are at a path."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines].count(str(path))

    def end(self) -> None:
        """End the process."""
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def other() -> Iterator[OtherNamespace]:
    """A mount namespace beside that of the test."""
    namespace = OtherNamespace()
    yield namespace
    namespace.end()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two files, `old` and `new`."""
    directory = tmp_path_factory.mktemp("place")
    (directory / "old").write_text("old")
    (directory / "new").write_text("new")
    return directory


def attach(other: OtherNamespace, source: Path, target: Path) -> None:
    """Attach a file to a place in the other namespace."""
    tree = syscalls.open_tree(syscalls.AT_FDCWD, str(source), syscalls.OPEN_TREE_CLONE)
    exchange_mount(other.fd, str(target), None, tree)
    os.close(tree)


def test_exchanging_a_mount(other: OtherNamespace, place: Path) -> None:
    """The old one is gone and the new one there, in that namespace alone."""
    target = place / "a/b/target"
    attach(other, place / "old", target)
    assert other.path(target).read_text() == "old"
    tree = syscalls.open_tree(syscalls.AT_FDCWD, str(place / "new"), syscalls.OPEN_TREE_CLONE)
    exchange_mount(other.fd, str(target), identify(os.stat(place / "old")), tree)
    os.close(tree)
    assert (other.path(target).read_text(), other.mounts_at(target)) == ("new", 1)
    assert target.read_text() == ""


def test_taking_a_mount_off(other: OtherNamespace, place: Path) -> None:
    """The file below goes too if it is empty, but not with anything in it."""
    for name, text in (("empty", None), ("full", "of the image")):
        target = place / name
        if text is not None:
            target.write_text(text)
        attach(other, place / "old", target)
        exchange_mount(other.fd, str(target), identify(os.stat(place / "old")), None)
        assert other.mounts_at(target) == 0
        assert (target.read_text() if target.exists() else None) == text


def test_what_is_not_ours_stays(other: OtherNamespace, place: Path) -> None:
    """Another mount at the place, or the place's own file, is left alone."""
    target = place / "target"
    attach(other, place / "old", target)
    exchange_mount(other.fd, str(target), identify(os.stat(place / "new")), None)
    assert other.mounts_at(target) == 1
    with pytest.raises(LaunchError):
        exchange_mount(other.fd, str(place / "new"), identify(os.stat(place / "new")), None)
    assert (place / "new").read_text() == "new"


def test_links_lead_nowhere_else(other: OtherNamespace, place: Path) -> None:
    """A place that has become a link is followed inside the root; the root itself cannot be covered."""
    (place / "link").symlink_to("../" * 40)
    tree = syscalls.open_tree(syscalls.AT_FDCWD, str(place / "new"), syscalls.OPEN_TREE_CLONE)
    with pytest.raises(LaunchError) as caught:
        exchange_mount(other.fd, str(place / "link"), None, tree)
    assert str(caught.value) == "it is the root of the app"
    os.close(tree)


class Control:
    """A supervisor that refuses the first request for a namespace, and answers the next ones."""

    def __init__(self, namespace: int) -> None:
        self._namespace = namespace
        os.makedirs(os.path.dirname(paths.POD_CONTROL))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(paths.POD_CONTROL)
        self._socket.listen(1)
        self.asked = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            client = Socket(fileno=connection.detach())
            message, _ = receive_message(client)
            assert message == {"op": "namespace", "app": "web"}
            self.asked += 1
            if self.asked == 1:
                send_message(client, {"ok": False, "error": "not yet"})
            else:
                send_message(client, {"ok": True}, [self._namespace])
            client.close()


@pytest.fixture
def group() -> Iterator[DeviceGroup]:
    """A group of the test's own."""
    [hierarchy] = [found for found in read_hierarchies() if "devices" in found.controllers]
    directory = str(group_below_own(hierarchy, f"devices-{uuid.uuid4()}"))
    os.mkdir(directory)
    Path(directory, "devices.deny").write_text("a")
    yield DeviceGroup(directory=directory, is_v2=False)
    os.rmdir(directory)


def test_a_supervisor_that_is_not_ready(
    other: OtherNamespace, place: Path, group: DeviceGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allowing and denying do not wait for it; the mount is made up for at the next look."""
    monkeypatch.chdir(place)
    control = Control(other.fd)
    device = LoopDevice()
    target = place / "node"
    try:
        attach(other, device.path, target)
        mount = VolumeMount(volume="v", kind=HOST, source=str(device.path), target=str(target), place="test")
        spec = AppPlan(
            name="web", process=ProcessPlan(candidates=("/bin/app",)), resources=ResourcePlan(devices=(), hotplug=True)
        )
        identity = identify(os.stat(device.path))
        volume = DeviceVolume(app=spec, volume=mount, source=identity, identity=identity)
        lookup = DeviceLookup()
        follower = DeviceFollower([(volume, lookup.find(mount.source))], group, debug=False)
        rule = device.rule
        Path(group.directory, "devices.allow").write_text(f"{rule} rw")
        assert follower.look(lookup)
        assert control.asked == 0
        device.remove()
        assert not follower.look(lookup)
        assert Path(group.directory, "devices.list").read_text() == ""
        assert other.mounts_at(target) == 1
        assert follower.look(lookup)
        assert (other.mounts_at(target), target.exists()) == (0, False)
        device.add()
        assert follower.look(lookup)
        assert Path(group.directory, "devices.list").read_text() == f"{device.rule} rw\n"
        assert other.mounts_at(target) == 1
        assert follower.look(lookup)
        assert control.asked == 3
    finally:
        device.remove()
