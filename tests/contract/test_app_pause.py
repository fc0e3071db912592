"""`minit app pause` and `minit app resume`: an app whose processes are frozen."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.contract.test_health import annotated, is_healthy
from tests.contract.test_stats import minit as run_minit
from tests.contract.test_stats import sample
from tests.support.commands import Stage0
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import children_of, named
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

# The app stops in order, and its count shows whether it goes on.
COUNTING = """
trap 'echo stopped; exit 3' TERM; touch /tmp/begun; count=0
while :; do count=$((count + 1)); echo $count > /tmp/count; done
"""


FILES = ("cgroup.events", "freezer.state")
REFUSAL = 'supervisor of this pod: app "web" does not run\n'


def start(make_pod: MakePod, script: str = COUNTING, **annotations: str) -> PodDirectory:
    """Start a pod with an app `web` and wait until the app runs."""
    pod = make_pod({"web": shell(script)}, annotations={f"minit/{name}": value for name, value in annotations.items()})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file("web", "/tmp/begun")
    pod.wait_ready()
    return pod


def pause(pod: PodDirectory) -> None:
    """Pause the app and wait until the kernel has frozen it."""
    run_minit(pod.data, "app", "pause", "--app=web", pod.uuid)
    wait_for(lambda: is_frozen(pod), "the freeze")


def is_frozen(pod: PodDirectory) -> bool:
    """Tell whether a control group of the app says that all its processes are frozen."""
    groups = [group / "system.slice/web.service" for group in pod.control_groups()]
    texts = [path.read_text() for group in groups for path in map(group.joinpath, FILES) if path.exists()]
    return any("frozen 1" in text or text == "FROZEN\n" for text in texts)


def used_ns(pod: PodDirectory) -> int:
    """Return the processor time of the app."""
    return int(sample(pod)["web"]["cpu_ns"])


def names(pod: PodDirectory) -> list[str]:
    """Return the events of pauses, in their order."""
    return [event["event"] for event in pod.events() if event["event"] in ("app.paused", "app.resumed")]


def shown(pod: PodDirectory) -> tuple[str, object, object, bool]:
    """Return the app's state in `app list`, and in JSON of `app status` and `status`; whether `status` says paused."""
    [line] = run_minit(pod.data, "app", "list", "--no-legend", pod.uuid).stdout.splitlines()
    status = json.loads(run_minit(pod.data, "app", "status", "--app=web", "--format=json", pod.uuid).stdout)
    assert status["state"] == status["lifecycle_state"]
    [app] = json.loads(run_minit(pod.data, "status", "--format=json", pod.uuid).stdout)["apps"]
    text = run_minit(pod.data, "status", pod.uuid).stdout
    return line.split("\t")[1], status["state"], app["state"], "paused-web=true\n" in text


@pytest.mark.private_users
def test_a_paused_app_does_nothing(make_pod: MakePod) -> None:
    """It takes no processor time until it is resumed, every command shows it, and neither is an error twice."""
    pod = start(make_pod)
    assert shown(pod) == ("running", "running", "running", False)
    pause(pod)
    # Under v1 a process is frozen a moment before it leaves the processor.
    wait_for(lambda: used_ns(pod) == used_ns(pod), "a rest")
    before = used_ns(pod), pod.file("web", "/tmp/count").read_text()
    pause(pod)
    assert shown(pod) == ("paused", "paused", "paused", True)
    refused = pod.enter("web", "/bin/true")
    assert (refused.returncode, refused.stderr) == (254, 'enter: app "web" is paused\n')
    assert (used_ns(pod), pod.file("web", "/tmp/count").read_text()) == before
    for _ in range(2):
        run_minit(pod.data, "app", "resume", "--app=web", pod.uuid)
    wait_for(lambda: pod.file("web", "/tmp/count").read_text().strip() not in ("", before[1].strip()), "another count")
    assert shown(pod) == ("running", "running", "running", False)
    assert names(pod) == ["app.paused", "app.resumed"]
    assert pod.enter("web", "/bin/true").returncode == 0
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


@pytest.mark.private_users
@pytest.mark.parametrize(("flags", "status"), [((), 3), (("--force",), 137)])
def test_a_stop_ends_the_pause(make_pod: MakePod, flags: tuple[str, ...], status: int) -> None:
    """The app acts on its stop signal within its grace period, or is killed."""
    pod = start(make_pod, **{"stop-grace": "1h"})
    pause(pod)
    assert pod.stop(*flags).returncode == 0
    pod.wait_exited()
    assert pod.status("web") == status
    assert names(pod) == ["app.paused", "app.resumed"]


