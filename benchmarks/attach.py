"""
Attaching: how fast output passes a sidecar on its way to clients, against conmon, dtach and socat.

Each peer has the same source, which writes to its stdout, and the same client. There are no pods: what is measured is
the process between the two. How much processor time it takes itself hardly depends on what else the machine does.
"Nothing between" is the source with its client at the other end of its pipe or terminal: the least that is possible.
"""

from __future__ import annotations

import io
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.table import Measure, compare, missing
from minit.iottymux.logfile import Log, PlainLog
from minit.iottymux.mux import SUPERVISOR
from minit.iottymux.ring import APP_PIPE_BYTES, enlarge_pipe
from minit.iottymux.sidecar import run_sidecar
from minit.linux.messages import socket_pair
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.process import ProcessPlan
from minit.plan.streams import StreamsPlan
from minit.podfiles import paths
from minit.supervisor.output.streams import Attachable
from tests.support.attached import Session

RUNS = 3
_PIPE_BYTES = 256 << 20
_TTY_BYTES = 16 << 20
_LATENCY_ROUNDS = 2000
_CROWD = 1000
_STOPPED = 10
_CROWD_BYTES = 8 << 20
_CROWD_PAIRS = 7

# Waits for a byte, then writes; a conmon calls it as its runtime.
_SOURCE = """\
import os, sys, tty
go, size, chunk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if os.isatty(1):
    tty.setraw(1)
fd = os.open(go, os.O_RDONLY)
os.read(fd, 1)
data = (b"x" * 63 + b"\\n") * (chunk // 64)
while size > 0:
    size -= os.write(1, data)
os.read(fd, 1)
"""


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as directory:
        bench = _Bench(Path(directory))
        no_conmon = missing("conmon")
        for clients in (1, 4):
            measures: dict[str, Measure | str] = {
                "minit": lambda: bench.minit("stream", clients),  # noqa: B023
                "conmon": no_conmon or (lambda: bench.conmon(clients, log=False)),  # noqa: B023
                "conmon with log": no_conmon or (lambda: bench.conmon(clients, log=True)),  # noqa: B023
                "plain relay in Python": lambda: bench.relay(clients),  # noqa: B023
            }
            if clients == 1:
                measures["socat"] = missing("socat") or bench.socat
                measures["nothing between"] = bench.direct_pipe
            bench.compare(f"pipe to {clients} client(s)", measures)
        bench.compare(
            "pipe to a log and one client",
            {
                "minit, k8s-plain": lambda: bench.minit("stream", 1, log=True),
                "conmon": no_conmon or (lambda: bench.conmon(1, log=True)),
            },
        )
        bench.compare(
            "terminal to one client",
            {
                "minit": lambda: bench.minit("tty", 1),
                "dtach": missing("dtach") or bench.dtach,
                "nothing between": bench.direct_terminal,
            },
        )
        compare(
            "idle, one way, from the app to a client",
            "us",
            {"minit": bench.minit_latency, "socat": missing("socat") or bench.socat_latency},
            RUNS,
        )
        bench.compare_crowds()


