"""`minit -- COMMAND`, the init of a container: what tini and dumb-init promise, kept as process 1 and as any other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.processes import children_of, descriptors_of, is_alive, named, status_of
from tests.support.stage0_world import REPOSITORY
from tests.support.terminal import CTRL_C, CTRL_Z, Terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes PID namespaces, which needs root")

INIT = [sys.executable, "-m", "minit"]
AS_PROCESS_1 = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
# Not what a program does to itself, and not what cannot be caught.
FORWARDED = sorted(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    - {signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
)
# Says each signal that it gets; `leave` is what ends it.
TELLER = """
import os, signal, sys
def tell(number, frame):
    os.write(1, b"%d\\n" % number)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, tell)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.fixture(params=[[], AS_PROCESS_1], ids=["any process", "process 1"])
def wrapper(request: pytest.FixtureRequest) -> list[str]:
    """The program that starts the init."""
    return list(request.param)


def run(*words: str, wrapper: list[str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    chosen: dict[str, Any] = {"env": ENVIRONMENT, **options}
    command = [*(wrapper or []), *INIT, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, **chosen)


def output(process: subprocess.Popen[str]) -> IO[str]:
    """Return what can be read of a process."""
    assert process.stdout is not None
    return process.stdout


@contextmanager
def started(
    *words: str, wrapper: list[str] | None = None, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start the command and yield the process and the init's pid, once the command wrote `ready`."""
    process = subprocess.Popen(
        [*(wrapper or []), *INIT, *words], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, **options
    )
    try:
        assert output(process).readline() == "ready\n"
        yield process, children_of(process.pid)[0] if wrapper else process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 42", 42), ("exit 255", 255), ("kill -KILL $$", 137), ("kill $$", 143)]
)
def test_the_exit_code_is_the_commands(wrapper: list[str], script: str, code: int) -> None:
    """The command's exit code is kept, and death by signal n is 128+n."""
    assert run("--", "sh", "-c", script, wrapper=wrapper).returncode == code


def test_a_caller_that_ignores_its_children(wrapper: list[str]) -> None:
    """The exit code is kept where SIGCHLD is ignored, and the command finds it ignored."""
    command = ["sh", "-c", "grep SigIgn /proc/self/status; exit 9"]
    ignoring: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}
    bare = subprocess.run([*wrapper, *command], capture_output=True, text=True, check=False, **ignoring)
    result = run("--", *command, wrapper=wrapper, **ignoring)
    assert (result.returncode, result.stdout) == (9, bare.stdout)


def test_every_signal_is_passed_on(wrapper: list[str]) -> None:
    """Every signal that can be caught reaches the command, real-time signals too, and none twice."""
    with started("--", sys.executable, "-c", TELLER, wrapper=wrapper) as (process, init):
        for number in FORWARDED:
            os.kill(init, number)
            assert output(process).readline() == f"{int(number)}\n"
        [child] = children_of(init)
        os.kill(child, signal.SIGKILL)
        assert process.wait(90) == 128 + signal.SIGKILL


# Not dash, which loses signals that reach it between its vfork(2) and the return from it.
PAIR = """
trap 'echo outer' TERM
bash -c 'trap "echo inner; exit" TERM; echo ready; while :; do sleep 0.05; done' &
wait; wait; exit 5
"""


def test_one_process_or_the_group(wrapper: list[str]) -> None:
    """A signal is for the command alone, and for its whole process group with --group."""
    with started("--group", "--", "bash", "-c", PAIR, wrapper=wrapper) as (process, init):
        os.kill(init, signal.SIGTERM)
        assert sorted(output(process).read().split()) == ["inner", "outer"]
        assert process.wait(90) == 5
    with started("--", "bash", "-c", PAIR, wrapper=wrapper) as (process, init):
        os.kill(init, signal.SIGTERM)
        assert output(process).readline() == "outer\n"
        [outer] = children_of(init)
        [inner] = children_of(outer)
        os.kill(inner, signal.SIGTERM)
        assert process.wait(90) == 5


def test_orphans_are_reaped(wrapper: list[str]) -> None:
    """A process that loses its parent becomes the init's child and leaves no zombie, while the command goes on."""
    storm = "for i in $(seq 100); do (sh -c 'exit 3' &) ; done; (sleep 60 &); echo ready; exec sleep 60"
    with started("--", "sh", "-c", storm, wrapper=wrapper) as (process, init):
        wait_for(
            lambda: len(named(children_of(init), "sleep")) == 2 == len(children_of(init)),
            "the end of every orphan but one",
        )
        for child in children_of(init):
            assert status_of(child)["PPid"] == str(init)
        for child in children_of(init):
            os.kill(child, signal.SIGTERM)
        assert process.wait(90) == 128 + signal.SIGTERM


def test_the_command_starts_as_without_an_init() -> None:
    """The command has the caller's signal mask and dispositions, but for those that Python itself had changed."""
    show = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]

    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

    bare = subprocess.run(show, capture_output=True, text=True, preexec_fn=prepare, check=True).stdout
    assert run("--", *show, preexec_fn=prepare).stdout == bare
    # But for the signals from 32 on, of which the first are libc's own.
    ignored = int(re.findall(r"SigIgn:\t(\w+)", bare)[0], 16) & (1 << 31) - 1
    assert ignored == 1 << signal.SIGHUP - 1 | 1 << signal.SIGINT - 1


