"""`enter`, executed from the tree store as `rkt enter` does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from minit.podfiles.enterchanges import CHANGES, EnterChanges
from tests.support.campaign import campaign
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import children_of, named, namespace_of, status_of
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
ENVIRONMENT = [
    {"name": name, "value": value}
    for name, value in (("PATH", "/usr/bin:/bin"), ("A", "x y='z'"), ("B", ""), ("LINES", "x\ny"))
]


@pytest.fixture
def pod(make_pod: MakePod) -> PodDirectory:
    """A running pod with an app of root, one of another user, and one that has exited."""
    pod = make_pod(
        {
            "a": shell("echo mine > /etc/who; " + FOREVER, environment=ENVIRONMENT, workingDirectory="/tmp"),
            "user": shell(FOREVER, user="1000", group="1000"),
            "gone": shell("echo was here > /etc/who; exit 0"),
        }
    )
    pod.start()
    pod.wait_ready()
    assert pod.wait_status("gone") == 0
    return pod


@pytest.mark.private_users
@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_a_command_sees_the_app(pod: PodDirectory) -> None:
    """Its root, its mounts and its pod's namespaces, as root, in its working directory."""
    script = "cat /etc/who; id -u; pwd; hostname; for n in mnt pid uts ipc net; do readlink /proc/self/ns/$n; done"
    result = pod.enter("a", "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:4] == ["mine", "0", "/tmp", f"rkt-{pod.uuid}"]
    inside = dict(line.split(":", 1) for line in lines[4:])
    for kind in ("pid", "uts", "ipc", "net"):
        is_pods = kind != "pid" or SURROUNDING != NO_GROUPS
        assert (f"{kind}:{inside[kind]}" == namespace_of(pod.pid, kind)) is is_pods, kind
    assert f"mnt:{inside['mnt']}" not in (namespace_of(pod.pid, "mnt"), namespace_of("self", "mnt"))


def test_the_environment_is_the_apps(pod: PodDirectory) -> None:
    """Values of several lines included; with TERM of the caller, and nothing else of his."""
    result = pod.enter("a", "env", "-0", env={"TERM": "my-term", "SECRET": "1", "PATH": "/caller"})
    variables = dict(entry.split("=", 1) for entry in result.stdout.split("\0")[:-1])
    assert variables == {
        **{"PATH": "/usr/bin:/bin", "A": "x y='z'", "B": "", "LINES": "x\ny", "TERM": "my-term"},
        **{"AC_APP_NAME": "a", "container": "rkt"},
        **{"SHELL": "/bin/sh", "USER": "root", "LOGNAME": "root", "HOME": "/root"},
    }


def test_a_large_environment(make_pod: MakePod) -> None:
    """More than fits into one message of the control socket."""
    values = {f"V{number}": str(number % 10) * 50_000 for number in range(4)}
    environment = [{"name": name, "value": value} for name, value in values.items()]
    pod = make_pod({"a": shell(FOREVER, environment=environment)})
    process = pod.start()
    pod.wait_ready()
    lines = pod.enter("a", "env").stdout.splitlines()
    assert values.items() <= dict(line.split("=", 1) for line in lines).items()
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_term_without_a_terminal(pod: PodDirectory) -> None:
    """A caller that has no TERM gives vt100."""
    assert pod.enter("a", "sh", "-c", "echo $TERM", env={}).stdout == "vt100\n"


@pytest.mark.parametrize("code", [0, 1, 42, 254, 255])
def test_the_exit_status_is_the_commands(pod: PodDirectory, code: int) -> None:
    """Unchanged."""
    assert pod.enter("a", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT, signal.SIGUSR1])
def test_a_commands_death_by_signal_is_enters(pod: PodDirectory, number: int) -> None:
    """The caller sees the same death."""
    assert pod.enter("a", "sh", "-c", f"kill -{int(number)} $$; sleep 5").returncode == -number


