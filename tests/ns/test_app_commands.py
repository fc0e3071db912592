"""`minit app …`, with a stage1 that writes down how its entrypoints are called."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.linux.loop import wait_readable
from tests.support.processes import children_of
from tests.support.stage0_world import RunningPod, World, image_id, write_app, write_stage1
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

APP_ENTRYPOINTS = ("app/add", "app/start", "app/stop", "app/rm")
ENTRYPOINTS = ("run", "enter", "gc", "stop", *APP_ENTRYPOINTS)


@pytest.fixture
def world(world: World) -> World:
    """A data directory of its own, and a stage1 for mutable pods."""
    write_stage1(world.stage1, entrypoints=ENTRYPOINTS)
    return world


@pytest.fixture(params=[[], ["--no-overlay"]], ids=["overlay", "flat"])
def pod(world: World, request: pytest.FixtureRequest) -> Iterator[RunningPod]:
    """A pod without apps that runs."""
    with world.start_sandbox(*request.param) as pod:
        yield pod


@pytest.fixture
def flat_pod(world: World) -> Iterator[RunningPod]:
    """A pod without apps and without overlays that runs."""
    with world.start_sandbox("--no-overlay") as pod:
        yield pod


def manifest_of(world: World, pod: RunningPod) -> dict[str, Any]:
    """Return the manifest of a running pod."""
    manifest = json.loads((world.pod_path("run", pod.uuid) / "pod").read_bytes())
    assert isinstance(manifest, dict)
    return manifest


def contents(world: World, pod: RunningPod) -> dict[str, object]:
    """Return all that changes with a pod's apps: its files, what is mounted, and its manifest."""
    path = world.pod_path("run", pod.uuid)
    # Those of stage1 are seen where it is mounted; directories that were opened once stay in its own layer.
    own = f"overlay/{(path / 'stage1TreeStoreID').read_text()}/"
    files = {name for file in path.rglob("*") if not (name := str(file.relative_to(path))).startswith(own)}
    return {"files": files, "mounts": world.mounts(), "manifest": manifest_of(world, pod)}


def status(world: World, pod: RunningPod, app: str) -> dict[str, object]:
    """Return what `app status` says in JSON."""
    found = json.loads(world.minit("app", "status", "--format=json", f"--app={app}", pod.uuid).stdout)
    assert isinstance(found, dict)
    return found


def root_of(world: World, pod: RunningPod) -> Path:
    """Return the root of stage1."""
    return world.pod_path("run", pod.uuid) / "stage1/rootfs"


def test_sandbox(world: World) -> None:
    """An empty mutable pod is run in the foreground, and stage1 is told that it is one."""
    user = ("--annotation=example.com/a=b", "--user-annotation=u=v", "--user-label=l=m")
    ports = ("--port=http:tcp:8080:0.0.0.0:80", "--port=dns:udp:53:[::1]:5353")
    with world.start_sandbox("--net", "default", "--hostname=h", *ports, *user) as pod:
        words = world.call("run").argv[1:]
        assert words == ["--net=default", "--local-config=/etc/rkt", "--hostname=h", "--mutable", pod.uuid]
        assert manifest_of(world, pod) == {
            "acVersion": "0.8.11",
            "acKind": "PodManifest",
            "apps": [],
            "volumes": None,
            "isolators": None,
            "annotations": [
                {"name": "coreos.com/rkt/stage1/mutable", "value": "true"},
                {"name": "minit/dns", "value": "host"},
                {"name": "minit/pod-names", "value": "true"},
                {"name": "minit/seccomp-errno", "value": "EPERM"},
                {"name": "example.com/a", "value": "b"},
            ],
            "ports": [
                {
                    "name": name,
                    "hostPort": host_port,
                    "hostIP": address,
                    "podPort": {"name": name, "protocol": protocol, "port": port, "count": 1, "socketActivated": False},
                }
                for name, protocol, port, address, host_port in (
                    ("http", "tcp", 8080, "0.0.0.0", 80),
                    ("dns", "udp", 53, "::1", 5353),
                )
            ],
            "userAnnotations": {"u": "v"},
            "userLabels": {"l": "m"},
        }
        assert world.minit("app", "list", pod.uuid).stdout == "NAME\tSTATE\n"
        assert world.minit("app", "list", "--no-legend", pod.uuid).stdout == ""
    assert pod.process.returncode == 0


