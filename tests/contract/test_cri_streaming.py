"""minit cri: the streams of commands, containers and ports, by a client of our own, on a pod that runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.streaming.spdyframes import CANCEL, RstStream
from minit.stage0.pods.poddirectory import open_pod
from minit.stage0.pods.podstatus import read_pid_to_enter
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon
from tests.support.networks import within
from tests.support.spdyclient import V4, SpdyClient, exit_code, spdy_client, upgrade
from tests.support.websocketclient import websocket_client

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
LARGE_BYTES = 1 << 18
PORTFORWARD = ("portforward.k8s.io",)
IMAGE = "example.com/busybox:1.0"


class Pod:
    """A sandbox of a daemon, with containers that tests make."""

    def __init__(self, daemon: Daemon, logs: Path) -> None:
        self.daemon = daemon
        self.sandbox = api.SandboxId()
        self.main = ""
        self._logs = logs
        self._count = 0

    async def make(self) -> None:
        """Make it, and a container that waits."""
        metadata = api.PodSandboxMetadata(name="web", namespace="default", uid="5e5b")
        config = api.PodSandboxConfig(metadata=metadata, log_directory=str(self._logs))
        async with self.daemon.node() as node:
            self.sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            self.main = await self.start(node, "exec sleep 1000")

    @asynccontextmanager
    async def container(self, script: str, **fields: object) -> AsyncIterator[str]:
        """Have another container."""
        async with self.daemon.node() as node:
            container = await self.start(node, script, **fields)
        yield container
        async with self.daemon.node() as node:
            await node.ask("RemoveContainer", api.ContainerId(container_id=container))

    async def start(self, node: CriNode, script: str, **fields: object) -> str:
        """Start another container, and return its id."""
        self._count += 1
        config = api.ContainerConfig(
            metadata=api.ContainerMetadata(name=f"c{self._count}"),
            image=api.ImageSpec(image=IMAGE),
            command=["/bin/sh", "-c", script],
            log_path=f"{self._count}.log",
            **fields,  # type: ignore[arg-type]
        )
        request = api.CreateContainerRequest(pod_sandbox_id=self.sandbox.pod_sandbox_id, config=config)
        container = await node.ask("CreateContainer", request)
        await node.ask("StartContainer", container)
        return str(container.container_id)

    @contextmanager
    def listening(self, address: str) -> Iterator[trio.socket.SocketType]:
        """Listen at an address of the pod, at any port."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with open_pod(self.daemon.minit.data, self.sandbox.pod_sandbox_id) as pod:
            pid = read_pid_to_enter(pod)
        listening = within(f"/proc/{pid}/ns/net", lambda: socket.create_server((address, 0), family=family))
        listening.setblocking(False)
        with trio.socket.from_stdlib_socket(listening) as server:
            yield server


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[Pod]:
    """A running sandbox with a container."""
    with served_pod(tmp_path_factory.mktemp("streams"), stage1_image) as pod:
        yield pod


@pytest.fixture
def own_pod(tmp_path: Path, stage1_image: Path) -> Iterator[Pod]:
    """The same for one test, which may end its daemon."""
    with served_pod(tmp_path, stage1_image) as pod:
        yield pod


@contextmanager
def served_pod(root: Path, stage1_image: Path) -> Iterator[Pod]:
    """Make a daemon, and a sandbox with a container, and remove them at the end."""
    minit = Stage0([sys.executable, "-m", "minit"], root, stage1_image)
    assert minit.call("fetch", minit.image()).returncode == 0
    daemon = Daemon(minit, root / "cri.sock")
    daemon.start()
    pod = Pod(daemon, root / "logs")
    trio.run(pod.make)
    yield pod
    daemon.end()
    for directory in minit.data.glob("pods/run/*"):
        minit.call("stop", "--force", "--wait", directory.name)
    minit.clean_up()


