"""`minit cp`: files in and out of pods that run or have ended, whatever apps make of them."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import campaign
from tests.support.commands import Stage0
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


class Copying:
    """A pod, and copies in and out of it."""

    def __init__(self, minit: Stage0, pod: str) -> None:
        self._command = minit
        self._pod = pod

    def __call__(self, *words: object, code: int = 0) -> str:
        """Copy, with PATHS that begin with `:` in the pod, and return what was said."""
        given = [f"{self._pod}{word}" if str(word).startswith(":") else word for word in words]
        result = self._command.call("cp", *given)
        assert result.returncode == code, result
        return result.stderr

    def try_copy(self, *words: object) -> None:
        """Copy as by a call, whether or not that is possible."""
        self._command.call("cp", *(f"{self._pod}{word}" if str(word).startswith(":") else word for word in words))

    def shell(self, script: str) -> str:
        """Run a script in the pod."""
        result = self._command.call("enter", self._pod, "/bin/sh", "-c", script)
        assert result.returncode == 0, result
        return str(result.stdout)


HOSTILE = """
busybox mkdir -p /t/sub /t/deep; cd /t
echo text > file; busybox chown 7:8 file; busybox chmod 4755 file; busybox ln file sub/second
busybox ln -s /etc/shadow link; busybox ln -s ../../../../../../etc up; busybox mkfifo fifo
busybox dd if=/dev/zero of=huge bs=1 count=1 seek=8G 2> /dev/null
busybox ln -s / /t/root
"""


@pytest.mark.host_root("a user makes no devices")
def test_running_and_ended(minit: Stage0, tmp_path: Path) -> None:
    """Files go in and out of pods that run or have ended as docker's cp has it, and no link leads outside."""
    here = tmp_path / "here"
    (here / "dir/inner").mkdir(parents=True)
    (here / "dir/inner/b").write_text("b\n")
    (here / "dir/a").write_text("a\n")
    os.chown(here / "dir/a", 5, 6)
    (here / "dir/a").chmod(0o4640)
    (here / "dir/link").symlink_to("/etc/passwd")
    words = ("--volume=data:/data", "--volume=in,kind=empty", "--mount=volume=in,target=/in")
    app = (minit.image(), "--exec=/bin/busybox", "--", "sleep", "1000")
    with minit.running(*minit.run_words(*words, *app)) as uuid:
        cp = Copying(minit, uuid)
        # A directory that is not there, one that is, its content, a file under another name.
        cp(here / "dir", ":/new")
        cp(here / "dir", ":/new")
        cp(f"{here}/dir/.", ":/new/dir/inner")
        cp(here / "dir/a", ":/new/renamed")
        found = cp.shell("cd /new; busybox find . | busybox sort; busybox stat -c '%a %u %g' a; busybox readlink link")
        inner = ["./dir/inner/a", "./dir/inner/b", "./dir/inner/inner", "./dir/inner/inner/b", "./dir/inner/link"]
        assert found.split() == [
            *(".", "./a", "./dir", "./dir/a", "./dir/inner", *inner, "./dir/link"),
            *("./inner", "./inner/b", "./link", "./renamed", "640", "0", "0", "/etc/passwd"),
        ]
        cp("-a", here / "dir/a", ":/kept")
        assert cp.shell("busybox stat -c '%a %u %g' /kept") == "4640 5 6\n"
        # On volumes, of the pod and beyond it.
        for target in (":/data/x", ":/in/x"):
            cp(here / "dir/a", target)
            cp(target, here / "back")
            assert (here / "back").read_text() == "a\n"
        assert cp.shell("busybox cat /data/x /in/x") == "a\na\n"
        # What an app makes.
        cp.shell(HOSTILE)
        cp(":/t", here / "out")
        out = here / "out"
        status = (out / "file").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o755, 0, 2)
        assert os.readlink(out / "link") == "/etc/shadow"
        assert stat.S_ISFIFO((out / "fifo").stat().st_mode)
        assert (out / "huge").stat().st_blocks < 100
        (out / "huge").unlink()
        assert "no such file" in cp(":/t/link/x", here / "x", code=254)
        # Links on the way are those of the app's root.
        cp.shell("echo own > /etc/own")
        cp(":/t/up/own", here / "own")
        assert (here / "own").read_text() == "own\n"
        cp(here / "own", ":/t/root/t/up/written")
        assert cp.shell("busybox cat /etc/written") == "own\n"
        assert not Path("/etc/written").exists()
        # Errors.
        assert "is the kernel's" in cp(here / "own", ":/proc/x", code=254)
        assert "which is a file" in cp(here / "dir", ":/kept", code=254)
        assert "cannot copy nothing" in cp("nothing", ":/", code=254)
        assert "no such file" in cp(here / "own", ":/none/x", code=254)
        assert "one of the two" in cp(here / "own", here / "x", code=254)
        assert "no app" in minit.call("cp", f"{uuid}:other:/t", here / "x").stderr
        os.mknod(here / "dir/device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        said = cp(here / "dir", ":/partly", code=254)
        assert 'left out "partly/device": a device' in said and "1 left out" in said
        assert cp.shell("busybox ls /partly").split() == ["a", "inner", "link"]
    assert minit.call("status", uuid).returncode == 0
    cp(":/t/sub", here / "ended")
    assert (here / "ended/second").read_text() == "text\n"
    cp(here / "own", ":/t/later")
    # As a tar, out of one place and into another.
    archive = here / "tar"
    with archive.open("wb") as file:
        minit.call("cp", f"{uuid}:/t/sub", "-", stdout=file, capture_output=False, text=False)
    names = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True, check=True).stdout.split()
    assert names == ["sub/", "sub/second"]
    with archive.open("rb") as file:
        assert minit.call("cp", "-", f"{uuid}:/t", stdin=file).returncode == 0


