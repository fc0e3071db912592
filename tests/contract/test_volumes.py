"""Volumes: what an app finds at its mount points, and what becomes of the host's side of it."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, app_section, guest, shell
from tests.support.processes import descriptors_of
from tests.support.refusals import assert_refused
from tests.support.waiting import wait_for

DOCKER = {"appc.io/docker/repository": "library/web"}
BOTH = pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])


@pytest.fixture
def source(work_directory: Path) -> Iterator[Path]:
    """A directory of the host with a file, whose content is as before when the pods that used it are removed."""
    path = Path(tempfile.mkdtemp(prefix="source-", dir=work_directory))
    path.chmod(0o755)
    (path / "file").write_text("of the host\n")
    yield path
    assert (path / "file").read_text() == "of the host\n"
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in mounts if point.startswith(f"{path}/")), reverse=True):
        subprocess.run(["umount", point], check=True)
    shutil.rmtree(path)


def host(source: object, name: str = "v", **fields: Any) -> dict[str, Any]:
    """Return a volume of the host."""
    return {"name": name, "kind": "host", "source": str(source), **fields}


def empty(name: str = "v", **fields: Any) -> dict[str, Any]:
    """Return a volume that is a directory made for the pod."""
    return {"name": name, "kind": "empty", **fields}


def mount(path: str, volume: str = "v") -> dict[str, str]:
    """Return the place of a volume in an app."""
    return {"volume": volume, "path": path}


def mount_tmpfs(path: Path, **files: str) -> None:
    """Mount a tmpfs of the host with some files."""
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=True)
    for name, text in files.items():
        (path / name).write_text(text)


def lines_of(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the apps wrote, without their names."""
    assert result.returncode == 0, result
    return [line.partition(": ")[2] for line in result.stdout.splitlines()]


# Reading and writing.


@BOTH
@pytest.mark.private_users
def test_read_only_and_recursive_in_every_combination(make_pod: MakePod, source: Path, overlay: bool) -> None:
    """The volume decides about writing, else the mount point; what is mounted below follows, if it is recursive."""
    (source / "sub").mkdir()
    # What is below the mount is anybody's, whatever ids the pod has.
    (source / "sub").chmod(0o777)
    mount_tmpfs(source / "sub", below="below\n")
    report = (
        "for d in /v /v/sub; do touch $d/$AC_APP_NAME 2>/dev/null && echo -n 'rw ' || echo -n 'ro '; done; ls /v/sub"
    )
    apps, expected = {}, {}
    for index, (of_volume, of_point, recursive) in enumerate(
        product((None, True, False), (True, False), (None, True, False))
    ):
        fields: dict[str, Any] = {"readOnly": of_volume, "recursive": recursive}
        volume = host(source, **{key: value for key, value in fields.items() if value is not None})
        name = f"app{index}"
        apps[name] = shell(
            report,
            mounts=[{**mount("/v"), "appVolume": volume}],
            mountPoints=[{"name": "v", "path": "/v", "readOnly": of_point}],
        )
        read_only = of_point if of_volume is None else of_volume
        word = "ro" if read_only else "rw"
        expected[name] = (word, word, recursive is not False)
    pod = make_pod(apps, overlay=overlay)
    result = pod.run()
    assert (result.returncode, result.stderr) == (0, "")
    output: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        output.setdefault(line.partition("[")[0], []).extend(line.partition(": ")[2].split())
    for name, (outer, inner, recursive) in expected.items():
        assert output[name][:2] == [outer, inner], name
        assert ("below" in output[name]) is recursive, name
        assert (source / name).exists() is (outer == "rw")
        assert (source / "sub" / name).exists() is (inner == "rw" and recursive)


