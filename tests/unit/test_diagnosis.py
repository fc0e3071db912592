"""The conclusions of `minit diagnose`, its masks and its text."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.commands.diagnosecommand import report_text
from minit.stage0.pods.poddirectory import PodState, create_pod, open_pod
from minit.stage0.reports.diagnosis import MASK, diagnose, find_secrets, masked
from minit.stage0.reports.verdict import AppFacts, PodFacts, conclusions

PARTS = {
    *("pod", "conclusions", "apps", "manifest", "plan", "events", "supervisor_log", "networks", "mounts"),
    *("control_groups", "processes", "machine"),
}


def facts(state: PodState, *apps: AppFacts, **fields: Any) -> PodFacts:
    """Return a pod that reported its pid and is ready, unless `fields` say otherwise."""
    known = {"failure": None, "has_pid": True, "is_ready": True, "ended_in_order": False}
    return PodFacts(**{"state": state, "apps": apps, **known, **fields})


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (facts(PodState.RUNNING), "The pod is running and ready; nothing is wrong that can be seen from here."),
        (facts(PodState.EXITED, AppFacts(name="a", status=0)), "All apps ended with status 0."),
        (
            facts(PodState.RUNNING, errors=1),
            "PID 1 of the pod has had an error of its own, as supervisor_log tells: a bug in minit.",
        ),
        (
            facts(PodState.EXITED, AppFacts(name="a", status=0), errors=3),
            "PID 1 of the pod has had 3 errors of its own, as supervisor_log tells: a bug in minit.",
        ),
        (
            facts(PodState.EXITED, failure="failed to open volumes: /x: no such file or directory", has_pid=False),
            "The pod could not be started: failed to open volumes: /x: no such file or directory",
        ),
        (
            facts(PodState.EXITED, has_pid=False),
            "The pod ended before its stage1 could report a pid; what it said then went to where the pod was started.",
        ),
        (
            facts(PodState.EXITED, AppFacts(name="a", status=3, end="exited with 3", last_line="no database")),
            'App "a" ended with status 3 (exited with 3); the last line of its log: no database',
        ),
        (
            facts(PodState.EXITED, AppFacts(name="a", status=1, restarts=5)),
            'App "a" ended with status 1 after 5 restarts',
        ),
        (facts(PodState.EXITED, AppFacts(name="a")), 'App "a" was never executed.'),
        (
            facts(PodState.EXITED, AppFacts(name="a", was_started=True), ended_in_order=True),
            'App "a" was never executed.',
        ),
        (
            facts(PodState.EXITED, AppFacts(name="a", was_started=True)),
            'App "a" has no status, since its pod was killed.',
        ),
        (
            facts(PodState.RUNNING, AppFacts(name="a"), AppFacts(name="b", was_started=True), is_ready=False),
            "The pod is not ready: not started yet: a.",
        ),
        (
            facts(PodState.RUNNING, AppFacts(name="a", oom_kills=2, memory_limit_bytes=4096)),
            'App "a": memory ran out, of which it may have 4096 bytes: the kernel killed 2 of its processes.',
        ),
        (
            facts(PodState.EXITED, AppFacts(name="a", status=0, lost_output_bytes=8)),
            'App "a": 8 bytes of its output were lost, since nobody could read them.',
        ),
        (
            facts(PodState.RUNNING, AppFacts(name="a", refused_forks=7)),
            'App "a" reached its limit of processes: 7 could not be started.',
        ),
        (facts(PodState.PREPARED), "The pod has not been run yet: `minit run-prepared` does that."),
        (facts(PodState.RUNNING, free_share=0.0), "The file system with the data directory is full."),
    ],
)
def test_conclusions(pod: PodFacts, expected: str) -> None:
    """Each thing that can be wrong is a sentence."""
    assert conclusions(pod) == [expected]


MANIFEST = {
    "apps": [
        {
            "name": "web",
            "app": {
                "exec": ["/bin/web", "--api-key=abcdefgh", "--password", "hunter22", "--port=80", "-v"],
                "environment": [
                    {"name": "DB_PASSWORD", "value": "s3cret-word"},
                    {"name": "HOME", "value": "/root"},
                    {"name": "DATABASE", "value": "postgres://user:hidden@db/x"},
                    {"name": "PIN_TOKEN", "value": "1"},
                ],
            },
        }
    ]
}


def test_secrets_are_masked_everywhere() -> None:
    """By the name of a variable or option; wherever the value comes up again; and passwords in URLs."""
    report = {"manifest": MANIFEST, "log": ["tried s3cret-word, 1 time", "https://u:p@host/"], "number": 1}
    shown: Any = masked(report, find_secrets(MANIFEST))
    text = json.dumps(shown)
    assert not [word for word in ("abcdefgh", "hunter22", "s3cret-word", "hidden", "u:p") if word in text]
    app = shown["manifest"]["apps"][0]["app"]
    assert app["exec"] == ["/bin/web", f"--api-key={MASK}", "--password", MASK, "--port=80", "-v"]
    assert app["environment"][1] == {"name": "HOME", "value": "/root"}
    assert app["environment"][3] == {"name": "PIN_TOKEN", "value": MASK}
    assert shown["log"][0] == f"tried {MASK}, 1 time"
    assert "postgres://********@db/x" in text and shown["number"] == 1


def test_text() -> None:
    """Parts have headings, conclusions are first, lists are indented, and control characters are made visible."""
    report: dict[str, object] = {
        "conclusions": ["All is \x1b]0;lost\x07"],
        "pod": {"uuid": "x", "pid": None, "ready": True},
        "apps": [{"name": "a", "log": ["one", "two"]}],
    }
    lines = report_text(report).splitlines()
    assert lines[:2] == ["CONCLUSIONS", "  All is \\x1b]0;lost\\x07"]
    assert lines[3:7] == ["POD", "  uuid: x", "  pid: -", "  ready: yes"]
    assert lines[8:13] == ["APPS", "  - name: a", "    log:", "      one", "      two"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(sorted(PARTS)), JSON_VALUES))
def test_text_of_anything(report: dict[str, object]) -> None:
    """Any report is printed, and nothing in it can control a terminal."""
    text = report_text(report)
    assert text.replace("\n", "").replace("\t", "").isprintable()
    masked(report, find_secrets(report))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "an empty manifest": lambda path: (path / "pod").write_bytes(b""),
    "a truncated manifest": lambda path: (path / "pod").write_bytes(b'{"apps": [{"name": "we'),
    "a manifest of odd things": lambda path: (path / "pod").write_text(
        '{"apps": [1, {"name": 2}, {"name": "a/../b"}, {"name": "a"}]}'
    ),
    "a manifest that is a directory": lambda path: (path / "pod").mkdir(),
    "text that is none": lambda path: (path / "pod").write_text('{"apps": [{"name": "web"}], "x": "\\ud800"}'),
    "a fifo": lambda path: os.mkfifo(path / "net-info.json"),
    "no networks": lambda path: (path / "net-info.json").write_text("[1"),
    "a foreign pid": lambda path: (path / "pid").write_text("99999999"),
    "a group elsewhere": lambda path: (path / "subcgroup").write_text("../../.."),
    "an overlay without its tree": lambda path: (path / "overlay-prepared").touch(),
    "links out of the pod": lambda path: [
        (path / "stage1/rootfs/rkt").mkdir(parents=True),
        (path / "stage1/rootfs/rkt/minit").symlink_to("/etc"),
    ],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", ["prepare", "run"])
def test_damaged_pods(tmp_path: Path, damage: str, place: str) -> None:
    """For any damage of a pod directory there is a whole report that can be printed."""
    with create_pod(tmp_path) as made:
        made.move(place)
        (made.path / "pod").write_text(json.dumps({"apps": [{"name": "web"}]}))
        if "manifest" in damage:
            (made.path / "pod").unlink()
        DAMAGES[damage](made.path)
        uuid = made.uuid
    with open_pod(tmp_path, uuid) as pod:
        report = diagnose(pod, 5, show_secrets=False)
    assert set(report) == PARTS
    assert report["conclusions"] and isinstance(report["conclusions"], list)
    text = report_text(report)
    assert text.startswith("CONCLUSIONS") and uuid in text
    (text + json.dumps(report, ensure_ascii=False)).encode()
