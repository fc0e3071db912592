"""
Pods of users without root: the command enters a namespace of the user's, and goes on as root there.

There is one user namespace with one mount namespace for each user and data directory, made by the first command in
need and joined by all others. A keeper, flock(1), holds both as long as a command or a launcher has a lock on the
record, the file with the keeper's number. Without the record, the launcher of any running pod leads to the namespace.

The record is in $XDG_RUNTIME_DIR, which a logout removes. Files of running pods are in a file system in memory, which
is mounted in the data directory, and lasts as long as the namespace.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, MinitError, describe
from minit.base.idrange import IdRange
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import NAMESPACE_KEEPER, STARTER, clone, fork
from minit.linux.idmapping import read_held_ids
from minit.linux.pidnamespaces import read_stat
from minit.podfiles import paths
from minit.podfiles.usersdirectory import (
    NAMESPACE_RECORD,
    RUNTIME,
    RUNTIME_VARIABLE,
    is_own_directory,
    name_of_user,
    require_own,
    require_safe_way,
)
from minit.stage0.files.locks import flock, key_lock
from minit.stage0.pods.poddirectory import RUN, Note, PodState, walk_pods
from minit.stage0.pods.privateusers import SUBORDINATE_IDS, subordinate_ids

_LOCK = "lock"
_DATA = "data"
_SAID = "said"
# Of proc_pid_stat(5), counted behind the name.
_STATE, _PARENT, _START_TIME = 0, 4 - 3, 22 - 3
_ZOMBIE = b"Z"
_NFS = 0x6969  # linux/magic.h
_DIGEST_BYTES = 8
_RECORD_BYTES = 64
_REPORT_BYTES = 4096
_NAMESPACES = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS
_RUNTIME_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
# Settings by which the kernel refuses user namespaces, the refusing value, and the remedy.
_SETTINGS = (
    ("user/max_user_namespaces", "0", "let root set a number"),
    ("kernel/unprivileged_userns_clone", "0", "let root set 1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "let root load minit's AppArmor profile (docs/rootless.md)"),
)


class Keeper(Value):
    """The process that holds the namespace: the number, and the start in ticks since the boot, proc_pid_stat(5)."""

    pid: int
    start_ticks: int


class NewIds(Value):
    """The ids of a new namespace beside the user's own as root: subordinate users and groups, or why there are none."""

    users: tuple[IdRange, ...]
    groups: tuple[IdRange, ...]
    lack: str | None


def become_root(data: Path, note: Note) -> None:
    """
    Have this process of a user without root go on as root of the user's namespace for a data directory of the user's.

    Nothing if the process is inside already. MinitError names the obstacle.
    """
    if os.geteuid() == 0:
        _require_same(data)
        return
    _make_data(data)
    directory = _make_record_directory(data)
    working_directory = "/"
    with suppress(OSError):  # which may have been removed
        working_directory = os.getcwd()
    with key_lock(directory, _LOCK, exclusive=True):
        record = _enter(directory, data, note)
        _lead_to(data / RUNTIME / NAMESPACE_RECORD, directory / NAMESPACE_RECORD)
        _lead_to(data / RUNTIME / _DATA, data)
    # The launcher takes a lock of its own before this descriptor ends.
    os.set_inheritable(record, True)
    os.environ[RUNTIME_VARIABLE] = str(data / RUNTIME)
    with suppress(OSError):
        os.chdir(working_directory)


def _enter(directory: Path, data: Path, note: Note) -> int:
    """Enter the namespace, made if there is none, and return the descriptor that makes the keeper stay."""
    record = directory / NAMESPACE_RECORD
    outside = os.stat("/proc/self/ns/user")
    found = _open_record(record, outside)
    if found is not None:
        fd, keeper = found
        _join(keeper)
        return fd
    launcher = _find_launcher(data, note, outside)
    if launcher is not None:
        _join(launcher)
    new_ids = None if launcher is not None else _find_ids()
    until, end = os.pipe()
    try:
        _start_keeper(data / RUNTIME, record, until, new_ids)
        found = _open_record(record, outside)
    finally:
        os.close(until)
        if found is None:
            os.close(end)
    if found is None:
        raise MinitError(f"the keeper of the user's namespace has ended: {record} is not written")
    fd, keeper = found
    # From here on the keeper waits for the lock alone.
    os.close(end)
    if new_ids is not None:
        _join(keeper)
        if new_ids.lack is not None:
            _say_once(directory, f"warning: your own id is the only one of your pods, as root: {new_ids.lack}", note)
    return fd


