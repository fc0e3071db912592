"""The files an app finds in its root beside those of its image."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from tests.support.pods import MakePod, shell
from tests.support.terminal import Terminal

pytestmark = pytest.mark.private_users

DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
    "net/tun": (10, 200),
}
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def lines_of(output: str) -> list[str]:
    """Return the lines of an app's output without their prefix."""
    return [line.partition("]: ")[2] for line in output.splitlines()]


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_device_nodes(make_pod: MakePod, overlay: bool) -> None:
    """Those of the appc specification, world-writable, root's, and nothing else."""
    script = (
        "cd /dev; find . ! -path './pts/*' | sort > /tmp/names;"
        "stat -c '%n %F %t:%T %a %u:%g' " + " ".join(DEVICES) + " > /tmp/devices;"
        "stat -c '%n %a %u:%g' . pts shm net > /tmp/directories;"
        "stat -L -c '%F %t:%T %a %u:%g' ptmx > /tmp/ptmx;"
        "for x in fd stdin stdout stderr ptmx; do readlink $x; done > /tmp/links"
    )
    pod = make_pod({"a": shell(script)}, overlay=overlay)
    assert pod.run().returncode == 0
    names = [".", "./fd", "./full", "./mqueue", "./net", "./net/tun", "./null", "./ptmx", "./pts", "./random", "./shm"]
    names += ["./stderr", "./stdin", "./stdout", "./tty", "./urandom", "./zero"]
    assert pod.file("a", "/tmp/names").read_text().split() == names
    assert pod.file("a", "/tmp/devices").read_text().splitlines() == [
        f"{name} character special file {major:x}:{minor:x} 666 0:0" for name, (major, minor) in DEVICES.items()
    ]
    assert pod.file("a", "/tmp/directories").read_text().splitlines() == [
        *(". 755 0:0", "pts 755 0:0", "shm 1777 0:0", "net 755 0:0")
    ]
    assert pod.file("a", "/tmp/ptmx").read_text() == "character special file 5:2 666 0:0\n"
    assert pod.file("a", "/tmp/links").read_text().split() == [*LINKS.values(), "pts/ptmx"]


def test_devices_work(make_pod: MakePod) -> None:
    """Also for an app that is not root; a terminal of its own is one open away."""
    script = (
        "head -c 3 /dev/zero | wc -c; echo x > /dev/null && echo ok; echo x > /dev/full || echo full;"
        "exec 3<>/dev/ptmx && ls /dev/pts; echo shared > /dev/shm/x && cat /dev/shm/x; echo out > /dev/stdout"
    )
    pod = make_pod({"a": shell(script, user="1000", group="1000")})
    result = pod.run()
    assert lines_of(result.stdout) == ["3", "ok", "full", "0", "ptmx", "shared", "out"]


def test_the_terminals_of_a_pod_are_its_own(make_pod: MakePod) -> None:
    """Its first terminal is number 0, whatever the host has open."""
    pod = make_pod({"a": shell("exec 3<>/dev/ptmx; ls /dev/pts")})
    with Terminal():
        assert lines_of(pod.run().stdout) == ["0", "ptmx"]


def test_proc_and_sys(make_pod: MakePod) -> None:
    """/proc works, and /sys is read-only."""
    pod = make_pod({"a": shell("cat /proc/self/comm; ls /sys/class/net; touch /sys/x /sys/kernel/x; true")})
    result = pod.run()
    assert lines_of(result.stdout) == ["cat", "lo"]
    assert result.stderr.count("ead-only file system") == 2


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_directories_that_an_image_lacks_are_made(make_pod: MakePod, own_rootfs: Path, overlay: bool) -> None:
    """With rkt's modes, in the app's writable layer; an existing one keeps its mode."""
    for name in ("dev", "proc", "sys", "tmp", "etc"):
        shutil.rmtree(own_rootfs / name)
    (own_rootfs / "run").mkdir(mode=0o700)
    pod = make_pod({"a": shell("cat /proc/self/comm")}, own_rootfs, overlay=overlay)
    assert lines_of(pod.run().stdout) == ["cat"]
    modes = {name: stat.S_IMODE(pod.file("a", name).stat().st_mode) for name in ("dev", "proc", "sys", "etc")}
    assert modes == {"dev": 0o755, "proc": 0o755, "sys": 0o755, "etc": 0o755}
    assert stat.S_IMODE(pod.file("a", "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE(pod.file("a", "run").stat().st_mode) == 0o700
    assert list(pod.file("a", "dev").iterdir()) == [], "device nodes are in a mount, not in the image"


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_what_an_app_writes_stays_in_its_own_layer(make_pod: MakePod, app_rootfs: Path, overlay: bool) -> None:
    """Two apps of one image do not see each other's changes, and the image stays as it is."""
    pod = make_pod({name: shell(f"[ ! -e /etc/who ]; echo {name} > /etc/who") for name in ("a", "b")}, overlay=overlay)
    assert pod.run().returncode == 0
    assert [pod.file(name, "/etc/who").read_text() for name in ("a", "b")] == ["a\n", "b\n"]
    assert not (app_rootfs / "etc/who").exists()


def test_the_tree_store_is_never_changed(make_pod: MakePod, stage1_tree: Path) -> None:
    """Entrypoints that run from there leave no byte-code, cache or log behind."""

    def listing() -> list[tuple[str, int, int]]:
        return [
            (str(path), path.lstat().st_mtime_ns, path.lstat().st_size)
            for path in sorted(stage1_tree.rglob("*"))
            if not path.is_symlink()
        ]

    before = listing()
    pod = make_pod({"a": shell("while :; do sleep 1; done")})
    process = pod.start()
    pod.wait_ready()
    assert pod.enter("a", "true").returncode == 0
    pod.call("stop", pod.uuid, from_tree=True)
    pod.finish(process)
    pod.call("gc", pod.uuid, from_tree=True)
    assert listing() == before
