"""Paths of an app that are hidden or read-only because the caller says so: the annotation minit/protected-paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, shell

FOREVER = "while :; do sleep 1; done"
OWN_PIDS = {"name": "minit/pid-namespace", "value": "app"}


def given(masked: tuple[str, ...] = (), read_only: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the annotation."""
    value = json.dumps({"masked": masked, "readOnly": read_only})
    return {"name": "minit/protected-paths", "value": value}


def lines_of(output: str) -> list[str]:
    """Return the lines of an app's output without their prefix."""
    return [line.partition("]: ")[2] for line in output.splitlines()]


@pytest.fixture
def rootfs(own_rootfs: Path) -> Path:
    """An image with files and links."""
    (own_rootfs / "data").mkdir()
    (own_rootfs / "data/secret").write_text("secret\n")
    (own_rootfs / "data/tool").write_text("#!/bin/sh\necho tool\n")
    (own_rootfs / "data/tool").chmod(0o755)
    (own_rootfs / "alias").symlink_to("/data")
    return own_rootfs


LOOK = """
say() { echo "$1: $(eval "$2" 2>&1 || echo refused)"; }
say file 'cat /data/secret'; say tool /alias/tool; say directory 'ls -A /etc'; say written 'touch /tmp/x'
say timers 'cat /proc/timer_list'; say kernel 'stat -c %a /proc/kallsyms'; say parameters 'grep /proc/sys /proc/mounts'
say firmware 'ls -A /sys/firmware | grep -c .'; say sys 'touch /sys/kernel/x'
say groups 'ls /sys/fs/cgroup | grep -c minit'
"""


@pytest.mark.parametrize("own_pids", [False, True], ids=["pod", "app"])
@pytest.mark.private_users
def test_exactly_those(make_pod: MakePod, rootfs: Path, own_pids: bool) -> None:
    """What is given is hidden or read-only, be it of the image, and nothing else of what usually is."""
    paths = given(("/data/secret", "/alias/tool", "/etc/", "/proc/timer_list", "/missing"), ("/tmp", "/proc/sys"))
    annotations = [paths, *([OWN_PIDS] if own_pids else [])]
    lines = lines_of(make_pod({"a": shell(LOOK, annotations=annotations)}, rootfs).run().stdout)
    said = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert (said["file"], said["directory"], said["timers"], said["groups"]) == ("", "", "", "0")
    assert said["tool"].endswith("/alias/tool: Permission denied")
    assert "Read-only file system" in said["written"]
    assert " ro," in said["parameters"]
    assert said["kernel"] == f"{Path('/proc/kallsyms').stat().st_mode & 0o777:o}"
    assert int(said["firmware"]) > 0
    assert "Read-only file system" in said["sys"]


@pytest.mark.private_users
def test_none(make_pod: MakePod) -> None:
    """Empty lists are none, and /sys/fs/cgroup has the app's groups alone all the same."""
    script = "stat -c %a /sys/firmware; touch /sys/kernel/x; find /sys/fs/cgroup -maxdepth 3 -name 'machine*' | wc -l"
    result = make_pod({"a": shell(script, annotations=[given()])}).run()
    assert lines_of(result.stdout) == ["755", "0"]
    assert "ead-only file system" in result.stderr


@pytest.mark.private_users
def test_commands_that_enter(make_pod: MakePod, rootfs: Path) -> None:
    """They see what the app sees, as its user and as root, before and after it is started again."""
    again = [{"name": "minit/restart", "value": "always"}, OWN_PIDS]
    script = "[ -e /once ] && touch /twice; touch /once; until [ -e /go ]; do sleep 0.05; done; rm /go; exit 1"
    paths = given(("/data", "/proc/kallsyms"), ("/proc/sys",))
    pod = make_pod({"a": shell(script, annotations=[paths, *again])}, rootfs)
    pod.start()
    pod.wait_file("a", "once")
    _assert_hidden(pod)
    pod.enter("a", "touch", "/go")
    pod.wait_file("a", "twice")
    _assert_hidden(pod)


