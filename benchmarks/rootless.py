"""Pods of a user without root beside the same pods of root, once the namespace is there, and a forwarded port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.command import MINIT, Command
from benchmarks.first_instruction import since
from benchmarks.networks import own_host
from benchmarks.table import Measure, compare
from benchmarks.world import World, world
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.waiting import wait_for

RUNS = 20
TRANSFERS = 5
PORT = 18080
_MEGABYTES = 256
_SERVER = f"dd if=/dev/zero of=/tmp/file bs=1M count={_MEGABYTES} 2>/dev/null; exec httpd -f -p 80 -h /tmp"
_REQUEST = b"GET /file HTTP/1.0\r\n\r\n"
_READ_BYTES = 1 << 20

Words = Callable[..., list[str]]


def main() -> None:
    """Print the tables."""
    with world() as bench, own_host():
        root = Command(bench)
        with ordinary_user(bench, root) as user:
            # The same change of user before both.
            commands: dict[str, Words] = {
                "without root": partial(words_of_user, user),
                "root": partial(words_of_root, user, root),
            }
            for network in ("none", "default"):
                measure(f"without root: `minit run --net={network}` to first instruction", commands, RUNS, run, network)
            measure("without root: `minit list`", commands, RUNS, show)
        forwarding(bench, root)


def measure(title: str, commands: dict[str, Words], runs: int, take: Callable[..., float], *arguments: str) -> None:
    """Compare one measure of both users."""
    measures: dict[str, Measure | str] = {name: partial(take, words, *arguments) for name, words in commands.items()}
    compare(title, "ms", measures, runs)


@contextmanager
def ordinary_user(bench: World, root: Command) -> Iterator[OrdinaryUser]:
    """A user with the image at home, whose namespace and uplink stay as long as a pod runs."""
    user = OrdinaryUser(bench.path / "user")
    try:
        del user.environment["PYTHONPATH"]
        shutil.copy(root.image, user.home)
        os.chown(user.home / root.image.name, user.uid, user.uid)
        # The first one builds the stage1 image, and dumps the command.
        for words in (["--rm"], ["--detach", "--name=held"]):
            command = words_of_user(user, "run", *words, f"{HOME}/{root.image.name}", "--exec=/bin/sleep", "--")
            call([*command, "0" if words == ["--rm"] else "1000"])
        yield user
        call(words_of_user(user, "rm", "--force", "held"))
    finally:
        user.remove()


def words_of_user(user: OrdinaryUser, *words: str) -> list[str]:
    """Return the command line by which the user runs a `minit` command."""
    return user.words([MINIT, *words])


def words_of_root(user: OrdinaryUser, root: Command, *words: str) -> list[str]:
    """Return the command line by which root runs the command in the user's place."""
    ids = f"--reuid={user.uid} --regid={user.uid}"
    line = user.words(root.words(*words))
    return [word.replace(ids, "--reuid=0 --regid=0") for word in line]


def call(words: Sequence[str]) -> str:
    """Run words to their end, and return the output."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(words: Words, network: str) -> float:
    """Return the milliseconds of the whole command to the app's first instruction."""
    line = words("run", "--rm", f"--net={network}", f"{HOME}/app.aci", "--exec=/bin/first")
    start = time.monotonic_ns()
    return since(start, call(line).partition(": ")[2])


def show(words: Words) -> float:
    """Return the milliseconds of a list of pods."""
    line = words("list")
    start = time.monotonic_ns()
    call(line)
    return (time.monotonic_ns() - start) / 1e6


def forwarding(bench: World, root: Command) -> None:
    """Print how long bytes take by a forwarded port of each."""
    user = OrdinaryUser(bench.path / "forwarding")
    try:
        shutil.copy(root.image, user.home)
        os.chown(user.home / root.image.name, user.uid, user.uid)
        commands = {"without root": partial(words_of_user, user), "root": partial(words_of_root, user, root)}
        ports = {name: PORT + number for number, name in enumerate(commands)}
        for name, words in commands.items():
            flags = ["--detach", "--name=server", f"--publish={ports[name]}:80", f"{HOME}/app.aci"]
            call(words("run", *flags, "--exec=/bin/sh", "--", "-c", _SERVER))
        measures: dict[str, Measure | str] = {name: partial(transfer, port) for name, port in ports.items()}
        compare(f"without root: {_MEGABYTES} MiB from a forwarded port", "ms", measures, TRANSFERS)
        for words in commands.values():
            call(words("rm", "--force", "server"))
    finally:
        user.remove()


def transfer(port: int) -> float:
    """Return the milliseconds of a file by HTTP."""
    wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the server")
    buffer = bytearray(_READ_BYTES)
    start = time.monotonic_ns()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(_REQUEST)
        received = 0
        while count := connection.recv_into(buffer):
            received += count
    assert received > _MEGABYTES << 20
    return (time.monotonic_ns() - start) / 1e6
