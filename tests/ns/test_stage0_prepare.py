"""The files that prepare leaves in the pod directory, and its remains when it fails."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.stage0_world import DEFAULT_APP, World, image_id, write_app, write_stage1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="prepares pods, which needs root")


def tree_id(image: Path) -> str:
    """Return the tree store id of an image without dependencies."""
    return "deps-sha512-" + hashlib.sha512(image_id(image).encode()).hexdigest()[:64]


def listing(pod: Path, skip: str = "") -> dict[str, tuple[str, int | None]]:
    """Return type with mode, and size of files, of everything in a pod directory but what is below `skip`."""
    found = {}
    for path in sorted([pod, *pod.rglob("*")]):
        name = str(path.relative_to(pod))
        if skip and name.startswith(skip + "/"):
            continue
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (0, 0), name
        kind = "d" if stat.S_ISDIR(status.st_mode) else "l" if stat.S_ISLNK(status.st_mode) else "f"
        found[name] = (f"{kind}{stat.S_IMODE(status.st_mode):04o}", status.st_size if kind == "f" else None)
    return found


@pytest.mark.parametrize("umask", [0o022, 0o077, 0])
def test_overlay_pod(world: World, umask: int) -> None:
    """An overlay pod has exactly the files of the contract, with their modes under any umask, and no mounts."""
    old_umask = os.umask(umask)
    try:
        result = world.minit("prepare", f"--stage1-path={world.stage1}", world.app)
    finally:
        os.umask(old_umask)
    uuid = result.stdout.removesuffix("\n")
    assert (result.stderr, world.pods("prepared")) == ("", [uuid])
    pod = world.pod_path("prepared", uuid)
    files = {
        "appsinfo/busybox/manifest": None,
        "appsinfo/busybox/treeStoreID": tree_id(world.app),
        "overlay-prepared": "",
        "pod": None,
        "pod-created": "",
        "pod.lck": "",
        "stage1/manifest": None,
        "stage1TreeStoreID": tree_id(world.stage1),
    }
    assert listing(pod) == {
        ".": ("d0750", None),
        "appsinfo": ("d0750", None),
        "appsinfo/busybox": ("d0750", None),
        "appsinfo/busybox/manifest": ("f0640", (pod / "appsinfo/busybox/manifest").stat().st_size),
        "appsinfo/busybox/treeStoreID": ("f0640", 76),
        "overlay-prepared": ("f0644", 0),
        "pod": ("f0640", (pod / "pod").stat().st_size),
        "pod-created": ("f0640", 0),
        "pod.lck": ("f0600", 0),
        "stage1": ("d0750", None),
        "stage1/manifest": ("f0640", (pod / "stage1/manifest").stat().st_size),
        "stage1TreeStoreID": ("f0640", 76),
    }
    for name, content in files.items():
        assert content is None or (pod / name).read_text() == content, name
    manifest = json.loads((pod / "pod").read_text())
    assert manifest["apps"][0]["image"]["id"] == image_id(world.app)
    assert not (pod / "pod").read_text().endswith("\n")
    assert json.loads((pod / "stage1/manifest").read_text())["name"] == "example.com/recorder"
    assert json.loads((pod / "appsinfo/busybox/manifest").read_text())["name"] == "example.com/busybox"
    assert world.mounts() == []
    assert (world.data / "locks/prepareLock").stat().st_size == 0


def test_flat_pod(world: World) -> None:
    """Without overlay the pod holds copies of stage1 and of each app, and no tree store id of an app."""
    uuid = world.prepare("--no-overlay", world.app, "--name=one", "---", world.app, "--name=two")
    pod = world.pod_path("prepared", uuid)
    found = listing(pod, skip="stage1/rootfs")
    assert set(found) == {
        *(".", "appsinfo", "appsinfo/one", "appsinfo/one/manifest", "appsinfo/two", "appsinfo/two/manifest"),
        *("pod", "pod-created", "pod.lck", "stage1", "stage1/manifest", "stage1/rootfs", "stage1TreeStoreID"),
    }
    assert (pod / "stage1TreeStoreID").read_text() == tree_id(world.stage1)
    assert (world.data / "cas/tree" / tree_id(world.stage1) / "rendered").exists()
    assert not (world.data / "cas/tree" / tree_id(world.app)).exists()
    rootfs = listing(pod / "stage1/rootfs")
    assert rootfs["ex/run"][0] == "f0755"
    assert rootfs["rkt/status"] == ("d0755", None)
    for app in ("one", "two"):
        assert rootfs[f"opt/stage2/{app}"] == ("d0750", None)
        assert rootfs[f"opt/stage2/{app}/rootfs"] == ("d0755", None)
        assert rootfs[f"opt/stage2/{app}/rootfs/bin/sh"][0].startswith("l")
        assert f"opt/stage2/{app}/manifest" in rootfs


def test_images_of_the_store(world: World) -> None:
    """Images and stage1 are also found by id, prefix of it, name, and name with version."""
    world.minit("fetch", world.app, world.stage1)
    for stage1 in ("--stage1-name=example.com/recorder", f"--stage1-hash={image_id(world.stage1)[:20]}"):
        for app in (image_id(world.app), "example.com/busybox", "example.com/busybox:1.0"):
            uuid = world.minit("prepare", stage1, app).stdout.strip()
            assert (world.pod_path("prepared", uuid) / "stage1TreeStoreID").read_text() == tree_id(world.stage1)


def test_environment_of_all_sources(world: World) -> None:
    """Every source of the environment arrives in the manifest, in rkt's precedence."""
    file = world.root / "env"
    file.write_text("# a comment\n\nFILE=1\nBOTH=file\n")
    uuid = world.minit(
        *("prepare", f"--stage1-path={world.stage1}", "--inherit-env", f"--set-env-file={file}", "--set-env=BOTH=set"),
        *(world.app, "--environment=FROM=flag"),
        FROM="host",
        HOST="yes",
        **cast("dict[str, Any]", {"BASH_FUNC_f%%": "() { :; }", "LATIN": os.fsdecode(b"\xe4")}),
    ).stdout.strip()
    manifest = json.loads(world.minit("cat-manifest", uuid).stdout)
    environment = {pair["name"]: pair["value"] for pair in manifest["apps"][0]["app"]["environment"]}
    expected = {"FROM": "flag", "KEPT": "yes", "FILE": "1", "BOTH": "set", "HOST": "yes"}
    assert {name: environment[name] for name in expected} == expected
    assert not {"BASH_FUNC_f%%", "LATIN"} & set(environment)


