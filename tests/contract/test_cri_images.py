"""minit cri: images from registries and from files, by their ids and names, on a node with pods."""

from __future__ import annotations

import json
import os
import select
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import Code
from tests.support.commands import Stage0
from tests.support.crinode import CallFailed, CriNode, Daemon, container_config, pull_request, sandbox_config
from tests.support.layers import Layout, archive, busybox_layer, docker_files, gzipped
from tests.support.registry import IDENTITY_TOKEN, PASSWORD, USER, registry
from tests.support.skopeostandin import SkopeoStandIn

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"), pytest.mark.trio]

PATIENCE_SECONDS = 100
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
BOX = "registry.example/team/box"


@pytest.fixture
def daemon(minit: Stage0, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon without images that is not started yet."""
    daemon = Daemon(minit, tmp_path / "cri.sock")
    yield daemon
    if daemon.process is not None:
        daemon.end()
    for pod in minit.data.glob("pods/run/*"):
        minit.call("stop", "--force", "--wait", pod.name)


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SkopeoStandIn:
    """A stand-in for skopeo."""
    return SkopeoStandIn(tmp_path / "skopeo", monkeypatch)


def box(*tags: str, **config: object) -> Layout:
    """Return a layout with a shell, under some tags."""
    layout = Layout()
    for tag in tags:
        layout.add(busybox_layer(), tag=tag, config=config, architecture=MACHINE, compress=gzipped, suffix="+gzip")
    return layout


def configuration(layout: Layout) -> str:
    """Return the digest of the configuration of a layout's first image."""
    digest = str(layout.index[0]["digest"])
    document = layout.files["blobs/" + digest.replace(":", "/")]
    return document.partition(b'"config": ')[2].partition(b'"digest": "')[2][:71].decode()


def manifest(layout: Layout) -> str:
    """Return the digest of the manifest of a layout's first image."""
    return str(layout.index[0]["digest"])


async def status(node: CriNode, reference: str) -> api.Image | None:
    """Return the image that a reference means."""
    request = api.ImageStatusRequest(image=api.ImageSpec(image=reference))
    answer = await node.ask("ImageStatus", request)
    return answer.image if answer.HasField("image") else None


async def listed(node: CriNode) -> dict[str, tuple[list[str], list[str]]]:
    """Return the tags and digests of all images by their ids."""
    images = (await node.ask("ListImages", api.ListImagesRequest())).images
    return {image.id: (list(image.repo_tags), list(image.repo_digests)) for image in images}


async def remove(node: CriNode, reference: str) -> None:
    """Remove what a reference means."""
    await node.ask("RemoveImage", api.RemoveImageRequest(image=api.ImageSpec(image=reference)))


def left_of_images(data: Path) -> list[str]:
    """Return the files of the store, without locks and lasting directories."""
    own = [path for path in (data / "minit/cas").rglob("*") if path.is_file() and path.parent.name != "known"]
    trees = [path for place in ("tree", "tmp") for path in (data / "cas" / place).glob("*")]
    return sorted(str(path) for path in (*own, *trees))


async def test_one_image_however_it_came(daemon: Daemon, skopeo: SkopeoStandIn, tmp_path: Path) -> None:
    """An image has the digest of its configuration from registries and files, under all its names."""
    layout, other = box("1", "2", User="app:app"), box("1", Env=["A=b"])
    skopeo.put(BOX, layout)
    skopeo.put("docker.io/library/box", layout)
    image_id, digest = configuration(layout), manifest(layout)
    layout.write_archive(tmp_path / "saved.tar")
    files = docker_files(busybox_layer(), tags=["team/tool:3"])
    (tmp_path / "docker.tar").write_bytes(archive(files))
    for source in (f"oci-archive:{tmp_path}/saved.tar:1", f"docker-archive:{tmp_path}/docker.tar"):
        assert daemon.minit.call("fetch", source).returncode == 0
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            assert [await node.pull(name) for name in (f"{BOX}:1", f"{BOX}:2", f"{BOX}@{digest}", "box:1")] == [
                image_id
            ] * 4
            tool = f"sha256:{next(iter(files)).removesuffix('.json')}"
            found = await listed(node)
            tags, digests = found.pop(image_id)
            assert set(tags) == {f"{BOX}:1", f"{BOX}:2", "docker.io/library/box:1", "docker.io/library/saved:1"}
            assert digests == [f"{BOX}@{digest}", f"docker.io/library/box@{digest}"]
            assert found == {tool: (["docker.io/team/tool:3"], [])}
            for reference in (image_id, image_id[7:], f"{BOX}:2", f"{BOX}@{digest}", "box:1", "docker.io/box:1"):
                image = await status(node, reference)
                assert image is not None and image.id == image_id, reference
                assert (image.username, image.HasField("uid"), image.size > 100_000) == ("app", False, True)
            image = await status(node, tool)
            assert image is not None and (image.username, image.HasField("uid")) == ("", False)
            assert await status(node, "box") is None  # which is box:latest

            config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="a", namespace="b", uid="c"))
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            of_hub = ("box:1", "docker.io/library/box:1", "docker.io/library/box")
            wanted = (image_id, tags[0], BOX), (f"{BOX}:2", f"{BOX}:2", BOX), of_hub
            for number, (given, name, repository) in enumerate(wanted):
                container = api.ContainerConfig(
                    metadata=api.ContainerMetadata(name="box", attempt=number),
                    image=api.ImageSpec(image=given),
                    command=["/bin/sh", "-c", "exit 0"],
                )
                request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=container)
                made = await node.ask("CreateContainer", request)
                assert await node.ask("CreateContainer", request) == made
                asked = api.ContainerStatusRequest(container_id=made.container_id)
                told = (await node.ask("ContainerStatus", asked)).status
                assert (told.image.image, told.image_ref, told.image_id) == (name, f"{repository}@{digest}", image_id)
                for one in (await node.ask("ListContainers", api.ListContainersRequest())).containers:
                    assert (one.image_ref, one.image_id) == (image_id, image_id)
            request.config.metadata.attempt = 3
            request.config.image.image = f"{tmp_path}/saved.tar"
            with pytest.raises(CallFailed, match="is not in the store .*: pull it first") as caught:
                await node.ask("CreateContainer", request)
            assert caught.value.code == Code.NOT_FOUND

            # The tag moves; nothing that a pod has is collected, with all its names.
            skopeo.put(BOX, other)
            moved = await node.pull(f"{BOX}:1")
            assert moved == configuration(other) != image_id
            found = await listed(node)
            assert found[moved] == ([f"{BOX}:1"], [f"{BOX}@{manifest(other)}"])
            assert f"{BOX}:1" not in found[image_id][0] and f"{BOX}:2" in found[image_id][0]
            await node.ask("StopPodSandbox", sandbox)
            assert daemon.minit.call("image", "gc", "--grace-period=0s").returncode == 0
            assert {image_id: found[image_id]} == await listed(node)
            await node.ask("RemovePodSandbox", sandbox)


