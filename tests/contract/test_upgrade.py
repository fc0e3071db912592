"""`minit upgrade`: a running pod gets a later version of minit."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import minit as package
from tests.support.attached import Session, connect, read_until
from tests.support.campaign import thinned
from tests.support.commands import Stage0
from tests.support.faults import KILL, LAUNCHER, Call, Faults
from tests.support.hostnet import left_by
from tests.support.laterstage1 import MARK, VERSION, changed_manifest, write_later_stage1, write_manifest_alone
from tests.support.pods import MakePod, shell
from tests.support.processes import children_of, is_alive, program_of, programs_of_readers, status_of
from tests.support.stage0_world import write_stage1
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

BEFORE = package.__version__
LAST_VERSION = "999.0.1"
FOREVER = "exec busybox sleep 1000"
FORMAT = "minit/stage1/state-format"
# Calls of the command that change something, or wait for programs that do.
CHANGES = ("rename", "renameat", "syncfs", "fsync", "clone", "poll", "rmdir")
MEMFD_CREATE = {"x86_64": "319", "aarch64": "279"}[os.uname().machine]
FAILED = "upgrade: failed to upgrade one or more pods\n"


@pytest.fixture
def minit(minit: Stage0) -> Iterator[Stage0]:
    """The command; pods in the background that run after the test are killed."""
    yield minit
    minit.call("stop", "--all", "--force")


def run(minit: Stage0, name: str, *flags: object, script: str = FOREVER) -> str:
    """Start a pod in the background, and return the UUID."""
    words = ("run", minit.stage1_flag, "--quiet", "--detach", f"--name={name}", *flags, minit.image())
    result = minit.call(*words, "--exec=/bin/sh", "--", "-c", script)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def upgrade(minit: Stage0, *words: object) -> tuple[int, str, str]:
    """Upgrade pods, and return the exit code and what was printed to both streams."""
    result = minit.call("upgrade", "--quiet", *words)
    return result.returncode, result.stdout, result.stderr


def upgraded(minit: Stage0, stage1: Path, uuid: str, before: str = BEFORE, after: str = VERSION) -> None:
    """Upgrade a pod, which has to succeed."""
    assert upgrade(minit, f"--stage1-path={stage1}", uuid) == (0, f'"{uuid}" {before} -> {after}\n', "")


def pod_directory(minit: Stage0, uuid: str) -> Path:
    """Return the directory of a pod that has been run."""
    [found] = minit.data.glob(f"pods/*/{uuid}")
    return found


def stage1_annotations(minit: Stage0, uuid: str) -> dict[str, str]:
    """Return the annotations of the stage1 manifest of a pod."""
    manifest = json.loads((pod_directory(minit, uuid) / "stage1/manifest").read_text())
    return {pair["name"]: pair["value"] for pair in manifest["annotations"]}


def files_of_upgrades(minit: Stage0, uuid: str) -> list[str]:
    """Return the names of what upgrades have left in a pod."""
    pod = pod_directory(minit, uuid)
    places = [*pod.glob("minit-upgrades*"), *pod.glob("stage1/manifest.*"), *pod.glob("stage1/rootfs/opt/stage1/*")]
    return sorted(place.name for place in places)


def events(minit: Stage0, uuid: str) -> list[str]:
    """Return the kinds of the events of a pod."""
    return [json.loads(line)["event"] for line in minit.call("events", uuid).stdout.splitlines()]


def trees(minit: Stage0) -> set[str]:
    """Return the names of all trees."""
    return {path.name for path in minit.data.glob("cas/tree/*")}


def inside(minit: Stage0, uuid: str) -> str:
    """Return what a command prints that is entered into a pod."""
    result = minit.call("enter", uuid, "busybox", "echo", "inside")
    return result.stdout + result.stderr


@contextmanager
def changed_stage1(minit: Stage0, uuid: str, **changes: Any) -> Iterator[None]:
    """Have a pod look for the with block as if prepared with another stage1."""
    path = pod_directory(minit, uuid) / "stage1/manifest"
    before = path.read_bytes()
    path.write_bytes(changed_manifest(json.loads(before), **changes))
    yield
    path.write_bytes(before)


@pytest.mark.parametrize(
    "flags", [(), ("--no-overlay",), ("--private-users",)], ids=["overlay", "flat", "private-users"]
)
@pytest.mark.rootless
def test_a_later_version(minit: Stage0, later_stage1: Path, flags: tuple[str, ...]) -> None:
    """The apps go on, and programs of the new version are executed from then on; a second upgrade changes nothing."""
    uuid = run(minit, "web", "--net=none", *flags)
    status = json.loads(minit.call("status", "--format=json", "web").stdout)
    assert f"version={BEFORE}\n" in minit.call("status", "web").stdout
    result = upgrade(minit, f"--stage1-path={later_stage1}", "web")
    assert result == (0, f'"{uuid}" {BEFORE} -> {VERSION}\n', "")
    assert f"version={VERSION}\n" in minit.call("status", "web").stdout
    after = json.loads(minit.call("status", "--format=json", "web").stdout)
    assert after == {**status, "version": VERSION}
    assert events(minit, "web").count("pod.upgraded") == 1
    assert stage1_annotations(minit, uuid)["coreos.com/rkt/stage1/stop"].startswith("/opt/stage1/deps-sha512-")
    assert (pod_directory(minit, uuid) / "stage1/rootfs" / MARK).is_dir()
    assert inside(minit, "web") == "inside\n"
    left = files_of_upgrades(minit, uuid)
    assert len(left) == 2
    result = upgrade(minit, f"--stage1-path={later_stage1}", "web")
    assert result == (0, f'"{uuid}" has this version already\n', "")
    assert files_of_upgrades(minit, uuid) == left
    assert minit.call("stop", "web").returncode == 0
    assert "app-busybox=0\n" in minit.call("status", "web").stdout
    assert minit.call("rm", "web").returncode == 0


@pytest.mark.rootless
@pytest.mark.parametrize("flags", [(), ("--private-users",)], ids=["", "private-users"])
def test_readers_and_clients_of_an_upgraded_pod(minit: Stage0, later_stage1: Path, flags: tuple[str, ...]) -> None:
    """Sidecars and spawner are of the new version; the log has no gap, and clients keep connections and input."""
    echo = 'i=0; while read -r line; do i=$((i+1)); echo "$i $line" >&2; echo "$i $line"; done'
    uuid = run(minit, "web", "--net=none", "--stdin=stream", "--stdout=stream", *flags, script=echo)
    supervisor = int((pod_directory(minit, uuid) / "pid").read_text())
    directory = pod_directory(minit, uuid) / "stage1/rootfs/rkt/iottymux/busybox"
    before = programs_of_readers(supervisor)
    with (
        connect(directory, "sock-stdin") as stdin,
        connect(directory, "sock-stdout") as stdout,
        Session(directory, ["stdout", "stdin"]) as waiting,
    ):
        got = expected = b""
        for number in range(1, 101):
            stdin.sendall(b"line\n")
            expected += b"%d line\n" % number
            if number == 50:
                upgraded(minit, later_stage1, uuid)
            if number == 60:
                wait_for(lambda: not any(map(is_alive, before)), "sidecars and spawner of the new version")
            got += read_until(stdout, b"%d line\n" % number)
        assert got == expected
        stdin.shutdown(socket.SHUT_RDWR)
        assert waiting.receive() == {"event": "stdin-given"}
        waiting.streams["stdin"].sendall(b"last\n")
        assert read_until(waiting.streams["stdout"], b"101 last\n") == expected + b"101 last\n"
    after = programs_of_readers(supervisor)
    assert len(after) == len(before)
    assert {*after.values()} == {program_of(supervisor)} != {*before.values()}
    assert "sidecar.lost" not in events(minit, uuid)
    assert minit.call("logs", uuid).stdout.splitlines() == [f"{number} line" for number in range(1, 101)] + ["101 last"]


def test_there_and_back(minit: Stage0, stage1_image: Path, later_stage1: Path) -> None:
    """A pod keeps the files and trees of its version and of the version before; entered commands are of its version."""
    uuid = run(minit, "web", "--net=none")
    upgraded(minit, later_stage1, uuid)
    later, record = files_of_upgrades(minit, uuid)
    upgraded(minit, stage1_image, uuid, VERSION, BEFORE)
    first = (pod_directory(minit, uuid) / "stage1TreeStoreID").read_text()
    assert files_of_upgrades(minit, uuid) == sorted([first, later, record])
    assert (pod_directory(minit, uuid) / record).read_text().split() == [later, first]
    upgraded(minit, later_stage1, uuid)
    # Which one is executed shows when there is none.
    (minit.data / f"cas/tree/{later}/rootfs/entrypoints/enter").unlink()
    assert f"{later}/rootfs/entrypoints/enter: no such file or directory" in inside(minit, uuid)
    # As rkt's gc of images does, which does not know of upgrades.
    shutil.rmtree(minit.data / f"cas/tree/{later}")
    assert inside(minit, uuid) == "inside\n"


def test_apps_of_an_upgraded_pod(minit: Stage0, later_stage1: Path) -> None:
    """Apps are added, started, entered, stopped and removed by the new version, whose both sides are of one image."""
    with minit.sandbox() as uuid:
        minit.app("add", uuid, minit.image(), "--name=a", "--exec=/bin/sh", "--", "-c", FOREVER)
        minit.app("start", uuid, "--app=a")
        upgraded(minit, later_stage1, uuid)
        minit.app("add", uuid, minit.image(), "--name=b", "--exec=/bin/sh", "--", "-c", FOREVER)
        minit.app("start", uuid, "--app=b")
        for app in ("a", "b"):
            assert minit.app("exec", f"--app={app}", uuid, "busybox", "echo", "x") == "x\n"
            minit.app("stop", uuid, f"--app={app}")
            assert minit.app_status(uuid, app)["state"] == "exited"
            minit.app("rm", uuid, f"--app={app}")


@pytest.mark.host_root("it looks at the machine's network, which pods of a user do not touch")
@pytest.mark.parametrize("is_rebooted", [False, True], ids=["", "reboot"])
@pytest.mark.parametrize("by", ["gc-many", "gc"])
def test_gc(minit: Stage0, later_stage1: Path, by: str, is_rebooted: bool) -> None:
    """Both programs of stage1 for gc collect an upgraded pod with its network, also after a reboot."""
    uuid = run(minit, "web", "--net=default")
    upgraded(minit, later_stage1, uuid)
    assert minit.call("stop", uuid).returncode == 0
    assert left_by(uuid) != []
    if by == "gc":
        path = pod_directory(minit, uuid) / "stage1/manifest"
        path.write_bytes(changed_manifest(json.loads(path.read_bytes()), annotations={"minit/stage1/gc-many": None}))
    if is_rebooted:
        subprocess.run(["umount", "--recursive", pod_directory(minit, uuid) / "stage1/rootfs"], check=True)
    result = minit.call("gc", "--grace-period=0s")
    assert (result.returncode, "stage1 GC" in result.stderr) == (0, False)
    assert ([*minit.data.glob("pods/*/*")], left_by(uuid)) == ([], [])


def test_an_upgraded_pod_starts_again(minit: Stage0, later_stage1: Path) -> None:
    """A pod that has ended runs in the version that it had at the end, and can be upgraded again."""
    uuid = run(minit, "web", "--net=none")
    upgraded(minit, later_stage1, uuid)
    assert minit.call("restart", uuid).returncode == 0
    assert f"version={VERSION}\n" in minit.call("status", uuid).stdout
    assert inside(minit, uuid) == "inside\n"
    assert upgrade(minit, minit.stage1_flag, uuid) == (0, f'"{uuid}" {VERSION} -> {BEFORE}\n', "")


def test_the_tree_stays_as_long_as_the_pod(minit: Stage0, later_stage1: Path) -> None:
    """`image gc` leaves the tree that PID 1 runs from, without the image and when the pod has ended; `rm` frees it."""
    uuid = run(minit, "web", "--net=none")
    upgraded(minit, later_stage1, uuid)
    tree = stage1_annotations(minit, uuid)["minit/stage1/tree"]
    assert minit.call("image", "rm", f"minit/stage1:{VERSION}").returncode == 0
    for _ in range(2):
        assert minit.call("image", "gc", "--grace-period=0s").returncode == 0
        assert tree in trees(minit)
        assert minit.call("stop", uuid).returncode == 0
    assert minit.call("rm", uuid).returncode == 0
    assert minit.call("image", "gc", "--grace-period=0s").returncode == 0
    assert tree not in trees(minit)


def test_pods_that_are_behind(minit: Stage0) -> None:
    """`list --full` marks running pods of an older version than the command's, and only these."""
    old, new = run(minit, "old", "--net=none"), run(minit, "new", "--net=none")
    assert "VERSION" not in minit.call("list", "--full").stdout
    with changed_stage1(minit, old, labels={"version": "0.2.9"}):
        rows = minit.call("list", "--full").stdout.splitlines()
        assert "VERSION" not in minit.call("list").stdout
    assert [row.endswith("\t0.2.9 (behind)") for row in rows if old in row or new in row].count(True) == 1
    assert next(row for row in rows if old in row).endswith("\t0.2.9 (behind)")