def test_arguments_and_streams_pass(pod: PodDirectory) -> None:
    """Standard input, output and error are the caller's, and arguments keep every byte."""
    words = ["a b", "", "$X", "new\nline", "--flag", "-x", "--"]
    script = 'cat; for word in "$@"; do echo "[$word]"; done; echo problem >&2'
    result = pod.enter("a", "sh", "-c", script, "sh", *words, input="from outside\n")
    assert result.stdout == "from outside\n" + "".join(f"[{word}]\n" for word in words)
    assert result.stderr == "problem\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pid=PID", "--appname=a", "--", "echo", "ok"],
        ["--pid=PID", "--appname=a", "--", "--", "echo", "ok"],
        ["--pid", "PID", "--app=a", "--", "echo", "ok"],
        ["-p", "PID", "-a", "a", "echo", "ok"],
    ],
    ids=["rkt", "doubled", "abbreviated", "short"],
)
def test_spellings(pod: PodDirectory, arguments: list[str]) -> None:
    """Those of rkt, its own doubled "--" among them."""
    words = [word.replace("PID", str(pod.pid)) for word in arguments]
    result = pod.call("enter", *words, from_tree=True)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


@pytest.mark.parametrize("from_tree", [True, False], ids=["tree-store", "pod"])
def test_either_copy_of_the_entrypoint_works(pod: PodDirectory, from_tree: bool) -> None:
    """rkt executes the one in the tree store, its own helpers the pod's."""
    result = pod.call("enter", f"--pid={pod.pid}", "--appname=a", "--", "cat", "/etc/who", from_tree=from_tree)
    assert result.stdout == "mine\n"


@pytest.mark.private_users
def test_without_an_app_the_stage1_root_is_entered(pod: PodDirectory) -> None:
    """With the caller's environment."""
    result = pod.enter(None, "/usr/lib/minit/bin/minit", "-c", "import sys; print(sys.prefix)")
    assert (result.stdout, result.stderr) == ("/usr/lib/minit\n", "")


@pytest.mark.private_users
@pytest.mark.delegated_groups("without groups an app that has ended cannot be entered")
def test_an_app_that_has_exited_can_still_be_entered(pod: PodDirectory) -> None:
    """As long as its pod runs."""
    assert pod.enter("gone", "cat", "/etc/who").stdout == "was here\n"


def test_an_app_of_another_user_is_entered_as_root(pod: PodDirectory) -> None:
    """As rkt does."""
    assert pod.enter("user", "id", "-u").stdout == "0\n"


def changes(**fields: Any) -> str:
    """Return the option for other surroundings of a command."""
    return f"--changes={CHANGES.encode(EnterChanges(**fields)).decode()}"


def test_other_surroundings(pod: PodDirectory) -> None:
    """A command has the caller's variables, directory and user instead of the app's, and the app's other variables."""
    chosen = changes(environment=(("A", "/srv"), ("X", "1, 2")), working_directory="/tmp", uid=1000, gid=7)
    words = f"--pid={pod.pid}", "--appname=a", chosen, "--", "sh", "-c", "pwd; id; env"
    result = pod.call("enter", *words, from_tree=True)
    directory, ids, *variables = result.stdout.splitlines()
    assert (result.returncode, directory, ids) == (0, "/tmp", "uid=1000 gid=7"), result.stderr
    assert {"A=/srv", "X=1, 2", "AC_APP_NAME=a"} <= {*variables}
    assert sum(variable.startswith("A=") for variable in variables) == 1


def test_a_directory_that_is_not_there(pod: PodDirectory) -> None:
    """A command runs in no other directory than the chosen one."""
    words = f"--pid={pod.pid}", "--appname=a", changes(working_directory="/none"), "--", "pwd"
    result = pod.call("enter", *words, from_tree=True)
    assert (result.returncode, result.stdout) == (254, "")
    assert result.stderr == "enter: change to the working directory: /none: no such file or directory\n"