@pytest.mark.private_users
@pytest.mark.rootless
def test_what_the_host_mounts_later(make_pod: MakePod, source: Path) -> None:
    """It appears below a recursive volume that can be written; below a read-only one it could be written, so not."""
    mount_tmpfs(source)
    (source / "file").write_text("of the host\n")
    subprocess.run(["mount", "--make-shared", str(source)], check=True)
    (source / "later").mkdir()
    script = "while [ ! -e /go/go ]; do sleep 0.01; done; ls /v/later | wc -l"
    volumes = [host(source), host(source, "ro", readOnly=True), host(source, "flat", recursive=False), empty("go")]
    apps = {
        name: shell(script, mounts=[mount("/v", volume), mount("/go", "go")])
        for name, volume in (("a", "v"), ("b", "ro"), ("c", "flat"))
    }
    pod = make_pod(apps, volumes=volumes)
    process = pod.start()
    pod.wait_ready()
    mount_tmpfs(source / "later", below="")
    (pod.path / "sharedVolumes/go/go").touch()
    result = pod.finish(process)
    counts = {line.partition("[")[0]: line.partition(": ")[2] for line in result.stdout.splitlines()}
    assert counts == {"a": "1", "b": "0", "c": "0"}
    subprocess.run(["umount", "--recursive", str(source)], check=True)


def test_what_an_app_mounts_stays_in_the_app(make_pod: MakePod, source: Path) -> None:
    """Also below a volume whose mount the host shares, and while another app has the same volume."""
    mount_tmpfs(source)
    (source / "file").write_text("of the host\n")
    (source / "dir").mkdir()
    subprocess.run(["mount", "--make-shared", str(source)], check=True)
    before = Path("/proc/self/mountinfo").read_text().count(str(source))
    apps = {
        "a": shell(
            "mount -t tmpfs x /v/dir && touch /v/dir/hidden /sync/done && "
            "while [ ! -e /sync/seen ]; do sleep 0.01; done"
        ),
        "b": shell("while [ ! -e /sync/done ]; do sleep 0.01; done; ls /v/dir; touch /sync/seen; echo end"),
    }
    for section in apps.values():
        section["mounts"] = [mount("/v"), mount("/sync", "sync")]
    pod = make_pod(apps, volumes=[host(source), empty("sync")])
    process = pod.start("--disable-capabilities-restriction", "--disable-seccomp")
    wait_for((pod.path / "sharedVolumes/sync/done").exists, "the app's mount")
    assert os.listdir(source / "dir") == []
    assert lines_of(pod.finish(process)) == ["end"]
    assert Path("/proc/self/mountinfo").read_text().count(str(source)) == before
    subprocess.run(["umount", str(source)], check=True)


def test_volumes_are_seen_by_their_apps_only(make_pod: MakePod, source: Path) -> None:
    """Neither the host nor PID 1 nor another app has a mount of it, and an app has no descriptor of it."""
    pod = make_pod(
        {
            "a": shell(
                "/bin/guest report /tmp/report; while [ ! -e /v/stop ]; do sleep 0.01; done", mounts=[mount("/v")]
            ),
            "b": shell("cat /proc/self/mountinfo; ls /v || exit 0"),
        },
        volumes=[host(source)],
    )
    process = pod.start()
    pod.wait_file("a", "/tmp/report")
    for pid in (pod.pid, process.pid):
        assert str(source) not in Path(f"/proc/{pid}/mountinfo").read_text()
    assert not [target for target in descriptors_of(pod.pid).values() if str(source) in target]
    (source / "stop").touch()
    result = pod.finish(process)
    assert str(source) not in result.stdout
    assert sorted(pod.report("a").descriptors) == [0, 1, 2]


@pytest.mark.private_users
@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_an_app_that_is_not_root(make_pod: MakePod, source: Path) -> None:
    """Permissions are those of the host's files."""
    (source / "own").mkdir()
    os.chown(source / "own", 1000, 1000)
    script = "touch /v/own/x && ! touch /v/x 2>/dev/null && echo right"
    pod = make_pod({"a": shell(script, user="1000", group="1000", mounts=[mount("/v")])}, volumes=[host(source)])
    assert lines_of(pod.run()) == ["right"]
    assert (source / "own/x").stat().st_uid == pod.shift + 1000


# Where.