def _lead_to(link: Path, target: Path) -> None:
    """Have a link lead to what is there at present."""
    if not link.is_symlink() or link.readlink() != target:
        new = link.with_name("new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(link)


def _open_record(record: Path, outside: os.stat_result) -> tuple[int, Keeper] | None:
    """Return a descriptor with a lock on the record, and the keeper; None if there is no keeper, or an ending one."""
    try:
        # Without O_NONBLOCK a FIFO would hold up everything.
        fd = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    with suppress(BlockingIOError, ValueError):
        flock(fd, exclusive=False, blocking=False)
        text = os.read(fd, _RECORD_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        pid, start_ticks = map(int, text.split())
        keeper = Keeper(pid=pid, start_ticks=start_ticks)
        if _start_ticks(pid) == start_ticks and _is_inside(pid, outside):
            return fd, keeper
    os.close(fd)
    return None


def _start_ticks(pid: int) -> int | None:
    """Return when a process was started; None if there is no such process, or a zombie, which has no namespaces."""
    with suppress(OSError):
        fields = read_stat(pid)
        return None if fields[_STATE] == _ZOMBIE else int(fields[_START_TIME])
    return None


def _find_launcher(data: Path, note: Note, outside: os.stat_result) -> Keeper | None:
    """Return the launcher of a running pod, which is in the namespace."""
    for pod in walk_pods(data, (RUN,), note):
        with suppress(OSError, ValueError):
            if pod.state is PodState.RUNNING:
                launcher = int(read_stat(int(pod.read_file(paths.POD_PID)))[_PARENT])
                started = _start_ticks(launcher)
                if started is not None and _is_inside(launcher, outside) and _has_open(launcher, pod.fd):
                    return Keeper(pid=launcher, start_ticks=started)
    return None


def _is_inside(pid: int, outside: os.stat_result) -> bool:
    """Tell whether a process of the user is in another user namespace than `outside`; False for other users'."""
    with suppress(OSError):
        return not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), outside)
    return False


def _has_open(pid: int, directory: int) -> bool:
    """Tell whether a process has the directory open, as a launcher has the pod's: numbers of processes come again."""
    wanted = os.fstat(directory)
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), wanted):
                return True
    return False


def _join(process: Keeper) -> None:
    """Enter the user and mount namespace of a process, as root there."""
    try:
        pidfd = os.pidfd_open(process.pid)
        try:
            if _start_ticks(process.pid) != process.start_ticks:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            syscalls.setns(pidfd, _NAMESPACES)
        finally:
            os.close(pidfd)
        os.setresgid(0, 0, 0)
        held = read_held_ids()
        if held is None or held.sets_groups:
            os.setgroups(())
        os.setresuid(0, 0, 0)
    except OSError as error:
        raise MinitError(f"cannot enter the user's namespace: {describe(error)}") from error


def _start_keeper(runtime: Path, record: Path, until: int, new_ids: NewIds | None) -> None:
    """
    Start a keeper, which waits for the end of the pipe `until` at first, and write the record.

    The keeper has a new namespace with `new_ids`, and with a file system at `runtime`; with None this process is inside
    the namespace.
    """
    if shutil.which("flock") is None:
        raise MinitError("flock is not installed, which keeps the user's namespace: apt install util-linux")
    report, theirs = os.pipe()
    starter = fork(
        STARTER,
        lambda: _make(runtime, record, until, new_ids),
        tell=lambda error: _report(theirs, error),
    )
    os.close(theirs)
    with open(report, "rb") as told:
        text = told.read().decode("utf-8", "replace")
    os.waitpid(starter, 0)
    if text:
        raise MinitError(text)


def _make(runtime: Path, record: Path, until: int, new_ids: NewIds | None) -> None:
    """Make the keeper as a process without a parent here, and write the record."""
    answer, theirs = os.pipe()
    is_inside = new_ids is None
    try:
        pid, pidfd = clone(
            NAMESPACE_KEEPER,
            lambda: _keep(runtime, record, until, theirs, is_inside=is_inside),
            {"pipe": until, "report": theirs},
            flags=0 if is_inside else _NAMESPACES,
            tell=lambda error: _report(theirs, error),
        )
    except OSError as error:
        raise MinitError(f"cannot make a user namespace: {describe(error)}{_reason(error)}") from error
    os.close(theirs)
    failure = os.read(answer, _REPORT_BYTES).decode("utf-8", "replace")
    if failure:
        raise MinitError(failure)
    try:
        if new_ids is not None:
            _map_ids(pid, new_ids)
        # The name may be there, of a process that was killed at this point.
        new = record.with_name("new")
        new.unlink(missing_ok=True)
        with open(new, "xb", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600)) as file:
            file.write(b"%d %d\n" % (pid, _start_ticks(pid) or 0))
        new.replace(record)
    except BaseException:
        syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
        raise


