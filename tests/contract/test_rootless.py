"""Pods of a user without root, in a user namespace of that user's own."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.linux.idmapping import open_user_namespace
from tests.support.campaign import LONG
from tests.support.ordinaryuser import HOME, NAME, OrdinaryUser
from tests.support.stage0_world import write_app
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

DATA = f"{HOME}/.local/share/minit"
IMAGE = f"{HOME}/box.aci"
POD = ("--net=none", f"--stage1-path={HOME}/stage1.aci")


def make_home(directory: Path, stage1: Path, **options: Any) -> OrdinaryUser:
    """Make a user with the images at home; with the options of OrdinaryUser."""
    user = OrdinaryUser(directory, **options)
    app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
    write_app(user.home / "box.aci", app=app, files={"etc/kept/file": b"of the image"})
    os.chown(user.home / "box.aci", user.uid, user.uid)
    user.give("stage1.aci", stage1)
    return user


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user with subordinate ids and control groups of its own, and with the images at home."""
    user = make_home(tmp_path_factory.mktemp("user"), stage1_image)
    yield user
    user.remove()


@pytest.fixture
def clean(user: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user, whose pods are removed after the test, and with them every process."""
    yield user
    user.remove_pods()


def shell(user: OrdinaryUser, script: str, *flags: str, app: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script as the app of a pod to its end."""
    return user.minit("run", *POD, *flags, IMAGE, *app, "--", "-c", script)


def start(user: OrdinaryUser, name: str) -> None:
    """Start a pod with a name, in the background."""
    done = user.minit("run", "--detach", f"--name={name}", *POD, IMAGE, "--", "-c", "echo up; exec busybox sleep 1000")
    assert done.returncode == 0, done.stderr


def keepers(user: OrdinaryUser) -> list[int]:
    """Return the keepers of the user's namespaces."""
    return [pid for pid, name in user.processes().items() if name == "flock"]


def test_a_pod_has_the_root_of_the_user(clean: OrdinaryUser) -> None:
    """Root of an app is the user outside, with other users, an own /dev, and the exit code as everywhere."""
    done = shell(clean, "echo > /dev/null && busybox id -u && busybox ls /dev; exit 42")
    assert done.returncode == 42, done.stderr
    seen = [line.partition("]: ")[2] for line in done.stdout.splitlines()]
    assert seen[0] == "0"
    assert {"null", "zero", "full", "random", "urandom", "tty"} <= set(seen)


def test_a_command_enters_a_pod_with_the_network_of_the_machine(clean: OrdinaryUser) -> None:
    """A user may not join a namespace of the machine, and is in this namespace already."""
    words = ("--detach", "--name=host", "--net=host", POD[1], IMAGE, "--", "-c", "exec busybox sleep 1000")
    assert clean.minit("run", *words).returncode == 0
    done = clean.minit("enter", "host", "/bin/busybox", "readlink", "/proc/self/ns/net")
    assert done.stdout.strip() == os.readlink("/proc/self/ns/net"), done.stderr


def test_an_app_has_a_user_of_its_own(clean: OrdinaryUser) -> None:
    """The files of the app's user belong to a subordinate id of the user."""
    done = shell(clean, "echo x > /tmp/file; busybox stat -c %u:%g /tmp/file", app=("--user=1000", "--group=1001"))
    assert (done.returncode, done.stdout.partition("]: ")[2]) == (0, "1000:1001\n"), done.stderr


def test_directories_of_the_image_can_be_removed(clean: OrdinaryUser) -> None:
    """An overlay, and no copy, takes a removed directory of the image, made anew without the old files."""
    done = shell(clean, "busybox rm -r /etc/kept && busybox mkdir /etc/kept && busybox ls -A /etc/kept")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "disabling overlay support" not in done.stderr


def test_a_life_of_a_pod(clean: OrdinaryUser) -> None:
    """A pod is looked at from outside the namespace, entered, stopped, started with its files, and removed."""
    start(clean, "web")
    listed = clean.run(*clean.minit_words("list", "--no-legend"))
    assert "\trunning\t" in listed.stdout and clean.minit("logs", "web").stdout == "up\n"
    wait_for(lambda: len(keepers(clean)) == 1, "one keeper, while the pod runs")
    assert clean.minit("enter", "web", "/bin/busybox", "touch", "/tmp/mine").returncode == 0
    for words in ("stop", "web"), ("start", "web"):
        assert clean.minit(*words).returncode == 0
    assert clean.minit("cp", "web:/tmp/mine", f"{HOME}/mine").returncode == 0
    assert (clean.home / "mine").stat().st_uid == clean.uid
    assert clean.minit("rm", "--force", "web").returncode == 0
    assert clean.minit("list", "--quiet").stdout == ""


def test_events_of_all_pods_are_followed(clean: OrdinaryUser) -> None:
    """Events of pods whose mounts the command does not see come all the same, while the pods run."""
    words = clean.words(clean.minit_words("events", "--follow", "--filter=type=pod"))
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        start(clean, "web")
        assert json.loads(follower.stdout.readline())["event"] == "pod.ready"
        assert clean.minit("stop", "web").returncode == 0
        seen = [json.loads(follower.stdout.readline())["event"] for _ in range(3)]
        assert seen == ["pod.stop-requested", "pod.stopping", "pod.ended"]
        follower.send_signal(signal.SIGINT)
    assert follower.returncode == 130


def test_a_unit_for_the_users_systemd(clean: OrdinaryUser) -> None:
    """A pod becomes a unit of the user's, for the user's own data directory; OpenRC runs services of root alone."""
    start(clean, "web")
    unit = clean.minit("generate", "systemd", "web").stdout
    assert unit.endswith("\nWantedBy=default.target\n") and "start --attach web" in unit
    assert "--dir" not in unit
    assert "needs root" in clean.minit("generate", "openrc", "web").stderr


def test_a_command_at_a_terminal(clean: OrdinaryUser) -> None:
    """A command that enters has a terminal of the pod, where the caller has one."""
    start(clean, "web")
    master, slave = os.openpty()
    words = clean.words(clean.minit_words("enter", "web", "/bin/busybox", "sh", "-c", "test -t 0 && exit 7"))
    done = subprocess.run(words, stdin=slave, stdout=slave, stderr=subprocess.PIPE, check=False)
    for fd in (master, slave):
        os.close(fd)
    assert done.returncode == 7, done.stderr


def test_other_users_see_nothing(clean: OrdinaryUser) -> None:
    """The store is the user's alone, as is the directory of the namespace."""
    start(clean, "web")
    for path in (clean.home / ".local/share/minit", *clean.home.glob("run/minit"), *clean.home.glob("run/minit/*")):
        assert path.stat().st_mode & 0o777 == 0o700, path
        assert path.stat().st_uid == clean.uid


def test_a_lost_keeper_is_replaced(clean: OrdinaryUser) -> None:
    """Without its keeper the namespace is found by a running pod, and a pod that is started then is in it."""
    start(clean, "first")
    [keeper] = wait_for(lambda: keepers(clean), "the keeper")
    os.kill(keeper, 9)
    wait_for(lambda: not keepers(clean), "the end of the keeper")
    start(clean, "second")
    namespaces = {os.readlink(f"/proc/{pid}/ns/user") for pid, name in clean.processes().items() if name == "minit"}
    assert len(namespaces) == 1
    assert clean.minit("enter", "first", "/bin/busybox", "true").returncode == 0


def test_a_disk_of_the_host_that_comes_later(clean: OrdinaryUser) -> None:
    """A disk that root mounts is seen in the namespace that was there before."""
    mounts = clean.words(())[:2]
    disks = f"{HOME}/disks"
    script = f"mkdir {disks} && mount -t tmpfs none {disks} && mount --make-shared {disks} && mkdir {disks}/new"
    subprocess.run([*mounts, "sh", "-ec", script], check=True)
    try:
        words = clean.words(clean.minit_words("unshare", "sh", "-c", f"echo inside; read -r line; ls {disks}/new"))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as inside:
            assert inside.stdin is not None and inside.stdout is not None
            assert inside.stdout.readline() == "inside\n"
            script = f"mount -t tmpfs none {disks}/new && touch {disks}/new/seen"
            subprocess.run([*mounts, "sh", "-ec", script], check=True)
            assert inside.communicate("go\n")[0] == "seen\n"
    finally:
        subprocess.run([*mounts, "sh", "-c", f"umount -R {disks} && rmdir {disks}"], check=True)


def test_a_kernel_that_gives_no_user_namespace(clean: OrdinaryUser) -> None:
    """The error names the setting, with the remedy."""

    def limit() -> None:
        namespace = open_user_namespace(IdRange(shift=0, count=(1 << 32) - 2))
        syscalls.setns(namespace, syscalls.CLONE_NEWUSER)
        os.close(namespace)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")

    done = clean.minit(f"--dir={HOME}/limited", "gc", before=limit)
    problem = "cannot make a user namespace: no space left on device: user.max_user_namespaces is 0"
    assert (done.returncode, done.stdout, done.stderr) == (254, "", f"gc: {problem}: let root set a number\n")


def test_commands_at_once_make_one_namespace(clean: OrdinaryUser) -> None:
    """Of commands that need the first namespace at the same time one makes it, and all join, but for a killed one."""
    chosen = random.Random(None if LONG else 1)
    # A command alone tells how long the moments last that a kill can meet.
    begin = time.monotonic()
    assert clean.minit("unshare", "true").returncode == 0
    seconds = time.monotonic() - begin
    words = clean.words(clean.minit_words("unshare", "sh", "-c", "readlink /proc/self/ns/user; read -r _"))
    for turn in range(100 if LONG else 3):
        clean.wait_end()
        started = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(6)
        ]
        victim = chosen.choice(started) if turn % 3 else None
        if victim is not None:
            time.sleep(chosen.uniform(0.2, 2) * seconds)
            victim.kill()
        with ThreadPoolExecutor(len(started)) as executor:
            seen = [*executor.map(lambda process: process.stdout.readline() if process.stdout else b"", started)]
        told = [process.communicate(b"\n")[1] for process in started]
        others = [(process.returncode, line) for process, line in zip(started, seen) if process is not victim]
        assert len(set(others)) == 1 and others[0][0] == 0 and others[0][1], told
    clean.wait_end()


