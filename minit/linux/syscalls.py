"""
Linux system calls that the `os` module of Python 3.11 lacks.

One small function per call, without policy: arguments as in the manual page, descriptors as ints, failures as
OSError with errno and the path, if any. The calls keep the interpreter lock, since every program here has a single
thread.

A dumped interpreter has the module _syscalls (minit/image/dump/syscalls.c); any other interpreter uses ctypes. An
argument is an int, bytes or a bytearray, whose address is passed, or None for a null pointer.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from minit.linux.ctypescalls import address, call
    from minit.linux.ctypescalls import clone3 as _clone3
    from minit.linux.ctypescalls import forget_way_back as _forget_way_back
    from minit.linux.ctypescalls import take_ends as _take_ends
    from minit.linux.ctypescalls import wait_for_kill as _wait_for_kill
else:
    try:
        from _syscalls import address, call
        from _syscalls import clone3 as _clone3
        from _syscalls import forget_way_back as _forget_way_back
        from _syscalls import take_ends as _take_ends
        from _syscalls import wait_for_kill as _wait_for_kill
    except ModuleNotFoundError:
        from minit.linux.ctypescalls import address, call
        from minit.linux.ctypescalls import clone3 as _clone3
        from minit.linux.ctypescalls import forget_way_back as _forget_way_back
        from minit.linux.ctypescalls import take_ends as _take_ends
        from minit.linux.ctypescalls import wait_for_kill as _wait_for_kill

# Call numbers since 5.x are the same on every architecture; the older ones differ.
_IS_X86_64 = os.uname().machine == "x86_64"
_SYS_ADJTIMEX = 159 if _IS_X86_64 else 171
_SYS_BPF = 321 if _IS_X86_64 else 280
_SYS_CAPGET = 125 if _IS_X86_64 else 90
_SYS_CAPSET = 126 if _IS_X86_64 else 91
_SYS_FINIT_MODULE = 313 if _IS_X86_64 else 273
_SYS_GETDENTS64 = 217 if _IS_X86_64 else 61
_SYS_INOTIFY_ADD_WATCH = 254 if _IS_X86_64 else 27
_SYS_INOTIFY_INIT1 = 294 if _IS_X86_64 else 26
_SYS_INOTIFY_RM_WATCH = 255 if _IS_X86_64 else 28
_SYS_IOCTL = 16 if _IS_X86_64 else 29
_SYS_IOPRIO_GET = 252 if _IS_X86_64 else 31
_SYS_IOPRIO_SET = 251 if _IS_X86_64 else 30
_SYS_KEYCTL = 250 if _IS_X86_64 else 219
_SYS_MOUNT = 165 if _IS_X86_64 else 40
_SYS_PERSONALITY = 135 if _IS_X86_64 else 92
_SYS_PIVOT_ROOT = 155 if _IS_X86_64 else 41
_SYS_PRCTL = 157 if _IS_X86_64 else 167
_SYS_PROCESS_VM_WRITEV = 311 if _IS_X86_64 else 271
_SYS_REBOOT = 169 if _IS_X86_64 else 142
_SYS_RT_SIGACTION = 13 if _IS_X86_64 else 134
_SYS_SECCOMP = 317 if _IS_X86_64 else 277
_SYS_SETHOSTNAME = 170 if _IS_X86_64 else 161
_SYS_SETNS = 308 if _IS_X86_64 else 268
_SYS_SIGNALFD4 = 289 if _IS_X86_64 else 74
_SYS_STATFS = 137 if _IS_X86_64 else 43
_SYS_SWAPON = 167 if _IS_X86_64 else 224
_SYS_SYNCFS = 306 if _IS_X86_64 else 267
_SYS_TEE = 276 if _IS_X86_64 else 77
_SYS_UMOUNT2 = 166 if _IS_X86_64 else 39
_SYS_UNSHARE = 272 if _IS_X86_64 else 97
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_CLOSE_RANGE = 436
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWCGROUP = 0x02000000
_CLONE_PIDFD = 0x00001000
_CLONE_INTO_CGROUP = 0x200000000

CLOSE_RANGE_CLOEXEC = 4

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20

MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x04
_MOVE_MOUNT_T_EMPTY_PATH = 0x40

MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MOUNT_ATTR_IDMAP = 0x100000

IN_MODIFY = 0x002
IN_CLOSE_NOWRITE = 0x010
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_MOVE_SELF = 0x800

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
_RESOLVE_ATTEMPTS = 128
_DIRENTS_BYTES = 4096
# Linux/magic.h: proc, sysfs, cgroup, cgroup2, devpts, mqueue, debugfs, tracefs, securityfs, bpf, pstore, configfs,
# efivarfs, binfmt_misc, selinuxfs, fusectl, nsfs.
_KERNEL_FILESYSTEMS = frozenset(
    (
        *(0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x1CD1, 0x19800202, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11),
        *(0x6165676C, 0x62656570, 0xDE5E81E4, 0x42494E4D, 0xF97CFF8C, 0x65735543, 0x6E736673),
    )
)
_STATFS_BYTES = 120  # of struct statfs, which begins with the type

_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_READ = 23
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_TIMERSLACK = 29
_PR_GET_TIMERSLACK = 30
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_THP_DISABLE = 41
_PR_GET_THP_DISABLE = 42
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_IOPRIO_WHO_PROCESS = 1
_PERSONALITY_QUERY = 0xFFFFFFFF

_SFD_CLOEXEC = os.O_CLOEXEC
_SFD_NONBLOCK = os.O_NONBLOCK
SIGNALFD_INFO_SIZE = 128

_KERNEL_SIGACTION_BYTES = 32
_KERNEL_SIGSET_BYTES = 8

_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITY_BITS = 64

_KEYCTL_JOIN_SESSION_KEYRING = 1

REBOOT_RESTART = 0x01234567
REBOOT_HALT = 0xCDEF0123
REBOOT_POWER_OFF = 0x4321FEDC
REBOOT_SIGNAL_ON_CTRL_ALT_DEL = 0
_REBOOT_MAGIC = 0xFEE1DEAD
_REBOOT_MAGIC_2 = 0x28121969

_SECCOMP_SET_MODE_FILTER = 1
_SOCK_FILTER_BYTES = 8

BPF_PROG_TYPE_CGROUP_DEVICE = 15
BPF_CGROUP_DEVICE = 6
_BPF_PROG_LOAD = 5
_BPF_PROG_ATTACH = 8
_BPF_INSTRUCTION_BYTES = 8

_ADJ_OFFSET, _ADJ_MAXERROR, _ADJ_ESTERROR, _ADJ_STATUS, _ADJ_TIMECONST = 0x1, 0x4, 0x8, 0x10, 0x20
_ADJ_SETOFFSET, _ADJ_NANO = 0x100, 0x2000
_STA_PLL = 1
_TIMECONST_BITS = 5  # the time constant is the logarithm of the poll, less four
_TIMEX_BYTES = 208
_NANOSECONDS = 10**9

# struct clone_args, open_how, mount_attr, sock_fprog, __user_cap_header and _data, and two of union bpf_attr.
_CLONE_ARGS = Struct("=11Q")
_DIRENT = Struct("=QqHB")  # struct linux_dirent64, but for the name, which ends in a zero
_INOTIFY_EVENT = Struct("=iIII")  # struct inotify_event, but for the name, which is filled up with zeros
_INOTIFY_BYTES = 1 << 16
_OPEN_HOW = Struct("=3Q")
_MOUNT_ATTR = Struct("=4Q")
_SOCK_FPROG = Struct("@HP")
_CAP_HEADER = Struct("=Ii")
_CAP_DATA = Struct("=6I")
_TIMEX = Struct("@I4qi5q")  # struct timex as far as it is set: up to its time
_BPF_LOAD = Struct("=IIQQIIQII16s")
_BPF_ATTACH = Struct("=4I")
# struct blkpg_partition and blkpg_ioctl_arg.
_BLKPG_PARTITION = Struct("@qqi64s64s4x")
_BLKPG_ARGUMENT = Struct("@iiiP")
_BLKPG, _BLKPG_RESIZE_PARTITION = 0x1269, 3


def _bytes(path: str) -> bytes:
    return os.fsencode(path)


# Mounts: mount(2), umount2(2), pivot_root(2) and the descriptor based calls of Linux 5.2 and 5.12.


def mount(source: str | None, target: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    """Attach a filesystem, bind a tree or change propagation, mount(2)."""
    texts = [None if text is None else _bytes(text) for text in (source, target, fstype, data)]
    call(target, _SYS_MOUNT, *texts[:3], flags, texts[3])


def umount2(target: str, flags: int = 0) -> None:
    """Detach the filesystem at `target`, umount2(2)."""
    call(target, _SYS_UMOUNT2, _bytes(target), flags)


def filesystem_type(path: str) -> int:
    """Return the number of the type of the filesystem at `path`, as in linux/magic.h, statfs(2)."""
    status = bytearray(_STATFS_BYTES)
    call(path, _SYS_STATFS, _bytes(path), status)
    return int.from_bytes(status[:8], sys.byteorder)


def is_kernel_filesystem(fd: int) -> bool:
    """Tell whether an open file is of a filesystem whose files are the kernel's own: proc(5), sysfs(5) and the like."""
    return filesystem_type(f"/proc/self/fd/{fd}") in _KERNEL_FILESYSTEMS


