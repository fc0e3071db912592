"""A command that is entered has what the app has, and no more (CVE-2019-10144, CVE-2019-10145, CVE-2019-10147)."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minit.linux import syscalls
from minit.manifest.capabilities import DEFAULT, capability_mask
from tests.support.bpf import native
from tests.support.guest import GUEST, Report
from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.processes import children_of, control_groups_of, named, namespace_of, status_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.private_users

FOREVER = "while :; do sleep 1; done"
REPORTING = f"{GUEST} report /dev/shm/app; " + FOREVER
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# Of the process itself, or of how much it has done.
OWN_FIELDS = {"Name", "Pid", "Tgid", "PPid", "NStgid", "NSpid", "NSpgid", "NSsid", "State", "FDSize", "Threads"}
OWN_FIELDS |= {"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches", "SigQ"}
# What a shell adds.
OF_A_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}


def isolator(name: str, **value: Any) -> dict[str, Any]:
    """Return an isolator of an app."""
    return {"name": name, "value": value}


ISOLATORS = [
    isolator("os/linux/capabilities-retain-set", set=["CAP_NET_ADMIN", "CAP_DAC_OVERRIDE"]),
    isolator("os/linux/seccomp-remove-set", set=["sethostname", "keyctl"], errno="EXFULL"),
    {"name": "os/linux/no-new-privileges", "value": True},
    isolator("resource/memory", limit="32Mi"),
    isolator("resource/cpu", limit="500m"),
    {"name": "os/linux/oom-score-adj", "value": 300},
]
APPS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "default": ({}, ()),
    "working-directory": ({"workingDirectory": "/tmp", "supplementaryGIDs": [7, 8]}, ()),
    "isolators": ({"isolators": ISOLATORS}, ()),
    "read-only": ({"readOnlyRootFS": True}, ()),
    "no-restrictions": ({}, ("--disable-seccomp", "--disable-capabilities-restriction", "--disable-paths")),
}


@pytest.mark.parametrize("fields", APPS, ids=APPS)
@pytest.mark.delegated_groups("it sets limits")
def test_everything_is_as_in_the_app(make_pod: MakePod, fields: str) -> None:
    """Status, control groups, limits, mounts, environment, working directory and OOM score of app and command."""
    section, flags = APPS[fields]
    pod = make_pod({"a": shell(REPORTING, **section), "b": shell(FOREVER)})
    pod.start(*flags, preexec_fn=_lower_limits)
    pod.wait_ready()
    app = shared_report(pod, "app")
    environment = {**os.environ, "TERM": "dumb"}
    assert pod.enter("a", GUEST, "report", "/dev/shm/entered", env=environment).returncode == 0
    entered = shared_report(pod, "entered")
    assert without(entered.status, OWN_FIELDS) == without(app.status, OWN_FIELDS)
    for name in ("cgroup", "limits", "oom_score_adj", "cwd", "mountinfo", "uids", "gids"):
        assert entered.one(name) == app.one(name), name
    assert entered.all("group") == app.all("group")
    assert entered.environment == {**without(app.environment, OF_A_SHELL), "TERM": "dumb"}
    assert sorted(entered.descriptors) == [0, 1, 2]


def without(values: dict[str, str], names: set[str]) -> dict[str, str]:
    """Return the values but for some names, and those that say how much memory is in use."""
    return {name: value for name, value in values.items() if name not in names and not value.endswith(" kB")}


def shared_report(pod: PodDirectory, name: str) -> Report:
    """Return a report that an app has written into the pod's shared memory."""
    path = Path(f"/proc/{pod.pid}/root/dev/shm/{name}")
    wait_for(lambda: path.exists() and "limits " in path.read_text(), f"the report {name}")
    return Report(path)


