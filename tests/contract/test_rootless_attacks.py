"""What a second user without root tries with pods, files and processes of another one."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.test_rootless import DATA, IMAGE, clean, keepers, start, user
from tests.support.ordinaryuser import HOME, STRANGER, OrdinaryUser
from tests.support.processes import children_of
from tests.support.waiting import wait_for

__all__ = ["clean", "user"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes users, which needs root")

REPOSITORY = Path(__file__).parents[2]
STAGE1 = f"--stage1-path={HOME}/stage1.aci"
TRIES = 52
ASK = """
import os, socket, sys
os.setgroups(())
os.setresuid(*[int(sys.argv[1])] * 3)
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect("control")
client.send(b'{"op":"ping"}')
print(client.recv(4096).decode())
"""


def by_stranger(user: OrdinaryUser, *words: str) -> subprocess.CompletedProcess[str]:
    """Run words of a second user to their end."""
    return subprocess.run(
        user.words_of_stranger(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )


def serve(user: OrdinaryUser) -> None:
    """Start a pod with everything that has a process: an uplink, a forwarded port, streams to attach to."""
    script = "trap 'exit 0' TERM; echo up; read -r _"
    words = ("run", "--detach", "--name=web", STAGE1, "--publish=18090:80", IMAGE)
    done = user.minit(*words, "--stdin=stream", "--stdout=stream", "--stderr=log", "--", "-c", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("namespace", [(), ("unshare", "--user", "--map-root-user")], ids=["plain", "as root"])
def test_processes_are_closed(clean: OrdinaryUser, namespace: tuple[str, ...]) -> None:
    """No process of a pod, and no command, can be looked into, joined, traced, signalled or slowed."""
    serve(clean)
    words = clean.words(clean.minit_words("enter", "web", "/bin/sh", "-c", "echo in; exec busybox sleep 1000"))
    # The kernel lets SIGCONT through within a session.
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True) as entering:
        assert entering.stdout is not None and entering.stdout.readline() == b"in\n"
        wait_for(lambda: "busybox" in clean.processes().values(), "the command")
        processes = clean.processes()
        done = by_stranger(clean, *namespace, sys.executable, "-m", "tests.support.stranger", *map(str, processes))
        entering.kill()
    names = {"busybox", "flock", "minit", "minit-launcher", "minit-ports", "minit-spawner", "minit-uplink"}
    assert names | {"slirp4netns"} <= set(processes.values())
    assert done.stdout.splitlines() == [f"{pid}: tried {TRIES}" for pid in processes], processes


def test_sockets_are_closed(clean: OrdinaryUser) -> None:
    """All sockets and FIFOs of a pod and of the user are the user's alone, in directories that nobody else searches."""
    serve(clean)
    [launcher] = [pid for pid, name in clean.processes().items() if name == "minit-launcher"]
    found = []
    for top in (DATA, f"{HOME}/run"):
        for directory, _, names in os.walk(f"/proc/{launcher}/root{top}"):
            for state in (os.lstat(f"{directory}/{name}") for name in names):
                if not stat.S_ISREG(state.st_mode) and not stat.S_ISLNK(state.st_mode):
                    found.append((state.st_uid, oct(state.st_mode & 0o777)))
    assert len(found) > 3 and set(found) == {(clean.uid, "0o600")}, found
    assert by_stranger(clean, "ls", DATA).returncode != 0


def test_the_control_socket_knows_its_peer(clean: OrdinaryUser) -> None:
    """With its modes opened, the control socket still answers nobody else than the user."""
    serve(clean)
    [launcher] = [pid for pid, name in clean.processes().items() if name == "minit-launcher"]
    [pod] = (clean.home / ".local/share/minit/pods/run").iterdir()
    name = f"{DATA}/pods/run/{pod.name}/stage1/rootfs/rkt/minit/control"
    path = Path(f"/proc/{launcher}/root{name}")
    path.chmod(0o666)
    path.parent.chmod(0o711)
    answers = [
        subprocess.run(
            [sys.executable, "-c", ASK, str(uid)], cwd=path.parent, capture_output=True, text=True, check=False
        )
        for uid in (clean.uid, STRANGER)
    ]
    assert '"ok"' in answers[0].stdout, answers
    assert "ok" not in answers[1].stdout, answers


@contextmanager
def without_variable(user: OrdinaryUser) -> Iterator[Path]:
    """Have the user's runtime directory in /tmp, and yield its path."""
    own = user.environment.pop("XDG_RUNTIME_DIR")
    path = Path(f"/tmp/minit-{user.uid}")
    try:
        yield path
    finally:
        user.environment["XDG_RUNTIME_DIR"] = own
        user.wait_end()
        if path.is_symlink() or path.is_file():
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)


def _directory(path: Path, owner: int, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)


TOPS: dict[str, Callable[[Path, OrdinaryUser], None]] = {
    "a stranger's": lambda path, _: _directory(path, STRANGER, 0o700),
    "open for reading": lambda path, user: _directory(path, user.uid, 0o755),
    "open for writing": lambda path, user: _directory(path, user.uid, 0o770),
    "a link": lambda path, user: path.symlink_to(HOME),
    "a file": lambda path, user: path.touch(),
}


@pytest.mark.parametrize("kind", TOPS)
def test_a_directory_that_was_there_before(clean: OrdinaryUser, kind: str) -> None:
    """A runtime directory in /tmp that is not the user's alone is refused by its name, and nothing is put there."""
    with without_variable(clean) as path:
        TOPS[kind](path, clean)
        done = clean.minit("unshare", "true")
        assert (done.returncode, done.stderr.count("\n")) == (254, 1), done
        assert f"{path} is not a directory of yours" in done.stderr
        assert not path.is_dir() or kind == "a link" or not list(path.iterdir())