def test_what_a_killed_command_left_is_in_nobodys_way(clean: OrdinaryUser) -> None:
    """A record that was being written does not keep later commands from writing theirs."""
    assert clean.minit("unshare", "true").returncode == 0
    clean.wait_end()
    [record] = clean.home.glob("run/minit/*/namespace")
    record.rename(record.with_name("new"))
    done = clean.minit("unshare", "true")
    assert done.returncode == 0, done.stderr


def test_everything_of_a_user_is_removed(clean: OrdinaryUser) -> None:
    """The data directory of a user goes as a whole, with the files in the namespace, and the next pod makes another."""
    assert shell(clean, "true", f"--dir={HOME}/other").returncode == 0
    done = clean.minit(f"--dir={HOME}/other", "system", "uninstall", "--data", "--force")
    assert (done.returncode, (clean.home / "other").exists()) == (0, False), done.stderr
    assert shell(clean, "true", f"--dir={HOME}/other").returncode == 0
    assert clean.minit(f"--dir={HOME}/other", "system", "uninstall", "--data", "--force").returncode == 0


def test_what_needs_root_is_refused(clean: OrdinaryUser) -> None:
    """The refusals are one line, before anything is made."""
    for line, problem in (
        (("run", *POD, "--private-users", IMAGE), "run: --private-users needs 65536 ids beyond the first 65536"),
        (("cri",), "cri: cannot run as unprivileged user"),
    ):
        done = clean.minit(*line)
        assert done.returncode == 254
        assert done.stderr.startswith(problem) and done.stderr.count("\n") == 1, done.stderr
    assert clean.minit("list", "--quiet").stdout == ""


