"""What the kernel keeps from root of a user's namespace: works in another way, or is refused in one line."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_rootless import IMAGE, POD, clean, shell, start, user
from tests.support.loopdevices import LoopDevice
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.waiting import wait_for

__all__ = ["clean", "user"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

HARMLESS = ("networking: ", "run: importing ", "run: extracting ")
ZERO = os.makedev(1, 5)
PRIVILEGED = ("--annotation=minit/allow-privileged=true", "--annotation=minit/privileged=true")


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the app of a pod that ended with 0 has said, without its name."""
    assert done.returncode == 0, done.stderr
    return [line.partition("]: ")[2] for line in done.stdout.splitlines()]


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line of a pod that was refused, the only one but for those that tell of no trouble."""
    assert (done.returncode, done.stdout) == (254, ""), done.stderr
    [line] = [line for line in done.stderr.splitlines() if not line.startswith(HARMLESS)]
    return line.removeprefix("stage1: ")


def shown(source: str, **options: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options of a pod and of its app that show a path of the host at /shown."""
    fields = "".join(f",{name}={value}" for name, value in options.items())
    return (f"--volume=v,kind=host,source={source}{fields}",), ("--mount=volume=v,target=/shown",)


def in_mounts(user: OrdinaryUser, *words: str) -> None:
    """Run words as root in the mount namespace in which the user lives, before the user's own is made."""
    subprocess.run([*user.words(())[:2], *words], check=True)


