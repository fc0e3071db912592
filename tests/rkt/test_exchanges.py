"""Two versions of minit's stage1 that take turns in pods of minit and of a real rkt."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext

import pytest

from tests.contract.test_exchanges import EXCHANGES, Exchange, exchange, go_on, witnesses
from tests.rkt.test_attach import experiment, wait_attachable
from tests.rkt.test_mutable_pods import add, state, stocked, wait_until_exited
from tests.support.commands import Stage0

__all__ = ["exchange", "experiment", "stocked"]  # fixtures

ANSWERS = 'while read x; do echo "o:$x"; done'
LIVES = 'trap "exit 7" TERM; while :; do busybox sleep 0.05; done'


def exchanges(stage0: Stage0) -> range:
    """Return the numbers of the exchanges; tests of contracts have the others for minit."""
    return range(EXCHANGES if stage0.is_rkt else 1)


@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("experiment")
def test_a_pod_that_is_attached_to(stage0: Stage0, exchange: Exchange) -> None:
    """A client of the command goes on; the pod is listed, entered and stopped by either version's programs."""
    streams = ("--stdin=stream", "--stdout=stream")
    words = stage0.run_words(stage0.image(), "--net=default", *streams, "--exec=/bin/sh", "--", "-c", ANSWERS)
    with stage0.running(*words) as uuid:
        wait_attachable(stage0, uuid)
        client = stage0.start("attach", uuid, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert client.stdin is not None and client.stdout is not None
        said, heard = client.stdin, client.stdout

        def talk(number: int) -> None:
            said.write(b"%d\n" % number)
            said.flush()
            assert heard.readline() == b"o:%d\n" % number

        with witnesses(nullcontext(talk)) as found:
            for _ in exchanges(stage0):
                exchange(stage0.data, uuid)
                go_on(found, [found[0].count])
                entered = stage0.call("enter", uuid, "/bin/busybox", "echo", "x")
                assert (entered.returncode, entered.stdout) == (0, "x\n"), entered.stderr
                assert "state=running\n" in stage0.call("status", uuid).stdout
        said.close()
        assert (heard.read(), client.wait()) == (b"", 0)
    assert "app-busybox=0\n" in stage0.call("status", uuid).stdout
    assert stage0.call("rm", uuid).returncode == 0


@pytest.mark.timeout(7200)
def test_apps_that_come_and_go(stocked: Stage0, exchange: Exchange) -> None:
    """Apps are added, started, entered, stopped and removed while versions change, each by programs of one version."""
    with stocked.sandbox() as uuid:
        add(stocked, uuid, "lasting", LIVES)
        stocked.app("start", uuid, "--app=lasting")

        def live(number: int) -> None:
            name = f"a{number}"
            add(stocked, uuid, name, LIVES)
            stocked.app("start", uuid, f"--app={name}")
            entered = stocked.call("enter", f"--app={name}", uuid, "/bin/busybox", "echo", "x")
            assert (entered.returncode, entered.stdout) == (0, "x\n"), entered.stderr
            stocked.app("stop", uuid, f"--app={name}")
            assert wait_until_exited(stocked, uuid, name) == 7
            stocked.app("rm", uuid, f"--app={name}")

        with witnesses(nullcontext(live)) as found:
            for _ in exchanges(stocked):
                exchange(stocked.data, uuid)
                found[0].check()
            go_on(found, [found[0].count])
        assert state(stocked, uuid, "lasting") == "running"
        stocked.app("stop", uuid, "--app=lasting")
        assert wait_until_exited(stocked, uuid, "lasting") == 7
