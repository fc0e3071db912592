"""Pod directories: where they are found, what state they are in, and how they move."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.base.errors import MinitError, PodError
from minit.linux.loop import wait_readable
from minit.stage0.files.locks import flock
from minit.stage0.pods import poddirectory
from minit.stage0.pods.poddirectory import (
    ADDRESSABLE_PLACES,
    PLACES,
    Pod,
    PodState,
    create_pod,
    find_pod,
    name_pod,
    open_pod,
    pod_uuids,
    read_name,
    walk_pods,
)
from minit.stage0.pods.podstatus import (
    is_ready,
    read_created_ns,
    read_exit_code,
    read_networks,
    read_pid_to_enter,
    read_pod_status,
    read_shown_pid,
    read_started_ns,
)
from minit.stage0.pods.waiting import Life, wait_until_ended, wait_until_ready
from tests.support.waiting import wait_for

UUID = "f3690550-7b80-4be7-839b-2359a85fb0d2"
OTHER = "f3690550-0000-4be7-839b-2359a85fb0d2"


def lay_down(data: Path, place: str, name: str = UUID) -> Path:
    """Make a pod directory by hand."""
    path = data / "pods" / place / name
    path.mkdir(parents=True)
    return path


def holding(path: Path) -> int:
    """Lock a directory as a running pod does, and return the descriptor that holds the lock."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


@pytest.fixture
def notes() -> list[str]:
    """The messages to the user."""
    return []


@pytest.fixture
def run_pod(tmp_path: Path) -> Iterator[Pod]:
    """A pod in `run`, open and unlocked."""
    lay_down(tmp_path, "run")
    with open_pod(tmp_path, UUID) as pod:
        yield pod


STATES = {
    ("embryo", False): "embryo",
    ("embryo", True): "embryo",
    ("prepare", False): "aborted prepare",
    ("prepare", True): "preparing",
    ("prepared", False): "prepared",
    ("prepared", True): "prepared",
    ("run", False): "exited",
    ("run", True): "running",
    ("exited-garbage", False): "exited garbage",
    ("exited-garbage", True): "exited deleting",
    ("garbage", False): "garbage",
    ("garbage", True): "deleting",
}


@pytest.mark.parametrize(("place", "locked"), STATES)
def test_states(tmp_path: Path, place: str, locked: bool) -> None:
    """Place and lock make the state, whose name is rkt's."""
    path = lay_down(tmp_path, place)
    fd = holding(path) if locked else None
    with open_pod(tmp_path, UUID) as pod:
        assert pod.state == STATES[place, locked]
        assert pod.place == place
    if fd is not None:
        os.close(fd)


def test_every_place_has_states() -> None:
    """The table above knows every place."""
    assert {place for place, _ in STATES} == set(PLACES)


def test_looking_takes_no_lock(tmp_path: Path) -> None:
    """A reader that keeps a pod open does not keep others from locking it."""
    path = lay_down(tmp_path, "run")
    with open_pod(tmp_path, UUID):
        os.close(holding(path))


def test_new_pod(tmp_path: Path) -> None:
    """A new pod has a random UUID, is in prepare and is locked; all state directories are there, mode 0750."""
    old_umask = os.umask(0o077)
    try:
        pod = create_pod(tmp_path / "data")
    finally:
        os.umask(old_umask)
    with pod:
        assert str(uuid.UUID(pod.uuid, version=4)) == pod.uuid
        assert pod.path == tmp_path / "data/pods/prepare" / pod.uuid
        assert pod.state is PodState.PREPARING
        for path in (pod.path, *(tmp_path / "data/pods" / place for place in PLACES)):
            assert path.stat().st_mode & 0o7777 == 0o750
        with open_pod(tmp_path / "data", pod.uuid) as seen:
            assert seen.state == "preparing"
        assert not os.get_inheritable(pod.fd)
    with open_pod(tmp_path / "data", pod.uuid) as seen:
        assert seen.state == "aborted prepare"


def test_open_pod_follows_renames(tmp_path: Path) -> None:
    """Files of an open pod are read wherever it was moved to, and refresh finds it again."""
    lay_down(tmp_path, "run").joinpath("pid").write_text("7")
    (tmp_path / "pods/exited-garbage").mkdir()
    with open_pod(tmp_path, UUID) as pod:
        os.rename(pod.path, tmp_path / "pods/exited-garbage" / UUID)
        assert read_shown_pid(pod) == 7
        assert pod.refresh()
        assert (pod.place, pod.state) == ("exited-garbage", "exited garbage")
        pod.path.joinpath("pid").unlink()
        pod.path.rmdir()
        assert not pod.refresh()