def test_privileges_are_no_more_than_an_apps(pod: PodDirectory) -> None:
    """The default capabilities, none inheritable, no descriptor beyond 2, clean signals."""
    leaks = [os.open("/", os.O_RDONLY) for _ in range(8)]
    try:
        signal_names = ("SigBlk", "SigIgn", "SigCgt")
        result = pod.enter("a", "/bin/guest", "report", "/tmp/report", pass_fds=leaks)
    finally:
        for fd in leaks:
            os.close(fd)
    assert result.returncode == 0, result.stderr
    report = pod.report("a")
    assert sorted(report.descriptors) == [0, 1, 2]
    assert {name: report.status[name] for name in ("CapBnd", "CapEff", "CapPrm")} == dict.fromkeys(
        ("CapBnd", "CapEff", "CapPrm"), status_of(pod.pid)["CapBnd"]
    )
    assert {int(report.status[name], 16) for name in ("CapInh", "CapAmb", *signal_names)} == {0}
    assert report.status["Groups"] == ""


@pytest.mark.parametrize(
    ("command", "text", "code"),
    [
        ("not-there", 'Error: Unable to find "not-there" in the PATH of the app', 127),
        ("/not/there", 'Error: Unable to open "/not/there": No such file or directory', 127),
        ("./not-there", 'Error: Unable to open "/tmp/./not-there": No such file or directory', 127),
        ("/etc", 'Error: "/etc" is not a regular file', 126),
        ("/etc/passwd", 'Error: "/etc/passwd" is not executable', 126),
        ("/etc/passwd/x", 'Error: Unable to open "/etc/passwd/x": Not a directory', 126),
        ("", 'Error: Unable to find "" in the PATH of the app', 127),
    ],
    ids=["name", "path", "relative", "directory", "mode", "below-a-file", "empty"],
)
def test_a_command_that_cannot_be_executed(pod: PodDirectory, command: str, text: str, code: int) -> None:
    """rkt's diagnosis, and a shell's code."""
    result = pod.enter("a", command)
    assert (result.returncode, result.stderr) == (code, f"{text}\n")


def test_an_unknown_app_is_refused(pod: PodDirectory) -> None:
    """One line."""
    result = pod.enter("nobody", "true")
    assert result.returncode == 254
    assert 'no app "nobody" in this pod' in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pid=1x", "--", "true"],
        ["--pid=", "--", "true"],
        ["--", "true"],
        ["--pid=1"],
        ["--pid=1", "--"],
        ["--frob", "--pid=1", "true"],
    ],
    ids=" ".join,
)
def test_bad_arguments(make_pod: MakePod, arguments: list[str]) -> None:
    """Usage and 1, as rkt's enter, which is a C program."""
    result = make_pod({"a": shell("true")}).call("enter", *arguments, from_tree=True)
    assert result.returncode == 1
    assert "Usage of enter" in result.stderr


@pytest.mark.parametrize("pid", [1, None, 2**22 - 1, 2**40], ids=["init", "ordinary", "none", "huge"])
def test_a_pid_that_is_not_the_pods_is_refused(pod: PodDirectory, pid: int | None) -> None:
    """One line, and nothing is entered."""
    result = pod.call("enter", f"--pid={pid or os.getpid()}", "--appname=a", "--", "true", from_tree=True)
    assert result.returncode == 254
    assert result.stderr.startswith("enter: pod is not running any more") and result.stderr.count("\n") == 1


def test_pid_1_of_another_pod_is_refused(pod: PodDirectory, make_pod: MakePod) -> None:
    """Entering it would mix the namespaces of two pods."""
    other = make_pod({"a": shell(FOREVER)})
    other.start()
    other.wait_ready()
    result = pod.call("enter", f"--pid={other.pid}", "--appname=a", "--", "true", from_tree=True)
    assert result.returncode == 254
    assert result.stderr.startswith("enter: pod is not running any more")


