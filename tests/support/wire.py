"""A pair of links: `client` here, `server` with addresses in a network namespace of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from minit.network.namespace import open_namespace, run_in_namespace

NAMESPACE = "minit-dhcp"

T = TypeVar("T")


def run(*command: str) -> str:
    """Run a program and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def lay_wire() -> Iterator[None]:
    """Have both for the time of a with block."""
    run("ip", "netns", "add", NAMESPACE)
    run("ip", "link", "add", "client", "type", "veth", "peer", "name", "server", "netns", NAMESPACE)
    run("ip", "-n", NAMESPACE, "-6", "address", "add", "2001:db8::1/64", "dev", "server", "nodad")
    for words in ("address add 192.0.2.1/24 dev server", "link set server up"):
        run("ip", "-n", NAMESPACE, *words.split())
    yield
    run("ip", "netns", "del", NAMESPACE)
    with suppress(subprocess.CalledProcessError):
        run("ip", "link", "del", "client")


def at_the_server(make: Callable[[], T]) -> T:
    """Return what is made in the server's namespace."""
    namespace = open_namespace(f"/run/netns/{NAMESPACE}")
    try:
        return run_in_namespace(namespace, make)
    finally:
        os.close(namespace)