@asynccontextmanager
async def executing(pod: Pod, *words: str, **fields: bool) -> AsyncIterator[SpdyClient]:
    """Have a command run in the container of the pod."""
    async with pod.daemon.node() as node:
        request = api.ExecRequest(container_id=pod.main, cmd=words, **fields)
        url = (await node.ask("Exec", request)).url
    async with spdy_client(url) as client:
        yield client


@pytest.mark.trio
async def test_a_command_has_all_three_streams(pod: Pod) -> None:
    """What is sent is the command's input, both outputs come back as they are, and the status has its exit code."""
    script = "read line; echo got $line; cat; echo wrong >&2; exit 7"
    with trio.fail_after(PATIENCE_SECONDS):
        async with executing(pod, "sh", "-c", script, stdin=True, stdout=True, stderr=True) as client:
            error, stdin, stdout, stderr = await client.open_all("error", "stdin", "stdout", "stderr")
            await client.write(stdin, b"one\n")
            await stdout.until(b"got one\n")
            await client.write(stdin, b"\0\xff", fin=True)
            assert await stdout.whole() == b"got one\n\0\xff"
            assert await stderr.whole() == b"wrong\n"
            assert exit_code(await error.whole()) == 7
            await client.is_over.wait()
            assert client.was_told_to_go


@pytest.mark.trio
async def test_a_command_that_cannot_be_entered(pod: Pod) -> None:
    """Why a container cannot be entered is a failure of the protocol; a program that is not there is an exit code."""
    [directory] = pod.daemon.minit.data.glob("pods/run/*")
    with trio.fail_after(PATIENCE_SECONDS):
        # Without which a command has no group for its limit.
        (directory / "subcgroup").rename(directory / "moved")
        async with executing(pod, "sh", "-c", "exit 254", stdout=True, stderr=True) as client:
            error, stdout, stderr = await client.open_all("error", "stdout", "stderr")
            status = json.loads(await error.whole())
            assert (status["status"], status["reason"], status["code"]) == ("Failure", "InternalError", 500)
            assert f"cannot enter container {pod.main}: " in status["message"] and "subcgroup" in status["message"]
            assert (await stdout.whole(), await stderr.whole()) == (b"", b"")
        (directory / "moved").rename(directory / "subcgroup")
        for words, code in (("sh", "-c", "exit 254"), 254), (("no-such-program",), 127), (("/etc",), 126):
            async with executing(pod, *words, stdout=True, stderr=True) as client:
                error, _, stderr = await client.open_all("error", "stdout", "stderr")
                assert exit_code(await error.whole()) == code
                assert (words[0].encode() in await stderr.whole()) == (code != 254)


@pytest.mark.trio
async def test_a_command_has_a_terminal(pod: Pod) -> None:
    """The terminal has the client's size, before the command begins and after a change, and its keys are signals."""
    traps = "trap 'stty size; echo changed' WINCH; trap 'echo stopped; exit 3' INT"
    script = f"{traps}; stty size; while :; do sleep 1; done"
    with trio.fail_after(PATIENCE_SECONDS):
        async with executing(pod, "sh", "-c", script, stdin=True, stdout=True, tty=True) as client:
            error, stdin, stdout, resize = await client.open_all("error", "stdin", "stdout", "resize")
            await client.write(resize, b'{"Width":132,"Height":43}\n')
            await stdout.until(b"43 132\r\n")
            await client.write(resize, b'{"Width": "x"}{"Width":0,"Height":0}{"Width":80,')
            await client.write(resize, b'"Height":25}')
            await stdout.until(b"25 80\r\nchanged\r\n")
            await client.write(stdin, b"\3")
            await stdout.until(b"stopped\r\n")
            assert exit_code(await error.whole()) == 3


