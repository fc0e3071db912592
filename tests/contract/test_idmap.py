"""Volumes of the host that have in a pod with a user namespace the owners they have on the disk: `minit/idmap`."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.linux.idmapping import open_user_namespace
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.refusals import assert_refused

pytestmark = pytest.mark.host_users("which pods have private users is what these are about")

RANGE = (0x10000 * 1234, 0x10000)


@pytest.fixture
def source() -> Iterator[Path]:
    """A directory of the host with a file of user 1000 that nobody else may read, and a mount below it."""
    # Not among the tests' own files, which are given to a pod with private users.
    top = Path(tempfile.mkdtemp(prefix="minit-owned-", dir="/var/tmp"))
    path = top / "volume"
    path.mkdir(mode=0o755)
    (path / "file").write_text("of 1000\n")
    (path / "file").chmod(0o600)
    os.chown(path / "file", 1000, 1001)
    (path / "sub").mkdir()
    syscalls.mount("tmpfs", str(path / "sub"), "tmpfs", 0, "uid=7,gid=8,mode=0755")
    yield path
    while (path / "sub").is_mount():
        syscalls.umount2(str(path / "sub"), syscalls.MNT_DETACH)
    shutil.rmtree(top)


def volume(source: object, name: str = "v", **fields: Any) -> dict[str, Any]:
    """Return a volume of the host."""
    return {"name": name, "kind": "host", "source": str(source), **fields}


def app(script: str, *volumes: str, idmap: str | None = "true", **fields: Any) -> dict[str, Any]:
    """Return an app that has volumes below /, with the annotation if it is given one."""
    annotations = [] if idmap is None else [{"name": "minit/idmap", "value": idmap}]
    mounts = [{"volume": name, "path": f"/{name}"} for name in volumes or ("v",)]
    return shell(f"exec 2>/dev/null; {script}", annotations=annotations, mounts=mounts, **fields)


def output_of(pod: PodDirectory) -> dict[str, list[str]]:
    """Run a pod that succeeds and return what each app wrote, line by line."""
    result = pod.run()
    assert (result.returncode, result.stderr) == (0, ""), result
    lines: dict[str, list[str]] = {name: [] for name in pod.apps}
    for line in result.stdout.splitlines():
        lines[line.partition("[")[0]].append(line.partition(": ")[2])
    return lines


def owner(path: Path) -> tuple[int, int]:
    """Return user and group of a file of the host."""
    status = path.lstat()
    return status.st_uid, status.st_gid


def test_owners_are_those_of_the_disk(make_pod: MakePod, source: Path) -> None:
    """In both directions and for every user, below the volume too; without the annotation they are nobody."""
    (source / "mine").mkdir()
    os.chown(source / "mine", 1000, 1001)
    look = "stat -c %u:%g /v /v/file /v/sub; cat /v/file"
    apps = {
        "root": app(f"{look}; echo x > /v/of-root; mkdir /v/sub/of-root; chown 5:6 /v/of-root"),
        "user": app("cat /v/file; echo x > /v/mine/file; touch /v/sub/x || echo refused", user="1000", group="1001"),
        "other": app(f"{look} || echo refused; touch /v/x || echo refused", idmap=None),
    }
    found = output_of(make_pod(apps, volumes=[volume(source)], private_users=RANGE))
    assert found["root"] == ["0:0", "1000:1001", "7:8", "of 1000"]
    assert found["user"] == ["of 1000", "refused"]
    assert found["other"] == ["65534:65534"] * 3 + ["refused"] * 2
    assert owner(source / "of-root") == (5, 6)
    assert owner(source / "sub/of-root") == (0, 0)
    assert owner(source / "mine/file") == (1000, 1001)


def test_nothing_in_it_gives_privileges(make_pod: MakePod, source: Path) -> None:
    """It is nosuid and nodev, and all that is mounted below it; the host's own mounts are as before."""
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    script = "grep ' /v[/ ]' /proc/self/mountinfo | cut -d' ' -f 5,6; echo x > /v/null || echo refused"
    pod = make_pod({"a": app(script)}, volumes=[volume(source)], private_users=RANGE)
    assert output_of(pod)["a"] == [
        "/v rw,nosuid,nodev,relatime,idmapped",
        "/v/sub rw,nosuid,nodev,relatime,idmapped",
        "refused",
    ]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    [below] = [line.split()[5] for line in lines if line.split()[4] == str(source / "sub")]
    assert below == "rw,relatime"