def test_an_unfit_stage1(world: World) -> None:
    """A stage1 without entrypoints for apps is refused, with rkt's exit code, and leaves no pod."""
    write_stage1(world.stage1)
    result = world.minit("app", "sandbox", f"--stage1-path={world.stage1}", code=1)
    assert result.stderr.startswith("sandbox: stage1 does not support mutable pods")
    assert world.pods("run") == world.pods("prepare") == []


def test_a_detached_sandbox(world: World) -> None:
    """The command ends when the pod is ready, with its UUID, and the pod goes on."""
    hold = world.dump / "hold"
    os.mkfifo(hold)
    said = world.minit("app", "sandbox", "--detach", f"--stage1-path={world.stage1}").stdout
    [uuid] = world.pods("run")
    assert said == f"{uuid}\n"
    assert world.minit("status", uuid).stdout.startswith("state=running")
    with open(hold, "w"):
        pass
    world.minit("status", "--wait", uuid)


def test_a_detached_sandbox_that_fails(world: World) -> None:
    """A pod that ends before it is ready is a failure."""
    (world.dump / "code").write_text("7")
    result = world.minit("app", "sandbox", "--detach", f"--stage1-path={world.stage1}", code=1)
    assert result.stderr.endswith("ended before it was ready: its stage1 exited with 7\n")


def test_the_life_of_an_app(world: World, pod: RunningPod) -> None:
    """Every entrypoint is called as rkt does, what it prints is shown, and after `rm` all is as it was before."""
    path = world.pod_path("run", pod.uuid)
    before = contents(world, pod)
    added = world.minit(
        *("app", "add", pod.uuid[:8], world.app, "--name=one", "--environment=A=b", "--user-label=x=y"),
        *("--mnt-volume=name=data,kind=host,source=/tmp,target=/mnt,readOnly=true", "--", "-c", "exit 3"),
    )
    assert (added.stdout, added.stderr) == ("", "app-add on stdout\napp-add on stderr\n")
    for verb in ("start", "stop"):
        assert world.minit("app", verb, "--app=one", pod.uuid).stderr.startswith(f"app-{verb} on")
        if verb == "start":
            running = status(world, pod, "one")
    for entrypoint in ("add", "start", "stop"):
        call = world.call(f"app-{entrypoint}")
        uuid = [f"--uuid={pod.uuid}"] if entrypoint == "add" else []
        assert call.argv == [f"{path}/stage1/rootfs/ex/app-{entrypoint}", "--debug=false", *uuid, "--app=one"]
        assert call.cwd == str(path)
        assert call.fds[0] == "/dev/null"
        assert {name: value for name, value in call.environment.items() if name != "PWD"} == {
            "RKT_STAGE1_ENTERCMD": f"{path}/stage1/rootfs/ex/enter",
            "RKT_STAGE1_ENTERPID": str(pod.process.pid),
            "PATH": os.environ["PATH"],
        }
    [app] = manifest_of(world, pod)["apps"]
    assert app["name"] == "one"
    assert app["image"]["id"] == image_id(world.app)
    assert app["app"]["exec"] == ["/bin/sh", "-c", "exit 3"]  # not after those of the image
    assert app["mounts"] == [
        {
            "volume": "data",
            "path": "/mnt",
            "appVolume": {"name": "data", "kind": "host", "source": "/tmp", "readOnly": True},
        }
    ]
    environment = (root_of(world, pod) / "rkt/env/one").read_text().splitlines()
    assert environment[0].startswith("PATH=/usr/local/sbin")
    assert environment[-4:] == ["FROM=image", "KEPT=yes", "A=b", "AC_APP_NAME=one"]
    assert os.readlink(root_of(world, pod) / "opt/stage2/one/rootfs/etc/mtab") == "../proc/self/mounts"
    assert (running["state"], running["lifecycle_state"], "exit_code" in running) == ("running", "running", False)
    (root_of(world, pod) / "rkt/status/one").write_text("3\n")
    ended = status(world, pod, "one")
    assert (ended["state"], ended["lifecycle_state"], ended["exit_code"]) == ("exited", "exited", 3)
    world.minit("app", "rm", "--app=one", pod.uuid)
    assert world.call("app-rm").argv[1:] == ["--debug=false", "--app=one"]
    assert contents(world, pod) == before


