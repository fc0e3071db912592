"""minit cri: mounts, devices and working directories of containers, on real pods."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, own_daemon, sandbox_config
from tests.support.loopdevices import needs_loop_devices
from tests.support.stage0_world import write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A shared mount of the host, with another one below it."""
    path = tmp_path / "source"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    subprocess.run(["mount", "--make-shared", path], check=True)
    (path / "inner").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path / "inner"], check=True)
    yield path
    subprocess.run(["umount", "--recursive", path], check=True)


async def started(node: CriNode, sandbox: api.SandboxId, config: api.ContainerConfig) -> api.ContainerId:
    """Put a container into a sandbox, and start it."""
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
    container = await node.ask("CreateContainer", request)
    assert isinstance(container, api.ContainerId)
    await node.ask("StartContainer", container)
    return container


async def told(node: CriNode, container: api.ContainerId, script: str) -> list[str]:
    """Return the words that a shell in a container writes."""
    command = api.ExecSyncRequest(container_id=container.container_id, cmd=["sh", "-c", script])
    done = await node.ask("ExecSync", command)
    assert done.exit_code == 0, done.stderr
    assert isinstance(done.stdout, bytes)
    return done.stdout.decode().split()


@pytest.mark.trio
async def test_paths_of_the_host_that_are_not_there(daemon: Daemon, tmp_path: Path) -> None:
    """They are made as directories, but for one that cannot be, which leaves no container behind."""
    absent, dangling = tmp_path / "absent/volume", tmp_path / "dangling"
    dangling.symlink_to("nothing")
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            mounts = [api.Mount(container_path="/a", host_path=str(absent))]
            container = await started(node, sandbox, container_config("exec sleep 1000", mounts=mounts))
            await told(node, container, "touch /a/file")
            assert (absent / "file").exists() and stat.S_IMODE(absent.stat().st_mode) == 0o755
            mounts = [api.Mount(container_path="/a", host_path=str(dangling))]
            with pytest.raises(CallFailed, match=r"mounts\[0\]\.host_path: cannot make .*/dangling: File exists"):
                await node.create(sandbox, container_config("true", "other", mounts=mounts))
            [left] = (await node.ask("ListContainers", api.ListContainersRequest())).containers
            assert left.id == container.container_id
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_what_is_mounted_unasked(daemon: Daemon, tmp_path: Path) -> None:
    """A container has files of /etc that it may change, queues, and 64 MiB each for /dev and shared memory."""
    security = api.LinuxContainerSecurityContext(readonly_rootfs=True)
    fixed = container_config("exec sleep 1000", "fixed", linux=api.LinuxContainerConfig(security_context=security))
    write = "for n in hostname hosts resolv.conf; do (echo >> /etc/$n) 2> /dev/null && echo $n; done; true"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            config = sandbox_config(tmp_path, dns_config=api.DNSConfig(servers=["192.0.2.1"]))
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            container = await started(node, sandbox, container_config("exec sleep 1000"))
            assert await told(node, container, "cat /etc/hostname; grep -c 'web-1$' /etc/hosts") == ["web-1", "1"]
            assert await told(node, container, write) == ["hostname", "hosts", "resolv.conf"]
            sizes = "for p in /dev /dev/shm; do df -k $p | tail -n 1; done | tr -s ' ' | cut -d ' ' -f 2"
            assert await told(node, container, sizes) == ["65536", "65536"]
            assert await told(node, container, "grep -c ' /dev/mqueue mqueue rw,' /proc/mounts") == ["1"]
            assert await told(node, await started(node, sandbox, fixed), write) == []
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["users", "privileged", "host"])
async def test_what_is_there_in_other_sandboxes(daemon: Daemon, kind: str, tmp_path: Path) -> None:
    """With users of its own, privileged, or in the host's namespaces, a container has the same files and variables."""
    mapping = [api.IDMapping(host_id=0xF763 << 16, length=65536)]
    users = api.UserNamespace(mode=api.POD, uids=mapping, gids=mapping) if kind == "users" else None
    modes: dict[str, Any] = {"pid": api.CONTAINER}
    if kind == "host":
        modes = dict.fromkeys(("network", "pid", "ipc"), api.NODE)
    options = api.NamespaceOption(userns_options=users, **modes)
    security: dict[str, Any] = {"namespace_options": options, "privileged": kind == "privileged"}
    of_sandbox = api.LinuxPodSandboxConfig(security_context=api.LinuxSandboxSecurityContext(**security))
    own: dict[str, Any] = {
        "linux": api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(**security))
    }
    config = sandbox_config(tmp_path, linux=of_sandbox, hostname="" if kind == "host" else "web-1")
    asked = container_config("tr '\\0' '\\n' < /proc/$$/cmdline | head -n 1; env; echo; exec sleep 1000", **own)
    asked.command[0] = "sh"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            container = await started(node, sandbox, asked)
            log = tmp_path / "logs/main/2.log"
            while not log.read_bytes().endswith(b" F \n"):
                await trio.sleep(0.02)
            name, *variables = [line.split(" ", 3)[3] for line in log.read_text().splitlines()[:-1]]
            hostname = os.uname().nodename if kind == "host" else "web-1"
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            assert name == "sh"
            assert {*variables} - {"PWD=/", "SHLVL=1"} == {"HOME=/root", f"HOSTNAME={hostname}", path}
            assert await told(node, container, "cat /etc/hostname") == [hostname]
            script = "for n in hostname hosts resolv.conf; do (echo >> /etc/$n) 2> /dev/null && echo $n; done; true"
            assert await told(node, container, script) == ["hostname", "hosts", "resolv.conf"]
            sizes = "for p in /dev /dev/shm; do df -k $p | tail -n 1; done | tr -s ' ' | cut -d ' ' -f 2"
            of_host = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize // 1024  # noqa: S108
            assert await told(node, container, sizes) == ["65536", f"{of_host if kind == 'host' else 65536}"]
            assert await told(node, container, "grep -c ' /dev/mqueue mqueue rw,' /proc/mounts") == ["1"]
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_the_environment(daemon: Daemon, tmp_path: Path) -> None:
    """A container has PATH, HOME, HOSTNAME and what is asked for, before it what its image has."""
    config = container_config("exec sleep 1000", envs=[api.KeyValue(key="A", value=b"1")])
    words = [{"name": name, "value": "image"} for name in ("A", "HOSTNAME")]
    write_app(tmp_path / "x.aci", "example.com/x", {"exec": ["/x"], "user": "0", "group": "0", "environment": words})
    assert daemon.minit.call("fetch", tmp_path / "x.aci").returncode == 0
    named = container_config(
        "exec sleep 1000", "named", image=api.ImageSpec(image="example.com/x:1.0"), envs=config.envs
    )
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            config_of_pod = sandbox_config(tmp_path, hostname="")
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config_of_pod))
            container = await started(node, sandbox, config)
            path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            expected = {"A=1", "HOME=/root", f"HOSTNAME=rkt-{sandbox.pod_sandbox_id}", path}
            found = {*await told(node, container, "env | grep -v ^TERM=")}  # which a command that is entered has
            assert found - {"PWD=/", "SHLVL=1"} == expected
            script = (
                "cd /proc; for p in [0-9]*; do [ $(cat $p/comm) = sleep ] && tr '\\0' '\\n' < $p/environ; done; true"
            )
            assert {*await told(node, container, script)} - {"PWD=/", "SHLVL=1"} == expected
            found = {*await told(node, await started(node, sandbox, named), "env")}
            assert {"A=1", "HOSTNAME=image"} <= found
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_mounts_in_the_places_of_files(daemon: Daemon, tmp_path: Path) -> None:
    """A mount on a file that the runtime has for every container stands for it, with and without name servers."""
    (tmp_path / "file").write_text("mine\n")
    names = ("hosts", "hostname", "resolv.conf")
    mounts = [api.Mount(container_path=f"/etc/{name}", host_path=str(tmp_path / "file")) for name in names]
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            for servers in ([], ["192.0.2.1"]):
                config = sandbox_config(tmp_path, dns_config=api.DNSConfig(servers=servers))
                sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
                container = await started(node, sandbox, container_config("exec sleep 1000", mounts=mounts))
                assert await told(node, container, "cd /etc; cat hosts hostname resolv.conf") == 3 * ["mine"]
                await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_mounts(daemon: Daemon, source: Path, tmp_path: Path) -> None:
    """Mounts follow links and the host as they are asked to, are read-only so far down, and lie above earlier ones."""
    link = tmp_path / "link"
    link.symlink_to(source)
    (source / "hidden").mkdir()
    mounts = [
        api.Mount(container_path="/a/inner/deep", host_path=f"{source}/hidden"),
        api.Mount(container_path="/a", host_path=f"{source}/hidden"),
        api.Mount(container_path="/a", host_path=f"{link}"),
        api.Mount(container_path="/b", host_path=f"{source}", propagation=api.PROPAGATION_HOST_TO_CONTAINER),
        api.Mount(container_path="/c", host_path=f"{source}", readonly=True),
        api.Mount(container_path="/d", host_path=f"{source}", readonly=True, recursive_read_only=True),
        api.Mount(container_path="/e", host_path=f"{source}", mount_options=["noexec"]),
    ]
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            status = await node.ask("Status", api.StatusRequest())
            [handler] = status.runtime_handlers
            assert status.features.mount_options and handler.features.recursive_read_only_mounts
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            container = await started(node, sandbox, container_config("exec sleep 1000", mounts=mounts))
            (source / "late").mkdir()
            await trio.run_process(["mount", "-t", "tmpfs", "tmpfs", str(source / "late")])
            (source / "late" / "file").touch()
            found = await told(node, container, "cd / && ls -d ?/late/file ?/inner/deep")
            assert {*found} == {*(f"{name}/inner/deep" for name in "abcde"), "b/late/file"}
            script = "cd /; for i in ? ?/inner; do (echo > /$i/new) 2> /dev/null && echo $i; done; true"
            assert await told(node, container, script) == ["a", "b", "e", "a/inner", "b/inner", "c/inner", "e/inner"]
            script = "cd /e/inner; echo echo ran > prog; chmod +x prog; ./prog 2> /dev/null || /a/inner/prog"
            assert await told(node, container, script) == ["ran"]
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_mounts_that_reach_the_host(daemon: Daemon, source: Path, tmp_path: Path) -> None:
    """Mounts of a privileged container reach the host where it asks for that, if the source is on a shared mount."""
    security = api.LinuxContainerSecurityContext(privileged=True)
    both = api.Mount(container_path="/v", host_path=str(source), propagation=api.PROPAGATION_BIDIRECTIONAL)
    sandbox_security = api.LinuxSandboxSecurityContext(privileged=True)
    config = sandbox_config(tmp_path, linux=api.LinuxPodSandboxConfig(security_context=sandbox_security))
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            with pytest.raises(CallFailed, match="expected another one in a container that is not privileged"):
                await started(node, sandbox, container_config("true", mounts=[both]))
            linux = api.LinuxContainerConfig(security_context=security)
            container = await started(node, sandbox, container_config("exec sleep 1000", mounts=[both], linux=linux))
            await told(node, container, "mkdir /v/new && mount -t tmpfs tmpfs /v/new && touch /v/new/of-app")
            assert (source / "new" / "of-app").exists()
            (source / "late").mkdir()
            await trio.run_process(["mount", "-t", "tmpfs", "tmpfs", str(source / "late")])
            (source / "late" / "of-host").touch()
            assert await told(node, container, "ls /v/late") == ["of-host"]
            await trio.run_process(["mount", "--make-private", str(source)])
            with pytest.raises(CallFailed, match=f"propagation shared: {source} is not on a shared mount"):
                await started(node, sandbox, container_config("true", "late", mounts=[both], linux=linux))
            await node.ask("RemovePodSandbox", sandbox)
            assert (source / "new" / "of-app").exists()


