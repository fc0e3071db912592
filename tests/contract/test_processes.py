"""Every kind of process minit keeps: its descriptors, its privileges, and that it goes away with its pod."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from minit.linux import syscalls
from minit.manifest.capabilities import capability_mask
from minit.podfiles.usersdirectory import NAMESPACE_RECORD
from tests.support.activation import activated
from tests.support.pods import MakePod, PodDirectory, app_section, handlers, run_all, shell
from tests.support.processes import children_of, control_groups_of, copy_descriptor, descriptors_of, named, status_of
from tests.support.terminal import Terminal
from tests.support.usersession import SURROUNDING
from tests.support.waiting import wait_for

SOCKETS = [("http", 80), ("https", 443)]
FOREVER = "while :; do sleep 1; done"
DEFAULT_BOUNDING = 0xA80425FB  # rkt's default set of 14

# What each kind of process holds beside 0, 1 and 2, and how many of each; {apps} is the number of apps.
BUFFER = r"/memfd:output \(deleted\)"
PIPE, SOCKET, PIDFD, EPOLL = r"pipe:\[\d+\]", r"socket:\[\d+\]", r"anon_inode:\[pidfd\]", r"anon_inode:\[eventpoll\]"
SIGNALFD, LOG = r"anon_inode:\[signalfd\]", r"/rkt/minit/log"
IMAGE = "/"  # the root of a mount that is in no namespace
POD_DIRECTORY = r".*/pods/run/[0-9a-f-]{36}"
# Of PID 1 and the launcher, to execute a program: their own, what never changes of each app, and room for all else.
STATE = r"/memfd:state \(deleted\)"
PROGRAM, SPEC = r"/usr/lib/minit/bin/minit", r"/memfd:spec of [ab] \(deleted\)"
# The lock that makes the keeper of a user's namespace stay.
KEEPER = {} if SURROUNDING is None else {f".*/{NAMESPACE_RECORD}": 1}
DESCRIPTORS = {
    "launcher": {
        POD_DIRECTORY: 1,  # the lock
        PROGRAM: 1,
        SIGNALFD: 1,
        EPOLL: 1,
        PIDFD: 1,
        SOCKET: 1,  # to PID 1
        **KEEPER,
    },
    "pid 1": {
        POD_DIRECTORY: 1,  # the lock
        SIGNALFD: 1,
        EPOLL: 2,  # the supervisor's and trio's
        SOCKET: 7,  # launcher, control, spawner, and two pairs of trio's
        PIDFD: 5,  # spawner, and each app with its sidecar
        PIPE: 4,  # read ends of the apps' streams
        BUFFER: 4,  # of each
        **{PROGRAM: 1, SPEC: 2, STATE: 1},
        r"mnt:\[\d+\]": 2,
        r"/sys/fs/cgroup/(?!memory).*/system.slice/[ab].service": 2,
        r"/sys/fs/cgroup/freezer/.*/system.slice/[ab].service/freezer.state": 2,
        r"/sys/fs/cgroup/memory/.*/system.slice/[ab].service": 2,
        r"/rkt/minit/(supervisor|events).log": 2,
    },
    "minit-spawner": {SOCKET: 1, LOG: 1, r"/dev/null": 1},
    "iottymux-a": {PIPE: 2, BUFFER: 2, EPOLL: 1, SIGNALFD: 1, LOG: 1, r"/dev/null": 1},
    "sh": {},
}


@pytest.mark.delegated_groups("without groups an app does not see processes of the pod")
def test_an_app_sees_names_only(make_pod: MakePod) -> None:
    """For ps(1) in an app no process of minit's has the words of `run`, which the launcher keeps for the host."""
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' > /tmp/seen"
    # The app may be earlier than its sidecar.
    script = f"until grep -q 'iotty[m]ux' /tmp/seen; do {look}; sleep 0.01; done; touch /tmp/done; {FOREVER}"
    pod = make_pod({"web": shell(script)})
    process = pod.start()
    pod.wait_file("web", "/tmp/done")
    seen = pod.file("web", "/tmp/seen").read_text().splitlines()
    assert {"minit: supervisor", "minit: spawner", "iottymux: web"} <= {*seen}
    assert not [line for line in seen if pod.uuid in line or "--net" in line]
    assert pod.uuid.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    pod.stop("--force")
    pod.finish(process)


