"""Pods with a user namespace, whose root is nobody on the host: `run --private-users=SHIFT:COUNT`."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.loopdevices import needs_loop_devices
from tests.support.pods import PRIVATE_USERS, MakePod, PodDirectory, guest, shell
from tests.support.processes import status_of
from tests.support.refusals import assert_refused
from tests.support.waiting import wait_for

SHIFT, COUNT = PRIVATE_USERS
AT_V = [{"volume": "v", "path": "/v"}]


@pytest.fixture
def private_users() -> tuple[int, int]:
    """Of all pods here."""
    return PRIVATE_USERS


@pytest.fixture
def roots_directory() -> Iterator[Path]:
    """A directory of the host's root that nobody has shared with a pod."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def volume(source: object, **fields: Any) -> dict[str, Any]:
    """Return a volume of the host."""
    return {"name": "v", "kind": "host", "source": str(source), **fields}


def lines_of(pod: PodDirectory, *flags: str, **options: Any) -> list[str]:
    """Return what the only app of a pod wrote."""
    result = pod.run(*flags, **options)
    assert (result.returncode, result.stderr) == (0, ""), result
    return [line.partition("]: ")[2] for line in result.stdout.splitlines()]


def test_root_is_nobody_on_the_host(make_pod: MakePod) -> None:
    """It is 0 in the pod, where all of COUNT ids are, and SHIFT outside, which is the owner of what it makes."""
    script = "id -u; cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups; touch /made; exit 42"
    pod = make_pod({"app": shell(script)})
    result = pod.run()
    assert (result.returncode, result.stderr) == (42, "")
    words = [line.partition("]: ")[2].split() for line in result.stdout.splitlines()]
    assert words == [["0"], ["0", str(SHIFT), str(COUNT)], ["0", str(SHIFT), str(COUNT)], ["allow"]]
    assert (pod.file("app", "/made").stat().st_uid, pod.file("app", "/made").stat().st_gid) == (SHIFT, SHIFT)
    assert pod.status("app") == 42
    # What PID 1 writes for stage0 and for itself, and nothing of it root's.
    for path in ("status/app", "env/app", "minit/state/app.json", "minit/log/app.log"):
        assert (pod.stage1 / "rkt" / path).stat().st_uid == SHIFT, path


def test_the_credentials_of_every_process(make_pod: MakePod) -> None:
    """None of the pod's processes has an id of the host, not even a group."""
    pod = make_pod({"a": shell("while :; do sleep 1; done"), "b": shell("exec sleep 60", user="7", group="8")})
    pod.start(extra_groups=[4, 24])
    pod.wait_ready()
    for name, pid in (*pod.children().items(), ("minit", pod.pid)):
        status = status_of(pid)
        ids = [int(word) for field in ("Uid", "Gid", "Groups") for word in status[field].split()]
        assert all(SHIFT <= number < SHIFT + COUNT for number in ids), (name, ids)


@pytest.mark.parametrize(
    "value",
    [
        *("0:65536", "65536", "65536:", ":65536", "65536:0", "65536:5", "-65536:65536", "65536:65536:1", "x:y", "٣:9"),
        *("4294967294:65536", "4294901760:65536", "65536:99999999999999999999", " 65536:65536"),
    ],
)
def test_ranges_that_cannot_be(make_pod: MakePod, value: str) -> None:
    """One line says what is expected, and nothing is made."""
    pod = make_pod({"a": shell("true")})
    (pod.path / "private-users-prepared").write_text(value)
    assert_refused(pod, pod.run(), f"--private-users={value}: expected SHIFT:COUNT")


def test_overlays_are_refused(make_pod: MakePod) -> None:
    """Those whose files belong to the host's root, as whoever made them did not map the owners."""
    pod = make_pod({"a": shell("true")})
    (pod.path / "overlay-prepared").touch()
    under = ("sh", "-c", f'chown 0:0 {pod.stage1}; exec "$@"', "sh")
    assert_refused(pod, pod.run(under=under), "--private-users: cannot use both overlay and user namespace")