async def test_what_an_image_was_built_of(daemon: Daemon, skopeo: SkopeoStandIn) -> None:
    """A verbose status has the image's configuration as it came, or what is left of that in an older store."""
    layout, created = Layout(), "2020-02-03T04:05:06.789Z"
    history = [{"created": created, "created_by": "COPY /bin", "empty_layer": False}, {"comment": "ü"}]
    layout.add(busybox_layer(), bytes(1024), tag="1", architecture=MACHINE, created=created, history=history)
    skopeo.put(BOX, layout)
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:

            async def told() -> Any:
                request = api.ImageStatusRequest(image=api.ImageSpec(image=f"{BOX}:1"), verbose=True)
                return json.loads((await node.ask("ImageStatus", request)).info["info"])["imageSpec"]

            await node.pull(f"{BOX}:1")
            built = json.loads(layout.files["blobs/" + configuration(layout).replace(":", "/")])
            assert await told() == built and built["history"] == history
            [kept] = (daemon.minit.data / "minit/cas/configuration").rglob("sha512-*")
            kept.unlink()
            left = await told()
            assert (left["created"], left["rootfs"]) == (created, built["rootfs"])
            await node.pull(f"{BOX}:1")
            assert await told() == built
            await remove(node, BOX + ":1")
            assert not kept.exists()