@pytest.mark.trio
async def test_a_command_ends_with_its_client(pod: Pod) -> None:
    """Of a command whose client goes nothing is left, though it ignores all signals and has gone to the background."""
    marks = "9871001", "9871002"
    script = f"trap '' TERM HUP INT; setsid sleep {marks[0]} & echo ready; sleep {marks[1]}; wait"
    with trio.fail_after(PATIENCE_SECONDS):
        async with executing(pod, "sh", "-c", script, stdin=True, stdout=True) as client:
            _, _, stdout = await client.open_all("error", "stdin", "stdout")
            await stdout.until(b"ready\n")
            while not all(map(running, marks)):
                await trio.sleep(0.05)
        while any(map(running, marks)):
            await trio.sleep(0.05)


def running(words: str) -> list[str]:
    """Return the command lines of processes that have these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


@pytest.mark.trio
async def test_a_client_that_never_reads(pod: Pod) -> None:
    """It holds up its command, and neither the daemon, whose memory does not grow, nor another command."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.daemon.node() as node:
            request = api.ExecRequest(container_id=pod.main, cmd=["sh", "-c", "yes 9871003"], stdout=True)
            status, _, stream = await upgrade((await node.ask("Exec", request)).url)
            assert status == 101
            async with stream:
                client = SpdyClient(stream)
                await client.open_all("error", "stdout")
                await trio.lowlevel.wait_readable(stream.socket)
                before = pod.daemon.memory_bytes()
                async with executing(pod, "sh", "-c", "echo other", stdout=True) as other:
                    error, stdout = await other.open_all("error", "stdout")
                    assert await stdout.whole() == b"other\n"
                    assert exit_code(await error.whole()) == 0
                assert running("yes 9871003")
                assert pod.daemon.memory_bytes() < before + (8 << 20)
            while running("yes 9871003"):
                await trio.sleep(0.05)


@pytest.mark.trio
async def test_a_command_that_never_reads(pod: Pod) -> None:
    """Its client's input waits with the client, whose end is noticed all the same."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with executing(pod, "sh", "-c", "echo ready; exec sleep 9871004", stdin=True, stdout=True) as client:
            _, stdin, stdout = await client.open_all("error", "stdin", "stdout")
            await stdout.until(b"ready\n")
            before = pod.daemon.memory_bytes()
            with trio.move_on_after(1) as patience:
                for _ in range(1000):
                    await client.write(stdin, bytes(1 << 20))
            assert patience.cancelled_caught
            assert pod.daemon.memory_bytes() < before + (8 << 20)
        while running("sleep 9871004"):
            await trio.sleep(0.05)


@pytest.mark.trio
async def test_tokens(pod: Pod) -> None:
    """A stream is there for one client only, with a protocol that both know; a guessed one is not there."""
    async with pod.daemon.node() as node:
        request = api.ExecRequest(container_id=pod.main, cmd=["sh", "-c", "true"], stdout=True)
        with trio.fail_after(PATIENCE_SECONDS):
            url, other, third = [(await node.ask("Exec", request)).url for _ in range(3)]
            assert url.startswith("http://127.0.0.1:")
            for asked in ({"cmd": ["a\0b"], "stdout": True}, {"cmd": ["a"]}, {"stdout": True}):
                with pytest.raises(CallFailed, match="NUL|at least one|expected a command"):
                    await node.ask("Exec", api.ExecRequest(container_id=pod.main, **asked))
            for guessed in (url[:-1], url[:-1] + ("A" if url[-1] != "A" else "B"), url.rpartition("/")[0] + "/"):
                assert (await answer(guessed))[0] == 404
            assert (await answer(url, method="PUT"))[0] == 405
            assert (await answer(url))[0] == 101
            assert (await answer(url))[0] == 404
            assert (await answer(other, []))[0] == 400
            status, headers = await answer(third, ["v9.channel.k8s.io"])
            assert status == 403
            assert headers["x-accepted-stream-protocol-versions"].split(", ") == [*V4]


async def answer(url: str, protocols: Sequence[str] = V4, method: str = "POST") -> tuple[int, dict[str, str]]:
    """Return the answer to the request for a connection, which is closed then."""
    status, headers, stream = await upgrade(url, protocols, method)
    await stream.aclose()
    return status, headers


@pytest.mark.trio
async def test_silent_clients(pod: Pod) -> None:
    """A thousand connections that say nothing keep nobody out, and their end leaves nothing in the daemon."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.daemon.node() as node, AsyncExitStack() as silent:
            url = (
                await node.ask("Exec", api.ExecRequest(container_id=pod.main, cmd=["sh", "-c", "true"], stdout=True))
            ).url
            port = int(url.split("/")[2].rpartition(":")[2])
            before = pod.daemon.count_descriptors()
            for _ in range(1000):
                stream = await silent.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                await stream.send_all(b"POST /exec/")
            async with spdy_client(url) as client:
                error, _ = await client.open_all("error", "stdout")
                assert exit_code(await error.whole()) == 0
            assert pod.daemon.count_descriptors() < before + 200
            await silent.aclose()
            while pod.daemon.count_descriptors() > before:
                await trio.sleep(0.05)