def _report(report: int, error: BaseException) -> int:
    os.write(report, describe(error).encode()[:_REPORT_BYTES])
    return EXIT_FAILURE


def _keep(runtime: Path, record: Path, until: int, report: int, *, is_inside: bool) -> NoReturn:
    """Be the keeper: wait until nobody needs the namespace."""
    if not is_inside:
        try:
            # Disks that are mounted on the host later are seen, mounts of pods are seen by nobody outside.
            syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
            syscalls.mount("runtime", str(runtime), "tmpfs", _RUNTIME_FLAGS, "mode=0700")
        except OSError as error:
            raise MinitError(f"cannot mount anything in a user namespace: {describe(error)}{_reason(error)}") from error
    os.close(report)
    os.chdir("/")
    os.read(until, 1)
    os.execvp("flock", ["flock", "--exclusive", str(record), "true"])


def _reason(error: OSError) -> str:
    """Return the likely reason for a failure to make or use a user namespace, with the remedy."""
    for setting, refused, remedy in _SETTINGS:
        with suppress(OSError):
            if Path(f"/proc/sys/{setting}").read_text().strip() == refused:
                return f": {setting.replace('/', '.')} is {refused}: {remedy}"
    return ""


def _say_once(directory: Path, text: str, note: Note) -> None:
    """Tell the user something, unless it was told in the life of the directory for running pods."""
    said = directory / _SAID
    with suppress(FileNotFoundError):
        if said.read_text() == text:
            return
    said.write_text(text)
    note(text)


def _find_ids() -> NewIds:
    """Return the ids for a new namespace."""
    uid = os.getuid()
    name = name_of_user(uid)
    users, groups = (tuple(subordinate_ids(Path(file), {str(uid), name})) for file in SUBORDINATE_IDS)
    lack = None
    if not users or not groups:
        wanted = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        lack = f"you have no subordinate ids: let root run: usermod {wanted} {name or uid}"
    elif shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        lack = "newuidmap is not installed, which maps your subordinate ids: let root run: apt install uidmap"
    return NewIds(users=users, groups=groups, lack=lack)


def _map_ids(pid: int, new_ids: NewIds) -> None:
    """Map the user's id as root's, and the user's subordinate ids, if any, behind it."""
    if new_ids.lack is not None:
        _map_own_id(pid)
        return
    for program, own, more in (
        ("newuidmap", os.getuid(), new_ids.users),
        ("newgidmap", os.getgid(), new_ids.groups),
    ):
        words = ["0", str(own), "1"]
        inner = 1
        for ids in more:
            words += [str(inner), str(ids.shift), str(ids.count)]
            inner += ids.count
        done = subprocess.run([program, str(pid), *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            raise MinitError(f"{program} failed: {os.fsdecode(done.stderr).strip()}")


def _map_own_id(pid: int) -> None:
    """Map the user's id alone as root's, which the kernel lets a user do who gives up setgroups(2)."""
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {os.getuid()} 1"), ("gid_map", f"0 {os.getgid()} 1")):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        raise MinitError(f"cannot map your id in a user namespace: {describe(error)}") from error


def _require_same(data: Path) -> None:
    """Raise MinitError if this namespace is for another data directory."""
    own = os.readlink(Path(os.environ[RUNTIME_VARIABLE]) / _DATA)
    if own != str(data):
        raise MinitError(f"this is the namespace of the data directory {own}: leave it to work with {data}")


def _make_data(data: Path) -> None:
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
        # Somebody else may have made the directory since the caller has looked.
        require_own(data)
        (data / RUNTIME).mkdir(0o700, exist_ok=True)
    except OSError as error:
        raise MinitError(f"cannot make the data directory: {describe(error)}") from error
    if syscalls.filesystem_type(str(data)) == _NFS:
        raise MinitError(f"{data} is on NFS, where nobody else than you can own files: give --dir on another disk")


def _make_record_directory(data: Path) -> Path:
    """Return the directory of the record of a data directory; MinitError if somebody else owns a part of the way."""
    top = os.environ.get("XDG_RUNTIME_DIR", "")
    # su(1) leaves the directory of another user there.
    top = f"{top}/minit" if top.startswith("/") and is_own_directory(top) else f"/tmp/minit-{os.getuid()}"
    digest = hashlib.blake2b(os.fsencode(data), digest_size=_DIGEST_BYTES).hexdigest()
    for path in (top, f"{top}/{digest}"):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if not is_own_directory(path, others=0):
            raise MinitError(
                f"{path} is not a directory of yours with the mode 0700: remove {path}, or set XDG_RUNTIME_DIR"
            )
        require_safe_way(Path(path), "set XDG_RUNTIME_DIR")
    return Path(top, digest)