def first_entries(directory_fd: int) -> dict[bytes, int]:
    """Return some entries of a directory and their types, as in dirent.h, 0 for unknown ones, getdents64(2)."""
    buffer = bytearray(_DIRENTS_BYTES)
    size = call(None, _SYS_GETDENTS64, directory_fd, buffer, len(buffer))
    entries = {}
    at = 0
    while at < size:
        _, _, length, kind = _DIRENT.unpack_from(buffer, at)
        entries[bytes(buffer[at + _DIRENT.size : buffer.index(0, at + _DIRENT.size)])] = kind
        at += length
    return entries


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root mount of this mount namespace, pivot_root(2)."""
    call(new_root, _SYS_PIVOT_ROOT, _bytes(new_root), _bytes(put_old))


def open_tree(dirfd: int, path: str, flags: int = 0) -> int:
    """Return a descriptor of the mount at `path`, of a detached copy with OPEN_TREE_CLONE, open_tree(2)."""
    if not path:
        flags |= AT_EMPTY_PATH
    return call(path, _SYS_OPEN_TREE, dirfd, _bytes(path), flags | _OPEN_TREE_CLOEXEC)


def move_mount(from_fd: int, to_fd: int, from_path: str = "", to_path: str = "") -> None:
    """Attach a detached or move an attached mount; an empty path means the descriptor itself, move_mount(2)."""
    flags = 0 if from_path else _MOVE_MOUNT_F_EMPTY_PATH
    flags |= 0 if to_path else _MOVE_MOUNT_T_EMPTY_PATH
    paths = _bytes(from_path), _bytes(to_path)
    call(to_path, _SYS_MOVE_MOUNT, from_fd, paths[0], to_fd, paths[1], flags)


def mount_setattr(
    dirfd: int,
    path: str = "",
    flags: int = 0,
    *,
    set: int = 0,
    clear: int = 0,
    propagation: int = 0,
    user_namespace: int = 0,
) -> None:
    """
    Change attributes of a mount, of all below it with AT_RECURSIVE, mount_setattr(2).

    `user_namespace` is the descriptor that MOUNT_ATTR_IDMAP needs.
    """
    attributes = _MOUNT_ATTR.pack(set, clear, propagation, user_namespace)
    if not path:
        flags |= AT_EMPTY_PATH
    call(path, _SYS_MOUNT_SETATTR, dirfd, _bytes(path), flags, attributes, len(attributes))


def fsopen(fstype: str) -> int:
    """Return a context in which a filesystem is configured, fsopen(2)."""
    return call(fstype, _SYS_FSOPEN, _bytes(fstype), _FSOPEN_CLOEXEC)


def fsconfig_set_flag(context: int, key: str) -> None:
    """Set a parameter without a value, fsconfig(2)."""
    call(key, _SYS_FSCONFIG, context, _FSCONFIG_SET_FLAG, _bytes(key), None, 0)


def fsconfig_set_string(context: int, key: str, value: str) -> None:
    """Set a parameter to a string, fsconfig(2)."""
    command = _FSCONFIG_SET_STRING
    call(key, _SYS_FSCONFIG, context, command, _bytes(key), _bytes(value), 0)


def fsconfig_create(context: int) -> None:
    """Create the configured superblock, fsconfig(2)."""
    call(None, _SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)


def fsmount(context: int, attributes: int = 0) -> int:
    """Return a detached mount of the created superblock, fsmount(2)."""
    return call(None, _SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes)


# Files and descriptors.


def openat2(dirfd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """
    Open `path` below `dirfd`, close-on-exec, with restrictions on how it is resolved, openat2(2).

    A ".." on the way fails with EAGAIN when anything on the machine is renamed meanwhile; that is tried again.
    """
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    arguments = dirfd, _bytes(path), how, len(how)
    for _ in range(_RESOLVE_ATTEMPTS):
        try:
            return call(path, _SYS_OPENAT2, *arguments)
        except BlockingIOError:
            pass
    return call(path, _SYS_OPENAT2, *arguments)


def close_range(first: int, last: int | None = None, flags: int = 0) -> None:
    """Close the descriptors from `first` to `last` (None: all above), close_range(2)."""
    end = 0xFFFFFFFF if last is None else last
    call(None, _SYS_CLOSE_RANGE, first, end, flags)


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor that is not in `kept`."""
    first = 0
    for fd in sorted(set(kept)):
        if fd > first:
            close_range(first, fd - 1)
        first = fd + 1
    close_range(first)


