"""Attacks of hostile images and apps on other runtimes (docs/security.md has the whole list)."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minit.linux import syscalls
from minit.manifest.capabilities import NAMES
from tests.support.campaign import campaign, thinned
from tests.support.guest import build_program
from tests.support.pods import MakePod, PodDirectory, app_section, handlers, run_all, shell
from tests.support.processes import status_of
from tests.support.usersession import NO_GROUPS, SURROUNDING, is_capable
from tests.support.waiting import wait_for

ATTACKER = "/bin/attacker"
FIFO = "/shared/fifo"
FOREVER = "while :; do sleep 1; done"


@pytest.fixture(scope="module")
def hostile_rootfs(work_directory: Path, app_rootfs: Path) -> Iterator[Path]:
    """The root of an image with the attacker's programs."""
    directory = Path(tempfile.mkdtemp(prefix="hostile-", dir=work_directory))
    rootfs = directory / "rootfs"
    shutil.copytree(app_rootfs, rootfs, symlinks=True)
    build_program("attacker", rootfs / ATTACKER.lstrip("/"))
    # The kernel resolves a "#!" line in the process that executes the file.
    (rootfs / "bin/trap").write_text(f"#!/proc/self/exe {FIFO}\n")
    (rootfs / "bin/borrowed").write_text("#!/proc/1/root/entrypoints/gc\n")
    for name in ("trap", "borrowed"):
        (rootfs / "bin" / name).chmod(0o755)
    (rootfs / "work").mkdir()
    yield rootfs
    shutil.rmtree(directory)


def attacker(*arguments: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object that runs one of the attacker's programs."""
    return app_section(ATTACKER, *arguments, **fields)


def lines_of(output: str, app: str = "a") -> list[str]:
    """Return the lines of an app's output without their prefix."""
    return [line.partition("]: ")[2] for line in output.splitlines() if line.startswith(f"{app}[")]


# Programs of the image that are the interpreter of the process that executes them.
SELF = {"program": ["/proc/self/exe", "-c", f"open({FIFO!r})"], "interpreter": ["/bin/trap"]}


def pod_with_a_fifo(make_pod: MakePod, rootfs: Path, source: Path, apps: dict[str, dict[str, Any]]) -> PodDirectory:
    """Return a pod whose apps share a FIFO, at which an interpreter waits that opens it."""
    source.mkdir()
    os.mkfifo(source / "fifo")
    for app in apps.values():
        app["mounts"] = [{"volume": "v", "path": "/shared"}]
    return make_pod(apps, rootfs, volumes=[{"name": "v", "kind": "host", "source": str(source)}])


@pytest.mark.parametrize("command", SELF.values(), ids=SELF)
@pytest.mark.delegated_groups("without groups an app does not see processes of the pod")
def test_the_interpreter_that_an_app_was_made_with_cannot_be_written(
    make_pod: MakePod, hostile_rootfs: Path, tmp_path: Path, command: list[str]
) -> None:
    """A program that executes /proc/self/exe runs the stage1's interpreter (CVE-2019-5736), on a read-only mount."""
    # A dumped interpreter runs no script: it ends at once, and is started again until it is found.
    again = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "10ms"}]
    apps = {"a": app_section(*command, annotations=again), "b": attacker("exe", FIFO)}
    pod = pod_with_a_fifo(make_pod, hostile_rootfs, tmp_path / "shared", apps)
    process = pod.start()
    # As long as the launcher and PID 1 run it is busy as well.
    wait_for(lambda: b"found on a mount that is " in pod.log("b"), "the interpreter")
    pod.stop("--force")
    assert lines_of(pod.finish(process).stdout, "b")[0] == "found on a mount that is read-only"


@pytest.mark.rootless
def test_the_interpreter_of_enter_cannot_be_written(make_pod: MakePod, hostile_rootfs: Path, tmp_path: Path) -> None:
    """The same for the tree store's interpreter, with which a command is entered, once nobody runs it any more."""
    pod = pod_with_a_fifo(make_pod, hostile_rootfs, tmp_path / "shared", {"b": attacker("exe", FIFO)})
    process = pod.start()
    pod.wait_ready()
    # The attacker ends it once it has its file.
    pod.enter("b", *SELF["program"])
    assert pod.wait_status("b") == 0
    pod.stop()
    lines = lines_of(pod.finish(process).stdout, "b")
    assert lines == ["found on a mount that is read-only", "write: Read-only file system"]


