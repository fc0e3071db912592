"""The namespaces of a pod and of its apps, its host name, its network, and what crosses none of their borders."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pods import MakePod, PodDirectory, guest, shell
from tests.support.processes import namespace_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.private_users

FOREVER = "while :; do sleep 1; done"
API_MOUNTS = {"/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/etc/hostname", "/etc/hosts"}


def app_pid(pod: PodDirectory, app: str) -> int:
    """Return the host pid of an app's main process."""
    paths = pod.control_groups()[0].rglob(f"{app}.service/cgroup.procs")
    return int(wait_for(lambda: next(path for path in paths).read_text().split(), f"a process of {app}")[0])


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_a_pod_has_its_own_namespaces_and_each_app_its_own_mounts(
    make_pod: MakePod, private_users: tuple[int, int] | None, overlay: bool
) -> None:
    """Pid, uts, ipc and network are the pod's, with private users that of users; those of cgroups are the host's."""
    pod = make_pod({"a": shell(FOREVER), "b": shell(FOREVER)}, overlay=overlay)
    process = pod.start()
    pod.wait_ready()
    apps = [app_pid(pod, "a"), app_pid(pod, "b")]
    own = {"pid", "uts", "ipc", "net"} | (set() if private_users is None else {"user"})
    for kind in own:
        assert namespace_of(pod.pid, kind) != namespace_of("self", kind), kind
        assert {namespace_of(pid, kind) for pid in apps} == {namespace_of(pod.pid, kind)}, kind
    for kind in {"user", "cgroup"} - own:
        assert {namespace_of(pid, kind) for pid in (pod.pid, *apps)} == {namespace_of("self", kind)}, kind
    mounts = {namespace_of("self", "mnt"), *(namespace_of(pid, "mnt") for pid in (process.pid, pod.pid, *apps))}
    assert len(mounts) == 4, "host and launcher share one, PID 1 and each app have their own"
    pod.stop()
    assert pod.finish(process).returncode == 0


@pytest.fixture
def host_queue() -> Iterator[str]:
    """A System V message queue of the host, by its id."""
    words = subprocess.run(["ipcmk", "-Q"], check=True, capture_output=True, text=True).stdout.split()
    yield words[-1]
    subprocess.run(["ipcrm", "-q", words[-1]], check=True)


@pytest.mark.parametrize(
    ("flags", "own"),
    [((), True), (("--ipc=",), True), (("--ipc=auto",), True), (("--ipc=private",), True), (("--ipc=parent",), False)],
    ids=["none", "empty", "auto", "private", "parent"],
)
def test_ipc_modes(make_pod: MakePod, host_queue: str, flags: tuple[str, ...], own: bool) -> None:
    """Only with `parent` the apps are in the host's IPC namespace and see its System V objects."""
    pod = make_pod({"a": shell(f"cat /proc/sysvipc/msg > /tmp/queues; touch /tmp/done; {FOREVER}")})
    pod.start(*flags)
    assert (namespace_of(pod.pid, "ipc") != namespace_of("self", "ipc")) == own
    title, *queues = pod.wait_file("a", "/tmp/done").with_name("queues").read_text().splitlines()
    assert title.split()[:2] == ["key", "msqid"]
    assert (host_queue not in [queue.split()[1] for queue in queues]) == own


