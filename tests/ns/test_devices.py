"""minit.launcher.devices.devicepolicy on the kernel, by v1 and by BPF, and minit.devices on real devices."""

from __future__ import annotations

import errno
import os
import select
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.devices import DeviceEvents, DeviceLookup
from minit.launcher.cgroups import read_hierarchies
from minit.launcher.devices.devicepolicy import DeviceGroup, NoDeviceControl, change_policy, device_group, set_policy
from minit.linux import syscalls
from minit.plan.root.devicevolumes import DEFAULT_RULES, DeviceRule, merge_rules
from tests.support.loopdevices import LoopDevice, needs_loop_devices
from tests.support.owngroup import group_below_own

LOOP_CONTROL = DeviceRule(kind="c", major=10, minor=237, access="rw")
Can = Callable[[Callable[[], object]], bool]


@pytest.fixture(params=["v1", "v2"])
def group(request: pytest.FixtureRequest) -> Iterator[DeviceGroup]:
    """A group of the test's own, of the v1 controller and of v2."""
    is_v2 = request.param == "v2"
    hierarchy = next(
        found for found in read_hierarchies() if (found.is_v2 if is_v2 else "devices" in found.controllers)
    )
    directory = str(group_below_own(hierarchy, f"devices-{uuid.uuid4()}"))
    os.mkdir(directory)
    yield DeviceGroup(directory=directory, is_v2=is_v2)
    os.rmdir(directory)


@pytest.fixture
def can(group: DeviceGroup) -> Can:
    """A function that tells whether a process of the group may do something that fails with EPERM otherwise."""

    def attempt(work: Callable[[], object]) -> bool:
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                Path(group.directory, "cgroup.procs").write_text("0")
                work()
                code = 0
            except PermissionError as error:
                assert error.errno == errno.EPERM
                code = 1
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, 1)
        return code == 0

    return attempt


def opening(path: str, flags: int = os.O_RDWR) -> Callable[[], object]:
    """Return a function that opens a device."""
    return lambda: os.close(os.open(path, flags))


def making(kind: int, major: int, minor: int) -> Callable[[], object]:
    """Return a function that makes a device somewhere."""

    def make() -> None:
        path = f"/var/tmp/minit-node-{os.getpid()}"
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        os.unlink(path)

    return make


@needs_loop_devices
def test_a_policy(group: DeviceGroup, can: Can) -> None:
    """Listed devices may be used and made as the list says, no others; before there is a policy all of these may."""
    assert can(making(stat.S_IFBLK, 7, 0))
    set_policy(group, DEFAULT_RULES)
    assert can(opening("/dev/null")) and can(opening("/dev/ptmx"))
    assert can(making(stat.S_IFCHR, 1, 3)) and can(making(stat.S_IFCHR, 10, 200))
    assert not can(making(stat.S_IFCHR, 5, 2)) and not can(making(stat.S_IFCHR, 10, 237))
    assert not can(making(stat.S_IFBLK, 7, 0)) and not can(opening("/dev/loop-control"))
    assert can(making(stat.S_IFIFO, 0, 0))


def test_access_by_letters(group: DeviceGroup, can: Can) -> None:
    """r allows reading alone, w writing alone, m making alone."""
    for access in ("r", "w", "m", "rw"):
        set_policy(group, [DeviceRule(kind="c", major=1, minor=5, access=access)])
        seen = {
            "r": can(opening("/dev/zero", os.O_RDONLY)),
            "w": can(opening("/dev/zero", os.O_WRONLY)),
            "m": can(making(stat.S_IFCHR, 1, 5)),
        }
        assert seen == {letter: letter in access for letter in "rwm"}
        assert can(opening("/dev/zero")) is (access == "rw")


@needs_loop_devices
def test_changing_a_policy(group: DeviceGroup, can: Can) -> None:
    """Devices can be added and taken away while processes run; the others stay as they are."""
    set_policy(group, DEFAULT_RULES)
    more = merge_rules((*DEFAULT_RULES, LOOP_CONTROL, DeviceRule(kind="c", major=1, minor=3, access="r")))
    for old, new, expected in ((DEFAULT_RULES, more, True), (more, DEFAULT_RULES, False)):
        change_policy(group, old, new)
        assert can(opening("/dev/loop-control")) is expected
        assert can(opening("/dev/null")) and can(making(stat.S_IFCHR, 1, 3))
        assert not can(making(stat.S_IFCHR, 10, 237))


@needs_loop_devices
def test_a_policy_holds_for_groups_below(group: DeviceGroup) -> None:
    """A process that makes a group of its own in there gains nothing by it."""
    set_policy(group, DEFAULT_RULES)
    below = DeviceGroup(directory=f"{group.directory}/below", is_v2=group.is_v2)
    os.mkdir(below.directory)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            Path(below.directory, "cgroup.procs").write_text("0")
            opening("/dev/null")()
            try:
                opening("/dev/loop-control")()
            except PermissionError:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(OSError):
        set_policy(below, [LOOP_CONTROL])
    os.rmdir(below.directory)