class _Bench:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path / "source.py"
        self.source.write_text(_SOURCE)
        self.go = path / "go"
        os.mkfifo(self.go)
        self.buffer = bytearray(1 << 20)
        self.spent_ms = 0.0

    def compare(self, title: str, measures: dict[str, Measure | str]) -> None:
        """Print a table of the time that passes, and one of the processor time of the process between."""
        spent: dict[str, list[float]] = {name: [] for name in measures}

        def noted(name: str, measure: Measure) -> Measure:
            def run() -> float:
                figure = measure()
                spent[name].append(self.spent_ms)
                return figure

            return run

        timed = {name: each if isinstance(each, str) else noted(name, each) for name, each in measures.items()}
        compare(title, "ms per GB", timed, RUNS)
        again: dict[str, Measure | str] = {
            name: each if isinstance(each, str) else spent[name].pop for name, each in measures.items()
        }
        compare(f"{title}: its processor time", "ms per GB", again, RUNS)

    def compare_crowds(self) -> None:
        """Print how much of its speed a source keeps when some of many clients do not read."""
        shares: list[float] = []
        spent: list[float] = []
        for _ in range(_CROWD_PAIRS):
            # Before and after, since the machine is not as fast at one time as at another.
            (before, least), (stopped, more), (after, least_too) = (
                (self.crowd(_CROWD - _STOPPED, each), self.spent_ms) for each in (0, _STOPPED, 0)
            )
            shares.append((before + after) / 2 / stopped)
            spent.append((least + least_too) / 2 / more)
        title = f"source with {_CROWD - _STOPPED} clients that read, and {_STOPPED} that do not"
        print(f"\n| {title} | min | median | max |")
        print("|---|---|---|---|")
        for name, figures in (("speed kept", shares), ("the same by the sidecar's processor time", spent)):
            print(f"| {name} | {min(figures):.0%} | {median(figures):.0%} | {max(figures):.0%} |")

    def minit(self, mode: str, clients: int, *, log: bool = False) -> float:
        """Return milliseconds for a GB."""
        size = _PIPE_BYTES if mode == "stream" else _TTY_BYTES
        name = "stdout" if mode == "stream" else "tty-out"
        with self.served(mode, log=log) as served, self.running(served.end, size):
            sessions = [Session(served.directory, [name], policy="block") for _ in range(clients)]
            figure = self.measure([session.streams[name] for session in sessions], size, pid=served.sidecar)
            for session in sessions:
                session.close()
        return figure

    def relay(self, clients: int) -> float:
        """Return milliseconds for a GB through reads and writes."""
        reader, writer = os.pipe()
        pairs = [socket.socketpair() for _ in range(clients)]
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            for ours, _ in pairs:
                ours.close()
            while data := os.read(reader, 1 << 20):
                for _, theirs in pairs:
                    theirs.sendall(data)
            os._exit(0)
        with self.running(writer, _PIPE_BYTES):
            os.close(reader)
            os.close(writer)
            figure = self.measure([ours for ours, _ in pairs], _PIPE_BYTES, pid=pid)
        os.waitpid(pid, 0)
        for ours, theirs in pairs:
            ours.close()
            theirs.close()
        return figure

    def direct_pipe(self) -> float:
        """Return milliseconds for a GB."""
        reader, writer = os.pipe()
        enlarge_pipe(writer, APP_PIPE_BYTES)
        return self.direct(reader, writer, _PIPE_BYTES)

    def direct_terminal(self) -> float:
        """Return milliseconds for a GB."""
        master, slave = os.openpty()
        return self.direct(master, slave, _TTY_BYTES)

    def direct(self, reader: int, writer: int, size: int) -> float:
        """Return milliseconds for a GB that is read where it comes from."""
        with self.running(writer, size), open(self.go, "wb", buffering=0) as go:
            os.close(writer)
            begun = time.monotonic()
            go.write(b"x")
            left = size
            while left > 0:
                left -= os.readv(reader, [self.buffer])
            figure = time.monotonic() - begun
        os.close(reader)
        self.spent_ms = 0.0
        return figure * 1000 * (1 << 30) / size

    def socat(self) -> float:
        """Return milliseconds for a GB."""
        with self.socat_client() as (writer, client, pid), self.running(writer, _PIPE_BYTES):
            return self.measure([client], _PIPE_BYTES, pid=pid)

    def conmon(self, clients: int, *, log: bool) -> float:
        """Return milliseconds for a GB, through the socket that conmon makes for a container."""
        bundle = Path(tempfile.mkdtemp(dir=self.path))
        runtime = bundle / "runtime"
        runtime.write_text(
            '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = --pid-file ] && file=$2; shift; done\n'
            f"{sys.executable} {self.source} {self.go} {_PIPE_BYTES} 65536 </dev/null &\nprintf $! > $file\n"
        )
        runtime.chmod(0o755)
        command = ["conmon", *("-c", "c", "-u", "c", "-n", "c", "-r"), str(runtime)]
        command += ["-b", str(bundle), "-p", f"{bundle}/pid"]
        command += ["--full-attach", "--sync", "-l", f"k8s-file:{bundle}/log" if log else "none"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        attach = bundle / "attach"
        while not attach.exists():
            time.sleep(0.01)
        sockets = []
        for _ in range(clients):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.connect(str(attach))
            sockets.append(client)
        time.sleep(0.1)
        # A byte in front of each packet tells the stream.
        with open(self.go, "wb", buffering=0) as go:
            figure = self.measure(sockets, _PIPE_BYTES, go, prefix=1, pid=process.pid)
        for client in sockets:
            client.close()
        process.wait()
        subprocess.run(["rm", "-r", bundle], check=True)
        return figure

    def dtach(self) -> float:
        """Return milliseconds for a GB, as dtach's own client writes it to a terminal."""
        where = self.path / "dtach"
        command = [sys.executable, str(self.source), str(self.go), str(_TTY_BYTES), "65536"]
        subprocess.run(["dtach", "-n", where, "-E", "-z", *command], check=True)
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(where))
        # A packet of dtach's protocol: type 1 attaches.
        client.sendall(bytes([1, 0]) + bytes(8))
        with open(self.go, "wb", buffering=0) as go:
            master = int(subprocess.check_output(["pgrep", "-f", f"dtach -n {where} "], text=True).split()[0])
            figure = self.measure([client], _TTY_BYTES, go, pid=master)
        # It removes its socket when it ends, which must not be the next one's.
        while client.recv_into(self.buffer):
            pass
        client.close()
        pidfd = os.pidfd_open(master) if Path(f"/proc/{master}").exists() else None
        if pidfd is not None:
            select.select([pidfd], [], [])
            os.close(pidfd)
        return figure

    def minit_latency(self) -> float:
        """Return microseconds."""
        with self.served("stream") as served, Session(served.directory, ["stdout"]) as session:
            return self.latency(served.end, session.streams["stdout"])

    def socat_latency(self) -> float:
        """Return microseconds."""
        with self.socat_client() as (writer, client, _):
            return self.latency(writer, client)

    def crowd(self, reading: int, stopped: int) -> float:
        """Return milliseconds for a GB that a source needs while so many clients read and others do not."""
        with self.served("stream") as served:
            idle = [Session(served.directory, ["stdout"]) for _ in range(stopped)]
            ready, done = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                self.read_in_turn(served.directory, reading, ready[1])
            os.read(ready[0], 1)
            with self.running(served.end, _CROWD_BYTES, chunk=4096), open(self.go, "wb", buffering=0) as go:
                begun, spent = time.monotonic(), processor_seconds(served.sidecar)
                go.write(b"x")
                while served.streams.counters()["bytes_out"] < _CROWD_BYTES:
                    time.sleep(0.001)
                figure = time.monotonic() - begun
                self.spent_ms = (processor_seconds(served.sidecar) - spent) * 1000
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            for fd in (*ready, *done):
                os.close(fd)
            for session in idle:
                session.close()
        return figure * 1000 * (1 << 30) / _CROWD_BYTES

    def read_in_turn(self, directory: Path, count: int, ready: int) -> None:
        """Be so many clients, for ever; the app waits for them, or what they do not get would cost nothing."""
        sessions = [Session(directory, ["stdout"], policy="block") for _ in range(count)]
        os.write(ready, b"x")
        poller = select.epoll()
        for session in sessions:
            poller.register(session.streams["stdout"].fileno(), select.EPOLLIN)
        by_fd = {session.streams["stdout"].fileno(): session.streams["stdout"] for session in sessions}
        while True:
            for fd, _ in poller.poll():
                by_fd[fd].recv_into(self.buffer)

    # The common part.

    @contextmanager
    def served(self, mode: str, *, log: bool = False) -> Iterator[_Served]:
        """The streams of an app and their sidecar, as PID 1 makes them."""
        served = _Served(self.path, mode, log)
        try:
            yield served
        finally:
            served.close()

    @contextmanager
    def socat_client(self) -> Iterator[tuple[int, socket.socket, int]]:
        """The write end of a pipe that socat copies to a socket, that socket's other side, and the pid of socat."""
        reader, writer = os.pipe()
        where = self.path / "socat"
        process = subprocess.Popen(["socat", "-b", "1048576", "-u", "-", f"UNIX-LISTEN:{where}"], stdin=reader)
        os.close(reader)
        client = socket.socket(socket.AF_UNIX)
        while True:
            try:
                client.connect(str(where))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.01)
        try:
            yield writer, client, process.pid
        finally:
            os.close(writer)
            client.close()
            process.kill()
            process.wait()
            where.unlink(missing_ok=True)

    @contextmanager
    def running(self, output: int, size: int, chunk: int = 65536) -> Iterator[subprocess.Popen[bytes]]:
        """The source, which writes to `output` when it is told to, and is there until the end."""
        command = [sys.executable, str(self.source), str(self.go), str(size), str(chunk)]
        process = subprocess.Popen(command, stdout=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def measure(
        self, clients: Sequence[socket.socket], size: int, go: io.FileIO | None = None, prefix: int = 0, pid: int = 0
    ) -> float:
        """
        Start the source and return how long it takes until every client has all, in milliseconds for a GB.

        The processor time of process `pid` meanwhile is in `spent_ms`. Each packet begins with `prefix` bytes of no
        output.
        """
        left = {client.fileno(): size for client in clients}
        poller = select.epoll()
        by_fd = {client.fileno(): client for client in clients}
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        opened = open(self.go, "wb", buffering=0) if go is None else go
        try:
            begun, spent = time.monotonic(), processor_seconds(pid)
            opened.write(b"x")
            while left:
                for fd, _ in poller.poll():
                    got = by_fd[fd].recv_into(self.buffer)
                    if not got:
                        raise RuntimeError("the output ended too early")
                    left[fd] -= got - prefix
                    if left[fd] <= 0:
                        poller.unregister(fd)
                        del left[fd]
            per_gb = 1000 * (1 << 30) / size
            self.spent_ms = (processor_seconds(pid) - spent) * per_gb
            return (time.monotonic() - begun) * per_gb
        finally:
            if go is None:
                opened.close()

    def latency(self, writer: int, client: socket.socket) -> float:
        """Return the median time in microseconds from a write to its arrival, with pauses in between."""
        figures = []
        for _ in range(_LATENCY_ROUNDS):
            time.sleep(0.0002)
            begun = time.monotonic_ns()
            os.write(writer, b"x\n")
            client.recv(16)
            figures.append(time.monotonic_ns() - begun)
        return sorted(figures)[len(figures) // 2] / 1000


def processor_seconds(pid: int) -> float:
    """Return how long a process has run, proc_pid_schedstat; 0 for none."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        return 0.0


class _Served:
    """The streams of an app; `end` is what the app writes to."""

    def __init__(self, path: Path, mode: str, log: bool) -> None:
        paths.STAGE1_IOTTYMUX = str(path)
        self.directory = path / "web"
        self.streams = Attachable("web")
        stdin, stderr = (mode, mode) if mode == "tty" else ("null", "null")
        ends = self.streams.open(
            AppSpec(
                name="web",
                process=ProcessPlan(candidates=("/x",)),
                confinement=Confinement(),
                streams=StreamsPlan(stdin=stdin, stdout=mode, stderr=stderr),
            )
        )
        [self.end] = ends.values()
        self.streams.supervisor, theirs = socket_pair()
        descriptors = {**self.streams.held, SUPERVISOR: theirs.fileno()}
        self.sidecar = os.fork()
        if self.sidecar == 0:
            os.close(self.end)
            directory = os.open(path, os.O_RDONLY)
            plain = PlainLog("plain.log", directory) if log else None
            run_sidecar("web", 7, [], Log("web", directory), attachable=descriptors, plain_log=plain)
            os._exit(0)
        theirs.close()

    def close(self) -> None:
        """End the sidecar."""
        os.kill(self.sidecar, signal.SIGKILL)
        os.waitpid(self.sidecar, 0)
        os.close(self.end)
        self.streams.close()
