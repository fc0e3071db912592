"""The kinds of links that the kernel of this machine can make."""

from __future__ import annotations

import subprocess

import pytest

from minit.network.netlink.messages import OPTIONS
from tests.support.networks import own_network


def lacking_kinds() -> list[str]:
    """Return those of the built-in plugins' kinds that the kernel has not, nor a module of."""
    with own_network():
        subprocess.run(["ip", "link", "add", "below", "type", "veth", "peer", "name", "far"], check=True)
        return [kind for kind in OPTIONS if not _can_make(kind)]


def need_kind(kind: str) -> None:
    """Skip the test if the kernel has no links of a kind."""
    if kind in lacking_kinds():
        pytest.skip("the kernel has no links of that kind")


def _can_make(kind: str) -> bool:
    below = () if kind == "dummy" else ("link", "below")
    number = ("id", "7") if kind == "vlan" else ()
    command = ["ip", "link", "add", *below, "name", "probe", "type", kind, *number]
    if subprocess.run(command, capture_output=True).returncode:
        return False
    subprocess.run(["ip", "link", "delete", "probe"], check=True)
    return True