# Descriptors that a process of ours might have open while it follows a path of the manifest.
OPEN = range(3, 20)


def test_a_working_directory_is_no_descriptor_of_ours(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """/proc/self/fd/N leads nowhere (CVE-2024-21626): neither past a read-only root nor to the host."""
    pods = [
        make_pod(
            {"a": shell("echo reached $(ls -A)", workingDirectory=f"/proc/self/fd/{fd}", readOnlyRootFS=True)},
            hostile_rootfs,
        )
        for fd in OPEN
    ]
    for fd, result in zip(OPEN, run_all_in_turns(pods)):
        assert result.stdout == ""
        assert result.stderr.startswith(f'stage1: app "a": change directory to /proc/self/fd/{fd}: ')


def test_the_working_directory_of_a_handler_is_no_descriptor_of_ours(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """The same when the directory becomes a link later: a handler's process holds control groups of the host."""
    pods = []
    for fd in OPEN:
        prepare = "/bin/sh", "-c", f"rmdir /work; ln -s /proc/self/fd/{fd} /work"
        commands = handlers(pre_start=prepare, post_stop=("/bin/sh", "-c", "echo reached $(ls -A)"))
        app = shell("exit 0", workingDirectory="/work", eventHandlers=commands)
        pods.append(make_pod({"a": app}, hostile_rootfs))
    for result in run_all_in_turns(pods):
        assert "reached" not in result.stdout
        assert "Error: change directory to /work: " in result.stderr


def run_all_in_turns(pods: list[PodDirectory]) -> list[subprocess.CompletedProcess[str]]:
    """Run pods to their ends, a few at a time."""
    return [result for start in range(0, len(pods), 4) for result in run_all(pods[start : start + 4])]


@pytest.mark.parametrize("link", ["root", "cwd"])
@pytest.mark.private_users
@pytest.mark.rootless
def test_a_working_directory_is_not_pid_1s(make_pod: MakePod, hostile_rootfs: Path, link: str) -> None:
    """A program that may not look into PID 1 does not get there through a process with more capabilities either."""
    result = make_pod({"a": shell("echo reached; ls", workingDirectory=f"/proc/1/{link}")}, hostile_rootfs).run()
    assert result.stdout == ""
    assert result.stderr == f'stage1: app "a": change directory to /proc/1/{link}: permission denied\n'


@pytest.mark.private_users
@pytest.mark.rootless
def test_a_program_is_not_pid_1s(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """Nothing of the stage1 image is executed, as program, handler or interpreter (rkt issue 3999)."""
    program = "/proc/1/root/entrypoints/gc"
    commands = {
        "program": {"a": app_section(program)},
        "pid-1": {"a": app_section("/proc/1/exe")},
        "interpreter": {"a": app_section("/bin/borrowed")},
        "searched": {"a": app_section("gc", environment=[{"name": "PATH", "value": "/proc/1/root/entrypoints"}])},
        "handler": {"a": shell("true", eventHandlers=handlers(pre_start=(program,)))},
    }
    pods = [make_pod(apps, hostile_rootfs) for apps in commands.values()]
    for result in run_all_in_turns(pods):
        # The usage of gc would be the first that it says.
        assert (result.stdout, "sage" in result.stderr) == ("", False)
        assert "Error: " in result.stderr or "unable to find" in result.stderr
        assert result.returncode in (203, 254)


@pytest.mark.private_users
@pytest.mark.delegated_groups("without groups an app does not see processes of the pod")
@pytest.mark.rootless
def test_our_processes_cannot_be_traced(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """Root of an app gets at no memory, descriptor or file of PID 1, spawner and sidecar; of another app it may."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.01; done; sleep 60 & "
    script = wait + f"for pid in $(cat /tmp/go) $!; do echo; echo $pid; {ATTACKER} trace $pid; done; kill -9 $!"
    pod = make_pod({"a": shell(script)}, hostile_rootfs)
    process = pod.start("--disable-seccomp")
    wait_for(lambda: "iottymux-a" in pod.children(), "the sidecar")
    targets = {"pid 1": pod.pid, **pod.children()}
    pids = [status_of(targets[name])["NSpid"].split()[-1] for name in ("pid 1", "minit-spawner", "iottymux-a")]
    pod.file("a", "/tmp/new").write_text(" ".join(pids))
    pod.file("a", "/tmp/new").rename(pod.file("a", "/tmp/go"))
    blocks = "\n".join(lines_of(pod.finish(process).stdout)).strip().split("\n\n")
    *ours, own = [dict(line.split(": ") for line in block.splitlines()[1:]) for block in blocks]
    assert len(ours) == 3
    for results in ours:
        assert set(results.values()) <= {"Operation not permitted", "Permission denied"}
    assert {own["ptrace"], own["mem"], own["process_vm_readv"]} == {"done"}


def test_pid_1_takes_its_limits_back(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """Without a filter root of an app takes all of PID 1's: statuses, restarts, enter and stop are as ever."""
    # Without the capability a hard limit cannot be taken back, not by PID 1 either.
    kind = "hard" if is_capable("CAP_SYS_RESOURCE") else "soft"
    again = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "10ms"}]
    wait = "while [ ! -e /dev/shm/done ]; do sleep 0.01; done"
    handler = handlers(post_stop=("/bin/sh", "-c", "ulimit -Sn"))
    pod = make_pod(
        {
            "a": shell(f"for n in 1 2 3; do {ATTACKER} starve 1 {kind}; done; touch /dev/shm/done; {FOREVER}"),
            "b": shell(f"{wait}; exit 0", eventHandlers=handler),
            "c": shell(f"ulimit -Sn; {wait}; [ -e /tmp/up ] && exec sleep 1000; touch /tmp/up", annotations=again),
        },
        hostile_rootfs,
    )
    process = pod.start("--disable-seccomp")
    assert pod.wait_status("b") == 0
    pod.wait_file("c", "/tmp/up")
    wait_for(lambda: pod.ask({"op": "state"})["apps"][2]["restarts"], "c's restart")
    entered = pod.enter("c", "sh", "-c", "ulimit -Sn")
    assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert result.returncode == 0, result
    first, *others = lines_of(result.stdout, "c")
    assert others == [first] and entered.stdout == f"{first}\n"
    assert lines_of(result.stdout, "b") == [first]
    assert set(lines_of(result.stdout)) == {"prlimit: done"}
    assert (pod.status("a"), pod.status("c")) == (0, 0)


@pytest.mark.delegated_groups("without groups an app does not see processes of the pod")
def test_what_enters_cannot_be_traced(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """However often root of an app tries, in every way, from its first moment to its exec (CVE-2016-9962)."""
    goal = campaign(1000)
    # An app that forks would be hunted, too, and its child has an older memory before its own exec.
    apps = {"a": app_section("/bin/sleep", "100000"), "b": attacker("hunt", str(goal))}
    pod = make_pod(apps, hostile_rootfs)
    process = pod.start("--disable-seccomp")
    pod.wait_ready()
    while pod.status("b") is None:
        entered = pod.enter("a", "true")
        # A hunter that got in ends the pod.
        assert entered.returncode == 0 or pod.status("b") is not None, entered
    pod.stop()
    [line] = lines_of(pod.finish(process).stdout, "b")
    assert line.startswith("refused ") and int(line.split()[1]) >= goal


def test_what_enters_is_stopped(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """The caller is not stopped: it gives up, or its command can be ended, and nothing is left of that."""
    pod = make_pod({"a": app_section("/bin/sleep", "1000"), "b": attacker("stop", "/tmp/up")}, hostile_rootfs)
    process = pod.start()
    # Not what it says, as its sidecar is stopped too.
    pod.wait_file("b", "/tmp/up")
    before = pod.members()
    for number in thinned((signal.SIGTERM, signal.SIGINT)):
        words = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "sleep", "2000"]
        with subprocess.Popen(words, cwd=pod.path, stderr=subprocess.PIPE, text=True) as enter:
            try:
                _, said = enter.communicate(timeout=20)
                assert said == "enter: the process that enters is stopped by another of the pod, again and again\n"
                assert enter.returncode == 254
            except subprocess.TimeoutExpired:
                enter.send_signal(number)
                enter.communicate(timeout=90)
                assert enter.returncode == -number
        wait_for(lambda: not _of_apps({*pod.members()} - {*before}), "the end of what entered")
    assert pod.stop().returncode == 0
    pod.finish(process)


def _of_apps(pids: set[int]) -> set[int]:
    """Return the processes that are neither spawner nor sidecar, of which there may be new ones."""
    others = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            name = status_of(pid)["Name"]
            if name != "minit" and not name.startswith(("minit-spawner", "iottymux-")):
                others.add(pid)
    return others


@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_keys_of_the_caller_stay_outside(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """Apps, handlers and commands that are entered have keyrings of their own, empty at first."""
    commands = handlers(pre_start=(ATTACKER, "keys", "secret"), post_stop=(ATTACKER, "keys", "own"))
    script = f"{ATTACKER} keys secret; touch /dev/shm/added; exit 0"
    wait = "while [ ! -e /dev/shm/added ]; do sleep 0.01; done"
    pod = make_pod(
        {
            "a": shell(script, user="1000", group="1000", eventHandlers=commands),
            "b": shell(f"{wait}; {ATTACKER} keys own; {FOREVER}"),
        },
        hostile_rootfs,
    )
    process = pod.start("--disable-seccomp", preexec_fn=_make_key)
    pod.wait_ready()
    assert pod.wait_status("a") == 0
    entered = pod.enter("b", ATTACKER, "keys", "secret", preexec_fn=_make_key).stdout
    assert entered.splitlines() == NO_KEY
    # Of the app itself, and of the command before.
    assert pod.enter("b", ATTACKER, "keys", "own").stdout.splitlines() == NO_KEY
    pod.stop()
    output = pod.finish(process).stdout
    assert lines_of(output, "a") == NO_KEY * 3
    assert lines_of(output, "b") == NO_KEY


NO_KEY = ["search: Required key not available", "add: done"]
_SYS_ADD_KEY = {"x86_64": 248, "aarch64": 217}[os.uname().machine]


def _make_key() -> None:
    """Give this process a session keyring with a key called "secret"."""
    syscalls.join_session_keyring()
    session = -3  # KEY_SPEC_SESSION_KEYRING
    assert ctypes.CDLL(None).syscall(_SYS_ADD_KEY, b"user", b"secret", b"x", ctypes.c_size_t(1), session) > 0


@pytest.mark.host_users("root of a user namespace makes no devices")
@pytest.mark.host_root("a user makes no devices")
def test_nothing_below_rkt_is_executable(make_pod: MakePod) -> None:
    """An app with all capabilities can write into PID 1's state, but execute nothing there, nor use a device."""
    state = "/proc/1/root/rkt/minit"
    script = f"cp /bin/busybox {state}/x && ls {state}/x; {state}/x true; mknod {state}/null c 1 3; : > {state}/null"
    pod = make_pod({"a": shell(script)})
    result = pod.run("--disable-capabilities-restriction", "--disable-seccomp")
    assert lines_of(result.stdout) == [f"{state}/x"]
    assert result.stderr.count("Permission denied") == 2, result.stderr


@pytest.mark.parametrize("flag", ["--disable-seccomp", "--disable-capabilities-restriction"])
@pytest.mark.rootless
def test_a_release_agent_is_out_of_reach(make_pod: MakePod, flag: str) -> None:
    """
    An app has its own groups alone, which it cannot make writable, and neither its capabilities nor its filter let it
    mount a hierarchy (CVE-2022-0492).
    """
    script = (
        "for name in memory freezer rdma none,name=x; do mount -t cgroup -o $name x /tmp && echo mounted; done;"
        "mount -t cgroup2 x /tmp && echo mounted; find / -name release_agent; ls /sys/fs;"
        "for group in /sys/fs/cgroup /sys/fs/cgroup/*/; do"
        "  (echo 0 > $group/cgroup.procs) 2> /dev/null && echo joined;"
        "  unshare -U -r -m mount -o remount,bind,rw $group 2> /dev/null && echo writable;"
        "done; exit 0"
    )
    result = make_pod({"a": shell(script)}).run(flag)
    assert lines_of(result.stdout) == ([] if SURROUNDING == NO_GROUPS else ["cgroup"])
    denied = {"--disable-seccomp": "mount: permission denied", "--disable-capabilities-restriction": "Bad system call"}
    assert result.stderr.count(denied[flag]) == 5


EVERY_CALL = {"name": "os/linux/seccomp-retain-set", "value": {"set": ["@appc.io/all"]}}
EVERY_CAPABILITY = {"name": "os/linux/capabilities-retain-set", "value": {"set": [*NAMES]}}


@pytest.mark.parametrize(
    ("flags", "isolators"),
    [
        ((), []),
        (("--disable-seccomp",), []),
        (("--disable-capabilities-restriction",), []),
        ((), [EVERY_CALL]),
        ((), [EVERY_CAPABILITY]),
        pytest.param((), [EVERY_CALL, EVERY_CAPABILITY], marks=pytest.mark.rootless),
        (("--disable-seccomp",), [EVERY_CAPABILITY]),
        (("--disable-capabilities-restriction",), [EVERY_CALL]),
    ],
)
@pytest.mark.private_users
def test_control_groups_cannot_be_mounted(
    make_pod: MakePod, hostile_rootfs: Path, flags: tuple[str, ...], isolators: list[dict[str, Any]]
) -> None:
    """Neither an app nor its handler, whatever the caller gives them, short of disabling both restrictions."""
    prepare = handlers(pre_start=(ATTACKER, "hierarchy"))
    pod = make_pod({"a": attacker("hierarchy", isolators=isolators, eventHandlers=prepare)}, hostile_rootfs)
    result = pod.run(*flags)
    assert result.returncode == 0, result.stderr
    assert lines_of(result.stdout).count("got nothing") == 2
    assert "got a hierarchy" not in result.stdout


EVERYTHING = '{"defaultAction": "SCMP_ACT_ALLOW"}'
OF_32_BITS = '{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_ARM"]}'


@pytest.mark.parametrize("isolators", [[], [EVERY_CAPABILITY]])
@pytest.mark.parametrize("profile", ["by-capabilities", "guarded", EVERYTHING, OF_32_BITS, "unconfined"])
def test_control_groups_by_a_profile(
    make_pod: MakePod, hostile_rootfs: Path, profile: str, isolators: list[dict[str, Any]]
) -> None:
    """Whatever a profile and capabilities allow, only an app that is unconfined by name mounts a hierarchy."""
    app = attacker("hierarchy", isolators=isolators, annotations=[{"name": "minit/seccomp", "value": profile}])
    result = make_pod({"a": app}, hostile_rootfs, annotations=REFUSED_CALLS_FAIL).run(net=None)
    assert result.returncode == 0, result.stderr
    [told] = [line for line in lines_of(result.stdout) if line.startswith("got ")]
    assert told == ("got a hierarchy" if profile == "unconfined" else "got nothing")


REFUSED_CALLS_FAIL = {"minit/seccomp-errno": "EPERM"}


@pytest.mark.parametrize("isolators", [[], [EVERY_CAPABILITY]])
@pytest.mark.parametrize("profile", ["by-capabilities", "guarded", EVERYTHING, OF_32_BITS, "unconfined"])
@pytest.mark.host_users("the kernel's settings are not those of a user namespace's root")
def test_mounts_uncover_nothing(
    make_pod: MakePod, hostile_rootfs: Path, profile: str, isolators: list[dict[str, Any]]
) -> None:
    """
    Only with CAP_SYS_ADMIN, and unconfined by name, an app makes something writable; in no namespace of its own.

    Nor without root: the kernel locks mounts that a user's namespace has of the machine.
    """
    app = attacker("uncover", isolators=isolators, annotations=[{"name": "minit/seccomp", "value": profile}])
    result = make_pod({"a": app}, hostile_rootfs, annotations=REFUSED_CALLS_FAIL).run(net=None)
    told = "uncovered" if isolators and profile == "unconfined" and SURROUNDING is None else "covered"
    assert lines_of(result.stdout)[-1:] == [told], result.stdout + result.stderr


def test_control_groups_can_be_mounted_by_who_disables_everything(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """The attack is one: it succeeds without both restrictions, on a hierarchy of its app's own."""
    pod = make_pod({"a": attacker("hierarchy")}, hostile_rootfs)
    result = pod.run("--disable-seccomp", "--disable-capabilities-restriction")
    assert "got a hierarchy" in result.stdout


@pytest.mark.private_users
@pytest.mark.delegated_groups("without groups an app does not see processes of the pod")
@pytest.mark.rootless
def test_limits_of_our_processes_are_out_of_reach(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """Root of an app sets no limits of PID 1, the spawner or a sidecar, which would lose statuses and output."""
    script = (
        "until grep -qs ^iottymux /proc/[0-9]*/comm; do :; done;"
        "for name in /proc/[0-9]*; do IFS= read -r comm < $name/comm; case $comm in minit*|iottymux*)"
        f" echo $comm; {ATTACKER} limits ${{name#/proc/}}; esac; done"
    )
    pod = make_pod({"a": shell(script)}, hostile_rootfs)
    lines = lines_of(pod.run().stdout)
    assert {"minit", "minit-spawner", "iottymux-a"} <= {*lines}
    assert lines.count("lower: Operation not permitted") == 3
    assert "lower: done" not in lines


@pytest.mark.parametrize("flags", [(), ("--disable-seccomp",)])
@pytest.mark.private_users
@pytest.mark.delegated_groups("without groups an app does not see processes of the pod")
def test_nobody_slows_our_processes(make_pod: MakePod, hostile_rootfs: Path, flags: tuple[str, ...]) -> None:
    """Root of an app changes neither how PID 1, the spawner or a sidecar is scheduled, nor that PID 1 is spared."""
    script = (
        "until grep -qs ^iottymux /proc/[0-9]*/comm; do :; done;"
        "for name in /proc/[0-9]*; do IFS= read -r comm < $name/comm; case $comm in minit*|iottymux*)"
        f" echo $comm; {ATTACKER} slow ${{name#/proc/}}; esac; done"
    )
    pod = make_pod({"a": shell(script)}, hostile_rootfs)
    lines = lines_of(pod.run(*flags).stdout)
    assert {"minit", "minit-spawner", "iottymux-a"} <= {*lines}
    for what in ("idle", "nice", "affinity", "io"):
        assert lines.count(f"{what}: Operation not permitted") == 3, lines
    assert lines[lines.index("minit") + 5] in ("victim: Read-only file system", "victim: No such file or directory")


@pytest.mark.parametrize("wanted", [False, True])
def test_sockets_that_lead_out_of_a_virtual_machine(make_pod: MakePod, hostile_rootfs: Path, wanted: bool) -> None:
    """AF_VSOCK is of no network namespace: it is refused unless the pod manifest asks for it."""
    pod = make_pod({"a": attacker("vsock")}, hostile_rootfs, annotations={"minit/vsock": str(wanted).lower()})
    [line] = lines_of(pod.run().stdout)
    outside = subprocess.run([hostile_rootfs / "bin/attacker", "vsock"], capture_output=True, text=True).stdout
    assert f"{line}\n" == (outside if wanted else "vsock: Address family not supported by protocol\n")


def test_frames_that_the_kernel_completes(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """No socket has the kernel write two bytes of a frame behind the rules that keep a pod to its addresses."""
    said = lines_of(make_pod({"a": attacker("frames")}, hostile_rootfs).run().stdout)
    assert said == ["headers: Operation not permitted", "xdp: Address family not supported by protocol"]


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_handler_finds_no_keys_of_the_hosts_user(make_pod: MakePod, hostile_rootfs: Path, uid: int) -> None:
    """The keyring of uid 0 is that of the host's root; a handler, which is root, cannot look into it."""
    commands = handlers(pre_start=("/bin/sh", "-c", f"{ATTACKER} userkeys x; exit 0"))
    pod = make_pod({"a": shell("true", user=str(uid), eventHandlers=commands)}, hostile_rootfs)
    assert lines_of(pod.run().stdout) == ["key: signal 31"]


@pytest.mark.host_root("a user makes no devices")
def test_the_hosts_disks_and_memory_are_out_of_reach(make_pod: MakePod, own_rootfs: Path) -> None:
    """Root of an app can make no node for one of them, and use none that its image brought along."""
    disks = [path.name.split(":") for path in sorted(Path("/sys/dev/block").iterdir())]
    nodes = [("b", int(major), int(minor)) for major, minor in disks[:8]] + [("c", 1, minor) for minor in (1, 2, 4, 11)]
    script = "exec 2>&1"
    for kind, major, minor in nodes:
        name = f"{kind}-{major}-{minor}"
        mode = 0o600 | (stat.S_IFBLK if kind == "b" else stat.S_IFCHR)
        os.mknod(own_rootfs / name, mode, os.makedev(major, minor))
        script += f"; mknod /tmp/{name} {kind} {major} {minor}"
        script += f"; true < /{name} && echo read; true >> /{name} && echo written"
    lines = lines_of(make_pod({"a": shell(f"{script}; true")}, own_rootfs).run().stdout)
    assert len(lines) == 3 * len(nodes) > 12
    assert {line.rpartition(": ")[2] for line in lines} == {"Operation not permitted"}


@pytest.mark.rootless
def test_nothing_listens_on_an_abstract_socket(make_pod: MakePod) -> None:
    """A pod in the host's network shares the names of such sockets (CVE-2020-15257): minit has none."""
    before = _abstract_sockets()
    pod = make_pod({"a": shell(FOREVER)})
    pod.start(net="host")
    pod.wait_ready()
    assert pod.ask({"op": "ping"})["ok"]
    assert _abstract_sockets() == before


def _abstract_sockets() -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if " @" in line]


# Symlinks of an image that would put procfs, or what covers parts of it, somewhere else.
LINKS = {
    "elsewhere": {"proc": "/tmp"},
    "shared-memory": {"proc": "/dev/shm"},
    "a-chain": {"proc": "/run/proc", "run": "/tmp"},
    "up": {"proc": "../../../../../../../../tmp"},
    "in-sys": {"proc": "/sys"},
    "sys-in-proc": {"sys": "/proc"},
    "dev-in-proc": {"dev": "/proc"},
    "proc-in-dev": {"proc": "/dev"},
    "etc-in-proc": {"etc": "/proc"},
    "tmp-in-proc": {"tmp": "/proc/1"},
    "magic": {"proc": "/proc/self/root/proc"},
    "devices": {"dev": "/proc/self/fd"},
}


@pytest.mark.parametrize("links", LINKS.values(), ids=LINKS)
def test_links_of_an_image_do_not_uncover_anything(
    make_pod: MakePod, own_rootfs: Path, hostile_rootfs: Path, links: dict[str, str]
) -> None:
    """Wherever an image has its procfs mounted the protected paths are protected (the class of CVE-2025-31133)."""
    shutil.copy(hostile_rootfs / "bin/attacker", own_rootfs / "bin/attacker")
    for name, text in links.items():
        shutil.rmtree(own_rootfs / name, ignore_errors=True)
        (own_rootfs / name).symlink_to(text)
    pod = make_pod({"a": attacker("procs")}, own_rootfs)
    before = sorted(os.listdir(pod.stage1 / "rkt"))
    result = pod.run("--disable-seccomp")
    assert result.returncode in (0, 254)
    if result.returncode == 254:
        assert result.stderr.count("\n") == 1 and "rror(" not in result.stderr
    assert not [line for line in lines_of(result.stdout) if not line.startswith("procfs at")]
    assert set(os.listdir(pod.stage1 / "rkt")) - set(before) <= {"supervisor-status"}


# The target of a volume whose content decides what is mounted on, and a name in it that is swapped for a link.
RACES = {
    "volume": ("/outer", "x", "../../../../../rkt"),
    "volume-absolute": ("/outer", "x", "/rkt"),
    "file": ("/etc", "hosts", "../../../../../rkt/made"),
    "protected": ("/proc", "bus", "../../../../../rkt"),
}


@pytest.mark.parametrize("race", RACES)
def test_names_that_are_swapped_while_pods_start(
    make_pod: MakePod, hostile_rootfs: Path, tmp_path: Path, race: str
) -> None:
    """Exchanging a directory of a volume for a link has nothing made or mounted outside (CVE-2021-30465)."""
    target, name, text = RACES[race]
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    for directory in (outer, outer / name, inner):
        directory.mkdir()
    if race == "file":
        (outer / name).rmdir()
        (outer / name).touch()
    (outer / "link").symlink_to(text)
    places = {outer: target, inner: f"{target}/{name}/made"} if target == "/outer" else {outer: target}
    volumes = [{"name": path.name, "kind": "host", "source": str(path)} for path in places]
    mounts = [{"volume": path.name, "path": place} for path, place in places.items()]
    apps = {f"a{number}": shell("true", mounts=mounts) for number in range(8)}
    swap = [str(path) for path in (hostile_rootfs / "bin/attacker", "swap", outer / name, outer / "link")]
    with subprocess.Popen(swap) as racer:
        try:
            for _ in range(campaign(4)):
                pod = make_pod(apps, hostile_rootfs, volumes=volumes)
                result = pod.run()
                assert result.returncode in (0, 254)
                if result.returncode == 254:
                    assert result.stderr.startswith('stage1: app "a') and "rror(" not in result.stderr
                assert not (pod.stage1 / "rkt/made").exists()
                pod.remove()
        finally:
            racer.kill()
    assert sorted(os.listdir(inner)) == []