@pytest.fixture
def below(clean: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user, with a mount of root at ~/mounted/below, in which everybody can write, that allows little."""
    place = f"{HOME}/mounted/below"
    in_mounts(clean, "mkdir", "-p", place)
    in_mounts(clean, "mount", "-t", "tmpfs", "-o", "nosuid,nodev,noexec,mode=1777", "none", place)
    yield clean
    in_mounts(clean, "umount", place)


# Devices.


def test_a_device_that_the_user_may_open(clean: OrdinaryUser) -> None:
    """It is in the app under any name, and what it does there is done."""
    done = shell(clean, "busybox head -c 3 /dev/mine | busybox wc -c", app=("--device=/dev/zero:/dev/mine",))
    assert said(done) == ["3"]


def test_what_the_user_may_not_open(clean: OrdinaryUser) -> None:
    """A device, a file and a directory of root's that are closed to others are refused with the path and the remedy."""
    for name, kind in (("node", stat.S_IFCHR), ("file", stat.S_IFREG)):
        os.mknod(clean.home / name, kind | 0o600, ZERO)
    (clean.home / "directory").mkdir(mode=0o700)
    for name in ("node", "file", "directory"):
        flags, app = shown(f"{HOME}/{name}")
        line = refusal(shell(clean, "true", *flags, app=app))
        assert f'volume "v": you may not open {HOME}/{name}: let root change its owner or mode' in line


def test_a_device_cannot_be_read_only(clean: OrdinaryUser, loop: LoopDevice) -> None:
    """Without a policy of devices an app could write to it: it is refused, unless the user may not write to it."""
    for access in ("/dev/zero:/dev/mine:r", "/dev/zero:/dev/mine:rm"):
        line = refusal(shell(clean, "true", app=(f"--device={access}",)))
        assert "/dev/zero cannot be read-only, which takes root" in line
    os.mknod(clean.home / "readable", stat.S_IFCHR | 0o444, ZERO)
    done = shell(clean, "busybox head -c 3 /dev/mine | busybox wc -c", app=(f"--device={HOME}/readable:/dev/mine:r",))
    assert said(done) == ["3"]
    loop.remove()
    flags, app = shown(str(loop.path), readOnly="true")
    line = refusal(shell(clean, "true", *flags, app=(*app, "--annotation=minit/hotplug=true")))
    assert line.endswith(f"{loop.path} cannot be read-only, which takes root")


def test_a_device_on_a_mount_without_devices(below: OrdinaryUser) -> None:
    """It is refused: root has left nodev on the mount, which a user cannot take away."""
    in_mounts(below, "mknod", "--mode=666", f"{HOME}/mounted/below/zero", "c", "1", "5")
    line = refusal(shell(below, "true", app=(f"--device={HOME}/mounted/below/zero",)))
    assert line.endswith("/below/zero lies on a mount with nodev, where root lets nobody use devices")


def test_no_node_can_be_made(clean: OrdinaryUser) -> None:
    """Not even that of /dev/null, which root's apps may make."""
    done = shell(clean, "busybox mknod /tmp/null c 1 3")
    assert done.returncode == 1 and "Operation not permitted" in done.stderr


def test_devices_come_and_go(clean: OrdinaryUser, loop: LoopDevice) -> None:
    """With minit/hotplug a device that is plugged in later appears in the app, and disappears."""
    loop.remove()
    flags, app = shown(str(loop.path))
    script = (
        "echo up; while [ ! -b /shown ]; do busybox sleep 0.05; done; echo came;"
        "while [ -b /shown ]; do busybox sleep 0.05; done; echo gone"
    )
    words = ("run", "--detach", "--name=plug", *POD, *flags, IMAGE, *app, "--annotation=minit/hotplug=true")
    assert clean.minit(*words, "--", "-c", script).returncode == 0
    loop.add()
    wait_for(lambda: "came" in clean.minit("logs", "plug").stdout, "the device")
    loop.remove()
    wait_for(lambda: "gone" in clean.minit("logs", "plug").stdout, "the end of the device")


def test_an_app_with_all_privileges(clean: OrdinaryUser) -> None:
    """It has all capabilities there are, no filter, and those devices of the host that the user may open."""
    script = (
        "busybox grep -E '^(CapEff|Seccomp|NoNewPrivs):' /proc/self/status; busybox mkdir /m;"
        "busybox mount -t tmpfs none /m && echo mounted; busybox find /dev -type c -o -type b"
    )
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    seen = said(shell(clean, script, app=PRIVILEGED))
    assert [line.split()[-1] for line in seen[:3]] == [f"{(2 << last) - 1:016x}", "0", "0"]
    assert seen[3] == "mounted"
    find = "find /dev -xdev ( -type c -o -type b ) -readable -writable"
    usable = set(clean.run(*find.split()).stdout.split()) - {"/dev/ptmx", "/dev/console"}
    assert usable <= {*seen[4:]} and all(path.startswith("/dev/pts/") for path in {*seen[4:]} - usable)


def test_privileges_in_the_network_of_the_host(clean: OrdinaryUser) -> None:
    """The host's /sys, which nothing of a user can change, is read-only there."""
    words = ("run", "--net=host", POD[1], IMAGE, *PRIVILEGED, "--", "-c", "busybox grep ' /sys ' /proc/self/mounts")
    [line] = said(clean.minit(*words))
    assert line.split()[3].split(",")[0] == "ro"


# Namespaces and file systems of the host.


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--pid=host", "annotation minit/pid-namespace: host: needs root: a user may not mount the /proc of the host"),
        ("--ipc=parent", "--ipc=parent needs root: a user may not mount the message queues of the host"),
    ],
)
def test_namespaces_of_the_host(clean: OrdinaryUser, flag: str, problem: str) -> None:
    """The processes and the queues of the host are refused in one line."""
    assert refusal(shell(clean, "true", flag)).startswith(problem)


def test_a_container_with_a_hidden_proc(clean: OrdinaryUser) -> None:
    """Where a part of /proc is covered, as in a container, the kernel gives no other one: a line says so."""
    in_mounts(clean, "mount", "-t", "tmpfs", "-o", "ro", "none", "/proc/tty")
    try:
        line = refusal(shell(clean, "true"))
    finally:
        in_mounts(clean, "umount", "/proc/tty")
    assert line.startswith("cannot mount /proc for the pod: parts of /proc are hidden here, as in a container: ")
    assert clean.minit("unshare", "true").returncode == 0


