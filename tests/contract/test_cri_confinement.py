"""minit cri: settings of the kernel, shared memory and system calls of sandboxes and containers."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, sandbox_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100


@asynccontextmanager
async def sandbox_of(node: CriNode, root: Path, **fields: object) -> AsyncIterator[api.SandboxId]:
    """Yield a sandbox, which is removed."""
    config = sandbox_config(root, **fields)
    sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
    try:
        yield sandbox
    finally:
        await node.ask("RemovePodSandbox", sandbox)


async def started(node: CriNode, sandbox: api.SandboxId, name: str = "main", **security: object) -> api.ContainerId:
    """Return a container that runs and waits."""
    context = api.LinuxContainerSecurityContext(**security)  # type: ignore[arg-type]
    config = container_config("exec sleep 1000", name, linux=api.LinuxContainerConfig(security_context=context))
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
    container = await node.ask("CreateContainer", request)
    await node.ask("StartContainer", container)
    assert isinstance(container, api.ContainerId)
    return container


async def output(node: CriNode, container: api.ContainerId, script: str) -> str:
    """Return what a shell says in a container, errors too."""
    command = ["sh", "-c", f"exec 2>&1; {script}"]
    answer = await node.ask("ExecSync", api.ExecSyncRequest(container_id=container.container_id, cmd=command))
    return str(answer.stdout.decode())


def linux_sandbox(*, sysctls: dict[str, str] | None = None, **options: int) -> dict[str, api.LinuxPodSandboxConfig]:
    """Return the field of a sandbox with settings and namespaces."""
    context = api.LinuxSandboxSecurityContext(namespace_options=api.NamespaceOption(**options))  # type: ignore[arg-type]
    return {"linux": api.LinuxPodSandboxConfig(sysctls=sysctls or {}, security_context=context)}


@pytest.mark.trio
async def test_sysctls(daemon: Daemon, tmp_path: Path) -> None:
    """A sandbox has settings of its own namespaces; others, and values that the kernel refuses, leave nothing."""
    before = Path("/proc/sys/fs/mqueue/msg_max").read_text()
    sysctls = {"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "100", "net.ipv4.ip_unprivileged_port_start": "9"}
    refused = {
        "kernel.pid_max": ("4194304", '"kernel.pid_max" is no setting that a pod has for itself'),
        "fs.mqueue.msg_max": ("none", "/proc/sys/fs/mqueue/msg_max: invalid argument"),
        "net.ipv4.nothing": ("1", "/proc/sys/net/ipv4/nothing: "),
    }
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            async with sandbox_of(node, tmp_path, **linux_sandbox(sysctls=sysctls)) as sandbox:
                container = await started(node, sandbox)
                told = await output(node, container, f"sysctl -n {' '.join(sysctls)}")
                assert told.split() == ["1", "100", "9"]
            for name, (value, reason) in refused.items():
                config = sandbox_config(tmp_path, **linux_sandbox(sysctls={name: value}))
                with pytest.raises(CallFailed) as caught:
                    await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
                assert reason in str(caught.value), str(caught.value)
            of_host = linux_sandbox(sysctls={"kernel.sem": "1 2 3 4"}, ipc=api.NODE)
            with pytest.raises(CallFailed, match="would be that of the host, whose IPC namespace the pod has"):
                await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path, **of_host)))
            assert not (await node.ask("ListPodSandbox", api.ListPodSandboxRequest())).items
            assert not any((daemon.minit.data / "cri").iterdir())
    assert Path("/proc/sys/fs/mqueue/msg_max").read_text() == before


@pytest.mark.trio
async def test_namespaces_of_the_host(daemon: Daemon, tmp_path: Path) -> None:
    """Containers of a sandbox share memory; with the host's IPC it is the host's, with its network so is the name."""
    shared = Path("/dev/shm") / f"{tmp_path.parent.name}-{tmp_path.name}"  # noqa: S108
    shared.write_text("host\n")
    try:
        with trio.fail_after(PATIENCE_SECONDS):
            async with daemon.node() as node:
                async with sandbox_of(node, tmp_path) as sandbox:
                    first, second = [await started(node, sandbox, name) for name in ("first", "second")]
                    assert await output(node, first, f"cat {shared}; echo mine > {shared}") == (
                        f"cat: can't open '{shared}': No such file or directory\n"
                    )
                    assert await output(node, second, f"cat {shared}; hostname") == "mine\nweb-1\n"
                options = linux_sandbox(ipc=api.NODE, network=api.NODE)
                async with sandbox_of(node, tmp_path, hostname="", **options) as sandbox:
                    container = await started(node, sandbox)
                    script = f"cat {shared}; hostname; readlink /proc/self/ns/ipc"
                    assert (await output(node, container, script)).split() == [
                        *("host", os.uname().nodename, os.readlink("/proc/self/ns/ipc"))
                    ]
    finally:
        shared.unlink()


@pytest.mark.trio
async def test_the_security_of_a_sandbox(daemon: Daemon, tmp_path: Path) -> None:
    """It is about the process of a pause container, which there is not; a group without a user is an error."""
    context = api.LinuxSandboxSecurityContext(
        run_as_user=api.Int64Value(value=7),
        run_as_group=api.Int64Value(value=7),
        supplemental_groups=[9],
        readonly_rootfs=True,
        seccomp=api.SecurityProfile(profile_type=api.SecurityProfile.RuntimeDefault),
        seccomp_profile_path="localhost/none",
        selinux_options=api.SELinuxOption(level="s0"),
    )
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            linux = api.LinuxPodSandboxConfig(security_context=context)
            async with sandbox_of(node, tmp_path, linux=linux) as sandbox:
                assert (await output(node, await started(node, sandbox), "id -u; touch /x")) == "0\n"
            context.ClearField("run_as_user")
            linux = api.LinuxPodSandboxConfig(security_context=context)
            with pytest.raises(CallFailed, match="run_as_group: expected a user with it") as caught:
                await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path, linux=linux)))
            assert caught.value.code == Code.INVALID_ARGUMENT


def profiled(kind: int, reference: str = "") -> dict[str, Any]:
    """Return the field of a container with a profile."""
    return {"seccomp": api.SecurityProfile(profile_type=kind, localhost_ref=reference)}  # type: ignore[arg-type]


def written(path: Path, **fields: object) -> str:
    """Return the path of a profile that lets all calls but those of rules."""
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", **fields}))
    return str(path)


@pytest.mark.trio
async def test_profiles_of_system_calls(daemon: Daemon, tmp_path: Path) -> None:
    """A container has minit's filters, guards, none, or those of a file, which may go; its commands have the same."""
    refusing = [{"names": ["chmod", "fchmodat", "fchmodat2"], "action": "SCMP_ACT_ERRNO", "errnoRet": 36}]
    path = written(tmp_path / "profile.json", architectures=["SCMP_ARCH_X86_64"], syscalls=refusing)
    script = "grep Seccomp: /proc/self/status; chmod 700 /tmp"
    refused = "chmod: /tmp: File name too long\n"
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "2"),
        (profiled(api.SecurityProfile.Unconfined), "0"),
        ({"seccomp_profile_path": "unconfined"}, "0"),
        (profiled(api.SecurityProfile.RuntimeDefault), "2"),
        ({"seccomp_profile_path": "runtime/default"}, "2"),
        ({"seccomp_profile_path": "docker/default"}, "2"),
        (profiled(api.SecurityProfile.Localhost, path), f"2\n{refused}"),
        ({"seccomp_profile_path": f"localhost/{path}", "run_as_user": api.Int64Value(value=7)}, f"2\n{refused}"),
    ]
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            containers = [await started(node, sandbox, f"c{i}", **security) for i, (security, _) in enumerate(cases)]
            Path(path).unlink()
            for container, (security, wanted) in zip(containers, cases):
                told = await output(node, container, script)
                assert told.removeprefix("Seccomp:\t").strip() == wanted.strip(), security


