"""Pods whose addresses a DHCP server leases: what `run` makes of it, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.network.dhcp.podlease import LeaseRecord
from tests.support.dhcpserver import ADDRESS, BRIDGE, DhcpServer
from tests.support.hostnet import leftovers
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.stage0_world import World
from tests.support.waiting import wait_for

RECORDS = Path("/run/minit/dhcp/office")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DhcpServer]:
    """A server on a bridge of the host, and a network `office` of pods on it; nothing of pods is left at the end."""
    (tmp_path / "net.d").mkdir()
    ipam = {"type": "dhcp", "request": [{"option": "6"}, {"option": "15"}]}
    config = {"cniVersion": "1.0.0", "name": "office", "type": "bridge", "bridge": BRIDGE, "ipam": ipam}
    (tmp_path / "net.d/office.conf").write_text(json.dumps(config))
    server = DhcpServer(tmp_path)
    yield server
    server.remove()
    assert (leftovers(), keepers()) == ([], [])


def keepers() -> list[str]:
    """Return the records of leases, one for each process that keeps one."""
    return sorted(os.listdir(RECORDS)) if RECORDS.exists() else []


def collect(pod: PodDirectory, tmp_path: Path) -> None:
    """Run `gc`, twice, which has nothing to say."""
    for _ in range(2):
        result = pod.call("gc", f"--local-config={tmp_path}", pod.uuid)
        assert (result.returncode, result.stderr) == (0, "")


def test_a_pod_with_a_lease(make_pod: MakePod, server: DhcpServer, tmp_path: Path) -> None:
    """The pod has address, route and name servers; after `gc` another pod gets the same address."""
    server.start(f"router {ADDRESS}", "dns 192.0.2.53", "domain lan")
    for _ in range(2):
        pod = make_pod({"a": shell("ip -4 address show eth0; ip route; cat /etc/resolv.conf")})
        result = pod.run(f"--local-config={tmp_path}", net="office")
        assert result.returncode == 0, result.stderr
        assert "inet 192.0.2.20/24" in result.stdout
        assert f"default via {ADDRESS} dev eth0" in result.stdout
        assert "nameserver 192.0.2.53" in result.stdout and "domain lan" in result.stdout
        [network] = json.loads((pod.path / "net-info.json").read_text())
        assert (network["ip"], network["mask"]) == ("192.0.2.20", "255.255.255.0")
        assert keepers() == [f"{pod.uuid}:eth0"]
        collect(pod, tmp_path)
        assert (leftovers(), keepers()) == ([], [])


def test_no_server_answers(make_pod: MakePod, server: DhcpServer, tmp_path: Path) -> None:
    """A signal ends the wait at once, and nothing is left."""
    pod = make_pod({"a": shell("true")})
    process = pod.start(f"--local-config={tmp_path}", net="office")
    wait_for(lambda: keepers(), "the wait for a server")
    process.send_signal(signal.SIGTERM)
    result = pod.finish(process)
    assert result.returncode == 254
    assert re.fullmatch(r"stage1: failed to setup network: interrupted by signal 15\n", result.stderr)
    collect(pod, tmp_path)


def test_a_launcher_that_is_killed(make_pod: MakePod, server: DhcpServer, tmp_path: Path) -> None:
    """The pod ends, and `gc` ends the process that keeps its lease."""
    server.start()
    pod = make_pod({"a": shell("while :; do sleep 1; done")})
    process = pod.start(f"--local-config={tmp_path}", net="office")
    pod.wait_ready()
    process.kill()
    pod.finish(process)
    wait_for(lambda: pod.call("gc", f"--local-config={tmp_path}", pod.uuid).returncode == 0, "the end of the pod")
    collect(pod, tmp_path)


def test_by_the_command(world: World, stage1_image: Path, server: DhcpServer, tmp_path: Path) -> None:
    """`run` returns though the lease is kept, `list` has the address, and `rm` removes pod, mounts and lease."""
    server.start(f"router {ADDRESS}")
    local = f"--local-config={tmp_path}"
    result = world.minit(local, "run", "--quiet", f"--stage1-path={stage1_image}", "--net=office", world.app)
    assert result.returncode == 0
    [uuid] = world.pods("run")
    assert "office:ip4=192.0.2.20" in world.minit("list").stdout
    [record] = keepers()
    assert record == f"{uuid}:eth0"
    with LeaseRecord(str(RECORDS / record)) as opened:
        keeper = opened.keeper()
    assert keeper is not None
    assert {os.readlink(f"/proc/{keeper}/cwd"), os.readlink(f"/proc/{keeper}/fd/2")} == {"/", "/dev/null"}
    world.minit(local, "rm", uuid)
    assert (keepers(), world.pods("run")) == ([], [])
    wait_for(lambda: not os.path.exists(f"/proc/{keeper}"), "the first process, which reaps orphans")
