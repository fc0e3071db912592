"""What is told of apps whose ends, starts and logs a disk did not take, once it is repaired."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.podfiles import paths
from tests.contract.test_cri_failures import status_of
from tests.contract.test_reexecution import in_new_program, make_errors, reexecute
from tests.contract.test_restarts import restarting
from tests.support.commands import Stage0
from tests.support.crinode import Daemon, container_config
from tests.support.faileddisk import FAILURES, failed_disk
from tests.support.pods import MakePod, shell
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
PLACES = (paths.STAGE1_STATUS, paths.STAGE1_STATE, paths.STAGE1_LOG)
WAIT = "until [ -e /tmp/go ]; do sleep 0.02; done"
FOREVER = "while :; do sleep 1; done"


def told(log: Path) -> set[tuple[str | None, str]]:
    """Return the apps in the log of PID 1, each with an event of it."""
    lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
    return {(line.get("app"), line["event"]) for line in lines}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.private_users
def test_a_disk_that_is_repaired(make_pod: MakePod, kind: str, tmp_path: Path) -> None:
    """An app that has ended meanwhile has its status, its record and a complete log, one that was restarted has not."""
    again = f"[ ! -e /tmp/went ] || {{ : >/tmp/up; {FOREVER}; }}; {WAIT}; : >/tmp/went; exit 7"
    pod = make_pod(
        {
            "ends": shell(f"{WAIT}; echo last words; exit 0"),
            "again": shell(again, annotations=restarting(restart="on-failure")),
            "stays": shell(FOREVER),
        }
    )
    process = pod.start()
    pod.wait_ready()
    log = pod.stage1 / "rkt/minit/supervisor.log"
    wait_for(log.exists, "the log of PID 1")
    # The marker of the first start.
    with failed_disk(kind, pod.pid, PLACES, tmp_path, "again-started"):
        if kind == "read-only":
            # Of a run before: it cannot be removed now.
            (pod.stage1 / "rkt/status/again").write_text("7\n")
        for app in ("ends", "again"):
            pod.file(app, "/tmp/go").touch()
        wait_for(lambda: ("ends", "status.unwritten") in told(log), "the end")
        # An empty file has room on a full disk.
        wait_for(lambda: kind == "full" or ("ends", "log.end-unmarked") in told(log), "the end of the log")
        if kind != "broken":
            pod.wait_file("again", "/tmp/up")
        # What is unwritten is in the state, and an error makes no difference.
        reexecute(pod)
        with in_new_program(pod):
            make_errors(pod, process.pid)
        assert pod.status("ends") is None
        assert pod.ask({"op": "ping"})["ok"]
    pod.wait_event("app.end-written", "ends")
    assert pod.status("ends") == 0
    assert (pod.record("ends")["reason"], pod.record("ends")["status"]) == ("exited", 0)
    marker = pod.stage1 / "rkt/minit/log/ends.ended"
    wait_for(lambda: kind == "full" or marker.exists(), "the marker of the log")
    pod.wait_file("again", "/tmp/up")
    wait_for(lambda: pod.status("again") is None, "the end of the old status")
    assert pod.log("ends").endswith(b" last words\n")
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
    assert pod.status("again") == 0
    numbers = [event["seq"] for event in pod.events()]
    assert numbers == [*range(1, len(numbers) + 1)]


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.trio
async def test_a_container_on_such_a_disk(daemon: Daemon, minit: Stage0, tmp_path: Path, kind: str) -> None:
    """It has ended as soon as its status can be written, and not before; one that runs goes on."""
    script = "until [ -e /end ]; do sleep 0.02; done; exit 3"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox, [one, other] = await node.run(
                tmp_path, container_config(script), container_config("exec sleep 1000", name="other")
            )
            pod = minit.data / "pods/run" / sandbox.pod_sandbox_id
            with failed_disk(kind, int((pod / "pid").read_text()), PLACES, tmp_path, "file"):
                await node.execute(one, ": >/end")
                while "status.unwritten" not in (pod / "stage1/rootfs/rkt/minit/supervisor.log").read_text():
                    await trio.sleep(0.05)
                assert (await status_of(node, one)).state == api.CONTAINER_RUNNING
            while (status := await status_of(node, one)).state != api.CONTAINER_EXITED:
                await trio.sleep(0.05)
            assert (status.exit_code, status.reason) == (3, "Error")
            assert (await status_of(node, other)).state == api.CONTAINER_RUNNING
            await node.ask("StopPodSandbox", sandbox)
            await node.ask("RemovePodSandbox", sandbox)