def test_an_exited_pod_is_refused(make_pod: MakePod) -> None:
    """Its pid file is still there."""
    pod = make_pod({"a": shell("exit 0")})
    pod.run()
    result = pod.enter("a", "true")
    assert result.returncode == 254
    assert result.stderr.startswith("enter: pod is not running any more")


def test_a_command_ends_with_the_pod(pod: PodDirectory) -> None:
    """It is a process of the app like any other."""
    command = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "sleep", "60"]
    with subprocess.Popen(command, cwd=pod.path) as entered:
        wait_for(lambda: named(children_of(entered.pid), "sleep"), "the command")
        pod.stop()
        assert entered.wait(90) == -signal.SIGTERM
        pod.wait_exited()


def test_signals_reach_the_command(pod: PodDirectory) -> None:
    """SIGTERM to the entrypoint is the command's."""
    command = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--"]
    script = "trap 'exit 33' TERM; echo up; while :; do sleep 0.01; done"
    with subprocess.Popen([*command, "sh", "-c", script], cwd=pod.path, stdout=subprocess.PIPE) as entered:
        assert entered.stdout is not None
        assert entered.stdout.readline() == b"up\n"
        entered.terminate()
        assert entered.wait(90) == 33


def test_the_app_does_not_notice(pod: PodDirectory) -> None:
    """Fifty commands later it runs on, the pod is ready, and PID 1 holds no more than after the first one."""
    assert pod.enter("a", "true").returncode == 0
    assert pod.ask({"op": "ping"})["ok"]
    before = len(os.listdir(f"/proc/{pod.pid}/fd"))
    for _ in range(50):
        assert pod.enter("a", "true").returncode == 0
    assert pod.is_ready()
    wait_for(lambda: len(os.listdir(f"/proc/{pod.pid}/fd")) <= before, "the end of the connections")


