"""`prepare --private-users`: whose files are whose, and which ids a pod gets."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from minit.base.idrange import IdRange, parse_id_range
from minit.linux import syscalls
from minit.stage0.files.locks import key_lock
from minit.stage0.pods import overlay
from tests import tars
from tests.support.stage0_world import World, without_progress
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="prepares pods, which needs root")

APP = {"exec": ["/bin/sh"], "user": "0", "group": "0"}

# vfs_cap_data of linux/capability.h: cap_net_raw=ep of revision 2, and of revision 3 for the root of one namespace
CAP_NET_RAW = b"\x01\x00\x00\x02\x00\x20\x00\x00" + bytes(12)
CAP_NET_RAW_OF = b"\x01\x00\x00\x03\x00\x20\x00\x00" + bytes(12)


def write_image(world: World, *entries: bytes) -> Path:
    """Write an app image with these entries."""
    return tars.write_image(world.root / "made.aci", *entries, manifest_bytes=tars.manifest(app=APP))


def prepare(world: World, *words: object) -> tuple[Path, IdRange]:
    """Prepare a pod and return its directory and its ids."""
    uuid = world.prepare("--private-users", "--no-overlay", *(words or (world.app,)))
    pod = world.pod_path("prepared", uuid)
    ids = parse_id_range((pod / "private-users-prepared").read_text())
    assert ids is not None
    return pod, ids


def waiting_for(lock: int) -> int:
    """Return how many processes wait for a lock, proc_locks(5)."""
    inode = str(os.fstat(lock).st_ino)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(words[1] == "->" and words[6].split(":")[2] == inode for words in lines)


def owners(path: Path) -> tuple[int, int]:
    """Return user and group of a file, of a link its own."""
    status = path.lstat()
    return status.st_uid, status.st_gid


def test_the_pod_directory(world: World) -> None:
    """The trees of stage1 and apps belong to the pod's root, the directory and what stage0 writes to the host's."""
    pod, ids = prepare(world)
    record = (pod / "private-users-prepared").lstat()
    assert stat.S_IMODE(record.st_mode) == 0o640
    assert ids.count == 65536 and ids.shift % 65536 == 0 and 65536 <= ids.shift <= 0x7FFF0000
    rootfs = pod / "stage1/rootfs"
    shifted = {rootfs, *rootfs.rglob("*")}
    assert {"ex/run", "opt/stage2/busybox", "opt/stage2/busybox/manifest", "opt/stage2/busybox/rootfs/bin/sh"} <= {
        str(path.relative_to(rootfs)) for path in shifted
    }
    assert {owners(path) for path in shifted} == {(ids.shift, ids.shift)}
    assert {owners(path) for path in {pod, *pod.rglob("*")} - shifted} == {(0, 0)}


def test_what_is_in_an_image(world: World) -> None:
    """Ids are shifted whatever the file is; links are not followed, and nothing else is lost with the owner."""
    image = write_image(
        world,
        tars.file("rootfs/suid", b"x", mode=0o6755, uid=1000, gid=50),
        tars.hard_link("rootfs/hard", "rootfs/suid", uid=1000, gid=50),
        tars.directory("rootfs/tmp", 0o1777, uid=65534, gid=65535),
        tars.symlink("rootfs/tmp/passwd", "/etc/passwd", uid=7, gid=8),
        tars.header("rootfs/null", b"3", device=(1, 3), mode=0o666, gid=9),
        tars.header("rootfs/fifo", b"6", mode=0o622, uid=10),
        tars.file("rootfs/nobody/said/there/is", b"one", uid=11),
        tars.pax({"SCHILY.xattr.security.capability": CAP_NET_RAW, "SCHILY.xattr.user.note": b"kept"})
        + tars.file("rootfs/ping", b"x", mode=0o755),
        tars.directory("rootfs", 0o751, uid=4),
    )
    host = owners(Path("/etc/passwd"))
    pod, ids = prepare(world, image)
    root = pod / "stage1/rootfs/opt/stage2/app/rootfs"

    def seen(name: str) -> tuple[int | None, ...]:
        uid, gid = owners(root / name)
        return stat.S_IMODE((root / name).lstat().st_mode), ids.from_host(uid), ids.from_host(gid)

    assert {str(path.relative_to(root)): seen(str(path.relative_to(root))) for path in [root, *root.rglob("*")]} == {
        ".": (0o751, 4, 0),
        "suid": (0o6755, 1000, 50),
        "hard": (0o6755, 1000, 50),
        "tmp": (0o1777, 65534, 65535),
        "tmp/passwd": (0o777, 7, 8),
        "null": (0o666, 0, 9),
        "fifo": (0o622, 10, 0),
        "nobody": (0o755, 0, 0),
        "nobody/said": (0o755, 0, 0),
        "nobody/said/there": (0o755, 0, 0),
        "nobody/said/there/is": (0o644, 11, 0),
        "ping": (0o755, 0, 0),
    }
    assert (root / "hard").samefile(root / "suid")
    assert (root / "null").lstat().st_rdev == os.makedev(1, 3)
    assert os.getxattr(root / "ping", "security.capability") == CAP_NET_RAW_OF + ids.shift.to_bytes(4, "little")
    assert os.getxattr(root / "ping", "user.note") == b"kept"
    assert owners(Path("/etc/passwd")) == host


@pytest.mark.parametrize(
    "entry, complaint",
    [
        (tars.file("rootfs/f", uid=65536), 'entry "rootfs/f": unmapped uid 65536: '),
        (tars.directory("rootfs/d", gid=70000), 'entry "rootfs/d": unmapped gid 70000: '),
        (tars.symlink("rootfs/l", "f", uid=2097151), 'entry "rootfs/l": unmapped uid 2097151: '),
        (
            tars.pax({"SCHILY.xattr.security.capability": CAP_NET_RAW_OF + (65536).to_bytes(4, "little")})
            + tars.file("rootfs/f"),
            'entry "rootfs/f": capabilities of the unmapped root 65536: ',
        ),
    ],
)
def test_ids_that_are_not_mapped(world: World, entry: bytes, complaint: str) -> None:
    """An owner that the pod cannot have is one line that names the entry, and no pod; without the option it is fine."""
    image = write_image(world, entry)
    words = ("prepare", f"--stage1-path={world.stage1}", "--no-overlay")
    result = world.minit(*words, "--private-users", image, code=254)
    assert complaint in result.stderr
    assert result.stderr.endswith(": --private-users maps 0 to 65535\n") and result.stderr.count("\n") == 1
    assert not any(world.pods(place) for place in ("prepare", "prepared", "garbage"))
    world.minit(*words, image)


def test_a_stage1_with_ids_that_are_not_mapped(world: World) -> None:
    """The same goes for the image of stage1, which is copied from a tree."""
    stage1 = tars.write_image(
        world.root / "foreign.aci",
        tars.file("rootfs/ex", mode=0o755, uid=65536),
        manifest_bytes=tars.manifest(annotations=[{"name": "coreos.com/rkt/stage1/run", "value": "/ex"}]),
    )
    words = ("prepare", f"--stage1-path={stage1}", "--private-users", "--no-overlay", world.app)
    result = world.minit(*words, code=254)
    assert "/rootfs/ex: unmapped uid 65536: --private-users maps 0 to 65535\n" in result.stderr
    assert not any(world.pods(place) for place in ("prepare", "prepared", "garbage"))


@pytest.mark.parametrize("overlay", [(), ("--no-overlay",)], ids=["overlay", "copy"])
def test_files_of_the_store_stay_as_they_are(world: World, overlay: tuple[str, ...]) -> None:
    """Where its root and stage1 are overlays, their files belong to the pod there only; `=false` is as not given."""
    with world.start("--private-users", *overlay, world.app) as running:
        pod = world.pod_path("run", running.uuid)
        ids = parse_id_range((pod / "private-users-prepared").read_text())
        assert ids is not None
        rootfs = pod / "stage1/rootfs"
        seen = [rootfs, *(rootfs / path for path in ("ex/run", "opt/stage2/busybox", "opt/stage2/busybox/manifest"))]
        seen += [path for path in (rootfs / "opt/stage2/busybox/rootfs").rglob("*") if path.name != "mtab"]
        assert {owners(path) for path in seen} == {(ids.shift, ids.shift)}
        assert (pod / "overlay").exists() == (not overlay)
    assert {owners(path) for path in (world.data / "cas/tree").rglob("*")} == {(0, 0)}
    world.minit("run", f"--stage1-path={world.stage1}", "--private-users=false", world.app)
    assert not any(word.startswith("--private-users") for word in world.call("run").argv)


def test_ids_that_are_given(world: World) -> None:
    """They are those of the pod; another one may have them when it has ended, and none while it runs."""
    for wrong in ("0:65536", "1000", "70000:65536:1", "4294967294:2", "x"):
        result = world.minit(
            "prepare", f"--stage1-path={world.stage1}", f"--private-users={wrong}", world.app, code=254
        )
        assert f'"{wrong}": expected SHIFT:COUNT, ids of the host from 1 to 4294967294' in result.stderr
    given = "--private-users=200000:131072"
    with world.start(given, world.app) as running:
        record = world.pod_path("run", running.uuid) / "private-users-prepared"
        assert record.read_text() == "200000:131072"
        assert "--private-users=200000:131072" in world.call("run").argv
        second = world.prepare(given, world.app)
        assert "has ids of the running pod" in world.minit("run-prepared", second, code=254).stderr
    world.minit("run-prepared", second)


def test_where_no_owners_can_be_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason is known, and nothing is left of the trial."""

    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    data = tmp_path / "data"
    data.mkdir()
    assert overlay.idmap_obstacle(data) is None
    overlay.idmap_obstacle.cache_clear()
    monkeypatch.setattr(syscalls, "mount_setattr", refuse)
    reason = overlay.idmap_obstacle(data)
    assert reason == f"overlayfs cannot map the owners of files of {data}: invalid argument"
    assert not any(data.iterdir())
    overlay.idmap_obstacle.cache_clear()