def _lower_limits() -> None:
    """Give PID 1 limits that the one who enters does not have."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 1 << 20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 16 << 20))


def test_an_app_of_another_user(make_pod: MakePod) -> None:
    """The command is root, under the same bounding set, filters, no_new_privs and groups."""
    pod = make_pod({"a": shell(REPORTING, user="1000", group="1000", supplementaryGIDs=[42])})
    pod.start()
    pod.wait_ready()
    app = shared_report(pod, "app").status
    assert pod.enter("a", GUEST, "report", "/dev/shm/entered").returncode == 0
    entered = shared_report(pod, "entered").status
    for name in ("CapBnd", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Groups"):
        assert entered[name] == app[name], name
    assert (app["CapEff"], int(entered["CapEff"], 16)) == ("0" * 16, DEFAULT)
    assert entered["Uid"] == "0\t0\t0\t0"


@pytest.mark.parametrize("flags", [(), ("--disable-seccomp",), ("--disable-seccomp", "--disable-paths")])
def test_as_the_user_of_the_app(make_pod: MakePod, flags: tuple[str, ...]) -> None:
    """With --as-app the command has the app's ids, and so its capabilities and its way to new privileges."""
    pod = make_pod({"a": shell(REPORTING, user="1000", group="1001", supplementaryGIDs=[42])})
    pod.start(*flags)
    pod.wait_ready()
    app = shared_report(pod, "app")
    words = f"--pid={pod.pid}", "--appname=a", "--as-app", "--", GUEST, "report", "/tmp/entered"
    assert pod.call("enter", *words, from_tree=True).returncode == 0
    entered = Report(pod.file("a", "/tmp/entered"))
    assert without(entered.status, OWN_FIELDS) == without(app.status, OWN_FIELDS)
    for name in ("cgroup", "limits", "oom_score_adj", "cwd", "mountinfo", "uids", "gids"):
        assert entered.one(name) == app.one(name), name
    assert (app.status["Uid"], app.status["Gid"], app.status["CapEff"]) == (
        "\t".join(["1000"] * 4),
        "\t".join(["1001"] * 4),
        "0" * 16,
    )


def test_pipes_of_the_user_of_the_app(make_pod: MakePod) -> None:
    """It can open them by their names."""
    pod = make_pod({"a": shell(FOREVER, user="1000", group="1001")})
    pod.start()
    pod.wait_ready()
    script = "cat /dev/stdin; echo out > /dev/stdout; echo error > /dev/stderr"
    words = f"--pid={pod.pid}", "--appname=a", "--as-app", "--", "sh", "-c", script
    result = pod.call("enter", *words, from_tree=True, input="in\n")
    assert (result.stdout, result.stderr, result.returncode) == ("in\nout\n", "error\n", 0)


