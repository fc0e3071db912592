"""`minit app stats` and `minit top`: what the apps of running pods use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyte

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.stage0_world import REPOSITORY
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
BUSY = "touch /tmp/begun; while :; do :; done"
LIMITS = {"memory": "32Mi", "cpu": "500m"}
IDLE = "touch /tmp/begun; exec sleep 1000"


def minit(data: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and check its exit code."""
    command = [sys.executable, "-m", "minit", f"--dir={data}", *words]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == code, result.stderr
    return result


def start(make_pod: MakePod) -> PodDirectory:
    """Start a pod with a busy and an idle app."""
    pod = make_pod({"busy": shell(BUSY), "idle": shell(IDLE)})
    pod.start(stdout=subprocess.DEVNULL)
    for app in ("busy", "idle"):
        pod.wait_file(app, "/tmp/begun")
    return pod


def stop(pod: PodDirectory) -> None:
    """Stop the pod at once."""
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def sample(pod: PodDirectory) -> dict[str, dict[str, Any]]:
    """Return what `app stats` says of each app in JSON, and of the pod as "pod"."""
    [line] = minit(pod.data, "app", "stats", "--format=json", pod.uuid).stdout.splitlines()
    value = json.loads(line)
    return {"pod": value["pod"], **{app["name"]: app for app in value["apps"]}, "all": value}


def test_what_a_pod_uses(make_pod: MakePod) -> None:
    """Processor time, memory and processes are the app's own, networks the pod's; an ended pod has none."""
    pod = start(make_pod)
    first = sample(pod)
    wait_for(lambda: sample(pod)["busy"]["cpu_ns"] >= first["busy"]["cpu_ns"] + 20_000_000, "processor time")
    last = sample(pod)
    assert last["idle"]["processes"] == last["busy"]["processes"] == 1
    assert last["idle"]["cpu_ns"] < last["busy"]["cpu_ns"]
    assert last["pod"]["memory_bytes"] > last["busy"]["memory_bytes"] > 0, "PID 1 is there, too"
    assert last["busy"]["oom_kills"] == 0
    assert last["all"]["networks"] == []
    text = minit(pod.data, "app", "stats", "--app=busy", pod.uuid[:8]).stdout.splitlines()
    assert [line.split("\t")[0] for line in text] == ["APP", "busy"]
    metrics = minit(pod.data, "app", "stats", "--format=prometheus").stdout
    assert f'minit_app_processes{{uuid="{pod.uuid}",app="idle"}} 1\n' in metrics
    assert 'no app "x"' in minit(pod.data, "app", "stats", "--app=x", pod.uuid, code=254).stderr
    stop(pod)
    assert 'its state is "exited"' in minit(pod.data, "app", "stats", pod.uuid, code=254).stderr


