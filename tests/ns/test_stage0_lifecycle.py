"""The life of pods after they are prepared: run, looked at, waited for, marked and removed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import time

import pytest

from minit.stage0.files.untrusted import remove_content
from tests.support.stage0_world import World, image_id, write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

PLACES = ("embryo", "prepare", "prepared", "run", "exited-garbage", "garbage")


@pytest.fixture
def exited(world: World) -> str:
    """The UUID of a pod that has exited."""
    world.minit("run", f"--stage1-path={world.stage1}", "--net=none", world.app)
    [uuid] = world.pods("run")
    return uuid


def all_pods(world: World) -> dict[str, list[str]]:
    """Return the pods by place."""
    return {place: world.pods(place) for place in PLACES if world.pods(place)}


def state(world: World, uuid: str) -> str:
    """Return a pod's state as status prints it."""
    return world.minit("status", uuid).stdout.splitlines()[0].removeprefix("state=")


def test_run_prepared(world: World) -> None:
    """run-prepared moves the pod to run and passes all run flags on, --local-config and --ipc too."""
    uuid = world.prepare()
    world.minit(
        *("run-prepared", "--debug", "--net=host", "--hostname=foo", "--insecure-options=all-run", "--ipc=auto"),
        *("--local-config=/l", uuid[:6]),
    )
    assert all_pods(world) == {"run": [uuid]}
    assert world.call("run").argv[1:] == [
        *("--debug", "--net=host", "--local-config=/l", "--hostname=foo"),
        *("--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp", "--ipc=auto", uuid),
    ]
    result = world.minit("run-prepared", uuid, code=254)
    assert result.stderr == f'run-prepared: pod "{uuid}" is not prepared: its state is "exited"\n'