def test_the_init_holds_nothing_of_the_callers(tmp_path: Path) -> None:
    """Descriptors that are passed reach the command and stay with it alone, and so does the working directory."""
    reader, writer = os.pipe()
    script = f"echo passed > /dev/fd/{writer}; echo ready; pwd; exec sleep 60"
    with started("--", "sh", "-c", script, pass_fds=[writer], cwd=tmp_path) as (process, init):
        os.close(writer)
        assert os.read(reader, 100) == b"passed\n"
        assert output(process).readline() == f"{tmp_path}\n"
        wait_for(lambda: os.readlink(f"/proc/{init}/cwd") == "/", "the init's last step before its loop")
        wait_for(lambda: sorted(descriptors_of(init)) == [0, 1, 2], "nothing but the standard descriptors")
        os.kill(init, signal.SIGTERM)
        assert os.read(reader, 100) == b""
    os.close(reader)


def test_what_cannot_be_executed(tmp_path: Path) -> None:
    """A missing command has exit code 127, one that cannot be executed 126, each with a line that says why."""
    lost = str(tmp_path / "lost")
    Path(lost).write_text("#!/nowhere/sh\n")
    os.chmod(lost, 0o755)
    for command, code, line in (
        ("nosuchcommand", 127, "minit: exec nosuchcommand: no such file or directory"),
        ("/etc/passwd", 126, "minit: exec /etc/passwd: permission denied"),
        ("/etc", 126, "minit: exec /etc: permission denied"),
        (
            f"{tmp_path}/lost",
            127,
            f'minit: exec {tmp_path}/lost: Unable to open "/nowhere/sh": No such file or directory',
        ),
    ):
        result = run("--", command)
        assert (result.returncode, result.stdout, result.stderr) == (code, "", f"{line}\n")


def test_a_script_without_an_interpreter(tmp_path: Path) -> None:
    """A script that names no interpreter is the shell's, as execvp(3) has it, and is found on PATH."""
    (tmp_path / "script").write_text("echo $0 $1; exit 4\n")
    (tmp_path / "script").chmod(0o755)
    result = run("--", "script", "word", env={**ENVIRONMENT, "PATH": f"/nowhere:{tmp_path}:{os.environ['PATH']}"})
    assert (result.returncode, result.stdout) == (4, f"{tmp_path}/script word\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--"], "a command must follow --"),
        (["--group", "--"], "a command must follow --"),
        (["--parent-death=x", "--", "true"], '--parent-death: expected a signal such as TERM, got "x"'),
        (["--parent-death", "--", "true"], '--parent-death: expected a signal such as TERM, got ""'),
    ],
)
def test_usage(words: list[str], reason: str) -> None:
    """A line that cannot be run is refused with exit code 2 and its form."""
    result = run(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"minit: {reason} (usage: minit [--group]")
    assert result.stderr.count("\n") == 1


def test_a_session_of_its_own(wrapper: list[str], tmp_path: Path) -> None:
    """With --session the command leads a session, signals reach its group, and its end is a SIGTERM for the rest."""
    os.mkfifo(tmp_path / "said")
    script = f"""
    export LEADS=$({sys.executable} -c 'import os; print(os.getsid(0) == os.getppid())')
    trap 'exit 6' TERM
    bash -c 'trap "echo inner; exit" TERM; echo ready; echo $LEADS; echo > {tmp_path}/said
        while :; do sleep 0.05; done' &
    read said < {tmp_path}/said
    wait; wait
    """
    with started("--session", "--", "bash", "-c", script, wrapper=wrapper) as (process, init):
        assert output(process).readline() == "True\n"
        os.kill(init, signal.SIGTERM)
        assert output(process).readline() == "inner\n"
        assert process.wait(90) == 6
    with started("--session", "--", "bash", "-c", script.replace("wait; wait", "exit 8")) as (process, init):
        assert sorted([output(process).readline(), output(process).readline()]) == ["True\n", "inner\n"]
        assert process.wait(90) == 8


