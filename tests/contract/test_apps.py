"""`app/add`, `app/start`, `app/stop` and `app/rm`, driven as rkt drives them."""

from __future__ import annotations

import json

import pytest

from tests.support.pods import MakePod, shell
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.private_users


def ok(result: object) -> None:
    """An entrypoint that did what it should says nothing."""
    assert (result.returncode, result.stdout) == (0, "")  # type: ignore[attr-defined]


def test_the_life_of_an_app(make_pod: MakePod) -> None:
    """Added, started, stopped, started again and removed; nothing of it is left, and the pod ends well."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("web", shell("trap 'exit 0' TERM; echo one >> /count; while :; do sleep 0.05; done")))
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("prepared", "created")
    ok(sandbox.start("web"))
    sandbox.pod.wait_file("web", "count")
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("running", "running")
    ok(sandbox.stop("web"))
    assert (sandbox.state("web"), sandbox.rkt_state("web"), sandbox.pod.status("web")) == ("exited", "exited", 0)
    ok(sandbox.start("web"))
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("running", "running")
    ok(sandbox.remove("web"))
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("unknown", "unknown")
    assert sandbox.traces("web") == []
    assert sandbox.end().returncode == 0


def test_an_app_that_ends(make_pod: MakePod) -> None:
    """Its code is recorded, the pod goes on, and it can be started again, as often as one likes."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("job", shell("echo run; echo x >> /runs; exit 12")))
    for number in range(1, 4):
        ok(sandbox.start("job"))
        assert sandbox.pod.wait_status("job") == 12
        assert len(sandbox.pod.file("job", "runs").read_text().split()) == number
    sandbox.wait_state("job", "exited")
    record = json.loads((sandbox.pod.status_root / "rkt/minit/state/job.json").read_text())
    assert (record["restarts"], record["code"], record["reason"]) == (2, 12, "exited")
    assert record["created"] <= record["started"] <= record["finished"]
    assert sandbox.process.poll() is None
    assert sandbox.end().returncode == 0
    assert sandbox.pod.log("job").count(b" run\n") == 3
