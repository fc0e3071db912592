"""Pods whose apps come and go, on minit's stage1, by the `app` commands of minit and of a real rkt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.rkt.conftest import NEEDS_RKT
from tests.support.campaign import LONG
from tests.support.commands import Stage0
from tests.support.waiting import wait_for

IMAGE = "example.com/busybox"
SHELL = "--exec=/bin/sh"


def add(stage0: Stage0, uuid: str, name: str, script: str, *flags: object) -> None:
    """Add an app that runs a script."""
    stage0.app("add", uuid, IMAGE, f"--name={name}", SHELL, *flags, "--", "-c", script)


def state(stage0: Stage0, uuid: str, name: str) -> object:
    """Return an app's state."""
    return stage0.app_status(uuid, name)["state"]


def wait_until_exited(stage0: Stage0, uuid: str, name: str) -> int:
    """Return the exit code of an app when it has ended."""
    wait_for(lambda: state(stage0, uuid, name) == "exited", f"the end of {name}")
    code = stage0.app_status(uuid, name)["exit_code"]
    assert isinstance(code, int)
    return code


@pytest.fixture
def stocked(stage0: Stage0) -> Stage0:
    """Each of the two commands in turn, with an image in its store."""
    assert stage0.call("fetch", stage0.image()).returncode == 0
    return stage0


@pytest.mark.parametrize("flags", [[], ["--no-overlay"]], ids=["overlay", "flat"])
def test_the_life_of_an_app(stocked: Stage0, tmp_path: Path, flags: list[str]) -> None:
    """An app is added, started, stopped, started again in the root it left, removed, and added anew."""
    (tmp_path / "volume").mkdir()
    script = 'trap "exit 7" TERM; echo x >> /runs; cp /runs /mnt/runs; sleep 1000 & wait'
    volume = f"--mnt-volume=name=data,kind=host,source={tmp_path}/volume,target=/mnt"
    runs = tmp_path / "volume/runs"
    with stocked.sandbox(*flags) as uuid:
        assert stocked.app("list", "--no-legend", uuid).strip() == ""
        for expected in (["x\n", "x\nx\n"], ["x\n"]):
            add(stocked, uuid, "one", script, volume)
            assert stocked.app("list", uuid) == "NAME\tSTATE\none\tcreated\n"
            for text in expected:
                stocked.app("start", uuid, "--app=one")
                assert state(stocked, uuid, "one") == "running"
                wait_for(partial(_holds, runs, text), "the app")
                stocked.app("stop", uuid, "--app=one")
                assert stocked.app_status(uuid, "one")["exit_code"] == 7
                runs.unlink()
            stocked.app("rm", uuid, "--app=one")
        assert stocked.app("list", uuid) == "NAME\tSTATE\n"


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def test_the_pod_outlives_its_apps(stocked: Stage0) -> None:
    """One that fails ends nothing but itself, and the sandbox ends with 0 when it is stopped."""
    with stocked.sandbox("--no-overlay") as uuid:
        add(stocked, uuid, "fails", "exit 12")
        stocked.app("start", uuid, "--app=fails")
        assert wait_until_exited(stocked, uuid, "fails") == 12
        stocked.app("stop", uuid, "--app=fails")
        assert stocked.call("status", uuid).stdout.startswith("state=running")
    stocked.call("status", "--wait", uuid)
    said = stocked.app("stop", uuid, "--app=fails")
    assert said == f'pod "{uuid}" is already stopped\n'
    stocked.app("rm", uuid, "--app=fails")
    assert stocked.app("list", uuid) == "NAME\tSTATE\n"


def test_apps_in_order(stocked: Stage0, tmp_path: Path) -> None:
    """A second app begins when the first has ended well, and finds what it made."""
    (tmp_path / "volume").mkdir()
    volume = f"--mnt-volume=name=data,kind=host,source={tmp_path}/volume,target=/mnt"
    with stocked.sandbox() as uuid:
        add(stocked, uuid, "first", "sleep 0.2; echo made > /mnt/file", volume)
        add(stocked, uuid, "second", "tr a-z A-Z < /mnt/file > /mnt/result", volume)
        stocked.app("start", uuid, "--app=first")
        assert wait_until_exited(stocked, uuid, "first") == 0
        stocked.app("start", uuid, "--app=second")
        assert wait_until_exited(stocked, uuid, "second") == 0
    assert (tmp_path / "volume/result").read_text() == "MADE\n"