def tee(source: int, target: int, size_bytes: int) -> int:
    """Copy up to `size_bytes` between pipes without consuming them and without blocking, tee(2)."""
    SPLICE_F_NONBLOCK = 2
    return call(None, _SYS_TEE, source, target, size_bytes, SPLICE_F_NONBLOCK)


def syncfs(fd: int) -> None:
    """Write the filesystem of `fd` to its device, syncfs(2)."""
    call(None, _SYS_SYNCFS, fd)


# Processes and namespaces.


def clone3(flags: int = 0, cgroup: int | None = None) -> tuple[int, int]:
    """
    Fork into new namespaces and return (pid, pidfd), or (0, -1) in the child, clone3(2).

    `cgroup` is a descriptor of a cgroup v2 directory that the child starts in. The interpreter's fork hooks run on
    both sides, as for os.fork().
    """
    pidfd = bytearray(4)
    # With CLONE_PARENT the child has the exit signal of the caller.
    exit_signal = 0 if flags & CLONE_PARENT else 17  # SIGCHLD
    if cgroup is not None:
        flags |= _CLONE_INTO_CGROUP
    words = (flags | _CLONE_PIDFD, address(pidfd), 0, 0, exit_signal, 0, 0, 0, 0, 0, cgroup or 0)
    pid = _clone3(bytearray(_CLONE_ARGS.pack(*words)))
    return pid, int.from_bytes(pidfd, "little") if pid else -1