def test_stage1_is_told(world: World) -> None:
    """`run` and `run-prepared` pass the range on; what stage0 writes later is the host root's."""
    with world.start("--private-users", "--no-overlay", "--dns=8.8.8.8", world.app) as running:
        pod = world.pod_path("run", running.uuid)
        told = (pod / "private-users-prepared").read_text()
        assert f"--private-users={told}" in world.call("run").argv
        assert owners(pod / "stage1/rootfs/etc/rkt-resolv.conf") == (0, 0)
        assert owners(pod / "stage1/rootfs/opt/stage2/busybox/rootfs/etc/mtab") == (0, 0)
    pod, ids = prepare(world)
    world.minit("run-prepared", pod.name)
    assert f"--private-users={ids}" in world.call("run").argv
    world.minit("run", f"--stage1-path={world.stage1}", "--no-overlay", world.app)
    assert not any(word.startswith("--private-users") for word in world.call("run").argv)


def test_commands_on_pods_with_ids_of_their_own(world: World) -> None:
    """They are listed, shown and removed as any other."""
    pod, _ = prepare(world)
    assert f"{pod.name}" in world.minit("list", "--full").stdout
    assert "state=prepared" in world.minit("status", pod.name).stdout
    assert '"busybox"' in world.minit("cat-manifest", pod.name).stdout
    world.minit("run-prepared", pod.name)
    world.minit("rm", pod.name)
    pod, _ = prepare(world)
    world.minit("run-prepared", pod.name)
    world.minit("gc", "--grace-period=0s")
    assert not any(world.pods(place) for place in ("run", "exited-garbage", "garbage"))