def test_a_group_that_is_gone(group: DeviceGroup) -> None:
    """Changing its policy is nothing, setting it fails."""
    gone = DeviceGroup(directory=f"{group.directory}/gone", is_v2=group.is_v2)
    change_policy(gone, DEFAULT_RULES, [LOOP_CONTROL])
    with pytest.raises(FileNotFoundError):
        set_policy(gone, DEFAULT_RULES)


RULES = st.builds(
    DeviceRule,
    kind=st.sampled_from("bc"),
    major=st.integers(240, 242),
    minor=st.none() | st.integers(0, 2),
    access=st.sampled_from(("r", "w", "m", "rw", "rm", "wm", "rwm")),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=st.lists(RULES, max_size=4).map(merge_rules), new=st.lists(RULES, max_size=4).map(merge_rules))
def test_any_change_on_the_kernel(group: DeviceGroup, old: tuple[DeviceRule, ...], new: tuple[DeviceRule, ...]) -> None:
    """The kernel takes every list of rules, and after a change makes just the devices that the new one lets be made."""
    set_policy(group, old)
    change_policy(group, old, new)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            Path(group.directory, "cgroup.procs").write_text("0")
            for kind, major, minor in _all_numbers():
                try:
                    making({"b": stat.S_IFBLK, "c": stat.S_IFCHR}[kind], major, minor)()
                    os.write(writer, b"1")
                except PermissionError:
                    os.write(writer, b"0")
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        made = [byte == ord("1") for byte in answers.read()]
    os.waitpid(pid, 0)
    expected = [
        any("m" in rule.access and rule.number in ((kind, major, minor), (kind, major, None)) for rule in new)
        for kind, major, minor in _all_numbers()
    ]
    assert made == expected


def _all_numbers() -> list[tuple[str, int, int]]:
    return [(kind, major, minor) for kind in "bc" for major in range(240, 243) for minor in range(3)]


def test_which_hierarchy_decides() -> None:
    """The v1 controller where it is mounted, else v2; without both there is none."""
    hierarchies = read_hierarchies()
    v1 = device_group(hierarchies, "pod", "a")
    assert v1 is not None and not v1.is_v2 and v1.directory.endswith("/pod/system.slice/a.service")
    v2 = device_group([found for found in hierarchies if found.is_v2], "pod", "a")
    assert v2 is not None and v2.is_v2
    assert device_group([found for found in hierarchies if "cpu" in found.controllers], "pod", "a") is None


def test_a_kernel_without_such_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """bpf(2) that is missing, or does not know them, means that nothing restricts the app; any other failure is one."""

    def fail(number: int) -> None:
        def load(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(syscalls, "bpf_prog_load", load)

    group = DeviceGroup(directory=str(tmp_path), is_v2=True)
    for number in (errno.ENOSYS, errno.EINVAL):
        fail(number)
        with pytest.raises(NoDeviceControl):
            set_policy(group, DEFAULT_RULES)
    fail(errno.EPERM)
    with pytest.raises(PermissionError):
        set_policy(group, DEFAULT_RULES)


# What there is.


@needs_loop_devices
def test_finding_a_device() -> None:
    """A node is found with its numbers and what the kernel calls its kind; a file or nothing is no device."""
    lookup = DeviceLookup()
    [device] = lookup.find("/dev/loop-control")
    assert device.describe() == f"device /dev/loop-control: c 10:237 mode {_mode('/dev/loop-control'):o} subsystem misc"
    assert lookup.find("/dev/missing") == []
    assert lookup.find("/etc/passwd") == []


@needs_loop_devices
def test_finding_below_a_directory() -> None:
    """Every node at any depth, but nothing that is mounted there, and no symlink."""
    paths = {device.path for device in DeviceLookup().find("/dev")}
    assert {"/dev/null", "/dev/loop-control", "/dev/net/tun"} <= paths
    assert not [path for path in paths if path.startswith(("/dev/pts/", "/dev/shm/")) or os.path.islink(path)]


def test_a_node_without_a_device(work_directory: Path) -> None:
    """It is found, with no subsystem."""
    node = work_directory / "node"
    os.mknod(node, stat.S_IFBLK | 0o640, os.makedev(240, 77))
    [device] = DeviceLookup().find(str(node))
    assert (device.kind, device.major, device.minor, device.mode, device.subsystem) == ("b", 240, 77, 0o640, None)
    node.unlink()


def test_events() -> None:
    """The kernel tells of a device that comes, also in another network namespace; more than fits is no failure."""
    events = DeviceEvents()
    device = LoopDevice()
    try:
        assert select.select([events], [], [], 60)[0]
        events.drain()
        assert not select.select([events], [], [], 0)[0]
        for _ in range(3000):
            device.announce("change")
        events.drain()
        assert not select.select([events], [], [], 0)[0]
        device.remove()
        assert select.select([events], [], [], 60)[0]
    finally:
        device.remove()


def _mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)