def take_ends(ends: bytearray) -> None:
    """
    Reap dead children without blocking, wait4(2), until nobody is dead or `ends` is full.

    `ends` is in the form of `i` and, for each, `ii` of struct: a count, and pids and statuses, which are added behind
    those that are there. No memory is needed between the answer of the kernel and `ends`.
    """
    _take_ends(ends)


def forget_way_back() -> None:
    """
    Have no signal lead back to the program that this process executed before.

    minit/image/dump/crash.c has the signals; an interpreter that is not dumped has none.
    """
    _forget_way_back()


def wait_for_kill() -> NoReturn:
    """
    Wait for a signal that ends the process.

    A dumped interpreter first gives back its memory, which counts as the process's own once the parent has written to
    the same pages. No handler of a signal can be called, and no signal may be unblocked that has one.
    """
    _wait_for_kill()


def unshare(flags: int) -> None:
    """Move this process into new namespaces, unshare(2)."""
    call(None, _SYS_UNSHARE, flags)


def setns(fd: int, flags: int) -> None:
    """Join the namespace `fd`, or those of the pidfd `fd` that `flags` name, setns(2)."""
    call(None, _SYS_SETNS, fd, flags)


def sethostname(name: str) -> None:
    """Set the host name of this UTS namespace, sethostname(2)."""
    text = _bytes(name)
    call(None, _SYS_SETHOSTNAME, text, len(text))


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Signal the process of a pidfd, pidfd_send_signal(2)."""
    call(None, _SYS_PIDFD_SEND_SIGNAL, pidfd, number, None, 0)


def send_signals(pidfd: int, *numbers: int) -> None:
    """Signal the process of a pidfd, in this order; nothing for a process that has ended."""
    try:
        for number in numbers:
            pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass


def reset_signal(number: int) -> None:
    """Give a signal its default disposition, also one that the C library keeps for itself, rt_sigaction(2)."""
    call(None, _SYS_RT_SIGACTION, number, bytes(_KERNEL_SIGACTION_BYTES), None, _KERNEL_SIGSET_BYTES)


def signalfd(numbers: Iterable[int]) -> int:
    """Return a non-blocking descriptor from which the (blocked) signals are read, signalfd(2)."""
    mask = sum(1 << (number - 1) for number in set(numbers)).to_bytes(_KERNEL_SIGSET_BYTES, "little")
    return call(None, _SYS_SIGNALFD4, -1, mask, _KERNEL_SIGSET_BYTES, _SFD_CLOEXEC | _SFD_NONBLOCK)


SI_USER = 0
SI_KERNEL = 0x80


def read_signals(fd: int) -> list[int]:
    """Return the numbers of the signals waiting in a signalfd; empty if there is none."""
    return [number for number, _, _ in read_sent_signals(fd)]


def read_sent_signals(fd: int) -> list[tuple[int, int, int]]:
    """Return the number of each signal waiting in a signalfd, its si_code (SI_KERNEL, …) and the pid of its sender."""
    try:
        data = os.read(fd, 32 * SIGNALFD_INFO_SIZE)
    except BlockingIOError:
        return []
    # struct signalfd_siginfo: ssi_signo, ssi_errno, ssi_code, ssi_pid, …
    found = (struct.unpack_from("<IiiI", data, at) for at in range(0, len(data), SIGNALFD_INFO_SIZE))
    return [(number, code, pid) for number, _, code, pid in found]


# Changes of files, inotify(7).


def inotify_init() -> int:
    """Return a non-blocking descriptor from which changes are read that `inotify_add_watch` asks for."""
    return call(None, _SYS_INOTIFY_INIT1, os.O_CLOEXEC | os.O_NONBLOCK)


def inotify_add_watch(fd: int, path: str, events: int) -> int:
    """Ask for the `events` (IN_…) at `path`, and return the number of the watch."""
    return call(path, _SYS_INOTIFY_ADD_WATCH, fd, _bytes(path), events)


def inotify_rm_watch(fd: int, watch: int) -> None:
    """Ask for the changes of a watch no longer."""
    call(None, _SYS_INOTIFY_RM_WATCH, fd, watch)


def inotify_watch(path: str, events: int) -> int:
    """Return a non-blocking descriptor that is readable when one of the `events` (IN_…) happened at `path`."""
    fd = inotify_init()
    try:
        inotify_add_watch(fd, path, events)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_inotify(fd: int) -> list[tuple[int, bytes]]:
    """Return the watches of the changes that wait, with the name in a directory; empty if there is none."""
    try:
        data = os.read(fd, _INOTIFY_BYTES)
    except BlockingIOError:
        return []
    changes, at = [], 0
    while at < len(data):
        watch, _, _, size = _INOTIFY_EVENT.unpack_from(data, at)
        at += _INOTIFY_EVENT.size
        changes.append((watch, data[at : at + size].rstrip(b"\0")))
        at += size
    return changes


# Privileges: prctl(2), seccomp(2), capset(2) and keyctl(2).


def _prctl(option: int, argument: int | bytes = 0, third: int = 0) -> int:
    return call(None, _SYS_PRCTL, option, argument, third, 0, 0)


def set_process_name(name: str) -> None:
    """Name this process for ps(1), at most 15 bytes."""
    _prctl(_PR_SET_NAME, _bytes(name)[:15])


def write_memory(place: int, data: bytes) -> None:
    """Write to the memory of this process, at the address `place`."""
    source = bytearray(data)
    local, remote = (struct.pack("QQ", at, len(data)) for at in (address(source), place))
    call(None, _SYS_PROCESS_VM_WRITEV, os.getpid(), local, 1, remote, 1, 0)


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send `number` when the parent dies; cleared by a change of credentials."""
    _prctl(_PR_SET_PDEATHSIG, number)