def test_several_pods(minit: Stage0, later_stage1: Path) -> None:
    """Each pod has a line of its own, one that cannot be upgraded does not hold up the others; --all is for minit's."""
    first, second, third = (run(minit, name, "--net=none") for name in ("first", "second", "third"))
    flag = f"--stage1-path={later_stage1}"
    with changed_stage1(minit, second, name="example.com/other"):
        code, out, err = upgrade(minit, flag, "first", "second")
        assert (code, out) == (254, f'"{first}" {BEFORE} -> {VERSION}\n')
        kind = (
            f'upgrade: pod "{second}" has another kind of stage1, "example.com/other": only minit\'s can be upgraded\n'
        )
        assert err == kind + FAILED
        code, out, err = upgrade(minit, flag, "--all")
        already, now = f'"{first}" has this version already', f'"{third}" {BEFORE} -> {VERSION}'
        assert (code, sorted(out.splitlines()), err) == (0, sorted([already, now]), "")
    assert upgrade(minit, flag, "--filter=name=second") == (0, f'"{second}" {BEFORE} -> {VERSION}\n', "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"annotations": {FORMAT: None}}, f"has stage1 {BEFORE}, which cannot be upgraded: run the pod anew"),
        (
            {"annotations": {FORMAT: "0"}},
            f"has stage1 {BEFORE} with a state of format 0, and stage1 {VERSION} reads format 1: run the pod anew",
        ),
        ({"name": "example.com/other"}, 'has another kind of stage1, "example.com/other": only minit\'s can be'),
    ],
    ids=["old", "format", "kind"],
)
def test_a_pod_that_cannot_be_upgraded(minit: Stage0, later_stage1: Path, changes: dict[str, Any], reason: str) -> None:
    """One line has the reason, and the pod is as before."""
    uuid = run(minit, "web", "--net=none")
    with changed_stage1(minit, uuid, **changes):
        code, out, err = upgrade(minit, f"--stage1-path={later_stage1}", uuid)
    assert (code, out, err.count("\n")) == (254, "", 2)
    assert err.startswith(f'upgrade: pod "{uuid}" {reason}')
    assert files_of_upgrades(minit, uuid) == []
    assert inside(minit, uuid) == "inside\n"