@contextmanager
def entered(
    pod: PodDirectory, script: str, flags: Sequence[str] = (), **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in an app, that says when it is up."""
    words = [f"--pid={pod.pid}", "--appname=a", *flags, "--", "sh", "-c", script]
    command = [pod.entrypoint("enter", from_tree=True), *words]
    with subprocess.Popen(command, cwd=pod.path, stdout=subprocess.PIPE, **options) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


def _command_of(pid: int) -> int:
    """Return the pid of the command, once the process that entered for it is gone."""
    [command] = wait_for(lambda: len(found := children_of(pid)) == 1 and found, "the command alone")
    return command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_what_a_terminal_sends_reaches_the_whole_job(pod: PodDirectory, number: signal.Signals) -> None:
    """Programs of the command get it too, though it is in a session of its own."""
    name = number.name.removeprefix("SIG")
    with entered(pod, f"trap 'exit 33' {name}; (trap 'echo child' {name}; echo up; sleep 1000; true)") as process:
        assert process.stdout is not None
        wait_for(lambda: "sleep" in _names_of_descendants(process.pid), "what the command runs")
        process.send_signal(number)
        assert process.stdout.read() == b"child\n"
        assert process.wait(90) == 33


def _names_of_descendants(pid: int) -> list[str]:
    names, pids = [], [pid]
    while pids:
        # Any of them may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            children = children_of(pids.pop())
            names += [status_of(child)["Name"] for child in children]
            pids += children
    return names


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_reach_the_command_alone(pod: PodDirectory, number: signal.Signals) -> None:
    """As they would if it had been started by the caller."""
    name = number.name.removeprefix("SIG")
    with entered(pod, f"trap 'exit 33' {name}; echo up; while :; do sleep 0.01; done") as process:
        process.send_signal(number)
        assert process.wait(90) == 33


def test_what_the_caller_ignores_is_not_passed_on(pod: PodDirectory) -> None:
    """A command under nohup(1) survives a hang-up."""
    ignore = "trap '' HUP; exec "
    command = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--"]
    script = ["sh", "-c", "trap 'exit 33' HUP; trap 'exit 44' TERM; echo up; while :; do sleep 0.01; done"]
    words = ["sh", "-c", ignore + '"$@"', "sh", *command, *script]
    with subprocess.Popen(words, cwd=pod.path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 44


def test_a_stop_stops_both(pod: PodDirectory) -> None:
    """SIGTSTP to `enter`; SIGCONT lets both go on."""
    with entered(pod, "trap 'exit 33' TERM; echo up; while :; do sleep 0.01; done") as process:
        command = _command_of(process.pid)
        process.send_signal(signal.SIGTSTP)
        for pid in (process.pid, command):
            wait_for(lambda pid=pid: status_of(pid)["State"].startswith("T"), "the stop")  # type: ignore[misc]
        process.send_signal(signal.SIGCONT)
        for pid in (process.pid, command):
            wait_for(lambda pid=pid: not status_of(pid)["State"].startswith("T"), "the end of it")  # type: ignore[misc]
        process.terminate()
        assert process.wait(90) == 33


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_an_app_stops(pod: PodDirectory, number: signal.Signals) -> None:
    """It does not stop its caller, and what ends it does so at once."""
    with entered(
        pod, f"trap 'exit 33' {number.name.removeprefix('SIG')}; echo up; while :; do read -t 1 x; done"
    ) as process:
        command = _command_of(process.pid)
        os.kill(command, signal.SIGSTOP)
        wait_for(lambda: status_of(command)["State"].startswith("T"), "the stop")
        process.send_signal(number)
        assert process.wait(90) == 33


def test_a_command_has_no_terminal_of_its_callers_session(pod: PodDirectory) -> None:
    """It is the leader of a session of its own."""
    with entered(pod, "echo up; exec sleep 1000") as process:
        command = _command_of(process.pid)
        assert os.getsid(command) == command == os.getpgid(command)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_moment_leaves_nothing(pod: PodDirectory, number: int) -> None:
    """However far `enter` has come, no command runs on that nobody waits for."""
    command = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "sleep", "7777"]
    for step in range(campaign(20)):
        with subprocess.Popen(command, cwd=pod.path) as process:
            try:
                process.wait(0.002 * (step % 30))
            except subprocess.TimeoutExpired:
                process.send_signal(number)
            assert process.wait(90) in (0, -number)
        wait_for(lambda: not _runs(pod, "7777"), "the end of the command")
    wait_for(lambda: not _runs(pod, "--appname=a"), "the end of all that entered")


def _runs(pod: PodDirectory, word: str) -> bool:
    for pid in pod.members():
        with suppress(FileNotFoundError, ProcessLookupError):
            # Until its exec a process has the words of `enter`.
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return True
    return False


@pytest.mark.delegated_groups("it freezes groups")
def test_an_app_that_is_frozen(pod: PodDirectory) -> None:
    """An app that somebody has frozen gets no command: an error says so, and nothing of the command is left."""
    [freezer] = [
        path for top in pod.control_groups() if (path := top / "system.slice/a.service/freezer.state").exists()
    ]
    members = freezer.with_name("cgroup.procs")
    before = members.read_text()
    freezer.write_text("FROZEN")
    try:
        entered = pod.enter("a", "touch", "/tmp/entered")
    finally:
        freezer.write_text("THAWED")
    assert (entered.returncode, entered.stderr) == (254, 'enter: app "a" is paused\n')
    wait_for(lambda: not set(members.read_text().split()) - _with_children(before), "the end of what entered")
    assert not pod.file("a", "/tmp/entered").exists()


def _with_children(pids: str) -> set[str]:
    shells = pids.split()[:1]
    return {*shells, *(str(child) for pid in shells for child in children_of(int(pid)))}


DAEMON = "setsid sh -c 'setsid sleep 7778 & exec sleep 7779' </dev/null >/dev/null 2>&1 &"


@pytest.mark.private_users
@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_nothing_is_left_after_a_time_limit(pod: PodDirectory) -> None:
    """Not what has left the command's session; what it has said until then is there, and the app goes on."""
    before = _groups(pod)
    result = _enter_for(pod, "500ms", f"{DAEMON} echo begun; exec sleep 7777")
    assert (result.returncode, result.stdout) == (124, "begun\n")
    assert result.stderr == "enter: the time limit of the command is over\n"
    assert not any(_runs(pod, number) for number in ("7777", "7778", "7779"))
    assert _groups(pod) == before
    assert pod.is_ready()


def test_nothing_is_left_of_a_command_that_ends_in_time(pod: PodDirectory) -> None:
    """Its code is told, and what it leaves behind is killed."""
    before = _groups(pod)
    result = _enter_for(pod, "1h", f"{DAEMON} exit 7")
    assert (result.returncode, result.stderr) == (7, "")
    assert not any(_runs(pod, number) for number in ("7778", "7779"))
    assert _groups(pod) == before


def test_nothing_is_left_when_enter_is_killed(pod: PodDirectory) -> None:
    """Of a command with a time limit, and of one without it not the command."""
    before = _groups(pod)
    with entered(pod, f"{DAEMON} echo up; exec sleep 7777", flags=("--timeout=1h",)) as process:
        process.kill()
        wait_for(lambda: not any(_runs(pod, number) for number in ("7777", "7778", "7779")), "the end of all of it")
        wait_for(lambda: _groups(pod) == before, "the end of its group")
    with entered(pod, "echo up; exec sleep 7777") as process:
        process.kill()
        wait_for(lambda: not _runs(pod, "7777"), "the end of the command")


def test_a_time_limit_while_enter_is_stopped(pod: PodDirectory) -> None:
    """The command is killed all the same."""
    with entered(pod, "echo up; exec sleep 7777", flags=("--timeout=2s",)) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: not _runs(pod, "7777"), "the end of the command")
        process.send_signal(signal.SIGCONT)
        assert process.wait(90) == 124