def parent_death_signal() -> int:
    """Return the signal of set_parent_death_signal, 0 for none."""
    number = bytearray(4)
    _prctl(_PR_GET_PDEATHSIG, address(number))
    return int.from_bytes(number, "little")


def set_child_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """Allow or deny core dumps and ptrace by processes without CAP_SYS_PTRACE."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def io_priority(pid: int = 0) -> int:
    """Return class and level by which a process does I/O, this one by default, ioprio_get(2)."""
    return call(None, _SYS_IOPRIO_GET, _IOPRIO_WHO_PROCESS, pid)


def set_io_priority(priority: int) -> None:
    """Set class and level by which this process does I/O, ioprio_set(2)."""
    call(None, _SYS_IOPRIO_SET, _IOPRIO_WHO_PROCESS, 0, priority)


def personality() -> int:
    """Return the execution domain and flags of this process, personality(2)."""
    return call(None, _SYS_PERSONALITY, _PERSONALITY_QUERY)


def set_personality(persona: int) -> None:
    """Set the execution domain and flags of this process, personality(2)."""
    call(None, _SYS_PERSONALITY, persona)


def timer_slack_ns() -> int:
    """Return by how much timers of this process may be late, PR_GET_TIMERSLACK(2const)."""
    return _prctl(_PR_GET_TIMERSLACK)


def set_timer_slack_ns(slack_ns: int) -> None:
    """Set by how much timers of this process may be late, PR_SET_TIMERSLACK(2const)."""
    _prctl(_PR_SET_TIMERSLACK, slack_ns)


def thp_disable() -> int:
    """Return whether transparent huge pages are off for this process, and its flags, PR_GET_THP_DISABLE(2const)."""
    return _prctl(_PR_GET_THP_DISABLE)


def set_thp_disable(disable: int) -> None:
    """Set what `thp_disable` returns, PR_SET_THP_DISABLE(2const)."""
    _prctl(_PR_SET_THP_DISABLE, disable & 1, disable & ~1)


def set_no_new_privileges() -> None:
    """Make execve(2) unable to grant privileges from here on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_seccomp_filter(program: bytes) -> None:
    """
    Have this thread's system calls filtered by an array of struct sock_filter, seccomp(2).

    EACCES without no_new_privs and CAP_SYS_ADMIN.
    """
    code = bytearray(program)
    filter = _SOCK_FPROG.pack(len(code) // _SOCK_FILTER_BYTES, address(code))
    call(None, _SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, 0, filter)


# The answer is the same for every process.
_last_capability: int | None = None


def last_capability() -> int:
    """Return the highest capability this kernel knows."""
    global _last_capability
    if _last_capability is None:
        known, unknown = 0, _CAPABILITY_BITS
        while unknown - known > 1:
            number = (known + unknown) // 2
            try:
                _prctl(_PR_CAPBSET_READ, number)
                known = number
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                unknown = number
        _last_capability = known
    return _last_capability


def every_capability() -> int:
    """Return all that this kernel knows as a bit mask."""
    return (1 << (last_capability() + 1)) - 1


def bounding_set() -> int:
    """Return the bounding set as a bit mask."""
    return sum(1 << number for number in range(last_capability() + 1) if _prctl(_PR_CAPBSET_READ, number))


def drop_bounding_capability(number: int) -> None:
    """Remove a capability from the bounding set for good."""
    _prctl(_PR_CAPBSET_DROP, number)


def keep_capabilities() -> None:
    """Keep the permitted set when this thread leaves uid 0, until it executes something, PR_SET_KEEPCAPS."""
    _prctl(_PR_SET_KEEPCAPS, 1)


def clear_ambient_capabilities() -> None:
    """Empty the ambient set."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def get_capabilities() -> tuple[int, int, int]:
    """Return the effective, permitted and inheritable sets as bit masks, capget(2)."""
    data = bytearray(_CAP_DATA.size)
    call(None, _SYS_CAPGET, _CAP_HEADER.pack(_CAPABILITY_VERSION_3, 0), data)
    words = _CAP_DATA.unpack(data)
    effective, permitted, inheritable = (low | high << 32 for low, high in zip(words[:3], words[3:], strict=True))
    return effective, permitted, inheritable


def set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    """Set the three sets of this thread from bit masks, capset(2)."""
    masks = effective, permitted, inheritable
    data = _CAP_DATA.pack(*(mask & 0xFFFFFFFF for mask in masks), *(mask >> 32 for mask in masks))
    call(None, _SYS_CAPSET, _CAP_HEADER.pack(_CAPABILITY_VERSION_3, 0), data)


# BPF programs on control groups: bpf(2).


def bpf_prog_load(prog_type: int, instructions: bytes, name: str) -> int:
    """Return a close-on-exec descriptor of a program that the kernel has checked, bpf(2); `name` is for bpftool(8)."""
    code = bytearray(instructions)
    # It decides which functions of the kernel the program may call.
    license = bytearray(b"GPL\0")
    count = len(code) // _BPF_INSTRUCTION_BYTES
    words = (prog_type, count, address(code), address(license), 0, 0, 0, 0, 0, _bytes(name)[:15])
    attributes = _BPF_LOAD.pack(*words)
    return call(None, _SYS_BPF, _BPF_PROG_LOAD, attributes, len(attributes))


def bpf_prog_attach(group: int, program: int, attach_type: int) -> None:
    """Attach a program to the cgroup v2 directory `group` instead of the one that is there, bpf(2)."""
    attributes = _BPF_ATTACH.pack(group, program, attach_type, 0)
    call(None, _SYS_BPF, _BPF_PROG_ATTACH, attributes, len(attributes))


def join_session_keyring() -> None:
    """Make a new anonymous keyring this process's session keyring, keyctl_join_session_keyring(3)."""
    call(None, _SYS_KEYCTL, _KEYCTL_JOIN_SESSION_KEYRING, None)


# The machine as a whole.


def slew_clock(offset_seconds: float, poll_seconds: float) -> None:
    """Have the kernel take up an offset that is measured every `poll_seconds`, by a changed pace, adjtimex(2)."""
    constant = max(0, round(poll_seconds).bit_length() - _TIMECONST_BITS)
    _adjust_clock(_ADJ_OFFSET | _ADJ_TIMECONST, round(offset_seconds * _NANOSECONDS), constant, 0)


def step_clock(offset_seconds: float) -> None:
    """Move the clock of this machine at once, adjtimex(2)."""
    _adjust_clock(_ADJ_SETOFFSET, 0, 0, round(offset_seconds * _NANOSECONDS))


def _adjust_clock(modes: int, offset: int, constant: int, step: int) -> None:
    """Change the clock by nanoseconds; the kernel takes it for synchronized, and keeps it in a chip if it can."""
    modes |= _ADJ_STATUS | _ADJ_MAXERROR | _ADJ_ESTERROR | _ADJ_NANO
    timex = _TIMEX.pack(modes, offset, 0, 0, 0, _STA_PLL, constant, 0, 0, *divmod(step, _NANOSECONDS))
    call(None, _SYS_ADJTIMEX, bytearray(timex.ljust(_TIMEX_BYTES, b"\0")))


def reboot(command: int) -> None:
    """End this machine, or the PID namespace of this process, or decide what Ctrl-Alt-Del does, reboot(2)."""
    call(None, _SYS_REBOOT, _REBOOT_MAGIC, _REBOOT_MAGIC_2, command, None)


def swapon(path: str) -> None:
    """Have the kernel write memory to the device at `path`, swapon(2)."""
    call(path, _SYS_SWAPON, _bytes(path), 0)


def finit_module(fd: int, options: str) -> None:
    """Load the kernel module in the file `fd`, finit_module(2)."""
    call(None, _SYS_FINIT_MODULE, fd, _bytes(options), 0)


def resize_partition(disk: int, number: int, start_bytes: int, size_bytes: int) -> None:
    """Tell the kernel the new size of a partition, from 1, of the open disk: BLKPG of linux/blkpg.h."""
    partition = bytearray(_BLKPG_PARTITION.pack(start_bytes, size_bytes, number, b"", b""))
    argument = _BLKPG_ARGUMENT.pack(_BLKPG_RESIZE_PARTITION, 0, len(partition), address(partition))
    call(None, _SYS_IOCTL, disk, _BLKPG, argument)