@pytest.mark.trio
async def test_garbage(pod: Pod) -> None:
    """Frames that are none end their connection, with the command on it, and nothing else."""
    with trio.fail_after(PATIENCE_SECONDS):
        for garbage in (b"\x80\x02\0\1\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\x80\3\0\1\0\0\0\x0c" + bytes(12)):
            async with executing(pod, "sh", "-c", "echo ready; exec sleep 9871005", stdout=True) as client:
                _, stdout = await client.open_all("error", "stdout")
                await stdout.until(b"ready\n")
                await client.stream.send_all(garbage)
                await client.is_over.wait()
            while running("sleep 9871005"):
                await trio.sleep(0.05)


@asynccontextmanager
async def attached(pod: Pod, container: str, **fields: bool) -> AsyncIterator[SpdyClient]:
    """Attach to a container."""
    async with pod.daemon.node() as node:
        url = (await node.ask("Attach", api.AttachRequest(container_id=container, **fields))).url
    async with spdy_client(url) as client:
        yield client


ECHO = "while read line; do echo got $line; echo err $line >&2; done; echo over"


@pytest.mark.trio
async def test_attaching_to_streams(pod: Pod) -> None:
    """Clients, one after another, have the input of a container, which stays open; each sees both of its outputs."""
    asked = {"stdin": True, "stdout": True, "stderr": True}
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.container(ECHO, stdin=True) as container, pod.daemon.node() as node:
            for word in (b"one", b"two"):
                async with (
                    attached(pod, container, **asked) as client,
                    attached(pod, container, stdout=True) as onlooker,
                ):
                    _, seen = await onlooker.open_all("error", "stdout")
                    _, stdin, stdout, stderr = await client.open_all("error", "stdin", "stdout", "stderr")
                    await client.write(stdin, word + b"\n", fin=True)
                    await stdout.until(b"got " + word + b"\n")
                    await stderr.until(b"err " + word + b"\n")
                    await seen.until(b"got " + word + b"\n")
            async with attached(pod, container, **asked) as client:
                error, _, stdout, _ = await client.open_all("error", "stdin", "stdout", "stderr")
                await node.ask("StopContainer", api.StopContainerRequest(container_id=container))
                assert await stdout.whole() == b""
                assert exit_code(await error.whole()) == 0
            with pytest.raises(CallFailed, match="does not run"):
                await node.ask("Attach", api.AttachRequest(container_id=container, stdout=True))


