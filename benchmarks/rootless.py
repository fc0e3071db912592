"""
Pods of a user without root beside the same pods of root, podman's of the same user, and the uplink program alone.

All commands come from one shell by the same change of user. Podman has the same files as its image, the kernel's
overlay, and crun.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from benchmarks.command import MINIT, Command
from benchmarks.first_instruction import since
from benchmarks.memory import private
from benchmarks.networks import own_host
from benchmarks.rootlesspeers import IMAGE, bare_network, call, import_image, podman_words
from benchmarks.table import Measure, compare, missing
from benchmarks.world import World, world
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.waiting import wait_for

RUNS = 12
WHOLE_RUNS = 8
TRANSFERS = 5
PORT = 18080
ADDRESS = "198.51.100.1"
MEBIBYTES = 256
NETWORKS = {"none": "none", "default": "slirp4netns"}
"""Networks of minit, and what podman calls the like."""

WITHOUT, OF_ROOT, PODMAN = "minit, without root", "minit, root", "podman"
FIRST_POD, POD_OF_PODMAN, ALONE = "minit, first pod of the user", "a pod of podman", "slirp4netns alone"
LIST = "without root: `minit list`"
FORWARDED = f"without root: {MEBIBYTES} MiB from a forwarded port"
OUTWARD = f"without root: {MEBIBYTES} MiB from a pod to the machine"
MEMORY = "without root: private memory"
INIT = "minit, first process of each app"
_PROCESSES = {
    INIT: "init-bench",
    "minit, keeper of the namespace": "flock",
    "minit, uplink of all pods": "minit-uplink",
    "minit, slirp4netns of all pods": "slirp4netns",
    "minit, forwarder of a pod's ports": "minit-ports",
}
_PROCESSES_OF_PODMAN = {
    "podman, pause": ("catatonit",),
    "podman, slirp4netns of a pod": ("slirp4netns",),
    "podman, forwarder of a pod's ports": ("rootlessport", "exe"),
}
_KEPT_BY_PODMAN = "catatonit"
_SLEEP = (f"{HOME}/app.aci", "--exec=/bin/sleep", "--", "1000")

_SERVER = f"dd if=/dev/zero of=/tmp/file bs=1M count={MEBIBYTES} 2>/dev/null; exec httpd -f -p 80 -h /tmp"
_REQUEST = b"GET /file HTTP/1.0\r\n\r\n"
_READ_BYTES = 1 << 20
_SECONDS = 60.0
_SENDER = r"""
#include <arpa/inet.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words)
{
    static char data[1 << 20];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, words[1], &to.sin_addr) != 1 || connect(fd, (void *)&to, sizeof(to)) != 0)
        return 1;
    for (long left = atol(words[3]) << 20; left > 0;) {
        long sent = write(fd, data, left < sizeof(data) ? left : sizeof(data));
        if (sent <= 0)
            return 1;
        left -= sent;
    }
    /* The end of a pod's network would lose bytes on their way. */
    shutdown(fd, SHUT_WR);
    return read(fd, data, 1) != 0;
}
"""

Words = Callable[..., list[str]]


def start_title(network: str) -> str:
    """Return the title of the table of first instructions."""
    return f"without root: `minit run --net={network}` to first instruction"


def whole_title(network: str) -> str:
    """Return the title of the table of whole commands."""
    return f"without root: `run --rm` as a whole, network {network}"


def main() -> None:
    """Print the tables."""
    if absent := missing("newuidmap", "slirp4netns"):
        print(f"\nwithout root: {absent} is not installed")
        return
    with world() as bench, own_host():
        source = bench.path / "send.c"
        source.write_text(_SENDER)
        subprocess.run(["cc", "-O2", "-static", "-o", bench.rootfs / "bin/send", source], check=True)
        for words in (("link", "add", "uplink0", "type", "veth"), ("link", "set", "uplink0", "up")):
            subprocess.run(["ip", *words], check=True)
        subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "uplink0"], check=True)
        root = Command(bench)
        with ordinary_user(bench, root) as user:
            absent = missing("podman", "crun")
            obstacle = f"{absent} is not installed" if absent else None
            if obstacle is None:
                import_image(bench, user)
            for network in NETWORKS:
                whole(user, network, obstacle)
            starts(user, root)
            traffic(user, obstacle)
            forwarding(user, root, obstacle)
            memory(user, obstacle)


@contextmanager
def ordinary_user(bench: World, root: Command) -> Iterator[OrdinaryUser]:
    """A user with the image and the sender at home."""
    user = OrdinaryUser(bench.path / "user")
    try:
        del user.environment["PYTHONPATH"]
        for path in (root.image, bench.rootfs / "bin/send"):
            shutil.copy(path, user.home)
            os.chown(user.home / path.name, user.uid, user.uid)
        # The first pod builds the stage1 image, and dumps the command.
        call(words_of_user(user, "run", "--rm", "--net=none", f"{HOME}/app.aci", "--exec=/bin/first"))
        yield user
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


def words_without_groups(user: OrdinaryUser, *words: str) -> list[str]:
    """Return the command line by which the user runs a `minit` command outside of the groups of the user's own."""
    line = words_of_user(user, *words)
    script = line.index("-ec") + 1
    line[script] = line[script][line[script].index("cd ") :]
    return line