@pytest.mark.parametrize("net", ["host", None])
def test_the_hosts_network_is_kept(make_pod: MakePod, net: str | None) -> None:
    """With --net=host, and when stage0 gives no --net at all."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start(net=net)
    assert namespace_of(pod.pid, "net") == namespace_of("self", "net")


def test_without_a_network_there_is_lo_and_it_is_up(make_pod: MakePod) -> None:
    """An app reaches itself over 127.0.0.1 and nothing else."""
    pod = make_pod({"a": shell("ip -o link; ip -o addr show lo; ip route; ping -c 1 -W 1 127.0.0.1 >/dev/null")})
    result = pod.run()
    assert result.returncode == 0
    links = [line for line in result.stdout.splitlines() if "link/" in line]
    assert len(links) == 1 and " lo: <LOOPBACK,UP,LOWER_UP>" in links[0]
    assert "127.0.0.1/8" in result.stdout
    assert " via " not in result.stdout


def test_the_host_name_is_the_pods(make_pod: MakePod) -> None:
    """`rkt-UUID` unless --hostname says otherwise, underscores included; the host keeps its own."""
    before = os.uname().nodename
    pod = make_pod({"a": shell("hostname")})
    assert pod.run().stdout.endswith(f"]: rkt-{pod.uuid}\n")
    pod = make_pod({"a": shell("hostname")})
    assert pod.run("--hostname=my_host.example").stdout.endswith("]: my_host.example\n")
    assert os.uname().nodename == before


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_an_app_sees_its_own_files_only(make_pod: MakePod, overlay: bool) -> None:
    """Neither the stage1 root, nor another app's root, nor the control socket is anywhere in its reach."""
    look = (
        "cat /secret-of-b /rkt/env/b /opt/stage2/b/rootfs/secret-of-b /proc/1/root/secret /proc/1/cwd/rkt/env/b;"
        "ls -A /opt /rkt /entrypoints; find / -xdev -name control; readlink /proc/1/fd/*; ls /proc/1/root; echo done"
    )
    wait = "while [ ! -e /dev/shm/go ]; do sleep 0.01; done"
    pod = make_pod(
        {
            "a": shell(f"{wait}; {look}; /bin/guest report /tmp/report"),
            "b": shell(f"echo hidden > /secret-of-b; touch /dev/shm/go; {FOREVER}"),
        },
        overlay=overlay,
    )
    process = pod.start()
    assert pod.wait_status("a") == 0
    pod.stop()
    result = pod.finish(process)
    assert result.stdout.endswith("]: done\n"), "nothing but errors before"
    assert result.stdout.count("\n") == 1, result.stdout
    fields = [line.split() for line in pod.report("a").one("mountinfo").splitlines()]
    # What protects paths of /proc and /sys is a mount, too.
    assert {field[4] for field in fields if not field[4].startswith(("/proc/", "/sys/"))} == API_MOUNTS
    assert not [field for field in fields if str(pod.path) in field[3] and field[4] != "/"]


def test_there_is_nothing_above_an_apps_root(make_pod: MakePod) -> None:
    """Root with CAP_SYS_CHROOT leaves any chroot, and still finds nothing but its own files."""
    pod = make_pod({"a": guest("escape")})
    result = pod.run()
    assert result.returncode == 0, result.stderr
    names = {line.partition("]: ")[2] for line in result.stdout.splitlines()}
    assert {"bin", "proc"} <= names
    assert not names & {"rkt", "entrypoints", "opt"}


def test_an_app_sees_the_pods_processes_only(make_pod: MakePod) -> None:
    """/proc is of the pod's own pid namespace, in which the supervisor is 1."""
    pod = make_pod({"a": shell("cat /proc/1/comm; ls /proc | grep '^[0-9]' | wc -l")})
    lines = [line.partition("]: ")[2] for line in pod.run().stdout.splitlines()]
    assert lines[0] == "minit"
    assert int(lines[1]) < 10


@pytest.mark.host_users("without overlays there are no mounts that could be shared")
def test_mounts_of_a_pod_never_reach_the_host(make_pod: MakePod) -> None:
    """Neither those of an app that may mount nor those made in PID 1's namespace, on mounts the host shares."""
    pod = make_pod({"a": shell(f"mount -t tmpfs inside /tmp && touch /tmp/mine && {FOREVER}")})
    for point in (str(pod.stage1), str(pod.file("a", ""))):
        subprocess.run(["mount", "--make-shared", point], check=True)
    before = pod.mounts()
    process = pod.start("--disable-capabilities-restriction", "--disable-seccomp")
    pod.wait_ready()
    main = app_pid(pod, "a")
    wait_for(Path(f"/proc/{main}/root/tmp/mine").exists, "the app's mount")
    for target in ("/rkt/minit/log", "/opt/stage2/a/rootfs/etc", "/dev/shm"):
        _mount_inside(pod.pid, target)
    assert pod.mounts() == before
    assert not Path(pod.file("a", "/tmp/mine")).exists()
    pod.stop("--force")
    pod.finish(process)
    assert pod.mounts() == before