def test_a_fifo_stays_the_callers(make_pod: MakePod, tmp_path: Path) -> None:
    """It can be written to, but not opened, and belongs to nobody else afterwards."""
    pod = make_pod({"a": shell(FOREVER, user="1000", group="1001")})
    pod.start()
    pod.wait_ready()
    os.mkfifo(tmp_path / "fifo", 0o600)
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    words = [f"--pid={pod.pid}", "--appname=a", "--as-app", "--", "sh", "-c", "echo out; echo no > /dev/stdout"]
    command = [pod.entrypoint("enter", from_tree=True), *words]
    result = subprocess.run(command, cwd=pod.path, stdout=fifo, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode != 0
    assert "Permission denied" in result.stderr
    assert os.read(fifo, 100) == b"out\n"
    assert os.fstat(fifo).st_uid == 0
    os.close(fifo)


def test_failures_at_a_descriptor(make_pod: MakePod) -> None:
    """A failure of enter is told there, an exit code of the command is not, be it the same; the command has it not."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    told, theirs = os.pipe2(os.O_CLOEXEC)
    script = f"[ ! -e /proc/self/fd/{theirs} ] && exit 254"
    for app, expected in (("a", b""), ("other", b'no app "other"')):
        words = [f"--pid={pod.pid}", f"--appname={app}", f"--failure-fd={theirs}", "--", "sh", "-c", script]
        command = [pod.entrypoint("enter", from_tree=True), *words]
        done = subprocess.run(command, cwd=pod.path, capture_output=True, pass_fds=(theirs,), check=False)
        assert done.returncode == 254
        os.write(theirs, b"end")
        assert (
            expected in (found := os.read(told, 1000))
            and found.endswith(b"end")
            and bool(expected) == (found != b"end")
        )
    os.close(told)
    os.close(theirs)
    assert pod.call("enter", f"--pid={pod.pid}", "--failure-fd=999", "--", "true").returncode == 1


@pytest.mark.parametrize("flags", [("--as-app",), ("--appname=a", "--as-app", "--privileged")])
def test_as_no_user_of_an_app(make_pod: MakePod, flags: tuple[str, ...]) -> None:
    """Without an app, or with all privileges, --as-app is refused."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    result = pod.call("enter", f"--pid={pod.pid}", *flags, "--", "true", from_tree=True)
    assert result.returncode == 1
    assert "--as-app: only a command in an app" in result.stderr


@pytest.mark.rootless
def test_every_namespace_is_joined(make_pod: MakePod) -> None:
    """As the host sees it."""
    pod = make_pod({"a": app_section("/bin/sleep", "1000")})
    pod.start()
    pod.wait_ready()
    with entered_process(pod, "sleep", "2000") as command:
        [app] = named(children_of(pod.pid), "sleep")
        for kind in NAMESPACES:
            assert namespace_of(command.pid, kind) == namespace_of(app, kind), kind
        assert control_groups_of(command.pid) == control_groups_of(app)
        assert set(control_groups_of(command.process.pid).values()) == set(control_groups_of(os.getpid()).values())


class Entered(NamedTuple):
    """A command that runs in a pod: its pid, and that of the `enter` which waits for it."""

    pid: int
    process: subprocess.Popen[bytes]


@contextmanager
def entered_process(pod: PodDirectory, *command: str, **options: Any) -> Iterator[Entered]:
    """Run a command in an app for as long as the block takes; its last word tells it from all others."""
    words = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", *command]
    process = subprocess.Popen(words, cwd=pod.path, **{"stdin": subprocess.DEVNULL, **options})
    try:
        yield Entered(wait_for(lambda: _find_child(process.pid, command[-1]), command[0]), process)
    finally:
        process.kill()
        process.wait()


def _find_child(parent: int, word: str) -> int | None:
    for child in children_of(parent):
        with suppress(FileNotFoundError, ProcessLookupError):
            # Until its exec it has the words of `enter`, of which there are more.
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"--" not in words and words[-2:] == [word.encode(), b""]:
                return child
    return None


# The three of rkt.


def test_capabilities_are_the_apps(make_pod: MakePod) -> None:
    """A command has those that the app retains, and no way to get others (CVE-2019-10144)."""
    retained = isolator("os/linux/capabilities-retain-set", set=["CAP_NET_BIND_SERVICE"])
    apps = {"a": shell(FOREVER, isolators=[retained]), "b": shell(FOREVER)}
    pod = make_pod(apps)
    pod.start("--disable-seccomp")
    pod.wait_ready()
    script = "chown 5 /tmp; mknod /tmp/null c 1 3; chroot / true; hostname x; grep Cap /proc/self/status"
    result = pod.enter("a", "sh", "-c", script)
    assert result.stderr.count("Operation not permitted") == 4, result.stderr
    held = dict(line.split(":\t") for line in result.stdout.splitlines())
    only = f"{capability_mask('CAP_NET_BIND_SERVICE'):016x}"
    assert held == {**dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), only), "CapInh": "0" * 16, "CapAmb": "0" * 16}
    allowed = pod.enter("b", "sh", "-c", "chown 5 /tmp && chroot / true && echo may")
    assert allowed.stdout == "may\n", allowed.stderr


def test_system_calls_are_filtered(make_pod: MakePod) -> None:
    """By the default filters, or by the app's own, from the first instruction of the command (CVE-2019-10145)."""
    refused = isolator("os/linux/seccomp-remove-set", set=["getppid"], errno="EXFULL")
    free = isolator("os/linux/seccomp-retain-set", set=["@appc.io/all"])
    pod = make_pod(
        {
            "default": shell(FOREVER),
            "own": shell(FOREVER, isolators=[refused]),
            "none": shell(FOREVER, isolators=[free]),
        }
    )
    pod.start()
    pod.wait_ready()
    ends = {app: pod.enter(app, GUEST, "call", native("umount2", 0, 0)).returncode for app in pod.apps}
    # Where it is allowed, a path is missing.
    assert ends == {"default": -signal.SIGSYS, "own": errno.EFAULT, "none": errno.EFAULT}
    ends = {app: pod.enter(app, GUEST, "call", native("getppid")).returncode for app in pod.apps}
    assert ends == {"default": 0, "own": errno.EXFULL, "none": 0}