@pytest.mark.trio
async def test_profiles_that_cannot_be_had(daemon: Daemon, tmp_path: Path) -> None:
    """CreateContainer fails with the place, and leaves nothing."""
    bad = written(tmp_path / "bad.json", syscalls=[{"names": ["read"], "action": "SCMP_ACT_NOTIFY"}])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"seccomp_profile_path": "nothing"}, "seccomp_profile_path: expected a word, or localhost/PATH"),
        (profiled(api.SecurityProfile.Localhost, "x.json"), "seccomp: the path of a profile: expected an absolute one"),
        (profiled(api.SecurityProfile.Localhost, f"{tmp_path}/none"), "none: no such file or directory"),
        (profiled(api.SecurityProfile.Localhost, str(tmp_path)), "expected a regular file"),
        (profiled(api.SecurityProfile.Localhost, bad), "minit/seccomp: syscalls[0].action: expected an action without"),
    ]
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            for security, reason in cases:
                with pytest.raises(CallFailed) as caught:
                    await started(node, sandbox, **security)
                assert reason in str(caught.value)
            assert not (await node.ask("ListContainers", api.ListContainersRequest())).containers


@pytest.mark.trio
async def test_calls_of_added_capabilities(daemon: Daemon, tmp_path: Path) -> None:
    """The default filters allow what a capability is for, if the container has it, but no mounts."""
    default = profiled(api.SecurityProfile.RuntimeDefault)
    admin = api.Capability(add_capabilities=["SYS_ADMIN"])
    script = "hostname other && hostname; mkdir /m; mount -t tmpfs none /m && umount /m && echo mounted"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            usual = await started(node, sandbox, "usual", **default)
            told = await output(node, usual, script)
            assert "mounted" not in told
            assert "permitted" in told
            container = await started(node, sandbox, "admin", capabilities=admin, **default)
            told = await output(node, container, script)
            assert told.startswith("other\n")
            assert "mounted" not in told
            unconfined = profiled(api.SecurityProfile.Unconfined)
            container = await started(node, sandbox, "open", capabilities=admin, **unconfined)
            assert await output(node, container, script) == "other\nmounted\n"


@pytest.mark.trio
async def test_mounts_in_a_user_namespace(daemon: Daemon, tmp_path: Path) -> None:
    """A container makes one without a profile, and mounts in it only if it is unconfined by name."""
    script = "unshare -U -r -m sh -c 'echo made; mount -t tmpfs none /tmp && echo mounted'"
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, sandbox_of(node, tmp_path) as sandbox:
            told = await output(node, await started(node, sandbox, "none"), script)
            assert told.startswith("made\n")
            assert "mounted" not in told
            container = await started(node, sandbox, "named", **profiled(api.SecurityProfile.Unconfined))
            assert await output(node, container, script) == "made\nmounted\n"
