"""As whom an app runs when its user or group is no number: names and files of the image, whatever the image holds."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, guest, shell

PASSWD = """root:x:0:0:root:/root:/bin/sh
# nobody:x:1:1:::
broken:x:1
web:x:1000:77:Web:/srv:/bin/sh
twice:x:1:1:::
twice:x:2:2:::
"""
GROUPS = "root:x:0:\nweb:x:2000:\nstaff:x:50:web,nobody\n"


@pytest.fixture
def rootfs(own_rootfs: Path) -> Path:
    """An image with users, groups and files of theirs."""
    (own_rootfs / "etc/passwd").write_text(PASSWD)
    (own_rootfs / "etc/group").write_text(GROUPS)
    (own_rootfs / "srv").mkdir()
    (own_rootfs / "srv/file").touch()
    (own_rootfs / "srv/link").symlink_to("/etc/passwd")
    (own_rootfs / "alias").symlink_to("/srv")
    (own_rootfs / "far").symlink_to("../../../../srv")
    return own_rootfs


def give_owners(root: Path) -> None:
    """Give the files of an image to others than root."""
    os.chown(root / "srv/file", 12, 34)
    os.lchown(root / "srv/link", 56, 78)


def assert_never_started(pod: PodDirectory) -> str:
    """Run a pod that cannot be, and return its one line; nothing may have been made for it."""
    mounts = pod.mounts()
    result = pod.run()
    assert result.returncode == 254
    assert result.stdout == ""
    assert result.stderr.startswith("stage1: ") and result.stderr.count("\n") == 1, result.stderr
    assert not (pod.path / "pid").exists() and not (pod.path / "subcgroup").exists()
    assert pod.control_groups() == []
    assert (pod.mounts(), pod.is_running()) == (mounts, False)
    return result.stderr


FORMS: dict[str, tuple[dict[str, Any], tuple[int, int], list[int]]] = {
    "names": ({"user": "web", "group": "staff"}, (1000, 50), []),
    "root": ({"user": "root", "group": "root"}, (0, 0), []),
    "numbers": ({"user": "+5", "group": "0042"}, (5, 42), []),
    "name-number": ({"user": "web", "group": "7"}, (1000, 7), []),
    "number-name": ({"user": "7", "group": "web"}, (7, 2000), []),
    "twice": ({"user": "twice", "group": "staff"}, (2, 50), []),
    "file": ({"user": "/srv/file", "group": "/srv/file"}, (12, 34), []),
    "link": ({"user": "/srv/link", "group": "/srv/link"}, (56, 78), []),
    "below-link": ({"user": "/alias/file", "group": "/far/file"}, (12, 34), []),
    "directory": ({"user": "/srv/", "group": "/"}, (0, 0), []),
    "mixed": ({"user": "/srv/file", "group": "staff"}, (12, 50), []),
    "supplementary": ({"user": "web", "group": "web", "supplementaryGIDs": [50, 9]}, (1000, 2000), [9, 50]),
}


@pytest.mark.parametrize("app_in_image", [False, True], ids=["pod", "image"])
@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_every_form(make_pod: MakePod, rootfs: Path, overlay: bool, app_in_image: bool) -> None:
    """Each app of a pod runs as what its own words say; a passwd entry's group and the caller's groups play no part."""
    apps = {name: guest("report", "/tmp/report", **fields) for name, (fields, _, _) in FORMS.items()}
    pod = make_pod(apps, rootfs, overlay=overlay, app_in_image=app_in_image)
    for name in pod.apps:
        give_owners(pod.file(name, "/"))
    result = pod.run(extra_groups=[4, 24])
    assert (result.returncode, result.stderr) == (0, "")
    for name, (_, (uid, gid), groups) in FORMS.items():
        status = pod.report(name).status
        assert status["Uid"].split() == [str(uid)] * 4, name
        assert status["Gid"].split() == [str(gid)] * 4, name
        assert sorted(map(int, status["Groups"].split())) == groups, name


def _convert(pod: PodDirectory, app: str) -> None:
    """Make an app's image one that was converted from Docker's format."""
    path = pod.stage1 / "opt/stage2" / app / "manifest"
    manifest = json.loads(path.read_text())
    manifest["annotations"] = [{"name": "appc.io/docker/repository", "value": "library/busybox"}]
    path.write_text(json.dumps(manifest))


@pytest.mark.private_users
def test_a_docker_image_without_the_group_of_its_user(make_pod: MakePod, rootfs: Path) -> None:
    """Converted, it names one user for both, and the group is the user's number; otherwise it is an error."""
    apps = {"a": guest("report", "/tmp/report", user="twice", group="twice")}
    pod = make_pod(apps, rootfs, app_in_image=True)
    _convert(pod, "a")
    assert pod.run().returncode == 0
    assert pod.report("a").status["Gid"].split() == ["2"] * 4
    assert '"twice" group not found' in assert_never_started(make_pod(apps, rootfs, app_in_image=True))


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"user": "user2"}, '"user2" user not found in /etc/passwd of its image'),
        ({"group": "group2"}, '"group2" group not found in /etc/group of its image'),
        ({"user": "user2", "group": "group2"}, '"user2" user not found in /etc/passwd of its image'),
        ({"user": "broken"}, '"broken" user not found in /etc/passwd of its image'),
        ({"user": "nobody"}, '"nobody" user not found in /etc/passwd of its image'),
        ({"user": "/not/there"}, "user: lstat /not/there: no such file or directory"),
        ({"group": "/etc/passwd/x"}, "group: lstat /etc/passwd/x: not a directory"),
        ({"user": "-5"}, 'user "-5": Invalid uid or gid'),
        ({"group": "4294967295"}, 'group "4294967295": expected a number of at most 4294967294'),
    ],
)
def test_who_is_not_there(make_pod: MakePod, rootfs: Path, fields: dict[str, Any], line: str, overlay: bool) -> None:
    """rkt's words and number, before anything is made; the line names the app."""
    pod = make_pod({"ok": guest("report", "/tmp/report"), "bad": guest("report", "/tmp/report", **fields)}, rootfs)
    assert assert_never_started(pod) == f'stage1: app "bad": {line}\n'


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to("passwd")


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 << 30)