def test_options_of_mounts_stay(below: OrdinaryUser) -> None:
    """A volume has the options of root's mount on the host, be it read-only or not, alone or with the mount above."""
    look = "busybox grep -E ' /shown(/below)? ' /proc/self/mounts | busybox tail -n 1"
    for path, options, first in (
        ("mounted/below", {"readOnly": "true"}, "ro"),
        ("mounted/below", {}, "rw"),
        ("mounted", {"readOnly": "true"}, "ro"),
    ):
        flags, app = shown(f"{HOME}/{path}", **options)
        [line] = said(shell(below, look, *flags, app=app))
        assert line.split()[3].startswith(f"{first},nosuid,nodev,noexec,"), line


def test_a_volume_without_the_mounts_below(below: OrdinaryUser) -> None:
    """The kernel does not show a user what lies under a mount of root's: a line says so."""
    flags, app = shown(f"{HOME}/mounted", recursive="false")
    line = refusal(shell(below, "true", *flags, app=app))
    assert line.endswith("the kernel shows you a directory only with the mounts below: leave recursive=false out")


# Limits and settings.


@pytest.mark.parametrize(
    ("option", "look", "seen", "warning"),
    [
        ("--oom-score-adj=-500", "cat /proc/self/oom_score_adj", "0", "oom_score_adj cannot be lowered to -500"),
        ("--oom-score-adj=500", "cat /proc/self/oom_score_adj", "500", ""),
        ("--ulimit=rtprio=50", "sh -c 'ulimit -r'", "0", "minit/ulimits: rtprio=0 in place of 50"),
        ("--ulimit=nofile=100:200", "sh -c 'ulimit -Sn; ulimit -Hn'", "100 200", ""),
    ],
)
def test_limits(clean: OrdinaryUser, option: str, look: str, seen: str, warning: str) -> None:
    """What only root can give is left out with a warning, and what the user can give is given."""
    done = shell(clean, f"busybox {look}", app=(option,))
    assert " ".join(said(done)) == seen
    lines = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(lines) == bool(warning) and all(warning in line for line in lines), done.stderr


def test_settings_of_the_kernel(clean: OrdinaryUser) -> None:
    """Settings of the pod's own namespaces are set, those of the host's network refused."""
    settings = {"kernel/shmmax": "100000", "net/core/somaxconn": "77", "fs/mqueue/msg_max": "9"}
    options = [f"--sysctl={name.replace('/', '.')}={value}" for name, value in settings.items()]
    done = shell(clean, "cd /proc/sys; busybox cat " + " ".join(settings), app=(*options,))
    assert said(done) == [*settings.values()]
    words = ("run", "--net=host", POD[1], IMAGE, "--sysctl=net.core.somaxconn=77", "--", "-c", "true")
    assert refusal(clean.minit(*words)).endswith(
        '"net.core.somaxconn" would be that of the host, whose network the pod has'
    )


def test_groups_of_others(clean: OrdinaryUser) -> None:
    """A group that root has not delegated is no place for a pod: a line says so."""
    around = Path(clean.run("sh", "-c", "sed -n 's/^0:://p' /proc/self/cgroup").stdout.strip()).parent
    line = refusal(shell(clean, "true", f"--annotation=minit/cgroup-parent={around}"))
    assert line == f"the control group {around} is not delegated to you (see docs/rootless.md)"


def test_a_directory_for_logs_of_another_user(clean: OrdinaryUser) -> None:
    """It is refused before anything runs."""
    (clean.home / "logs").mkdir()
    line = refusal(shell(clean, "true", f"--annotation=minit/log-directory={HOME}/logs"))
    assert line == f"directory for logs: {HOME}/logs: permission denied"


def test_a_network_on_a_link_of_the_machine(clean: OrdinaryUser) -> None:
    """It is refused when it is to be made, and there is none afterwards."""
    for driver in ("macvlan", "ipvlan"):
        done = clean.minit("network", "create", f"--driver={driver}", "--opt=parent=lo", "office")
        assert (done.returncode, done.stderr.count("\n")) == (254, 1)
        assert f"the driver {driver} needs root" in done.stderr
    assert "office" not in clean.minit("network", "ls", "--quiet").stdout


# Commands beside run.