def test_an_update_in_place(stocked: Stage0, tmp_path: Path) -> None:
    """An app is replaced by its next version, under its name, while another one of the pod goes on."""
    (tmp_path / "volume").mkdir()
    volume = f"--mnt-volume=name=data,kind=host,source={tmp_path}/volume,target=/mnt"
    version = tmp_path / "volume/version"
    with stocked.sandbox("--no-overlay") as uuid:
        add(stocked, uuid, "other", "sleep 1000")
        add(stocked, uuid, "web", "echo 1 > /mnt/version; exec sleep 1000", volume)
        for name in ("other", "web"):
            stocked.app("start", uuid, f"--app={name}")
        wait_for(partial(_holds, version, "1\n"), "the first version")
        before = stocked.app_status(uuid, "other")
        stocked.app("rm", uuid, "--app=web")
        add(stocked, uuid, "web", "echo 2 > /mnt/version; exec sleep 1000", volume)
        assert state(stocked, uuid, "web") == "created"
        stocked.app("start", uuid, "--app=web")
        wait_for(partial(_holds, version, "2\n"), "the second version")
        assert stocked.app_status(uuid, "other") == before


def test_a_debug_app(stocked: Stage0) -> None:
    """An app with tools is added to a pod that runs, and entered: it sees the processes of the others."""
    with stocked.sandbox() as uuid:
        stocked.app("add", uuid, IMAGE, "--name=service", "--exec=/bin/busybox", "--", "sleep", "1001")
        stocked.app("start", uuid, "--app=service")
        add(stocked, uuid, "debug", "exec sleep 1002")
        stocked.app("start", uuid, "--app=debug")
        shown = stocked.app("exec", "--app=debug", uuid, "/bin/busybox", "ps")
        assert "busybox sleep 1001" in shown
        stocked.app("rm", uuid, "--app=debug")
        assert state(stocked, uuid, "service") == "running"


def test_an_app_that_cannot_be_added(stocked: Stage0) -> None:
    """stage1 refuses it; minit takes it back, and what rkt leaves can be removed."""
    with stocked.sandbox() as uuid:
        result = stocked.call("app", "add", uuid, IMAGE, "--name=bad", "--user=nobody-knows")
        assert result.returncode == 254
        if stocked.is_rkt:
            stocked.app("rm", uuid, "--app=bad")
        else:
            assert '"nobody-knows" user not found' in result.stderr
        assert stocked.app("list", uuid) == "NAME\tSTATE\n"


# Who makes the pod, and how.
_CASES = [("minit", []), ("rkt", ["--no-overlay"]), ("minit", ["--no-overlay"]), ("rkt", [])]


@pytest.fixture
def both(tmp_path: Path, stage1_image: Path) -> Iterator[tuple[Stage0, Stage0]]:
    """Minit and rkt on one data directory."""
    minit, rkt = (Stage0(words, tmp_path, stage1_image) for words in ([sys.executable, "-m", "minit"], ["rkt"]))
    for command in (minit, rkt):
        assert command.call("fetch", command.image()).returncode == 0
    yield minit, rkt
    minit.clean_up()


@NEEDS_RKT
@pytest.mark.parametrize(("maker", "flags"), _CASES if LONG else _CASES[:2])
def test_pods_pass_between_minit_and_rkt(both: tuple[Stage0, Stage0], maker: str, flags: list[str]) -> None:
    """One makes the pod, the other adds an app, the first starts it, and so on, each seeing what the other did."""
    minit, rkt = both
    one, other = (minit, rkt) if maker == "minit" else (rkt, minit)
    with one.sandbox(*flags) as uuid:
        add(other, uuid, "app", 'trap "exit 3" TERM; sleep 1000 & wait')
        assert state(one, uuid, "app") == "created"
        one.app("start", uuid, "--app=app")
        assert state(other, uuid, "app") == "running"
        other.app("stop", uuid, "--app=app")
        assert [each.app("list", uuid) for each in both] == ["NAME\tSTATE\napp\texited\n"] * 2
        statuses = [each.app_status(uuid, "app") for each in (minit, rkt)]
        assert statuses[0].pop("lifecycle_state") == "exited"
        assert statuses[0] == statuses[1]
        texts = [each.app("status", uuid, "--app=app") for each in both]
        assert texts[0] == texts[1]
        one.app("rm", uuid, "--app=app")
        add(one, uuid, "app", "exit 4")
        assert state(other, uuid, "app") == "created"
        other.app("start", uuid, "--app=app")
        assert wait_until_exited(one, uuid, "app") == 4
        other.app("rm", uuid, "--app=app")
        assert json.loads(one.call("cat-manifest", uuid).stdout)["apps"] in ([], None)