def test_a_list_under_which_nothing_can_be_said(make_pod: MakePod) -> None:
    """A command that is not there is told before the filter of the app is installed."""
    silent = isolator("os/linux/seccomp-remove-set", set=["write"])
    pod = make_pod({"a": app_section("/bin/sleep", "1000", isolators=[silent])})
    pod.start()
    pod.wait_ready()
    result = pod.enter("a", "not-there")
    assert (result.returncode, result.stderr) == (127, 'Error: Unable to find "not-there" in the PATH of the app\n')
    assert pod.enter("a", "echo", "x").returncode == -signal.SIGSYS


@pytest.mark.delegated_groups("it sets limits")
def test_resources_are_the_apps(make_pod: MakePod) -> None:
    """The use of a command counts, and ends at the app's limits of memory and processes (CVE-2019-10147)."""
    pod = make_pod(
        {
            "a": shell(
                FOREVER,
                isolators=[isolator("resource/memory", limit="24Mi")],
                annotations=[{"name": "minit/pids-limit", "value": "8"}],
            ),
            "b": shell(FOREVER),
        }
    )
    pod.start()
    pod.wait_ready()
    # In the memory of the process itself.
    greedy = "dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null"
    forks = "for n in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 > /dev/null 2>&1 & done; echo forked"
    assert pod.enter("b", "sh", "-c", greedy).returncode == 0
    assert pod.enter("a", "sh", "-c", greedy).returncode != 0
    assert pod.enter("b", "sh", "-c", forks).stdout == "forked\n"
    result = pod.enter("a", "sh", "-c", forks)
    assert (result.stdout, result.stderr) == ("", "sh: can't fork: Resource temporarily unavailable\n")


@pytest.mark.host_root("a user makes no devices")
def test_devices_are_the_apps(make_pod: MakePod, own_rootfs: Path) -> None:
    """The host's memory, by a node that the image brings along, is as far away as for the app."""
    os.mknod(own_rootfs / "kmsg", 0o600 | stat.S_IFCHR, os.makedev(1, 11))
    pod = make_pod({"a": shell("true < /kmsg; true > /kmsg; " + FOREVER)}, own_rootfs)
    pod.start()
    pod.wait_ready()
    script = "true < /kmsg; true > /kmsg; mknod /tmp/kmsg c 1 11; true < /dev/null && echo null"
    result = pod.enter("a", "sh", "-c", script)
    assert result.stderr.count("Operation not permitted") == 3, result.stderr
    assert result.stdout == "null\n"


@pytest.mark.delegated_groups("it sets limits")
def test_little_memory_is_enough(make_pod: MakePod) -> None:
    """Entering an app of 4 MiB takes hardly any of them."""
    pod = make_pod({"a": app_section("/bin/sleep", "1000", isolators=[isolator("resource/memory", limit="4Mi")])})
    process = pod.start()
    pod.wait_ready()
    for _ in range(5):
        assert pod.enter("a", "echo", "in").stdout == "in\n"
    assert process.poll() is None


# The explicit way out.


@pytest.mark.delegated_groups("it sets limits")
def test_privileged(make_pod: MakePod) -> None:
    """With --privileged a command has PID 1's capabilities, no filter, and the caller's control groups and limits."""
    isolators = [
        isolator("os/linux/capabilities-retain-set", set=["CAP_KILL"]),
        isolator("resource/memory", limit="32Mi"),
    ]
    apps = {
        "a": shell(FOREVER, isolators=isolators, workingDirectory="/tmp", supplementaryGIDs=[5]),
        "b": shell(FOREVER),
    }
    pod = make_pod(apps)
    pod.start(preexec_fn=_lower_limits)
    pod.wait_ready()
    words = f"--pid={pod.pid}", "--appname=a", "--privileged", "--", GUEST, "report", "/dev/shm/entered"
    assert pod.call("enter", *words, from_tree=True).returncode == 0
    report = shared_report(pod, "entered")
    status, supervisor = report.status, status_of(pod.pid)
    assert (status["CapEff"], status["CapBnd"]) == (supervisor["CapBnd"],) * 2
    assert (status["Seccomp"], status["NoNewPrivs"], status["Groups"]) == ("0", "0", "")
    assert report.one("cgroup") == Path("/proc/self/cgroup").read_text()
    assert report.one("limits") == Path("/proc/self/limits").read_text()
    assert (report.one("cwd"), report.environment["AC_APP_NAME"]) == ("/tmp", "a")