def commands_of(user: OrdinaryUser, root: Command) -> dict[str, Words]:
    """Return the commands of both."""
    return {WITHOUT: partial(words_of_user, user), OF_ROOT: partial(words_of_root, user, root)}


class Holder:
    """A pod that keeps namespace and uplink of a user."""

    def __init__(self, user: OrdinaryUser) -> None:
        self._user = user
        self._pod: ExitStack | None = None

    def start(self) -> None:
        """Start the pod, unless there is the pod."""
        if self._pod is None:
            self._pod = ExitStack()
            self._pod.enter_context(detached(partial(words_of_user, self._user), *_SLEEP))

    def end(self) -> None:
        """Remove the pod, and wait until nothing of the user's runs but what podman keeps."""
        if self._pod is not None:
            self._pod.close()
            self._pod = None
        wait_for(lambda: set(self._user.processes().values()) <= {_KEPT_BY_PODMAN}, "the end of the user's processes")


@contextmanager
def held(user: OrdinaryUser) -> Iterator[Holder]:
    """The pod, which may end meanwhile."""
    holder = Holder(user)
    try:
        yield holder
    finally:
        holder.end()


@contextmanager
def detached(words: Words, *arguments: str) -> Iterator[None]:
    """A pod in the background."""
    call(words("run", "--detach", "--name=bench", *arguments))
    try:
        yield
    finally:
        call(words("rm", "--force", "bench"))


def whole(user: OrdinaryUser, network: str, obstacle: str | None) -> None:
    """Print how long the whole command takes beside podman's, for the first pod of the user and for a further one."""
    line = words_of_user(user, "run", "--rm", f"--net={network}", f"{HOME}/app.aci", "--exec=/bin/first")
    peer = podman_words(user, "run", "--rm", f"--network={NETWORKS[network]}", IMAGE, "/bin/first")
    with held(user) as holder:
        measures: dict[str, Measure | str] = {
            WITHOUT: lambda: elapsed(line, holder.start),
            FIRST_POD: lambda: elapsed(line, holder.end),
            PODMAN: obstacle or (lambda: elapsed(peer, holder.end)),
        }
        compare(whole_title(network), "ms", measures, WHOLE_RUNS)


def elapsed(line: Sequence[str], prepare: Callable[[], None] | None = None) -> float:
    """Return the milliseconds of a command, behind a preparation."""
    if prepare is not None:
        prepare()
    start = time.monotonic_ns()
    call(line)
    return (time.monotonic_ns() - start) / 1e6


def starts(user: OrdinaryUser, root: Command) -> None:
    """Print the tables of first instructions and of lists, with a pod of each."""
    commands = commands_of(user, root)
    with ExitStack() as stack:
        for words in commands.values():
            stack.enter_context(detached(words, *_SLEEP))
        for network in NETWORKS:
            measures: dict[str, Measure | str] = {each: partial(run, commands[each], network) for each in commands}
            compare(start_title(network), "ms", measures, RUNS)
        lists: dict[str, Measure | str] = {each: partial(elapsed, commands[each]("list")) for each in commands}
        compare(LIST, "ms", lists, RUNS)


def run(words: Words, network: str) -> float:
    """Return the milliseconds of the whole command to the app's first instruction."""
    line = words("run", "--rm", f"--net={network}", f"{HOME}/app.aci", "--exec=/bin/first")
    start = time.monotonic_ns()
    return since(start, call(line).partition(": ")[2])


