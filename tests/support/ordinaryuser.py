"""
A user without root, with a home, subordinate ids and, where wanted, control groups of the user's own.

The user lives in a mount namespace in which only passwd, subuid and subgid differ, and in which the interpreter of the
tests can be reached.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from minit.launcher.cgroups import Hierarchy, read_hierarchies
from minit.linux import syscalls
from tests.support.forkedcommand import forked_minit
from tests.support.processes import status_of
from tests.support.waiting import wait_for

NAME = "minit-user"
HOME = "/home/minit-user"
# Each user of each worker has ids that nobody else has.
_FIRST_UID, _FIRST_SUBORDINATE, _BLOCK, _BLOCKS = 60000, 3_000_000_000, 65536, 2
STRANGER = _FIRST_UID - 1
"""The id of a second user, who has nothing."""
_USERS_OF_WORKER, _WORKERS = 8, 500
_free = {*range(_USERS_OF_WORKER)}
_TUN = "/dev/net/tun"
_ROOT = Path(__file__).parents[2]
_CPUSET = ("cpuset.cpus", "cpuset.mems")


class OrdinaryUser:
    """The user; `remove` ends the user's processes, and removes the control groups."""

    def __init__(
        self,
        directory: Path,
        *,
        has_ids: bool = True,
        blocks: int = 1,
        has_groups: bool = True,
        delegated: Collection[str] | None = None,
    ) -> None:
        """
        Make the user with so many times 65536 subordinate ids, at most two, unless the user `has_ids` not.

        The user is in a group of each hierarchy; `delegated` names the hierarchies of v1 in which the user owns the
        group, None for all and v2.
        """
        self._number = min(_free)
        _free.remove(self._number)
        number = os.getpid() % _WORKERS * _USERS_OF_WORKER + self._number
        self.uid = _FIRST_UID + number
        self._first = _FIRST_SUBORDINATE + number * _BLOCKS * _BLOCK
        self._etc = directory / "etc"
        self._groups = []
        for each in read_hierarchies() if has_groups else ():
            is_owner = delegated is None or bool(set(delegated) & {*each.controllers})
            self._groups.append(_make_group(each, self.uid, is_owner=is_owner))
        self.home = directory / "homes" / NAME
        self.home.mkdir(parents=True)
        for path in (self.home, self.home / "run"):
            path.mkdir(exist_ok=True, mode=0o700)
            os.chown(path, self.uid, self.uid)
        self.environment = {
            "HOME": HOME,
            "USER": NAME,
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(_ROOT),
            "XDG_RUNTIME_DIR": f"{HOME}/run",
            "LC_ALL": "C.UTF-8",
        }
        # No child of this process, whose children other tests count.
        start = 'exec 3<&0; unshare --mount --propagation=slave sh -ec "$0" <&3 3<&- & exec 3<&-'
        reader, self._end = os.pipe()
        words = ["sh", "-c", start, self._script(directory, blocks if has_ids else 0)]
        with subprocess.Popen(words, stdin=reader, stdout=subprocess.PIPE, text=True) as process:
            os.close(reader)
            assert process.stdout is not None
            self._holder = int(process.stdout.readline())

    @property
    def ids(self) -> set[int]:
        """The user's id, and the subordinate ids."""
        return {self.uid, *range(self._first, self._first + _BLOCKS * _BLOCK)}

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the command line that root runs to have the user run `words` at home."""
        moves = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in self._groups)
        ids = f"--reuid={self.uid} --regid={self.uid} --clear-groups"
        become = f'{moves or ":"}; cd {HOME}; exec setpriv {ids} env -i "$@"'
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return ["nsenter", f"--mount=/proc/{self._holder}/ns/mnt", "sh", "-ec", become, "-", *variables, *words]

    def words_of_stranger(self, words: Sequence[str]) -> list[str]:
        """Return the command line that root runs to have a second user run `words` among the same mounts."""
        ids = [f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
        variables = [f"{name}={self.environment[name]}" for name in ("PATH", "PYTHONPATH", "LC_ALL")]
        mounts = f"--mount=/proc/{self._holder}/ns/mnt"
        return ["nsenter", mounts, "--wd=/", "setpriv", *ids, "env", "-i", *variables, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run words to their end."""
        return subprocess.run(
            self.words(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
        )

    def minit_words(self, *words: str) -> list[str]:
        """Return the words of a `minit` command."""
        return [sys.executable, "-m", "minit", *words]

    def minit(self, *words: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
        """
        Run a `minit` command to its end, without an interpreter's start.

        `before` is what the process does as root among the user's mounts.
        """
        return forked_minit(words, self.environment, Path(HOME), partial(self._become, before))

    def processes(self) -> dict[int, str]:
        """Return the user's processes, and those of the user's subordinate ids, with their names."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The owner of a file of /proc is root's where the process is not dumpable.
                fields = status_of(int(entry.name))
            except OSError:
                continue
            uid = int(fields["Uid"].split()[0])
            is_own = uid == self.uid or self._first <= uid < self._first + _BLOCKS * _BLOCK
            if is_own and not fields["State"].startswith("Z"):
                found[int(entry.name)] = fields["Name"]
        return found

    def give(self, name: str, content: bytes | Path) -> str:
        """Put a file with a content, or a copy of a file, at the user's home, and return the path for the user."""
        path = self.home / name
        if isinstance(content, Path):
            shutil.copy(content, path)
        else:
            path.write_bytes(content)
        os.chown(path, self.uid, self.uid)
        return f"{HOME}/{name}"

    def give_ids(self, blocks: int) -> None:
        """Have so many times 65536 subordinate ids from now on."""
        for name in ("subuid", "subgid"):
            (self._etc / name).write_text(f"{NAME}:{self._first}:{blocks * _BLOCK}\n" if blocks else "")

    def _become(self, before: Callable[[], None] | None) -> None:
        """Make this process one of the user's, as that of `words`."""
        for group in self._groups:
            (group / "cgroup.procs").write_text("0")
        namespace = os.open(f"/proc/{self._holder}/ns/mnt", os.O_RDONLY)
        syscalls.setns(namespace, syscalls.CLONE_NEWNS)
        os.close(namespace)
        if before is not None:
            before()
        os.setgroups([])
        os.setresgid(self.uid, self.uid, self.uid)
        os.setresuid(self.uid, self.uid, self.uid)
        # As an exec would: the files of this process in /proc are the user's.
        syscalls.set_dumpable(True)

    def _script(self, directory: Path, blocks: int) -> str:
        """Return the shell script that makes the mounts, says so, and waits for the end of its input."""
        etc = self._etc
        etc.mkdir()
        (etc / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\n{NAME}:x:{self.uid}:{self.uid}::{HOME}:/bin/sh\n")
        self.give_ids(blocks)
        lines = []
        for name in ("passwd", "subuid", "subgid"):
            Path("/etc", name).touch()
            lines.append(f"mount --bind {etc}/{name} /etc/{name}")
        for number, hidden in enumerate(_hidden_directories()):
            layers = directory / f"layer{number}"
            for part in ("upper", "work"):
                (layers / part).mkdir(parents=True)
            layers.joinpath("upper").chmod(0o711)
            options = f"lowerdir={hidden},upperdir={layers}/upper,workdir={layers}/work"
            lines.append(f"mount -t overlay -o {options} overlay {hidden}")
        lines.append(f"mount --bind {directory}/homes /home")
        if os.path.exists(_TUN):
            # Some machines leave the node to root alone.
            os.mknod(directory / "tun", stat.S_IFCHR | 0o666, os.stat(_TUN).st_rdev)
            os.chmod(directory / "tun", 0o666)
            lines.append(f"mount --bind {directory}/tun {_TUN}")
        return "\n".join((*lines, "echo $$", "exec cat >/dev/null"))

    def wait_end(self) -> None:
        """Block until the user has no process."""
        wait_for(lambda: not self.processes(), "the end of the user's processes")

    def remove_pods(self) -> None:
        """Remove the user's pods, and wait for the end of everything."""
        done = self.minit("rm", "--all", "--force")
        assert done.returncode == 0, done.stderr
        self.wait_end()

    def remove(self) -> None:
        """End the user's processes, and remove the control groups."""
        while pids := self.processes():
            for pid in pids:
                try:
                    pidfd = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                subprocess.run(["kill", "-KILL", str(pid)], capture_output=True, check=False)
                os.close(pidfd)
        os.close(self._end)
        wait_for(lambda: not Path(f"/proc/{self._holder}").exists(), "the end of the holder")
        for group in self._groups:
            for directory, _, _ in os.walk(group, topdown=False):
                os.rmdir(directory)
        _free.add(self._number)


def _make_group(hierarchy: Hierarchy, uid: int, *, is_owner: bool) -> Path:
    around = Path(f"{hierarchy.mount_point}{hierarchy.own_path}")
    group = around / f"{NAME}-{uid}"
    group.mkdir()
    if "cpuset" in hierarchy.controllers:
        for name in _CPUSET:
            (group / name).write_text((around / name).read_text())
        (group / "cgroup.clone_children").write_text("1")
    for path in (group, *group.iterdir()) if is_owner else ():
        os.chown(path, uid, uid)
    return group


def _hidden_directories() -> list[Path]:
    """Return the outermost directories above the interpreter and the project that others may not search."""
    found = set()
    for place in (Path(sys.base_prefix), Path(sys.prefix), _ROOT):
        above = [path for path in (place, *place.parents) if not path.stat().st_mode & 1]
        found.update(above[-1:])
    return sorted(found)
