"""The configuration of the plugin dhcp: what a server is told, and what is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from minit.base.errors import ManifestError, NetworkError
from minit.manifest.reader import Node
from minit.network.builtin import dhcp
from minit.network.builtin.call import Call
from minit.network.builtin.dhcp import read_identity
from minit.network.dhcp.message import Identity
from minit.network.protocol import Request

MAC = bytes.fromhex("525400123456")


def call(args: str = "", **ipam: object) -> Call:
    """Return a request with this configuration of the address manager."""
    config: dict[str, object] = {"name": "net", "type": "macvlan", "ipam": {"type": "dhcp", **ipam}}
    request = Request(container_id="pod", namespace="/nowhere", interface="eth0", args=args)
    return Call(config=Node(config, None, "net.conf"), request=request, delegate=_delegate)


def _delegate(*_: Any) -> NoReturn:
    raise AssertionError("it has nobody to ask")


def test_what_a_server_is_told() -> None:
    """Without any word it is the attachment's name, and the wish for routers and mask."""
    assert read_identity(call(), MAC) == Identity(mac=MAC, identifier=b"\0pod/net/eth0", wanted=b"\3\1")


def test_options_of_the_configuration() -> None:
    """Options are numbers or names, wishes come before the usual ones, and an argument before a value."""
    provided = [
        {"option": "host-name", "value": "web", "fromArg": "NAME"},
        {"option": "60", "value": "vendor", "fromArg": "OTHER"},
        {"option": "user-class", "fromArg": "OTHER"},
        {"option": "dhcp-client-identifier", "value": "me"},
    ]
    identity = read_identity(call("X;NAME=a=b", provide=provided, request=[{"option": "121"}, {"option": "1"}]), MAC)
    assert identity == Identity(mac=MAC, identifier=b"me", wanted=b"\x79\1\3", options=((12, b"a=b"), (60, b"vendor")))
    assert read_identity(call(request=[{"skipDefault": True}, {"option": "6"}]), MAC).wanted == b"\6"


@pytest.mark.parametrize(
    ("ipam", "message"),
    [
        (
            {"request": [{"option": "hostname"}]},
            r"ipam.request\[0\].option: expected the number of an option, or one of",
        ),
        ({"request": [{"option": "0"}]}, r"ipam.request\[0\].option: expected the number of an option"),
        ({"request": [{"option": "256"}]}, r"ipam.request\[0\].option: expected the number of an option"),
        ({"request": [{"option": 3}]}, r"ipam.request\[0\].option: expected a string"),
        ({"provide": [{"value": "x"}]}, r"ipam.provide\[0\].option: expected a string"),
        (
            {"provide": [{"option": "53", "value": "x"}]},
            r"expected an option that is not the protocol's own, got \"53\"",
        ),
        (
            {"provide": [{"option": "12", "value": "ü" * 128}]},
            r"ipam.provide\[0\]: expected a value of at most 255 bytes, got ",
        ),
        ({"daemonSocketPath": 1}, r"ipam.daemonSocketPath: expected a string, got 1"),
    ],
)
def test_what_is_wrong_is_named(ipam: dict[str, object], message: str) -> None:
    """A wrong value is one line with file, key and the expected value."""
    with pytest.raises(ManifestError, match=f"^net.conf: .*{message}"):
        read_identity(call("", **ipam), MAC)


def test_an_address_cannot_be_asked_for() -> None:
    """A wish that only the server could grant is refused before it is asked."""
    with pytest.raises(NetworkError, match="^CNI_ARGS: IP: the DHCP server chooses the address$"):
        dhcp.add(call("IP=192.0.2.7"))