# While PID 1 does not answer.


@pytest.mark.delegated_groups("it sets limits")
def test_pid_1_is_stopped(make_pod: MakePod) -> None:
    """The command has the same from the plan on disk, at once."""
    limited = [{"name": "minit/ulimits", "value": '{"nofile": "512:1024", "core": "4096"}'}]
    app = shell(REPORTING, isolators=ISOLATORS, supplementaryGIDs=[7], annotations=limited)
    pod = make_pod({"a": app, "gone": shell("exit 0")})
    pod.start()
    pod.wait_ready()
    assert pod.wait_status("gone") == 0
    os.kill(pod.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: status_of(pod.pid)["State"].startswith("T"), "the stop")
        assert pod.enter("a", GUEST, "report", "/dev/shm/entered").returncode == 0
        own, entered = shared_report(pod, "app"), shared_report(pod, "entered")
        assert without(entered.status, OWN_FIELDS) == without(own.status, OWN_FIELDS)
        for name in ("cgroup", "limits", "oom_score_adj", "cwd", "mountinfo"):
            assert entered.one(name) == own.one(name), name
        for name, reason in (("gone", "no process of it runs"), ("nobody", 'no app "nobody" in this pod')):
            result = pod.enter(name, "true")
            assert result.returncode == 254
            assert reason in result.stderr and result.stderr.count("\n") == 1
            assert result.stderr.endswith("supervisor of this pod: it is stopped\n")
    finally:
        os.kill(pod.pid, signal.SIGCONT)
    assert pod.enter("gone", "true").returncode == 0