@BOTH
@pytest.mark.private_users
def test_outer_volumes_come_before_inner_ones(make_pod: MakePod, source: Path, overlay: bool) -> None:
    """In whatever order the manifest has them; of two at one place the later one is on top."""
    for name in ("one", "two", "three"):
        (source / name / "b").mkdir(parents=True)
        (source / name / name).touch()
    volumes = [host(source / name, name) for name in ("one", "two", "three")]
    pod = make_pod(
        {
            "a": shell(
                "ls /a /a/b /a/b/c", mounts=[mount("/a/b/c", "three"), mount("/a/b", "two"), mount("/a", "one")]
            ),
            "b": shell("ls /x", mounts=[mount("/x", "three"), mount("/x", "one")]),
        },
        volumes=volumes,
        overlay=overlay,
    )
    result = pod.run()
    assert result.stderr.count("hides") == 1
    of_a = [line.partition(": ")[2] for line in result.stdout.splitlines() if line.startswith("a[")]
    assert of_a == ["/a:", "b", "one", "", "/a/b:", "b", "c", "two", "", "/a/b/c:", "b", "three"]
    of_b = [line.partition(": ")[2] for line in result.stdout.splitlines() if line.startswith("b[")]
    assert of_b == ["b", "one"]
    assert (source / "two/c").is_dir(), "a mount point below a volume is made in the volume"


@BOTH
def test_what_an_outer_volume_hides_is_in_nobodys_way(
    make_pod: MakePod, own_rootfs: Path, source: Path, overlay: bool
) -> None:
    """A file or a circle of the image on the way to an inner target, which is gone once the outer volume is there."""
    (own_rootfs / "a").mkdir()
    (own_rootfs / "a/x").touch()
    (own_rootfs / "a/circle").symlink_to("circle")
    (source / "outer").mkdir()
    mounts = [mount("/a/x/y"), mount("/a/circle/z"), mount("/a", "outer")]
    volumes = [host(source), host(source / "outer", "outer")]
    pod = make_pod(
        {"a": shell("cat /a/x/y/file /a/circle/z/file", mounts=mounts)}, own_rootfs, volumes=volumes, overlay=overlay
    )
    assert lines_of(pod.run()) == 2 * ["of the host"]


TARGETS = {
    "/data": "/data",
    "/not/there/yet": "/not/there/yet",
    "relative": "/relative",
    "/dir1/../../../foo": "/foo",
    "/absolute": "/dir1",
    "/absolute/x": "/dir1/x",
    "/link/x": "/dir1/x",
    "/dangling/x": "/made/here/x",
    "/out": "/outside",
    "/var-run/x": "/run/x",
    "/magic": "/tmp/x",
}


@BOTH
@pytest.mark.parametrize("target", TARGETS)
def test_targets(make_pod: MakePod, own_rootfs: Path, source: Path, target: str, overlay: bool) -> None:
    """Symlinks and ".." of the image lead inside the app's root, and what is missing there is made."""
    (own_rootfs / "dir1").mkdir()
    for name, text in (
        ("absolute", "/dir1"),
        ("link", "bin/../dir1"),
        ("dangling", "/made/here"),
        ("out", "../../../../outside"),
        ("var-run", "/run"),
        ("magic", "/proc/1/root/tmp/x"),
    ):
        (own_rootfs / name).symlink_to(text)
    place = TARGETS[target]
    pod = make_pod(
        {
            "a": shell(
                f"cat {place}/file; stat -c %a:%u:%g {place}; grep -c ' {place} ' /proc/self/mountinfo",
                mounts=[mount(target)],
            )
        },
        own_rootfs,
        volumes=[host(source)],
        overlay=overlay,
    )
    assert lines_of(pod.run()) == ["of the host", "755:0:0", "1"]
    below = pod.file("a", place)
    assert below.is_dir() and os.listdir(below) == [], "the mount point in the image's writable layer"


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_files(make_pod: MakePod, own_rootfs: Path, source: Path, overlay: bool) -> None:
    """A single file of any kind is mounted on a file, which is made where there is none."""
    (own_rootfs / "etc/there").write_text("of the image\n")
    (source / "other").write_text("other\n")
    os.mkfifo(source / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(source / "socket"))
    listener.listen()
    volumes = [host(source / name, name) for name in ("file", "other", "fifo", "socket")]
    script = (
        "cat /etc/there /new/place; echo more >> /new/place; stat -c %F /fifo /run/socket;"
        "echo hello | nc local:/run/socket || true"
    )
    mounts = [
        mount("/etc/there", "file"),
        mount("/new/place", "other"),
        mount("/fifo", "fifo"),
        mount("/run/socket", "socket"),
    ]
    pod = make_pod({"a": shell(script, mounts=mounts)}, own_rootfs, volumes=volumes, overlay=overlay)
    assert lines_of(pod.run())[:4] == ["of the host", "other", "fifo", "socket"]
    assert (source / "other").read_text() == "other\nmore\n"
    assert pod.file("a", "/new/place").read_bytes() == b""
    listener.close()


