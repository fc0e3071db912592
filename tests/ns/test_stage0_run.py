"""How stage0 calls the entrypoints of stage1: words, environment, directory, descriptors and mounts."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stage0_world import Call, World, worlds, write_app, write_stage1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A data directory of its own."""
    yield from worlds(tmp_path)


def words(call: Call) -> list[str]:
    """Return the arguments of an entrypoint, without its own path and the UUID at the end."""
    return call.argv[1:-1]


def only_pod(world: World) -> str:
    """Return the UUID of the only pod in `run`."""
    [uuid] = world.pods("run")
    return uuid


def test_run(world: World) -> None:
    """The run entrypoint is called as rkt does, in the pod directory, with the locked directory as a descriptor."""
    world.minit("run", f"--stage1-path={world.stage1}", world.app, MINE="yes", RKT_LOCK_FD="99")
    pod = world.pod_path("run", only_pod(world))
    call = world.call("run")
    assert call.argv == [f"{pod}/stage1/rootfs/ex/run", "--net=default", "--local-config=/etc/rkt", pod.name]
    assert call.cwd == str(pod)
    lock_fd = int(call.environment["RKT_LOCK_FD"])
    assert call.fds[lock_fd] == str(pod)
    assert call.environment["RKT_SELINUX_CONTEXT"] == ""
    assert call.environment["RKT_SELINUX_MOUNT_CONTEXT"] == ""
    expected = world.environment(MINE="yes")
    assert {key: value for key, value in call.environment.items() if not key.startswith("RKT_")} == expected
    # 3 and 10 are the recording shell's own.
    leaked = {fd: target for fd, target in call.fds.items() if fd not in (0, 1, 2, lock_fd) and target.startswith("/")}
    assert set(leaked.values()) <= {call.argv[0]}


def test_run_with_everything(world: World) -> None:
    """All flags stand in rkt's order."""
    world.minit(
        *("--debug", "--insecure-options=all", "run", f"--stage1-path={world.stage1}", "--net=a:b=c,d", "--net=e"),
        *("--hostname=h1", "--interactive", "--ipc=parent", "--local-config=/some/dir", world.app),
    )
    assert words(world.call("run")) == [
        *("--debug", "--net=a:b=c,d,e", "--interactive", "--local-config=/some/dir", "--hostname=h1"),
        *("--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp", "--ipc=parent"),
    ]


@pytest.mark.parametrize(
    ("insecure", "flags"),
    [
        ("image,paths", ["--disable-paths"]),
        ("capabilities", ["--disable-capabilities-restriction"]),
        ("none", []),
        ("all-fetch", []),
        ("seccomp,all-run", ["--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp"]),
    ],
)
def test_insecure_options(world: World, insecure: str, flags: list[str]) -> None:
    """--insecure-options decides which restrictions stage1 is told to drop."""
    world.minit("run", f"--insecure-options={insecure}", f"--stage1-path={world.stage1}", "--net", world.app)
    assert words(world.call("run")) == ["--net=default", "--local-config=/etc/rkt", *flags]


def test_old_stage1(world: World) -> None:
    """A stage1 of interface version 1 gets only the flags it knows; what is left out is said."""
    write_stage1(world.stage1, version=None)
    result = world.minit(
        *("run", "--insecure-options=all", f"--stage1-path={world.stage1}"),
        *("--net=none", "--hostname=h", "--ipc=auto", world.app),
    )
    assert words(world.call("run")) == ["--net=none", "--local-config=/etc/rkt"]
    assert result.stderr.count("has no effect") == 2
    world.minit("gc", "--grace-period=0s")
    assert words(world.call("gc")) == []


def test_exit_code_and_pid(world: World) -> None:
    """minit becomes the entrypoint: its exit code and its pid are minit's."""
    (world.dump / "code").write_text("42")
    world.minit("run", f"--stage1-path={world.stage1}", world.app, code=42)
    (world.dump / "code").unlink()
    with world.start() as pod:
        assert int((world.pod_path("run", pod.uuid) / "pid").read_text()) == pod.process.pid