UNMAPPED: dict[str, tuple[dict[str, Any], str]] = {
    "user": ({"user": "65536"}, 'app "a": user "65536": 65536 is unmapped'),
    "group": ({"group": "70000"}, 'app "a": group "70000": 70000 is unmapped'),
    "name": ({"user": "far"}, 'app "a": user "far": 65536 is unmapped'),
    "supplementary": ({"supplementaryGIDs": [5, 65536]}, 'app "a": supplementary group: 65536 is unmapped'),
    "owner": ({"user": "/stray"}, f'app "a": user "/stray": its owner on the host, {SHIFT + COUNT}, is unmapped'),
}


@pytest.mark.parametrize("case", UNMAPPED)
def test_ids_that_are_not_mapped(make_pod: MakePod, own_rootfs: Path, case: str) -> None:
    """An app cannot be somebody whom the namespace does not have."""
    fields, line = UNMAPPED[case]
    (own_rootfs / "etc/passwd").write_text("root:x:0:0:::\nfar:x:65536:0:::\n")
    (own_rootfs / "stray").touch()
    os.chown(own_rootfs / "stray", SHIFT + COUNT, 0)
    pod = make_pod({"a": shell("true", **fields)}, own_rootfs)
    assert_refused(pod, pod.run(), line, "--private-users")


@pytest.mark.parametrize("field", ["uid", "gid"])
def test_an_empty_volume_of_somebody_unmapped(make_pod: MakePod, field: str) -> None:
    """The line says which volume."""
    pod = make_pod({"a": shell("true", mounts=AT_V)}, volumes=[{"name": "v", "kind": "empty", field: 65536}])
    assert_refused(pod, pod.run(), 'owner of volume "v": 65536 is unmapped')


def test_an_empty_volume(make_pod: MakePod) -> None:
    """It belongs to whom its fields say, as the pod counts."""
    pod = make_pod(
        {"a": shell("stat -c %u:%g:%a /v", mounts=AT_V)},
        volumes=[{"name": "v", "kind": "empty", "uid": 12, "gid": 34, "mode": "0750"}],
    )
    assert lines_of(pod) == ["12:34:750"]
    status = (pod.path / "sharedVolumes/v").stat()
    assert (status.st_uid, status.st_gid) == (SHIFT + 12, SHIFT + 34)


def test_what_belongs_to_the_hosts_root_stays_its_own(make_pod: MakePod, roots_directory: Path) -> None:
    """A volume that nobody shifted shows nobody's files, which root of the pod may read as anybody may."""
    (roots_directory / "open").write_text("seen\n")
    (roots_directory / "secret").write_text("not seen\n")
    (roots_directory / "secret").chmod(0o600)
    script = (
        "stat -c %u:%g /v/open; cat /v/open; { cat /v/secret; touch /v/new; rm /v/open; chown 0 /v/open; } 2>&1; true"
    )
    lines = lines_of(make_pod({"a": shell(script, mounts=AT_V)}, volumes=[volume(roots_directory)]))
    assert lines[:2] == ["65534:65534", "seen"]
    assert len(lines) == 6
    assert {line.rpartition(": ")[2] for line in lines[2:]} <= {"Permission denied", "Operation not permitted"}
    assert sorted(path.name for path in roots_directory.iterdir()) == ["open", "secret"]


def test_a_mount_point_that_cannot_be_made(make_pod: MakePod, roots_directory: Path) -> None:
    """Within a volume of the host's root there has to be one: the line names the volume."""
    mounts = [*AT_V, {"volume": "e", "path": "/v/new"}]
    volumes = [volume(roots_directory), {"name": "e", "kind": "empty"}]
    pod = make_pod({"a": shell("true", mounts=mounts)}, volumes=volumes)
    result = pod.run()
    assert result.returncode == 254
    assert 'stage1: app "a": mount: volume "e" on /v/new (pod: apps[0].mounts[1]): permission denied' in result.stderr


@needs_loop_devices
def test_devices_are_of_the_pods_root(make_pod: MakePod) -> None:
    """Those of every /dev, and one that is a volume, whose node has the numbers that the host's has; it is another."""
    host = os.stat("/dev/loop-control")
    script = (
        "stat -c %u:%g:%a /dev /dev/null /dev/net/tun /dev/shm /dev/pts/ptmx; echo x > /dev/null;"
        " stat -c %u:%g:%a /v; true <> /v && echo opened; chmod 600 /v; mknod /tmp/n c 1 3 2>&1 | grep -c permitted"
    )
    lines = lines_of(make_pod({"a": shell(script, mounts=AT_V)}, volumes=[volume("/dev/loop-control")]))
    numbers = f"{host.st_uid}:{host.st_gid}:{stat.S_IMODE(host.st_mode):o}"
    assert lines == ["0:0:755", "0:0:666", "0:0:666", "0:0:1777", "0:0:666", numbers, "opened", "1"]
    assert os.stat("/dev/loop-control").st_mode == host.st_mode