def test_pods_that_start_or_end(minit: Stage0, later_stage1: Path) -> None:
    """Only a pod that is ready and goes on can be upgraded."""
    flag = f"--stage1-path={later_stage1}"
    handler = {"name": "pre-start", "exec": ["/bin/sh", "-c", "busybox sleep 1000"]}
    starting = minit.start(*minit.run_words(minit.image(eventHandlers=[handler])), stderr=subprocess.DEVNULL)
    try:
        uuid = wait_for(lambda: [path.parent.name for path in minit.data.glob("pods/run/*/pid")], "the pod's pid")[0]
        assert f'supervisor for pod "{uuid}" is not yet ready' in upgrade(minit, flag, uuid)[2]
    finally:
        minit.call("stop", "--force", "--all")
        starting.wait()
    assert f'pod "{uuid}" isn\'t currently running: its state is "exited"' in upgrade(minit, flag, uuid)[2]
    stubborn = run(minit, "web", "--net=none", script="trap '' TERM; while :; do busybox sleep 1; done")
    assert minit.call("stop", "--no-wait", stubborn).returncode == 0
    assert f'upgrade: pod "{stubborn}" is ending: it cannot be upgraded\n' in upgrade(minit, flag, stubborn)[2]
    assert files_of_upgrades(minit, stubborn) == []


