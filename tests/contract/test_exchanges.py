"""
Two released versions of minit that take turns in running pods under load.

Witnesses talk to the apps all the time, so whatever disturbs an app, the output or a client shows as a word that is
lost, said twice or out of order.
"""

from __future__ import annotations

import http.client
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import minit as package
from tests.contract.test_health import health
from tests.support.campaign import LONG
from tests.support.commands import Stage0
from tests.support.laterstage1 import VERSION
from tests.support.pods import MakePod, PodDirectory, app_section, handlers, shell
from tests.support.processes import children_of, descriptors_of, named, program_of, programs_of_readers, status_of
from tests.support.sandbox import Sandbox
from tests.support.terminal import Terminal
from tests.support.waiting import TIMEOUT_SECONDS, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

EXCHANGES = 100 if LONG else 2
CLIENTS = 1000
# Of a pod whose memory must not grow; the first program made anew may cost some.
LIFE_SECONDS = 4 * 3600 if LONG else 5
EXECUTION_SECONDS = 10 if LONG else 1
MOST_GROWTH_KB_PER_HOUR = 100
# Of one moment beside another.
SOME_DESCRIPTORS, SOME_KILOBYTES = 4, 300
WEB, ECHO = 8080, 8090
STREAMS = {f"coreos.com/rkt/stage2/{name}": "stream" for name in ("stdin", "stdout")}
TERMINAL = {f"coreos.com/rkt/stage2/{name}": "tty" for name in ("stdin", "stdout", "stderr")}
AGAIN = {"minit/restart": "on-failure", "minit/restart-delay": "100ms", "minit/restart-max-delay": "200ms"}
ANSWERS = 'while read x; do echo "o:$x"; done'
CHECK = "echo begin >> /tmp/log; sleep 0.1; echo end >> /tmp/log"
UNTIL_END = "while [ ! -e /tmp/end ]; do sleep 0.05; done"


def annotated(script: str, annotations: dict[str, str], **fields: Any) -> dict[str, Any]:
    """Return an app with annotations that runs a script."""
    return shell(script, annotations=[{"name": name, "value": value} for name, value in annotations.items()], **fields)


def checked(kind: str, script: str = UNTIL_END, **check: object) -> dict[str, Any]:
    """Return an app with a check of which a single failure is seen."""
    action = {} if kind == "readiness" else {"action": "none"}
    value = {kind: {"interval": "200ms", "timeout": "30s", "failures": 1, **action, **check}}
    return annotated(script, {"minit/health": json.dumps(value)})


def restarted() -> dict[str, Any]:
    """Return an app with handlers that logs the number of its run, and fails, but is ready most of the time."""
    script = "echo x >> /tmp/runs; echo $(wc -l < /tmp/runs); sleep 0.5; [ -e /tmp/end ] || exit 7"
    events = handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))
    return annotated(script, AGAIN, eventHandlers=events)


def counting() -> dict[str, Any]:
    """Return an app that logs numbers."""
    return shell("n=0; while [ ! -e /tmp/end ]; do n=$((n+1)); echo $n; sleep 0.02; done")


def listens(name: str, port: int, *command: str) -> dict[str, Any]:
    """Return an app with a port."""
    return app_section(*command, ports=[{"name": name, "protocol": "tcp", "port": port}])


APPS = {
    **{f"restarted-{number}": restarted() for number in range(3)},
    **{f"streams-{number}": annotated(ANSWERS, STREAMS) for number in range(2)},
    **{f"terminal-{number}": annotated(f"busybox stty -echo; {ANSWERS}", TERMINAL) for number in range(2)},
    **{f"counting-{number}": counting() for number in range(3)},
    "command": checked("liveness", exec=["/bin/sh", "-c", CHECK]),
    "http": checked("liveness", http={"port": WEB, "path": "/passwd"}),
    "tcp": checked("readiness", tcp={"port": WEB}),
    "web": listens("web", WEB, "/bin/busybox", "httpd", "-f", "-p", str(WEB), "-h", "/etc"),
    "echo": listens("echo", ECHO, "/bin/busybox", "nc", "-ll", "-p", str(ECHO), "-e", "/bin/cat"),
    **{f"idle-{number}": shell(UNTIL_END) for number in range(5)},
}
PORTS = [{"name": "web", "hostPort": WEB}, {"name": "echo", "hostPort": ECHO}]