def _magic(path: Path) -> None:
    path.parent.joinpath("fd").symlink_to("/proc/self/fd")
    path.symlink_to("fd/0")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_fifo, "not a regular file"),
        pytest.param(_device, "not a regular file", marks=pytest.mark.host_root("a user makes no devices")),
        (_socket, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (_loop, "too many levels of symbolic links"),
        (_sparse, "larger than 1048576 bytes"),
        (_magic, "no such file or directory"),
        (lambda path: None, "no such file or directory"),
    ],
    ids=["fifo", "device", "socket", "directory", "loop", "sparse", "magic", "nothing"],
)
def test_a_passwd_that_is_none(make_pod: MakePod, rootfs: Path, make: Callable[[Path], None], reason: str) -> None:
    """Any file of an image in its place is named, and neither waited for, nor opened, nor read without bound."""
    path = rootfs / "etc/passwd"
    path.unlink()
    make(path)
    pod = make_pod({"a": guest("report", "/tmp/report", user="web")}, rootfs)
    assert assert_never_started(pod) == f'stage1: app "a": "web" user not found: /etc/passwd: {reason}\n'
    # Nobody asks for it when there is a number; the same image runs.
    assert make_pod({"a": guest("report", "/tmp/report", user="7")}, rootfs).run().returncode == 0


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.parametrize("text", ["OUTSIDE", "../../../../../../../../OUTSIDE", "/proc/1/root/OUTSIDE"])
@pytest.mark.parametrize("name", ["etc", "etc/passwd"])
@pytest.mark.private_users
def test_a_link_to_the_hosts_files(
    make_pod: MakePod, rootfs: Path, work_directory: Path, text: str, name: str, overlay: bool
) -> None:
    """A link of the image leads to what the image has at that path, never to the host's own passwd."""
    outside = work_directory / "outside-etc"
    outside.mkdir(exist_ok=True)
    (outside / "passwd").write_text("host:x:4711:0:::\n")
    target = str(outside if name == "etc" else outside / "passwd")
    link = rootfs / name
    if name == "etc":
        (rootfs / "etc").rename(rootfs / "old-etc")
    else:
        link.unlink()
    link.symlink_to(text.replace("OUTSIDE", target.lstrip("/") if text != "OUTSIDE" else target))
    pod = make_pod({"a": guest("report", "/tmp/report", user="host")}, rootfs, overlay=overlay)
    assert '"host" user not found: /etc/passwd: no such file or directory' in assert_never_started(pod)


