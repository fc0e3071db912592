"""`run --mutable`: an empty pod that lives until it is stopped."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.pods import LOOPBACK_ONLY, MakePod, shell
from tests.support.waiting import wait_for

MUTABLE = {"coreos.com/rkt/stage1/mutable": "true"}

pytestmark = pytest.mark.private_users


def test_an_empty_pod_lives_until_it_is_stopped(make_pod: MakePod) -> None:
    """It is ready without apps, can be entered, and its launcher exits with 0 on `stop`, ready no longer."""
    pod = make_pod({}, annotations=MUTABLE)
    process = pod.start("--mutable")
    pod.wait_ready()
    assert pod.ask({"op": "state"})["apps"] == []
    assert pod.enter(None, "/bin/true").returncode != 0  # it has no programs, but there is a root to look for them
    assert process.poll() is None
    assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not pod.is_ready()


def test_a_signal_ends_it_well(make_pod: MakePod) -> None:
    """SIGTERM to the launcher is a stop that was asked for."""
    pod = make_pod({}, annotations=MUTABLE)
    process = pod.start("--mutable")
    pod.wait_ready()
    process.send_signal(signal.SIGTERM)
    assert pod.finish(process).returncode == 0


def test_a_forced_stop_ends_it(make_pod: MakePod) -> None:
    """Nothing is there to be killed first."""
    pod = make_pod({}, annotations=MUTABLE)
    process = pod.start("--mutable")
    pod.wait_ready()
    assert pod.stop("--force").returncode == 0
    pod.finish(process)
    pod.wait_exited()


def test_it_survives_every_app(make_pod: MakePod) -> None:
    """Apps that it begins with may fail, one by one or before they are executed; the pod goes on, and ends with 0."""
    apps = {"good": shell("true"), "bad": shell("exit 3"), "none": {**shell("true"), "exec": ["/nothing"]}}
    pod = make_pod(apps, annotations=MUTABLE)
    process = pod.start("--mutable")
    assert [pod.wait_status(app) for app in apps] == [0, 3, 203]
    pod.wait_ready()
    assert process.poll() is None
    wait_for(lambda: {app["state"] for app in pod.ask({"op": "state"})["apps"]} == {"exited"}, "the end of every app")
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0


def test_the_options_are_remembered(make_pod: MakePod) -> None:
    """`runtime-config` has rkt's names for them."""
    pod = make_pod({}, annotations=MUTABLE)
    process = pod.start("--mutable", "--hostname=sand", "--disable-seccomp", "--dns-conf-mode=hosts=host")
    pod.wait_ready()
    config = json.loads((pod.path / "runtime-config").read_text())
    assert config["Hostname"] == "sand" and config["Mutable"] is True and config["NetList"] == {}
    assert config["InsecureOptions"] == {"DisablePaths": False, "DisableCapabilities": False, "DisableSeccomp": True}
    assert (config["ResolvConfMode"], config["EtcHostsMode"]) == ("default", "host")
    pod.stop()
    pod.finish(process)


def test_a_pod_that_is_not_mutable_remembers_nothing(make_pod: MakePod) -> None:
    """Nobody would read it."""
    pod = make_pod({"a": shell("true")})
    result = pod.run()
    assert (result.returncode, result.stderr.replace(LOOPBACK_ONLY, "")) == (0, "")
    assert not (pod.path / "runtime-config").exists()


@pytest.mark.delegated_groups("it sets limits")
def test_limits_of_all_apps_together(make_pod: MakePod) -> None:
    """They are set for the group around the apps, before there are any."""
    limit = [{"name": "resource/memory", "value": {"limit": "64Mi"}}]
    pod = make_pod({}, annotations=MUTABLE, isolators=limit)
    process = pod.start("--mutable")
    pod.wait_ready()
    files = [path for top in pod.control_groups() for path in top.glob("system.slice/memory.*")]
    limits = [path.read_text() for path in files if path.name in ("memory.limit_in_bytes", "memory.max")]
    assert limits == ["67108864\n"]
    pod.stop()
    assert pod.finish(process).returncode == 0