@pytest.mark.trio
async def test_attached_output_comes_as_it_is_written(pod: Pod) -> None:
    """Whoever is told that it is attached gets all that is written from then on, be it no line, and before its end."""
    echo = "while read word; do printf %s $word; printf %s $word >&2; done"
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            pod.container(echo, stdin=True) as container,
            attached(pod, container, stdin=True, stdout=True) as writer,
        ):
            _, stdin, seen = await writer.open_all("error", "stdin", "stdout")
            await writer.write(stdin, b"before\n")
            await seen.until(b"before")
            async with attached(pod, container, stdout=True, stderr=True) as reader:
                await writer.write(stdin, b"one\n")
                await seen.until(b"one")
                error, stdout, stderr = await reader.open_all("error", "stdout", "stderr")
                await stdout.until(b"one")
                await stderr.until(b"one")
                async with pod.daemon.node() as node:
                    await node.ask("StopContainer", api.StopContainerRequest(container_id=container))
                assert await stdout.whole() == b"one"
                assert (await stderr.whole()).endswith(b"one")
                assert exit_code(await error.whole()) == 0


@pytest.mark.trio
async def test_attached_output_is_whole(pod: Pod) -> None:
    """Clients that come while a container without input writes get all from one place on, each byte once."""
    count = "n=100000; while :; do n=$((n+1)); printf '%s ' $n; done"
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.container(count) as container:
            for _ in range(3):
                async with attached(pod, container, stdout=True) as client:
                    _, stdout = await client.open_all("error", "stdout")
                    while len(stdout.data) < LARGE_BYTES:
                        await stdout.changed.wait()
                    numbers = [*map(int, stdout.data.split()[1:-1])]
                    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]


@pytest.mark.trio
async def test_an_attachment_that_is_killed(pod: Pod) -> None:
    """A client whose process of minit is killed is told that this was not the container's end."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.container("exec sleep 1000") as container, attached(pod, container, stdout=True) as client:
            error, _ = await client.open_all("error", "stdout")
            [directory] = pod.daemon.minit.data.glob("pods/run/*")
            [process] = [path for path in Path("/proc").glob("[0-9]*") if is_attached(path, directory)]
            os.kill(int(process.name), signal.SIGKILL)
            status = json.loads(await error.whole())
            assert (status["status"], status["message"]) == ("Failure", f"container {container}: attach was killed")


def is_attached(process: Path, directory: Path) -> bool:
    """Tell whether a process is attached to an app of the pod with this directory."""
    try:
        is_there = process.joinpath("cwd").readlink() == directory
        return is_there and b"--action=custom-attach" in process.joinpath("cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.trio
async def test_attaching_too_late(pod: Pod) -> None:
    """Who comes for a container that has ended since is told so."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.container("exec sleep 1000") as container, pod.daemon.node() as node:
            url = (await node.ask("Attach", api.AttachRequest(container_id=container, stdout=True))).url
            await node.ask("StopContainer", api.StopContainerRequest(container_id=container))
            status, _, stream = await upgrade(url)
            async with stream:
                assert status == 500
                reason = b"".join([data async for data in stream])
                assert f"cannot attach to container {container}".encode() in reason, reason


@pytest.mark.trio
@pytest.mark.parametrize("ends", ["said", "gone"])
async def test_input_for_one_client(pod: Pod, ends: str) -> None:
    """With `stdin_once` the end of its first client's input is that of the container's, be the client gone or not."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            pod.container(ECHO, stdin=True, stdin_once=True) as container,
            attached(pod, container, stdout=True) as onlooker,
        ):
            error, seen = await onlooker.open_all("error", "stdout")
            async with attached(pod, container, stdin=True, stdout=True) as client:
                _, stdin, stdout = await client.open_all("error", "stdin", "stdout")
                await client.write(stdin, b"one\n", fin=ends == "said")
                await stdout.until(b"got one\n")
                if ends == "said":
                    assert await stdout.whole() == b"got one\nover\n"
            assert await seen.whole() == b"got one\nover\n"
            assert exit_code(await error.whole()) == 0


@pytest.mark.trio
async def test_attaching_to_a_terminal(pod: Pod) -> None:
    """A container's terminal has the size of its client, its keys reach the container, and it stays when they leave."""
    script = "trap 'stty size' WINCH; while :; do read line && echo got $line; done"
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.container(script, stdin=True, tty=True) as container:
            for columns in (b"90", b"100"):
                async with attached(pod, container, stdin=True, stdout=True, tty=True) as client:
                    _, stdin, stdout, resize = await client.open_all("error", "stdin", "stdout", "resize")
                    await client.write(resize, b'{"Width":%s,"Height":30}' % columns)
                    await stdout.until(b"30 " + columns)
                    await client.write(stdin, b"x\x10\x11y\r")
                    await stdout.until(b"got x\x10y\r\n")