def test_another_pod_in_its_place_is_not_the_pod(run_pod: Pod) -> None:
    """A directory of the same name that is not the open one does not count."""
    run_pod.path.rename(run_pod.path.with_name("moved"))
    run_pod.path.mkdir()
    assert not run_pod.refresh()


def test_move_of_a_moved_pod(run_pod: Pod) -> None:
    """Of two commands that move a pod the second is told."""
    lay_down(run_pod.data, "garbage", OTHER)
    run_pod.path.rename(run_pod.data / "pods/garbage" / UUID)
    with pytest.raises(PodError, match=f'pod "{UUID}" is no longer exited: it was moved by another command'):
        run_pod.move("garbage")


@pytest.mark.parametrize("text", [UUID, UUID.upper(), "f3690550-7", UUID.replace("-", ""), "F36905507b"])
def test_finding_by_prefix(tmp_path: Path, notes: list[str], text: str) -> None:
    """A pod is found by any unique prefix of its UUID, in any case, with dashes or without."""
    lay_down(tmp_path, "run")
    lay_down(tmp_path, "prepared", OTHER)
    with find_pod(tmp_path, text, notes.append) as pod:
        assert pod.uuid == UUID


def test_not_found(tmp_path: Path, notes: list[str]) -> None:
    """A pod that is not found, or found twice, is an error; embryos and garbage are never found."""
    lay_down(tmp_path, "run")
    lay_down(tmp_path, "prepared", OTHER)
    lay_down(tmp_path, "embryo", "a" + UUID[1:])
    lay_down(tmp_path, "garbage", "b" + UUID[1:])
    for text, message in (
        ("f3690550", "ambiguous uuid, 2 matches"),
        ("x", 'no matches found for "x"'),
        ("a", 'no matches found for "a"'),
        ("b", 'no matches found for "b"'),
        ("../run", 'no matches found for "../run"'),
        ("", "no UUID given (see `minit list --full`)"),
    ):
        with pytest.raises(PodError) as caught:
            find_pod(tmp_path, text, notes.append)
        assert str(caught.value) == message


def test_names(tmp_path: Path, notes: list[str]) -> None:
    """A name means its pod before any UUID that begins so, wherever the pod is until it is garbage."""
    first, second = lay_down(tmp_path, "run"), lay_down(tmp_path, "prepared", OTHER)
    with open_pod(tmp_path, OTHER) as pod:
        name_pod(pod, "f3690550-7")
        name_pod(pod, "f3690550-7")
        name_pod(pod, "f3")
    assert find_pod(tmp_path, "f3", notes.append).uuid == OTHER
    assert find_pod(tmp_path, "f3690550-7", notes.append).uuid == UUID
    with open_pod(tmp_path, UUID) as pod:
        with pytest.raises(PodError, match=f'the name "f3" is taken by pod "{OTHER}": remove that pod, or rename it'):
            name_pod(pod, "f3")
        for bad in ("", "-a", "a b", "a/b", "..", "a" * 64, "ä", UUID, UUID.upper(), UUID.replace("-", ""), "a\n"):
            with pytest.raises(PodError, match="the name of a pod "):
                name_pod(pod, bad)
        (tmp_path / "pods/garbage").mkdir()
        second.rename(tmp_path / "pods/garbage" / OTHER)
        name_pod(pod, "f3")
    assert find_pod(tmp_path, "f3", notes.append).uuid == UUID
    (first / "minit-name").write_text("../f3\n")
    assert read_name(str(first)) is None


def test_one_name_for_many_at_once(tmp_path: Path) -> None:
    """Of pods that are given one name at once exactly one gets it."""
    lay_down(tmp_path, "run")
    names = [str(uuid.uuid4()) for _ in range(8)]
    children = []
    for name in names:
        lay_down(tmp_path, "prepare", name)
        child = os.fork()
        if child == 0:
            try:
                with open_pod(tmp_path, name) as pod:
                    name_pod(pod, "web")
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert sorted(os.waitpid(child, 0)[1] >> 8 for child in children) == [0, *[1] * 7]


