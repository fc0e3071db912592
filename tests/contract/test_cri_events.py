"""minit cri: events of containers and sandboxes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from tests.support.crinode import Daemon, container_config
from tests.support.grpcclient import Answer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
CREATED, STARTED = api.CONTAINER_CREATED_EVENT, api.CONTAINER_STARTED_EVENT
STOPPED, DELETED = api.CONTAINER_STOPPED_EVENT, api.CONTAINER_DELETED_EVENT


FAILING = "until [ -e /end ]; do sleep 0.02; done; exit 3"


async def told(answer: Answer, count: int) -> list[api.ContainerEvent]:
    """Return so many events, as soon as they have come, and no more than these."""
    while len(answer.messages()) < count:
        await answer.grew.wait()
    assert len(answer.messages()) == count
    return [api.ContainerEvent.FromString(message) for message in answer.messages()]


@pytest.mark.trio
async def test_the_life_of_a_container(daemon: Daemon, tmp_path: Path) -> None:
    """Each step is told once, in order, with the statuses of that moment, also if nobody asked for it."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            answer = await node.watch()
            while "content-type" not in answer.headers:
                await trio.sleep(0.01)
            sandbox, [one] = await node.run(tmp_path, container_config(FAILING))
            await node.execute(one, ": >/end")
            await told(answer, 5)
            request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            status = await node.ask("PodSandboxStatus", request)
            assert [each.exit_code for each in status.containers_statuses] == [3] and status.timestamp > 0
            two = await node.create(sandbox, container_config("exec sleep 1000", "two"))
            await node.ask("StartContainer", two)
            await node.ask("RemoveContainer", one)
            await node.ask("StopPodSandbox", sandbox)
            await node.ask("RemovePodSandbox", sandbox)
            events = await told(answer, 12)
            pod, first, second = sandbox.pod_sandbox_id, one.container_id, two.container_id
            steps = [(event.container_id, event.container_event_type) for event in events]
            steps[8:10] = sorted(steps[8:10], key=lambda step: step[0] == pod)  # the two of one kill
            assert steps == [
                *((pod, CREATED), (pod, STARTED), (first, CREATED), (first, STARTED), (first, STOPPED)),
                *((second, CREATED), (second, STARTED), (first, DELETED)),
                *((second, STOPPED), (pod, STOPPED), (second, DELETED), (pod, DELETED)),
            ]
            ended = events[4]
            assert [(each.id, each.exit_code, each.state) for each in ended.containers_statuses] == [
                (first, 3, api.CONTAINER_EXITED)
            ]
            assert ended.pod_sandbox_status.metadata.uid == "5e5b"
            assert ended.pod_sandbox_status.state == api.SANDBOX_READY
            assert [each.id for each in events[7].containers_statuses] == [second]
            assert events[-1].pod_sandbox_status.state == api.SANDBOX_NOTREADY
            times = [event.created_at for event in events]
            assert times == sorted(times) and times[0] > 0
            assert not answer.ended.is_set()
