"""Devices: which an app may use and make, those it has as volumes, and how they come and go."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.loopdevices import LoopDevice, needs_loop_devices
from tests.support.pods import MakePod, PodDirectory, app_section, handlers, shell
from tests.support.processes import children_of, descriptors_of, named, status_of
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"


def volume(source: object, **fields: Any) -> dict[str, Any]:
    """Return the fields of a pod and of its app for one volume of the host at /v."""
    return {"volumes": [{"name": "v", "kind": "host", "source": str(source), **fields}]}


_SOCKET = re.compile(r"socket:\[(\d+)\]")
AT_V = [{"volume": "v", "path": "/v"}]


def output_of(pod: PodDirectory, *flags: str) -> list[str]:
    """Return what the only app wrote."""
    result = pod.run(*flags)
    assert (result.returncode, result.stderr) == (0, ""), result
    return [line.partition("]: ")[2] for line in result.stdout.splitlines()]


def allowed_devices(pod: PodDirectory, app: str = "a") -> list[str]:
    """Return the rules that the kernel shows for an app's group."""
    [group] = [path for path in pod.control_groups() if "/cgroup/devices/" in str(path)]
    return (group / f"system.slice/{app}.service/devices.list").read_text().splitlines()


# What an app may make and use.

MAKE = 'for d in "c 1 3" "c 5 2" "c 10 237" "b 7 0"; do mknod /tmp/n $d 2>&1 && rm /tmp/n && echo made; done; true'


@pytest.mark.host_users("root of a user namespace makes no devices")
def test_devices_an_app_can_make(make_pod: MakePod) -> None:
    """It may make those of every /dev, and neither a terminal multiplexer nor a device of the host."""
    refused = "mknod: /tmp/n: Operation not permitted"
    assert output_of(make_pod({"a": shell(MAKE)})) == ["made", refused, refused, refused]


@pytest.mark.host_users("root of a user namespace makes no devices")
def test_paths_can_be_disabled(make_pod: MakePod) -> None:
    """With --disable-paths nothing keeps an app from making and using any device."""
    script = f"{MAKE}; mknod /tmp/d b 7 0 && true <> /tmp/d && echo opened"
    assert output_of(make_pod({"a": shell(script)}), "--disable-paths") == ["made"] * 4 + ["opened"]


@needs_loop_devices
def test_a_node_that_was_left_somewhere_cannot_be_used(make_pod: MakePod, work_directory: Path) -> None:
    """The policy of the app decides about a node of any maker, even where its user may do anything."""
    node = work_directory / "node"
    os.mknod(node, 0o666 | 0o060000, os.stat("/dev/loop0").st_rdev)
    script = "cat /v/node; true > /v/node"
    pod = make_pod({"a": shell(f"{{ {script}; }} 2>&1; true", mounts=AT_V)}, **volume(work_directory))
    lines = output_of(pod)
    assert [line.rpartition(": ")[2] for line in lines] == ["Operation not permitted"] * 2
    node.unlink()


@pytest.mark.private_users
def test_the_default_devices_work(make_pod: MakePod) -> None:
    """Those of every /dev can be read and written, and terminals opened, by any user."""
    script = (
        "for n in null zero full random urandom; do head -c 1 /dev/$n | wc -c; done; echo > /dev/null;"
        " true <> /dev/ptmx && echo ptmx; ls -l /dev/net/tun | wc -l"
    )
    pod = make_pod({"a": shell(script, user="1000", group="1000")})
    assert output_of(pod) == ["0", "1", "1", "1", "1", "ptmx", "1"]