@pytest.mark.private_users
@pytest.mark.host_root("a device that a user may write to cannot be read-only")
def test_devices(make_pod: MakePod) -> None:
    """A device node as a volume can be used, at a place of its own and below the app's /dev."""
    volumes = [host("/dev/zero", "zero"), host("/dev/null", "null", readOnly=True)]
    script = "head -c 3 /dev/mine | wc -c; echo x > /etc/null; stat -c %F /dev/mine; head -c 2 /dev/zero | wc -c"
    pod = make_pod(
        {"a": shell(script, mounts=[mount("/dev/mine", "zero"), mount("/etc/null", "null")])}, volumes=volumes
    )
    assert lines_of(pod.run()) == ["3", "character special file", "2"]


@pytest.mark.private_users
def test_a_volume_over_dev(make_pod: MakePod, source: Path) -> None:
    """It hides the app's own /dev, but the app's streams are what they always are."""
    pod = make_pod(
        {
            "a": shell(
                "ls /dev; cat; echo end; stat -L -c %t:%T /proc/self/fd/0",
                mounts=[mount("/dev"), mount("/v/null", "n")],
            )
        },
        volumes=[host(source), host("/dev/null", "n")],
    )
    assert lines_of(pod.run()) == ["file", "end", "1:3"]


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("/data", True),
        ("/sys", False),
        ("/sys/fs/cgroup", False),
        ("/sysfs", True),
        ("/data/../sys/x", False),
        ("/to-sys", False),
    ],
)
@pytest.mark.private_users
def test_sys(make_pod: MakePod, own_rootfs: Path, source: Path, target: str, kept: bool) -> None:
    """The pod's sysfs is there unless a volume lies at or below the app's /sys."""
    (own_rootfs / "to-sys").symlink_to("sys/fs")
    script = "[ -d /sys/kernel ] && echo kept; find / -xdev -name nothing; cat $(find /sys /data /sysfs -name file)"
    pod = make_pod({"a": shell(script, mounts=[mount(target)])}, own_rootfs, volumes=[host(source)])
    result = pod.run()
    assert ("kept" in result.stdout) is kept
    assert "of the host" in result.stdout


@pytest.mark.private_users
def test_sys_of_the_host(make_pod: MakePod) -> None:
    """An app can be given the whole of the host's sysfs, if no paths are to be protected."""
    script = "[ -d /sys/kernel ] && ls /sys/fs/cgroup | head -1 && ! touch /sys/x 2>/dev/null && echo end"
    pod = make_pod({"a": shell(script, mounts=[mount("/sys")])}, volumes=[host("/sys", readOnly=True)])
    output = lines_of(pod.run("--disable-paths"))
    assert len(output) == 2 and output[-1] == "end", "with the mounts below it"


# Empty volumes.


@BOTH
@pytest.mark.private_users
def test_an_empty_volume_is_shared_by_the_apps(make_pod: MakePod, overlay: bool) -> None:
    """It has the owner and mode it asks for, is in the pod directory, and each app finds what another wrote."""
    volume = empty(mode="2751", uid=11, gid=22)
    pod = make_pod(
        {
            "a": shell("stat -c %a:%u:%g /x; echo from-a > /x/file", mounts=[mount("/x")]),
            "b": shell("while [ ! -s /y/file ]; do sleep 0.01; done; cat /y/file", mounts=[mount("/y")]),
        },
        volumes=[volume],
        overlay=overlay,
    )
    assert sorted(lines_of(pod.run())) == ["2751:11:22", "from-a"]
    assert (pod.path / "sharedVolumes/v/file").read_text() == "from-a\n"
    assert stat.S_IMODE((pod.path / "sharedVolumes").stat().st_mode) == 0o755


