"""`gc`: removing what is left of a pod, whatever state that is in."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minit.podfiles.usersdirectory import runtime_directory
from tests.support.pods import MakePod, PodDirectory, control_group_name, shell
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

UNFINISHED = 75
LEFT = (
    r"stage1 gc: control groups are left: /sys/fs/cgroup/\S+/a\.service: device or resource busy(, and \d+ more)?; "
    r"processes in them: {pid} \(\w+\); run gc again when they are gone\n"
)
LOSABLE = ("pod", "pid", "stage1/manifest", "appsinfo", "stage1TreeStoreID", "subcgroup")


def exited(pod: PodDirectory) -> PodDirectory:
    """Run a pod to its end and return it."""
    assert pod.run().returncode == 0
    wait_for(lambda: pod.members() == [], "the end of all processes")
    return pod


def assert_quiet(result: subprocess.CompletedProcess[str]) -> None:
    """gc succeeded and had nothing to say."""
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_control_groups_stay_until_gc(make_pod: MakePod, overlay: bool) -> None:
    """They are there in every hierarchy when the pod has exited, and in none after gc; a second gc is nothing new."""
    pod = exited(make_pod({"a": shell("exit 0"), "b": shell("exit 0")}, overlay=overlay))
    mounted = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    assert len(pod.control_groups()) == len([fields for fields in mounted if fields[2] in ("cgroup", "cgroup2")])
    for group in pod.control_groups():
        assert (group / "init.scope").is_dir() and (group / "system.slice/a.service").is_dir()
    assert_quiet(pod.gc())
    assert pod.control_groups() == []
    assert_quiet(pod.gc())


@pytest.mark.parametrize("arguments", [[], ["--debug"], ["--debug=true"], ["-local-config=/etc/rkt"]], ids=str)
def test_arguments(make_pod: MakePod, arguments: list[str]) -> None:
    """Those of interface version 6, in Go's spellings."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    assert_quiet(pod.call("gc", *arguments, pod.uuid))
    assert pod.control_groups() == []


@pytest.mark.parametrize(("arguments", "code"), [(["--bad"], 2), ([], 2), (["x"], 254)], ids=["flag", "none", "uuid"])
def test_bad_arguments(make_pod: MakePod, arguments: list[str], code: int) -> None:
    """Usage and 2 for flags, 254 for the UUID."""
    result = make_pod({"a": shell("exit 0")}).call("gc", *arguments)
    assert result.returncode == code
    assert "Traceback" not in result.stderr


def test_after_a_reboot(make_pod: MakePod) -> None:
    """The directory still names groups that went with the old kernel."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    for group in pod.control_groups():
        for directory, _, _ in os.walk(group, topdown=False):
            os.rmdir(directory)
    assert_quiet(pod.gc())


def test_a_pod_that_never_ran(make_pod: MakePod) -> None:
    """Prepared only, or refused."""
    assert_quiet(make_pod({"a": shell("exit 0")}).gc())


def test_a_pod_without_some_of_its_files(make_pod: MakePod) -> None:
    """Every subset of what a crash can leave out is collected without a word."""
    subsets = [subset for size in range(len(LOSABLE) + 1) for subset in itertools.combinations(LOSABLE, size)]
    pod = exited(make_pod({"a": shell("exit 0")}))
    kept = pod.path.parent / f"kept-{pod.uuid}"
    kept.mkdir()
    try:
        for subset in subsets:
            for name in subset:
                (pod.path / name).rename(kept / name.replace("/", "-"))
            assert_quiet(pod.gc())
            for name in subset:
                (kept / name.replace("/", "-")).rename(pod.path / name)
    finally:
        shutil.rmtree(kept)
    assert pod.control_groups() == []


@pytest.mark.rootless
def test_groups_that_apps_made_are_removed(make_pod: MakePod) -> None:
    """Deepest first, whatever is below the pod's group."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    for group in pod.control_groups():
        (group / "system.slice/a.service/x").mkdir()
        (group / "system.slice/a.service/x/y").mkdir()
        (group / "other").mkdir()
    assert_quiet(pod.gc())
    assert pod.control_groups() == []


