"""Apps that are not confined: the annotations minit/privileged and minit/allow-privileged."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.guest import GUEST
from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.processes import children_of, status_of
from tests.support.sandbox import Sandbox

FOREVER = f"{GUEST} report /tmp/new; mv /tmp/new /tmp/report; while :; do sleep 1; done"
ALLOWED = {"minit/allow-privileged": "true"}


def privileged(script: str, value: str = "true", **fields: Any) -> dict[str, Any]:
    """Return an app that asks for all privileges."""
    return shell(script, annotations=[{"name": "minit/privileged", "value": value}], **fields)


def own_status() -> dict[str, str]:
    """Return the status of this process, which has what the caller of a pod has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def assert_free(status: dict[str, str]) -> None:
    """Check that a process has all that the caller has."""
    own = own_status()
    for name in ("CapBnd", "CapEff", "Seccomp", "NoNewPrivs"):
        assert status[name] == own[name], name


def host_nodes() -> dict[str, tuple[int, int]]:
    """Return the modes and numbers of the host's devices, but for those of an app's own terminals."""
    found = {}
    for directory, _, names in os.walk("/dev"):
        for name in names:
            path = f"{directory}/{name}"
            status = os.lstat(path)
            is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
            if is_device and status.st_dev == os.lstat("/dev").st_dev and path not in ("/dev/console", "/dev/ptmx"):
                found[path] = (status.st_mode, status.st_rdev)
    return found


@pytest.mark.rootless
def test_what_it_has(make_pod: MakePod) -> None:
    """The app, its handlers and what enters have all capabilities and no filter; another app has what it has else."""
    section = privileged(FOREVER, eventHandlers=handlers(pre_start=(GUEST, "report", "/tmp/handler")))
    pod = make_pod({"a": section, "b": shell(FOREVER)}, annotations=ALLOWED)
    pod.start()
    pod.wait_ready()
    for words in ((), ("--as-app",)):
        command = f"--pid={pod.pid}", "--appname=a", *words, "--", GUEST, "report", "/tmp/entered"
        assert pod.call("enter", *command, from_tree=True).returncode == 0
        assert_free(pod.report("a", "/tmp/entered").status)
    pod.wait_file("a", "tmp/report")
    for name in ("report", "handler"):
        assert_free(pod.report("a", f"/tmp/{name}").status)
    beside = pod.enter("b", "grep", "-e", "CapBnd", "-e", "Seccomp:", "/proc/self/status").stdout.split()
    assert (int(beside[1], 16) < int(own_status()["CapBnd"], 16), beside[3]) == (True, "2")


@pytest.mark.host_root("settings of the kernel are those of the machine's root")
def test_the_kernels_files(make_pod: MakePod) -> None:
    """Nothing is hidden or read-only: settings, /sys, and the host's control groups."""
    script = """
    for x in /proc/sys/kernel/core_pattern /sys/kernel/profiling; do [ ! -e $x ] || (: >> $x) || echo $x; done
    stat -c %a /proc/kallsyms /sys/firmware
    group=$(find /sys/fs/cgroup -maxdepth 2 -name cgroup.procs | head -1)
    mkdir ${group%/*}/minit-test-$AC_APP_NAME && rmdir ${group%/*}/minit-test-$AC_APP_NAME && echo made
    mount -t tmpfs none /mnt && echo mounted
    """
    section = privileged(f"mkdir -p /mnt; {script}")
    result = make_pod({"a": section}, annotations=ALLOWED).run()
    kernel = f"{os.stat('/proc/kallsyms').st_mode & 0o777:o}"
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == [kernel, "755", "made", "mounted"]


@pytest.mark.host_root("a user makes no devices")
def test_devices(make_pod: MakePod) -> None:
    """All nodes of the host's /dev are there, with their modes, and can be used; another app has its few."""
    pod = make_pod({"a": privileged(FOREVER), "b": shell(FOREVER)}, annotations=ALLOWED)
    before = host_nodes()
    pod.start()
    pod.wait_ready()
    # Others make and remove nodes meanwhile.
    nodes = dict(before.items() & host_nodes().items())
    assert len(nodes) > 8
    app = process_of(pod, "a")
    for path, (mode, number) in nodes.items():
        status = os.lstat(f"/proc/{app}/root{path}")
        assert (status.st_mode, status.st_rdev) == (mode, number) or path in ("/dev/net/tun", "/dev/tty"), path
    read = "mknod /tmp/kmsg c 1 11 && dd if=/tmp/kmsg of=/dev/null bs=8192 count=1 2>/dev/null && echo read"
    assert pod.enter("a", "sh", "-c", read).stdout == "read\n"
    assert pod.enter("b", "sh", "-c", read).stdout == ""
    assert not os.path.lexists(f"/proc/{process_of(pod, 'b')}/root/dev/kmsg")


def process_of(pod: PodDirectory, app: str) -> int:
    """Return the pid on the host of an app's process."""
    [entry] = [entry for entry in pod.ask({"op": "state"})["apps"] if entry["name"] == app]
    return next(pid for pid in children_of(pod.pid) if status_of(pid)["NSpid"].split()[-1] == str(entry["pid"]))


def test_in_a_mutable_pod(make_pod: MakePod) -> None:
    """An app that is added has the same, if the pod was started so."""
    for allowed, code in ((ALLOWED, 0), ({}, 254)):
        sandbox = Sandbox(make_pod, annotations=allowed)
        result = sandbox.add("a", privileged(FOREVER))
        assert result.returncode == code, result.stdout
        if code == 0:
            assert sandbox.start("a").returncode == 0
            sandbox.pod.wait_file("a", "tmp/report")
            assert_free(sandbox.pod.report("a").status)
        else:
            assert "minit/privileged: its pod has no minit/allow-privileged" in result.stdout
        sandbox.end()


@pytest.mark.parametrize(
    ("section", "fields", "reason"),
    [
        (privileged("true"), {}, "its pod has no minit/allow-privileged"),
        (privileged("true"), {"annotations": {"minit/allow-privileged": "false"}}, "has no minit/allow-privileged"),
        (privileged("true"), {"annotations": {"minit/allow-privileged": "yes"}}, "expected true or false"),
        (privileged("true", "yes"), {"annotations": ALLOWED}, "expected true or false"),
        (
            shell("true"),
            {"image_annotations": {"minit/privileged": "true"}, "annotations": ALLOWED},
            "is one of apps, not of images",
        ),
        (shell("true"), {"image_annotations": ALLOWED}, "is one of pods, not of images"),
        (privileged("true"), {"annotations": ALLOWED, "private_users": (1 << 20, 1 << 16)}, "not with --private-users"),
    ],
)
def test_refusals(make_pod: MakePod, section: dict[str, Any], fields: dict[str, Any], reason: str) -> None:
    """It takes the app and its pod, and no image has it."""
    pod = make_pod({"a": section}, **fields)
    result = pod.run()
    assert (result.returncode, reason in result.stderr) == (254, True), result.stderr


def test_allowed_alone(make_pod: MakePod) -> None:
    """A pod that allows it has no app that did not ask for it."""
    pod = make_pod({"a": shell(f"{GUEST} report /tmp/report")}, annotations=ALLOWED)
    assert pod.run().returncode == 0
    status = pod.report("a").status
    assert (status["Seccomp"], status["CapBnd"] != own_status()["CapBnd"]) == ("2", True)