def test_a_read_only_empty_volume(make_pod: MakePod) -> None:
    """It can be read-only for one app and not for another, by their mount points."""
    point = {"name": "v", "path": "/v"}
    pod = make_pod(
        {
            "a": shell("touch /v/x", mountPoints=[point]),
            "b": shell(
                "while [ ! -e /v/x ]; do sleep 0.01; done; touch /v/y || echo no",
                mountPoints=[{**point, "readOnly": True}],
            ),
        },
        volumes=[empty()],
    )
    result = pod.run()
    assert lines_of(result) == ["no"]
    assert os.listdir(pod.path / "sharedVolumes/v") == ["x"]


@pytest.mark.parametrize("app_in_image", [True, False])
def test_a_mount_point_without_a_volume(make_pod: MakePod, own_rootfs: Path, app_in_image: bool) -> None:
    """An empty volume hides what the image has there, and the pod warns about it in rkt's words."""
    (own_rootfs / "data").mkdir()
    (own_rootfs / "data/of-image").touch()
    section = shell("ls /data; stat -c %a:%u:%g /data; touch /data/x", mountPoints=[{"name": "data", "path": "/data"}])
    pod = make_pod({"web": section}, own_rootfs, app_in_image=app_in_image)
    result = pod.run()
    assert lines_of(result) == ["755:0:0"]
    assert result.stderr == (
        'stage1: warning: no volume specified for mount point "data", implicitly creating an "empty" volume.'
        " This volume will be removed when the pod is garbage-collected.\n"
    )
    assert os.listdir(pod.path / "sharedVolumes/web-data") == ["x"]


def fill(directory: Path) -> None:
    """Make a directory with one of everything that an image can have."""
    (directory / "sub/deep").mkdir(parents=True)
    (directory / "sub").chmod(0o2710)
    (directory / "program").write_text("x")
    os.chown(directory / "program", 5, 6)
    (directory / "program").chmod(0o4755)
    (directory / "link").symlink_to("/etc/passwd")
    os.chown(directory / "link", 7, 8, follow_symlinks=False)
    os.mkfifo(directory / "fifo", 0o640)
    os.mknod(directory / "sub/null", stat.S_IFCHR | 0o606, os.makedev(1, 3))
    with (directory / "sparse").open("wb") as file:
        file.write(b"head")
        file.truncate(1 << 32)
        file.seek(1 << 31)
        file.write(b"middle")
    (directory / "sub/deep/empty").touch(0o600)
    for path in sorted(directory.rglob("*"), reverse=True):
        os.utime(path, ns=(1_000_000_007, 1_234_567_890_123_456_789), follow_symlinks=False)
    os.chown(directory, 9, 10)
    directory.chmod(0o1770)
    os.utime(directory, ns=(1_000_000_007, 1_111_111_111_123_456_789))


def listing(directory: Path, shift: int = 0) -> list[tuple[object, ...]]:
    """Return everything below a directory with its attributes, its owners less `shift`."""
    found: list[tuple[object, ...]] = []
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        text = os.readlink(path) if path.is_symlink() else ""
        size = None if path.is_dir() else status.st_size
        owner = (status.st_uid - shift, status.st_gid - shift)
        found.append(
            (
                str(path.relative_to(directory)),
                oct(status.st_mode),
                owner,
                status.st_rdev,
                size,
                status.st_mtime_ns,
                text,
            )
        )
    return found


@BOTH
@pytest.mark.parametrize("target", ["/data", "/link-to-data"])
@pytest.mark.private_users
@pytest.mark.host_root("a user makes no devices")
def test_volumes_of_docker_images_begin_with_what_the_image_has(
    make_pod: MakePod, own_rootfs: Path, target: str, overlay: bool
) -> None:
    """Owners, modes, times, links, devices, fifos and holes are kept; the image itself stays as it is."""
    fill(own_rootfs / "data")
    (own_rootfs / "link-to-data").symlink_to("/data")
    section = shell("cat /data/program; rm /data/program", mountPoints=[{"name": "data", "path": target}])
    pod = make_pod({"web": section}, own_rootfs, image_annotations=DOCKER, overlay=overlay)
    before = listing(own_rootfs / "data")
    process = pod.start()
    assert lines_of(pod.finish(process)) == ["x"]
    copy = pod.path / "sharedVolumes/web-data"
    shown = [entry for entry in listing(copy, pod.shift) if entry[0] != "."]
    assert shown == [entry for entry in before if entry[0] not in (".", "program")]
    assert (copy / "sparse").stat().st_blocks < 1000
    status = copy.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid - pod.shift, status.st_gid - pod.shift) == (0o1770, 9, 10)
    assert (copy / "sparse").open("rb").read(4) == b"head"
    with (copy / "sparse").open("rb") as file:
        file.seek(1 << 31)
        assert file.read(7) == b"middle\0"
    assert listing(own_rootfs / "data") == before