def test_nothing_is_left_when_the_guard_is_killed(pod: PodDirectory) -> None:
    """The command is not said to have run out of time."""
    before = _groups(pod)
    with entered(pod, f"{DAEMON} echo up; exec sleep 7777", flags=("--timeout=1h",), stderr=subprocess.PIPE) as process:
        [guard] = named(children_of(process.pid), "minit-guard")
        os.kill(guard, signal.SIGKILL)
        assert process.wait(90) == 254
        assert process.stderr is not None
        assert b"the guard of the command was killed" in process.stderr.read()
    assert not any(_runs(pod, number) for number in ("7777", "7778", "7779"))
    assert _groups(pod) == before


@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_a_stop_reaches_commands_with_a_time_limit(pod: PodDirectory) -> None:
    """They are the app's as any other."""
    with entered(pod, "trap 'exit 33' TERM; echo up; while :; do sleep 0.01; done", flags=("--timeout=1h",)) as process:
        pod.stop()
        assert process.wait(90) == 33
        pod.wait_exited()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--appname=a", "--timeout=x"], 'invalid duration "x"'),
        (["--appname=a", "--timeout=0s"], "expected more than 0"),
        (["--timeout=1s"], "only a command in an app"),
        (["--appname=a", "--timeout=1s", "--privileged"], "only a command in an app"),
    ],
)
def test_bad_time_limits(pod: PodDirectory, flags: list[str], text: str) -> None:
    """Each is refused."""
    result = pod.call("enter", f"--pid={pod.pid}", *flags, "--", "true", from_tree=True)
    assert result.returncode == 1
    assert text in result.stderr


def _enter_for(pod: PodDirectory, timeout: str, script: str) -> subprocess.CompletedProcess[str]:
    words = ["--appname=a", f"--timeout={timeout}", "--", "sh", "-c", script]
    return pod.call("enter", f"--pid={pod.pid}", *words, from_tree=True)


def _groups(pod: PodDirectory) -> set[str]:
    # Unlike a pattern a walk bears that a group goes meanwhile.
    return {path for top in pod.control_groups() for path, _, _ in os.walk(top)}
