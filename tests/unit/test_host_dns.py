"""minit.network.setup: which name servers of the host a pod reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from minit.manifest.networkconfig import parse_network_config
from minit.network.addresses import parse_destination
from minit.network.protocol import Dns, Result, Route
from minit.network.setup import families_out, find_host_dns
from minit.plan.networks.networkplan import PlannedNetwork


def files(tmp_path: Path, *texts: str | None) -> list[str]:
    """Return the paths of files with these texts, in order; one without a text is not there."""
    paths = [tmp_path / str(index) for index in range(len(texts))]
    for path, text in zip(paths, texts):
        if text is not None:
            path.write_text(text)
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    ("texts", "families", "servers"),
    [
        (["nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n"], {4}, ("192.0.2.1",)),
        (["nameserver 127.0.0.53\n", "nameserver 192.0.2.2\n"], {4}, ("192.0.2.2",)),
        (["nameserver ::1\n", None, "nameserver 192.0.2.3\n"], {4}, ("192.0.2.3",)),
        (["nameserver 2001:db8::1\nnameserver 192.0.2.1\n"], {4}, ("192.0.2.1",)),
        (["nameserver 2001:db8::1\nnameserver 192.0.2.1\n"], {6}, ("2001:db8::1",)),
        (["nameserver 2001:db8::1\nnameserver 192.0.2.1\n"], {4, 6}, ("2001:db8::1", "192.0.2.1")),
        (["nameserver fe80::1%eth0\nnameserver fe80::1\nnameserver 0.0.0.0\nnameserver x\n"], {4, 6}, None),
        ([None, None], {4}, None),
        (["search example.com\n"], {4}, None),
    ],
)
def test_servers(
    tmp_path: Path,
    texts: list[str | None],
    families: set[int],
    servers: tuple[str, ...] | None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """They are of the first file with any that the pod reaches; a host with others only is worth a line."""
    found = find_host_dns(frozenset(families), files(tmp_path, *texts))
    assert (None if found is None else found.nameservers) == servers
    has_others = servers is None and any(text and "nameserver" in text for text in texts)
    assert ("--dns=ADDRESS" in capfd.readouterr().err) is has_others


def test_what_goes_with_them(tmp_path: Path) -> None:
    """Search domains and options are those of the same file."""
    stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch stub\n"
    found = find_host_dns(frozenset({4}), files(tmp_path, stub, "nameserver 192.0.2.1\nsearch a b\n"))
    assert found == Dns(nameservers=("192.0.2.1",), search=("a", "b"))


@pytest.mark.parametrize(
    ("routes", "restricted", "families"),
    [
        (["0.0.0.0/0"], False, {4}),
        (["0.0.0.0/0", "::/0"], False, {4, 6}),
        (["10.0.0.0/8"], False, set()),
        (["0.0.0.0/0"], True, set()),
        ([], False, set()),
    ],
)
def test_ways_out(routes: list[str], restricted: bool, families: set[int]) -> None:
    """A way out is a default route of a network that is not restricted."""
    text = b'{"name": "n", "type": "ptp", "restricted": %s}' % (b"true" if restricted else b"false")
    network = PlannedNetwork(config=parse_network_config(text, "n.conf", "/d"), args="", interface="eth0")
    result = Result(routes=tuple(Route(destination=parse_destination(route)) for route in routes))
    assert families_out([network], [result]) == families