def test_images_in_which_no_pod_can_go_on(minit: Stage0, stage1_image: Path, tmp_path: Path) -> None:
    """Another kind of stage1, one for another processor, and one from before there were upgrades, in one line each."""
    uuid = run(minit, "web", "--net=none")
    write_stage1(tmp_path / "other.aci")
    write_manifest_alone(stage1_image, tmp_path / "foreign.aci", labels={"arch": "s390x"})
    write_manifest_alone(stage1_image, tmp_path / "old.aci", annotations={FORMAT: None})
    for file, reason in (
        ("other", 'image "example.com/recorder" is not minit\'s stage1 ("minit/stage1"): pods cannot go on in it'),
        ("foreign", f"stage1 image {BEFORE} is for s390x: this machine is "),
        ("old", f"stage1 image {BEFORE} is too old: no running pod can go on in it"),
    ):
        code, out, err = upgrade(minit, f"--stage1-path={tmp_path / file}.aci", uuid)
        assert (code, out, err.count("\n")) == (254, "", 1)
        assert err.startswith(f"upgrade: {reason}")
    assert files_of_upgrades(minit, uuid) == []


@contextmanager
def mistake(minit: Stage0, uuid: str, injected: str) -> Iterator[None]:
    """Have PID 1 of a pod meet a mistake, in strace's words, in the with block."""
    pid = (pod_directory(minit, uuid) / "pid").read_text().strip()
    # Whoever answers has begun with all else.
    assert inside(minit, uuid) == "inside\n"
    words = ["strace", "-qq", "-e", f"inject={injected}", "-p", pid]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tracer:
        wait_for(lambda: status_of(int(pid))["TracerPid"] == str(tracer.pid), "the tracer")
        try:
            yield
        finally:
            tracer.terminate()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_refusal_of_pid_1(minit: Stage0, later_stage1: Path) -> None:
    """PID 1 has no memory for its state, and says so: nothing of the image is left in the pod."""
    uuid = run(minit, "web", "--net=none")
    before = stage1_annotations(minit, uuid)
    with mistake(minit, uuid, "memfd_create:error=ENOMEM"):
        code, out, err = upgrade(minit, f"--stage1-path={later_stage1}", uuid)
    assert (code, out) == (254, "")
    assert "supervisor of this pod:" in err and "cannot allocate memory" in err and err.endswith(FAILED)
    assert (files_of_upgrades(minit, uuid), stage1_annotations(minit, uuid)) == ([], before)
    upgraded(minit, later_stage1, uuid)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_no_answer_of_pid_1(minit: Stage0, later_stage1: Path) -> None:
    """PID 1 may go on in the new program, so its files stay in the pod, and another upgrade finishes the work."""
    uuid = run(minit, "web", "--net=none")
    words = ("upgrade", "--quiet", f"--stage1-path={later_stage1}", uuid)
    with mistake(minit, uuid, "memfd_create:delay_enter=3000000:when=1"):
        command = minit.start(*words, stderr=subprocess.PIPE)
        present_call = Path(f"/proc/{(pod_directory(minit, uuid) / 'pid').read_text().strip()}/syscall")
        wait_for(lambda: present_call.read_text().split()[0] == MEMFD_CREATE, "the work of PID 1 for the request")
        [control] = children_of(command.pid)
        os.kill(control, signal.SIGKILL)
        _, errors = command.communicate(timeout=100)
        assert command.returncode == 254 and f'pod "{uuid}": ask its stage1: ' in errors.decode()
        wait_for(lambda: "pod.upgraded" in events(minit, uuid), "the new program of PID 1")
    assert len(files_of_upgrades(minit, uuid)) == 2
    assert f"version={BEFORE}\n" in minit.call("status", uuid).stdout
    upgraded(minit, later_stage1, uuid)