@pytest.mark.parametrize(
    ("user", "uid", "name"), [(None, None, ""), ("", None, ""), ("0", 0, ""), ("7:8", 7, ""), ("app:8", None, "app")]
)
async def test_the_user_of_an_image(
    daemon: Daemon, skopeo: SkopeoStandIn, user: str | None, uid: int | None, name: str
) -> None:
    """It is that of the configuration, and none if that has none."""
    skopeo.put(BOX, box("1") if user is None else box("1", User=user))
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            await node.pull(f"{BOX}:1")
            image = await status(node, f"{BOX}:1")
            assert image is not None and image.username == name
            assert (image.uid.value if image.HasField("uid") else None) == uid


async def test_an_image_that_there_is_not(daemon: Daemon, skopeo: SkopeoStandIn, tmp_path: Path) -> None:
    """Who pulls it, or makes a container of it or with it as a volume, gets NOT_FOUND."""
    skopeo.put(BOX, box("1"))
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            await node.pull(f"{BOX}:1")
            assert await status(node, f"{BOX}:2") is None
            with pytest.raises(CallFailed, match="manifest unknown") as caught:
                await node.pull(f"{BOX}:2")
            assert caught.value.code == Code.NOT_FOUND
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(tmp_path)))
            there, not_there = api.ImageSpec(image=f"{BOX}:1"), api.ImageSpec(image=f"{BOX}:2")
            volume = api.Mount(container_path="/v", image=not_there)
            for config in (container_config("", image=not_there), container_config("", image=there, mounts=[volume])):
                with pytest.raises(CallFailed, match="is not in the store .*: pull it first") as caught:
                    await node.create(sandbox, config)
                assert caught.value.code == Code.NOT_FOUND
            await node.ask("RemovePodSandbox", sandbox)


async def test_images_are_removed(daemon: Daemon, skopeo: SkopeoStandIn) -> None:
    """An image goes with all its tags, and with all that was unpacked; no older image gets a tag back."""
    other = "example.com/other/box"
    old, new = box("1"), box("1", "2", Env=["A=b"])
    skopeo.put(BOX, old)
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            empty = (await node.ask("ImageFsInfo")).image_filesystems[0]
            first = await node.pull(f"{BOX}:1")
            [full] = (await node.ask("ImageFsInfo")).image_filesystems
            assert full.fs_id.mountpoint == str(daemon.minit.data)
            assert full.used_bytes.value - empty.used_bytes.value > 100_000
            assert full.inodes_used.value > empty.inodes_used.value
            skopeo.put(BOX, new)
            second = [await node.pull(f"{BOX}:{tag}") for tag in ("1", "2")]
            assert first != second[0] == second[1]
            skopeo.put(other, new)
            assert await node.pull(f"{other}:1") == second[0]
            for _ in range(2):
                await remove(node, f"{BOX}:1")
            assert await listed(node) == {first: ([], [f"{BOX}@{manifest(old)}"])}
            for name in (f"{BOX}:1", f"{BOX}:2", f"{other}:1"):
                assert await status(node, name) is None
            assert await node.pull(f"{BOX}:1") == second[0]
            for _ in range(2):
                await remove(node, second[0])
            assert list(await listed(node)) == [first]
            skopeo.put(BOX, old)
            assert await node.pull(f"{BOX}:1") == first
            assert await listed(node) == {first: ([f"{BOX}:1"], [f"{BOX}@{manifest(old)}"])}
            await remove(node, f"{BOX}@{manifest(old)}")
            assert await listed(node) == {}
            assert left_of_images(daemon.minit.data) == []
            [gone] = (await node.ask("ImageFsInfo")).image_filesystems
            assert gone.used_bytes.value < full.used_bytes.value - 100_000


