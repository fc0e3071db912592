"""minit cri: users, groups and confinement of containers, of what enters them, and of their status."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, container_config, own_daemon, sandbox_config
from tests.support.stage0_world import image_id, write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
FILES = {
    "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nweb:x:1000:77::/:/bin/sh\n",
    "etc/group": b"root:x:0:\nstaff:x:50:web\nweb:x:77:\n",
}
FOREVER = "while :; do sleep 1; done"


class Node:
    """A node with a sandbox, whose containers run for ever and have the image with users."""

    def __init__(self, node: CriNode, sandbox: api.SandboxId, image: str) -> None:
        self.node = node
        self.image = image
        self.sandbox = sandbox

    async def create(self, name: str, **security: Any) -> api.ContainerId:
        """Make a container with fields of a LinuxContainerSecurityContext."""
        own = api.NamespaceOption(pid=api.CONTAINER)
        context = api.LinuxContainerSecurityContext(**({"namespace_options": own} | security))
        config = container_config(
            FOREVER,
            name,
            image=api.ImageSpec(image=self.image),
            linux=api.LinuxContainerConfig(security_context=context),
        )
        request = api.CreateContainerRequest(pod_sandbox_id=self.sandbox.pod_sandbox_id, config=config)
        container = await self.node.ask("CreateContainer", request)
        assert isinstance(container, api.ContainerId)
        return container

    async def start(self, name: str, **security: Any) -> api.ContainerId:
        """Make a container and start it."""
        container = await self.create(name, **security)
        await self.node.ask("StartContainer", container)
        return container

    async def said(self, container: api.ContainerId, script: str) -> str:
        """Return what a script says in a container."""
        command = api.ExecSyncRequest(
            container_id=container.container_id, cmd=["/bin/sh", "-c", f"exec 2>&1; {script}"]
        )
        answer = await self.node.ask("ExecSync", command)
        return bytes(answer.stdout).decode()

    async def user(self, container: api.ContainerId) -> tuple[int, int, list[int]]:
        """Return the user and the groups that a container's status has."""
        request = api.ContainerStatusRequest(container_id=container.container_id)
        user = (await self.node.ask("ContainerStatus", request)).status.user.linux
        return user.uid, user.gid, list(user.supplemental_groups)


@asynccontextmanager
async def running_node(minit: Stage0, root: Path, **sandbox: Any) -> AsyncIterator[Node]:
    """Yield a node with a sandbox that has fields of a LinuxSandboxSecurityContext."""
    image = root / "users.aci"
    write_app(image, "example.com/users", files=FILES)
    assert minit.call("fetch", image).returncode == 0
    with own_daemon(minit, root / "cri.sock") as daemon, trio.fail_after(PATIENCE_SECONDS):
        daemon.start()
        async with daemon.node() as node:
            yield Node(node, await _run(node, root, **sandbox), image_id(image))


async def _run(node: CriNode, root: Path, **sandbox: Any) -> api.SandboxId:
    context = api.LinuxSandboxSecurityContext(**sandbox)
    config = sandbox_config(root, linux=api.LinuxPodSandboxConfig(security_context=context))
    answer = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
    assert isinstance(answer, api.SandboxId)
    return answer


def number(value: int) -> api.Int64Value:
    """Return a number that is given."""
    return api.Int64Value(value=value)


@pytest.mark.trio
async def test_groups(minit: Stage0, tmp_path: Path) -> None:
    """Those of the user, those given, and with Merge those of the image, are the status's and those of commands."""
    async with running_node(minit, tmp_path) as node:
        for name, security, expected in (
            ("merge", {"run_as_user": number(1000), "supplemental_groups": [9]}, (1000, 77, [77, 9, 50])),
            ("name", {"run_as_username": "web", "run_as_group": number(5)}, (1000, 5, [5, 50])),
            ("strict", {"run_as_user": number(1000), "supplemental_groups_policy": api.Strict}, (1000, 77, [77])),
            ("unknown", {"run_as_user": number(2000), "supplemental_groups": [9]}, (2000, 0, [0, 9])),
            ("root", {}, (0, 0, [0])),
        ):
            container = await node.start(name, **security)
            assert await node.user(container) == expected, name
            said = await node.said(container, "id -u; id -g; id -G")
            uid, gid, groups = said.splitlines()
            assert (int(uid), int(gid), sorted(map(int, groups.split()))) == (*expected[:2], sorted(expected[2]))