@needs_loop_devices
@pytest.mark.trio
async def test_devices(daemon: Daemon, tmp_path: Path) -> None:
    """A device may be a link to one, or all nodes of a directory; the permissions decide what is done with it."""
    directory = tmp_path / "devices"
    (directory / "sub").mkdir(parents=True)
    for name, minor in (("zero", 5), ("sub/full", 7)):
        os.mknod(directory / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    (directory / "file").touch()
    (tmp_path / "link").symlink_to("/dev/loop-control")
    devices = [
        api.Device(host_path=str(tmp_path / "link"), container_path="/dev/log", permissions="rm"),
        api.Device(host_path=str(directory), container_path="/dev/many", permissions="rwm"),
    ]
    mknod = "mknod /tmp/n c 10 237 && echo made; mknod /tmp/m c 1 4 2> /dev/null || echo refused"
    script = f"(: < /dev/log) && echo read; (: > /dev/log) 2> /dev/null || echo not written; {mknod}; ls -R /dev/many"
    expected = ["read", "not", "written", "made", "refused", "/dev/many:", "sub", "zero", "/dev/many/sub:", "full"]
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            config = container_config("exec sleep 1000", devices=devices, working_dir="/made/for/it")
            container = await started(node, sandbox, config)
            assert await told(node, container, script) == expected
            assert await told(node, container, "pwd; stat -c '%a %u' .") == ["/made/for/it", "755", "0"]
            for path, message in ((f"{directory}/file", "not a device"), ("/dev/none", "No such file")):
                wrong = container_config("true", "wrong", devices=[api.Device(host_path=path, permissions="r")])
                with pytest.raises(CallFailed, match=f"host_path: {path}: {message}"):
                    await started(node, sandbox, wrong)
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_cdi_devices(minit: Stage0, tmp_path: Path) -> None:
    """A CDI device brings nodes, mounts, variables and groups; the next container without it has none."""
    (tmp_path / "file").write_text("of the vendor\n")
    edits = {
        "env": ["GPU=0"],
        "additionalGids": [44],
        "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero", "permissions": "rw"}],
        "mounts": [{"hostPath": str(tmp_path / "file"), "containerPath": "/vendor/file", "options": ["ro", "bind"]}],
    }
    (tmp_path / "cdi").mkdir()
    text = json.dumps({"kind": "vendor.com/gpu", "devices": [{"name": "0", "containerEdits": edits}]})
    (tmp_path / "cdi" / "vendor.yaml").write_text(text)
    with own_daemon(minit, tmp_path / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.options = [f"--cdi-spec-dir={tmp_path}/cdi"]
        daemon.start()
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            device = api.CDIDevice(name="vendor.com/gpu=0")
            with_it = await started(node, sandbox, container_config("exec sleep 1000", CDI_devices=[device]))
            script = "echo $GPU; id -G; cat /vendor/file; head -c 1 /dev/gpu0 | wc -c"
            assert await told(node, with_it, script) == ["0", "0", "44", "of", "the", "vendor", "1"]
            without = await started(node, sandbox, container_config("exec sleep 1000", "other"))
            assert await told(node, without, "echo $GPU; ls /dev/gpu0 /vendor 2> /dev/null; true") == []
            wrong = container_config("true", "wrong", CDI_devices=[api.CDIDevice(name="vendor.com/gpu=1")])
            with pytest.raises(CallFailed, match="CDI device vendor.com/gpu=1: no file has it"):
                await started(node, sandbox, wrong)
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
@pytest.mark.parametrize("privileged", [False, True])
async def test_sys_with_a_volume_below(daemon: Daemon, privileged: bool, tmp_path: Path) -> None:
    """A container with a volume at /sys/fs/bpf, as agents of networks have, also sees the rest of sysfs."""
    bpf = tmp_path / "bpf"
    bpf.mkdir()
    (bpf / "pinned").touch()
    own: dict[str, Any] = {
        "mounts": [api.Mount(container_path="/sys/fs/bpf", host_path=str(bpf))],
        "linux": api.LinuxContainerConfig(
            security_context=api.LinuxContainerSecurityContext(privileged=privileged),
        ),
    }
    sandbox_security = api.LinuxSandboxSecurityContext(privileged=privileged)
    config = sandbox_config(tmp_path, linux=api.LinuxPodSandboxConfig(security_context=sandbox_security))
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            container = await started(node, sandbox, container_config("exec sleep 1000", **own))
            assert await told(node, container, "ls /sys/fs/bpf; ls /sys/class/net") == ["pinned", "lo"]
            await node.ask("RemovePodSandbox", sandbox)