async def test_an_image_that_a_container_has_is_removed(daemon: Daemon, skopeo: SkopeoStandIn) -> None:
    """Its containers go on, and can be started; what was unpacked for them goes with a later image."""
    layout = box("1")
    skopeo.put(BOX, layout)
    digest = manifest(layout)
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="a", namespace="b", uid="c"))
            sandbox = await node.ask("RunPodSandbox", api.RunPodSandboxRequest(config=config))
            stage1 = left_of_images(daemon.minit.data)
            image_id = await node.pull(f"{BOX}:1")
            container = api.ContainerConfig(
                metadata=api.ContainerMetadata(name="box"),
                image=api.ImageSpec(image=image_id),
                command=["/bin/sh", "-c", "exec sleep 1000"],
            )
            request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=container)
            made = await node.ask("CreateContainer", request)
            await remove(node, image_id)
            assert await listed(node) == {}
            await node.ask("StartContainer", made)
            command = api.ExecSyncRequest(container_id=made.container_id, cmd=["/bin/busybox", "echo", "here"])
            assert (await node.ask("ExecSync", command)).stdout == b"here\n"
            asked = api.ContainerStatusRequest(container_id=made.container_id)
            told = (await node.ask("ContainerStatus", asked)).status
            assert (told.image.image, told.image_ref) == (f"{BOX}:1", f"{BOX}@{digest}")
            await node.ask("RemovePodSandbox", sandbox)
            assert left_of_images(daemon.minit.data) != stage1
            skopeo.put(BOX, box("1", Env=["A=b"]))
            await remove(node, await node.pull(f"{BOX}:1"))
            assert left_of_images(daemon.minit.data) == stage1


async def test_credentials_are_in_nothing_that_others_can_see(daemon: Daemon, skopeo: SkopeoStandIn) -> None:
    """skopeo gets the credentials by a descriptor: no command line, environment, file or message has them."""
    layout = box("1")
    skopeo.put(BOX, layout)
    skopeo.demand({"auths": {"registry.example": {"auth": "a3ViZWxldDpzM2NyZXQ6d29yZA=="}}})
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node:
            wrong: tuple[dict[str, str], ...] = ({}, {"username": USER, "password": "wr0ng"})
            for auth in wrong:
                with pytest.raises(CallFailed) as caught:
                    await node.pull(f"{BOX}:1", **auth)
                message = f'cannot fetch "docker://{BOX}:1": skopeo: unauthorized: authentication required'
                assert (caught.value.code, str(caught.value)) == (Code.UNKNOWN, message)
                assert left_of_images(daemon.minit.data) == []
            assert await node.pull(f"{BOX}:1", username=USER, password=PASSWORD) == configuration(layout)
            with pytest.raises(CallFailed, match="auth.registry_token: expected a password") as caught:
                await node.pull(f"{BOX}:1", registry_token="t0ken")
            assert caught.value.code == Code.INVALID_ARGUMENT
            for name in ("", "a b", "docker://box", f"sha256:{'0' * 64}"):
                with pytest.raises(CallFailed, match="image.image: ") as caught:
                    await node.pull(name)
                assert caught.value.code == Code.INVALID_ARGUMENT
    (words, _, _), *_ = skopeo.calls()
    assert words[-1] == "--no-creds"
    for words, environment, _ in skopeo.calls():
        for secret in (PASSWORD, "wr0ng", "a3ViZWxldDpz"):
            assert not any(secret in text for text in (*words, *environment.values()))
    written = [path for path in daemon.minit.data.rglob("*") if path.is_file()]
    assert not any(secret.encode() in path.read_bytes() for path in written for secret in (PASSWORD, "a3ViZWxldDpz"))