def test_what_a_service_manager_says_is_not_inherited(world: World) -> None:
    """The variables of sd_notify(3) and the like are for the process that the manager has started, and for no app."""
    names = ("NOTIFY_SOCKET", "MINIT_NOTIFY_FD", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC")
    words = (f"--stage1-path={world.stage1}", "--inherit-env", world.app)
    uuid = world.minit("prepare", *words, **cast("dict[str, Any]", dict.fromkeys(("HOST", *names), "1"))).stdout.strip()
    manifest = json.loads(world.minit("cat-manifest", uuid).stdout)
    inherited = {pair["name"] for pair in manifest["apps"][0]["app"]["environment"]}
    assert (inherited & {"HOST", *names}) == {"HOST"}


def test_user_manifest(world: World) -> None:
    """A complete pod manifest of the user is copied byte for byte, an incomplete one gets its app sections."""
    world.minit("fetch", world.app)
    app = {"name": "mine", "image": {"id": image_id(world.app)}}
    for extra in ({"app": {"exec": ["/x"], "user": "0", "group": "0"}}, {}):
        pod = {"acKind": "PodManifest", "acVersion": "1.2.3", "apps": [{**app, **extra}]}
        file = world.root / "pod.json"
        file.write_text(json.dumps(pod, indent=3))
        uuid = world.prepare(f"--pod-manifest={file}")
        written = (world.pod_path("prepared", uuid) / "pod").read_text()
        if extra:
            assert written == file.read_text()
        else:
            assert json.loads(written)["apps"][0]["app"]["exec"] == ["/bin/sh", "-c", "true"]
        assert (world.pod_path("prepared", uuid) / "appsinfo/mine/manifest").exists()


def test_manifest_of_the_command_line(world: World) -> None:
    """Options about a pod and its apps arrive in the manifest, and `status` shows the mounts."""
    with_port = world.root / "web.aci"
    ports = [{"name": "http", "protocol": "tcp", "port": 80, "count": 1, "socketActivated": False}]
    points = [{"name": "cache", "path": "/cache", "readOnly": True}]
    write_app(with_port, "example.com/web", {**DEFAULT_APP, "ports": ports, "mountPoints": points})
    result = world.minit(
        *("prepare", "--quiet", f"--stage1-path={world.stage1}", "--port=http:[::1]:8080"),
        "--volume=data,kind=host,source=/srv",
        *("--mount=volume=tmp,target=/tmp", with_port, "--mount=volume=data,target=/data", "--readonly-rootfs"),
        *("--mount", "volume=cache,target=/c", "--memory=64M", "--user-annotation=A=1", "--user-label=L=2"),
        *("--stdin=stream", "--annotation=a/b=c", "---", world.app, "--mount=volume=data,target=/tmp"),
        *("--volume=tmp,kind=empty", "--volume", "cache,kind=empty,mode=0700,uid=1", "--volume=spare,kind=empty"),
    )
    assert result.stderr == 'prepare: warning: no app mounts the volume "spare"\n'
    uuid = result.stdout.strip()
    manifest = json.loads(world.minit("cat-manifest", uuid).stdout)
    web, busybox = manifest["apps"]
    assert manifest["volumes"] == [
        {"name": "data", "kind": "host", "source": "/srv"},
        {"name": "tmp", "kind": "empty", "mode": "0755", "uid": 0, "gid": 0},
        {"name": "cache", "kind": "empty", "mode": "0700", "uid": 1, "gid": 0},
        {"name": "spare", "kind": "empty", "mode": "0755", "uid": 0, "gid": 0},
    ]
    assert manifest["ports"] == [{"name": "http", "hostPort": 8080, "hostIP": "::1"}]
    assert web["readOnlyRootFS"] is True
    assert web["mounts"] == [
        {"volume": "data", "path": "/data"},
        {"volume": "cache", "path": "/c"},
        {"volume": "tmp", "path": "/tmp"},
    ]
    assert web["annotations"] == [
        {"name": "a/b", "value": "c"},
        {"name": "coreos.com/rkt/stage2/stdin", "value": "stream"},
    ]
    limit = {"default": False, "request": "64M", "limit": "64M"}
    assert web["app"]["isolators"] == [{"name": "resource/memory", "value": limit}]
    assert busybox["mounts"] == [{"volume": "data", "path": "/tmp"}]
    assert not {"readOnlyRootFS", "annotations"} & set(busybox)
    shown = json.loads(world.minit("status", "--format=json", uuid).stdout)["apps"]
    assert shown[0]["mounts"] == [
        {"name": "data", "container_path": "/data", "host_path": "/srv", "read_only": False},
        {"name": "cache", "container_path": "/c", "host_path": "", "read_only": True},
        {"name": "tmp", "container_path": "/tmp", "host_path": "", "read_only": False},
    ]
    assert (shown[0]["user_annotations"], shown[0]["user_labels"]) == ({"A": "1"}, {"L": "2"})
    assert shown[1]["mounts"] == [{"name": "data", "container_path": "/tmp", "host_path": "/srv", "read_only": False}]


def assert_nothing_left(world: World) -> None:
    """Check that no pod is anywhere, and nothing mounted or locked."""
    for place in ("embryo", "prepare", "prepared", "run", "exited-garbage", "garbage"):
        assert world.pods(place) == [], place
    assert world.mounts() == []
    tmp = world.data / "minit/cas/tmp"
    assert not tmp.exists() or os.listdir(tmp) == []


def fails(world: World, *words: object) -> str:
    """Run a command that must fail with one line and leave nothing."""
    result = world.minit(*words, code=254)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert_nothing_left(world)
    return result.stderr.removesuffix("\n")


def test_bad_input(world: World) -> None:
    """Every kind of bad input ends with one line and 254, and leaves no pod."""
    with_stage1 = ("prepare", f"--stage1-path={world.stage1}")
    junk = world.root / "junk.aci"
    junk.write_bytes(b"no tar" * 1000)
    bare = world.root / "bare.aci"
    write_app(bare, app=None)
    unlabelled = world.root / "unlabelled.aci"
    write_app(unlabelled, labels={"version": "1"})
    wrong = world.root / "wrong.aci"
    write_app(wrong, app={"exec": "/bin/sh", "user": "0", "group": "0"})
    manifest = world.root / "pod.json"

    assert "junk.aci" in fails(world, *with_stage1, junk)
    assert "no such file or directory" in fails(world, *with_stage1, world.root / "missing.aci")
    assert "not in the store" in fails(world, *with_stage1, "example.com/missing")
    assert "not in the store" in fails(world, *with_stage1, "sha512-" + "0" * 64)
    assert "does not download" in fails(world, *with_stage1, "https://example.com/busybox.aci")
    assert "--exec=BINARY" in fails(world, *with_stage1, bare)
    assert 'no label "os"' in fails(world, *with_stage1, unlabelled)
    assert "app.exec" in fails(world, *with_stage1, wrong)
    assert 'several apps are named "busybox"' in fails(world, *with_stage1, world.app, world.app)
    assert "cannot read the pod manifest" in fails(world, *with_stage1, f"--pod-manifest={manifest}")
    manifest.write_text('{"acKind":"PodManifest","acVersion":"1.0.0","apps":[{"name":"A b"}]}')
    assert "apps[0].name" in fails(world, *with_stage1, f"--pod-manifest={manifest}")
    both = [{"name": "a", "image": {"id": image_id(world.app)}}] * 2
    manifest.write_text(json.dumps({"acKind": "PodManifest", "acVersion": "1.0.0", "apps": both}))
    assert "apps[1].name" in fails(world, *with_stage1, f"--pod-manifest={manifest}")
    assert "--pod-manifest excludes" in fails(world, *with_stage1, f"--pod-manifest={manifest}", world.app)
    assert "exclude each other" in fails(world, *with_stage1, "--stage1-name=x", world.app)
    assert "--set-env: expected NAME=VALUE" in fails(world, *with_stage1, "--set-env=x", world.app)
    assert "cannot save the UUID" in fails(
        world, "run", f"--stage1-path={world.stage1}", "--uuid-file-save=/nonexistent/uuid", world.app
    )
    assert "half a surrogate pair" in fails(world, *with_stage1, world.app, "--", os.fsdecode(b"\xff"))
    assert "--set-env-file: /nonexistent: no such file" in fails(
        world, *with_stage1, "--set-env-file=/nonexistent", world.app
    )
    variables = world.root / "env"
    variables.write_text("A=1\n\nB\n")
    assert f'--set-env-file: {variables} line 3: expected NAME=VALUE, got "B"' in fails(
        world, *with_stage1, f"--set-env-file={variables}", world.app
    )
    variables.write_bytes(b"A=\xff\n")
    assert f"--set-env-file: {variables}: expected UTF-8, got 0xff" in fails(
        world, *with_stage1, f"--set-env-file={variables}", world.app
    )
    assert '--port: no app has a port named "http"' in fails(world, *with_stage1, "--port=http:80", world.app)
    volume = "--volume=v,kind=empty"
    mount = "--mount=volume=v,target=/x"
    assert "--mount: several mounts of one app have the target /x" in fails(
        world, *with_stage1, volume, world.app, mount, mount
    )
    assert "half a surrogate pair" in fails(
        world, *with_stage1, volume, world.app, "--mount=volume=v,target=" + os.fsdecode(b"/\xff")
    )


def test_words_behind_an_image(world: World) -> None:
    """A word that means no image begins the arguments; one that means an image is one, also where it is missing."""
    stage1 = f"--stage1-path={world.stage1}"
    uuid = world.minit("prepare", stage1, world.app, "echo", "-n", "x", "--", "y").stdout.strip()
    [app] = json.loads((world.data / "pods/prepared" / uuid / "pod").read_text())["apps"]
    assert app["app"]["exec"][-5:] == ["echo", "-n", "x", "--", "y"]
    uuid = world.minit("prepare", stage1, world.app, "example.com/busybox", "--name=b").stdout.strip()
    assert len(json.loads((world.data / "pods/prepared" / uuid / "pod").read_text())["apps"]) == 2
    error = world.minit("prepare", stage1, world.app, "example.com/none", code=254).stderr
    assert error.startswith('prepare: image "example.com/none" is not in the store')
    assert error.endswith(" (arguments of an app follow --)\n")


def test_old_kernel(world: World) -> None:
    """On a kernel before 5.12 nothing is prepared or run."""
    for words in (("prepare", f"--stage1-path={world.stage1}", world.app), ("run-prepared", "x")):
        result = subprocess.run(
            ["setarch", os.uname().machine, "--uname-2.6", *world.command(*words)],
            env=world.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 254
        assert result.stderr.startswith(f"{words[0]}: Linux 2.6.")
        assert result.stderr.endswith(" is too old: minit needs 5.12 or newer\n")
    assert_nothing_left(world)


def test_unfit_stage1(world: World) -> None:
    """A stage1 image that cannot be run is refused before there is a pod."""
    other = world.root / "other.aci"
    write_stage1(other, entrypoints=("gc",))
    assert 'declares no "run" entrypoint' in fails(world, "prepare", f"--stage1-path={other}", world.app)
    write_stage1(other, version="six")
    assert 'interface version "six" is no number' in fails(world, "prepare", f"--stage1-path={other}", world.app)
    write_stage1(other, with_status=False)
    assert "has no directory /rkt/status" in fails(world, "prepare", f"--stage1-path={other}", world.app)
    world.minit("prepare", "--no-overlay", f"--stage1-path={other}", world.app)


def test_app_of_the_stage1_image(world: World) -> None:
    """The stage1 image cannot be an overlay app too, since their upper layers would be one."""
    assert "that needs --no-overlay" in fails(
        world, "prepare", f"--stage1-path={world.stage1}", world.stage1, "--exec=/ex/run"
    )


@pytest.mark.parametrize("no_overlay", [[], ["--no-overlay"]])
def test_full_disk(world: World, no_overlay: list[str]) -> None:
    """On a full disk preparing ends with one line that says so, at whatever moment, and leaves no pod."""
    world.data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", world.data], check=True)
    try:
        # The images are in the store, so that what fails is preparing.
        world.minit("fetch", world.app, world.stage1)
        filler = world.data / "filler"
        words = ["prepare", *no_overlay, f"--stage1-hash={image_id(world.stage1)}", image_id(world.app)]
        failures = 0
        for free_pages in range(0, 40):
            filler.unlink(missing_ok=True)
            with open(filler, "wb", buffering=0) as file:
                free = os.statvfs(world.data)
                file.write(bytes((free.f_bfree - free_pages) * free.f_bsize))
            result = subprocess.run(
                world.command(*words), env=world.environment(), capture_output=True, text=True, check=False
            )
            if result.returncode == 0:
                world.minit("rm", result.stdout.strip())
                break
            failures += 1
            assert result.returncode == 254
            assert "no space left on device" in result.stderr
            assert result.stderr.count("\n") == 1, result.stderr
            for place in ("embryo", "prepare", "prepared", "run", "garbage"):
                assert world.pods(place) == [], place
            if no_overlay and failures > 3:
                break
        assert failures > 0
    finally:
        subprocess.run(["umount", world.data], check=True)


@pytest.fixture
def preparing(world: World) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A preparer that waits for a lock in the middle of its work, and its pod."""
    locks = world.data / "locks"
    locks.mkdir(parents=True)
    fifo = world.root / "uuid"
    os.mkfifo(fifo)
    with open(locks / "prepareLock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            world.command("run", f"--stage1-path={world.stage1}", f"--uuid-file-save={fifo}", world.app),
            env=world.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        with open(fifo) as file:
            uuid = file.read()
        yield process, uuid
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_killed_while_preparing(world: World, preparing: tuple[subprocess.Popen[str], str]) -> None:
    """A pod whose preparer was killed is an aborted prepare, which gc removes."""
    process, uuid = preparing
    assert world.pods("prepare") == [uuid]
    assert world.minit("status", uuid).stdout.startswith("state=preparing\n")
    assert f'pod "{uuid}" is preparing, not removed' in world.minit("rm", uuid, code=254).stderr
    assert world.minit("gc", "--grace-period=0s").stdout == ""
    process.kill()
    process.wait()
    assert world.minit("status", uuid).stdout == "state=aborted prepare\ncreated=0001-01-01 00:00:00 +0000 UTC\n"
    assert world.minit("list", "--format=json").stdout == "null\n"
    assert world.minit("list", "--no-legend").stdout.startswith(f"{uuid[:8]}\t-\t-\taborted prepare\ta long while ago")
    result = world.minit("gc")
    assert result.stderr == f'gc: moving failed prepare "{uuid}" to garbage\n'
    assert result.stdout == f'Garbage collecting pod "{uuid}"\n'
    assert_nothing_left(world)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_preparing(
    world: World, preparing: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM while a pod is being prepared remove it; no message is needed."""
    process, _ = preparing
    process.send_signal(number)
    _, stderr = process.communicate()
    assert (process.returncode, stderr.strip()) == (128 + number, "")
    assert_nothing_left(world)