def test_run_prepared_by_four_at_once(world: World) -> None:
    """Of several run-prepared one wins, and the others say so at once instead of waiting for the pod's end."""
    uuid = world.prepare()
    os.mkfifo(world.dump / "hold")
    processes = [
        subprocess.Popen(
            world.command("run-prepared", uuid), env=world.environment(), stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    with open(world.dump / "hold", "w"):
        # The winner waits for us; all others end by themselves.
        pid = int((world.pod_path("run", uuid) / "pid").read_text())
        [winner] = [process for process in processes if process.pid == pid]
        for process in processes:
            if process is not winner:
                _, stderr = process.communicate(timeout=90)
                assert process.returncode == 254
                assert "is already being run" in stderr or "is not prepared" in stderr or "no longer" in stderr
        assert winner.poll() is None
        assert state(world, uuid) == "running"
    assert winner.wait() == 0
    assert winner.stderr is not None
    winner.stderr.close()


def test_run_prepared_of_a_locked_pod(world: World) -> None:
    """A prepared pod whose lock is held is being run by somebody else."""
    uuid = world.prepare()
    fd = os.open(world.pod_path("prepared", uuid), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert "is already being run" in world.minit("run-prepared", uuid, code=254).stderr
    os.close(fd)
    world.minit("run-prepared", uuid)


def test_interactive_needs_one_app(world: World) -> None:
    """--interactive with two apps is refused, and no pod is left."""
    two = (world.app, "--name=a", "---", world.app, "--name=b")
    result = world.minit("run", f"--stage1-path={world.stage1}", "--interactive", *two, code=254)
    assert result.stderr == "run: --interactive needs a pod of exactly one app, this one has 2\n"
    assert all_pods(world) == {}


def test_tree_that_is_gone(world: World) -> None:
    """A prepared pod whose tree was removed cannot run; it has ended then, and gc removes it."""
    uuid = world.prepare()
    subprocess.run(["rm", "-r", world.data / "cas/tree"], check=True)
    assert "needs a tree that is not in the store" in world.minit("run-prepared", uuid, code=254).stderr
    assert state(world, uuid) == "exited"
    assert "skipping stage1 GC" in world.minit("gc", "--grace-period=0s").stderr
    assert all_pods(world) == {}


def test_status_of_statuses(world: World) -> None:
    """status shows what stage1 left in the status files, in text and in JSON."""
    with world.start("--net=none", world.app, "--name=one", "---", world.app, "--name=two") as pod:
        path = world.pod_path("run", pod.uuid)
        status = path / "stage1/rootfs/rkt/status"
        (status / "one").write_text("42\n")
        created = (path / "pod-created").stat()
        started = (path / "pid").stat()
        lines = world.minit("status", pod.uuid, TZ="UTC").stdout.splitlines()
        assert lines[0] == "state=running"
        assert lines[1].startswith("created=20")
        assert lines[1].endswith(" +0000 UTC")
        assert lines[3:] == ["networks=", f"pid={pod.process.pid}", "exited=false"]
        shown = json.loads(world.minit("status", "--format=json", pod.uuid).stdout)
        assert shown == {
            "name": pod.uuid,
            "state": "running",
            "app_names": ["one", "two"],
            "apps": [
                {
                    "name": "one",
                    "state": "exited",
                    "created_at": created.st_mtime_ns,
                    "started_at": started.st_mtime_ns,
                    "exit_code": 42,
                    "image_id": image_id(world.app),
                },
                {
                    "name": "two",
                    "state": "running",
                    "created_at": created.st_mtime_ns,
                    "started_at": started.st_mtime_ns,
                    "image_id": image_id(world.app),
                },
            ],
            "created_at": int(created.st_mtime),
            "started_at": int(started.st_mtime),
        }
        (status / "two").write_text("0\n")
    lines = world.minit("status", pod.uuid).stdout.splitlines()
    assert lines[4:] == [f"pid={pod.process.pid}", "exited=true", "app-one=42", "app-two=0"]
    assert world.minit("status", f"--uuid-file={world.root}/uuid").stdout.splitlines() == lines
    pretty = world.minit("status", "--format=json-pretty", pod.uuid).stdout
    assert pretty.startswith(f'{{\n\t"name": "{pod.uuid}",\n\t"state": "exited",\n')


def test_waiting(world: World) -> None:
    """status --wait-ready returns when the pod is ready, --wait when it has exited; a timeout is an error."""
    with world.start() as pod:
        assert world.minit("status", "--wait-ready", pod.uuid).stdout.startswith("state=running\n")
        result = world.minit("status", "--wait=50ms", pod.uuid, code=254)
        assert result.stdout == ""
        assert result.stderr == f'status: waiting for pod "{pod.uuid}" to exit: context deadline exceeded\n'
        assert world.minit("status", "--wait=0", pod.uuid).stdout.startswith("state=running\n")
        waiter = subprocess.Popen(
            world.command("status", "--wait", pod.uuid), env=world.environment(), stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiter.wait(0.3)
        pod.end()
        assert waiter.communicate()[0].startswith("state=exited\n")
    result = world.minit("status", "--wait-ready", pod.uuid, code=254)
    assert "ended before it was ready" in result.stderr
    assert world.minit("status", "--wait=1", pod.uuid).stdout.startswith("state=exited\n")
    result = world.minit("status", "--wait", "--wait-ready", pod.uuid, code=254)
    assert "exclude each other" in result.stderr


def test_list(world: World, exited: str) -> None:
    """list shows all pods, sorted, in text and JSON."""
    prepared = world.prepare()
    rows = world.minit("list", "--no-legend").stdout.splitlines()
    assert [row.split("\t")[0] for row in rows] == sorted([exited[:8], prepared[:8]])
    for row in rows:
        assert "example.com/busybox:1.0" in row.split("\t")
    shown = json.loads(world.minit("list", "--format=json").stdout)
    assert {pod["name"]: pod["state"] for pod in shown} == {exited: "exited", prepared: "prepared"}
    assert {pod["apps"][0]["state"] for pod in shown} == {"exited", "created"}
    (world.pod_path("prepared", prepared) / "pod").write_text("{")
    result = world.minit("list", "--no-legend")
    assert len(result.stdout.splitlines()) == 1
    assert f'skipping pod "{prepared}": pod "{prepared}": ' in result.stderr
    assert world.minit("status", prepared, code=254).stderr.startswith(f'status: pod "{prepared}": ')


def test_cat_manifest(world: World) -> None:
    """cat-manifest prints the manifest indented with tabs, or compact."""
    uuid = world.prepare()
    text = world.minit("cat-manifest", uuid).stdout
    assert text.startswith('{\n\t"acVersion": "0.8.11",\n\t"acKind": "PodManifest",\n\t"apps": [\n\t\t{\n')
    compact = world.minit("cat-manifest", "--pretty-print=false", uuid).stdout
    assert compact == (world.pod_path("prepared", uuid) / "pod").read_text() + "\n"


def test_gc_keeps_what_is_in_use(world: World) -> None:
    """gc leaves running and prepared pods alone, and marked ones for the grace period."""
    prepared = world.prepare()
    with world.start() as pod:
        world.minit("gc", "--grace-period=0s")
        assert all_pods(world) == {"prepared": [prepared], "run": [pod.uuid]}
    result = world.minit("gc", "--mark-only")
    assert (result.stdout, result.stderr) == ("", f'gc: moving pod "{pod.uuid}" to garbage\n')
    assert all_pods(world) == {"prepared": [prepared], "exited-garbage": [pod.uuid]}
    assert world.minit("status", pod.uuid).stdout.splitlines()[0] == "state=exited garbage"
    result = world.minit("gc", "--grace-period=1h")
    assert result.stderr == f'gc: pod "{pod.uuid}" not removed: still within grace period (1h0m0s)\n'
    result = world.minit("gc", "--grace-period=0s", "--expire-prepared=0s")
    assert result.stdout == f'Garbage collecting pod "{pod.uuid}"\nGarbage collecting pod "{prepared}"\n'
    assert f'moving expired prepared pod "{prepared}" to garbage' in result.stderr
    assert all_pods(world) == {}
    assert world.mounts() == []


def test_marked_pods_in_json(world: World, exited: str) -> None:
    """A marked pod's apps are finished at the time of the mark."""
    world.minit("gc", "--mark-only")
    [pod] = json.loads(world.minit("list", "--format=json").stdout)
    marked_ns = world.pod_path("exited-garbage", exited).stat().st_ctime_ns
    assert (pod["state"], pod["apps"][0]["finished_at"]) == ("exited garbage", marked_ns)


def test_embryos(world: World) -> None:
    """gc removes embryos that nobody holds and that are an hour old, and no others."""
    world.prepare()
    world.minit("gc", "--expire-prepared=0s")
    names = [f"{digit}3690550-7b80-4be7-839b-2359a85fb0d2" for digit in "abc"]
    old, young, locked = (world.pod_path("embryo", name) for name in names)
    hour_ago = time.time() - 3601
    for path in (old, young, locked):
        path.mkdir()
    fd = os.open(locked, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    # A ctime cannot be set: the clock of gc is moved instead.
    assert world.minit("gc").stdout == ""
    script = (
        "import sys, time; real = time.time; time.time = lambda: real() + 3601;"
        "from minit.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    os.utime(young, (hour_ago, hour_ago))
    young.rename(young.with_name("later"))
    result = subprocess.run(
        [world.command()[0], "-c", script, *world.command("gc")[3:]],
        env=world.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f'Garbage collecting pod "{names[0]}"\n'
    assert f'moving failed prepare "{names[0]}" to garbage' in result.stderr
    assert world.pods("embryo") == [names[2], "later"]
    os.close(fd)


def test_rm(world: World, exited: str) -> None:
    """rm removes ended and prepared pods at once and refuses running ones; the others are removed all the same."""
    prepared = world.prepare()
    with world.start() as pod:
        result = world.minit("rm", exited, pod.uuid, prepared, "abcdef", code=254)
        assert result.stdout == f'"{exited}"\n"{prepared}"\n'
        assert result.stderr.splitlines() == [
            "gc on stderr",
            f'rm: pod "{pod.uuid}" is running, not removed (stop it first)',
            'rm: no matches found for "abcdef"',
            "rm: failed to remove one or more pods",
        ]
        assert all_pods(world) == {"run": [pod.uuid]}
    world.minit("gc", "--mark-only")
    assert world.minit("rm", f"--uuid-file={world.root}/uuid").stdout == f'"{pod.uuid}"\n'
    assert all_pods(world) == {}
    assert world.mounts() == []


def test_release(world: World, exited: str) -> None:
    """What ended pods have beside their directories is given back, twice being no error; running ones are refused."""
    with world.start() as pod:
        result = world.minit("release", exited, pod.uuid, exited, code=254)
        assert result.stdout == f'"{exited}"\n' * 2
        assert result.stderr.splitlines() == [
            "gc on stderr",
            f'release: pod "{pod.uuid}" is running, nothing given back (stop it first)',
            "gc on stderr",
            "release: failed to release one or more pods",
        ]
        assert sorted(all_pods(world)["run"]) == sorted([exited, pod.uuid])
        assert state(world, exited) == "exited"
    world.minit("rm", exited)
    assert all_pods(world) == {"run": [pod.uuid]}


def test_a_damaged_pod_can_be_removed(world: World, exited: str) -> None:
    """A file in the place of a directory goes as well."""
    world.clean_up()
    overlay = world.pod_path("run", exited) / "overlay"
    shutil.rmtree(overlay)
    overlay.write_text("damaged")
    assert world.minit("rm", exited).stdout == f'"{exited}"\n'
    assert all_pods(world) == {}


def test_after_a_reboot(world: World, exited: str) -> None:
    """With the overlays gone, stage1 is mounted again for its gc, and unmounted."""
    world.clean_up()
    assert world.mounts() == []
    assert world.minit("rm", exited).stderr == "gc on stderr\n"
    assert world.call("gc").argv[-1] == exited
    assert all_pods(world) == {}
    assert world.mounts() == []


def test_several_gcs_at_once(world: World) -> None:
    """Of several collectors each pod is deleted by one, and none complains."""
    for _ in range(4):
        world.minit("run", f"--stage1-path={world.stage1}", world.app)
    processes = [
        subprocess.Popen(
            world.command("gc", "--grace-period=0s"), env=world.environment(), stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        _, stderr = process.communicate(timeout=90)
        assert process.returncode == 0
        assert {line.split('"')[0] for line in stderr.splitlines()} <= {"gc: moving pod ", "gc on stderr"}
    assert all_pods(world) == {}
    assert world.mounts() == []


@pytest.mark.parametrize("how", ["bind", "rbind of a shared mount", "file", "busy", "twice"])
def test_mounted_host_directories_survive(world: World, exited: str, how: str) -> None:
    """A directory of the host that is still mounted into a pod is unmounted, not emptied."""
    precious = world.root / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    rootfs = world.pod_path("run", exited) / "stage1/rootfs/opt/stage2/busybox/rootfs"
    target = rootfs / "mnt"
    if how == "file":
        target.write_text("")
        subprocess.run(["mount", "--bind", precious / "data", target], check=True)
    else:
        target.mkdir()
        if how.startswith("rbind"):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", precious], check=True)
            subprocess.run(["mount", "--make-shared", precious], check=True)
            (precious / "data").write_text("mine")
        subprocess.run(["mount", "--rbind", precious, target], check=True)
        if how == "twice":
            subprocess.run(["mount", "--bind", precious, target], check=True)
    busy = os.open(target, os.O_RDONLY) if how == "busy" else None
    world.minit("rm", exited)
    assert all_pods(world) == {}
    assert (precious / "data").read_text() == "mine"
    assert world.mounts() == ([str(precious)] if how.startswith("rbind") else [])
    if busy is not None:
        os.close(busy)


@pytest.mark.parametrize("how", ["rm", "gc"])
def test_a_data_directory_that_is_mounted_twice(world: World, how: str) -> None:
    """Where mounts of a pod show themselves at a second path, as in a tree that is shared, both are undone."""
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir()
    world.data.mkdir(exist_ok=True)
    for words in (("--bind", world.data, world.data), ("--make-shared", world.data), ("--bind", world.data, elsewhere)):
        subprocess.run(["mount", *words], check=True)
    try:
        world.minit("run", f"--stage1-path={world.stage1}", "--net=none", world.app)
        [uuid] = world.pods("run")
        # A mount within one of the pod's, as an app has beside its overlay.
        inner = world.pod_path("run", uuid) / "stage1/rootfs/inner"
        inner.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inner], check=True)
        assert len([path for path in world.mounts() if uuid in path]) >= 4
        world.minit(*(("rm", uuid) if how == "rm" else ("gc", "--grace-period=0s")))
        assert all_pods(world) == {}
        assert sorted(world.mounts()) == sorted([str(world.data), str(elsewhere)])
    finally:
        subprocess.run(["umount", "-R", elsewhere], check=True)
        subprocess.run(["umount", "-R", world.data], check=True)


def test_mount_that_cannot_be_undone(world: World, exited: str) -> None:
    """A pod with a mount that stays is not deleted, and what is mounted is not touched."""
    precious = world.root / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    target = world.pod_path("run", exited) / "mnt"
    target.mkdir()
    subprocess.run(["mount", "--bind", precious, target], check=True)
    # Mounts of another user namespace's mount namespace are locked.
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *world.command("rm", exited)],
        env=world.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 254
    assert "not removed: cannot unmount " in result.stderr
    assert all_pods(world) == {"exited-garbage": [exited]}
    assert (precious / "data").read_text() == "mine"
    world.minit("rm", exited)
    assert all_pods(world) == {}
    assert (precious / "data").read_text() == "mine"


def test_removal_stops_at_mount_points(world: World) -> None:
    """Even with mounts in place, removing a directory's content enters none of them."""
    precious = world.root / "precious"
    directory = world.root / "directory"
    for path in (precious, directory / "mnt"):
        path.mkdir(parents=True)
    (precious / "data").write_text("mine")
    (directory / "file").write_text("")
    subprocess.run(["mount", "--bind", precious, directory / "mnt"], check=True)
    subprocess.run(["mount", "--bind", precious / "data", directory / "file"], check=True)
    fd = os.open(directory, os.O_RDONLY)
    with pytest.raises(OSError, match=r"mnt|file") as caught:
        remove_content(fd)
    assert caught.value.errno in (errno.EXDEV, errno.EBUSY)
    subprocess.run(["umount", directory / "file"], check=True)
    with pytest.raises(OSError, match="mnt") as caught:
        remove_content(fd)
    assert caught.value.errno == errno.EXDEV
    os.close(fd)
    assert (precious / "data").read_text() == "mine"


def test_links_lead_nowhere(world: World, exited: str) -> None:
    """A link that a pod left in the place of a directory is removed, and what it points to is not."""
    precious = world.root / "precious"
    (precious / "upper/rkt").mkdir(parents=True)
    (precious / "data").write_text("mine")
    world.clean_up()
    pod = world.pod_path("run", exited)
    (pod / "link").symlink_to(precious)
    tree = (pod / "stage1TreeStoreID").read_text()
    upper = pod / "overlay" / tree / "upper"
    upper.rename(upper.with_name("moved"))
    upper.symlink_to(precious / "upper")
    (pod / "stage1/rootfs").rmdir()
    (pod / "stage1/rootfs").symlink_to(precious)
    assert "skipping stage1 GC" in world.minit("rm", exited).stderr
    assert all_pods(world) == {}
    assert sorted(path.name for path in precious.rglob("*")) == ["data", "rkt", "upper"]


def test_deep_directories(world: World, exited: str) -> None:
    """Directories nested deeper than paths and descriptors reach are removed too."""
    world.clean_up()
    start = os.open(world.pod_path("run", exited), os.O_RDONLY)
    fd = os.dup(start)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    os.close(start)
    world.minit("rm", exited)
    assert all_pods(world) == {}


def test_undeletable_pod(world: World, exited: str) -> None:
    """A pod that cannot be deleted stays for a later gc, and the reason is said."""
    upper = next((world.pod_path("run", exited) / "overlay").glob("*/upper/rkt/status"))
    (upper / "fixed").write_text("")
    if subprocess.run(["chattr", "+i", upper / "fixed"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the filesystem knows no immutable files")
    result = world.minit("gc", "--grace-period=0s")
    assert f'gc: pod "{exited}": pod "{exited}" not removed: fixed: operation not permitted' in result.stderr
    assert all_pods(world) == {"exited-garbage": [exited]}
    assert world.minit("cat-manifest", exited).stdout.startswith("{")
    subprocess.run(["chattr", "-i", next(world.data.rglob("fixed"))], check=True)
    world.minit("gc", "--grace-period=0s")
    assert all_pods(world) == {}


def test_images(world: World) -> None:
    """fetch prints shortened ids; image list, cat-manifest and rm work on the store."""
    other = world.root / "other.aci"
    write_app(other, name="example.com/other", labels={"os": "linux", "arch": "amd64"})
    assert world.minit("fetch", world.app, other).stdout == (f"{image_id(world.app)[:39]}\n{image_id(other)[:39]}\n")
    assert world.minit("fetch", "--full", world.app).stdout == f"{image_id(world.app)}\n"
    shown = json.loads(world.minit("image", "list", "--format=json").stdout)
    assert [image["name"] for image in shown] == ["example.com/other", "example.com/busybox:1.0"]
    assert list(shown[0]) == ["id", "name", "import_time", "last_used_time", "size", "names", "digests"]
    rows = world.minit("image", "list").stdout.splitlines()
    assert rows[0].split("\t")[0] == "ID"
    assert [cell for cell in rows[1].split("\t") if cell][:3] == [
        image_id(other)[:19],
        "example.com/other",
        f"{shown[0]['size'] / 2**20:.1f}MiB",
    ]
    full = world.minit("image", "list", "--full", "--no-legend").stdout.splitlines()
    assert full[0].startswith(image_id(other))
    manifest = json.loads(world.minit("image", "cat-manifest", "example.com/other").stdout)
    assert manifest["name"] == "example.com/other"
    result = world.minit("image", "rm", "example.com/other", "missing", code=254)
    assert result.stdout == f'successfully removed aci for image: "{image_id(other)}"\n'
    assert result.stderr.endswith("rm: failed to remove one or more images\n")
    assert len(json.loads(world.minit("image", "list", "--format=json").stdout)) == 1
