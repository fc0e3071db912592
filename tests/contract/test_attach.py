"""The `attach` entrypoint, executed on running pods as rkt does."""

from __future__ import annotations

import json

import pytest

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for


def modes(**streams: str) -> list[dict[str, str]]:
    """Return the annotations of an app for the modes of its streams."""
    return [{"name": f"coreos.com/rkt/stage2/{name}", "value": mode} for name, mode in streams.items()]


def start(make_pod: MakePod, script: str, **streams: str) -> PodDirectory:
    """Start a pod of one app with these modes, and return when it can be attached to."""
    pod = make_pod({"web": shell(script, annotations=modes(**streams))})
    pod.start()
    wait_for((pod.stage1 / "rkt/iottymux/web/endpoints").exists, "the endpoints")
    return pod


def test_listing(make_pod: MakePod) -> None:
    """rkt's document, indented by four spaces, without a line feed at its end."""
    pod = start(make_pod, "read x", stdin="stream", stdout="stream")
    result = pod.call("attach", "--action=list", "--app=web", "--debug=false")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads((pod.stage1 / "rkt/iottymux/web/endpoints").read_text())
    assert [target["name"] for target in document["targets"]] == ["stdin", "stdout"]
    assert result.stdout == json.dumps(document, indent=4)


def test_streams(make_pod: MakePod) -> None:
    """What is piped in reaches the app with its end, and both outputs come out where they should."""
    pod = start(
        make_pod, 'while read x; do echo "o:$x"; echo "e:$x" >&2; done', stdin="stream", stdout="stream", stderr="stream"
    )
    result = pod.call("attach", "--action=auto-attach", "--app=web", "--debug=false", input="one\ntwo\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "o:one\no:two\n", "e:one\ne:two\n")
