"""minit cri: a kubelet's calls at the real socket, on real pods, with daemons that come and go."""

from __future__ import annotations

import json
import os
import resource
from functools import partial
from pathlib import Path

import pytest
import trio
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.commands import Stage0
from tests.support.crinode import IMAGE, POD, CallFailed, CriNode, Daemon, container_config, own_daemon, sandbox_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
UNKNOWN = api.ContainerId(container_id="0" * 64)


def as_user(uid: int, gid: int, *groups: int) -> dict[str, api.LinuxContainerConfig]:
    """Return the field of a container that runs as a user, and as PID 1."""
    context = api.LinuxContainerSecurityContext(
        run_as_user=api.Int64Value(value=uid),
        run_as_group=api.Int64Value(value=gid),
        supplemental_groups=groups,
        namespace_options=api.NamespaceOption(pid=api.CONTAINER),
    )
    return {"linux": api.LinuxContainerConfig(security_context=context)}


def beside(container: api.ContainerId) -> dict[str, api.LinuxContainerConfig]:
    """Return the field of a container that is in the PID namespace of another one."""
    options = api.NamespaceOption(pid=api.TARGET, target_id=container.container_id)
    context = api.LinuxContainerSecurityContext(namespace_options=options)
    return {"linux": api.LinuxContainerConfig(security_context=context)}


async def created(node: CriNode, sandbox: api.SandboxId, config: api.ContainerConfig) -> api.ContainerId:
    """Put a container into a sandbox."""
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
    container = await node.ask("CreateContainer", request)
    assert isinstance(container, api.ContainerId)
    return container


async def status(node: CriNode, container: api.ContainerId) -> api.ContainerStatus:
    """Return what is known of a container."""
    answer = await node.ask("ContainerStatus", api.ContainerStatusRequest(container_id=container.container_id))
    found = answer.status
    assert isinstance(found, api.ContainerStatus)
    return found


async def ended(node: CriNode, container: api.ContainerId) -> api.ContainerStatus:
    """Return what is known of a container as soon as it has ended, asking as a kubelet does."""
    while (found := await status(node, container)).state != api.CONTAINER_EXITED:
        await trio.sleep(0.02)
    return found


async def refused(node: CriNode, name: str, request: Message) -> tuple[int, str]:
    """Return the code and the message of a call that fails."""
    with pytest.raises(CallFailed) as caught:
        await node.ask(name, request)
    return caught.value.code, str(caught.value)