@pytest.mark.parametrize("flag", ["--session", "--group"])
@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU], ids=lambda number: number.name)
def test_stops_of_a_terminal(flag: str, number: signal.Signals) -> None:
    """SIGTSTP, SIGTTIN and SIGTTOU stop the command, then the init; SIGCONT has both go on."""
    with started(flag, "--", "sh", "-c", "echo ready; exec sleep 60") as (process, init):
        [child] = children_of(init)
        for _ in range(2):
            os.kill(init, number)
            for pid in (child, init):
                wait_for(lambda: status_of(pid)["State"].startswith("T"), "a stop")  # noqa: B023
            os.kill(init, signal.SIGCONT)
            for pid in (child, init):
                wait_for(lambda: status_of(pid)["State"].startswith("S"), "going on")  # noqa: B023
        os.kill(init, signal.SIGTERM)
        assert process.wait(90) == 128 + signal.SIGTERM


def test_a_stop_by_somebody_else() -> None:
    """A command that somebody stops and lets go on again, past the init, finds the init awake."""
    with started("--", "sh", "-c", "echo ready; exec sleep 60") as (process, init):
        [child] = children_of(init)
        os.kill(child, signal.SIGSTOP)
        wait_for(lambda: status_of(child)["State"].startswith("T"), "a stop")
        os.kill(child, signal.SIGCONT)
        os.kill(init, signal.SIGTERM)
        assert process.wait(90) == 128 + signal.SIGTERM


def test_the_parents_death() -> None:
    """With --parent-death the signal is passed on when the parent ends; KILL ends init and command."""
    for name, words in (("TERM", ["--parent-death=TERM"]), ("KILL", ["--parent-death", "SIGKILL"])):
        script = '"$@" & echo $!; wait'
        command = ["sh", "-c", script, "sh", *INIT, *words, "--", "sh", "-c", "echo ready $$; exec sleep 60"]
        parent = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        init = int(output(parent).readline())
        child = int(output(parent).readline().split()[1])
        parent.kill()
        parent.wait()
        for pid in (init, child):
            wait_for(lambda: not is_alive(pid), f"the end of both, by SIG{name}")  # noqa: B023
        output(parent).close()


@contextmanager
def on_terminal(terminal: Terminal, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as the leader of a session that has the terminal."""

    environment = {**ENVIRONMENT, "PS1": "$ ", "HISTFILE": "", "TERM": "dumb"}
    process = subprocess.Popen(command, env=environment, **terminal.options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


WHOSE = "import os; print('mine' if os.tcgetpgrp(0) == os.getpgrp() else 'not mine')"


@pytest.mark.parametrize("flags", [[], ["--session"]], ids=["group", "session"])
def test_the_terminal_is_the_commands(flags: list[str]) -> None:
    """The command has the terminal's foreground: it reads, and Ctrl-C is for it, once."""
    script = f"{sys.executable} -c \"{WHOSE}\"; trap 'echo caught' INT; echo ready; read line; echo got $line; exit 3"
    with Terminal() as terminal, on_terminal(terminal, *INIT, *flags, "--", "sh", "-c", script) as process:
        terminal.expect(b"ready")
        assert b"not mine" not in terminal.seen
        terminal.type(CTRL_C)
        terminal.expect(b"caught")
        terminal.type(b"word\n")
        terminal.expect(b"got( word)?")
        assert terminal.finish(process) == 3
        assert b"caught" not in terminal.seen


def test_the_terminal_goes_back_to_the_caller() -> None:
    """A script without job control goes on reading from the terminal after the command."""
    script = '"$@"; read line; echo "got $line"'
    words = [*INIT, "--", "sh", "-c", "exit 3"]
    with Terminal() as terminal, on_terminal(terminal, "sh", "-c", script, "sh", *words) as process:
        terminal.type(b"word\n")
        terminal.expect(b"got word")
        assert process.wait(90) == 0


def test_a_pipeline_in_the_background_leaves_the_terminal_alone() -> None:
    """An init that does not have the foreground does not take it."""
    with Terminal() as terminal, on_terminal(terminal, "bash", "--norc", "--noediting", "-i") as process:
        terminal.type(f"{' '.join(INIT)} -- sh -c 'echo do''ne' & read line; echo \"got $line\"\n".encode())
        terminal.expect(b"done")
        terminal.type(b"word\n")
        terminal.expect(b"got word")
        terminal.type(b"exit\n")
        process.wait(90)


def test_job_control() -> None:
    """Ctrl-Z gives the terminal back to the shell, and `fg` to the command."""
    with Terminal() as terminal, on_terminal(terminal, "bash", "--norc", "--noediting", "-i") as process:
        # One process: a shell that is stopped while it forks another program with vfork(2) may not stop.
        terminal.type(f"{' '.join(INIT)} -- sh -c 'echo rea''dy; read line; echo got $line; exit 4'\n".encode())
        terminal.expect(b"ready")
        terminal.type(CTRL_Z)
        terminal.expect(rb"Stopped.*\$ ")
        terminal.type(b"echo she''ll; fg\n")
        terminal.expect(b"shell")
        terminal.type(b"word\n")
        terminal.expect(rb"got word.*\$ ")
        terminal.type(b'echo "code $?"; exit\n')
        terminal.expect(b"code 4")
        process.wait(90)