def test_states(world: World, flat_pod: RunningPod) -> None:
    """An app is created, running and exited by its markers, for `list` and `status` of the pod as well."""
    world.minit("app", "add", flat_pod.uuid, world.app)
    assert world.minit("app", "list", flat_pod.uuid).stdout == "NAME\tSTATE\nbusybox\tcreated\n"
    [app] = json.loads(world.minit("status", "--format=json", flat_pod.uuid).stdout)["apps"]
    assert app["state"] == "created"
    world.minit("app", "start", "--app=busybox", flat_pod.uuid)
    started = status(world, flat_pod, "busybox")["started_at"]
    world.minit("app", "start", "--app=busybox", flat_pod.uuid)
    assert status(world, flat_pod, "busybox")["started_at"] == started  # it is the same one
    (root_of(world, flat_pod) / "rkt/status/busybox").write_text("7\n")
    text = world.minit("app", "status", "--app=busybox", flat_pod.uuid).stdout.splitlines()
    assert [line.partition("=")[0] for line in text] == [
        *("name", "state", "image_id", "created_at", "started_at", "finished_at", "exit_code")
    ]
    assert (text[1], text[-1]) == ("state=exited", "exit_code=7")
    world.minit("app", "start", "--app=busybox", flat_pod.uuid)
    again = status(world, flat_pod, "busybox")
    assert (again["state"], again["started_at"] == started) == ("running", False)


def test_a_failed_add_leaves_nothing(world: World, pod: RunningPod) -> None:
    """When stage1 fails to add an app everything is taken back, its own part too, and its words are shown."""
    before = contents(world, pod)
    (world.dump / "app-add-code").write_text("9")
    result = world.minit("app", "add", pod.uuid, world.app, "--name=one", code=254)
    assert "app-add on stderr" in result.stderr
    assert result.stderr.endswith("add: error adding app to pod: stage1's app/add failed: exit status 9\n")
    assert world.call("app-rm").argv[1:] == ["--debug=false", "--app=one"]
    assert contents(world, pod) == before


def test_an_add_that_cannot_be_taken_back(world: World, flat_pod: RunningPod) -> None:
    """The failure of the clean-up is told with the command that finishes it."""
    before = contents(world, flat_pod)
    (world.dump / "app-add-code").write_text("9")
    (world.dump / "app-rm-code").write_text("8")
    error = world.minit("app", "add", flat_pod.uuid, world.app, "--name=one", code=254).stderr
    assert f"remove it with: minit app rm {flat_pod.uuid} --app=one" in error
    assert ("exit status 9" in error, "exit status 8" in error) == (True, True)
    (world.dump / "app-rm-code").unlink()
    world.minit("app", "rm", flat_pod.uuid, "--app=one")
    assert contents(world, flat_pod) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_add(world: World, flat_pod: RunningPod, number: int) -> None:
    """An add that is told to end takes back what it did."""
    before = contents(world, flat_pod)
    process = _add_until_stage1(world, flat_pod)
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert contents(world, flat_pod) == before


def test_an_add_that_was_killed(world: World, pod: RunningPod) -> None:
    """Its part of stage1 ends with it, and its remains can be removed, or replaced by another app of the name."""
    before = contents(world, pod)
    process = _add_until_stage1(world, pod)
    [stage1] = children_of(process.pid)
    pidfd = os.pidfd_open(stage1)
    process.kill()
    process.wait()
    assert wait_readable([pidfd], 60.0)
    os.close(pidfd)
    (world.dump / "app-add-hold").unlink()
    world.minit("app", "rm", pod.uuid, "--app=busybox")
    assert contents(world, pod) == before


def _add_until_stage1(world: World, pod: RunningPod) -> subprocess.Popen[bytes]:
    """Return a process that adds an app, and is in the middle of stage1's part."""
    os.mkfifo(world.dump / "app-add-hold")
    command = world.command("app", "add", pod.uuid, world.app)
    process = subprocess.Popen(command, env=world.environment(), stderr=subprocess.DEVNULL)
    wait_for((world.dump / "app-add.fds").exists, "stage1's app/add")
    return process


def test_leftovers_of_an_app_of_the_same_name(world: World, pod: RunningPod) -> None:
    """Neither the markers that rkt leaves when it removes an app nor the files of a killed add reach the next one."""
    root, path = root_of(world, pod), world.pod_path("run", pod.uuid)
    for name in ("busybox", "busybox-created", "busybox-started"):
        (root / "rkt/status" / name).write_text("7\n")
    (path / "appsinfo/busybox").mkdir()
    (path / "appsinfo/busybox/manifest").write_text("half")
    (root / "opt/stage2/busybox/rootfs").mkdir(parents=True)
    (root / "opt/stage2/busybox/rootfs/old").write_text("old")
    world.minit("app", "add", pod.uuid, world.app)
    assert status(world, pod, "busybox")["state"] == "created"
    assert not (root / "opt/stage2/busybox/rootfs/old").exists()