@pytest.mark.parametrize(
    ("annotations", "volumes", "fields"),
    [
        ({}, [], {}),
        (DOCKER, [{"name": "data", "kind": "empty"}], {}),
        (DOCKER, [{"name": "v", "kind": "empty"}], {"mounts": [{"volume": "v", "path": "/data"}]}),
    ],
    ids=["not docker", "explicit volume", "explicit mount"],
)
@pytest.mark.host_root("a user makes no devices")
def test_volumes_that_begin_empty(
    make_pod: MakePod, own_rootfs: Path, annotations: dict[str, str], volumes: list[Any], fields: dict[str, Any]
) -> None:
    """Nothing is copied from an image of another kind, or into a volume that somebody asked for."""
    fill(own_rootfs / "data")
    section = shell("ls /data", mountPoints=[{"name": "data", "path": "/data"}], **fields)
    pod = make_pod({"web": section}, own_rootfs, image_annotations=annotations, volumes=volumes)
    assert lines_of(pod.run()) == []


@pytest.mark.parametrize("text", ["/etc", "../../../../../../../../..", "OUTSIDE", "/proc/1/root", "data"])
def test_a_docker_image_copies_nothing_from_outside(
    make_pod: MakePod, own_rootfs: Path, source: Path, text: str
) -> None:
    """A target that is a link leads inside the image, and links below it are copied, not followed."""
    (own_rootfs / "data").mkdir()
    (own_rootfs / "data/x").symlink_to(text.replace("OUTSIDE", str(source)))
    (own_rootfs / "volume").symlink_to(text.replace("OUTSIDE", str(source)))
    points = [{"name": "one", "path": "/data"}, {"name": "two", "path": "/volume/x"}]
    pod = make_pod({"web": shell("true", mountPoints=points)}, own_rootfs, image_annotations=DOCKER)
    result = pod.run()
    assert "Traceback" not in result.stderr
    assert os.readlink(pod.path / "sharedVolumes/web-one/x") == text.replace("OUTSIDE", str(source))
    assert not list((pod.path / "sharedVolumes").rglob("file"))


# A root that cannot be written.


@BOTH
@pytest.mark.private_users
def test_a_read_only_root(make_pod: MakePod, source: Path, overlay: bool) -> None:
    """All that is mounted stays as writable as it was, volumes, shared memory and /dev, but for the files of /etc."""
    (source / "own").mkdir()
    script = (
        "for d in / /tmp /etc /run /bin /made /v/own /e /ro /dev /dev/shm; do"
        " touch $d/x 2>/dev/null && echo -n \"$d \"; done; (echo x >> /etc/hosts) 2>/dev/null && echo -n 'hosts ';"
        " echo x > /dev/null && echo x > /proc/self/comm && echo api"
    )
    pod = make_pod(
        {
            "a": shell(
                script,
                readOnlyRootFS=True,
                mounts=[mount("/v"), mount("/e", "e"), mount("/made/ro", "ro"), mount("/ro", "ro")],
            ),
            "b": shell("touch /x && echo free"),
        },
        volumes=[host(source), empty("e"), host(source, "ro", readOnly=True)],
        overlay=overlay,
    )
    output = lines_of(pod.run())
    assert sorted(output) == ["/v/own /e /dev /dev/shm api", "free"]
    assert not pod.file("a", "/x").exists()
    assert pod.file("a", "/made/ro").is_dir()


