"""rkt's log mode k8s-plain: streams in mode `stream` are written to a file of the host that annotations name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.pods import MakePod, shell
from tests.support.waiting import wait_for

MODE = "coreos.com/rkt/experiment/logmode"
DIRECTORY = "coreos.com/rkt/experiment/kubernetes-log-dir"
STREAMS = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "stream"} for name in ("stdout", "stderr")]
LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d) (stdout|stderr) (.*)")


def logging_app(script: str, path: str, modes: list[dict[str, str]] = STREAMS) -> dict[str, object]:
    """Return an app with attachable streams and a log of kubernetes."""
    path_annotation = {"name": "coreos.com/rkt/experiment/kubernetes-log-path", "value": path}
    return shell(script, annotations=[*modes, path_annotation])


def texts(path: Path) -> list[tuple[bytes, bytes]]:
    """Return stream and text of each line."""
    matches = [LINE.fullmatch(line) for line in path.read_bytes().split(b"\n")]
    return [(match[3], match[4]) for match in matches if match]


def test_lines_are_in_the_file(make_pod: MakePod, tmp_path: Path) -> None:
    """Both streams of an app are in its file, which begins anew, and nothing of it on the pod's own output."""
    (tmp_path / "web_0.log").write_text("of another pod\n")
    pod = make_pod(
        {"web": logging_app("echo Hello; echo error >&2; printf 'no end'", "web_0.log"), "other": shell("echo other")},
        annotations={MODE: "k8s-plain", DIRECTORY: str(tmp_path)},
    )
    result = pod.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert "Hello" not in result.stdout
    assert sorted(texts(tmp_path / "web_0.log")) == [
        (b"stderr", b"error"),
        (b"stdout", b"Hello"),
        (b"stdout", b"no end"),
    ]
    assert os.listdir(tmp_path) == ["web_0.log"]


@pytest.mark.parametrize(("mode", "end"), [("log+stream", b""), ("log+tty", b"\r")])
def test_lines_are_in_both_logs(make_pod: MakePod, tmp_path: Path, mode: str, end: bytes) -> None:
    """What is attachable and logged is in the file as well; all of a terminal is stdout."""
    modes = [{"name": f"coreos.com/rkt/stage2/{name}", "value": mode} for name in ("stdout", "stderr")]
    app = logging_app("echo one; echo two >&2", "web_0.log", modes)
    pod = make_pod({"web": app}, annotations={MODE: "k8s-plain", DIRECTORY: str(tmp_path)})
    assert pod.run().returncode == 0
    stderr = b"stdout" if mode == "log+tty" else b"stderr"
    expected = [(stderr, b"two" + end), (b"stdout", b"one" + end)]
    assert sorted(texts(tmp_path / "web_0.log")) == sorted(expected)
    records = [line.split(b" ", 3) for line in pod.log("web").split(b"\n")[:-1]]
    assert sorted((record[1], record[3]) for record in records) == sorted(expected)


def test_the_file_is_let_go_of(make_pod: MakePod, tmp_path: Path) -> None:
    """A program that rotates it asks for a new one as for other logs."""
    pod = make_pod(
        {"web": logging_app("echo one; until [ -e /tmp/end ]; do sleep 0.02; done; echo two", "0.log")},
        annotations={MODE: "k8s-plain", DIRECTORY: str(tmp_path)},
    )
    process = pod.start()
    log = tmp_path / "0.log"
    wait_for(lambda: log.exists() and b"one" in log.read_bytes(), "the first line")
    log.rename(tmp_path / "0.log.1")
    pod.wait_ready()
    assert pod.ask({"op": "reopen-logs"}) == {"ok": True}
    wait_for(log.exists, "the new file")
    pod.file("web", "/tmp/end").touch()
    assert pod.finish(process).returncode == 0
    assert (texts(tmp_path / "0.log.1"), texts(log)) == ([(b"stdout", b"one")], [(b"stdout", b"two")])


def test_what_is_refused(make_pod: MakePod, tmp_path: Path) -> None:
    """Another place than the directory itself, and a directory that is not there."""
    annotations = {MODE: "k8s-plain", DIRECTORY: str(tmp_path / "logs")}
    (tmp_path / "logs").mkdir()
    result = make_pod({"web": logging_app("true", "../escaped")}, annotations=annotations).run()
    assert result.returncode == 254
    assert 'app "web": log path is not inside /rkt/kubernetes/log, refusing path traversal' in result.stderr
    (tmp_path / "logs").rmdir()
    result = make_pod({"web": logging_app("true", "0.log")}, annotations=annotations).run()
    assert result.returncode == 1
    assert f"Failed to stat {tmp_path}/logs: No such file or directory" in result.stderr
    assert os.listdir(tmp_path) == []