def test_what_is_no_pod_is_noted(tmp_path: Path, notes: list[str]) -> None:
    """Files and other names among the pods are skipped with a message."""
    lay_down(tmp_path, "run")
    (tmp_path / "pods/run/file").write_text("")
    (tmp_path / "pods/run/link").symlink_to(UUID)
    (tmp_path / "pods/run/lost+found").mkdir()
    assert pod_uuids(tmp_path, "run", notes.append) == [UUID]
    assert len(notes) == 3


def test_walk_is_sorted_and_skips_the_gone(tmp_path: Path, notes: list[str]) -> None:
    """Pods come by UUID, whatever their place; one that goes away meanwhile is left out."""
    names = [f"{digit}3690550-7b80-4be7-839b-2359a85fb0d2" for digit in "abcd"]
    for name, place in zip(names, reversed(ADDRESSABLE_PLACES), strict=True):
        lay_down(tmp_path, place, name)
    seen = []
    for pod in walk_pods(tmp_path, ADDRESSABLE_PLACES, notes.append):
        seen.append(pod.uuid)
        if len(seen) == 1:
            next((tmp_path / "pods").glob(f"*/{names[1]}")).rmdir()
    assert seen == [names[0], *names[2:]]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("17\n", 17),
        (" \t\n17 trailing", 17),
        ("017", 17),
        ("-3", -3),
        ("+3", 3),
        ("", None),
        ("x1", None),
        ("- 1", None),
    ],
)
def test_numbers_are_read_as_scanf_does(run_pod: Pod, text: str, number: int | None) -> None:
    """Leading blanks and what follows the number do not matter; without a number there is none."""
    (run_pod.path / "pid").write_text(text)
    assert read_shown_pid(run_pod) == number


def test_pid_beats_ppid(run_pod: Pod) -> None:
    """A pod with both files is entered, and shown, by `pid`."""
    (run_pod.path / "ppid").write_text("1")
    assert read_shown_pid(run_pod) == 1
    (run_pod.path / "pid").write_text("2")
    assert read_shown_pid(run_pod) == 2
    assert read_pid_to_enter(run_pod) == 2


def test_pid_from_ppid(run_pod: Pod) -> None:
    """The only child of `ppid` is the process to enter; none is not yet, several are an error."""
    (run_pod.path / "ppid").write_text(str(os.getpid()))
    assert read_pid_to_enter(run_pod) is None
    reader, writer = os.pipe()
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        children.append(pid)
        if len(children) == 1:
            assert read_pid_to_enter(run_pod) == pid
    with pytest.raises(PodError, match="too many children"):
        read_pid_to_enter(run_pod)
    os.close(writer)
    for pid in children:
        os.waitpid(pid, 0)
    os.close(reader)
    (run_pod.path / "ppid").write_text("")
    with pytest.raises(PodError, match="ppid holds no number"):
        read_pid_to_enter(run_pod)


def test_times(run_pod: Pod) -> None:
    """Creation and start are the mtimes of marker files, with rkt's older names as a second choice."""
    for name, number in (("pod", 1), ("ppid", 2)):
        (run_pod.path / name).write_text("")
        os.utime(run_pod.path / name, ns=(number, number))
    assert (read_created_ns(run_pod), read_started_ns(run_pod)) == (1, 2)
    for name, number in (("pod-created", 3), ("pid", 4)):
        (run_pod.path / name).write_text("")
        os.utime(run_pod.path / name, ns=(number, number))
    assert (read_created_ns(run_pod), read_started_ns(run_pod)) == (3, 4)


@pytest.mark.parametrize("overlay", [False, True])
def test_status_files(run_pod: Pod, overlay: bool) -> None:
    """Readiness and exit codes are read from the upper layer of overlay pods, from the rootfs of others."""
    root = run_pod.path / "stage1/rootfs"
    if overlay:
        (run_pod.path / "overlay-prepared").write_text("")
        (run_pod.path / "stage1TreeStoreID").write_text("deps-sha512-abc")
        root = run_pod.path / "overlay/deps-sha512-abc/upper"
    (root / "rkt/status").mkdir(parents=True)
    assert not is_ready(run_pod)
    assert read_exit_code(run_pod, "app") is None
    (root / "rkt/supervisor-status").symlink_to("almost")
    (root / "rkt/status/app").write_text("42\n")
    assert not is_ready(run_pod)
    (root / "rkt/supervisor-status").unlink()
    (root / "rkt/supervisor-status").symlink_to("ready")
    assert is_ready(run_pod)
    assert read_exit_code(run_pod, "app") == 42