def test_links_made_meanwhile(minit: Stage0, tmp_path: Path) -> None:
    """An app that puts links in the place of directories during a copy gets nothing written outside its root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    source = tmp_path / "source"
    for number in range(200):
        (source / f"d{number}").mkdir(parents=True)
        (source / f"d{number}/f").write_text("in")
    script = (
        "busybox mkdir -p /t; while :; do for n in 1 50 100 199; do"
        f" busybox rm -rf /t/source/d$n; busybox ln -s {'../' * 20}{str(outside)[1:]} /t/source/d$n; done; done"
        " 2> /dev/null"
    )
    with minit.running(
        *minit.run_words(minit.image(), "--exec=/bin/sh", "--", "-c", f"trap 'exit 0' TERM; {script}")
    ) as uuid:
        for _ in range(5):
            minit.call("cp", source, f"{uuid}:/t")
            minit.call("cp", f"{uuid}:/t", tmp_path / "back")
    assert list(outside.iterdir()) == []


@pytest.mark.host_root("pods of a user have no other ids than the user's")
def test_in_a_pod_with_users_of_its_own(minit: Stage0, tmp_path: Path) -> None:
    """Owners are those that the pod sees, on its side of a copy."""
    file = tmp_path / "file"
    file.write_text("x")
    os.chown(file, 5, 6)
    flags = ("--no-overlay", "--private-users")
    words = minit.run_words(*flags, minit.image(), "--exec=/bin/busybox", "--", "sleep", "1000")
    with minit.running(*words) as uuid:
        cp = Copying(minit, uuid)
        cp(file, ":/plain")
        cp("-a", file, ":/kept")
        assert cp.shell("busybox stat -c '%u %g' /plain /kept") == "0 0\n5 6\n"
        cp("-a", ":/kept", tmp_path / "back")
    assert ((tmp_path / "back").stat().st_uid, (tmp_path / "back").stat().st_gid) == (5, 6)


def volumes(annotation: dict[str, dict[str, object]], **sources: Path) -> list[str]:
    """Return the words for a pod whose app has volumes of the host on /NAME, and sleeps."""
    words = [word for name, path in sources.items() for word in (f"--volume={name},kind=host,source={path}",)]
    words += [f"--mount=volume={name},target=/{name}" for name in sources]
    return [*words, "{image}", f"--annotation=minit/mounts={json.dumps(annotation)}"]


class Pod:
    """A pod that sleeps, in a with block while it runs; afterwards it has ended, and can be copied from and to."""

    def __init__(self, minit: Stage0, words: list[str], script: str = ":", up: str = "/up") -> None:
        self._minit = minit
        self._up = up
        given = [minit.image() if word == "{image}" else word for word in words]
        command = f"trap 'exit 0' TERM; {script}; echo up >{up}; while :; do busybox sleep 0.1; done"
        self._running = minit.running(*minit.run_words(*given, "--exec=/bin/sh", "--", "-c", command))

    def __enter__(self) -> Copying:
        self.copying = Copying(self._minit, self._running.__enter__())
        up = "cp", f"{self._minit.uuid}:{self._up}", self._minit.data / "up"
        wait_for(lambda: self._minit.call(*up).returncode == 0, "the app")
        return self.copying

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)


def test_parts_and_options_of_volumes(minit: Stage0, tmp_path: Path) -> None:
    """A copy goes to the part of a volume that the app has, and to nothing that the app cannot write."""
    tenants, fixed, new = tmp_path / "tenants", tmp_path / "fixed", tmp_path / "new"
    (tenants / "own").mkdir(parents=True)
    fixed.mkdir()
    (tenants / "index").write_text("neighbour")
    (tenants / "own/index").write_text("own")
    words = volumes({"/www": {"subPath": "own"}, "/fixed": {"readOnly": True}}, www=tenants, fixed=fixed)

    def try_copies(text: str) -> None:
        new.write_text(text)
        cp(new, ":/www/index")
        assert ((tenants / "own/index").read_text(), (tenants / "index").read_text()) == (text, "neighbour")
        cp(":/www/index", tmp_path / "back")
        assert (tmp_path / "back").read_text() == text
        for target in (":/fixed/x", ":/link/x"):
            assert "read-only" in cp(new, target, code=254)
        assert list(fixed.iterdir()) == []
        assert "no such file" in cp(":/www/../tenants/index", tmp_path / "back", code=254)

    with Pod(minit, words, "busybox ln -s /fixed /link; busybox ln -s /www /to-www") as cp:
        try_copies("running")
        cp(new, ":/to-www/linked")
        assert (tenants / "own/linked").read_text() == "running"
    try_copies("ended")
    cp(":/to-www/linked", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "running"


@pytest.mark.parametrize("layers", ["--no-overlay=false", "--no-overlay"])
def test_a_root_that_is_read_only(minit: Stage0, tmp_path: Path, layers: str) -> None:
    """A link in a volume leads no copy into a root that the app cannot write, nor into an image that is a volume."""
    written, new = tmp_path / "written", tmp_path / "new"
    written.mkdir()
    new.write_text("new")
    image = [f"--volume=image,kind=image,source={minit.image()}", "--mount=volume=image,target=/image"]
    words = [layers, *image, *volumes({}, written=written), "--readonly-rootfs"]
    with Pod(minit, words, "busybox ln -s /etc /written/etc; busybox ln -s /image /written/image", "/written/up") as cp:
        cp(new, ":/written/x")
        for target in (":/written/etc/x", ":/written/image/x", ":/image/x"):
            assert "read-only" in cp(new, target, code=254)
    for target in (":/written/etc/x", ":/written/image/x", ":/image/x"):
        assert "read-only" in cp(new, target, code=254)
    cp(new, ":/written/y")
    assert sorted(os.listdir(written)) == ["etc", "image", "up", "x", "y"]


@pytest.mark.parametrize("layers", ["--no-overlay=false", "--no-overlay"])
def test_on_a_shared_mount(minit: Stage0, tmp_path: Path, layers: str) -> None:
    """Copies from and to a pod that has ended work where all mounts are shared, as on a machine with systemd."""
    written, new = tmp_path / "written", tmp_path / "new"
    written.mkdir()
    new.write_text("new")
    minit.data.mkdir()
    for words in (("--bind", tmp_path, tmp_path), ("--make-shared", tmp_path)):
        subprocess.run(["mount", *words], check=True)
    try:
        with Pod(minit, [layers, *volumes({}, written=written)]) as cp:
            pass
        mounts = Path("/proc/self/mountinfo").read_text()
        cp(new, ":/x")
        cp(new, ":/written/x")
        cp(":/x", tmp_path / "back")
        assert ((tmp_path / "back").read_text(), (written / "x").read_text()) == ("new", "new")
        assert Path("/proc/self/mountinfo").read_text() == mounts
        assert minit.call("rm", minit.uuid).returncode == 0
    finally:
        subprocess.run(["umount", "-R", tmp_path], check=True)


def test_an_app_that_ends_meanwhile(minit: Stage0, tmp_path: Path) -> None:
    """A copy that has begun goes on with the volumes that the app had when it ends."""
    data, sub = tmp_path / "outer", tmp_path / "inner"
    (data / "sub").mkdir(parents=True)
    sub.mkdir()

    def entry(name: str) -> bytes:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        return archive.getvalue()[: tarfile.BLOCKSIZE]

    words = [f"--volume=data,kind=host,source={data}", "--mount=volume=data,target=/data"]
    words += [f"--volume=sub,kind=host,source={sub}", "--mount=volume=sub,target=/data/sub", "{image}"]
    with Pod(minit, words):
        copying = minit.start("cp", "-", f"{minit.uuid}:/data", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert copying.stdin is not None
        copying.stdin.write(entry("first") + entry("second"))
        copying.stdin.flush()
        wait_for(lambda: (data / "first").exists(), "the first file")
    _, errors = copying.communicate(entry("sub/third") + bytes(2 * tarfile.BLOCKSIZE), timeout=100)
    assert (copying.returncode, errors) == (0, b"")
    assert (os.listdir(sub), os.listdir(data / "sub")) == (["third"], [])


def test_a_volume_within_a_volume(minit: Stage0, tmp_path: Path) -> None:
    """An app that makes a link of a volume's source leads no copy there: not while it runs, and not afterwards."""
    outside, data, file = tmp_path / "outside", tmp_path / "data", tmp_path / "file"
    (data / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    file.write_text("x")
    script = f"busybox mv /data/sub /data/old; busybox ln -s {outside} /data/sub"
    with Pod(minit, volumes({}, data=data, sub=data / "sub"), script) as cp:
        assert os.readlink(data / "sub") == str(outside)
        assert "no such file" in cp(":/sub/secret", tmp_path / "back", code=254)
        cp(file, ":/sub/x")
        assert (data / "old/x").read_text() == "x"
    for words in ((":/sub/secret", tmp_path / "back"), (file, ":/sub/x")):
        assert "a link leads out of the volume" in cp(*words, code=254)
    # What does not need that volume works.
    cp(":/data/old/x", tmp_path / "back")
    assert sorted(os.listdir(outside)) == ["secret"]


def test_files_of_the_kernel(minit: Stage0, tmp_path: Path) -> None:
    """A link of an app's to files of the kernel's leads no copy there, and a copy of everything has none of them."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/on-volume").write_text("x")
    script = "busybox ln -s /proc/sys/kernel /kernel; busybox ln -s /sys/fs /sysfs"
    with Pod(minit, volumes({}, data=tmp_path / "data"), script) as cp:
        for words in ((":/kernel/hostname", tmp_path / "x"), (tmp_path / "data/on-volume", ":/kernel/hostname")):
            assert "files of the kernel's" in cp(*words, code=254)
        cp(tmp_path / "data/on-volume", ":/sysfs/x", code=254)
        cp(":/.", tmp_path / "whole")
    assert (tmp_path / "whole/data/on-volume").read_text() == "x"
    assert [os.listdir(tmp_path / "whole" / name) for name in ("proc", "sys")] == [[], []]


@pytest.mark.parametrize("runs", [True, False])
def test_links_in_the_place_of_volumes(minit: Stage0, tmp_path: Path, runs: bool) -> None:
    """Whoever exchanges a volume's source for a link all the time gets nothing written or read outside."""
    outside, data, file = tmp_path / "outside", tmp_path / "data", tmp_path / "file"
    (data / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    file.write_text("x")
    with Pod(minit, volumes({}, data=data, sub=data / "sub")) as cp:
        pass
    exchange = f"cd /data; busybox ln -s {outside} link; while :; do busybox mv sub old; busybox mv link sub;"
    exchange += " busybox mv sub link; busybox mv old sub; done"
    script = f"{{ {exchange} & }}"
    with Pod(minit, volumes({}, data=data, sub=data / "sub"), script) as running:
        for _ in range(campaign(10)):
            for words in ((":/sub/secret", tmp_path / "back"), (file, ":/sub/x")):
                (running if runs else cp).try_copy(*words)
    assert not (tmp_path / "back").exists()
    assert sorted(os.listdir(outside)) == ["secret"]