# More of PID 1 if it is root of a user namespace only, for each app: what it could not open itself.
WRITTEN = r"/sys/fs/cgroup/unified/.*/system.slice/[ab].service/cgroup\.(kill|freeze)"
# Without groups, for each app: the namespace in the place of groups, for itself and for the next process.
PIDS = r"pid:\[\d+\]"


def of_groups(pod: PodDirectory, table: dict[str, int]) -> dict[str, int]:
    """Return the table of what PID 1 of a pod holds, for the groups that the pod has."""
    if first := pod.first_processes():
        kept = {pattern: count for pattern, count in table.items() if "cgroup" not in pattern}
        return {**kept, PIDS: 2 * len(first), PIDFD: table[PIDFD] + len(first)}
    groups = [path / f"system.slice/{app}.service" for path in pod.control_groups() for app in pod.apps]
    files = [name for group in groups for name in ("cgroup.kill", "cgroup.freeze") if (group / name).exists()]
    return table if pod.private_users is None or not files else {**table, WRITTEN: len(files)}


def running_pod(make_pod: MakePod) -> tuple[PodDirectory, dict[str, int]]:
    """Return a running pod of two apps with a volume, and one process of each kind."""
    apps = {name: shell(FOREVER, mounts=[{"volume": "v", "path": "/v"}]) for name in ("a", "b")}
    pod = make_pod(apps, volumes=[{"name": "v", "kind": "empty"}])
    leaks = [os.open("/", os.O_RDONLY) for _ in range(64)]
    try:
        process = pod.start(pass_fds=leaks)
    finally:
        for fd in leaks:
            os.close(fd)
    pod.wait_ready()
    # An answer means that trio runs and everything is open.
    assert pod.ask({"op": "ping"})["ok"]
    return pod, {"launcher": process.pid, "pid 1": pod.pid, **pod.children()}