def test_a_removal_ends_the_pause(minit: Stage0) -> None:
    """`rm --force` stops the pod, and nothing of it is left."""
    script = ("--exec=/bin/sh", "--", "-c", "exec busybox sleep 1000")
    started = minit.call("run", minit.stage1_flag, "--net=none", "--detach", minit.image(), *script)
    assert started.returncode == 0, started.stderr
    uuid = started.stdout.removesuffix("\n")
    assert minit.call("app", "pause", "--app=busybox", uuid).returncode == 0
    assert minit.call("app", "list", uuid).stdout.endswith("busybox\tpaused\n")
    assert minit.call("rm", "--force", uuid).returncode == 0
    assert not [*minit.data.glob("pods/*/*")]


def test_a_deadline_ends_the_pause(make_pod: MakePod) -> None:
    """The pod ends in time, and its app stops in order."""
    pod = start(make_pod, **{"stop-grace": "1h", "deadline": "8s"})
    run_minit(pod.data, "app", "pause", "--app=web", pod.uuid)
    pod.wait_exited()
    assert pod.status("web") == 3


def test_an_app_of_a_mutable_pod(make_pod: MakePod) -> None:
    """A start of a paused app leaves it so, a stop works, and only an app that runs can be paused."""
    sandbox = Sandbox(make_pod)
    pod = sandbox.pod
    sandbox.add("web", shell(COUNTING))
    refused = run_minit(pod.data, "app", "pause", "--app=web", pod.uuid, code=254)
    assert refused.stderr == f'pause: error pausing app: pod "{pod.uuid}": {REFUSAL}'
    assert sandbox.start("web").returncode == 0
    pod.wait_file("web", "/tmp/begun")
    pause(pod)
    assert sandbox.start("web").returncode == 0
    assert shown(pod)[0] == "paused"
    assert sandbox.stop("web").returncode == 0
    assert (pod.status("web"), shown(pod)[0]) == (3, "exited")
    for verb, action in (("pause", "pausing"), ("resume", "resuming")):
        refused = run_minit(pod.data, "app", verb, "--app=web", pod.uuid, code=254)
        assert refused.stderr == f'{verb}: error {action} app: pod "{pod.uuid}": {REFUSAL}'
    assert sandbox.start("web").returncode == 0
    assert shown(pod)[0] == "running"
    sandbox.end()
    assert "isn't currently running" in run_minit(pod.data, "app", "pause", "--app=web", pod.uuid, code=254).stderr


def test_an_app_with_a_hook(make_pod: MakePod) -> None:
    """The pre-stop hook, which runs in the groups of the app, is not frozen."""
    hooks = {"pre-stop": {"exec": ["/bin/touch", "/tmp/hooked"]}}
    web = shell(COUNTING, annotations=[{"name": "minit/hooks", "value": json.dumps(hooks)}])
    pod = make_pod({"web": web}, annotations={"minit/stop-grace": "1h"})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file("web", "/tmp/begun")
    pod.wait_ready()
    pause(pod)
    assert pod.stop().returncode == 0
    pod.wait_exited()
    assert pod.status("web") == 3
    assert [event["end"] for event in pod.events() if event["event"] == "handler.ended"] == ["exited with 0"]


def test_health_checks_wait(make_pod: MakePod) -> None:
    """A check that fails meanwhile, or is made meanwhile, neither restarts the app nor is noted; then checks go on."""
    command = "touch /tmp/checked; until [ -e /tmp/go ]; do sleep 0.05; done; [ ! -e /tmp/bad ]"
    check = {"exec": ["/bin/sh", "-c", command], "timeout": "8s", "interval": "100ms", "failures": 1}
    pod = make_pod({"web": annotated("touch /tmp/begun; exec sleep 1000", liveness=check)})
    process = pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file("web", "/tmp/checked")
    pause(pod)
    [helper] = named(children_of(process.pid), "minit-health")
    wait_for(lambda: not children_of(helper), "the timeout of the check")
    assert shown(pod)[0] == "paused"
    pod.file("web", "/tmp/go").touch()
    run_minit(pod.data, "app", "resume", "--app=web", pod.uuid)
    wait_for(lambda: is_healthy(pod, "liveness") is True, "a good result")
    assert [event["healthy"] for event in pod.events() if event["event"] == "app.health"] == [True]
    pod.file("web", "/tmp/bad").touch()
    pod.wait_exited()
    assert pod.record("web")["reason"] == "unhealthy"


def test_another_stage1(make_pod: MakePod) -> None:
    """One that knows no control socket is an error that says so."""
    pod = start(make_pod)
    manifest = Path(pod.path / "stage1/manifest")
    value = json.loads(manifest.read_text())
    value["annotations"] = [each for each in value["annotations"] if not each["name"].endswith("/control")]
    manifest.write_text(json.dumps(value))
    failed = run_minit(pod.data, "app", "pause", "--app=web", pod.uuid, code=254)
    assert failed.stderr.endswith("its stage1 neither pauses nor signals apps\n")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()