def test_memory_that_ran_out(make_pod: MakePod) -> None:
    """Processes that the kernel killed for it are counted, and `diagnose` says so with the limit."""
    hog = "busybox dd if=/dev/zero of=/dev/null bs=256M count=1; touch /tmp/begun; exec sleep 1000"
    limits = [{"name": f"resource/{name}", "value": {"limit": limit}} for name, limit in LIMITS.items()]
    pod = make_pod({"busy": shell(hog, isolators=limits), "idle": shell(IDLE)})
    pod.start(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pod.wait_file("busy", "/tmp/begun")
    usage = sample(pod)
    assert (usage["busy"]["oom_kills"], usage["idle"]["oom_kills"]) == (1, 0)
    assert usage["busy"]["memory_limit_bytes"] == 32 << 20 and "memory_limit_bytes" not in usage["idle"]
    assert usage["busy"]["cpu_limit_millicores"] == 500 and "cpu_limit_millicores" not in usage["idle"]
    assert usage["busy"]["restarts"] == 0
    said = f'App "busy": memory ran out, of which it may have {32 << 20} bytes: the kernel killed 1 of its processes.'
    assert said in minit(pod.data, "diagnose", pod.uuid).stdout
    stop(pod)


def test_restarts(make_pod: MakePod) -> None:
    """They are counted while the app runs again, and while it waits for that; `list` has a column of them."""
    script = "[ -e /tmp/again ] && touch /tmp/begun && exec sleep 1000; touch /tmp/again; exit 3"
    again = [{"name": "minit/restart", "value": "on-failure"}]
    loops = [*again, {"name": "minit/restart-delay", "value": "2s"}]
    pod = make_pod({"again": shell(script, annotations=again), "loops": shell("exit 3", annotations=loops)})
    pod.start(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pod.wait_file("again", "/tmp/begun")
    pod.wait_status("loops")
    usage = sample(pod)
    assert (usage["again"]["restarts"], usage["loops"]["restarts"]) == (1, 0)
    wait_for(lambda: pod.record("loops").get("restarts") == 1, "the second end of the app")
    shown = [line.split("\t")[-1] for line in minit(pod.data, "list").stdout.splitlines()]
    assert shown == ["RESTARTS", "1", "1 (crash loop)"]
    [listed] = json.loads(minit(pod.data, "list", "--format=json").stdout)
    assert [app["restarts"] for app in listed["apps"]] == [1, 1]
    stop(pod)


def test_an_interface_of_the_pod(make_pod: MakePod) -> None:
    """Traffic through it is counted as the pod sees it."""
    pod = start(make_pod)
    enter = ["nsenter", f"--net=/proc/{pod.pid}/ns/net"]
    for words in (
        "link add d0 type veth peer name d1",
        "link set d1 up",
        "link set d0 up",
        "addr add 10.9.0.1/24 dev d0",
    ):
        subprocess.run([*enter, "ip", *words.split()], check=True)
    subprocess.run([*enter, "busybox", "ping", "-c1", "-W1", "10.9.0.2"], stdout=subprocess.DEVNULL, check=False)
    one, other = sample(pod)["all"]["networks"]
    assert (one["name"], other["name"]) == ("d0", "d1")
    assert one["tx_packets"] > 0 and other["rx_bytes"] > 0
    stop(pod)


def test_watching_to_the_end(make_pod: MakePod) -> None:
    """--watch goes on, with the use of processors each time, and ends with the pod."""
    pod = start(make_pod)
    command = [sys.executable, "-m", "minit", f"--dir={pod.data}", "app", "stats", "--watch=100ms", pod.uuid]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shares = [line.split("\t")[1] for line in (process.stdout.readline() for _ in range(9)) if line.startswith("busy")]
    assert len(shares) >= 2 and all(share.endswith("%") for share in shares)
    stop(pod)
    process.stdout.read()
    assert process.wait() == 0


class Screen:
    """A terminal of which every byte is looked at as a person would see it."""

    def __init__(self, terminal: Terminal, rows: int, columns: int) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._terminal, self._stream = terminal, pyte.ByteStream(self.screen)

    @property
    def lines(self) -> list[str]:
        """The present screen, each gap one space wide."""
        self._terminal.read_until(lambda: True)
        self._stream.feed(self._terminal.seen)
        self._terminal.seen = b""
        return [" ".join(line.split()) for line in self.screen.display]

    def wait(self, *texts: str) -> list[str]:
        """Return what is shown once lines with these texts are, and the picture is whole."""

        def look() -> list[str] | None:
            self._terminal.read_until(lambda: bool(self._terminal.seen), 0.1)
            lines = self.lines
            self._terminal.read_until(lambda: bool(self._terminal.seen), 0.05)
            if self._terminal.seen:
                return None
            return lines if all(any(text in line for line in lines) for text in texts) else None

        return wait_for(look, f"{texts} on the screen") or []


def test_top(make_pod: MakePod) -> None:
    """The busiest app is first, keys sort, a small window still shows names, q quits and gives the terminal back."""
    pod = start(make_pod)
    with Terminal(24, 140) as terminal:
        before = terminal.settings
        screen = Screen(terminal, 24, 140)
        command = [sys.executable, "-m", "minit", f"--dir={pod.data}", "top", "--interval=1s"]
        process = subprocess.Popen(command, env={**ENVIRONMENT, "TERM": "xterm"}, **terminal.options)
        lines = screen.wait("1 pod, 2 apps", "% ", "idle")
        assert lines[1].split() == [
            *("UUID", "APP", "CPU", "CPU", "LIMIT", "TIME", "MEMORY", "LIMIT", "MEM%", "PIDS", "READ/s", "WRITE/s"),
            *("RECV/s", "SENT/s", "OOM", "RESTARTS"),
        ]
        assert [line.split()[:2] for line in lines[2:4]] == [[pod.uuid[:8], "busy"], [pod.uuid[:8], "idle"]]
        assert lines[-1] == "keys: c CPU, m memory, p processes, n name, q quit"
        terminal.type(b"\x1b[A\x1a")
        terminal.type(b"n")
        screen.wait("by name")
        terminal.resize(4, 24)
        screen.screen.resize(4, 24)
        lines = screen.wait("APP CPU MEMORY")
        assert lines[2].startswith("busy")
        terminal.type(b"q")
        assert terminal.finish(process) == 0
        assert terminal.settings == before
    stop(pod)


def test_top_on_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """It ends by the hang-up, with at most one line about it; an interval may be longer than poll(2) can wait."""
    with Terminal() as terminal:
        command = [sys.executable, "-m", "minit", f"--dir={tmp_path}", "top", "--interval=10000h"]
        options = {**terminal.options, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env={**ENVIRONMENT, "TERM": "xterm"}, **options)
        terminal.expect(rb"0 pods")
        terminal.resize(10, 100)  # which it shows only once it waits
        terminal.expect(rb"0 pods")
    _, errors = process.communicate(timeout=90)
    assert process.returncode in (129, 254)
    assert errors in (b"", b"top: standard output: input/output error\n")


def test_one_table_on_a_terminal_of_80_columns(make_pod: MakePod) -> None:
    """A pod with a long name of an app fits, with the use of processors, by stats and by top with --no-stream."""
    name = f"{'a' * 30}{'b' * 30}"
    pod = make_pod({name: shell(BUSY)})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file(name, "/tmp/begun")
    for words in (("stats", "--no-stream"), ("top", "--no-stream", "--interval=200ms")):
        with Terminal(24, 80) as terminal:
            screen = Screen(terminal, 24, 80)
            command = [sys.executable, "-m", "minit", f"--dir={pod.data}", *words]
            process = subprocess.Popen(command, env={**ENVIRONMENT, "TERM": "xterm"}, **terminal.options)
            assert terminal.finish(process) == 0
            lines = [line.split() for line in screen.lines if line]
        app = lines[1][lines[0].index("APP")]
        assert app.startswith("aaa") and "…" in app and app.endswith("bbb")
        assert lines[1][lines[0].index("CPU")].endswith("%")
        assert len(lines) == {"stats": 3, "top": 2}[words[0]], "nothing wraps"
    whole = minit(pod.data, "stats", "--no-trunc").stdout
    assert pod.uuid in whole and name in whole
    assert "exclude each other" in minit(pod.data, "stats", "--no-stream", "--watch", code=254).stderr
    stop(pod)


def test_top_without_a_terminal(make_pod: MakePod) -> None:
    """One table is printed, also of no pods at all."""
    pod = start(make_pod)
    lines = minit(pod.data, "top", "--interval=200ms", pod.uuid).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["APP", "busy", "idle"]
    assert lines[1].split()[2].endswith("%")
    stop(pod)
    assert minit(pod.data, "top", "--interval=100ms").stdout.splitlines()[0].startswith("UUID")
    assert 'its state is "exited"' in minit(pod.data, "top", pod.uuid, code=254).stderr
