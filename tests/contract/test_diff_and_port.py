"""`minit diff` and `minit port`: what an app has changed, and the ports of the host that lead to it."""

from __future__ import annotations

import json
import os

import pytest

from tests.support.commands import Stage0

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


def say(minit: Stage0, *words: object, code: int = 0) -> str:
    """Run a command and return what it printed, or its error."""
    result = minit.call(*words)
    assert result.returncode == code, result
    return result.stdout if code == 0 else result.stderr


CHANGES = """
busybox mkdir -p /new/below /usr; echo > /new/below/file; busybox ln -s /etc/shadow /new/link
busybox rm /bin/sh; echo x > /volume/file; busybox chmod 700 /etc
"""
EXPECTED = ["C /bin", "D /bin/sh", "C /etc", "A /new", "A /new/below", "A /new/below/file", "A /new/link", "A /usr"]


@pytest.mark.parametrize("flags", [(), ("--no-overlay",), ("--no-overlay", "--private-users")], ids=str)
def test_changes(minit: Stage0, flags: tuple[str, ...]) -> None:
    """Files that an app added, changed and deleted are told while it runs and afterwards, with overlay or without."""
    words = minit.run_words(*flags, "--volume=v:/volume", minit.image(), "--exec=/bin/busybox", "--", "sleep", "100")
    with minit.running(*words) as uuid:
        assert say(minit, "diff", "--quiet", uuid).splitlines() == ["A /volume"]
        assert minit.call("enter", uuid, "/bin/sh", "-c", CHANGES).returncode == 0
        running = say(minit, "diff", uuid).splitlines()
    assert running == [*EXPECTED, "A /volume"]
    ended = json.loads(say(minit, "diff", "--format=json", uuid))
    assert [f"{change['kind']} {change['path']}" for change in ended] == running
    assert "no app" in say(minit, "diff", "--app=other", uuid, code=254)
    prepared = minit.call("prepare", minit.stage1_flag, minit.image()).stdout.strip()
    assert "is prepared" in say(minit, "diff", prepared, code=254)


def test_ports(minit: Stage0) -> None:
    """Forwarded ports of a running pod are shown as docker shows them, all or one by number or name."""
    ports = [{"name": "http", "protocol": "tcp", "port": 80, "count": 1, "socketActivated": False}]
    ports += [{"name": "rtp", "protocol": "udp", "port": 5000, "count": 3, "socketActivated": False}]
    minit.pod_flags = []
    image = minit.image(ports=ports)
    flags = ("--port=http:127.0.0.1:48080", "--port=rtp:45000")
    with minit.running(*minit.run_words(*flags, image, "--exec=/bin/busybox", "--", "sleep", "100")) as uuid:
        assert say(minit, "port", uuid) == "80/tcp -> 127.0.0.1:48080\n5000-5002/udp -> 0.0.0.0:45000-45002\n"
        for word in ("80", "80/tcp", "http"):
            assert say(minit, "port", uuid, word) == "127.0.0.1:48080\n"
        assert 'leads to port "81"' in say(minit, "port", uuid, "81", code=254)
        [http, _] = json.loads(say(minit, "port", "--format=json", uuid))
        assert (http["pod_port"], http["host_ip"], http["host_port"], http["count"]) == (80, "127.0.0.1", 48080, 1)
    assert "is exited" in say(minit, "port", uuid, code=254)