class Witness:
    """A thread that does something again and again, with the number of what went well before."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self.count = 0
        self._error: BaseException | None = None
        self._ends = threading.Event()
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ends.wait(0.02):
                self._work(self.count)
                self.count += 1
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise what went wrong until now."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Have the thread end, and raise what went wrong."""
        self._ends.set()
        self._thread.join()
        self.check()
        assert self.count > 0


def wait_attachable(pod: PodDirectory, app: str) -> Path:
    """Return the directory of an app's sockets when they are there."""
    wait_for((pod.stage1 / "rkt/iottymux" / app / "endpoints").exists, f"the endpoints of {app}")
    return pod.stage1 / "rkt/iottymux" / app


@contextmanager
def attached(pod: PodDirectory, app: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Attach to an app as rkt does; the client ends by itself in the with block."""
    words = [pod.entrypoint("attach"), "--action=auto-attach", f"--app={app}", "--debug=false"]
    with subprocess.Popen(words, cwd=pod.path, **options) as client:
        try:
            yield client
        except BaseException:
            client.kill()
            raise
        assert client.wait(TIMEOUT_SECONDS) == 0


def talking(said: socket.socket, heard: socket.socket, answer: bytes) -> Callable[[int], None]:
    """Return what says a number by one socket, and hears the answer, a line with the number, by another."""
    lines = heard.makefile("rb", buffering=0)

    def talk(number: int) -> None:
        said.sendall(b"%d\n" % number)
        assert lines.readline() == answer % number

    return talk


@contextmanager
def minit_client(pod: PodDirectory, app: str) -> Iterator[Callable[[int], None]]:
    """Say a number to an app by the client of minit, and hear it."""
    wait_attachable(pod, app)
    with attached(pod, app, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None and client.stdout is not None
        said, heard = client.stdin, client.stdout

        def talk(number: int) -> None:
            said.write(b"%d\n" % number)
            said.flush()
            assert heard.readline() == b"o:%d\n" % number

        yield talk
        said.close()
        assert heard.read() == b""


@contextmanager
def rkt_client(pod: PodDirectory, app: str) -> Iterator[Callable[[int], None]]:
    """Say a number to an app by the sockets of rkt, and hear it."""
    directory = wait_attachable(pod, app)
    with connected(directory / "sock-stdin") as said, connected(directory / "sock-stdout") as heard:
        yield talking(said, heard, b"o:%d\n")
        said.shutdown(socket.SHUT_WR)
        assert heard.recv(1) == b""


@contextmanager
def terminal_client(pod: PodDirectory, app: str) -> Iterator[Callable[[int], None]]:
    """Say a number to an app at a terminal, and hear it."""
    wait_attachable(pod, app)
    with Terminal() as terminal, attached(pod, app, **terminal.options):
        terminal.read_until(lambda: terminal.is_raw)

        def talk(number: int) -> None:
            terminal.type(b"%d\r" % number)
            shown = terminal.expect(rb"^(?:%d\r\n)?o:%d\r\n" % (number, number))
            assert number == 0 or shown.start() == 0

        yield talk
        terminal.type(b"\x10\x11")
        terminal.expect(rb"^attach: detached\r\n")


@contextmanager
def rkt_terminal(pod: PodDirectory, app: str) -> Iterator[Callable[[int], None]]:
    """Say a number to an app at a terminal by the socket of rkt, and hear it."""
    with connected(wait_attachable(pod, app) / "sock-tty") as link:
        yield talking(link, link, b"o:%d\r\n")


@contextmanager
def lasting_connection(address: str) -> Iterator[Callable[[int], None]]:
    """Say a number over one connection to a port, and hear it."""
    with socket.create_connection((address, ECHO), TIMEOUT_SECONDS) as link:
        yield talking(link, link, b"%d\n")


@contextmanager
def getting(address: str) -> Iterator[Callable[[int], None]]:
    """Get a file from the server of a pod by the port of the pod, and by that of the host."""

    def get(number: int) -> None:
        client = http.client.HTTPConnection(("127.0.0.1", address)[number % 2], WEB, timeout=TIMEOUT_SECONDS)
        client.request("GET", "/passwd")
        answer = client.getresponse()
        assert (answer.status, answer.read()[:5]) == (200, b"root:")
        client.close()

    yield get


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    """Connect to a socket by a path of any length."""
    directory = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as link:
        # With a timeout a full backlog is an error, EAGAIN.
        link.connect(f"/proc/self/fd/{directory}/{path.name}")
        link.settimeout(TIMEOUT_SECONDS)
        os.close(directory)
        yield link


@contextmanager
def witnesses(*talks: AbstractContextManager[Callable[[int], None]]) -> Iterator[list[Witness]]:
    """Have witnesses at work in the with block."""
    with ExitStack() as stack:
        found = []
        for talk in talks:
            found.append(Witness(stack.enter_context(talk)))
            stack.callback(found[-1].end)
        go_on(found, [0] * len(found))
        yield found


def go_on(found: Sequence[Witness], counts: Sequence[int]) -> None:
    """Wait until each of the witnesses has done more than it had."""

    def has_each() -> bool:
        for witness in found:
            witness.check()
        return all(witness.count > count + 1 for witness, count in zip(found, counts))

    wait_for(has_each, "the witnesses")


class Exchange:
    """Gives a pod the later version, the first one, and so on."""

    def __init__(self, minit: Stage0, later: Path, first: Path) -> None:
        self._minit = minit
        self._versions = ((later, VERSION), (first, package.__version__))
        self._count = 0

    def __call__(self, data: Path, uuid: str) -> None:
        """Give the pod in a data directory the version that it has not."""
        (image, version), (_, before) = self._versions[:: -1 if self._count % 2 else 1]
        result = self._minit.call("upgrade", "--quiet", f"--dir={data}", f"--stage1-path={image}", uuid)
        assert (result.returncode, result.stdout, result.stderr) == (0, f'"{uuid}" {before} -> {version}\n', "")
        self._count += 1


@pytest.fixture
def exchange(tmp_path: Path, stage1_image: Path, later_stage1: Path) -> Exchange:
    """The command that gives one pod of any stage0 another version."""
    return Exchange(Stage0([sys.executable, "-m", "minit"], tmp_path, stage1_image), later_stage1, stage1_image)


def is_exchanged(launcher: int, supervisor: int) -> bool:
    """Tell whether a launcher, its helper of checks, and what reads the apps' output run the program of PID 1."""
    helpers = named(children_of(launcher), "minit-health")
    programs = [program_of(pid) for pid in (launcher, *helpers)] + [*programs_of_readers(supervisor).values()]
    return len(helpers) == 1 and {*programs} == {program_of(supervisor)}


def kept_state(pod: PodDirectory) -> dict[str, object]:
    """Return what is known of the apps that go on, but for the counts of their clients."""
    apps = pod.ask({"op": "state"})["apps"]
    return {app["name"]: {**app, "attached": None} for app in apps if not app["name"].startswith("restarted")}


def numbers_logged(pod: PodDirectory, app: str) -> list[int]:
    """Return the numbers in the log of an app."""
    words = [line.split(b" ", 3)[3] for line in pod.log(app).splitlines()]
    return [int(word) for word in words if word.isdigit()]


def finish_counting(pod: PodDirectory, apps: Iterable[str]) -> None:
    """Have apps end, each of which has logged every number once, in order."""
    for app in apps:
        pod.file(app, "/tmp/end").touch()
    for app in apps:
        wait_for(lambda: pod.status(app) == 0, f"the end of {app}")  # noqa: B023
        numbers = numbers_logged(pod, app)
        assert numbers == [*range(1, len(numbers) + 1)], app


def resources(*pids: int) -> list[tuple[int, int]]:
    """Return the number of descriptors and the kilobytes of memory of processes."""
    return [(len(descriptors_of(pid)), int(status_of(pid)["RssAnon"].split()[0])) for pid in pids]


def whole_checks(log: Path) -> int:
    """Return how many checks a log has, none of which was broken off or overtaken."""
    words = log.read_text().split()
    assert words[::2] == ["begin"] * len(words[::2])
    assert words[1::2] == ["end"] * len(words[1::2])
    return len(words) // 2


@pytest.mark.timeout(7200 if LONG else 300)
def test_a_pod_of_twenty_apps(make_pod: MakePod, exchange: Exchange, tmp_path: Path) -> None:
    """Apps, clients, checks, handlers, restarts and ports notice nothing, and no descriptor or memory is left over."""
    assert len(APPS) == 20
    pod = make_pod(APPS, ports=PORTS)
    with open(tmp_path / "said", "wb") as said:
        process = pod.start(net="default", stdout=said, stderr=said)
    pod.wait_ready()
    address = json.loads((pod.path / "net-info.json").read_text())[0]["ip"]
    wait_for(lambda: str(kept_state(pod)).count("'healthy': True") == 3, "the first checks")
    before = kept_state(pod)
    clients = (minit_client(pod, "streams-0"), rkt_client(pod, "streams-1"), terminal_client(pod, "terminal-0"))
    with witnesses(*clients, rkt_terminal(pod, "terminal-1"), lasting_connection(address), getting(address)) as found:
        for _ in range(EXCHANGES):
            counts = [witness.count for witness in found]
            exchange(pod.data, pod.uuid)
            wait_for(lambda: is_exchanged(process.pid, pod.pid), "all processes of minit")
            go_on(found, counts)
        assert kept_state(pod) == before
    counting = [name for name in APPS if name.startswith(("restarted", "counting"))]
    finish_counting(pod, counting)
    wait_for(lambda: whole_checks(pod.file("command", "/tmp/log")), "a check")
    # With nothing going on that comes and goes.
    used = []
    for _ in range(2):
        exchange(pod.data, pod.uuid)
        wait_for(lambda: is_exchanged(process.pid, pod.pid), "all processes of minit")
        # What PID 1 reads when first asked.
        kept_state(pod)
        used.append(resources(pod.pid, process.pid))
    for pid, (descriptors, kilobytes), (_, kilobytes_after) in zip((pod.pid, process.pid), *used):
        # Sockets of clients, and links of sidecars, may be about to be closed.
        wait_for(lambda: resources(pid)[0][0] <= descriptors, "no more descriptors")  # noqa: B023
        assert kilobytes_after <= kilobytes + 200
    numbered = [event["seq"] for event in pod.events()]
    assert numbered == [*range(numbered[0], numbered[-1] + 1)]
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
    assert "stage1: " not in (tmp_path / "said").read_text()
    assert pod.gc().returncode == 0


@pytest.mark.timeout(7200 if LONG else 300)
def test_apps_that_come_and_go(make_pod: MakePod, exchange: Exchange) -> None:
    """Apps with handlers and checks are added, started, stopped and removed meanwhile; others go on."""
    sandbox = Sandbox(make_pod)
    pod = sandbox.pod
    check = ["/bin/sh", "-c", f"{CHECK}; [ ! -e /tmp/bad ]"]
    apps = {"restarted": restarted(), "counting": counting(), "checked": checked("liveness", exec=check)}
    for name, section in {**apps, "streams": annotated(ANSWERS, STREAMS)}.items():
        assert (sandbox.add(name, section).returncode, sandbox.start(name).returncode) == (0, 0)

    def live(number: int) -> None:
        name = f"a{number}"
        script = f"trap 'sleep 0.1; exit 6' TERM; {UNTIL_END}"
        events = handlers(pre_start=("/bin/sleep", "0.2"), post_stop=("/bin/sleep", "0.2"))
        section = {**checked("readiness", script, exec=["/bin/true"]), "eventHandlers": events}
        add = partial(sandbox.add, section=section)
        for step in (add, sandbox.start, sandbox.stop, sandbox.start, sandbox.remove):
            # rkt reads the manifest anew for each program.
            pod.entrypoints = json.loads((pod.path / "stage1/manifest").read_text())["annotations"]
            result = step(name)
            assert (result.returncode, result.stdout) == (0, "")
        assert sandbox.traces(name) == []

    with witnesses(minit_client(pod, "streams"), nullcontext(live)) as found:
        for _ in range(EXCHANGES):
            exchange(pod.data, pod.uuid)
            for witness in found:
                witness.check()
        go_on(found, [witness.count for witness in found])
    pod.file("checked", "/tmp/bad").touch()
    wait_for(lambda: health(pod, "checked")["liveness"]["healthy"] is False, "a bad result")
    assert whole_checks(pod.file("checked", "/tmp/log"))
    finish_counting(pod, ("restarted", "counting"))
    assert sandbox.end().returncode == 0


def listen(sockets: Sequence[socket.socket], all_heard: Sequence[bytearray]) -> None:
    """Read from all sockets to their ends."""
    with selectors.DefaultSelector() as selector:
        for connection, heard in zip(sockets, all_heard):
            selector.register(connection, selectors.EVENT_READ, (connection, heard))
        while selector.get_map():
            for key, _ in selector.select():
                connection, heard = key.data
                data = connection.recv(1 << 16)
                heard += data
                if not data:
                    selector.unregister(connection)


@pytest.mark.timeout(7200 if LONG else 300)
def test_a_thousand_clients(make_pod: MakePod, exchange: Exchange) -> None:
    """Each of many clients of one app hears every word once, while versions are exchanged and PID 1 begins anew."""
    pod = make_pod({"streams": annotated(ANSWERS, STREAMS)})
    process = pod.start()
    pod.wait_ready()
    directory = wait_attachable(pod, "streams")
    with ExitStack() as stack:
        said = stack.enter_context(connected(directory / "sock-stdin"))
        heard = [stack.enter_context(connected(directory / "sock-stdout")) for _ in range(CLIENTS + 1)]
        wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["attached"]["clients"] == len(heard) + 1, "all clients")
        talker, *listeners = heard
        # A client that takes nothing for five seconds would miss words.
        all_heard = [bytearray() for _ in listeners]
        reader = threading.Thread(target=listen, args=(listeners, all_heard), daemon=True)
        reader.start()
        witness = Witness(talking(said, talker, b"o:%d\n"))
        stack.callback(witness.end)
        for _ in range(EXCHANGES):
            go_on([witness], [witness.count])
            exchange(pod.data, pod.uuid)
            go_on([witness], [witness.count])
            assert pod.ask({"op": "reexecute"}) == {"ok": True}
        wait_for(lambda: {*programs_of_readers(pod.pid).values()} == {program_of(pod.pid)}, "the readers")
        go_on([witness], [witness.count])
        witness.end()
        said.shutdown(socket.SHUT_WR)
        reader.join()
    words = b"".join(b"o:%d\n" % number for number in range(witness.count))
    assert all(heard_by_one == words for heard_by_one in all_heard)
    assert pod.finish(process).returncode == 0