@pytest.mark.trio
async def test_the_life_of_a_pod(daemon: Daemon, tmp_path: Path) -> None:
    """A sandbox gets a container that runs, writes its log and is stopped; both are removed, twice being no error."""
    config = sandbox_config(tmp_path, labels={"app": "web"}, annotations={"a": "b"})
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            version = await node.ask("Version", api.VersionRequest())
            assert (version.runtime_name, version.runtime_api_version) == ("minit", "v1")
            conditions = (await node.ask("Status", api.StatusRequest())).status.conditions
            assert {one.type: one.status for one in conditions} == {"RuntimeReady": True, "NetworkReady": True}
            driver = (await node.ask("RuntimeConfig", api.RuntimeConfigRequest())).linux.cgroup_driver
            assert driver == api.CGROUPFS

            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            assert await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config)) == sandbox
            request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            told = (await node.ask("PodSandboxStatus", request)).status
            assert (told.state, told.metadata, dict(told.labels)) == (api.SANDBOX_READY, POD, {"app": "web"})
            assert told.created_at > 0

            asked = container_config(
                'echo "$WORD"; id -u; [ "$HOSTNAME" = "$(hostname)" ] && hostname; exec sleep 1000',
                envs=[api.KeyValue(key="WORD", value=b"one"), api.KeyValue(key="WORD", value=b"two = three\n#four")],
            )
            container = await created(node, sandbox, asked)
            assert await created(node, sandbox, asked) == container
            assert (await status(node, container)).state == api.CONTAINER_CREATED
            await node.ask("StartContainer", container)
            assert (await status(node, container)).state == api.CONTAINER_RUNNING
            command = api.ExecSyncRequest(
                container_id=container.container_id, cmd=["sh", "-c", "echo out; echo err >&2; exit 7"]
            )
            done = await node.ask("ExecSync", command)
            assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 7)
            command.cmd[2] = "exit 254"
            assert (await node.ask("ExecSync", command)).exit_code == 254
            [pod] = daemon.minit.data.glob("pods/run/*")
            (pod / "subcgroup").rename(pod / "moved")  # without which a command has no group for its limit
            command.timeout = 50
            code, reason = await refused(node, "ExecSync", command)
            assert code == Code.UNKNOWN and "cannot enter container" in reason and "control group" in reason
            (pod / "moved").rename(pod / "subcgroup")
            command.timeout = 0
            command.cmd[2] = "id -u; id -G; cat /proc/1/comm"
            user = await created(node, sandbox, container_config("exec sleep 1000", "user", **as_user(1000, 7, 42)))
            await node.ask("StartContainer", user)
            command.container_id = user.container_id
            assert (await node.ask("ExecSync", command)).stdout == b"1000\n7 42\nsleep\n"
            ephemeral = await created(node, sandbox, container_config("exec sleep 1001", "debug", **beside(user)))
            await node.ask("StartContainer", ephemeral)
            command.container_id = ephemeral.container_id
            command.cmd[2] = "tr '\\0' ' ' < /proc/1/cmdline"
            assert (await node.ask("ExecSync", command)).stdout == b"sleep 1000 "
            await node.ask("StopContainer", api.StopContainerRequest(container_id=user.container_id, timeout=0))
            assert (await status(node, user)).exit_code == 137
            command.container_id = container.container_id
            command.cmd[2] = "kill -KILL $$"
            assert (await node.ask("ExecSync", command)).exit_code == 137
            log = (tmp_path / "logs/main/2.log").read_text().splitlines()
            assert [line.split(" ", 3)[1:] for line in log] == [
                ["stdout", "F", "two = three"],
                ["stdout", "F", "#four"],
                ["stdout", "F", "0"],
                ["stdout", "F", "web-1"],
            ]
            await node.ask("StopContainer", api.StopContainerRequest(container_id=container.container_id, timeout=5))
            found = await status(node, container)
            assert (found.state, found.exit_code, found.log_path) == (
                api.CONTAINER_EXITED,
                143,
                str(tmp_path / "logs/main/2.log"),
            )
            assert found.created_at <= found.started_at <= found.finished_at
            for _ in range(2):
                await node.ask("StopPodSandbox", sandbox)
            told = (await node.ask("PodSandboxStatus", request)).status
            assert told.state == api.SANDBOX_NOTREADY
            for _ in range(2):
                await node.ask("RemoveContainer", container)
                await node.ask("RemoveContainer", user)
                await node.ask("RemovePodSandbox", sandbox)
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert (await refused(node, "PodSandboxStatus", request))[0] == Code.NOT_FOUND
    assert not any((daemon.minit.data / "cri").iterdir())
    assert not any((daemon.minit.data / "pods/run").iterdir())


