"""`minit app sandbox --detach` with minit's own stage1."""

from __future__ import annotations

import json
import os

import pytest

from tests.support.commands import Stage0
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


def test_an_app_that_prints_where_nobody_reads(minit: Stage0) -> None:
    """Output of apps after the end of the command is in their logs, and does them no harm."""
    made = minit.call("app", "sandbox", "--detach", "--net=none", "--no-overlay", minit.stage1_flag)
    assert made.returncode == 0, made.stderr
    uuid = made.stdout.removesuffix("\n")
    script = 'trap "exit 5" TERM; echo out; echo err >&2; sleep 1000 & wait'
    minit.app("add", uuid, minit.image(), "--exec=/bin/sh", "--", "-c", script)
    minit.app("start", uuid, "--app=busybox")
    wait_for(lambda: sorted(minit.call("logs", uuid).stdout.split()) == ["err", "out"], "what the app prints")
    minit.app("stop", uuid, "--app=busybox")
    [status] = json.loads(minit.app("list", "--format=json", uuid))
    assert (status["exit_code"], status["lifecycle_state"]) == (5, "exited")
    assert minit.call("status", uuid).stdout.startswith("state=running")
    minit.call("stop", uuid)
    minit.call("status", "--wait", uuid)


def test_a_pod_that_cannot_be_set_up(minit: Stage0) -> None:
    """The reason that stage1 gives is the command's, with rkt's exit code."""
    result = minit.call("app", "sandbox", "--detach", "--net=nowhere", minit.stage1_flag)
    assert (result.returncode, result.stdout) == (1, "")
    assert "stage1: failed to setup network: networks not found: nowhere" in result.stderr
    assert result.stderr.endswith("ended before it was ready: its stage1 exited with 254\n")