def _mount_inside(pid: int, target: str) -> None:
    """Mount a tmpfs in the mount namespace of a process, from a child that joins it."""
    from minit.linux import syscalls

    child = os.fork()
    if child == 0:
        try:
            syscalls.setns(os.pidfd_open(pid), syscalls.CLONE_NEWNS)
            syscalls.mount("inside", target, "tmpfs", 0)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_mount_made_on_the_host_later_stays_out_of_the_apps(make_pod: MakePod, tmp_path: Path) -> None:
    """Mounts of the host below the pod directory do not reach a running app."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    target = pod.file("a", "/etc")
    subprocess.run(["mount", "-t", "tmpfs", "outside", str(target)], check=True)
    try:
        (target / "from-the-host").touch()
        assert not Path(f"/proc/{app_pid(pod, 'a')}/root/etc/from-the-host").exists()
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_the_stage1_root_is_read_only_even_for_an_app_that_reaches_it(make_pod: MakePod) -> None:
    """An app with every capability gets to PID 1's root through /proc, and can change nothing the host executes."""
    attempts = "; ".join(
        f"touch /proc/1/root/{path} && echo changed {path}"
        for path in ("entrypoints/gc", "usr/lib/minit/bin/minit", "etc/new", "new", "opt/new")
    )
    pod = make_pod({"a": shell(f"ls -d /proc/1/root/rkt; {attempts}; true")})
    result = pod.run("--disable-capabilities-restriction")
    assert "/proc/1/root/rkt" in result.stdout
    assert "changed" not in result.stdout
    assert result.stderr.count("Read-only file system") == 5, result.stderr


def test_api_mounts_of_an_app_are_the_pods_own(make_pod: MakePod) -> None:
    """proc, sysfs and devpts of an app are the pod's, /dev and two files its own, and shared memory is shared."""
    pod = make_pod(
        {
            "a": shell("echo from-a > /dev/shm/x; touch /dev/mine; /bin/guest report /tmp/report"),
            "b": shell("while [ ! -e /dev/shm/x ]; do sleep 0.01; done; cat /dev/shm/x; [ ! -e /dev/mine ]"),
        }
    )
    result = pod.run()
    assert result.returncode == 0
    assert result.stdout.endswith("]: from-a\n")
    mounts = {}
    for line in pod.report("a").one("mountinfo").splitlines():
        fields = line.split()
        mounts[fields[4]] = (fields[fields.index("-") + 1], set(fields[5].split(",")))
    protected = {point for point in mounts if point.startswith(("/proc/", "/sys/"))}
    assert {point: kind for point, (kind, _) in mounts.items() if point != "/" and point not in protected} == {
        "/proc": "proc",
        "/sys": "sysfs",
        "/dev": "tmpfs",
        "/dev/pts": "devpts",
        "/dev/shm": "tmpfs",
        "/dev/mqueue": "mqueue",
        "/etc/hostname": "tmpfs",
        "/etc/hosts": "tmpfs",
    }
    for point in ("/proc", "/sys"):
        assert {"nosuid", "nodev", "noexec"} <= mounts[point][1]
    assert "ro" in mounts["/sys"][1]
    assert {"nosuid"} <= mounts["/dev"][1] & mounts["/dev/pts"][1]
    assert {"nosuid", "nodev"} <= mounts["/dev/shm"][1]


def test_the_launcher_stays_in_the_hosts_namespaces(make_pod: MakePod) -> None:
    """It is the process that stage0 was, with stage0's working directory."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up")}, annotations={"minit/stop-grace": "10ms"})
    process = pod.start()
    pod.wait_ready()
    for kind in ("pid", "uts", "ipc", "net", "mnt", "user", "cgroup"):
        assert namespace_of(process.pid, kind) == namespace_of("self", kind)
    assert os.readlink(f"/proc/{process.pid}/cwd") == str(pod.path)
