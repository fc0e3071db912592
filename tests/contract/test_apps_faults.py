"""`app/add` whose system calls fail, or that is killed: what is left can be removed, and added again."""

from __future__ import annotations

import errno
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import LONG, thinned
from tests.support.faults import KILL, LAUNCHER, NEVER_FAIL, Call, Faults
from tests.support.pods import MakePod, shell
from tests.support.sandbox import Sandbox
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

EXECS = 2
NAME = "web"


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    """The tracer."""
    return Faults(tmp_path, EXECS, alone=True)


def section() -> dict[str, object]:
    """Return an app that has what there is to make for one."""
    volumes: list[dict[str, Any]] = [
        {"name": "file", "kind": "host", "source": "/etc/passwd", "readOnly": True},
        {"name": "e", "kind": "empty"},
    ]
    checks = json.dumps({"liveness": {"exec": ["/bin/true"]}})
    return shell(
        "true",
        annotations=[{"name": "minit/health", "value": checks}],
        user="/bin/busybox",
        mounts=[{"volume": volume["name"], "path": f"/v/{volume['name']}", "appVolume": volume} for volume in volumes],
        isolators=[] if SURROUNDING == NO_GROUPS else [{"name": "resource/memory", "value": {"limit": "64Mi"}}],
    )


def record(faults: Faults, sandbox: Sandbox) -> list[Call]:
    """Return the calls of an `app/add` that succeeds, from its first own one on; the app is removed again."""
    with tempfile.TemporaryFile("w+") as log:
        result = sandbox.add(NAME, section(), under=faults.recording(log.fileno()), pass_fds=(log.fileno(),))
        assert result.returncode == 0, result.stdout
        log.seek(0)
        calls = faults.read_calls(log)
    assert sandbox.remove(NAME).returncode == 0
    first = calls.index(Call(LAUNCHER, "pidfd_open", 1))
    return [call for call in calls[first:] if call.name not in NEVER_FAIL]


@pytest.mark.timeout(3600 if LONG else 120)
def test_a_call_that_fails(make_pod: MakePod, faults: Faults) -> None:
    """It is one line with the reason, and nothing of the app is in the pod, or it does no harm."""
    sandbox = Sandbox(make_pod)
    calls = record(faults, sandbox)
    if not LONG:
        calls = [*{call.name: call for call in calls}.values()]
    for number, call in enumerate(thinned(calls)):
        for error in (errno.EIO, KILL) if LONG else ((errno.EIO, KILL)[number % 2],):
            try_one(faults, sandbox, call, error)
    assert sandbox.add(NAME, section()).returncode == 0
    assert sandbox.start(NAME).returncode == 0
    assert sandbox.pod.wait_status(NAME) == 0


def try_one(faults: Faults, sandbox: Sandbox, call: Call, error: int) -> None:
    """Add the app with a fault at a call, and remove what there is."""
    with tempfile.TemporaryFile("w+") as log:
        words = faults.fault(log.fileno(), call, error)
        result = sandbox.add(NAME, section(), under=words, pass_fds=(log.fileno(),))
    if result.returncode != 0:
        # Killed after it has told PID 1, it has done its work.
        wait_for(lambda: len(sandbox.helpers()) == (sandbox.app(NAME) is not None), f"the end of the helper, {call}")
        assert error == KILL or re.fullmatch(r"stage1 app add: [^\n]+\n", result.stdout), (call, result)
        assert error == KILL or sandbox.app(NAME) is None, call
        groups = [trace for trace in sandbox.traces(NAME) if "system.slice" in trace]
        # rmdir(2) may be what failed.
        assert error == KILL or call.name in ("rmdir", "getdents64") or not groups, (call, result, groups)
    else:
        assert sandbox.state(NAME) == "prepared", call
        assert len(sandbox.helpers()) == 1, call
    removed = sandbox.remove(NAME)
    assert (removed.returncode, removed.stdout) == (0, ""), (call, removed)
    assert sandbox.traces(NAME) == [], call