def test_a_data_directory_is_of_one_user(clean: OrdinaryUser) -> None:
    """A user's command refuses root's data directory, and root's command a user's, each with the owner's name."""
    assert clean.minit("gc").returncode == 0
    roots = clean.home / "roots"
    roots.mkdir()
    done = clean.minit(f"--dir={HOME}/roots", "gc")
    assert (done.returncode, done.stderr.count("\n")) == (254, 1)
    assert f"{HOME}/roots is a data directory of root" in done.stderr
    words = [*clean.words(())[:2], *clean.minit_words(f"--dir={DATA}", "gc")]
    of_root = subprocess.run(
        words, env={**os.environ, **clean.environment}, capture_output=True, text=True, check=False
    )
    assert of_root.returncode == 254
    assert (
        of_root.stderr == f"gc: {DATA} is a data directory of {NAME}: run minit as that user, or give another --dir\n"
    )


def test_a_foreign_directory_is_no_place_for_the_namespace(clean: OrdinaryUser) -> None:
    """A runtime directory of another user, as su(1) leaves one in the environment, is not used."""
    clean.environment["XDG_RUNTIME_DIR"] = "/run"
    try:
        done = clean.minit("unshare", "readlink", f"{DATA}/runtime/namespace")
    finally:
        clean.environment["XDG_RUNTIME_DIR"] = f"{HOME}/run"
    assert done.stdout.startswith(f"/tmp/minit-{clean.uid}/"), done.stderr
    clean.wait_end()
    shutil.rmtree(f"/tmp/minit-{clean.uid}")