def test_a_link_within_the_image(make_pod: MakePod, rootfs: Path) -> None:
    """An absolute link is followed from the image's own root."""
    (rootfs / "etc/passwd").rename(rootfs / "srv/users")
    (rootfs / "etc/passwd").symlink_to("/alias/users")
    pod = make_pod({"a": guest("report", "/tmp/report", user="web")}, rootfs)
    assert pod.run().returncode == 0
    assert pod.report("a").status["Uid"].split() == ["1000"] * 4


JUNK = {
    "binary": bytes(range(256)) * 256,
    "long line": b"x" * (1 << 19),
    "colons": b":" * (1 << 19),
    "blank lines": b"\n" * (1 << 19),
    "no end": b"web" * 1000 + b"\0",
}


@pytest.mark.parametrize("case", JUNK)
def test_junk_around_an_entry(make_pod: MakePod, rootfs: Path, case: str) -> None:
    """Lines that are no entries do not hide one that is."""
    junk = JUNK[case]
    (rootfs / "etc/passwd").write_bytes(junk + b"\nweb:x:1000:77:::\n" + junk[: 1 << 17])
    pod = make_pod({"a": guest("report", "/tmp/report", user="web")}, rootfs)
    result = pod.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert pod.report("a").status["Uid"].split() == ["1000"] * 4


OF_IMAGE = [{"name": "minit/image-groups", "value": "primary,supplementary"}]


@pytest.mark.parametrize("user", ["web", "1000"])
@pytest.mark.parametrize("script", ["true", "rm /etc/group; mkfifo /etc/group"], ids=["file", "fifo"])
@pytest.mark.private_users
def test_groups_of_the_image(make_pod: MakePod, rootfs: Path, user: str, script: str) -> None:
    """The app, a hook and what enters as the app have the groups that the image's files have for its user."""
    subprocess.run(["sh", "-c", script.replace("/etc", f"{rootfs}/etc")], check=True)
    hooks = {
        "name": "minit/hooks",
        "value": json.dumps({"post-start": {"exec": ["/bin/guest", "report", "/tmp/hook"]}}),
    }
    app = shell(
        "while :; do sleep 1; done", user=user, group="0", supplementaryGIDs=[9], annotations=[*OF_IMAGE, hooks]
    )
    pod = make_pod({"a": app}, rootfs)
    pod.start()
    pod.wait_ready()
    words = f"--pid={pod.pid}", "--appname=a", "--as-app", "--", "/bin/guest", "report", "/tmp/entered"
    assert pod.call("enter", *words, from_tree=True).returncode == 0
    expected = [9, 77] if script.startswith("rm") else [9, 50, 77]
    for name in ("hook", "entered"):
        status = pod.report("a", f"/tmp/{name}").status
        assert (status["Uid"].split()[0], status["Gid"].split()) == ("1000", ["77"] * 4)
        assert sorted(map(int, status["Groups"].split())) == expected


def test_an_image_asks_for_no_groups(make_pod: MakePod, rootfs: Path) -> None:
    """Nor for privileges: the annotations are the caller's."""
    for name in ("minit/image-groups", "minit/no-new-privileges"):
        pod = make_pod({"a": guest("report", "/tmp/report")}, rootfs, image_annotations={name: "false"})
        assert f'annotation "{name}" is one of apps, not of images' in assert_never_started(pod)