@pytest.mark.parametrize(
    "reader, warned", [((0, 0, 0o701), 1), ((0, 5, 0o710), 1), ((5, 0, 0o700), 1), ((0, 0, 0o710), 0)]
)
def test_setuid_programs(make_pod: MakePod, source: Path, reader: tuple[int, int, int], warned: int) -> None:
    """The pod's root can leave one of the host's root: there is a warning if others get there, and it counts there."""
    uid, gid, mode = reader
    os.chown(source.parent, uid, gid)
    source.parent.chmod(mode)
    script = "[ -e /v/su ] || cp /bin/busybox /v/su; chmod 4755 /v/su"
    readers = {"ro": volume(source, "ro", readOnly=True), "sub": volume(source / "sub", "sub")}
    apps = {"a": app(script), "b": app("true", "ro", "sub")}
    os.chmod(source / "sub", 0o700)
    syscalls.mount_setattr(syscalls.AT_FDCWD, str(source / "sub"), set=syscalls.MOUNT_ATTR_NOSUID)
    result = make_pod(apps, volumes=[volume(source), *readers.values()], private_users=RANGE).run()
    assert result.returncode == 0
    text = f'volume "v": whoever can reach {source} on the host can run setuid programs that root of the pod leaves'
    assert result.stderr.count("warning") == result.stderr.count(text) == warned, result.stderr
    assert stat.S_IMODE((source / "su").stat().st_mode) == 0o4755
    assert owner(source / "su") == (0, 0)


@pytest.mark.parametrize("recursive", [True, False])
def test_read_only(make_pod: MakePod, source: Path, recursive: bool) -> None:
    """A read-only volume stays so; one that is not recursive has nothing mounted below it."""
    pod = make_pod(
        {"a": app("stat -c %u:%g /v/file /v/sub; touch /v/x || echo refused; touch /v/sub/x || echo refused")},
        volumes=[volume(source, readOnly=True, recursive=recursive)],
        private_users=RANGE,
    )
    assert output_of(pod)["a"] == ["1000:1001", "7:8" if recursive else "0:0", "refused", "refused"]


def test_what_the_host_mounts_later(make_pod: MakePod, source: Path) -> None:
    """It does not appear, since it would come without the mapping."""
    subprocess.run(["mount", "--make-shared", str(source / "sub")], check=True)
    (source / "sub/later").mkdir()
    script = "while [ ! -e /go/go ]; do sleep 0.01; done; ls /v/later | wc -l"
    volumes = [volume(source / "sub"), {"name": "go", "kind": "empty"}]
    pod = make_pod({"a": app(script, "v", "go")}, volumes=volumes, private_users=RANGE)
    process = pod.start()
    pod.wait_ready()
    syscalls.mount("tmpfs", str(source / "sub/later"), "tmpfs", 0)
    (source / "sub/later/file").touch()
    (pod.path / "sharedVolumes/go/go").touch()
    assert pod.finish(process).stdout.partition(": ")[2] == "0\n"
    syscalls.umount2(str(source / "sub/later"))


def test_volumes_by_name(make_pod: MakePod, source: Path) -> None:
    """The pod's annotation is for apps without one, and a name for one volume of several."""
    script = "stat -c %u /v/file /w/file"
    pod = make_pod(
        {"own": app(script, "v", "w", idmap="w"), "pods": app(script, "v", "w", idmap=None)},
        volumes=[volume(source), volume(source, "w")],
        private_users=RANGE,
        annotations={"minit/idmap": "v"},
    )
    assert output_of(pod) == {"own": ["65534", "1000"], "pods": ["1000", "65534"]}


def test_a_file_as_a_volume(make_pod: MakePod, source: Path) -> None:
    """It can be a single file."""
    pod = make_pod({"a": app("stat -c %u /v")}, volumes=[volume(source / "file")], private_users=RANGE)
    assert output_of(pod)["a"] == ["1000"]


@pytest.mark.parametrize("place", ["itself", "below", "mapped"])
def test_what_cannot_be_mapped(make_pod: MakePod, source: Path, place: str) -> None:
    """A filesystem that cannot, there or below, or a mount that is mapped already is one line and no pod."""
    path, reason = source, "invalid argument"
    if place == "itself":
        path = Path("/proc/sys")
    elif place == "below":
        syscalls.mount("proc", str(source / "sub"), "proc", 0)
    else:
        path, reason = source / "sub", "operation not permitted"
        tree = syscalls.open_tree(syscalls.AT_FDCWD, str(path), syscalls.OPEN_TREE_CLONE)
        namespace = open_user_namespace(IdRange(shift=5000, count=10))
        syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_IDMAP, user_namespace=namespace)
        syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=str(path))
        os.close(tree)
        os.close(namespace)
    pod = make_pod({"a": app("echo ran")}, volumes=[volume(path)], private_users=RANGE)
    assert_refused(
        pod,
        pod.run(),
        f'pod: apps[0].mounts[0]: volume "v": minit/idmap: the filesystem of {path} or one that is mounted below it',
        f"cannot map owners: {reason}",
    )


def test_devices_are_refused(make_pod: MakePod) -> None:
    """A mount without devices is of no use to them."""
    pod = make_pod({"a": app("echo ran")}, volumes=[volume("/dev/null")], private_users=RANGE)
    assert_refused(pod, pod.run(), 'volume "v": minit/idmap cannot be had for devices')


def test_without_private_users(make_pod: MakePod, source: Path) -> None:
    """The annotation is refused; saying no is allowed."""
    pod = make_pod({"a": app("echo ran")}, volumes=[volume(source)])
    assert_refused(pod, pod.run(), 'app "a": annotation minit/idmap: ids are mapped in pods with --private-users only')
    pod = make_pod({"a": app("true", idmap="false")}, volumes=[volume(source)])
    assert pod.run().returncode == 0