def _assert_hidden(pod: PodDirectory) -> None:
    for words in (("--as-app",), ()):
        inside = "ls -A /data; stat -c %a /data /proc/kallsyms; grep -o ' /proc/sys proc ro' /proc/mounts"
        command = f"--pid={pod.pid}", "--appname=a", *words, "--", "sh", "-c", inside
        result = pod.call("enter", *command, from_tree=True)
        assert result.stdout.split() == ["0", "0", "/proc/sys", "proc", "ro"], result.stderr


def test_a_volume_does_not_lift_it(make_pod: MakePod, tmp_path: Path) -> None:
    """A path is hidden with what is mounted there, and read-only with all that is mounted below."""
    (tmp_path / "a").mkdir()
    volumes = [{"name": name, "kind": "host", "source": str(tmp_path)} for name in ("x", "y")]
    mounts = [{"volume": "x", "path": "/opt/x"}, {"volume": "y", "path": "/srv/y"}]
    section = shell("ls -A /opt/x; touch /srv/y/b", mounts=mounts, annotations=[given(("/opt/x",), ("/srv",))])
    result = make_pod({"a": section}, volumes=volumes).run()
    assert (result.stdout, "Read-only file system" in result.stderr) == ("", True)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("where", ["masked", "readOnly"])
def test_links_of_an_image(make_pod: MakePod, own_rootfs: Path, tmp_path: Path, where: str) -> None:
    """They stay in the root, and one that leads to /proc, whose files come anew with each start, is an error."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    (own_rootfs / "out").symlink_to(f"../../../../../../../../..{outside}")
    (own_rootfs / "magic").symlink_to("/proc/self/root")
    (own_rootfs / "kernel").symlink_to("/proc/kallsyms")
    for path, code in (("/out", 0), ("/kernel", 254)):
        value = json.dumps({where: [path]})
        annotation = {"name": "minit/protected-paths", "value": value}
        result = make_pod({"a": shell("true", annotations=[annotation])}, own_rootfs).run()
        assert result.returncode == code, result.stderr
    assert "/kernel: a link of the image leads to /proc" in result.stderr
    outside.write_text("y")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"masked": ["/"]}', "expected an absolute path below /"),
        ('{"masked": ["/proc/"]}', "expected an absolute path below /"),
        ('{"readOnly": ["etc"]}', "expected an absolute path below /"),
        ('{"readOnly": ["//etc"]}', "expected an absolute path below /"),
        ('{"readOnly": ["/a/../etc"]}', "expected an absolute path below /"),
        ('{"readOnly": ["/a\\u0000"]}', "expected a string without NUL"),
        ('{"masked": [1]}', "expected"),
        ('{"masked": "/etc"}', "expected a list"),
        ('{"Masked": []}', "expected an object with masked, readOnly or both"),
        ("[]", "expected an object with masked, readOnly or both"),
        ("{", "minit/protected-paths"),
        (json.dumps({"masked": [f"/{number}" for number in range(513)]}), "expected at most 512 paths"),
    ],
)
def test_what_is_no_path(make_pod: MakePod, value: str, reason: str) -> None:
    """No pod starts with less protection than somebody has meant."""
    annotation = {"name": "minit/protected-paths", "value": value}
    result = make_pod({"a": shell("true", annotations=[annotation])}).run()
    assert (result.returncode, reason in result.stderr) == (254, True), result.stderr


def test_an_image_protects_nothing_less(make_pod: MakePod) -> None:
    """The annotation is the caller's."""
    annotations: dict[str, Any] = {"image_annotations": {"minit/protected-paths": "{}"}}
    result = make_pod({"a": shell("true")}, **annotations).run()
    assert 'annotation "minit/protected-paths" is one of apps, not of images' in result.stderr
