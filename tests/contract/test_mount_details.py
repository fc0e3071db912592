"""Parts of volumes, what may be written in them, and volumes in memory: by annotations that any pod may have."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pods import LOOPBACK_ONLY
from tests.support.stage0_world import World
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1 = stage1_image
    return world


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A directory of the host with links, and a mount of its own."""
    path = tmp_path / "source"
    (path / "inner").mkdir(parents=True)
    (path / "inner").chmod(0o2750)
    (path / "inner" / "file").write_text("inside\n")
    (path / "outer").mkdir()
    (tmp_path / "secret").write_text("of the host\n")
    for name, target in (("link", "inner"), ("up", "../secret"), ("root", "/etc"), ("none", "nothing"), ("a", "a")):
        (path / name).symlink_to(target)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path / "outer"], check=True)
    subprocess.run(["mount", "--make-shared", path / "outer"], check=True)
    yield path
    subprocess.run(["umount", "--recursive", path / "outer"], check=True)


def run(world: World, source: Path, details: object, script: str, *words: object, code: int = 0) -> tuple[str, str]:
    """Run a shell with the directory at /v, /w and /x, and return what it wrote, and minit."""
    places = [f"--mount=volume=v,target=/{name}" for name in "vwx"]
    result = world.minit(
        *("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", f"--volume=v,kind=host,source={source}"),
        *(*words, world.app, *places, f"--annotation=minit/mounts={json.dumps(details)}"),
        *("--exec=/bin/sh", "--", "-c", script),
        code=code,
    )
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    return "\n".join(lines), result.stderr.replace(LOOPBACK_ONLY, "")


def test_parts(world: World, source: Path) -> None:
    """A part is a directory, a file, what a link in the volume leads to, or made like the directory it is in."""
    details = {"/v": {"subPath": "link/new/er"}, "/w": {"subPath": "link/file"}, "/x": {"readOnly": True}}
    script = "echo here > /v/text && busybox cat /w && (echo > /x/y) 2>&1; true"
    assert run(world, source, details, script)[0].startswith("inside\n/bin/sh: can't create /x/y: Read-only")
    made = source / "inner" / "new" / "er"
    assert (made / "text").read_text() == "here\n" and made.stat().st_mode & 0o7777 == 0o2750
    assert not (source / "y").exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("up", "a link leads out of the volume"),
        ("root/passwd", "a link leads out of the volume"),
        ("link/../../secret", "expected a relative path without .."),
        ("none/x", "a link in the volume leads to nothing"),
        ("a", "too many levels of symbolic links"),
        ("inner/file/x", "not a directory"),
    ],
)
def test_no_part_is_outside(world: World, source: Path, path: str, message: str) -> None:
    """A path that a link leads out of the volume, or nowhere, is one clear error, and nothing is made."""
    assert message in run(world, source, {"/v": {"subPath": path}}, "true", code=254)[1]
    assert sorted(os.listdir(source.parent)) == sorted({*os.listdir(source.parent)} | {"secret", "source"})
    assert not (source / "nothing").exists()


def test_shared_mounts(world: World, source: Path) -> None:
    """With propagation shared the app's mounts reach the host, and the host's the app; only where mounts are shared."""
    place = source / "outer"
    script = "busybox mkdir /v/of-app && busybox mount -t tmpfs tmpfs /v/of-app && echo from-app > /v/of-app/file"
    words = ("--insecure-options=image,capabilities,paths,seccomp",)
    run(world, place, {"/v": {"propagation": "shared"}}, script, *words)
    assert (place / "of-app" / "file").read_text() == "from-app\n"
    run(world, place, {"/v": {"propagation": "slave"}}, script.replace("of-app", "own"), *words)
    assert not (place / "own" / "file").exists()
    subprocess.run(["umount", place / "of-app"], check=True)
    subprocess.run(["mount", "--make-private", place], check=True)
    _, message = run(world, place, {"/v": {"propagation": "shared"}}, "true", code=254)
    assert f"propagation shared: {place} is not on a shared mount" in message


def test_read_only_and_options(world: World, source: Path) -> None:
    """A read-only mount is so all the way down or alone; options hold for all of it."""
    details = {
        "/v": {"readOnly": True, "recursiveReadOnly": False, "propagation": "private"},
        "/w": {"readOnly": True},
        "/x": {"options": ["noexec", "nodev"]},
    }
    script = """
        for name in v w; do
            (echo > /$name/new) 2> /dev/null && echo /$name
            (echo > /$name/outer/new) 2> /dev/null && echo /$name/outer
        done
        busybox grep -E ' /x(/outer)? .*nodev,noexec' /proc/self/mountinfo | busybox cut -d' ' -f5
    """
    assert run(world, source, details, script)[0].split() == ["/v/outer", "/x", "/x/outer"]