def test_a_read_only_root_of_an_image_without_anything(make_pod: MakePod, own_rootfs: Path) -> None:
    """Everything that minit needs in the root is made before it becomes read-only."""
    for name in ("dev", "proc", "sys", "tmp", "etc"):
        shutil.rmtree(own_rootfs / name)
    section = shell("cat /etc/hostname; [ -d /tmp -a -d /sys/kernel ] && touch /tmp/x", readOnlyRootFS=True)
    pod = make_pod({"a": section}, own_rootfs)
    result = pod.run("--hostname=pod")
    assert (result.stdout.partition(": ")[2], result.returncode) == ("pod\n", 1)
    assert "Read-only file system" in result.stderr


# What cannot be.


def test_a_source_that_is_missing(make_pod: MakePod, source: Path) -> None:
    """Exit code 1 and nspawn's words; also for a symlink that leads nowhere."""
    (source / "dangling").symlink_to("/not/there")
    for path in (source / "missing", source / "dangling", source / "no/such/place"):
        pod = make_pod(
            {"a": shell("true", mounts=[mount("/x"), mount("/y", "bad")])}, volumes=[empty(), host(path, "bad")]
        )
        text = f"Failed to stat {path}: No such file or directory"
        assert_refused(pod, pod.run(), text, "pod: apps[0].mounts[1]", code=1)


@pytest.mark.parametrize(
    ("name", "reason"), [("file/x", "not a directory"), ("loop", "too many levels"), ("x" * 256, "file name too long")]
)
def test_a_source_that_cannot_be_opened(make_pod: MakePod, source: Path, name: str, reason: str) -> None:
    """Any other reason ends with 254, and the line says where the source stands."""
    (source / "loop").symlink_to("loop")
    pod = make_pod({"a": shell("true", mounts=[mount("/x")])}, volumes=[host(f"{source}/{name}")])
    assert_refused(pod, pod.run(), "pod: apps[0].mounts[0]", f"{source}/{name}", reason)


@pytest.mark.parametrize(
    ("manifest", "fields", "words"),
    [
        ({}, {"mounts": [mount("/x")]}, 'pod: apps[0].mounts[0].volume: could not find volume "v"'),
        ({}, {"mounts": [{"path": "/x"}]}, "pod: apps[0].mounts[0].volume: expected an ACName, got nothing"),
        (
            {"volumes": [empty()]},
            {"mounts": [mount("/a/..")]},
            'pod: apps[0].mounts[0].path: expected a path below "/"',
        ),
        ({"volumes": [empty()]}, {"mounts": [mount("")]}, "pod: apps[0].mounts[0].path: expected a non-empty string"),
        ({}, {"mountPoints": [{"name": "x", "path": ""}]}, "pod: apps[0].app.mountPoints[0].path: expected a path"),
        ({"volumes": [empty(uid=-1)]}, {}, "pod: volumes[0].uid: expected an integer from 0 to"),
        ({"volumes": [empty(gid=0xFFFFFFFF)]}, {}, "pod: volumes[0].gid: expected an integer from 0 to"),
        ({"volumes": [empty(mode="0999")]}, {}, "pod: volumes[0].mode: expected an octal mode"),
        ({"volumes": [{"name": "v", "kind": "tape"}]}, {}, "pod: volumes[0].kind: expected"),
        ({"volumes": [host("relative")]}, {}, "pod: volumes[0].source: expected an absolute path"),
        ({"volumes": [empty(), empty()]}, {}, "duplicate volume name"),
    ],
)
def test_manifests_that_cannot_be(make_pod: MakePod, manifest: Any, fields: Any, words: str) -> None:
    """One line with the JSON path, and nothing else happens."""
    pod = make_pod({"a": shell("true", **fields)}, **manifest)
    assert_refused(pod, pod.run(), words)
    assert not (pod.path / "sharedVolumes").exists()


FAILURES = {
    "directory on file": ("/etc/passwd", "dir", "cannot mount a directory on a file"),
    "file on directory": ("/tmp", "file", "cannot mount a file on a directory"),
    "below a file": ("/etc/passwd/x", "dir", "not a directory"),
    "circle": ("/circle/x", "dir", "too many levels of symbolic links"),
    "below read-only": ("/ro/new", "dir", "read-only file system"),
    "the root by a link": ("/to-root", "dir", "it is the root of the app"),
    "long name": (f"/{'x' * 256}", "dir", "file name too long"),
    "below proc": ("/proc/nothing/x", "dir", "no such file or directory"),
}