def _count(pid: int, patterns: dict[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for fd, target in descriptors_of(pid).items():
        if fd > 2:
            found = next((pattern for pattern in patterns if re.fullmatch(pattern, target)), target)
            counts[found] = counts.get(found, 0) + 1
    return counts


def expect_descriptors(pid: int, expected: dict[str, int]) -> None:
    """Wait until a process holds beside 0, 1 and 2 just what a table says."""
    wait_for(
        lambda: _count(pid, expected) == expected, f"{status_of(pid)['Name']}: {_count(pid, expected)} to be {expected}"
    )


@pytest.mark.private_users
def test_descriptors(make_pod: MakePod) -> None:
    """Each kind of process holds what the table says, though its caller leaked 64 descriptors."""
    pod, processes = running_pod(make_pod)
    for kind, expected in DESCRIPTORS.items():
        expect_descriptors(processes[kind], of_groups(pod, expected) if kind == "pid 1" else expected)
    for first in pod.first_processes().values():
        assert sorted(descriptors_of(first)) == [0, 1, 2]


def test_descriptors_of_a_pod_with_a_console(make_pod: MakePod) -> None:
    """The launcher holds both ends of the console and ways of its own to the caller's terminal, PID 1 the master."""
    pod = make_pod({"a": shell(FOREVER)})
    with Terminal() as terminal:
        process = terminal.run(pod, stderr=subprocess.DEVNULL)
        pod.wait_ready()
        assert pod.ask({"op": "ping"})["ok"]
        [app] = pod.children().values()
        console = {"/dev/pts/ptmx": 1}
        slaves = r"/dev/pts/\d+"  # the console's, and the caller's for reading and for writing
        of_pid_1 = {
            **{POD_DIRECTORY: 1, SIGNALFD: 1, EPOLL: 2, PIDFD: 1, r"mnt:\[\d+\]": 1, PROGRAM: 1, SPEC: 1, STATE: 1},
            SOCKET: 6,  # launcher, control, and two pairs of trio's
            r"/sys/fs/cgroup/(?!memory).*/system.slice/a.service": 1,
            r"/sys/fs/cgroup/freezer/.*/system.slice/a.service/freezer.state": 1,
            r"/sys/fs/cgroup/memory/.*/system.slice/a.service": 1,
            r"/rkt/minit/(supervisor|events).log": 2,
            **console,
        }
        tables: dict[int, dict[str, int]] = {
            process.pid: {**DESCRIPTORS["launcher"], SIGNALFD: 2, slaves: 3, **console},
            pod.pid: of_groups(pod, of_pid_1),
            app: {},
        }
        for pid, expected in tables.items():
            expect_descriptors(pid, expected)


def test_descriptors_of_a_pod_with_sockets(make_pod: MakePod) -> None:
    """PID 1 holds every socket that an app is started with, each app its own; nobody else has any."""
    ports = [{"name": name, "port": number, "protocol": "tcp", "socketActivated": True} for name, number in SOCKETS]
    with socket.create_server(("127.0.0.1", 0)) as inherited:
        ports.append({**ports[0], "name": "inherited", "port": inherited.getsockname()[1]})
        pod = make_pod({"a": shell(FOREVER, ports=ports), "b": shell(FOREVER)})
        process = pod.start(**activated(inherited.fileno()))
    pod.wait_ready()
    assert pod.ask({"op": "ping"})["ok"]
    children = pod.children()
    held = {
        process.pid: DESCRIPTORS["launcher"][SOCKET],
        pod.pid: DESCRIPTORS["pid 1"][SOCKET] + len(ports),
        children["minit-spawner"]: DESCRIPTORS["minit-spawner"][SOCKET],
        children["iottymux-a"]: 0,
        children["iottymux-b"]: 0,
    }
    for pid, expected in held.items():
        wait_for(
            lambda pid=pid, expected=expected: _count(pid, {SOCKET: 0}).get(SOCKET, 0) == expected,  # type: ignore[misc]
            f"{_count(pid, {SOCKET: 0})} of {status_of(pid)['Name']} to have {expected} sockets",
        )
    apps = named(children_of(pod.pid), "sh")
    assert sorted(sorted(descriptors_of(pid)) for pid in apps) == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]


@pytest.mark.host_root("the devices of the machine are root's")
def test_descriptors_of_a_pod_that_follows_devices(make_pod: MakePod) -> None:
    """The helper has its program, a socket to the launcher and one for events of devices; it is no child of the pod."""
    mounts = [{"volume": "v", "path": "/v"}]
    app = shell(FOREVER, mounts=mounts, annotations=[{"name": "minit/hotplug", "value": "true"}])
    pod = make_pod({"a": app}, volumes=[{"name": "v", "kind": "host", "source": "/dev/loop-control"}])
    leaks = [os.open("/", os.O_RDONLY) for _ in range(64)]
    try:
        process = pod.start(pass_fds=leaks)
    finally:
        for fd in leaks:
            os.close(fd)
    pod.wait_ready()
    [helper] = [pid for pid in children_of(process.pid) if pid != pod.pid]
    status = status_of(helper)
    assert status["Name"] == "minit-devices"
    assert status["CapEff"] == status_of(os.getpid())["CapEff"]
    assert control_groups_of(helper) == control_groups_of(os.getpid())
    assert os.stat(f"/proc/{helper}/ns/pid") == os.stat("/proc/self/ns/pid")
    tables = {helper: {SOCKET: 2, PROGRAM: 1}, process.pid: {**DESCRIPTORS["launcher"], SOCKET: 2}}
    for pid, expected in tables.items():
        expect_descriptors(pid, expected)


@pytest.mark.private_users
def test_an_app_before_its_exec(make_pod: MakePod) -> None:
    """It holds its streams, its socket to PID 1 and its mount namespace, and is not dumpable."""
    wait = "/bin/sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.01; done"
    mounts = [{"volume": "v", "path": "/v"}]
    section = shell("exit 0", user="1000", group="1000", mounts=mounts, eventHandlers=handlers(pre_start=wait))
    pod = make_pod({"a": section}, volumes=[{"name": "v", "kind": "empty"}])
    process = pod.start()
    # The handler is there when the app has prepared itself.
    wait_for(lambda: {"sh", "minit-spawner"} <= {*pod.children()}, "the handler")
    [app] = named(children_of(pod.pid), "minit")
    assert _count(app, {SOCKET: 1, r"mnt:\[\d+\]": 1}) == {SOCKET: 1, r"mnt:\[\d+\]": 1}
    status = status_of(app)
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert int(status["CapBnd"], 16) & ~DEFAULT_BOUNDING == 0
    # The kernel gives the files of a process that is not dumpable to root.
    assert (int(status["Uid"].split()[0]), os.stat(f"/proc/{app}/environ").st_uid) == (pod.shift + 1000, 0)
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0


@pytest.mark.private_users
def test_an_event_handler(make_pod: MakePod) -> None:
    """It has three descriptors and the capabilities of PID 1's bounding set."""
    wait = "/bin/sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.01; done"
    pod = make_pod({"a": shell("exit 0", user="1000", group="1000", eventHandlers=handlers(pre_start=wait))})
    process = pod.start()
    handler = wait_for(lambda: pod.children().get("sh"), "the handler")
    assert sorted(descriptors_of(handler)) == [0, 1, 2]
    status, bounding = status_of(handler), status_of(pod.pid)["CapBnd"]
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {bounding}
    assert {status[name] for name in ("CapInh", "CapAmb")} == {"0" * 16}
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0


def test_both_processes_of_enter(make_pod: MakePod) -> None:
    """The parent holds where it was started from and how it learns of signals; the command has three descriptors."""
    pod, _ = running_pod(make_pod)
    command = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "sleep", "60"]
    parent = subprocess.Popen(command, cwd=pod.path, stdin=subprocess.DEVNULL)
    try:
        child = wait_for(lambda: _child_called("sleep", parent.pid), "the command")
        expect_descriptors(parent.pid, {SIGNALFD: 1, EPOLL: 1, IMAGE: 1})
        assert sorted(descriptors_of(child)) == [0, 1, 2]
        assert status_of(child)["CapEff"] == status_of(pod.pid)["CapBnd"]
        assert str(Path(f"/proc/{child}/exe").readlink()) == "/bin/busybox"
    finally:
        parent.kill()
        parent.wait()