async def test_pulls_are_shared_and_cancelled(daemon: Daemon, skopeo: SkopeoStandIn) -> None:
    """Calls for one image share a pull, which goes on while one waits; with the last one it ends and leaves nothing."""
    skopeo.put(BOX, box("1"))
    held = skopeo.hold()
    daemon.start()
    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, daemon.node() as other:
            async with node.giving_up("PullImage", pull_request(f"{BOX}:1")):
                copying = await trio.to_thread.run_sync(os.open, held, os.O_WRONLY)
                async with other.giving_up("PullImage", pull_request(f"{BOX}:1")):
                    pass
            gone = select.poll()
            gone.register(copying, 0)
            assert await trio.to_thread.run_sync(gone.poll, PATIENCE_SECONDS * 1000)
            os.close(copying)
            while left_of_images(daemon.minit.data):
                await trio.sleep(0.02)
            assert len(skopeo.calls()) == 2  # one asks for the manifest, one copies
            assert await listed(node) == {}
            held.unlink()
            assert await node.pull(f"{BOX}:1") == configuration(box("1"))
            with pytest.raises(CallFailed, match="manifest unknown"):
                await node.pull(f"{BOX}:2")


async def test_a_daemon_ends_in_a_pull(daemon: Daemon, skopeo: SkopeoStandIn) -> None:
    """What was on its way is undone before the daemon has ended."""
    skopeo.put(BOX, box("1"))
    held = skopeo.hold()
    daemon.start()

    async def pull(node: CriNode) -> None:
        with pytest.raises(CallFailed):
            await node.pull(f"{BOX}:1")

    with trio.fail_after(PATIENCE_SECONDS):
        async with daemon.node() as node, trio.open_nursery() as calls:
            calls.start_soon(pull, node)
            copying = await trio.to_thread.run_sync(os.open, held, os.O_WRONLY)
            assert await trio.to_thread.run_sync(daemon.end) == 0
            os.close(copying)
    assert left_of_images(daemon.minit.data) == []


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
async def test_a_registry_that_demands_credentials(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """The real skopeo is let in by what a kubelet gives, and one pull fetches each blob once for many calls."""
    layout = box("1")
    with registry({"team/box": layout}, scheme) as served:
        settings = tmp_path / ".config/containers"
        settings.mkdir(parents=True)
        (settings / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "{served.host}"\ninsecure = true\n')
        monkeypatch.setenv("HOME", str(tmp_path))
        daemon.start()
        name, right = f"{served.host}/team/box:1", {"username": USER, "password": PASSWORD}
        with trio.fail_after(PATIENCE_SECONDS):
            async with daemon.node() as node:
                for auth in ({}, {"username": USER, "password": "wrong"}):
                    with pytest.raises(CallFailed, match="unauthorized|authentication required"):
                        await node.pull(name, **auth)
                assert not served.seen
                with pytest.raises(CallFailed, match="manifest unknown|name unknown") as caught:
                    await node.pull(f"{served.host}/team/box:2", **right)
                assert caught.value.code == Code.NOT_FOUND
                async with trio.open_nursery() as calls:
                    for _ in range(4):
                        calls.start_soon(lambda: node.pull(name, **right))
                asked = [path for path in served.seen if "/blobs/" in path]
                assert len(asked) == len(set(asked)) == 2
                assert list(await listed(node)) == [configuration(layout)]
                if scheme == "Bearer":
                    assert await node.pull(name, identity_token=IDENTITY_TOKEN) == configuration(layout)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
async def test_a_node_pulls_what_was_pushed(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of the store that was pushed is the image that a node pulls, and a name that it was given is a tag."""
    layout = box("quay.io/team/box:1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with registry({}) as served:
        settings = tmp_path / ".config/containers"
        settings.mkdir(parents=True)
        (settings / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "{served.host}"\ninsecure = true\n')
        name = f"{served.host}/team/pushed:3"
        daemon.minit.call("fetch", "--quiet", f"oci:{layout.write_directory(tmp_path / 'in')}")
        daemon.minit.call("--insecure-options=http", "push", "--quiet", "quay.io/team/box:1", name)
        daemon.minit.call("image", "rm", "quay.io/team/box:1")
        daemon.start()
        with trio.fail_after(PATIENCE_SECONDS):
            async with daemon.node() as node:
                assert await node.pull(name) == configuration(layout)
                daemon.minit.call("image", "tag", name, "quay.io/given:4")
                [(tags, _)] = (await listed(node)).values()
                assert set(tags) == {name, "quay.io/given:4"}