def test_a_sibling_of_the_same_image(world: World) -> None:
    """Removing an app leaves what another app of its image has written, with which rkt makes away."""
    with world.start_sandbox() as pod:
        for name in ("one", "two"):
            world.minit("app", "add", pod.uuid, world.app, f"--name={name}")
        file = root_of(world, pod) / "opt/stage2/two/rootfs/file"
        file.write_text("mine")
        world.minit("app", "rm", pod.uuid, "--app=one")
        assert file.read_text() == "mine"
        [layers] = [each for each in (world.pod_path("run", pod.uuid) / "overlay").iterdir() if "two" in _upper(each)]
        assert _upper(layers) == ["two"]


def _upper(layers: Path) -> list[str]:
    return sorted(os.listdir(layers / "upper"))


def test_what_cannot_be_added(world: World, flat_pod: RunningPod) -> None:
    """It is refused in one line, and nothing is left of it."""
    world.minit("app", "add", flat_pod.uuid, world.app)
    write_app(world.root / "bare.aci", "example.com/bare", app=None)
    before = contents(world, flat_pod)
    for words, text in (
        (["busybox.aci"], "multiple apps with name busybox: give it another one with --name"),
        (["busybox.aci", "--name=b", "--mount=volume=none,target=/a"], 'the pod has no volume "none"'),
        (["bare.aci", "--name=b"], '"app" section (try --exec=BINARY)'),
        (["busybox.aci", "bare.aci"], "must give only one app"),
        ([], "must provide the pod UUID and an IMAGE"),
        (["none.aci"], "no such file or directory"),
    ):
        error = world.minit("app", "add", flat_pod.uuid, *words, code=254).stderr
        assert text in error
        assert error.count("\n") == 1
        assert contents(world, flat_pod) == before


def test_a_volume_of_the_pod(world: World) -> None:
    """An app can mount what the sandbox has."""
    with world.start_sandbox("--no-overlay", "--volume=shared,kind=empty") as pod:
        world.minit("app", "add", pod.uuid, world.app, "--mount=volume=shared,target=/shared")
        [app] = manifest_of(world, pod)["apps"]
        assert app["mounts"] == [{"volume": "shared", "path": "/shared"}]


def test_an_app_that_does_not_start(world: World, flat_pod: RunningPod) -> None:
    """It does not seem to run, as with rkt, and a status that stage1 wrote is its status."""
    world.minit("app", "add", flat_pod.uuid, world.app)
    (world.dump / "app-start-code").write_text("254")
    error = world.minit("app", "start", flat_pod.uuid, "--app=busybox", code=254).stderr
    assert error.endswith("start: error starting app: stage1's app/start failed: exit status 254\n")
    assert status(world, flat_pod, "busybox")["state"] == "created"
    (root_of(world, flat_pod) / "ex/app-start").chmod(0)
    error = world.minit("app", "start", flat_pod.uuid, "--app=busybox", code=254).stderr
    assert "cannot execute stage1's entrypoint" in error
    assert status(world, flat_pod, "busybox")["state"] == "created"


def test_stopping(world: World, flat_pod: RunningPod) -> None:
    """A stage1 may say that it does not know the app; any other failure is one."""
    world.minit("app", "add", flat_pod.uuid, world.app)
    (world.dump / "app-stop-code").write_text("5")
    world.minit("app", "stop", flat_pod.uuid, "--app=busybox")
    (world.dump / "app-stop-code").write_text("7")
    error = world.minit("app", "stop", flat_pod.uuid, "--app=busybox", code=254).stderr
    assert error.endswith("stop: error stopping app: stage1's app/stop failed: exit status 7\n")
    before = contents(world, flat_pod)
    world.minit("app", "rm", flat_pod.uuid, "--app=busybox", code=254)
    assert contents(world, flat_pod) == before