@pytest.mark.timeout(LIFE_SECONDS + 600)
def test_a_long_life(make_pod: MakePod, tmp_path: Path) -> None:
    """Nothing grows in a pod where apps are started again, checked, attached to and logged, and PID 1 begins anew."""
    slow = {**AGAIN, "minit/restart-delay": "2s", "minit/restart-max-delay": "2s"}
    script = "echo x >> /tmp/runs; echo $(wc -l < /tmp/runs); exit 7"
    apps = {
        "restarted": annotated(
            script, slow, eventHandlers=handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))
        ),
        "streams": annotated(ANSWERS, STREAMS),
        "checked": checked("liveness", exec=["/bin/true"], interval="2s"),
    }
    pod = make_pod(apps)
    with open(tmp_path / "said", "wb") as said:
        process = pod.start(stdout=said, stderr=said)
    pod.wait_ready()
    used: list[list[tuple[int, int]]] = []
    until = time.monotonic() + LIFE_SECONDS
    with witnesses(minit_client(pod, "streams")) as found:
        while time.monotonic() < until:
            assert pod.ask({"op": "reexecute"}) == {"ok": True}
            time.sleep(EXECUTION_SECONDS)
            found[0].check()
            readers = named(children_of(pod.pid), "minit-spawner", "iottymux-stream")
            used.append(resources(pod.pid, process.pid, *readers))
            with open(tmp_path / "memory", "a") as file:
                print(*used[-1], file=file)
    middle = used[len(used) // 2]
    for (descriptors, kilobytes), (descriptors_after, kilobytes_after) in zip(middle, used[-1]):
        assert descriptors_after <= descriptors + SOME_DESCRIPTORS
        assert kilobytes_after <= kilobytes + SOME_KILOBYTES + MOST_GROWTH_KB_PER_HOUR * LIFE_SECONDS / 2 / 3600
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
    assert "stage1: " not in (tmp_path / "said").read_text()