def traffic(user: OrdinaryUser, obstacle: str | None) -> None:
    """Print how long bytes take from a pod out to the machine, beside the uplink program alone."""
    words = partial(words_of_user, user)
    with (
        detached(words, *_SLEEP),
        socket.create_server((ADDRESS, 0)) as server,
        bare_network(user) as there,
    ):
        server.settimeout(_SECONDS)
        target = (ADDRESS, str(server.getsockname()[1]), str(MEBIBYTES))
        pod = words("run", "--rm", f"{HOME}/app.aci", "--exec=/bin/send", "--", *target)
        peer = podman_words(user, "run", "--rm", IMAGE, "/bin/send", *target)
        alone = user.words([*there, f"{HOME}/send", *target])
        measures: dict[str, Measure | str] = {
            WITHOUT: lambda: received(server, pod),
            ALONE: lambda: received(server, alone),
            POD_OF_PODMAN: obstacle or (lambda: received(server, peer)),
        }
        compare(OUTWARD, "ms", measures, TRANSFERS)


def received(server: socket.socket, line: Sequence[str]) -> float:
    """Return the milliseconds of what a command sends."""
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as sender:
        connection, _ = server.accept()
        with connection:
            start = time.monotonic_ns()
            assert read_all(connection) == MEBIBYTES << 20
            taken = (time.monotonic_ns() - start) / 1e6
    assert sender.returncode == 0
    return taken


def read_all(connection: socket.socket) -> int:
    """Return how many bytes come."""
    buffer = bytearray(_READ_BYTES)
    received_bytes = 0
    while count := connection.recv_into(buffer):
        received_bytes += count
    return received_bytes


def forwarding(user: OrdinaryUser, root: Command, obstacle: str | None) -> None:
    """Print how long bytes take by a forwarded port of each, and the memory of what runs meanwhile."""
    ports = {name: PORT + number for number, name in enumerate((WITHOUT, PODMAN, OF_ROOT))}
    server = ("/bin/sh", "-c", _SERVER)
    with ExitStack() as stack:
        for name, words in commands_of(user, root).items():
            flags = (f"--publish={ports[name]}:80", f"{HOME}/app.aci", f"--exec={server[0]}", "--", *server[1:])
            stack.enter_context(detached(words, *flags))
        if obstacle is None:
            arguments = (f"--publish={ports[PODMAN]}:80", IMAGE, *server)
            stack.enter_context(detached(partial(podman_words, user), *arguments))
        measures: dict[str, Measure | str] = {name: partial(transfer, port) for name, port in ports.items()}
        if obstacle is not None:
            measures[PODMAN] = obstacle
        compare(FORWARDED, "ms", measures, TRANSFERS)


def transfer(port: int) -> float:
    """Return the milliseconds of a file by HTTP, from a server that may have to start."""

    def attempt() -> float | None:
        start = time.monotonic_ns()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(_REQUEST)
            if read_all(connection) > MEBIBYTES << 20:
                return (time.monotonic_ns() - start) / 1e6
        return None

    return wait_for(attempt, "the server")


def memory(user: OrdinaryUser, obstacle: str | None) -> None:
    """Print the memory that processes of a pod with a forwarded port have for themselves, of minit without groups."""
    port = f"--publish={PORT}:80"
    with detached(partial(words_without_groups, user), port, *_SLEEP):
        figures = {name: private_of(user, kind) for name, kind in _PROCESSES.items()}
    absent = dict.fromkeys(_PROCESSES_OF_PODMAN, obstacle)
    if obstacle is None:
        with detached(partial(podman_words, user), port, IMAGE, "/bin/sleep", "1000"):
            figures |= {name: private_of(user, *kinds) for name, kinds in _PROCESSES_OF_PODMAN.items()}
    measures: dict[str, Measure | str] = {name: lambda figure=figure: figure for name, figure in figures.items()}  # type: ignore[misc]
    compare(MEMORY, "MB", measures | {name: why for name, why in absent.items() if why is not None}, 1)


def private_of(user: OrdinaryUser, *kinds: str) -> float:
    """Return the megabytes of the user's processes with these names, of which there is one each."""
    pids = {name: pid for pid, name in user.processes().items()}
    return sum(private(pids[kind]) for kind in kinds)