def _record_of(pid: int) -> str:
    return f"{pid} {Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2].split()[19]}\n"


@contextmanager
def process_of(uid: int, *words: str) -> Iterator[int]:
    """Run a process of a user that says a word, and yield its number."""
    ids = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    with subprocess.Popen([*ids, *words], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.stdin.close()


RECORDS: dict[str, Callable[[Path, int], object]] = {
    "a link": lambda path, _: path.symlink_to("/etc/passwd"),
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a hard link": lambda path, _: os.link(path.parents[3] / "box.aci", path),
    "nonsense": lambda path, _: path.write_text("1 2 3\n"),
    "a number that is used again": lambda path, pid: path.write_text(f"{pid} 1\n"),
    "another user's process": lambda path, pid: path.write_text(_record_of(pid)),
    "no namespace": lambda path, _: path.write_text(_record_of(1)),
}


@pytest.mark.parametrize("name", ["namespace", "new"])
@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_was_there_before(clean: OrdinaryUser, kind: str, name: str) -> None:
    """A record that leads to no keeper of the user's is replaced, and the file behind a link stays as it was."""
    assert clean.minit("unshare", "true").returncode == 0
    clean.wait_end()
    [record] = clean.home.glob("run/minit/*/namespace")
    record.unlink()
    image = (clean.home / "box.aci").read_bytes()
    with process_of(STRANGER, "sh", "-c", "echo up; read -r _") as pid:
        RECORDS[kind](record.with_name(name), pid)
        done = clean.minit("unshare", "cat", f"{HOME}/run/minit/{record.parent.name}/namespace")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 2 and done.stdout.split()[0] != str(pid)
    assert (clean.home / "box.aci").read_bytes() == image
    clean.wait_end()


def test_a_number_of_a_pod_that_is_used_again(clean: OrdinaryUser) -> None:
    """A process of the user in a namespace of another program is no launcher, whatever a pod's file names."""
    start(clean, "web")
    [keeper] = wait_for(lambda: keepers(clean), "the keeper")
    os.kill(keeper, signal.SIGKILL)
    [number] = (clean.home / ".local/share/minit/pods/run").glob("*/pid")
    before = number.read_text()
    script = "exec 3<&0; cat <&3 & exec 3<&-; echo up; wait"
    with process_of(clean.uid, "unshare", "--user", "--map-root-user", "sh", "-c", script) as pid:
        [child] = children_of(pid)
        number.write_text(f"{child}\n")
        done = clean.minit("unshare", "sh", "-c", "wc -l < /proc/self/uid_map; readlink /proc/self/ns/user")
        foreign = os.readlink(f"/proc/{child}/ns/user")
    number.write_text(before)
    assert done.returncode == 0, done.stderr
    lines, namespace = done.stdout.split()
    assert lines == "2" and namespace != foreign


# The owner and group of the directory around, where not root's, the modes of both directories, and the problem.
WAYS: dict[str, tuple[int, int, int, int, str]] = {
    "a stranger's": (STRANGER, 0, 0o755, 0o700, f"is user {STRANGER}'s, who could replace"),
    "a stranger's with the sticky bit": (STRANGER, 0, 0o1777, 0o700, f"is user {STRANGER}'s, who could replace"),
    "open to all": (0, 0, 0o777, 0o700, "others can write to"),
    "open to a group of others": (0, STRANGER, 0o775, 0o700, "others can write to"),
    "open to root's group": (0, 0, 0o775, 0o700, ""),
    "as /tmp": (0, 0, 0o1777, 0o700, ""),
    "open data": (0, 0, 0o755, 0o750, "is open to other users: run chmod 0700"),
}


@pytest.fixture
def around(clean: OrdinaryUser) -> Iterator[Path]:
    """A directory beside the homes."""
    path = clean.home.parent / "around"
    path.mkdir()
    yield path
    clean.wait_end()
    shutil.rmtree(path)


@pytest.mark.parametrize("kind", WAYS)
def test_a_data_directory_that_others_could_replace(clean: OrdinaryUser, around: Path, kind: str) -> None:
    """A data directory is refused, also for looking, where others can write to it or on the way; /tmp is fine."""
    owner, group, mode, own_mode, problem = WAYS[kind]
    around.chmod(mode)
    os.chown(around, owner, group)
    _directory(around / "data", clean.uid, own_mode)
    for command in "list", "gc":
        done = clean.minit("--dir=/home/around/data", command)
        assert (done.returncode, done.stderr.count("\n")) == ((254, 1) if problem else (0, 0)), done
        assert problem in done.stderr


def test_nothing_is_made_where_others_could_replace_it(clean: OrdinaryUser, around: Path) -> None:
    """A data directory that is not there is refused before it is made."""
    around.chmod(0o777)
    assert "others can write to" in clean.minit("--dir=/home/around/data/minit", "gc").stderr
    assert list(around.iterdir()) == []


def test_root_executes_nothing_of_a_users_cache(tmp_path: Path) -> None:
    """With the HOME of a user, as sudo(8) may keep it, root's command follows no link there to a program of root's."""
    command = tmp_path / "minit"
    shutil.copy(REPOSITORY / "bin/minit", command)
    plain = tmp_path / "minit-plain"
    plain.write_text("#!/bin/sh\necho plain\n")
    plain.chmod(0o755)
    trap = Path(f"{tmp_path}/.cache/minit{command}")
    trap.parent.mkdir(parents=True)
    trap.symlink_to(shutil.which("echo") or "")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    assert subprocess.run([command, "list"], env=environment, capture_output=True, check=True).stdout == b"plain\n"
