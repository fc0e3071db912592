"""A plugin as a program that is killed, or whose system calls fail, at any moment; then its runtime has it delete."""

from __future__ import annotations

import errno
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.podfiles import paths
from tests.support.campaign import LONG
from tests.support.cniruntime import Answer, Runtime
from tests.support.faults import KILL, Call, Faults
from tests.support.networks import make_network, own_network, remove_network

# The launcher of the image executes the interpreter, which is the second program.
EXECS = 2
# What changes anything outside of the process. An ordinary run takes some of these calls alone.
EFFECTS = {"mkdir", "openat", "rename", "renameat", "sendmsg", "sendto", "setns", "unlink", "unlinkat", "write"}
SAMPLE = 12


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


@pytest.fixture
def runtime(stage1_tree: Path, tmp_path: Path) -> Iterator[Runtime]:
    """A machine and a container, in network namespaces of this test alone."""
    namespace = make_network(tmp_path / "netns")
    with own_network():
        yield Runtime(stage1_tree / "rootfs" / paths.PLUGINS, tmp_path, namespace)
    remove_network(namespace)


def configure(runtime: Runtime, kind: str) -> Answer:
    """Return a configuration with all that plugins of this kind make, the bridge of which is there."""
    config = runtime.config(kind, ipMasq=True, bridge="br-lan", isGateway=True)
    runtime.ask("ADD", config)
    runtime.ask("DEL", config)
    return config


def record(runtime: Runtime, faults: Faults, config: Answer) -> list[Call]:
    """Return the calls to try, of those that an ADD makes."""
    with tempfile.TemporaryFile("w+") as log:
        done = runtime.run_under(faults.recording(log.fileno()), log.fileno(), "ADD", config)
        assert (done.returncode, done.stderr) == (0, "")
        log.seek(0)
        calls = [call for call in faults.read_calls(log) if call.name in EFFECTS]
    runtime.ask("DEL", config)
    return calls if LONG else random.Random(1).sample(calls, SAMPLE)


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
def test_a_plugin_that_is_killed(runtime: Runtime, faults: Faults, kind: str) -> None:
    """After a kill at any call DEL removes whatever there is, and the next ADD works."""
    config = configure(runtime, kind)
    before = runtime.traces()
    for call in record(runtime, faults, config):
        reader, writer = os.pipe()
        runtime.run_under(faults.fault(writer, call, KILL), writer, "ADD", config)
        os.close(writer)
        with open(reader) as events:
            assert events.read(), call
        assert runtime.ask("DEL", config) == {}, call
        assert (runtime.leased(), runtime.traces()) == ([], before), call
    assert runtime.ask("ADD", config)["ips"]
    assert runtime.ask("DEL", config) == {}


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
def test_a_call_that_fails(runtime: Runtime, faults: Faults, kind: str) -> None:
    """The answer is an error and nothing is left, unless the plugin can do without the call, or cannot answer."""
    config = configure(runtime, kind)
    before = runtime.traces()
    for call in record(runtime, faults, config):
        reader, writer = os.pipe()
        done = runtime.run_under(faults.fault(writer, call, errno.EIO), writer, "ADD", config)
        os.close(writer)
        with open(reader) as events:
            assert events.read(), call
        if done.returncode == 0:
            assert json.loads(done.stdout)["ips"], call
        elif done.stderr:
            assert (done.stdout, done.stderr) == ("", f"{kind}: cannot answer: input/output error\n"), call
        else:
            assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 999), call
            assert (runtime.leased(), runtime.traces()) == ([], before), call
        assert runtime.ask("DEL", config) == {}, call
        assert (runtime.leased(), runtime.traces()) == ([], before), call