def test_status_behind_a_link_is_not_read(run_pod: Pod, tmp_path: Path) -> None:
    """A link that a pod left where its status should be leads nowhere; a fifo blocks nobody."""
    status = run_pod.path / "stage1/rootfs/rkt/status"
    status.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("7")
    (status / "app").symlink_to(secret)
    os.mkfifo(status / "fifo")
    assert read_exit_code(run_pod, "app") is None
    assert read_exit_code(run_pod, "fifo") is None
    status.rename(tmp_path / "status")
    status.symlink_to(tmp_path / "status")
    (tmp_path / "status/direct").write_text("7")
    assert read_exit_code(run_pod, "direct") is None


def test_networks(run_pod: Pod) -> None:
    """No file and null are no networks; a broken file is an error."""
    assert read_networks(run_pod) == ()
    file = run_pod.path / "net-info.json"
    file.write_text("null")
    assert read_networks(run_pod) == ()
    file.write_text('[{"netName":"n","ip":"10.0.0.2","extra":1}]')
    [network] = read_networks(run_pod)
    assert dict(network) == {
        "netName": "n", "netConf": "", "pluginPath": "", "ifName": "", "ip": "10.0.0.2", "args": "", "mask": "",
    }  # fmt: skip
    for text in ("{", "{}", "[1]"):
        file.write_text(text)
        with pytest.raises(MinitError, match="net-info.json"):
            read_networks(run_pod)
    # More than there is memory.
    os.truncate(file, 1 << 43)
    with pytest.raises(MinitError, match="net-info.json: larger than"):
        read_networks(run_pod)


def write_manifest(path: Path, *apps: str) -> None:
    """Write a pod manifest, and for the first app an image manifest."""
    entries = ",".join(f'{{"name":"{app}","image":{{"id":"sha512-{"a" * 64}"}}}}' for app in apps)
    (path / "pod").write_text(f'{{"acKind":"PodManifest","acVersion":"1.30.0","apps":[{entries}]}}')
    (path / "appsinfo" / apps[0]).mkdir(parents=True)
    (path / "appsinfo" / apps[0] / "manifest").write_text(
        '{"acKind":"ImageManifest","acVersion":"0.8.11","name":"n","labels":[{"name":"version","value":"2"}]}'
    )


@pytest.mark.parametrize(
    ("place", "locked", "states"),
    [
        ("prepared", False, ["created", "created"]),
        ("run", True, ["exited", "running"]),
        ("run", False, ["exited", "exited"]),
        ("exited-garbage", False, ["exited", "exited"]),
    ],
)
def test_app_states(tmp_path: Path, place: str, locked: bool, states: list[str]) -> None:
    """An app's state follows its pod's, and its own status file once there is one."""
    path = lay_down(tmp_path, place)
    write_manifest(path, "one", "two")
    (path / "stage1/rootfs/rkt/status").mkdir(parents=True)
    if place != "prepared":
        (path / "stage1/rootfs/rkt/status/one").write_text("3\n")
    fd = holding(path) if locked else None
    with open_pod(tmp_path, UUID) as pod:
        status = read_pod_status(pod)
        marked_ns = os.fstat(pod.fd).st_ctime_ns
    if fd is not None:
        os.close(fd)
    assert [app.state for app in status.apps] == states
    assert [app.image_name for app in status.apps] == ["n:2", None]
    assert status.apps[0].exit_code == (None if place == "prepared" else 3)
    assert status.apps[0].finished_ns == (marked_ns if place == "exited-garbage" else None)


def test_status_of_an_aborted_pod_needs_no_manifest(tmp_path: Path) -> None:
    """A pod that died while it was prepared has a state and nothing else."""
    lay_down(tmp_path, "prepare").joinpath("pod").write_text("half a mani")
    with open_pod(tmp_path, UUID) as pod:
        status = read_pod_status(pod)
    assert (status.state, status.apps, status.created_ns) == (PodState.ABORTED_PREPARE, (), None)


def test_waiting_for_the_end(tmp_path: Path) -> None:
    """Waiting ends with the pod, at once if it has ended; a timeout is an error."""
    path = lay_down(tmp_path, "run")
    fd = holding(path)
    with open_pod(tmp_path, UUID) as pod:
        with pytest.raises(PodError, match=f'waiting for pod "{UUID}" to exit: context deadline exceeded'):
            wait_until_ended(pod, 0.0)
        os.close(fd)
        wait_until_ended(pod, 0.0)
        assert pod.state is PodState.EXITED


