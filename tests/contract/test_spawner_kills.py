"""SIGKILL for the spawner at any system call by which it makes a sidecar: who reads the app's output then."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import LONG
from tests.support.faults import ANY, HANG, KILL, LAUNCHER, Call, Faults
from tests.support.pods import TIMEOUT_SECONDS, MakePod, handlers, shell
from tests.support.processes import children_of, is_alive, named, status_of
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

# The way of an app's output into the log.
MODES = {"pipe": "log", "stream": "log+stream", "tty": "log+tty"}
STARTED = "started"
# With them a sidecar gets its first calls in before the pod has ended, or another one is there.
NUMBERS = 100
COUNT = f"i=0; while [ $i -lt {NUMBERS} ]; do echo $i; i=$((i+1)); [ $((i % 5)) = 0 ] && sleep 0.01; done"
COUNT_ON = "i=0; until [ -e /end ]; do echo $i; i=$((i+1)); [ $((i % 10)) = 0 ] && sleep 0.02; done"
# The fork, the word to PID 1 behind it, and what comes then; in a long run every call that a sidecar takes, too. The
# first one of all is the call in which the spawner waits, and is made anew when the tracer comes.
CALLS = [Call(LAUNCHER, name, 1) for name in ("clone3", "sendmsg", "close")]
CALLS = [*CALLS, *(Call(LAUNCHER, ANY, nth) for nth in range(2, 9))] * 4 if LONG else CALLS
RECORD = re.compile(rb"\S+ stdout F (.*)")


def numbering(name: str) -> dict[str, Any]:
    """Return an app that counts until it is told to end, with its output in the mode of that name."""
    mode = {"name": "coreos.com/rkt/stage2/stdout", "value": MODES[name]}
    return shell(COUNT_ON, annotations=[mode] if name != "pipe" else [])


def lines_of(sandbox: Sandbox, app: str) -> list[bytes]:
    """Return the lines in an app's log, each of which is a whole record of a number."""
    texts = []
    for line in sandbox.pod.log(app).splitlines():
        record = RECORD.fullmatch(line)
        assert record, f"{app}: {line!r}"
        texts.append(record.group(1))
    return texts


def spawner(sandbox: Sandbox) -> int:
    """Return the spawner, which PID 1 makes when a sidecar is wanted of it."""
    if at_rest(sandbox) is None:
        disturb(sandbox, "pipe")
    return wait_for(lambda: at_rest(sandbox), "a spawner")


def at_rest(sandbox: Sandbox) -> int | None:
    """Return the spawner if there is one that waits."""
    for pid in children_of(sandbox.pod.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = status_of(pid)
            # A sidecar has its name, too, in its first moments.
            if (status["Name"], status["State"][0]) == ("minit-spawner", "S"):
                return pid
    return None


def tracer_of(pid: int) -> str | None:
    """Return the process that traces another one, "0" if none does; None if that is gone."""
    try:
        return status_of(pid)["TracerPid"]
    except (FileNotFoundError, ProcessLookupError):
        return None


@contextmanager
def victim(faults: Faults, sandbox: Sandbox, call: Call, error: int) -> Iterator[int]:
    """Yield a descriptor that is readable when the spawner, which gets no further, is at that call from now on."""
    reader, writer = os.pipe()
    pid = spawner(sandbox)
    words = faults.fault_of(pid, writer, call, error)
    with subprocess.Popen(words, pass_fds=(writer,)) as tracer:
        os.close(writer)
        # A handler of the start before may have had a sidecar made already, which killed it.
        wait_for(lambda: tracer_of(pid) != "0", "the tracer")
        yield reader
        wait_for(lambda: not is_alive(pid), "its end")
        tracer.kill()
    os.close(reader)


def disturb(sandbox: Sandbox, name: str) -> None:
    """Have a sidecar made of the spawner that is traced."""
    if name == STARTED:
        assert sandbox.start(STARTED).returncode == 0
        sandbox.pod.wait_status(STARTED)
        return
    pid = wait_for(lambda: sandbox.pod.children().get(f"iottymux-{name}"), "the sidecar")
    os.kill(pid, signal.SIGKILL)
    wait_for_more(sandbox, name)


def wait_for_more(sandbox: Sandbox, name: str) -> None:
    """Wait for so much of an app's output that two readers would have met."""
    before = len(sandbox.pod.log(name))
    wait_for(lambda: len(sandbox.pod.log(name)) > before + 2000, "output")


def wait_for_one_sidecar(sandbox: Sandbox, name: str) -> None:
    """Wait until nobody is left of those that were made in vain."""
    wait_for(lambda: len(named(sandbox.pod.members(), f"iottymux-{name}")) == 1, "one sidecar")


@pytest.mark.timeout(1800 if LONG else 120)
def test_one_reader_of_a_stream(make_pod: MakePod, tmp_path: Path) -> None:
    """Wherever the spawner is killed, each line is in the log once: of whatever kind the stream, and whoever reads."""
    faults = Faults(tmp_path, 1)
    sandbox = Sandbox(make_pod, stdout=subprocess.DEVNULL)
    hooks = handlers(pre_start=["/bin/sh", "-c", COUNT], post_stop=["/bin/sh", "-c", COUNT])
    sections = {name: numbering(name) for name in MODES} | {STARTED: {**shell(COUNT), "eventHandlers": hooks}}
    for name, section in sections.items():
        assert sandbox.add(name, section, "--debug=false").returncode == 0
        if name != STARTED:
            assert sandbox.start(name).returncode == 0
    starts = 0
    # The second sidecar of a start is the app's own.
    for call, (name, count) in product(CALLS, [*((name, 1) for name in sections), (STARTED, 2)]):
        nth = call.nth if call.name == ANY else call.nth * count
        with victim(faults, sandbox, call._replace(nth=nth), KILL) as event:
            disturb(sandbox, name)
            assert select.select([event], [], [], TIMEOUT_SECONDS)[0]
        starts += name == STARTED
    for name in MODES:
        wait_for_one_sidecar(sandbox, name)
        sandbox.pod.file(name, "/end").touch()
        sandbox.pod.wait_status(name)
    result = sandbox.end()
    assert result.returncode == 0, result.stderr
    for name in MODES:
        assert lines_of(sandbox, name) == [b"%d" % number for number in range(len(lines_of(sandbox, name)))]
    assert Counter(lines_of(sandbox, STARTED)) == {b"%d" % number: 3 * starts for number in range(NUMBERS)}


def test_a_spawner_that_hangs_behind_its_fork(make_pod: MakePod, tmp_path: Path) -> None:
    """PID 1 gives it up, and the sidecar that it had made reads nothing of what the next one gets."""
    faults = Faults(tmp_path, 1)
    sandbox = Sandbox(make_pod, stdout=subprocess.DEVNULL)
    assert sandbox.add("pipe", numbering("pipe")).returncode == 0
    assert sandbox.start("pipe").returncode == 0
    with victim(faults, sandbox, Call(LAUNCHER, "sendmsg", 1), HANG) as event:
        disturb(sandbox, "pipe")
        assert select.select([event], [], [], TIMEOUT_SECONDS)[0]
    wait_for(lambda: at_rest(sandbox), "another spawner")
    wait_for_one_sidecar(sandbox, "pipe")
    wait_for_more(sandbox, "pipe")
    sandbox.pod.file("pipe", "/end").touch()
    sandbox.pod.wait_status("pipe")
    assert sandbox.end().returncode == 0
    assert lines_of(sandbox, "pipe") == [b"%d" % number for number in range(len(lines_of(sandbox, "pipe")))]