@pytest.mark.trio
async def test_capabilities(minit: Stage0, tmp_path: Path) -> None:
    """Those that are added are there, those that are dropped not, and with ALL there is none left."""
    async with running_node(minit, tmp_path) as node:
        for name, capabilities, held in (
            ("none", api.Capability(drop_capabilities=["ALL"]), 0),
            ("one", api.Capability(drop_capabilities=["ALL"], add_capabilities=["CHOWN"]), 1),
        ):
            container = await node.start(name, capabilities=capabilities)
            said = await node.said(container, "grep -h -e CapEff -e CapBnd /proc/self/status /proc/1/status")
            assert [int(each, 16) for each in said.split()[1::2]] == [held] * 4, name


@pytest.mark.trio
async def test_new_privileges(minit: Stage0, tmp_path: Path) -> None:
    """They can be had or not as is asked for, by root and others, by the container and what enters it."""
    async with running_node(minit, tmp_path) as node:
        for is_forbidden in (False, True):
            for uid in (0, 1000):
                container = await node.start(
                    f"a{uid}", no_new_privs=is_forbidden, run_as_user=number(uid), seccomp=api.SecurityProfile()
                )
                said = await node.said(container, "grep -h -e NoNewPrivs -e Seccomp: /proc/self/status /proc/1/status")
                assert said.split()[1::2] == [str(int(is_forbidden)), "2"] * 2
                await node.node.ask("RemoveContainer", container)


@pytest.mark.trio
async def test_paths(minit: Stage0, tmp_path: Path) -> None:
    """Exactly those that are given are hidden or read-only, also for commands; empty lists are none."""
    async with running_node(minit, tmp_path) as node:
        look = (
            "stat -c %a /proc/kallsyms /proc/timer_list /etc; grep -c ' /proc/sys ' /proc/mounts; touch /bin/x; ls /etc"
        )
        given = {"masked_paths": ["/proc/timer_list", "/etc"], "readonly_paths": ["/proc/sys", "/bin"]}
        kernel = [f"{os.stat(path).st_mode & 0o777:o}" for path in ("/proc/kallsyms", "/proc/timer_list")]
        for name, security, expected in (
            ("given", given, [kernel[0], "0", "0", "1", "touch:"]),
            ("none", {}, [*kernel, "755", "0", "group"]),
        ):
            container = await node.start(name, **security)
            said = (await node.said(container, look)).split()
            assert said[: len(expected)] == expected, name


@pytest.mark.trio
async def test_privileged(minit: Stage0, tmp_path: Path) -> None:
    """One container of a privileged sandbox is not confined; in another sandbox it is refused."""
    look = (
        "grep -e CapBnd -e Seccomp: /proc/self/status; : >> /proc/sys/kernel/hostname && echo open;"
        "mount -t tmpfs none /bin && echo mounted; umount /bin"
    )
    async with running_node(minit, tmp_path, privileged=True) as node:
        masks = {"masked_paths": ["/proc/kallsyms", "/etc"], "readonly_paths": ["/proc/sys"]}
        container = await node.start("a", privileged=True, **masks)
        [(_, held), (_, filtered)] = [
            line.split()
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith(("CapBnd", "Seccomp:"))
        ]
        assert (await node.said(container, look)).split() == ["CapBnd:", held, "Seccomp:", filtered, "open", "mounted"]
        assert await node.said(container, "ls /etc | grep -c .") != "0\n"
        beside = await node.start("b")
        assert "mounted" not in await node.said(beside, look)


@pytest.mark.trio
async def test_privileged_in_another_sandbox(minit: Stage0, tmp_path: Path) -> None:
    """It is refused with nothing left of it."""
    async with running_node(minit, tmp_path) as node:
        with pytest.raises(CallFailed, match="its sandbox is not privileged") as caught:
            await node.create("a", privileged=True)
        assert caught.value.code == Code.INVALID_ARGUMENT
        assert not (await node.node.ask("ListContainers", api.ListContainersRequest())).containers


@pytest.mark.skipif(os.path.exists("/sys/module/apparmor"), reason="the kernel may have profiles")
@pytest.mark.trio
async def test_profiles_that_there_are_not(minit: Stage0, tmp_path: Path) -> None:
    """No container runs without a profile that it should have, and none is left."""
    async with running_node(minit, tmp_path) as node:
        profile = api.SecurityProfile(profile_type=api.SecurityProfile.Localhost, localhost_ref="web")
        with pytest.raises(CallFailed, match="this kernel has no AppArmor"):
            await node.create("a", apparmor=profile)
        assert not (await node.node.ask("ListContainers", api.ListContainersRequest())).containers