def test_an_image_without_a_program(minit: Stage0, stage1_image: Path, tmp_path: Path) -> None:
    """The pod goes on as before, and nothing of the image is left there."""
    uuid = run(minit, "web", "--net=none")
    broken = tmp_path / "broken.aci"
    write_later_stage1(stage1_image, broken, without="usr/lib/minit/bin")
    before = stage1_annotations(minit, uuid)
    code, out, err = upgrade(minit, f"--stage1-path={broken}", uuid)
    assert (code, out, err.count("\n")) == (254, "", 2)
    assert (files_of_upgrades(minit, uuid), stage1_annotations(minit, uuid)) == ([], before)
    assert inside(minit, uuid) == "inside\n"


def test_two_upgrades_at_once(minit: Stage0, later_stage1: Path) -> None:
    """One does the work, and the other finds it done."""
    uuid = run(minit, "web", "--net=none")
    words = ("upgrade", "--quiet", f"--stage1-path={later_stage1}", uuid)
    both = [minit.start(*words, stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=100)[0].decode() for process in both]
    assert sorted(said) == sorted([f'"{uuid}" {BEFORE} -> {VERSION}\n', f'"{uuid}" has this version already\n'])


def test_a_killed_upgrade(minit: Stage0, stage1_image: Path, later_stage1: Path, tmp_path: Path) -> None:
    """After SIGKILL at any step the pod has one of both versions as a whole, and an upgrade once more finishes it."""
    last = write_later_stage1(stage1_image, tmp_path / "last.aci", version=LAST_VERSION)
    # With three images in turn each upgrade copies the files of one, and removes those of another.
    turns = itertools.cycle([(later_stage1, VERSION), (last, LAST_VERSION), (stage1_image, BEFORE)])
    uuid, before = run(minit, "web", "--net=none"), BEFORE
    for _ in range(3):
        target, version = next(turns)
        upgraded(minit, target, uuid, before, version)
        before = version
    left = len(files_of_upgrades(minit, uuid))
    faults = Faults(tmp_path, 1, alone=True)

    def start(stage1: Path, under: list[str], fd: int) -> None:
        words = ("upgrade", "--quiet", f"--stage1-path={stage1}", uuid)
        minit.start(*words, under=under, pass_fds=(fd,), stdout=subprocess.DEVNULL).wait(100)

    with tempfile.TemporaryFile("w+") as log:
        target, before = next(turns)
        start(target, faults.recording(log.fileno()), log.fileno())
        log.seek(0)
        calls = faults.read_calls(log)
    # With the record of the new tree the changes of the pod begin.
    calls = calls[calls.index(Call(LAUNCHER, "renameat", 1)) - 2 :]
    steps = [call for call in calls if call.name in CHANGES]
    steps += [call for call in calls if call.name in ("mkdir", "lchown", "unlink", "unlinkat")][::20]
    for call in thinned(steps):
        target, version = next(turns)
        with tempfile.TemporaryFile("w+") as log:
            start(target, faults.fault(log.fileno(), call, KILL), log.fileno())
            log.seek(0)
            # How often the command waits for the output of a program differs.
            assert log.read() != "" or call.name == "poll", f"{call} was not reached"
        status = minit.call("status", uuid).stdout
        assert f"version={before}\n" in status or f"version={version}\n" in status, call
        assert inside(minit, uuid) == "inside\n", call
        done = (f'"{uuid}" {before} -> {version}\n', f'"{uuid}" has this version already\n')
        code, out, err = upgrade(minit, f"--stage1-path={target}", uuid)
        assert (code, err) == (0, "") and out in done, call
        assert f"version={version}\n" in minit.call("status", uuid).stdout
        assert left <= len(files_of_upgrades(minit, uuid)) <= left + 1
        before = version
    # What a kill has left goes with the next upgrade.
    target, version = next(turns)
    upgraded(minit, target, uuid, before, version)
    assert len(files_of_upgrades(minit, uuid)) == left


