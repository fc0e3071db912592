"""Networks that a user creates: pods on them, their subnets on the host, and their removal."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.commands import Stage0
from tests.support.hostnet import LEASES, ip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

WAIT = ("--exec=/bin/sh", "--", "-c", "exec busybox sleep 1000")


class Networks:
    """The commands about networks, with the files in a directory of the test's."""

    def __init__(self, minit: Stage0) -> None:
        self.minit = minit
        self.files = minit.local_config / "net.d"

    def call(self, *words: object, code: int = 0) -> str:
        """Run `minit network`, and return what was said beside the result, or else the result."""
        result = self.minit.call("network", *words)
        assert result.returncode == code, result.stderr
        return result.stderr or result.stdout

    def inspect(self, name: str) -> dict[str, Any]:
        """Return the facts about a network."""
        [found] = json.loads(self.call("inspect", name))
        return dict(found)

    def run(self, name: str, *words: object) -> str:
        """Run a pod with a name in the background and return the UUID."""
        minit = self.minit
        result = minit.call("run", minit.stage1_flag, "--detach", f"--name={name}", *words, minit.image(), *WAIT)
        assert result.returncode == 0, result.stderr
        return str(result.stdout.strip())


@pytest.fixture
def networks(minit: Stage0) -> Networks:
    """No networks but the image's."""
    return Networks(minit)


def test_pods_on_created_networks(networks: Networks) -> None:
    """Pods reach each other by names and aliases, and a network goes with its bridge when the last pod has ended."""
    minit = networks.minit
    assert networks.call("create", "front", "--label=tier=web") == "front\n"
    networks.call("create", "back", "--internal", "--ipv6")
    bad = minit.call("run", minit.stage1_flag, "--net=back", "--network-alias=a b", minit.image())
    assert 'annotation minit/pod-aliases: "a b" cannot be the name of a pod' in bad.stderr
    web = networks.run("web", "--net=front", "--net=back")
    db = networks.run(
        "db", "--net=back", *(f"--network-alias={name}" for name in ("sql", "back:only-here", "front:nowhere"))
    )
    for name, code in (("db", 0), ("sql", 0), ("only-here", 0), ("nowhere", 1)):
        assert minit.call("enter", "web", "busybox", "ping", "-c1", "-W9", name).returncode == code
    apart = minit.call("enter", "db", "busybox", "cat", "/etc/hosts").stdout
    front, back = networks.inspect("front"), networks.inspect("back")
    [[member], members] = front["pods"], back["pods"]
    assert (member["name"], member["running"], front["labels"]) == ("web", True, {"tier": "web"})
    assert member["addresses"][0] not in apart
    assert sorted((each["name"], len(each["addresses"])) for each in members) == [("db", 2), ("web", 2)]
    assert "default" not in minit.call("enter", "db", "busybox", "ip", "route").stdout
    assert networks.call("rm", "back", code=254).startswith('rm: network "back" is in use: stop these pods first: ')
    assert networks.call("prune", "--force") == ""
    for pod in (web, db):
        assert minit.call("stop", "--wait", pod).returncode == 0
    assert networks.call("rm", "back") == "back\n"
    assert [link for link in ip("link") if link["ifname"] == back["link"]] == []
    assert minit.call("rm", web, db).returncode == 0
    assert networks.call("prune", "--force") == "front\n"
    assert [link for link in ip("link") if link["ifname"] == front["link"]] == []
    assert not any((LEASES / name).exists() for name in ("front", "back"))
    assert [*networks.files.iterdir()] == []


def test_pods_of_another_data_directory(networks: Networks) -> None:
    """A network with a lease of an unknown pod stays, and the error has the pod's id."""
    networks.call("create", "front")
    leases = LEASES / "front"
    leases.mkdir(parents=True)
    (leases / "10.180.0.2").write_text("stranger\r\neth0")
    assert "another data directory: stranger" in networks.call("rm", "front", code=254)
    (leases / "10.180.0.2").unlink()
    networks.call("rm", "front")


@pytest.mark.host_root("a user adds no links to the machine's network")
def test_subnets_are_free(networks: Networks) -> None:
    """A created network has a subnet that no route of the host and no other network has, nor the image's."""
    networks.call("create", "one")
    [first] = networks.inspect("one")["subnets"]
    os.system("ip link add taken type bridge && ip addr add 10.180.1.9/24 dev taken && ip link set taken up")
    try:
        networks.call("create", "two")
        assert "10.180.1.0/24" in networks.call("create", "three", "--subnet=10.180.1.128/25", code=254)
    finally:
        os.system("ip link del taken")
    assert (first["subnet"], networks.inspect("two")["subnets"][0]["subnet"]) == ("10.180.0.0/24", "10.180.2.0/24")
    assert "172.16.28.0/24" in networks.call("create", "three", "--subnet=172.16.0.0/12", code=254)
    networks.call("rm", "one", "two")


def test_networks_of_an_administrator(networks: Networks) -> None:
    """They are listed, a broken file is named, and no command removes or replaces either."""
    networks.files.mkdir(parents=True)
    (networks.files / "10-lan.conf").write_text('{"name": "lan", "type": "bridge", "ipam": {"subnet": "10.1.0.0/24"}}')
    (networks.files / "11-bad.conf").write_text("{")
    listed = networks.minit.call("network", "ls")
    assert listed.stdout.splitlines()[1].split() == [
        "lan",
        "bridge",
        "10.1.0.0/24",
        "0",
        str(networks.files / "10-lan.conf"),
    ]
    assert "11-bad.conf" in listed.stderr
    assert "10-lan.conf by hand" in networks.call("rm", "lan", code=254)
    assert "10-lan.conf" in networks.call("create", "lan", code=254)
    assert sorted(path.name for path in networks.files.iterdir()) == ["10-lan.conf", "11-bad.conf"]
