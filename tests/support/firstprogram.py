"""
A machine of namespaces: `init` of the stage1 image as the first process, with a root, devices and groups of its own.

Nothing of the machine that runs the tests is in it: minit would unmount that, or make it read-only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from minit.launcher.cgroups import read_hierarchies
from minit.linux import syscalls
from minit.podfiles import paths
from minit.supervisor.root.applymounts import enter_root
from tests.support.owngroup import group_below_own
from tests.support.pods import PodDirectory
from tests.support.processes import children_of, named
from tests.support.waiting import wait_for

TIMEOUT_SECONDS = 90
# How reboot(2) ends a PID namespace: the first process dies of it.
ENDINGS = {-signal.SIGINT: "off", -signal.SIGHUP: "reboot"}
_HELPER = "minit-machine"
_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWPID
)
_NODES = (("null", 1, 3), ("urandom", 1, 9), ("zero", 1, 5))


class NamespaceMachine:
    """
    A machine that has a prepared pod; use it in a with block, which ends it.

    `under` are words before the command that becomes its first process, of a tracer say: three programs are executed.

    `lines` are those of its console once it has ended, and `ending` how it did.
    """

    def __init__(
        self,
        directory: Path,
        pod: PodDirectory,
        config: str = "",
        command_line: str = "",
        console: str | None = None,
        under: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.root = directory / "machine"
        self.root.mkdir()
        self._group = group_below_own(read_hierarchies()[0], f"machine-{uuid.uuid4()}")
        syscalls.mount("tmpfs", str(self.root), "tmpfs", 0)
        for name in ("proc", "sys", "dev", "run", "tmp", "etc/minit", "data"):
            (self.root / name).mkdir(parents=True)
        (self.root / "etc/minit/machine.toml").write_text(config)
        (self.root / "etc/resolv.conf").symlink_to(paths.MACHINE_RESOLV_CONF)
        (self.root / "cmdline").write_text(command_line + "\n")
        self.pod = self.root / paths.MACHINE_POD.lstrip("/")
        shutil.copytree(pod.path, self.pod, symlinks=True)
        (self.root / "bin").mkdir()
        (self.root / "bin/minit").symlink_to(f"{paths.MACHINE_POD}/stage1/rootfs/entrypoints/minit")
        os.mkfifo(self.root / "run-watchdog")
        # Open on both sides: whoever opens one of them need not wait for another.
        self._watchdog = os.open(self.root / "run-watchdog", os.O_RDWR)
        self._console = console
        self._under = under
        self._pass_fds = pass_fds
        self.lines: list[str] = []
        self.ending = ""

    def __enter__(self) -> NamespaceMachine:
        self._group.mkdir()
        program = [sys.executable, "-m", "tests.support.firstprogram"]
        place = [str(self.root), self._console or ""]
        tracer = [*self._under, *program, "init", *place] if self._under else []
        self.process = subprocess.Popen(
            [*program, str(self._group), *place, *tracer],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=self._pass_fds,
            bufsize=0,  # communicate() knows nothing of what a line that was read has left in a buffer
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # the first process goes with it
        self.process.communicate()
        os.close(self._watchdog)
        syscalls.umount2(str(self.root), syscalls.MNT_DETACH)
        # What was killed leaves its group a moment later.
        events = self._group / "cgroup.events"
        wait_for(lambda: "populated 0" in events.read_text(), "the end of the machine's processes")
        for directory, _names, _files in os.walk(self._group, topdown=False):
            os.rmdir(directory)

    def wait_for_line(self, text: str) -> str:
        """Return the next line of the console that has `text` in it."""
        assert self.process.stdout is not None
        for data in self.process.stdout:
            self.lines.append(data.decode(errors="replace").rstrip("\r\n"))
            if text in self.lines[-1]:
                return self.lines[-1]
        raise AssertionError(f"the machine never said {text!r}: {self.lines}")

    @property
    def first_process(self) -> int:
        """The pid of the machine's PID 1."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def wait_for_helper(self, other_than: int = 0) -> int:
        """Return the pid of the process that prepares the machine and goes on with its devices and leases."""

        def find() -> list[int]:
            return [pid for pid in named(children_of(self.first_process), _HELPER) if pid != other_than]

        wait_for(lambda: bool(find()), "the machine's helper")
        return find()[0]

    def make_node(self, path: Path) -> None:
        """Give the machine a node for a device of the machine that runs the tests, by the same name."""
        status, node = path.stat(), Path(f"/proc/{self.wait_for_helper()}/root{path}")
        os.mknod(node, status.st_mode, status.st_rdev)

    def in_network(self, *command: str) -> str:
        """Return what a program of the machine that runs the tests says in this machine's network."""
        inside = ["nsenter", f"--net=/proc/{self.first_process}/ns/net", *command]
        return subprocess.run(inside, check=True, capture_output=True, text=True).stdout

    def signal(self, number: int) -> None:
        """Signal the first process."""
        os.kill(self.first_process, number)

    def run(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command line of root's, in the machine and in none of its apps."""
        return subprocess.run(self.command(*words), input=typed, capture_output=True, text=True)

    def command(self, *words: str) -> list[str]:
        """Return what runs a command line in the machine."""
        # The helper is in the machine's own mounts, which PID 1 has left for the pod's.
        [helper] = named(children_of(self.first_process), "minit-machine")
        inside = ["nsenter", f"--target={helper}", "--all", "--root", "--wd=/", *words]
        return ["sh", "-c", 'echo 0 > "$0"/cgroup.procs; exec "$@"', str(self._group), *inside]

    def wait(self) -> NamespaceMachine:
        """Wait for the end."""
        output, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        self.lines += output.decode(errors="replace").splitlines()
        # A tracer dies of what its process has died of.
        code = self.process.returncode
        self.ending = ENDINGS.get(code if code < 0 else 128 - code, f"status {code}")
        return self

    def status(self, app: str) -> int | None:
        """Return the exit status that is recorded for an app, None if there is none."""
        path = self.pod / "stage1/rootfs/rkt/status" / app
        return int(path.read_text()) if path.exists() else None


def _main(group: str, root: str, console: str, *tracer: str) -> None:
    syscalls.set_parent_death_signal(signal.SIGKILL)
    Path(group, "cgroup.procs").write_text("0")
    syscalls.unshare(_NAMESPACES)
    if tracer:
        # What it forks first is the first process of the new namespace.
        os.execvp(tracer[0], tracer)
    pid = os.fork()
    if pid == 0:
        _become_init(root, console)
    _, status = os.waitpid(pid, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _become_init(root: str, console: str) -> None:
    syscalls.set_parent_death_signal(signal.SIGKILL)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", f"{root}/proc", "proc", 0)
    syscalls.mount(f"{root}/cmdline", f"{root}/proc/cmdline", None, syscalls.MS_BIND)
    # Not devtmpfs, which is the one of the machine that runs the tests.
    syscalls.mount("tmpfs", f"{root}/dev", "tmpfs", 0)
    os.umask(0)
    for name, major, minor in _NODES:
        os.mknod(f"{root}/dev/{name}", 0o020666, os.makedev(major, minor))
    os.umask(0o022)
    if console:
        os.mknod(f"{root}/dev/console")
        syscalls.mount(console, f"{root}/dev/console", None, syscalls.MS_BIND)
    enter_root(syscalls.open_tree(syscalls.AT_FDCWD, root))
    init = f"{paths.MACHINE_POD}/stage1/rootfs/entrypoints/init"
    os.execve(init, [init], {"TERM": "linux", "HOME": "/"})


if __name__ == "__main__":
    if sys.argv[1] == "init":
        _become_init(*sys.argv[2:])
    _main(*sys.argv[1:])