def test_a_working_directory_is_made(world: World, source: Path) -> None:
    """With the annotation a missing working directory is made in the app's root, wherever links lead; else it fails."""
    (source / "out").symlink_to("/../../tmp/made-for-it")
    words = ("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", f"--volume=v,kind=host,source={source}")
    app = (world.app, "--mount=volume=v,target=/v", "--working-dir=/v/out/deep", "--exec=/bin/busybox")
    made = world.minit(*words, *app, "--annotation=minit/make-working-directory=true", "--", "pwd")
    assert made.stdout.endswith(": /tmp/made-for-it/deep\n")
    assert not Path("/tmp/made-for-it").exists()
    assert "/v/out/deep: no such file" in world.minit(*words, *app, "--", "pwd", code=254).stderr


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ({"propagation": "shared", "subPath": "inner"}, "expected another value with subPath"),
        ({"recursiveReadOnly": False}, "expected nothing for a volume that can be written"),
        (
            {"readOnly": True, "recursiveReadOnly": True, "propagation": "slave"},
            'expected false, or propagation "private"',
        ),
        ({"options": ["exec"]}, "options[0]: expected"),
    ],
)
def test_details_that_cannot_be(world: World, source: Path, detail: dict[str, object], message: str) -> None:
    """Details that contradict each other are one clear error."""
    assert message in run(world, source, {"/v": detail}, "true", code=254)[1]


def test_memory_and_propagation(world: World, source: Path) -> None:
    """A volume in memory is shared by apps, bounded, and has parts; a mount follows the host's, or it does not."""
    image = world.minit("fetch", "--quiet", world.app).stdout.strip()
    mounts = [{"volume": name, "path": path} for name, path in (("m", "/m"), ("m", "/p"), ("v", "/v"), ("v", "/w"))]
    details = {"/p": {"subPath": "parts/p"}, "/v": {"propagation": "private"}, "/w": {"propagation": "slave"}}
    app = {"exec": ["/bin/busybox", "sleep", "1000"], "user": "0", "group": "0"}
    annotations = [{"name": "minit/mounts", "value": json.dumps(details)}]
    manifest = world.root / "pod.json"
    manifest.write_text(
        json.dumps(
            {
                "acVersion": "0.8.11",
                "acKind": "PodManifest",
                "apps": [
                    {"name": "one", "image": {"id": image}, "app": app, "mounts": mounts, "annotations": annotations},
                    {"name": "two", "image": {"id": image}, "app": app, "mounts": mounts[:1]},
                ],
                "volumes": [
                    {"name": "m", "kind": "empty", "mode": "2770", "gid": 7},
                    {"name": "v", "kind": "host", "source": str(source / "outer"), "recursive": True},
                ],
                "annotations": [{"name": "minit/memory-volumes", "value": '{"m":{"size":"1Mi"}}'}],
            }
        )
    )
    uuid_file = world.root / "uuid"
    words = ("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", f"--uuid-file-save={uuid_file}")
    pod = subprocess.Popen(world.command(*words, f"--pod-manifest={manifest}"), env=world.environment())
    wait_for(
        lambda: uuid_file.exists() and world.succeeds("status", "--wait-ready=60s", uuid_file.read_text()), "the pod"
    )
    uuid = uuid_file.read_text()
    (source / "outer" / "late").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "outer" / "late"], check=True)
    (source / "outer" / "late" / "file").touch()

    def enter(app: str, script: str) -> list[str]:
        return world.minit("enter", f"--app={app}", uuid, "/bin/sh", "-c", script).stdout.split()

    script = (
        "busybox stat -f -c '%b %S' /m; busybox stat -c '%a %g' /m /p; echo part > /p/f; busybox ls /v/late /w/late"
    )
    blocks, size, *modes, v, w, file = enter("one", script)
    assert int(blocks) * int(size) == 1 << 20 and modes == ["2770", "7", "2770", "7"]
    assert (v, w, file) == ("/v/late:", "/w/late:", "file")
    assert enter("two", "busybox cat /m/parts/p/f") == ["part"]
    world.minit("stop", uuid)
    assert pod.wait() == 0