@pytest.mark.trio
async def test_a_sandbox_with_users_of_its_own(daemon: Daemon, tmp_path: Path) -> None:
    """The ids are those that the kubelet says, for files of images, new ones, and volumes that it maps."""
    mapping = [api.IDMapping(host_id=0xF762 << 16, length=65536)]  # kubelets give any of 32 bits
    options = api.NamespaceOption(
        pid=api.CONTAINER, userns_options=api.UserNamespace(mode=api.POD, uids=mapping, gids=mapping)
    )
    security = api.LinuxSandboxSecurityContext(namespace_options=options)
    config = sandbox_config(tmp_path, linux=api.LinuxPodSandboxConfig(security_context=security))
    volumes = tmp_path / "volumes"
    volumes.mkdir(mode=0o700)
    for name in ("mapped", "plain"):
        (volumes / name).mkdir()
        os.chown(volumes / name, 1000, 1000)
    mounts = [api.Mount(host_path=f"{volumes}/plain", container_path="/plain")]
    mounts.append(
        api.Mount(host_path=f"{volumes}/mapped", container_path="/mapped", uidMappings=mapping, gidMappings=mapping)
    )
    context = api.LinuxContainerSecurityContext(namespace_options=options)
    script = (
        "cat /proc/self/uid_map; stat -c %u:%g / /mapped /plain; touch /made /mapped/made; stat -c %u:%g /made;"
        " exec sleep 1000"
    )
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            [handler] = (await node.ask("Status", api.StatusRequest())).runtime_handlers
            assert handler.features.user_namespaces
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            linux = api.LinuxContainerConfig(security_context=context)
            container = await created(node, sandbox, container_config(script, mounts=mounts, linux=linux))
            await node.ask("StartContainer", container)
            log = tmp_path / "logs/main/2.log"
            while log.read_bytes().count(b"\n") < 5:
                await trio.sleep(0.02)
            said = [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
            assert said[0].split() == ["0", str(0xF762 << 16), "65536"]
            assert said[1:] == ["0:0", "1000:1000", "65534:65534", "0:0"]
            assert (volumes / "mapped/made").stat().st_uid == 0
            request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            told = (await node.ask("PodSandboxStatus", request)).status
            assert told.linux.namespaces.options == options
            command = api.ExecSyncRequest(
                container_id=container.container_id, cmd=["sh", "-c", "cat /proc/self/uid_map"]
            )
            done = await node.ask("ExecSync", command)
            assert done.stdout.split() == said[0].encode().split()
            await node.ask("StopPodSandbox", sandbox)
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_a_sandbox_with_the_processes_of_the_host(daemon: Daemon, tmp_path: Path) -> None:
    """Its containers see them, and end with it."""
    options = api.NamespaceOption(pid=api.NODE)
    security = api.LinuxSandboxSecurityContext(namespace_options=options)
    config = sandbox_config(tmp_path, linux=api.LinuxPodSandboxConfig(security_context=security))
    linux = api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(namespace_options=options))
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            script = f"readlink /proc/self/ns/pid; ls -d /proc/{os.getpid()}; echo $$; exec sleep 1000"
            container = await created(node, sandbox, container_config(script, linux=linux))
            await node.ask("StartContainer", container)
            log = tmp_path / "logs/main/2.log"
            while log.read_bytes().count(b"\n") < 3:
                await trio.sleep(0.02)
            said = [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
            assert said[:2] == [os.readlink("/proc/self/ns/pid"), f"/proc/{os.getpid()}"]
            command = api.ExecSyncRequest(container_id=container.container_id, cmd=["sh", "-c", "echo in"])
            assert (await node.ask("ExecSync", command)).stdout == b"in\n"
            await node.ask("StopPodSandbox", sandbox)
            assert not Path(f"/proc/{said[2]}").exists()
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_the_log_of_a_terminal(daemon: Daemon, tmp_path: Path) -> None:
    """All that a container writes to its terminal is output in its log, with the line ends of one."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            asked = container_config("[ -t 0 ] && echo out && echo error >&2", tty=True)
            container = await created(node, sandbox, asked)
            await node.ask("StartContainer", container)
            assert (await ended(node, container)).exit_code == 0
            log = tmp_path / "logs/main/2.log"
            while not log.exists() or log.read_bytes().count(b"\n") < 2:
                await trio.sleep(0.02)
            assert [line.split(b" ", 1)[1] for line in log.read_bytes().split(b"\n")[:-1]] == [
                b"stdout F out\r",
                b"stdout F error\r",
            ]
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_a_container_with_an_input(daemon: Daemon, tmp_path: Path) -> None:
    """Who attaches has its input and its output, which is in the log too."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            asked = container_config("read word; echo got $word", stdin=True)
            container = await created(node, sandbox, asked)
            await node.ask("StartContainer", container)
            attach = partial(daemon.minit.call, stdin=None, input="it\n")
            done = await trio.to_thread.run_sync(attach, "attach", "--app=main-2", sandbox.pod_sandbox_id)
            assert (done.stdout, done.returncode) == ("got it\n", 0)
            assert (await ended(node, container)).exit_code == 0
            assert (tmp_path / "logs/main/2.log").read_text().split(" ", 1)[1] == "stdout F got it\n"
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_ends_of_containers_and_lists(daemon: Daemon, tmp_path: Path) -> None:
    """Exit codes and reasons are told as they happen, lists are about what filters say, for older kubelets too."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node("runtime.v1alpha2") as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            scripts = {"good": "exit 0", "bad": "exit 3", "killed": "kill -KILL $$", "waits": "exec sleep 1000"}
            containers = {
                name: await created(node, sandbox, container_config(script, name, labels={"of": name[0]}))
                for name, script in scripts.items()
            }
            for container in containers.values():
                await node.ask("StartContainer", container)
            ends = {}
            for name in ("good", "bad", "killed"):
                found = await ended(node, containers[name])
                ends[name] = (found.exit_code, found.reason)
            assert ends == {"good": (0, "Completed"), "bad": (3, "Error"), "killed": (137, "Error")}
            code, _ = await refused(node, "StartContainer", containers["bad"])
            assert code == Code.FAILED_PRECONDITION
            for program, reason in {
                "/no-such-program": "exec /no-such-program: no such file or directory",
                "no-such-program": 'find executable: unable to find "no-such-program" in "/usr/bin:/bin"',
            }.items():
                config = container_config("", "absent", command=[program])
                config.envs.add(key="PATH", value=b"/usr/bin:/bin")
                absent = await created(node, sandbox, config)
                _, message = await refused(node, "StartContainer", absent)
                assert reason in message
                found = await status(node, absent)
                assert (found.exit_code, found.reason, found.message) == (128, "StartError", reason)
                await node.ask("RemoveContainer", absent)

            async def listed(**wanted: object) -> set[str]:
                request = api.ListContainersRequest(filter=api.ContainerFilter(**wanted))  # type: ignore[arg-type]
                return {one.metadata.name for one in (await node.ask("ListContainers", request)).containers}

            assert await listed() == set(scripts)
            assert await listed(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING)) == {"waits"}
            assert await listed(id=containers["bad"].container_id[:12]) == {"bad"}
            assert await listed(pod_sandbox_id=sandbox.pod_sandbox_id, label_selector={"of": "g"}) == {"good"}
            assert await listed(pod_sandbox_id="nobody") == set()
            words = ["sh", "-c", "sleep 1001"]
            slow = api.ExecSyncRequest(container_id=containers["waits"].container_id, cmd=words, timeout=1)
            assert await refused(node, "ExecSync", slow) == (
                Code.DEADLINE_EXCEEDED,
                "the command did not end within 1 s",
            )
            look = api.ExecSyncRequest(container_id=slow.container_id, cmd=["sh", "-c", "ps | grep -c 'sleep 100[1]'"])
            while (await node.ask("ExecSync", look)).stdout != b"0\n":
                await trio.sleep(0.02)
            await node.ask("RemovePodSandbox", sandbox)
            assert await listed() == set()


@pytest.mark.trio
async def test_calls_that_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    """Each has its code and a line that names the field, and leaves nothing."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            run = api.RunPodSandboxRequest(config=sandbox_config(tmp_path), runtime_handler="kata")
            assert await refused(node, "RunPodSandbox", run) == (
                Code.INVALID_ARGUMENT,
                'runtime_handler: there is no "kata"; `minit cri --runtime-handler=kata` takes it to mean minit',
            )
            options = api.NamespaceOption(network=api.CONTAINER)
            context = api.LinuxSandboxSecurityContext(namespace_options=options)
            users = api.LinuxPodSandboxConfig(security_context=context)
            run = api.RunPodSandboxRequest(config=sandbox_config(tmp_path, linux=users))
            assert (await refused(node, "RunPodSandbox", run))[0] == Code.INVALID_ARGUMENT
            broken = api.RunPodSandboxRequest(config=sandbox_config(tmp_path, hostname="a b"))
            assert (await refused(node, "RunPodSandbox", broken))[0] == Code.INVALID_ARGUMENT
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert not any((daemon.minit.data / "cri").iterdir())

            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            privileged = api.LinuxContainerSecurityContext(privileged=True)
            config = container_config("true", linux=api.LinuxContainerConfig(security_context=privileged))
            request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
            assert await refused(node, "CreateContainer", request) == (
                Code.INVALID_ARGUMENT,
                "security_context.privileged: its sandbox is not privileged",
            )
            request.config.CopyFrom(container_config("true", image=api.ImageSpec(image="nothing")))
            code, message = await refused(node, "CreateContainer", request)
            assert (code, message.partition(" is not in the store")[0]) == (Code.NOT_FOUND, 'image "nothing"')
            request.config.CopyFrom(
                container_config("true", mounts=[api.Mount(host_path="/dev/null/none", container_path="/x")])
            )
            code, message = await refused(node, "CreateContainer", request)
            assert code == Code.UNKNOWN
            assert message == "mounts[0].host_path: cannot make /dev/null/none: Not a directory"
            assert not (await node.ask("ListContainers", api.ListContainersRequest())).containers
            for name in ("StartContainer", "ContainerStatus"):
                assert (await refused(node, name, UNKNOWN))[0] == Code.NOT_FOUND
            for name in ("StopContainer", "RemoveContainer"):
                await node.ask(name, UNKNOWN)
            await node.ask("StopPodSandbox", api.SandboxId(pod_sandbox_id="unknown"))
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_named_handlers(daemon: Daemon, tmp_path: Path) -> None:
    """A handler that an option names means minit: it is listed, and given back, also by a daemon without it."""
    daemon.end()
    daemon.options = ["--runtime-handler=runc", "--runtime-handler=crun", "--runtime-handler=runc"]
    daemon.start()
    image = api.ImageSpec(image=IMAGE, runtime_handler="crun")
    run = api.RunPodSandboxRequest(config=sandbox_config(tmp_path), runtime_handler="crun")
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            told = await node.ask("Status", api.StatusRequest(verbose=True))
            usual, *named = told.runtime_handlers
            assert [usual.name, *(one.name for one in named)] == ["", "runc", "crun"]
            assert [one.features for one in named] == [usual.features] * 2
            assert json.loads(told.info["info"])["config"]["runtimeHandlers"] == ["runc", "crun"]
            sandbox = await node.ask("RunPodSandbox", run)
            assert await node.ask("RunPodSandbox", run) == sandbox
            other = api.RunPodSandboxRequest(config=run.config)
            assert (await refused(node, "RunPodSandbox", other))[0] == Code.ALREADY_EXISTS
            container = await created(node, sandbox, container_config("exec sleep 1000", image=image))
            await node.ask("StartContainer", container)
            [listed] = (await node.ask("ListContainers", api.ListContainersRequest())).containers
            assert (listed.image.image, listed.image.runtime_handler) == (IMAGE, "")
        daemon.end()
        daemon.options = []
        daemon.start()
        async with daemon.node() as node:
            [listed] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            found = (await node.ask("PodSandboxStatus", request)).status
            assert (listed.runtime_handler, found.runtime_handler) == ("crun", "crun")
            assert (await status(node, container)).state == api.CONTAINER_RUNNING
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_another_daemon(daemon: Daemon, tmp_path: Path) -> None:
    """Pods go on without a daemon, and the next one knows all of them; what one was killed in is undone."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            running = await created(node, sandbox, container_config("exec sleep 1000"))
            ends = await created(node, sandbox, container_config("sleep 0.3; exit 4", "ends"))
            for container in (running, ends):
                await node.ask("StartContainer", container)
        assert daemon.end() == 0
        records = daemon.minit.data / "cri"
        [record] = records.iterdir()
        (record / ("f" * 64)).mkdir()  # of a request that never became durable
        damaged = record / ("0" * 64)
        damaged.mkdir()
        (damaged / "request").write_bytes(b"\xff")
        (damaged / "made").touch()
        half = record / ("e" * 64)
        half.mkdir()
        request = api.CreateContainerRequest(
            pod_sandbox_id=sandbox.pod_sandbox_id, config=container_config("true", "half")
        )
        (half / "request").write_bytes(request.SerializeToString())
        daemon.start()
        assert [note.partition(": ")[2].split(": ")[0] for note in daemon.notes] == [str(damaged)]
        async with daemon.node() as node:
            assert (await ended(node, ends)).exit_code == 4
            assert (await status(node, running)).state == api.CONTAINER_RUNNING
            listed = (await node.ask("ListContainers", api.ListContainersRequest())).containers
            assert {one.id for one in listed} == {running.container_id, ends.container_id}
            assert not half.exists()
        daemon.end(kill=True)
        assert daemon.minit.call("stop", "--force", "--wait", sandbox.pod_sandbox_id).returncode == 0
        daemon.start()
        async with daemon.node() as node:
            [told] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert told.state == api.SANDBOX_NOTREADY
            assert (await status(node, running)).exit_code == 137
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_a_pod_that_cannot_be_read(daemon: Daemon, tmp_path: Path) -> None:
    """It ends no daemon, not the next one either, and is stopped and removed as any other."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            container = await created(node, sandbox, container_config("exec sleep 1000"))
            await node.ask("StartContainer", container)
            pod = daemon.minit.data / "pods/run" / sandbox.pod_sandbox_id
            (pod / "pod").write_bytes(b"{")
            with (pod / "stage1/rootfs/rkt/minit/events.log").open("a") as events:
                events.write("\n")  # which the daemon hears of
            while (await status(node, container)).state != api.CONTAINER_UNKNOWN:
                await trio.sleep(0.02)
        assert daemon.end() == 0
        daemon.start()
        async with daemon.node() as node:
            for state in (api.SANDBOX_READY, api.SANDBOX_NOTREADY):
                [told] = (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
                assert told.state == state
                await node.ask("StopPodSandbox", sandbox)
            await node.ask("RemovePodSandbox", sandbox)
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
    assert not pod.exists()


@pytest.mark.trio
async def test_images(daemon: Daemon) -> None:
    """Images of the store, but for stage1, are listed, found by their names, and removed; twice being no error."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            [image] = (await node.ask("ListImages", api.ListImagesRequest())).images
            assert (image.repo_tags, image.uid.value, image.size > 0) == ([IMAGE], 0, True)
            named = api.ImageStatusRequest(image=api.ImageSpec(image=IMAGE))
            assert (await node.ask("ImageStatus", named)).image.id == image.id
            [filesystem] = (await node.ask("ImageFsInfo")).image_filesystems
            assert filesystem.fs_id.mountpoint == str(daemon.minit.data)
            for _ in range(2):
                await node.ask("RemoveImage", api.RemoveImageRequest(image=named.image))
            assert not (await node.ask("ImageStatus", named)).HasField("image")


@pytest.mark.trio
async def test_open_files(minit: Stage0, tmp_path: Path) -> None:
    """The daemon may open as many as it is allowed to; containers and their commands have the limit of every app."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start(under=["prlimit", "--nofile=789:"])
        assert daemon.process is not None
        assert resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        async with daemon.node() as node:
            _, [container] = await node.run(tmp_path, container_config("ulimit -n >/tmp/limit; exec sleep 1000"))
            script = "until [ -s /tmp/limit ]; do sleep 0.02; done; cat /tmp/limit; ulimit -n"
            assert await node.execute(container, script) == b"1024\n1024\n"


def test_who_serves(daemon: Daemon) -> None:
    """The socket is root's alone, and a data directory has one daemon."""
    assert daemon.socket.stat().st_mode & 0o777 == 0o600
    second = daemon.minit.call("cri", "--insecure-options=none", f"--listen=unix://{daemon.socket}.2")
    assert (second.returncode, second.stderr) == (254, f"cri: another `minit cri` serves {daemon.minit.data}\n")
    insecure = daemon.minit.call("cri", "--insecure-options=paths", f"--listen=unix://{daemon.socket}.2")
    assert insecure.stderr.startswith("cri: --insecure-options: a node has none")
    wrong = daemon.minit.call("cri", "--insecure-options=none", "--listen=tcp://127.0.0.1:80")
    assert wrong.stderr.startswith(
        'cri: --listen: expected unix://PATH with an absolute path, got "tcp://127.0.0.1:80"'
    )
    for name in ("", "Kata", "-a", "a" * 64, "a\n"):
        wrong = daemon.minit.call(
            "cri", "--insecure-options=none", f"--listen=unix://{daemon.socket}.2", f"--runtime-handler={name}"
        )
        assert "'--runtime-handler': expected a name that Kubernetes allows" in wrong.stderr