def test_the_lock_is_the_pods_life(world: World) -> None:
    """The pod runs as long as somebody has the descriptor, and no longer; nobody else can lock it."""
    with world.start() as pod:
        directory = os.open(world.pod_path("run", pod.uuid), os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert world.minit("status", pod.uuid).stdout.splitlines()[0] == "state=running"
        pod.process.kill()
        pod.process.wait()
        # `cat`, the entrypoint's child, still has the descriptor.
        assert world.minit("status", pod.uuid).stdout.splitlines()[0] == "state=running"
        pod.end()
        fcntl.flock(directory, fcntl.LOCK_SH)
        assert world.minit("status", pod.uuid).stdout.splitlines()[0] == "state=exited"
        os.close(directory)


def test_what_is_inherited(world: World) -> None:
    """umask, signal dispositions and mask of the caller reach the entrypoint unchanged."""
    script = "trap '' USR1; umask 027; exec " + " ".join(
        f"'{word}'" for word in world.command("run", f"--stage1-path={world.stage1}", world.app)
    )
    write_stage1(world.stage1)
    plain = _signals(["sh", "-c", "trap '' USR1; umask 027; exec cat /proc/self/status"], world)
    (world.dump / "code").write_text("0")
    subprocess.run(["sh", "-c", script], env=world.environment(), check=True)
    status = (world.dump / "run.status").read_text()
    assert _signal_lines(status) == plain


def _signals(command: list[str], world: World) -> list[str]:
    return _signal_lines(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _signal_lines(status: str) -> list[str]:
    return [line for line in status.splitlines() if line.startswith(("Umask", "SigBlk", "SigIgn"))]


def test_closed_standard_streams(world: World) -> None:
    """Without standard streams the entrypoint gets /dev/null for them, and the lock another number."""
    words = " ".join(world.command("run", f"--stage1-path={world.stage1}", world.app))
    subprocess.run(f"{words} <&- >&- 2>&-", shell=True, env=world.environment(), check=True)
    call = world.call("run")
    assert [call.fds[fd] for fd in (0, 1, 2)] == ["/dev/null"] * 3
    assert int(call.environment["RKT_LOCK_FD"]) > 2


def test_overlays(world: World) -> None:
    """At exec time stage1 and every app are mounted in the caller's namespace, each on layers of its own."""
    write_app(world.app, root_uid=7)
    with world.start("--net=none", world.app, "--name=one", "---", world.app, "--name=two") as pod:
        path = world.pod_path("run", pod.uuid)
        rootfs = path / "stage1/rootfs"
        points = [rootfs, rootfs / "opt/stage2/one/rootfs", rootfs / "opt/stage2/two/rootfs"]
        assert world.mounts() == [str(point) for point in points]
        with open("/proc/self/mountinfo") as lines:
            options = {line.split()[4]: line.split()[-1] for line in lines if line.split()[4] in map(str, points)}
        stage1_tree = (path / "stage1TreeStoreID").read_text()
        app_tree = (path / "appsinfo/one/treeStoreID").read_text()
        for point, tree, end in zip(points, (stage1_tree, app_tree, app_tree), ("", "/one", "/two"), strict=True):
            layers = path / "overlay" / tree
            wanted = (
                f"lowerdir={world.data}/cas/tree/{tree}/rootfs,upperdir={layers}/upper{end},workdir={layers}/work{end}"
            )
            assert wanted in options[str(point)]
            assert _mode(layers) == 0o750
            assert _mode(layers / "upper") == 0o755
            assert _mode(layers / f"upper{end}") == 0o755
            assert _mode(layers / "work") == 0o750
        assert _mode(path / "overlay") == 0o750
        assert (path / "overlay" / stage1_tree / "upper/rkt/status").is_dir()
        for name in ("one", "two"):
            app = rootfs / "opt/stage2" / name
            assert _mode(app) == 0o750
            assert _mode(app / "manifest") == 0o644
            assert (app / "manifest").read_bytes() == (path / f"appsinfo/{name}/manifest").read_bytes()
            assert (app / "rootfs/bin/busybox").exists()
            assert (app / "rootfs").stat().st_uid == 7
        (points[1] / "written").write_text("x")
        assert not (points[2] / "written").exists()
        assert not (world.data / "cas/tree" / app_tree / "rootfs/written").exists()
    assert len(world.mounts()) == 3


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("overlay", [[], ["--no-overlay"]])
@pytest.mark.parametrize("etc", ["directory", "with-mtab", "link", "nothing"])
def test_mtab(world: World, etc: str, overlay: list[str]) -> None:
    """An app with a real /etc gets an /etc/mtab if it has none; nothing is made through a link."""
    before = set(os.listdir("/run"))
    write_app(world.app, etc=etc)
    world.minit("run", *overlay, f"--stage1-path={world.stage1}", world.app)
    app_etc = world.pod_path("run", only_pod(world)) / "stage1/rootfs/opt/stage2/busybox/rootfs/etc"
    if etc == "directory":
        assert os.readlink(app_etc / "mtab") == "../proc/self/mounts"
        assert app_etc.joinpath("mtab").lstat().st_uid == 0
    elif etc == "with-mtab":
        assert (app_etc / "mtab").read_text() == "its own"
    elif etc == "link":
        assert app_etc.is_symlink()
        assert "mtab" not in set(os.listdir("/run")) - before
    else:
        assert not app_etc.exists()


def test_flat_pod_mounts_nothing(world: World) -> None:
    """Without overlay there is no mount, and the entrypoint is the pod's own copy."""
    with world.start("--no-overlay", "--net=none", world.app) as pod:
        assert world.mounts() == []
        assert world.minit("status", "--wait-ready", pod.uuid).stdout.startswith("state=running\n")
        assert world.call("run").argv[0] == f"{world.pod_path('run', pod.uuid)}/stage1/rootfs/ex/run"
        assert words(world.call("run")) == ["--net=none", "--local-config=/etc/rkt"]


@pytest.mark.parametrize("name", ["with,comma:colon\\back slash", "deep/" * 60 + "x", "ünï\tcode"])
def test_odd_data_directories(world: World, name: str) -> None:
    """Paths that need escaping, or do not fit into one page of mount options, work too."""
    world.data = world.root / "data" / name
    with world.start() as pod:
        app = world.pod_path("run", pod.uuid) / "stage1/rootfs/opt/stage2/busybox/rootfs"
        assert (app / "bin/busybox").exists()
    result = world.minit("rm", pod.uuid)
    assert result.stdout == f'"{pod.uuid}"\n'
    assert world.pods("exited-garbage") == []


def test_very_long_data_directory(world: World) -> None:
    """Mount options longer than a page are given with short names instead."""
    world.data = world.root / "data" / "/".join(["d" * 200] * 6)
    with world.start() as pod:
        app = world.pod_path("run", pod.uuid) / "stage1/rootfs/opt/stage2/busybox/rootfs"
        assert (app / "bin/busybox").exists()
    world.minit("rm", pod.uuid)
    assert world.mounts() == []


def test_data_directory_behind_a_link(world: World) -> None:
    """Links in --dir are resolved at the start, so that mounts are found again."""
    real = world.root / "real"
    real.mkdir()
    world.data.symlink_to(real)
    with world.start() as pod:
        assert world.call("run").cwd == str(real / "pods/run" / pod.uuid)
    world.minit("rm", pod.uuid)
    assert world.mounts() == []


def test_enter(world: World) -> None:
    """enter is executed from the tree store, with the pod's pid, and nothing added to the environment."""
    with world.start() as pod:
        path = world.pod_path("run", pod.uuid)
        (world.dump / "enter-code").write_text("9")
        result = world.minit("enter", pod.uuid[:8], "ls", "--app", "-l", "--", "x", code=9)
        assert result.stdout == "enter on stdout\n"
        call = world.call("enter")
        tree = (path / "stage1TreeStoreID").read_text()
        assert call.argv == [
            f"{world.data}/cas/tree/{tree}/rootfs/ex/enter",
            *(f"--pid={pod.process.pid}", "--appname=busybox", "--", "ls", "--app", "-l", "--", "x"),
        ]
        assert call.cwd == str(path)
        assert call.environment == world.environment()
        world.minit("enter", "--app=other", pod.uuid, "--", "ls", code=9)
        assert world.call("enter").argv[2:] == ["--appname=other", "--", "--", "ls"]
        result = world.minit("enter", pod.uuid, code=9)
        assert 'no command specified, assuming "/bin/bash"' in result.stderr
        assert world.call("enter").argv[-2:] == ["--", "/bin/bash"]
        assert "is no app name" in world.minit("enter", "--app=../x", pod.uuid, "ls", code=254).stderr
    assert "isn't currently running" in world.minit("enter", pod.uuid, "ls", code=254).stderr


def test_enter_one_of_several_apps(world: World) -> None:
    """In a pod of several apps one must be chosen; the error names them."""
    with world.start("--net=none", world.app, "--name=one", "---", world.app, "--name=two") as pod:
        assert "(apps: one, two)" in world.minit("enter", pod.uuid, "ls", code=254).stderr
        world.minit("enter", "--app=two", pod.uuid, "ls")
        assert world.call("enter").argv[2] == "--appname=two"


def test_enter_waits_for_the_pid(world: World) -> None:
    """A pod that runs but has no pid yet is waited for; one that ends meanwhile is an error."""
    with world.start() as pod:
        pid = world.pod_path("run", pod.uuid) / "pid"
        pid.rename(pid.with_name("later"))
        process = subprocess.Popen(world.command("enter", pod.uuid, "ls"), env=world.environment())
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        pid.with_name("later").rename(pid)
        assert process.wait() == 0
        pid.unlink()
        process = subprocess.Popen(
            world.command("enter", pod.uuid, "ls"), env=world.environment(), stderr=subprocess.PIPE, text=True
        )
        pod.end()
        _, stderr = process.communicate()
        assert process.returncode == 254
        # It may also have looked for the first time after the end.
        assert "ended before it reported its pid" in stderr or "isn't currently running" in stderr


def test_stop(world: World) -> None:
    """stop calls the pod's own entrypoint, shows its output, and prints the quoted UUID."""
    with world.start() as pod:
        path = world.pod_path("run", pod.uuid)
        result = world.minit("stop", pod.uuid)
        assert result.stdout == f'stop on stdout\n"{pod.uuid}"\n'
        assert result.stderr == "stop on stderr\n"
        call = world.call("stop")
        assert call.argv == [f"{path}/stage1/rootfs/ex/stop", pod.uuid]
        assert call.cwd == str(path)
        assert call.fds[0] == "/dev/null"
        assert {key: call.environment[key] for key in world.environment()} == world.environment()
        world.minit("stop", "--force", f"--uuid-file={world.root / 'uuid'}", "--debug")
        assert words(world.call("stop")) == ["--force"]
        (world.dump / "stop-code").write_text("3")
        result = world.minit("stop", pod.uuid, code=254)
        assert "its stage1 failed with exit status 3" in result.stderr
        assert result.stderr.endswith("stop: failed to stop one or more pods\n")
    prepared = world.prepare()
    result = world.minit("stop", prepared, pod.uuid, code=254)
    assert result.stdout == f'pod "{pod.uuid}" is already stopped\n'
    assert f'pod "{prepared}" is not running: its state is "prepared"' in result.stderr


def test_gc_entrypoint(world: World) -> None:
    """gc runs in the marked pod, without its lock's descriptor, and only its stderr is shown."""
    world.minit("run", f"--stage1-path={world.stage1}", world.app)
    uuid = only_pod(world)
    path = world.pod_path("exited-garbage", uuid)
    result = world.minit("rm", uuid, "--debug", "--local-config=/my/config")
    assert result.stdout == f'"{uuid}"\n'
    assert result.stderr == "gc on stderr\n"
    call = world.call("gc")
    assert call.argv == [f"{path}/stage1/rootfs/ex/gc", "--debug", "--local-config", "/my/config", uuid]
    assert call.cwd == str(path)
    assert (call.fds[0], call.fds[1]) == ("/dev/null", "/dev/null")
    assert str(path) not in call.fds.values()
    assert not path.exists()
    assert world.mounts() == []


def test_failing_and_missing_gc(world: World) -> None:
    """A gc entrypoint that fails or is missing is said, and the pod is deleted all the same."""
    (world.dump / "gc-code").write_text("4")
    world.minit("run", f"--stage1-path={world.stage1}", world.app)
    uuid = only_pod(world)
    result = world.minit("rm", uuid)
    assert f'rm: pod "{uuid}": stage1 GC failed: exit status 4\n' in result.stderr
    write_stage1(world.stage1, entrypoints=("run",))
    world.minit("run", f"--stage1-path={world.stage1}", world.app)
    uuid = only_pod(world)
    assert "stage1 has no gc entrypoint" in world.minit("rm", uuid).stderr
    assert "declares no" not in world.minit("gc").stderr
    assert world.pods("exited-garbage") == []


def test_term_at_any_moment(world: World) -> None:
    """A SIGTERM sent to minit at any moment of its start ends it or the entrypoint; gc removes what is left."""
    world.minit("fetch", world.stage1, world.app)
    (world.dump / "for-ever").write_text("")
    for moment in range(12):
        with open(world.root / "stderr", "wb") as stderr:
            process = subprocess.Popen(
                world.command("run", "--stage1-name=example.com/recorder", "example.com/busybox"),
                env=world.environment(),
                stderr=stderr,
            )
        try:
            process.wait(moment * 0.03)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert (world.root / "stderr").read_bytes() == b""
        world.minit("gc", "--grace-period=0s")
        assert [place for place in ("embryo", "prepare", "run", "garbage") if world.pods(place)] == []
        assert world.mounts() == []
