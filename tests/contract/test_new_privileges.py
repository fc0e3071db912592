"""Whether an exec may grant privileges, as the annotation minit/no-new-privileges says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.guest import GUEST, Report
from tests.support.pods import MakePod, PodDirectory, app_section, shell

SETUID = "/bin/of-root"
USER = {"user": "1000", "group": "1000"}
LIST = {"name": "os/linux/seccomp-remove-set", "value": {"set": ["sethostname"], "errno": "EPERM"}}
# Not one of the calls by which a process becomes a user, or tells that its exec has failed.
NARROW = {"name": "os/linux/seccomp-remove-set", "value": {"set": ["setuid", "setgroups", "setresuid", "setresgid"]}}


@pytest.fixture
def rootfs(own_rootfs: Path) -> Path:
    """An image with a setuid program that reports."""
    program = shutil.copy(own_rootfs / GUEST.lstrip("/"), own_rootfs / SETUID.lstrip("/"))
    Path(program).chmod(0o4755)
    return own_rootfs


def switch(value: str) -> dict[str, Any]:
    """Return the field of an app with the annotation."""
    return {"annotations": [{"name": "minit/no-new-privileges", "value": value}]}


def report(pod: PodDirectory) -> Report:
    """Run a pod and return what its app has reported."""
    result = pod.run()
    assert (result.returncode, result.stderr) == (0, "")
    return pod.report("a")


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        pytest.param({}, (), marks=pytest.mark.rootless),
        ({"isolators": [LIST]}, ()),
        ({"isolators": [NARROW]}, ()),
        ({}, ("--disable-seccomp",)),
    ],
    ids=["default", "list", "narrow", "none"],
)
@pytest.mark.subordinate_ids("an app has another user")
def test_a_setuid_program(make_pod: MakePod, rootfs: Path, fields: dict[str, Any], flags: tuple[str, ...]) -> None:
    """Where privileges may be granted it is root, with the app's capabilities and under its filters."""
    pod = make_pod({"a": app_section(SETUID, "report", "/tmp/report", **USER, **fields, **switch("false"))}, rootfs)
    assert pod.run(*flags).returncode == 0
    found = pod.report("a")
    assert found.one("uids") == "1000 0 0"
    assert found.status["NoNewPrivs"] == "0"
    assert found.status["CapEff"] == found.status["CapBnd"]
    assert found.status["CapInh"] == found.status["CapAmb"] == "0" * 16
    filtered = make_pod({"a": app_section(GUEST, "report", "/tmp/report", **fields)}, rootfs)
    assert filtered.run(*flags).returncode == 0
    for name in ("CapBnd", "Seccomp", "Seccomp_filters"):
        assert found.status[name] == filtered.report("a").status[name]


@pytest.mark.private_users
@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_other_programs_have_no_capabilities(make_pod: MakePod, rootfs: Path) -> None:
    """What the process kept for its filters is gone with the exec."""
    section = app_section(GUEST, "report", "/tmp/report", **USER, **switch("false"))
    status = report(make_pod({"a": section}, rootfs)).status
    assert (status["CapEff"], status["CapPrm"], status["CapAmb"]) == ("0" * 16,) * 3
    assert (status["Uid"].split(), status["NoNewPrivs"], status["Seccomp"]) == (["1000"] * 4, "0", "2")


@pytest.mark.parametrize("fields", [{}, USER], ids=["root", "user"])
def test_no_setuid_program(make_pod: MakePod, rootfs: Path, fields: dict[str, str]) -> None:
    """With `true` no program gets any, whoever the app is."""
    section = app_section(SETUID, "report", "/tmp/report", **fields, **switch("true"))
    found = report(make_pod({"a": section}, rootfs))
    uid = fields.get("user", "0")
    assert (found.one("uids"), found.status["NoNewPrivs"]) == (f"{uid} {uid} {uid}", "1")


def test_an_isolator_forbids_more(make_pod: MakePod, rootfs: Path) -> None:
    """An image that gives up privileges does so for good."""
    forbids = {"name": "os/linux/no-new-privileges", "value": True}
    section = app_section(SETUID, "report", "/tmp/report", **USER, **switch("false"), isolators=[forbids])
    assert report(make_pod({"a": section}, rootfs)).one("uids") == "1000 1000 1000"


@pytest.mark.parametrize(("value", "expected"), [("false", "1000 0 0"), ("true", "1000 1000 1000")])
def test_commands_that_enter(make_pod: MakePod, rootfs: Path, value: str, expected: str) -> None:
    """As the app's user they have what the app has."""
    pod = make_pod({"a": shell("while :; do sleep 1; done", **USER, **switch(value))}, rootfs)
    pod.start()
    pod.wait_ready()
    words = f"--pid={pod.pid}", "--appname=a", "--as-app", "--", SETUID, "report", "/tmp/entered"
    assert pod.call("enter", *words, from_tree=True).returncode == 0
    entered = pod.report("a", "/tmp/entered")
    assert (entered.one("uids"), entered.status["Seccomp"]) == (expected, "2")


def test_other_values(make_pod: MakePod) -> None:
    """Anything but true and false is an error."""
    result = make_pod({"a": shell("true", **switch("yes"))}).run()
    assert 'minit/no-new-privileges: expected true or false, got "yes"' in result.stderr