def _child_called(name: str, parent: int) -> int | None:
    for child in children_of(parent):
        # The first one that is forked only forks another.
        with suppress(FileNotFoundError, ProcessLookupError):
            if status_of(child)["Name"] == name:
                return child
    return None


def test_the_death_of_the_launcher_is_a_signal_too(make_pod: MakePod) -> None:
    """Though somebody has a copy of its socket, so that it never comes to an end, PID 1 gets SIGTERM."""
    pod = make_pod({"a": shell("trap 'exit 5' TERM; touch /tmp/up; " + FOREVER)})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    sockets = [fd for fd, target in descriptors_of(process.pid).items() if target.startswith("socket:")]
    copies = [copy_descriptor(process.pid, fd) for fd in sockets]
    try:
        process.kill()
        assert pod.wait_status("a") == 5
        pod.wait_exited()
    finally:
        for fd in copies:
            os.close(fd)


def test_the_lock_is_held_by_the_launcher_and_pid_1_alone(make_pod: MakePod) -> None:
    """In anybody else's hands it would keep a dead pod running."""
    pod, processes = running_pod(make_pod)
    holders = {kind for kind, pid in processes.items() if str(pod.path) in descriptors_of(pid).values()}
    assert holders == {"launcher", "pid 1"}


def test_standard_streams_are_passed_through(make_pod: MakePod) -> None:
    """0, 1 and 2 of our own processes are the caller's; those of an app are its own."""
    _, processes = running_pod(make_pod)
    streams = {kind: [descriptors_of(pid)[fd] for fd in range(3)] for kind, pid in processes.items()}
    for kind in ("pid 1", "minit-spawner", "iottymux-a", "iottymux-b"):
        assert streams[kind] == streams["launcher"]
    assert not set(streams["sh"][1:]) & set(streams["launcher"])