@pytest.mark.trio
async def test_forwarded_ports(pod: Pod) -> None:
    """Connections to the pod's ports, several at a time, carry bytes and ends both ways; failed ones have reasons."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.daemon.node() as node:
            request = api.PortForwardRequest(pod_sandbox_id=pod.sandbox.pod_sandbox_id)
            url = (await node.ask("PortForward", request)).url
        with pod.listening("127.0.0.1") as first, pod.listening("::1") as second:
            async with spdy_client(url, PORTFORWARD) as client:
                pairs = []
                for number, server in enumerate((first, second, first)):
                    port, name = str(server.getsockname()[1]), str(number)
                    error = await client.open("error", port=port, requestid=name)
                    data = await client.open("data", port=port, requestid=name)
                    accepted, _ = await server.accept()
                    pairs.append((error, data, accepted))
                for number, (error, data, accepted) in enumerate(pairs):
                    connection = trio.SocketStream(accepted)
                    question, large = b"question %d" % number, bytes([number]) * 300_000
                    await client.write(data, question, fin=number != 1)
                    got = b""
                    while got != question:
                        got += await connection.receive_some()
                    await connection.send_all(large)
                    if number == 1:
                        await connection.send_eof()
                        assert await data.whole() == large
                        assert await error.whole() == b""
                        await client.write(data, b"", fin=True)
                    assert await connection.receive_some() == b""
                    await connection.aclose()
                    assert await data.whole() == large
                    assert await error.whole() == b""
                for port, reason in (("9", b"port 9: connection refused"), ("70000", b"65535"), ("x", b"65535")):
                    error = await client.open("error", port=port, requestid=f"r{port}")
                    data = await client.open("data", port=port, requestid=f"r{port}")
                    assert reason in await error.whole()
                    assert await data.whole() == b""
                assert not client.is_over.is_set()


@pytest.mark.trio
async def test_a_forwarded_port_ends_with_its_client(pod: Pod) -> None:
    """The connections of a client that goes, or that gives up one of them, end in the pod."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.daemon.node() as node:
            request = api.PortForwardRequest(pod_sandbox_id=pod.sandbox.pod_sandbox_id)
            url = (await node.ask("PortForward", request)).url
        with pod.listening("127.0.0.1") as server:
            async with spdy_client(url, PORTFORWARD) as client:
                connections = []
                for number in range(2):
                    port = str(server.getsockname()[1])
                    await client.open("error", port=port, requestid=str(number))
                    data = await client.open("data", port=port, requestid=str(number))
                    connections.append((await server.accept())[0])
                await client.send(RstStream(stream=data.number, status=CANCEL))
                assert await connections[1].recv(1) == b""
            assert await connections[0].recv(1) == b""
            for connection in connections:
                connection.close()