@pytest.mark.delegated_groups("without groups an app that has ended cannot be entered")
def test_a_root_that_a_program_made(make_pod: MakePod) -> None:
    """A mount namespace that PID 1 does not hold is not taken for the app's, whoever of the app is in it."""
    pod = make_pod({"a": shell("exit 0"), "b": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    assert pod.wait_status("a") == 0
    os.kill(pod.pid, signal.SIGSTOP)
    reader, writer = os.pipe()
    member = os.fork()
    if member == 0:
        try:
            for name, group in _groups_of(pod, "a"):
                (group / name).write_text("0")
            syscalls.unshare(syscalls.CLONE_NEWNS)
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 1) == b"x"
        result = pod.enter("a", "true")
        assert (result.returncode, "no process of it runs" in result.stderr) == (254, True)
    finally:
        os.kill(member, signal.SIGKILL)
        os.waitpid(member, 0)
        os.kill(pod.pid, signal.SIGCONT)
        os.close(reader)
        os.close(writer)


def _groups_of(pod: PodDirectory, app: str) -> Iterator[tuple[str, Path]]:
    for top in pod.control_groups():
        group = top / f"system.slice/{app}.service"
        yield ("tasks" if (group / "tasks").exists() else "cgroup.procs"), group


def test_the_plan_on_disk_is_out_of_reach(make_pod: MakePod) -> None:
    """It lies beside the stage1 root, for root alone; an app with every capability finds no way to it."""
    script = "find /proc/1/root/ -path '*/proc/[0-9]*' -prune -o -path '*/enter/*' -print; ls /proc/1/cwd/enter"
    pod = make_pod({"a": shell(f"{script}; true")})
    result = pod.run("--disable-seccomp", "--disable-capabilities-restriction")
    modes = [stat.S_IMODE((pod.path / name).stat().st_mode) for name in ("enter", "enter/a")]
    assert modes == [0o700, 0o600]
    assert result.stdout == ""
    assert "/proc/1/cwd/enter: No such file or directory" in result.stderr


@pytest.mark.delegated_groups("it freezes groups")
def test_a_frozen_supervisor(make_pod: MakePod) -> None:
    """One that has the request and does not answer is waited for a few seconds only."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    [freezer] = [path for top in pod.control_groups() if (path := top / "init.scope/freezer.state").exists()]
    freezer.write_text("FROZEN")
    try:
        wait_for(lambda: freezer.read_text() == "FROZEN\n", "the frost")
        result = pod.enter("a", "echo", "entered")
        assert (result.returncode, result.stdout) == (0, "entered\n"), result.stderr
    finally:
        freezer.write_text("THAWED")


# Who is entered, and by whom.


def test_an_app_named_by_the_environment(make_pod: MakePod) -> None:
    """RKT_STAGE1_ENTERAPP counts if no option names one."""
    pod = make_pod({"a": shell(FOREVER), "b": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    environment = {**os.environ, "RKT_STAGE1_ENTERAPP": "a"}
    for option, name in (([], "a"), (["--app=b"], "b"), (["--appname=b"], "b")):
        words = f"--pid={pod.pid}", *option, "--", "/bin/sh", "-c", "echo $AC_APP_NAME"
        assert pod.call("enter", *words, from_tree=True, env=environment).stdout == f"{name}\n"


def test_a_pid_1_within_the_pod_is_refused(make_pod: MakePod) -> None:
    """A process of the pod that has made a PID namespace, and the stage1 root its own, is not taken for PID 1."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    has_own_users = namespace_of(pod.pid, "user") != namespace_of("self", "user")
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            pidfd = os.pidfd_open(pod.pid)
            syscalls.setns(pidfd, syscalls.CLONE_NEWPID)
            if (inner := os.fork()) == 0:
                syscalls.setns(pidfd, syscalls.CLONE_NEWNS)
                if has_own_users:
                    syscalls.setns(pidfd, syscalls.CLONE_NEWUSER)
                syscalls.unshare(syscalls.CLONE_NEWPID)
                if os.fork() == 0:
                    os.write(writer, b"x")
                    signal.pause()
                signal.pause()
            os.waitpid(inner, 0)
        finally:
            os._exit(1)
    assert os.read(reader, 1) == b"x"
    [inner] = children_of(middle)
    [impostor] = children_of(inner)
    try:
        assert status_of(impostor)["NSpid"].split()[-1] == "1"
        result = pod.call("enter", f"--pid={impostor}", "--appname=a", "--", "true", from_tree=True)
        assert result.returncode == 254
        assert result.stderr.endswith(f"process {impostor} is not its PID 1\n")
    finally:
        for pid in (impostor, inner):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(middle, 0)
        os.close(reader)
        os.close(writer)


def test_a_directory_without_a_lock_is_refused(make_pod: MakePod, tmp_path: Path) -> None:
    """No pod runs there, whatever its files are and whoever its pid names: not from another directory, say."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    (tmp_path / "stage1").symlink_to(pod.path / "stage1")
    command = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "true"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 254
    assert result.stderr == "enter: pod is not running any more: nobody holds the lock of its directory\n"


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_directory_is_not_passed_in(make_pod: MakePod, tmp_path: Path, stream: str) -> None:
    """As a standard stream it would be a way to the host's files; the interpreter itself does not start with one."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        result = pod.enter("a", "touch", "/tmp/entered", capture_output=False, **{stream: directory})
    finally:
        os.close(directory)
    assert result.returncode == 1
    assert not pod.file("a", "/tmp/entered").exists()


def test_a_working_directory_that_is_gone(make_pod: MakePod) -> None:
    """A command starts in / then."""
    pod = make_pod(
        {"a": shell("mkdir /site/x; cd /; rm -r /site; : > /dev/shm/gone; " + FOREVER, workingDirectory="/site")}
    )
    pod.file("a", "/site").mkdir()
    pod.start()
    wait_for(Path(f"/proc/{pod.pid}/root/dev/shm/gone").exists, "the removal")
    assert pod.enter("a", "pwd").stdout == "/\n"