@needs_loop_devices
def test_the_rules_of_the_kernel(make_pod: MakePod) -> None:
    """Each app's group has the default list and what its own volumes add; PID 1's has no policy."""
    apps = {"a": shell(FOREVER, mounts=AT_V), "b": shell(FOREVER)}
    pod = make_pod(apps, **volume("/dev/loop-control", readOnly=True))
    pod.start()
    pod.wait_ready()
    default = [f"c {device} rwm" for device in ("1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "10:200")]
    default += ["c 5:2 rw", *(f"c {major}:* rw" for major in range(136, 144))]
    assert sorted(allowed_devices(pod, "b")) == sorted(default)
    assert sorted(allowed_devices(pod)) == sorted([*default, "c 10:237 r"])
    [group] = [path for path in pod.control_groups() if "/cgroup/devices/" in str(path)]
    assert (group / "init.scope/devices.list").read_text() == "a *:* rwm\n"


@pytest.mark.host_users("root of a user namespace makes no devices")
def test_event_handlers_have_the_policy_of_their_app(make_pod: MakePod) -> None:
    """A pre-start handler, which runs as root, cannot make more devices."""
    script = "mknod /tmp/n b 7 0 2>&1; mknod /tmp/n c 1 3 && echo made; true"
    app = shell("true", eventHandlers=handlers(pre_start=("/bin/sh", "-c", script)), user="1000")
    assert output_of(make_pod({"a": app})) == ["mknod: /tmp/n: Operation not permitted", "made"]


# Volumes that are devices.


@needs_loop_devices
@pytest.mark.host_users("root of a user namespace makes no devices")
def test_a_device_as_a_volume(make_pod: MakePod) -> None:
    """It can be opened for reading and writing, and not be made elsewhere."""
    script = "true <> /v && echo opened; mknod /tmp/n c 10 237 2>&1; true"
    pod = make_pod({"a": shell(script, mounts=AT_V)}, **volume("/dev/loop-control"))
    assert output_of(pod) == ["opened", "mknod: /tmp/n: Operation not permitted"]


@pytest.mark.private_users
def test_a_read_only_device_cannot_be_written(make_pod: MakePod, loop: LoopDevice) -> None:
    """A read-only mount alone would not keep anybody from writing to a block device."""
    script = "true < /v && echo read; true <> /v; true > /v"
    pod = make_pod({"a": shell(f"{{ {script}; }} 2>&1; true", mounts=AT_V)}, **volume(loop.path, readOnly=True))
    lines = output_of(pod)
    assert lines[0] == "read" and len(lines) == 3
    assert {line.rpartition(": ")[2] for line in lines[1:]} == {"Operation not permitted"}


@needs_loop_devices
def test_only_the_app_with_the_volume_may_use_the_device(make_pod: MakePod) -> None:
    """Another app of the pod, that can reach the node through a shared directory, may not."""
    a = shell("while [ ! -e /s/done ]; do sleep 0.01; done", mounts=[*AT_V, {"volume": "s", "path": "/s"}])
    b = shell(
        "true < /dev/shm/n; mknod /dev/shm/n c 10 237 2>&1; touch /s/done", mounts=[{"volume": "s", "path": "/s"}]
    )
    volumes = [*volume("/dev/loop-control")["volumes"], {"name": "s", "kind": "empty"}]
    result = make_pod({"a": a, "b": b}, volumes=volumes).run()
    assert "mknod: /dev/shm/n: Operation not permitted" in result.stdout


@needs_loop_devices
def test_a_device_of_a_mount_that_allows_none(make_pod: MakePod, work_directory: Path) -> None:
    """A node given as a volume works also where the host's own mount of it has nodev."""
    from minit.linux import syscalls

    directory = work_directory / "nodev"
    directory.mkdir()
    syscalls.mount("tmpfs", str(directory), "tmpfs", syscalls.MS_NODEV)
    os.mknod(directory / "n", 0o666 | 0o020000, os.stat("/dev/loop-control").st_rdev)
    pod = make_pod({"a": shell("true < /v && echo opened", mounts=AT_V)}, **volume(directory / "n"))
    assert output_of(pod) == ["opened"]
    syscalls.umount2(str(directory))


@needs_loop_devices
@pytest.mark.host_users("nodes of the host belong to nobody in a user namespace, but for those that are volumes")
def test_a_symlink_to_a_device_is_none(make_pod: MakePod, work_directory: Path) -> None:
    """It leads where it leads, but allows nothing: who may change the link would decide about devices."""
    link = work_directory / "link"
    link.symlink_to("/dev/loop-control")
    pod = make_pod({"a": shell("ls -lL /v | head -c 1; echo; { true < /v; } 2>&1; true", mounts=AT_V)}, **volume(link))
    lines = output_of(pod)
    assert lines[0] == "c" and lines[1].endswith("Operation not permitted")
    link.unlink()


@needs_loop_devices
@pytest.mark.host_users("nodes of the host belong to nobody in a user namespace, but for those that are volumes")
def test_a_directory_of_devices(make_pod: MakePod) -> None:
    """All nodes below a directory of /dev can be used, read-only ones only read."""
    script = "true < /v/loop-control && echo read; { true <> /v/loop-control && echo written; } 2>&1; true"
    [read, write] = output_of(make_pod({"a": shell(script, mounts=AT_V)}, **volume("/dev", readOnly=True)))
    assert read == "read" and write.endswith("Operation not permitted")
    assert output_of(make_pod({"a": shell(script, mounts=AT_V)}, **volume("/dev"))) == ["read", "written"]


@needs_loop_devices
def test_an_ordinary_directory_with_a_node(make_pod: MakePod, work_directory: Path) -> None:
    """It is no directory of devices, though it lies on the host's root file system or on one that allows devices."""
    directory = work_directory / "nodes"
    directory.mkdir()
    os.mknod(directory / "n", 0o666 | 0o020000, os.stat("/dev/loop-control").st_rdev)
    pod = make_pod({"a": shell("{ true < /v/n; } 2>&1; true", mounts=AT_V)}, **volume(directory))
    [line] = output_of(pod)
    assert line.endswith("Operation not permitted")


@needs_loop_devices
def test_devices_are_described(make_pod: MakePod) -> None:
    """--debug says what a volume of devices was found to be, from the kernel's own list."""
    pod = make_pod({"a": app_section("/bin/true", mounts=AT_V)}, **volume("/dev/loop-control"))
    result = pod.run("--debug")
    mode = os.stat("/dev/loop-control").st_mode & 0o7777
    assert f"stage1: app a: device /dev/loop-control: c 10:237 mode {mode:o} subsystem misc\n" in result.stderr


# Hotplug.

HOTPLUG = [{"name": "minit/hotplug", "value": "true"}]
# One line for each change of what can be done with the device at /v, until /tmp/end.
WATCH = """
last=
while [ ! -e /tmp/end ]; do
    if [ ! -b {path} ]; then now=missing; elif /bin/guest may {path}; then now=opens; else now=refused; fi
    [ $now = "$last" ] || echo $now
    last=$now; sleep 0.02
done 2> /dev/null
"""


class Watched:
    """A running pod whose app writes down what it can do with a device."""

    def __init__(
        self, make_pod: MakePod, source: object, *flags: str, path: str = "/v", under: Sequence[str] = (), **app: Any
    ) -> None:
        script = WATCH.format(path=path)
        section = shell(script, **{"mounts": AT_V, "annotations": HOTPLUG, **app})
        self.pod = make_pod({"a": section}, **volume(source))
        self.process = self.pod.start(*flags, under=under)

    @property
    def helper(self) -> int:
        """The process that follows the devices."""
        [helper] = named(children_of(self.process.pid), "minit-devices")
        return helper

    def expect(self, *words: str) -> None:
        """Wait until the app has seen just these changes so far."""
        wait_for(lambda: self._words() == list(words), f"the app to have seen {words}")

    def _words(self) -> list[str]:
        try:
            words = [line.split()[-1] for line in self.pod.log("a").decode().splitlines()]
        except FileNotFoundError:
            return []
        # A look may meet the moment between two steps or not.
        words = [word for index, word in enumerate(words) if word != "refused" or index == len(words) - 1]
        return [word for word, last in zip(words, ["", *words]) if word != last]

    def end(self) -> str:
        """End the pod and return what minit said."""
        self.pod.file("a", "/tmp/end").touch()
        result = self.pod.finish(self.process)
        assert result.returncode == 0, result
        return result.stderr


@pytest.mark.parametrize("target", ["/v", "/dev/disk", "/new/directory/disk"])
@pytest.mark.private_users
def test_a_device_that_goes_and_comes_back(make_pod: MakePod, loop: LoopDevice, target: str) -> None:
    """Its node disappears from the app and returns, and the kernel's rule with it, any number of times."""
    watched = Watched(make_pod, loop.path, path=target, mounts=[{"volume": "v", "path": target}])
    watched.expect("opens")
    rule = loop.rule
    assert f"{rule} rw" in allowed_devices(watched.pod)
    words = ["opens"]
    for _ in range(3):
        loop.remove()
        words.append("missing")
        watched.expect(*words)
        assert not [line for line in allowed_devices(watched.pod) if line.startswith(rule)]
        # Not as an empty file either, which could be written in its place.
        assert "none" in _look(watched.pod, target)
        loop.add()
        words.append("opens")
        watched.expect(*words)
        assert f"{loop.rule} rw" in allowed_devices(watched.pod)
    mounts = watched.pod.enter("a", "/bin/grep", "-c", f" {target} ", "/proc/self/mounts")
    assert mounts.stdout == "1\n"
    assert watched.end() == ""


def _look(pod: PodDirectory, path: str) -> str:
    return pod.enter("a", "/bin/sh", "-c", f"ls -l {path} 2> /dev/null || echo none").stdout


@pytest.mark.private_users
def test_a_device_that_comes_after_the_start(make_pod: MakePod, loop: LoopDevice) -> None:
    """A pod is started without a device that its app would have; when it comes it can be used, until it goes."""
    loop.remove()
    watched = Watched(make_pod, loop.path)
    watched.expect("missing")
    loop.add()
    watched.expect("missing", "opens")
    assert f"{loop.rule} rw" in allowed_devices(watched.pod)
    loop.remove()
    watched.expect("missing", "opens", "missing")
    assert watched.end() == ""


@pytest.mark.host_users("nodes of the host belong to nobody in a user namespace, but for those that are volumes")
def test_a_directory_that_comes_after_the_start(make_pod: MakePod, loop: LoopDevice) -> None:
    """So it is with a directory of devices, which is there when the first of them is."""
    directory = Path(f"/dev/minit-test-{loop.number}")
    watched = Watched(make_pod, directory, path="/v/disk")
    watched.expect("missing")
    directory.mkdir()
    try:
        (directory / "disk").hardlink_to(loop.path)
        loop.announce("change")
        watched.expect("missing", "opens")
    finally:
        (directory / "disk").unlink()
        directory.rmdir()
    assert watched.end() == ""


def test_a_device_that_never_comes(make_pod: MakePod) -> None:
    """Only an app whose devices follow can do without one."""
    result = make_pod({"a": shell("true", mounts=AT_V)}, **volume("/dev/minit-test-none")).run()
    assert result.returncode == 1
    assert "Failed to stat /dev/minit-test-none: No such file or directory" in result.stderr
    result = make_pod({"a": shell("true", mounts=AT_V, annotations=HOTPLUG)}, **volume("/dev/minit-test-none")).run()
    assert (result.returncode, result.stderr) == (0, "")


def test_a_device_that_goes_before_the_app_starts(make_pod: MakePod, loop: LoopDevice) -> None:
    """The app does not find it, though it was there when the app was prepared."""
    script = "touch /tmp/prepared; while [ ! -e /tmp/go ]; do sleep 0.01; done"
    watched = Watched(make_pod, loop.path, eventHandlers=handlers(pre_start=("/bin/sh", "-c", script)))
    wait_for(watched.pod.file("a", "/tmp/prepared").exists, "the handler")
    loop.remove()
    wait_for(lambda: "none" in _look(watched.pod, "/v"), "the node to be gone")
    watched.pod.file("a", "/tmp/go").touch()
    watched.expect("missing")
    loop.add()
    watched.expect("missing", "opens")
    watched.end()


def test_a_read_only_root_keeps_an_empty_file(make_pod: MakePod, loop: LoopDevice) -> None:
    """The device still goes and comes; what it was mounted on cannot be removed there."""
    watched = Watched(make_pod, loop.path, readOnlyRootFS=True)
    watched.expect("opens")
    loop.remove()
    watched.expect("opens", "missing")
    assert "none" not in _look(watched.pod, "/v")
    loop.add()
    watched.expect("opens", "missing", "opens")
    assert watched.end() == ""


@pytest.mark.host_users("nodes of the host belong to nobody in a user namespace, but for those that are volumes")
def test_a_directory_follows(make_pod: MakePod, loop: LoopDevice) -> None:
    """New nodes can be used, and what is gone is denied, also before its number means another device."""
    loop.remove()
    watched = Watched(make_pod, "/dev", path=f"/v/{loop.path.name}")
    watched.expect("missing")
    loop.add()
    wait_for(lambda: f"{loop.rule} rw" in allowed_devices(watched.pod), "the rule")
    watched.expect("missing", "opens")
    rule = loop.rule
    loop.remove()
    wait_for(lambda: f"{rule} rw" not in allowed_devices(watched.pod), "the rule to be gone")
    watched.end()


@pytest.mark.host_users("nodes of the host belong to nobody in a user namespace, but for those that are volumes")
def test_a_directory_that_is_made_again(make_pod: MakePod, loop: LoopDevice) -> None:
    """As the kernel does with one of which the last node is gone: the app does not stay with the old one."""
    directory = Path(f"/dev/minit-test-{os.getpid()}")
    node = directory / "n"

    def make() -> None:
        directory.mkdir()
        os.mknod(node, 0o600 | stat.S_IFBLK, os.stat(loop.path).st_rdev)

    make()
    try:
        watched = Watched(make_pod, directory, path="/v/n")
        watched.expect("opens")
        shutil.rmtree(directory)
        loop.announce("change")
        watched.expect("opens", "missing")
        make()
        loop.announce("change")
        watched.expect("opens", "missing", "opens")
        assert watched.end() == ""
    finally:
        shutil.rmtree(directory)


@pytest.mark.host_users("nodes of the host belong to nobody in a user namespace, but for those that are volumes")
def test_events_that_did_not_happen(make_pod: MakePod, loop: LoopDevice) -> None:
    """Anybody who may write to an uevent file can announce anything; only real devices count."""
    watched = Watched(make_pod, "/dev", path=f"/v/{loop.path.name}")
    watched.expect("opens")
    loop.announce("remove")
    other = LoopDevice()
    try:
        wait_for(lambda: f"{other.rule} rw" in allowed_devices(watched.pod), "the rule of another device")
        assert f"{loop.rule} rw" in allowed_devices(watched.pod)
    finally:
        other.remove()
    watched.expect("opens")
    watched.end()


def test_more_events_than_the_socket_holds(make_pod: MakePod, loop: LoopDevice) -> None:
    """The helper looks at everything when it has lost some."""
    other = LoopDevice()
    try:
        watched = Watched(make_pod, loop.path)
        watched.expect("opens")
        os.kill(watched.helper, signal.SIGSTOP)
        for _ in range(5000):
            other.announce("change")
        loop.remove()
        assert _dropped_events(watched.helper) > 0
        os.kill(watched.helper, signal.SIGCONT)
        watched.expect("opens", "missing")
        watched.end()
    finally:
        other.remove()


def _dropped_events(pid: int) -> int:
    """Return how many events did not fit into the sockets of a process (proc_netlink in net/netlink/af_netlink.c)."""
    sockets = {match[1] for match in map(_SOCKET.fullmatch, descriptors_of(pid).values()) if match}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/netlink").read_text().splitlines()]
    drops, inode = (rows[0].index(name) for name in ("Drops", "Inode"))
    return sum(int(row[drops]) for row in rows[1:] if row[inode] in sockets)


def test_without_paths_the_node_follows(make_pod: MakePod, loop: LoopDevice) -> None:
    """--disable-paths lifts the policy, not the coming and going."""
    watched = Watched(make_pod, loop.path, "--disable-paths")
    watched.expect("opens")
    loop.remove()
    watched.expect("opens", "missing")
    loop.add()
    watched.expect("opens", "missing", "opens")
    assert allowed_devices(watched.pod) == ["a *:* rwm"]
    assert watched.end() == ""


def test_what_followed_is_described(make_pod: MakePod, loop: LoopDevice) -> None:
    """--debug has a line for each device that goes and that comes."""
    watched = Watched(make_pod, loop.path, "--debug")
    watched.expect("opens")
    loop.remove()
    watched.expect("opens", "missing")
    loop.add()
    watched.expect("opens", "missing", "opens")
    said = watched.end()
    for word in ("gone", "new"):
        assert f"stage1: app a: {word}: device {loop.path}: b " in said


def test_a_helper_that_is_killed(make_pod: MakePod, loop: LoopDevice) -> None:
    """The pod goes on without, which is said."""
    watched = Watched(make_pod, loop.path)
    watched.expect("opens")
    os.kill(watched.helper, signal.SIGKILL)
    said = "stage1: warning: devices do not follow those of the host any more: the process that did it died\n"
    assert watched.end() == said


def test_the_helper_ends_with_the_launcher(make_pod: MakePod, loop: LoopDevice) -> None:
    """However that ends, and even if the helper is stopped; nothing of it is left on the host."""
    for number, of_helper in ((signal.SIGKILL, 0), (signal.SIGTERM, 0), (signal.SIGKILL, signal.SIGSTOP)):
        watched = Watched(make_pod, loop.path)
        watched.expect("opens")
        helper = os.pidfd_open(watched.helper)
        os.kill(watched.helper, of_helper)
        watched.process.send_signal(number)
        assert select.select([helper], [], [], 60)[0]
        os.close(helper)
        watched.process.wait()


def test_no_helper_stays_without_hotplug(make_pod: MakePod, loop: LoopDevice) -> None:
    """The process that looks for devices is gone when the pod runs, and nothing follows."""
    watched = Watched(make_pod, loop.path, annotations=[])
    watched.expect("opens")
    assert [status_of(pid)["Name"] for pid in children_of(watched.process.pid)] == ["minit"]
    rule = loop.rule
    loop.remove()
    assert _look(watched.pod, "/v").startswith("b")
    assert f"{rule} rw" in allowed_devices(watched.pod)
    watched.end()


def test_hotplug_without_devices(make_pod: MakePod) -> None:
    """There is nothing to follow, which is worth a warning."""
    result = make_pod({"a": shell("true", annotations=HOTPLUG)}).run()
    warning = 'stage1: warning: app "a": minit/hotplug: no volume of it is a device\n'
    assert (result.returncode, result.stderr) == (0, warning)


# Kernels that decide by BPF, or not at all.

WITHOUT_V1 = ("unshare", "--mount", "/bin/sh", "-c", 'umount /sys/fs/cgroup/devices && exec "$@"', "sh")
WITHOUT_BOTH = (*WITHOUT_V1[:4], f"umount /sys/fs/cgroup/unified && {WITHOUT_V1[4]}", "sh")


@pytest.mark.host_users("root of a user namespace makes no devices")
def test_the_policy_without_the_v1_controller(make_pod: MakePod, loop: LoopDevice) -> None:
    """A BPF program on the v2 group does the same, and follows."""
    pod = make_pod({"a": shell(MAKE)})
    result = pod.finish(pod.start(under=WITHOUT_V1))
    refused = "mknod: /tmp/n: Operation not permitted"
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == ["made", refused, refused, refused]
    watched = Watched(make_pod, loop.path, under=WITHOUT_V1)
    watched.expect("opens")
    loop.remove()
    watched.expect("opens", "missing")
    loop.add()
    watched.expect("opens", "missing", "opens")
    assert watched.end() == ""


@pytest.mark.host_users("root of a user namespace makes no devices")
def test_a_machine_without_any_device_control(make_pod: MakePod) -> None:
    """The pod runs, with a warning for each app."""
    pod = make_pod({"a": shell(MAKE)})
    result = pod.finish(pod.start(under=WITHOUT_BOTH))
    assert result.stdout.count("made") == 4
    reason = "no hierarchy has the devices controller, and cgroup v2 is not mounted"
    assert result.stderr == f'stage1: warning: app "a" can use every device it can make: {reason}\n'