@pytest.mark.parametrize("call", [("fsync", 3), ("rename", 1), ("syncfs", 1)], ids=["record", "copy", "directories"])
def test_a_full_disk(minit: Stage0, later_stage1: Path, tmp_path: Path, call: tuple[str, int]) -> None:
    """Whatever cannot be written, nothing has happened to the pod, and nothing of the image is left there."""
    rendered, uuid = run(minit, "rendered", "--net=none"), run(minit, "web", "--net=none")
    upgraded(minit, later_stage1, rendered)
    before = stage1_annotations(minit, uuid)
    words = ("upgrade", "--quiet", f"--stage1-path={later_stage1}", uuid)
    with tempfile.TemporaryFile() as log:
        under = Faults(tmp_path, 1, alone=True).fault(log.fileno(), Call(LAUNCHER, *call), errno.ENOSPC)
        process = minit.start(*words, under=under, pass_fds=(log.fileno(),), stderr=subprocess.PIPE)
        errors = process.communicate(timeout=100)[1].decode()
    assert process.returncode == 254
    assert "no space left on device" in errors and errors.endswith(FAILED)
    assert (files_of_upgrades(minit, uuid), stage1_annotations(minit, uuid)) == ([], before)
    assert "pod.upgraded" not in events(minit, uuid)
    upgraded(minit, later_stage1, uuid)