CONTAINERFILE = """\
FROM example.com/busybox:1.0
RUN ["/bin/sh", "-c", "echo made > /made && /bin/busybox mkdir /own && /bin/busybox chown 1000:1001 /own"]
CMD ["/bin/sh", "-c", "/bin/busybox cat /made; /bin/busybox stat -c %u:%g /own"]
"""


def test_an_image_is_built(clean: OrdinaryUser) -> None:
    """RUN changes owners, and the image leaves by a file of the user's."""
    assert said(shell(clean, "true")) == []
    (clean.home / "context").mkdir()
    (clean.home / "context/Containerfile").write_text(CONTAINERFILE)
    assert clean.minit("build", POD[1], "--tag=own", f"{HOME}/context").returncode == 0
    assert said(clean.minit("run", *POD, "own")) == ["made", "1000:1001"]
    assert clean.minit("image", "export", "own", f"{HOME}/own.tar", "--format=docker-archive").returncode == 0
    assert (clean.home / "own.tar").stat().st_uid == clean.uid


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: example.com/busybox:1.0
        command: [/bin/sh, -c, "exec busybox sleep 1000"]
        readinessProbe: {exec: {command: [/bin/sh, -c, "true"]}, periodSeconds: 1}
"""


def test_a_deployment_is_played(clean: OrdinaryUser) -> None:
    """Its pods run, with checks, and end together."""
    assert said(shell(clean, "true")) == []
    (clean.home / "web.yaml").write_text(DEPLOYMENT)
    assert clean.minit("play", "--detach", *POD, f"{HOME}/web.yaml").returncode == 0
    assert clean.minit("list", "--no-legend").stdout.count("\trunning\t") == 2
    assert clean.minit("play", "--down", f"{HOME}/web.yaml").returncode == 0
    assert "running" not in clean.minit("list", "--no-legend").stdout


def test_volumes_and_changes_of_an_app(clean: OrdinaryUser) -> None:
    """A named volume outlives its pods, and the changes of an app are shown and exported."""
    done = shell(clean, "echo kept > /data/file; echo new > /new", "-v", "own:/data", "--name=first")
    assert done.returncode == 0, done.stderr
    assert clean.minit("diff", "first").stdout.splitlines() == ["A /data", "A /new"]
    assert clean.minit("export", "first", f"{HOME}/first.aci").returncode == 0
    assert clean.minit("rm", "first").returncode == 0
    assert said(shell(clean, "busybox cat /data/file", "-v", "own:/data")) == ["kept"]
    assert said(clean.minit("run", *POD, f"{HOME}/first.aci", "--", "-c", "busybox cat /new")) == ["new"]
    assert clean.minit("rm", "--all").returncode == 0
    assert clean.minit("volume", "rm", "own").stdout == "own\n"


def test_an_app_is_added_changed_and_removed(clean: OrdinaryUser) -> None:
    """A mutable pod takes an app with all privileges, new limits for it, and lets it go."""
    assert clean.minit("app", "sandbox", "--detach", "--name=box", *POD, PRIVILEGED[0]).returncode == 0
    words = ("box", IMAGE, "--name=one", PRIVILEGED[1], "--exec=/bin/sh", "--", "-c", "exec busybox sleep 1000")
    for command in (
        ("add", *words),
        ("start", "--app=one", "box"),
        ("update", "--app=one", "--memory=64Mi", "box"),
        ("stop", "--app=one", "box"),
        ("rm", "--app=one", "box"),
    ):
        done = clean.minit("app", *command)
        assert done.returncode == 0, done.stderr


def test_a_pod_is_watched(clean: OrdinaryUser) -> None:
    """Events, statistics and a signal are as root's."""
    start(clean, "web")
    assert '"event":"pod.ready"' in clean.minit("events", "web").stdout
    assert "(pod)" in clean.minit("stats", "web").stdout
    assert clean.minit("app", "pause", "--app=busybox", "web").returncode == 0
    assert clean.minit("app", "resume", "--app=busybox", "web").returncode == 0
    assert clean.minit("kill", "--signal=KILL", "web").returncode == 0
    wait_for(lambda: "\trunning\t" not in clean.minit("list", "--no-legend").stdout, "the end of the pod")