def test_a_directory_that_was_moved(make_pod: MakePod) -> None:
    """stage0 renames the pod to exited-garbage first: no path of its old place is needed."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    garbage = pod.data / "pods/exited-garbage"
    garbage.mkdir(exist_ok=True)
    pod.path = pod.path.rename(garbage / pod.uuid)
    pod.stage1 = pod.path / "stage1/rootfs"
    assert_quiet(pod.gc())
    assert pod.control_groups() == []


@pytest.mark.parametrize(
    "subcgroup",
    [
        *("", "/", "..", "init.scope", "../../tmp/NAME", "a/../NAME", "machine-rkt\\x2dother.scope", "NAME/init.scope"),
        "\xff\xfe",
    ],
)
def test_a_subcgroup_that_is_not_the_pods_is_refused(make_pod: MakePod, subcgroup: str) -> None:
    """Removing groups by any path that a file says would be a weapon."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    bystander = pod.control_groups()[0].with_name(f"bystander-{pod.uuid}")
    bystander.mkdir()
    original = (pod.path / "subcgroup").read_text()
    try:
        text = subcgroup.replace("NAME", control_group_name(pod.uuid))
        (pod.path / "subcgroup").write_bytes(text.encode("latin-1"))
        result = pod.gc()
        assert result.returncode == 254, result
        assert result.stderr.startswith("stage1 gc: subcgroup: ") and result.stderr.count("\n") == 1
        assert bystander.is_dir() and pod.control_groups()
    finally:
        bystander.rmdir()
        (pod.path / "subcgroup").write_text(original)


def test_a_subcgroup_that_is_no_file(make_pod: MakePod) -> None:
    """A file that cannot be read is an error of one line, and nothing is waited for."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    file = pod.path / "subcgroup"
    kept = file.rename(pod.path / "kept")
    damages: list[Callable[[], None]] = [lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to("/dev/zero")]
    for damage in damages:
        damage()
        result = pod.gc()
        assert result.returncode == 254, result
        assert result.stderr.startswith("stage1 gc: ") and result.stderr.count("\n") == 1
        file.rmdir() if file.is_dir() else file.unlink()
    kept.rename(file)


def test_a_group_with_a_process_is_left_and_reported(make_pod: MakePod) -> None:
    """Nobody is killed by gc; what could not be removed is printed, in bounded time, and a later gc finishes."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        for group in pod.control_groups():
            (group / "system.slice/a.service/cgroup.procs").write_text(str(bystander.pid))
        before = time.monotonic()
        result = pod.gc()
        assert time.monotonic() - before < 60
        assert result.returncode == UNFINISHED
        assert re.fullmatch(LEFT.format(pid=bystander.pid), result.stderr)
        assert is_alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()
    assert_quiet(pod.gc())
    assert pod.control_groups() == []


def test_groups_that_rkt_forgets_are_removed_by_another_gc(make_pod: MakePod) -> None:
    """rkt deletes the pod's directory whatever gc says; what is left of the pod is removed with the next one."""
    pod, other = (exited(make_pod({"a": shell("exit 0")})) for _ in range(2))
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        for group in pod.control_groups():
            (group / "system.slice/a.service/cgroup.procs").write_text(str(bystander.pid))
        assert pod.gc().returncode == UNFINISHED
        (pod.path / "subcgroup").unlink()
        assert_quiet(other.gc())
        assert pod.control_groups()
    finally:
        bystander.kill()
        bystander.wait()
    assert_quiet(other.gc())
    assert pod.control_groups() == []
    assert os.listdir(f"{runtime_directory()}/groups") == []


def test_gc_inside_the_pods_own_group_leaves_it(make_pod: MakePod) -> None:
    """It cannot remove the group it is in, says so, and does not fail otherwise."""
    pod = exited(make_pod({"a": shell("exit 0")}))
    groups = pod.control_groups()

    def join() -> None:
        for group in groups:
            (group / "init.scope/cgroup.procs").write_text("0")

    result = pod.call("gc", pod.uuid, preexec_fn=join)
    assert result.returncode == UNFINISHED
    assert "this process is in the group" in result.stderr
    assert_quiet(pod.gc())
    assert pod.control_groups() == []