def test_an_upgrade_that_was_killed_late(minit: Stage0, stage1_image: Path, later_stage1: Path, tmp_path: Path) -> None:
    """PID 1 runs the new version, and the files are of the old one: an upgrade to the old one has PID 1 go back."""
    uuid = run(minit, "web", "--net=none")
    words = ("upgrade", "--quiet", f"--stage1-path={later_stage1}", uuid)
    with tempfile.TemporaryFile() as log:
        # The first rename is that of the record of trees, the second that of the stage1 manifest.
        under = Faults(tmp_path, 1, alone=True).fault(log.fileno(), Call(LAUNCHER, "renameat", 2), KILL)
        minit.start(*words, under=under, pass_fds=(log.fileno(),)).wait(100)
    assert f"version={BEFORE}\n" in minit.call("status", uuid).stdout
    assert events(minit, uuid).count("pod.upgraded") == 1
    upgraded(minit, stage1_image, uuid, BEFORE, BEFORE)
    assert events(minit, uuid).count("pod.upgraded") == 2


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_a_pod_of_another_stage0(make_pod: MakePod, minit: Stage0, later_stage1: Path, overlay: bool) -> None:
    """A pod that rkt has made, by the contract of both, is upgraded by `--dir`, and rkt's programs of it go on."""
    pod = make_pod({"a": shell(FOREVER)}, overlay=overlay)
    process = pod.start()
    pod.wait_ready()
    result = minit.call("upgrade", "--quiet", f"--dir={pod.data}", f"--stage1-path={later_stage1}", pod.uuid)
    assert (result.returncode, result.stdout) == (0, f'"{pod.uuid}" {BEFORE} -> {VERSION}\n'), result.stderr
    # rkt reads the manifest anew for each program, and looks for `enter` in the tree that the pod was prepared with.
    pod.entrypoints = json.loads((pod.path / "stage1/manifest").read_text())["annotations"]
    assert "/opt/stage1/" in pod.entrypoint("stop")
    assert pod.enter("a", "/bin/echo", "x").stdout == "x\n"
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
    assert pod.gc().returncode == 0