@BOTH
@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.delegated_groups("without groups what is below /proc is refused before anything is made")
def test_targets_that_cannot_be(make_pod: MakePod, own_rootfs: Path, source: Path, case: str, overlay: bool) -> None:
    """One line names app, volume, target and place in the manifest; 254 is recorded; the host sees nothing of it."""
    (own_rootfs / "circle").symlink_to("/circle")
    (own_rootfs / "to-root").symlink_to("/")
    target, volume, reason = FAILURES[case]
    mounts = [mount("/ro", "ro"), mount(target, volume)]
    volumes = [host(source, "ro", readOnly=True), host(source, "dir"), host(source / "file", "file")]
    volumes = [item for item in volumes if item["name"] in ("ro", volume)]
    pod = make_pod({"a": shell("true", mounts=mounts)}, own_rootfs, volumes=volumes, overlay=overlay)
    before = pod.mounts()
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (254, 254)
    expected = f'stage1: app "a": mount: volume "{volume}" on {target} (pod: apps[0].mounts[1]): {reason}'
    assert result.stderr.startswith(expected), result.stderr
    assert result.stderr.count("\n") == 1
    assert (pod.mounts(), pod.is_running(), pod.members()) == (before, False, [])
    assert sorted(os.listdir(source)) == ["file"]


def test_a_volume_that_nobody_mounts(make_pod: MakePod) -> None:
    """The pod runs, and says so; its source is not even looked at."""
    pod = make_pod({"a": shell("true")}, volumes=[host("/not/there", "unused")])
    result = pod.run()
    assert (result.returncode, result.stderr) == (
        0,
        'stage1: warning: pod: volumes[0]: volume "unused" is mounted by no app\n',
    )


# The end.


def test_removing_a_pod_leaves_the_host_alone(make_pod: MakePod, source: Path) -> None:
    """While it runs and after it has ended there is nothing of a volume below the pod directory on the host."""
    mount_tmpfs(source / "sub", below="kept")
    pod = make_pod(
        {"a": guest("stubborn", "/v/up", mounts=[mount("/v"), mount("/e", "e")])},
        volumes=[host(source), empty("e")],
        annotations={"minit/stop-grace": "10ms"},
    )
    before = pod.mounts()
    assert len(before) == (2 if pod.overlay else 0), "the stage1 root and the app's"
    process = pod.start()
    wait_for((source / "up").exists, "the app")
    assert pod.mounts() == before
    pod.stop("--force")
    pod.finish(process)
    assert pod.mounts() == before
    assert pod.gc().returncode == 0
    pod.remove()
    assert not pod.path.exists()
    assert (source / "sub/below").read_text() == "kept"
    (source / "up").unlink()


def test_many_volumes(make_pod: MakePod, source: Path) -> None:
    """More volumes than the caller's limit of open files, in several apps, which have another limit."""
    names = [f"v{number}" for number in range(150)]
    mounts = [mount(f"/m/{name}", name) for name in names]
    apps = {app: shell("cat /m/*/file | wc -l; ulimit -n", mounts=mounts) for app in ("a", "b")}
    pod = make_pod(apps, volumes=[host(source, name) for name in names])
    result = pod.run(under=["/bin/sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh"])
    assert sorted(lines_of(result)) == ["1024", "1024", "150", "150"]


def test_enter_sees_the_volumes(make_pod: MakePod, source: Path) -> None:
    """A command that enters the app has its volumes and its files, and the read-only root."""
    pod = make_pod(
        {"a": app_section("/bin/sleep", "1000", readOnlyRootFS=True, mounts=[mount("/v")])}, volumes=[host(source)]
    )
    process = pod.start()
    pod.wait_ready()
    assert pod.enter("a", "cat", "/v/file").stdout == "of the host\n"
    assert "Read-only" in pod.enter("a", "touch", "/x").stderr
    pod.stop("--force")
    pod.finish(process)