def test_waiting_for_the_end_of_a_removed_pod(run_pod: Pod) -> None:
    """A pod that is gone has ended."""
    run_pod.path.rmdir()
    wait_until_ended(run_pod, 0.0)


def test_waiting_for_a_pod_that_dies(tmp_path: Path) -> None:
    """Waiting for readiness ends with an error when the pod does, without any timeout."""
    lay_down(tmp_path, "run")
    with (
        open_pod(tmp_path, UUID) as pod,
        pytest.raises(PodError, match=r'ended before it was ready: its state is "exited"'),
    ):
        wait_until_ready(pod, float("inf"))


def test_free_lock_of_a_pod_on_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that is finished while somebody looks at it is prepared, not aborted."""
    path = lay_down(tmp_path, "prepare")
    (tmp_path / "pods/prepared").mkdir()
    preparer = holding(path)

    def finish_first(fd: int, *, exclusive: bool, blocking: bool) -> None:
        """Let the preparer finish between the look at the place and this look at the lock."""
        if path.exists():
            path.rename(tmp_path / "pods/prepared" / UUID)
            os.close(preparer)
        flock(fd, exclusive=exclusive, blocking=blocking)

    with Pod(tmp_path, UUID, os.open(path, os.O_RDONLY)) as pod:
        monkeypatch.setattr(poddirectory, "flock", finish_first)
        assert pod.refresh()
        assert pod.state is PodState.PREPARED


def test_the_life_of_a_pod_is_told(tmp_path: Path) -> None:
    """A waiting process sleeps until the pod moves, as at the begin of a removal, or loses the holder of the lock."""
    holder = holding(lay_down(tmp_path, "prepared"))
    with open_pod(tmp_path, UUID) as pod, Life(pod) as life:
        assert life.fd is not None
        lay_down(tmp_path, "garbage")
        for change in (
            lambda: pod.path.rename(lay_down(tmp_path, "run")),
            lambda: os.close(holder),
            lambda: pod.move("garbage"),
        ):
            pod.refresh()
            assert wait_readable([life.fd], 0) == set()
            change()
            assert wait_readable([life.fd], 60) == {life.fd}
            life.take()
            assert life.pause_seconds is not None


def test_waiting_without_a_watch(tmp_path: Path) -> None:
    """Where inotify has no descriptor left, the end of a pod is seen all the same."""
    holder = holding(lay_down(tmp_path, "run"))
    with open_pod(tmp_path, UUID) as pod:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            life = Life(pod)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (life.fd, life.pause_seconds is None) == (None, False)
        life.wait(0.001)
        assert pod.refresh() and pod.state is PodState.RUNNING
        os.close(holder)
        assert pod.refresh() and pod.state is not PodState.RUNNING


def test_a_wait_without_a_timeout_waits_for_the_lock(tmp_path: Path) -> None:
    """A process that waits without a timeout for a running pod sleeps in flock(2), and leaves the lock free."""
    path = lay_down(tmp_path, "run")
    holder = holding(path)
    waiter = os.fork()
    if not waiter:
        os.close(holder)
        with open_pod(tmp_path, UUID) as pod:
            wait_until_ended(pod, float("inf"))
            os._exit(0 if pod.state is PodState.EXITED and pod.lock(blocking=False) else 1)
    wait_for(lambda: re.search(rf"-> FLOCK .* {waiter} ", Path("/proc/locks").read_text()), "the waiting process")
    os.close(holder)
    assert os.waitpid(waiter, 0) == (waiter, 0)


def test_waiting_for_a_pod_that_is_run_and_ends(tmp_path: Path) -> None:
    """A process that waits for a prepared pod ends when the process that runs the pod has ended, however that ends."""
    path = lay_down(tmp_path, "prepared")
    told, tells = os.pipe()
    waiter = os.fork()
    if not waiter:
        with open_pod(tmp_path, UUID) as pod:
            os.write(tells, b"x")
            wait_until_ended(pod, float("inf"))
            os._exit(0 if pod.state is PodState.EXITED else 1)
    os.read(told, 1)
    runner = os.fork()
    if not runner:
        holding(path)
        path.rename(lay_down(tmp_path, "run"))
        os.write(tells, b"x")
        signal.pause()
    os.read(told, 1)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(waiter, 0)[1]) == 0
    os.close(told)
    os.close(tells)