@pytest.mark.trio
@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"])
async def test_forwarded_ports_over_a_websocket(pod: Pod, protocol: str) -> None:
    """Each port of the call has one connection and two channels, which begin with its number, and ends by itself."""
    with trio.fail_after(PATIENCE_SECONDS), pod.listening("127.0.0.1") as first, pod.listening("::1") as second:
        ports = [first.getsockname()[1], 9, *([1] * 20), second.getsockname()[1]]
        async with pod.daemon.node() as node:
            request = api.PortForwardRequest(pod_sandbox_id=pod.sandbox.pod_sandbox_id, port=ports)
            url = (await node.ask("PortForward", request)).url
            with pytest.raises(CallFailed, match=r"port\[1\]: expected"):
                await node.ask(
                    "PortForward", api.PortForwardRequest(pod_sandbox_id=request.pod_sandbox_id, port=[1, 0])
                )
            request = api.PortForwardRequest(pod_sandbox_id=request.pod_sandbox_id, port=range(1, 34))
            too_many = (await node.ask("PortForward", request)).url
        async with websocket_client(too_many, [protocol]) as client:
            assert client.protocol is None
        async with websocket_client(url, ["v5.channel.k8s.io", protocol]) as client:
            assert client.protocol == protocol
            last = 2 * len(ports) - 2
            for channel, server, port in ((0, first, ports[0]), (last, second, ports[-1])):
                connection = trio.SocketStream((await server.accept())[0])
                await client.write(channel, b"question")
                got = b""
                while got != b"question":
                    got += await connection.receive_some()
                await connection.send_all(bytes([channel]) * 300_000 + b"end")
                await connection.send_eof()
                assert await connection.receive_some() == b""
                await connection.aclose()
                await client.until(channel, b"end")
                assert client.data[channel] == port.to_bytes(2, "little") + bytes([channel]) * 300_000 + b"end"
                assert client.data[channel + 1] == port.to_bytes(2, "little")
            await client.is_over.wait()
            assert client.data[2] == b"\x09\0"
            assert client.data[3].startswith(b"\x09\0") and b"port 9: connection refused" in client.data[3]


@pytest.mark.trio
@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.base64.channel.k8s.io"])
async def test_a_command_over_a_websocket(pod: Pod, protocol: str) -> None:
    """Its streams are numbered channels, the end of its input among them with the fifth version."""
    script = "read line; echo got $line; echo wrong >&2; exit 7"
    with trio.fail_after(PATIENCE_SECONDS):
        async with pod.daemon.node() as node:
            asked = {"stdin": True, "stdout": True, "stderr": True}
            request = api.ExecRequest(container_id=pod.main, cmd=["sh", "-c", script], **asked)
            url = (await node.ask("Exec", request)).url
        async with websocket_client(url, ["v9.channel.k8s.io", protocol]) as client:
            assert client.protocol == protocol
            if protocol.startswith("v5"):
                await client.write(0, b"one")
                await client.write(255, b"\0")
            else:
                await client.write(0, b"one\n")
            await client.is_over.wait()
            assert client.data[1] == b"got one\n"
            assert client.data[2] == b"wrong\n"
            assert exit_code(client.data[3]) == 7
        assert (await answer(url))[0] == 404


@pytest.mark.trio
async def test_a_daemon_that_ends(own_pod: Pod) -> None:
    """Commands end with it, containers go on with their input open, and the next one serves them."""
    pod = own_pod
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            pod.container(ECHO, stdin=True) as container,
            executing(pod, "sh", "-c", "trap '' TERM; echo ready; exec sleep 9871006", stdout=True) as client,
            attached(pod, container, stdin=True, stdout=True) as other,
        ):
            _, stdout = await client.open_all("error", "stdout")
            await stdout.until(b"ready\n")
            _, stdin, seen = await other.open_all("error", "stdin", "stdout")
            await other.write(stdin, b"one\n")
            await seen.until(b"got one\n")
            assert await trio.to_thread.run_sync(pod.daemon.end) == 0
            assert not running("sleep 9871006")
            await client.is_over.wait()
            await other.is_over.wait()
            await trio.to_thread.run_sync(pod.daemon.start)
            async with attached(pod, container, stdin=True, stdout=True) as again:
                _, stdin, seen = await again.open_all("error", "stdin", "stdout")
                await again.write(stdin, b"two\n")
                await seen.until(b"got two\n")
