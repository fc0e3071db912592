"""SIGKILL for what connects a pod to its networks, and for `gc`, at any of their system calls; then `gc` once more."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.campaign import LONG
from tests.support.faults import KILL, LAUNCHER, Call, Faults, Roles
from tests.support.hostnet import STATE, left_by, leftovers
from tests.support.pods import MakePod, PodDirectory, app_section
from tests.support.waiting import wait_for

# The launcher of the image executes the interpreter, which is the second program.
EXECS = 2
# What changes anything outside of the process that calls it. An ordinary run kills at some of these calls alone.
EFFECTS = {
    *("clone", "clone3", "exit_group", "mkdir", "mount", "rename", "renameat", "rmdir", "sendmsg", "sendto", "setns"),
    *("umount2", "unlink", "unlinkat", "unshare", "write"),
}
SAMPLE = 8
LONG_SAMPLE = 60
# Two of them, so that one is there already or still when the other one is half made.
NETWORKS = "default,default-restricted"
REFERENCE = Path("/usr/lib/cni")
PORTS = itertools.count(20000)
_SETS = [[{"subnet": "10.79.0.0/16"}], [{"subnet": "fd00:4f::/64"}]]
# The second network has the bridge of the first one for its master.
MANY_TYPES: dict[str, list[dict[str, object]]] = {
    "a-lan": [
        {
            **{"type": "bridge", "bridge": "br-many", "isGateway": True, "ipMasq": True},
            "ipam": {"type": "host-local", "ranges": _SETS, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
        },
        {
            **{"type": "tuning", "mtu": 1400, "mac": "02:00:5e:10:00:0f", "dataDir": str(STATE / "tuning")},
            "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"},
        },
        {"type": "firewall", "ingressPolicy": "same-bridge"},
        {"type": "bandwidth", **dict.fromkeys(("ingressRate", "ingressBurst", "egressRate", "egressBurst"), 10**8)},
    ],
    "b-mac": [
        {
            **{"type": "macvlan", "master": "br-many", "mode": "bridge"},
            "ipam": {"type": "host-local", "subnet": "10.80.0.0/16"},
        }
    ],
    "c-flannel": [{"type": "flannel", "delegate": {"type": "ptp"}}],
}
SUBNET_ENV = "FLANNEL_NETWORK=10.81.0.0/16\nFLANNEL_SUBNET=10.81.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"

# A pod, what it is run with, and how a command of it is run under the tracer.
Start = Callable[[PodDirectory, Sequence[str], int], None]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """In the end there is nothing in the host's network, of whatever pod."""
    yield
    assert leftovers() == []


def server(make_pod: MakePod) -> PodDirectory:
    """Return a pod with a forwarded port and a name."""
    section = app_section("/bin/true", ports=[{"name": "http", "protocol": "tcp", "port": 80}])
    ports = [{"name": "http", "hostPort": next(PORTS)}]
    return make_pod({"a": section}, ports=ports, annotations={"minit/pod-names": "true"})


class Runs:
    """Starts of pods on networks, some of which do not end well."""

    def __init__(self, faults: Faults, make_pod: MakePod, *flags: str, net: str) -> None:
        self._faults = faults
        self._make_pod = make_pod
        self._flags = flags
        self._net = net

    def record(self) -> list[Call]:
        """Return the calls of a start in order."""
        with tempfile.TemporaryFile("w+") as log:
            result = self._run(server(self._make_pod), self._faults.recording(log.fileno()), log.fileno())
            assert (result.returncode, result.stderr) == (0, "")
            log.seek(0)
            return self._faults.read_calls(log)

    def kill(self, call: Call) -> tuple[bool, str]:
        """Kill a process at one of its calls; return whether it got so far, and what is wrong, empty if nothing is."""
        pod = server(self._make_pod)
        reader, writer = os.pipe()
        result = self._run(pod, self._faults.fault(writer, call, KILL), writer)
        os.close(writer)
        with open(reader) as events:
            was_reached = bool(events.read())
        pod.wait_exited()
        wait_for(lambda: pod.members() == [], "the end of all processes")
        problems = [] if len(result.stderr.splitlines()) <= 1 else [result.stderr]
        problems += collect(pod, *self._flags[:1])
        return was_reached, f"{call}: {'; '.join(problems)}" if problems else ""

    def _run(self, pod: PodDirectory, under: Sequence[str], fd: int) -> subprocess.CompletedProcess[str]:
        return pod.run(*self._flags, under=under, pass_fds=(fd,), net=self._net)


def collect(pod: PodDirectory, *flags: str) -> list[str]:
    """Collect a pod twice, since a killed `gc` is followed by another one, remove it, and return what is wrong."""
    problems = []
    for _ in range(2):
        result = pod.call("gc", *flags, pod.uuid)
        problems += [] if (result.returncode, result.stderr) == (0, "") else [str(result)]
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    problems += left_by(pod.uuid) + [line for line in rules.splitlines() if pod.uuid in line]
    pod.remove()
    return problems


def sample(calls: Sequence[Call]) -> list[Call]:
    """Return the calls to kill at: some of those with an effect, in a long run all of them and some others."""
    effects = [call for call in calls if call.name in EFFECTS]
    chosen = random.Random(None if LONG else 1)
    if not LONG:
        return chosen.sample(effects, min(SAMPLE, len(effects)))
    others = [call for call in calls if call.name not in EFFECTS]
    return effects + chosen.sample(others, min(LONG_SAMPLE, len(others)))