def test_no_two_pods_have_the_same_ids(world: World) -> None:
    """All ranges but one are taken, by pods in every place: of several that want it at once exactly one gets it."""
    prepare(world)
    [first] = world.pods("prepared")
    own = parse_id_range((world.pod_path("prepared", first) / "private-users-prepared").read_text())
    assert own is not None
    free = 4711 * 65536 if own.shift != 4711 * 65536 else 4712 * 65536
    for number, (place, record) in enumerate(
        [
            ("prepare", f"1:{free - 1}"),
            ("exited-garbage", f"{free + 65536}:65536"),
            ("garbage", f"{free + 131072}:{0x7FFFFFFF - free - 131072}"),
            ("run", "nonsense"),
        ]
    ):
        pod = world.pod_path(place, f"00000000-0000-4000-8000-00000000000{number}")
        pod.mkdir()
        (pod / "private-users-prepared").write_text(record)
    words = world.command("prepare", f"--stage1-path={world.stage1}", "--private-users", "--no-overlay", world.app)
    with key_lock(world.data / "locks", "privateUsersLock", exclusive=True) as lock:
        racers = [
            subprocess.Popen(words, env=world.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        wait_for(lambda: waiting_for(lock) == 3, "all to choose")
    said = [racer.communicate() for racer in racers]
    assert sorted(racer.returncode for racer in racers) == [0, 254, 254]
    [winner] = [out.strip() for out, _ in said if out]
    assert (world.pod_path("prepared", winner) / "private-users-prepared").read_text() == f"{free}:65536"
    complaint = "prepare: no ids are left for --private-users: remove pods that have ended, with: minit gc\n"
    assert sorted(without_progress(error) for _, error in said) == ["", complaint, complaint]


def test_ids_of_the_users_of_the_host(world: World) -> None:
    """Ids that subuid(5) and subgid(5) give to rootless containers are no pod's."""
    free = 815 * 65536
    upper, work = world.root / "upper", world.root / "work"
    work.mkdir()
    upper.mkdir()
    (upper / "subuid").write_text(f"# none\n\nsomeone:1:{free - 1}\nbroken:line\n")
    (upper / "subgid").write_text(f"someone:{free + 65536}:4000000000\n")
    mount = f"mount -t overlay overlay -o lowerdir=/etc,upperdir={upper},workdir={work} /etc"
    words = world.command("prepare", f"--stage1-path={world.stage1}", "--private-users", "--no-overlay", world.app)
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh", *words],
        env=world.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    pod = world.pod_path("prepared", result.stdout.strip())
    assert (pod / "private-users-prepared").read_text() == f"{free}:65536"


def test_ids_of_a_running_pod(world: World) -> None:
    """A pod that rkt prepared with ids of a pod that runs is not started, and stays as it was until that one ends."""
    pod, _ = prepare(world)
    with world.start("--private-users", "--no-overlay", world.app) as running:
        record = world.pod_path("run", running.uuid) / "private-users-prepared"
        theirs = parse_id_range(record.read_text())
        assert theirs is not None
        taken = IdRange(shift=theirs.shift + 65535, count=65536)
        (pod / "private-users-prepared").write_text(str(taken))
        result = world.minit("run-prepared", pod.name, code=254)
        assert result.stderr == (
            f'run-prepared: pod "{pod.name}" has ids of the running pod "{running.uuid}" on the host'
            f" ({taken} and {theirs}): wait for its end, or prepare the pod again\n"
        )
        assert world.pods("prepared") == [pod.name]
    world.minit("run-prepared", pod.name)
