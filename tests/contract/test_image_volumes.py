"""Volumes that are images: of any pod, of one that is played, and of containers of minit cri."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, sandbox_config
from tests.support.stage0_world import World, write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PATIENCE_SECONDS = 100
DATA = "example.com/data"
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: APP
    command: [/bin/sh, -c, "busybox cat /v/words; echo > /v/new"]
    volumeMounts: [{name: data, mountPath: /v, subPath: bin}]
  volumes: [{name: data, image: {reference: IMAGE}}]
"""


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1 = stage1_image
    return world


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An image with a file, and with a link that leads nowhere in it."""
    path = tmp_path / "data.aci"
    write_app(path, name=DATA, app=None, etc="link", files={"bin/words": b"of the image\n"})
    return path


def run(world: World, volume: str, script: str, *words: str, code: int = 0) -> tuple[str, str]:
    """Run a shell with the volume at /v, and return what it wrote, and minit."""
    result = world.minit(
        *("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", f"--volume=v,kind=image,{volume}"),
        *(world.app, "--mount=volume=v,target=/v", *words, "--exec=/bin/sh", "--", "-c", script),
        code=code,
    )
    return "\n".join(line.partition("]: ")[2] for line in result.stdout.splitlines()), result.stderr


def trees(world: World) -> list[str]:
    """Return the unpacked images of the store."""
    return sorted(os.listdir(world.data / "cas/tree"))


def test_an_image_is_a_volume(world: World, data: Path) -> None:
    """The volume has the files of the image or of a part of it, cannot be written, and links stay inside."""
    source = f"source={data}"
    script = "busybox cat /v/bin/words; (echo > /v/new) 2>&1; true"
    assert run(world, source, script)[0].startswith("of the image\n/bin/sh: can't create /v/new: Read-only file system")
    part = '--annotation=minit/mounts={"/v": {"subPath": "%s"}}'
    assert run(world, source, "busybox cat /v/words", part % "bin")[0] == "of the image"
    tree = sorted(str(path) for path in (world.data / "cas/tree").rglob("*"))
    for path in ("etc", "etc/new", "new/deep"):
        assert f'"{path}" is not in the image' in run(world, source, "true", part % path, code=254)[1]
    assert sorted(str(path) for path in (world.data / "cas/tree").rglob("*")) == tree
    for wrong, message in (
        (f"{source},readOnly=false", "readOnly: an image is always read-only"),
        ("source=", "expected source=IMAGE"),
    ):
        assert message in run(world, wrong, "true", code=254)[1]
    assert 'image "example.com/none" is not in the store' in run(world, "source=example.com/none", "true", code=254)[1]


def test_an_image_in_use_stays(world: World, data: Path) -> None:
    """What a pod has of an image as a volume stays until the pod is removed, whatever becomes of the image."""
    image = world.minit("fetch", "--quiet", data).stdout.strip()
    words = ("prepare", "--quiet", f"--stage1-path={world.stage1}", f"--volume=v,kind=image,source={DATA}")
    app = (world.app, "--mount=volume=v,target=/v", "--exec=/bin/busybox", "--", "cat", "/v/bin/words")
    uuid = world.minit(*words, *app).stdout.strip()
    before = trees(world)
    world.minit("image", "rm", "--unpacked", image)
    world.minit("image", "gc", "--grace-period=0s")
    assert trees(world) == before
    result = world.minit("run-prepared", "--net=none", uuid)
    assert result.stdout.endswith("of the image\n")
    world.minit("rm", uuid)
    world.minit("image", "gc", "--grace-period=0s")
    assert trees(world) != before


def test_an_image_in_a_played_pod(world: World, data: Path) -> None:
    """A Pod's volume of kind image is that image, read-only, or the part that subPath says."""
    file = world.root / "pod.yaml"
    file.write_text(MANIFEST.replace("APP", str(world.app)).replace("IMAGE", str(data)))
    words = ("play", "--quiet", "--net=none", f"--stage1-path={world.stage1}", file)
    output = world.minit(*words, code=1).stdout
    assert "of the image\n" in output
    (pod,) = world.data.glob("pods/*/*/pod")
    world.minit("image", "gc", "--grace-period=0s")
    assert len(trees(world)) == 3 and "Read-only file system" in world.minit("logs", pod.parent.name).stdout


async def create(node: CriNode, sandbox: api.SandboxId, config: api.ContainerConfig) -> api.ContainerId:
    """Put a container into a sandbox."""
    request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
    container = await node.ask("CreateContainer", request)
    assert isinstance(container, api.ContainerId)
    return container


@pytest.mark.trio
async def test_an_image_in_a_container(daemon: Daemon, data: Path, tmp_path: Path) -> None:
    """A mount of an image has its files while the container is there, also when the image is removed."""
    stored = daemon.minit.call("fetch", "--quiet", data).stdout.strip()
    mount = api.Mount(container_path="/v", image=api.ImageSpec(image=stored), image_sub_path="bin", readonly=True)
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            container = await create(node, sandbox, container_config("exec sleep 1000", mounts=[mount]))
            assert daemon.minit.call("image", "gc", "--grace-period=0s").returncode == 0
            image = api.ImageSpec(image=stored)
            assert (await node.ask("ImageStatus", api.ImageStatusRequest(image=image))).HasField("image")
            await node.ask("RemoveImage", api.RemoveImageRequest(image=image))
            assert not (await node.ask("ImageStatus", api.ImageStatusRequest(image=image))).HasField("image")
            await node.ask("StartContainer", container)
            script = "cat /v/words; (echo > /v/new) 2> /dev/null || echo read-only"
            command = api.ExecSyncRequest(container_id=container.container_id, cmd=["sh", "-c", script])
            assert (await node.ask("ExecSync", command)).stdout == b"of the image\nread-only\n"
            with pytest.raises(CallFailed) as caught:
                await create(node, sandbox, container_config("true", "late", mounts=[mount]))
            assert caught.value.code == Code.NOT_FOUND
            await node.ask("RemovePodSandbox", sandbox)


@pytest.mark.trio
async def test_an_image_in_a_sandbox_with_users_of_its_own(daemon: Daemon, data: Path, tmp_path: Path) -> None:
    """Files of an image that is mounted with the sandbox's mapping have the owners that they have in the image."""
    stored = daemon.minit.call("fetch", "--quiet", data).stdout.strip()
    ids = [api.IDMapping(host_id=327680, length=65536)]
    users = api.NamespaceOption(pid=api.CONTAINER, userns_options=api.UserNamespace(mode=api.POD, uids=ids, gids=ids))
    image = api.ImageSpec(image=stored)
    mounts = [
        api.Mount(container_path="/mapped", image=image, uidMappings=ids, gidMappings=ids),
        api.Mount(container_path="/plain", image=image),
    ]
    of_sandbox = api.LinuxSandboxSecurityContext(namespace_options=users)
    config = sandbox_config(tmp_path, linux=api.LinuxPodSandboxConfig(security_context=of_sandbox))
    linux = api.LinuxContainerConfig(security_context=api.LinuxContainerSecurityContext(namespace_options=users))
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            container = await create(node, sandbox, container_config("exec sleep 1000", mounts=mounts, linux=linux))
            await node.ask("StartContainer", container)
            command = ["sh", "-c", "stat -c %u /mapped/bin/words /plain/bin/words; touch /mapped/new || echo read-only"]
            done = await node.ask("ExecSync", api.ExecSyncRequest(container_id=container.container_id, cmd=command))
            assert done.stdout.split() == [b"0", b"65534", b"read-only"]
            await node.ask("RemovePodSandbox", sandbox)