@pytest.mark.private_users
def test_privileges(make_pod: MakePod) -> None:
    """What no app may retain is out of the bounding set of PID 1; spawner and sidecars have one, without its effect."""
    pod, processes = running_pod(make_pod)
    own = int(status_of(os.getpid())["CapEff"], 16)
    own_bounding = int(status_of(os.getpid())["CapBnd"], 16)
    every = own if pod.private_users is None else syscalls.every_capability()
    effective = {"launcher": own, "pid 1": every, "minit-spawner": 0, "iottymux-a": 0, "sh": DEFAULT_BOUNDING & own}
    for kind, expected in effective.items():
        status = status_of(processes[kind])
        bounding = own_bounding if kind == "launcher" else DEFAULT_BOUNDING & own_bounding
        seen = {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")}
        reads_output = kind in ("minit-spawner", "iottymux-a")
        permitted = capability_mask("CAP_SYS_NICE") & every if reads_output else expected
        # What a program that PID 1 executes has.
        inheritable = expected if kind == "pid 1" else 0
        wanted = {"CapEff": expected, "CapPrm": permitted, "CapBnd": bounding, "CapInh": inheritable, "CapAmb": 0}
        assert seen == wanted, kind
        assert status["NoNewPrivs"] == ("1" if reads_output else "0"), kind
        assert status["Threads"] == "1", kind


@pytest.mark.private_users
def test_who_is_dumpable(make_pod: MakePod) -> None:
    """None of ours but PID 1 of a user namespace: the kernel gives the files of the others to root of the host."""
    pod, processes = running_pod(make_pod)
    owners = {kind: os.stat(f"/proc/{processes[kind]}/environ").st_uid for kind in DESCRIPTORS if kind != "launcher"}
    assert owners == {"pid 1": pod.shift, "minit-spawner": 0, "iottymux-a": 0, "sh": pod.shift}


def test_names_groups_and_places(make_pod: MakePod) -> None:
    """ps(1) shows what each process is; ours sit in init.scope in every hierarchy, with their root as directory."""
    pod, processes = running_pod(make_pod)
    assert status_of(processes["launcher"])["Name"] == "minit-launcher"
    assert status_of(processes["pid 1"])["Name"] == "minit"
    hierarchies = len(pod.control_groups())
    subcgroup = (pod.path / "subcgroup").read_text() if hierarchies else ""
    for kind in ("pid 1", "minit-spawner", "iottymux-a", "iottymux-b"):
        groups = list(control_groups_of(processes[kind]).values())
        assert groups.count(f"/{subcgroup}/init.scope") == hierarchies, kind
        # Relative to the mount: the two that read what apps write see nothing else.
        place = "/" if kind == "pid 1" else LOG
        for link in ("cwd", "root"):
            assert os.readlink(f"/proc/{processes[kind]}/{link}").endswith(place), kind
    assert control_groups_of(processes["launcher"]) == control_groups_of(os.getpid())


@pytest.mark.private_users
def test_an_app_cannot_look_into_our_processes(make_pod: MakePod) -> None:
    """They are not dumpable: root in an app sees neither their files, nor their root, memory or environment."""
    look = (
        "for p in /proc/[0-9]*; do case $(cat $p/comm) in minit*|iottymux*|init-*)"
        " cat $p/comm; readlink $p/root $p/cwd $p/exe $p/fd/*; cat $p/environ $p/maps; head -c 1 $p/mem;; esac; done"
    )
    pod = make_pod({"a": shell(f"while [ ! -e /tmp/go ]; do sleep 0.01; done; {look}; exit 0")})
    process = pod.start(env={"SECRET": "secret"})
    wait_for(lambda: "iottymux-a" in pod.children(), "the sidecar")
    is_alone = bool(pod.first_processes())
    pod.file("a", "/tmp/go").touch()
    result = pod.finish(process)
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert sorted(lines) == (["init-a"] if is_alone else ["iottymux-a", "minit", "minit-spawner"])


def test_no_process_idles_by_waking_up(make_pod: MakePod) -> None:
    """With nothing to do none of ours runs: their context switches stand still."""
    _, processes = running_pod(make_pod)

    def switches() -> dict[str, str]:
        kinds = ("launcher", "pid 1", "minit-spawner", "iottymux-a")
        return {kind: status_of(processes[kind])["voluntary_ctxt_switches"] for kind in kinds}

    # Soon, that is: the connection of the check for an answer is still being put away.
    wait_for(lambda: switches() == _after_a_second(switches), "a second without a wake-up")


def _after_a_second(look: Callable[[], dict[str, str]]) -> dict[str, str]:
    time.sleep(1)
    return look()


def test_twenty_pods_leave_nothing_on_the_host(make_pod: MakePod) -> None:
    """No process, mount, control group or descriptor of ours is more than before, however the pods ended."""
    kinds = [
        {"a": shell("exit 0")},
        {"a": shell("exit 3"), "b": shell(FOREVER)},
        {"a": app_section("/missing")},
        {"a": shell("sleep 60 & exit 0"), "b": shell("echo output")},
    ]
    pods = [make_pod(apps) for _ in range(5) for apps in kinds]
    mounts = Path("/proc/self/mountinfo").read_text()
    descriptors = descriptors_of(os.getpid())
    for start in range(0, len(pods), 4):
        codes = [result.returncode for result in run_all(pods[start : start + 4])]
        assert codes == [0, 3, 203, 0]
    assert Path("/proc/self/mountinfo").read_text() == mounts
    for pod in pods:
        wait_for(lambda pod=pod: pod.members() == [], "the end of all processes")  # type: ignore[misc]
        assert not pod.is_running()
        assert pod.gc().returncode == 0
        assert pod.control_groups() == []
    uuids = {pod.uuid for pod in pods}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            assert not uuids & set(words), words
    # Each pod gave up its lock; what else the test process has open is what it had.
    assert set(descriptors_of(os.getpid())) <= set(descriptors)