def check_all(kill: Callable[[Call], tuple[bool, str]], calls: Sequence[Call]) -> None:
    """Kill at each of the calls."""
    with ThreadPoolExecutor(2) as executor:
        reached, problems = zip(*executor.map(kill, calls))
    assert not any(problems), "\n".join(filter(None, problems))
    # What comes in which order differs a little from one start to the next.
    assert sum(reached) > 0.8 * len(calls)


@pytest.mark.parametrize("victim", ["launcher", "helper"])
def test_kills_of_a_start(make_pod: MakePod, faults: Faults, victim: str) -> None:
    """Launcher or network helper killed while the helper is at work, or soon after: gc leaves nothing of the pod."""
    runs = Runs(faults, make_pod, net=NETWORKS)
    calls = runs.record()
    helper = Roles(calls).network_helper
    begin = next(index for index, call in enumerate(calls) if call.who == helper)
    who = LAUNCHER if victim == "launcher" else helper
    check_all(runs.kill, sample([call for call in calls[begin:] if call.who == who]))


def test_kills_before_there_is_a_helper(make_pod: MakePod, faults: Faults) -> None:
    """Launcher killed at any call while it makes the files of the pod's names: gc leaves none of them."""
    runs = Runs(faults, make_pod, net=NETWORKS)
    calls = runs.record()
    helper = Roles(calls).network_helper
    own = [call for call in itertools.takewhile(lambda call: call.who != helper, calls) if call.who == LAUNCHER]
    begin = max(index for index, call in enumerate(own) if call.name == "flock")
    check_all(runs.kill, own[begin:])


def test_kills_of_a_start_with_many_types(make_pod: MakePod, faults: Faults, tmp_path: Path) -> None:
    """Nor by plugins of other types, in chains and with both families, whichever of them is at work."""
    networks = tmp_path / "net.d"
    networks.mkdir()
    (tmp_path / "subnet.env").write_text(SUBNET_ENV)
    for name, plugins in MANY_TYPES.items():
        # The others do not know this key.
        plugins = [{**plugin, "subnetFile": str(tmp_path / "subnet.env")} for plugin in plugins]
        configuration = {"cniVersion": "1.0.0", "name": name, "plugins": plugins}
        (networks / f"{name}.conflist").write_text(json.dumps(configuration))
    runs = Runs(faults, make_pod, f"--local-config={tmp_path}", net=",".join(MANY_TYPES))
    calls = runs.record()
    helper = Roles(calls).network_helper
    check_all(runs.kill, sample([call for call in calls if call.who == helper]))
    subprocess.run(["ip", "link", "delete", "br-many"], check=True)


@pytest.mark.skipif(not (REFERENCE / "bridge").exists(), reason="containernetworking-plugins is not installed")
def test_kills_of_a_start_with_reference_plugins(make_pod: MakePod, faults: Faults, tmp_path: Path) -> None:
    """Nor with plugins of the CNI, which end with the helper."""
    networks = tmp_path / "net.d"
    networks.mkdir()
    for name in ("bridge", "host-local", "portmap"):
        (networks / name).symlink_to(REFERENCE / name)
    bridge = {
        **{"type": "bridge", "bridge": "br-kills", "isGateway": True, "ipMasq": True},
        "ipam": {"type": "host-local", "subnet": "10.78.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    configuration = {"cniVersion": "0.4.0", "name": "lan", "plugins": [bridge, portmap]}
    (networks / "lan.conflist").write_text(json.dumps(configuration))
    runs = Runs(faults, make_pod, f"--local-config={tmp_path}", net="lan")
    calls = runs.record()
    helper = Roles(calls).network_helper
    check_all(runs.kill, sample([call for call in calls if call.who == helper]))
    # The plugin leaves it to whoever comes next.
    subprocess.run(["ip", "link", "delete", "br-kills"], check=True)


@pytest.mark.parametrize("entrypoint", ["gc", "gc-many"])
def test_kills_of_gc(make_pod: MakePod, faults: Faults, entrypoint: str) -> None:
    """A second gc does what a killed one has not done, or the process of it that was at the pod."""

    def gc(under: Callable[[int], list[str]], fd: int) -> tuple[PodDirectory, subprocess.CompletedProcess[str]]:
        pod = server(make_pod)
        assert pod.run(net=NETWORKS).returncode == 0
        program = pod.entrypoint(entrypoint, from_tree=True)
        operand, cwd, text = ([pod.uuid], pod.path, "") if entrypoint == "gc" else ([], pod.path.parent, pod.uuid)
        return pod, subprocess.run(
            [*under(fd), program, *operand], cwd=cwd, input=text, capture_output=True, text=True, pass_fds=(fd,)
        )

    def kill(call: Call) -> tuple[bool, str]:
        with tempfile.TemporaryFile("w+") as log:
            pod, result = gc(lambda fd: faults.fault(fd, call, KILL), log.fileno())
            was_reached = result.returncode != 0 or result.stdout == f"{pod.uuid} {-signal.SIGKILL}\n"
        problems = collect(pod)
        return was_reached, f"{call}: {'; '.join(problems)}" if problems else ""

    with tempfile.TemporaryFile("w+") as log:
        pod, result = gc(faults.recording, log.fileno())
        assert (result.returncode, result.stderr, left_by(pod.uuid)) == (0, "", [])
        log.seek(0)
        calls = faults.read_calls(log)
    check_all(kill, sample(calls))