@pytest.mark.parametrize(("net", "shows"), [("none", "lo"), ("host", None), ("default", "eth0 lo")])
def test_sysfs_is_of_the_pods_network(make_pod: MakePod, net: str, shows: str | None) -> None:
    """/sys shows the interfaces of the network namespace, whoever that belongs to, and nobody can change it."""
    script = "ls /sys/class/net; touch /sys/kernel/x 2>&1 | grep -c Read-only"
    pod = make_pod({"a": shell(script)})
    expected = sorted(name for _, name in socket.if_nameindex()) if shows is None else shows.split()
    result = pod.run(net=net)
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == [*expected, "1"], result


def test_the_root_of_a_pod_in_a_network_of_the_hosts(make_pod: MakePod) -> None:
    """It may use low ports and ping, though it has no capability there."""
    pod = make_pod({"a": shell("guest echo 172.16.28.1 && echo pong; nc -l -p 80 -e /bin/echo hello")})
    process = pod.start(net="default")
    pod.wait_ready()
    address = (pod.path / "net-info.json").read_text().partition('"ip":"')[2].partition('"')[0]

    def greeting() -> bytes:
        try:
            with socket.create_connection((address, 80), timeout=60) as client:
                return client.recv(100)
        except ConnectionRefusedError:
            return b""

    assert wait_for(greeting, "port 80") == b"hello\n"
    result = pod.finish(process)
    assert (result.returncode, "pong" in result.stdout, result.stderr) == (0, True, "")


def test_a_low_port_of_the_host(make_pod: MakePod) -> None:
    """The pod's root may not have it, but an app gets it open if it has it for a socket."""
    ports = [{"name": "low", "port": 81, "protocol": "tcp", "socketActivated": True}]
    pod = make_pod({"a": guest("answer", "/tmp/report", "1", ports=ports), "b": shell("nc -l -p 82 2>&1; true")})
    process = pod.start(net="host")
    pod.wait_ready()
    with socket.create_connection(("127.0.0.1", 81), timeout=60) as client:
        assert client.recv(100) == b"a 3"
    assert "Permission denied" in pod.finish(process).stdout


def test_pid_1_as_the_pod_sees_it(make_pod: MakePod) -> None:
    """Its root is a directory of root's; who has no CAP_SYS_PTRACE does not get at it (rkt's own test)."""
    retained = [{"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_SYS_PTRACE"]}}]
    script = "stat -c %u:%g:%A / ; stat -Lc %u:%g:%A /proc/1/root/ 2>&1"
    root = "0:0:drwxr-xr-x"
    assert lines_of(make_pod({"a": shell(script, isolators=retained)})) == [root, root]
    result = make_pod({"a": shell(script)}).run()
    assert result.returncode == 1 and "Permission denied" in result.stdout


def test_the_score_of_the_oom_killer(make_pod: MakePod) -> None:
    """An app cannot take for itself what PID 1 had been given by the host, nor give itself less than another's."""
    lower = "cat /proc/self/oom_score_adj /proc/1/oom_score_adj; { echo -1 > /proc/self/oom_score_adj; } 2>&1; true"
    [own, of_pid_1, refusal] = lines_of(make_pod({"a": shell(lower)}))
    assert (own, of_pid_1) == ("0", "0") and "Permission denied" in refusal


def test_no_control_group_belongs_to_the_pod(make_pod: MakePod) -> None:
    """PID 1 joins, freezes and kills by what the launcher has opened: not one file is the pod's root's."""
    pod = make_pod({"a": shell("while :; do sleep 1; done")})
    pod.start()
    pod.wait_ready()
    files = [path for group in pod.control_groups() for path in (group, *group.rglob("*"))]
    assert len(files) > 20
    assert {path.stat().st_uid for path in files} == {0}
    assert len(pod.members()) > 1