def test_bad_calls(world: World, flat_pod: RunningPod) -> None:
    """A missing or unknown name is told."""
    for words, text in (
        (["start"], "must provide the pod UUID"),
        (["stop", flat_pod.uuid], "must provide the app to stop"),
        (["start", flat_pod.uuid, "--app=none"], 'error starting app: nonexistent app "none" (apps: none)'),
        (["stop", flat_pod.uuid, "--app=none"], 'error stopping app: nonexistent app "none" (apps: none)'),
        (["rm", flat_pod.uuid, "--app=none"], 'error removing app: nonexistent app "none" (apps: none)'),
        (["rm", flat_pod.uuid, "--app=../.."], "--app: expected lower-case letters"),
        (["rm", "1" * 36, "--app=none"], "no matches found"),
    ):
        assert text in world.minit("app", *words, code=254).stderr


def test_views_fail_as_rkts(world: World, flat_pod: RunningPod) -> None:
    """The exit code of `app list` and `app status` is 1 when they fail."""
    for words, text in (
        (("list",), "must provide the pod UUID"),
        (("status", flat_pod.uuid), "must provide the app"),
        (("status", flat_pod.uuid, "--app=none"), 'cannot find app "none" in the pod'),
        (("list", "1" * 36), "no matches found"),
    ):
        assert text in world.minit("app", *words, code=1).stderr


def test_an_immutable_pod(world: World) -> None:
    """Its apps are shown, and nothing else can be done with them."""
    with world.start("--net=none", "--no-overlay", world.app) as pod:
        assert world.minit("app", "list", pod.uuid).stdout == "NAME\tSTATE\nbusybox\trunning\n"
        changes = [(verb, pod.uuid, "--app=busybox") for verb in ("start", "stop", "rm")]
        for words in (*changes, ("add", pod.uuid, world.app, "--name=b")):
            assert ": immutable pod" in world.minit("app", *words, code=254).stderr


def test_a_pod_that_is_not_ready(world: World) -> None:
    """Nothing is done to it, and the command says how to wait."""
    with world.start_sandbox("--no-overlay") as pod:
        (root_of(world, pod) / "rkt/supervisor-status").unlink()
        error = world.minit("app", "add", pod.uuid, world.app, code=254).stderr
        assert f'supervisor for pod "{pod.uuid}" is not yet ready' in error


@pytest.mark.parametrize(("keep", "rebooted"), [("true", False), ("false", True)])
def test_a_pod_that_has_ended(world: World, keep: str, rebooted: bool) -> None:
    """Apps can be removed from it, without stage1 and without mounts, their logs too unless they are to be kept."""
    with world.start_sandbox() as pod:
        world.minit("app", "add", pod.uuid, world.app, f"--annotation=minit/keep-logs={keep}")
        logs = root_of(world, pod) / "rkt/minit/log"
        logs.mkdir(parents=True)
        for name in ("busybox.log", "busybox.log.1", "busybox-2.log"):
            (logs / name).write_text("said")
    if rebooted:
        world.clean_up()
    add = world.minit("app", "add", pod.uuid, world.app, code=254)
    assert "isn't currently running" in add.stderr
    said = world.minit("app", "stop", pod.uuid, "--app=busybox").stdout
    assert said == f'pod "{pod.uuid}" is already stopped\n'
    assert status(world, pod, "busybox")["state"] == "exited"
    shutil.rmtree(world.dump)
    world.minit("app", "rm", pod.uuid, "--app=busybox")
    assert not world.dump.exists()
    assert manifest_of(world, pod)["apps"] == []
    path = world.pod_path("run", pod.uuid)
    left = {file.name for file in path.rglob("busybox*")}
    assert left == {"busybox-2.log"} | ({"busybox.log", "busybox.log.1"} if keep == "true" else set())


def test_several_at_once(world: World) -> None:
    """Apps that are added and removed at the same time are all there, or all gone."""
    with world.start_sandbox() as pod:
        world.minit("fetch", world.app)
        before = manifest_of(world, pod)

        def together(*commands: tuple[str, ...]) -> None:
            words = [world.command("app", *command) for command in commands]
            running = [subprocess.Popen(each, env=world.environment(), stderr=subprocess.DEVNULL) for each in words]
            assert [process.wait() for process in running] == [0] * len(commands)

        names = ("a", "b", "c")
        together(*(("add", pod.uuid, "example.com/busybox", f"--name={name}") for name in names))
        apps = manifest_of(world, pod)["apps"]
        assert sorted(app["name"] for app in apps) == list(names)
        together(*(("rm", pod.uuid, f"--app={name}") for name in names))
        assert manifest_of(world, pod) == before
