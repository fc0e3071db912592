"""
Linux system calls that the `os` module of Python 3.11 lacks; the only importer of ctypes but for libseccomp.

One small function per call, without policy: arguments as in the manual page, descriptors as ints, failures as
OSError with errno and, where there is one, the path. Everything is bound at import, so that nothing is looked up
after a root change. The calls keep the interpreter lock, since every program here has a single thread.
"""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

# Call numbers since 5.x are the same on every architecture; the older ones differ.
_MACHINE = os.uname().machine
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(_MACHINE, 41)
_SYS_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}.get(_MACHINE, 134)
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}.get(_MACHINE, 219)
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(_MACHINE, 277)
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(_MACHINE, 30)
_SYS_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}.get(_MACHINE, 31)
_SYS_REBOOT = {"x86_64": 169, "aarch64": 142}.get(_MACHINE, 142)
_SYS_FINIT_MODULE = {"x86_64": 313, "aarch64": 273}.get(_MACHINE, 273)
_SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(_MACHINE, 280)
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_CLONE3 = 435
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
IN_MOVED_FROM = 0x040
IN_CREATE = 0x100

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
_RESOLVE_ATTEMPTS = 128

_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_READ = 23
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


class _CloneArgs(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack"),
            *("stack_size", "tls", "set_tid", "set_tid_size", "cgroup"),
        )
    ]


class _OpenHow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _BpfLoad(ctypes.Structure):
    _fields_ = [
        ("prog_type", ctypes.c_uint32),
        ("insn_cnt", ctypes.c_uint32),
        ("insns", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_uint64),
        ("kern_version", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_name", ctypes.c_char * 16),
    ]


class _BpfAttach(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("target_fd", "attach_bpf_fd", "attach_type", "attach_flags")]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def _os_error(path: str | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path) if path else OSError(number, os.strerror(number))


def _call(path: str | None, number: int, *arguments: object) -> int:
    result: int = _syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise _os_error(path)
    return result


def _long(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


def _bytes(path: str) -> bytes:
    return os.fsencode(path)


# Mounts: mount(2), umount2(2), pivot_root(2) and the descriptor based calls of Linux 5.2 and 5.12.


def mount(source: str | None, target: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    """Attach a filesystem, bind a tree or change propagation, mount(2)."""
    arguments = [None if text is None else _bytes(text) for text in (source, target, fstype)]
    options = None if data is None else _bytes(data)
    if _libc.mount(*arguments, ctypes.c_ulong(flags), options) < 0:
        raise _os_error(target)


def umount2(target: str, flags: int = 0) -> None:
    """Detach the filesystem at `target`, umount2(2)."""
    if _libc.umount2(_bytes(target), flags) < 0:
        raise _os_error(target)


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root mount of this mount namespace, pivot_root(2)."""
    _call(new_root, _SYS_PIVOT_ROOT, _bytes(new_root), _bytes(put_old))


def open_tree(dirfd: int, path: str, flags: int = 0) -> int:
    """Return a descriptor of the mount at `path`, of a detached copy with OPEN_TREE_CLONE, open_tree(2)."""
    if not path:
        flags |= AT_EMPTY_PATH
    return _call(path, _SYS_OPEN_TREE, _long(dirfd), _bytes(path), _long(flags | _OPEN_TREE_CLOEXEC))


def move_mount(from_fd: int, to_fd: int, from_path: str = "", to_path: str = "") -> None:
    """Attach a detached or move an attached mount; an empty path means the descriptor itself, move_mount(2)."""
    flags = 0 if from_path else _MOVE_MOUNT_F_EMPTY_PATH
    flags |= 0 if to_path else _MOVE_MOUNT_T_EMPTY_PATH
    paths = _bytes(from_path), _bytes(to_path)
    _call(to_path, _SYS_MOVE_MOUNT, _long(from_fd), paths[0], _long(to_fd), paths[1], _long(flags))


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
    attributes = _MountAttr(set, clear, propagation, user_namespace)
    if not path:
        flags |= AT_EMPTY_PATH
    size = _long(ctypes.sizeof(attributes))
    _call(path, _SYS_MOUNT_SETATTR, _long(dirfd), _bytes(path), _long(flags), ctypes.byref(attributes), size)


def fsopen(fstype: str) -> int:
    """Return a context in which a filesystem is configured, fsopen(2)."""
    return _call(fstype, _SYS_FSOPEN, _bytes(fstype), _long(_FSOPEN_CLOEXEC))


def fsconfig_set_flag(context: int, key: str) -> None:
    """Set a parameter without a value, fsconfig(2)."""
    _call(key, _SYS_FSCONFIG, _long(context), _long(_FSCONFIG_SET_FLAG), _bytes(key), None, _long(0))


def fsconfig_set_string(context: int, key: str, value: str) -> None:
    """Set a parameter to a string, fsconfig(2)."""
    command = _long(_FSCONFIG_SET_STRING)
    _call(key, _SYS_FSCONFIG, _long(context), command, _bytes(key), _bytes(value), _long(0))


def fsconfig_create(context: int) -> None:
    """Create the configured superblock, fsconfig(2)."""
    _call(None, _SYS_FSCONFIG, _long(context), _long(_FSCONFIG_CMD_CREATE), None, None, _long(0))


def fsmount(context: int, attributes: int = 0) -> int:
    """Return a detached mount of the created superblock, fsmount(2)."""
    return _call(None, _SYS_FSMOUNT, _long(context), _long(_FSMOUNT_CLOEXEC), _long(attributes))


# Files and descriptors.


def openat2(dirfd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
    """
    Open `path` below `dirfd`, close-on-exec, with restrictions on how it is resolved, openat2(2).

    A ".." on the way fails with EAGAIN when anything on the machine is renamed meanwhile; that is tried again.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    arguments = _long(dirfd), _bytes(path), ctypes.byref(how), _long(ctypes.sizeof(how))
    for _ in range(_RESOLVE_ATTEMPTS):
        try:
            return _call(path, _SYS_OPENAT2, *arguments)
        except BlockingIOError:
            pass
    return _call(path, _SYS_OPENAT2, *arguments)


def close_range(first: int, last: int | None = None, flags: int = 0) -> None:
    """Close the descriptors from `first` to `last` (None: all above), close_range(2)."""
    end = 0xFFFFFFFF if last is None else last
    _call(None, _SYS_CLOSE_RANGE, ctypes.c_ulong(first), ctypes.c_ulong(end), ctypes.c_ulong(flags))


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
    result: int = _libc.tee(source, target, ctypes.c_size_t(size_bytes), SPLICE_F_NONBLOCK)
    if result < 0:
        raise _os_error()
    return result


def syncfs(fd: int) -> None:
    """Write the filesystem of `fd` to its device, syncfs(2)."""
    if _libc.syncfs(fd) < 0:
        raise _os_error()


# Processes and namespaces.


def clone3(flags: int = 0, cgroup: int | None = None) -> tuple[int, int]:
    """
    Fork into new namespaces and return (pid, pidfd), or (0, -1) in the child, clone3(2).

    `cgroup` is a descriptor of a cgroup v2 directory that the child starts in. The interpreter's fork hooks run on
    both sides, as for os.fork().
    """
    pidfd = ctypes.c_int(-1)
    arguments = _CloneArgs(flags | _CLONE_PIDFD)
    arguments.pidfd = ctypes.addressof(pidfd)
    # With CLONE_PARENT it is that of the caller.
    arguments.exit_signal = 0 if flags & CLONE_PARENT else 17  # SIGCHLD
    if cgroup is not None:
        arguments.flags |= _CLONE_INTO_CGROUP
        arguments.cgroup = cgroup
    size = _long(ctypes.sizeof(arguments))
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _syscall(_long(_SYS_CLONE3), ctypes.byref(arguments), size)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0, -1
    error = _os_error() if pid < 0 else None
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if error is not None:
        raise error
    return pid, pidfd.value


def unshare(flags: int) -> None:
    """Move this process into new namespaces, unshare(2)."""
    if _libc.unshare(flags) < 0:
        raise _os_error()


def setns(fd: int, flags: int) -> None:
    """Join the namespace `fd`, or those of the pidfd `fd` that `flags` name, setns(2)."""
    if _libc.setns(fd, flags) < 0:
        raise _os_error()


def sethostname(name: str) -> None:
    """Set the host name of this UTS namespace, sethostname(2)."""
    text = _bytes(name)
    if _libc.sethostname(text, ctypes.c_size_t(len(text))) < 0:
        raise _os_error()


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Signal the process of a pidfd, pidfd_send_signal(2)."""
    _call(None, _SYS_PIDFD_SEND_SIGNAL, _long(pidfd), _long(number), None, _long(0))


def reset_signal(number: int) -> None:
    """Give a signal its default disposition, also one that the C library keeps for itself, rt_sigaction(2)."""
    default = ctypes.create_string_buffer(_KERNEL_SIGACTION_BYTES)
    _call(None, _SYS_RT_SIGACTION, _long(number), default, None, _long(_KERNEL_SIGSET_BYTES))


def signalfd(numbers: Iterable[int]) -> int:
    """Return a non-blocking descriptor from which the (blocked) signals are read, signalfd(2)."""
    mask = (ctypes.c_uint64 * 16)()
    for number in numbers:
        mask[(number - 1) // 64] |= 1 << ((number - 1) % 64)
    fd: int = _libc.signalfd(-1, ctypes.byref(mask), _SFD_CLOEXEC | _SFD_NONBLOCK)
    if fd < 0:
        raise _os_error()
    return fd


def read_signals(fd: int) -> list[int]:
    """Return the numbers of the signals waiting in a signalfd; empty if there is none."""
    try:
        data = os.read(fd, 32 * SIGNALFD_INFO_SIZE)
    except BlockingIOError:
        return []
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), SIGNALFD_INFO_SIZE)]


# Changes of files, inotify(7).


def inotify_watch(path: str, events: int) -> int:
    """Return a non-blocking descriptor that is readable when one of the `events` (IN_…) happened at `path`."""
    fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise _os_error()
    if _libc.inotify_add_watch(fd, _bytes(path), ctypes.c_uint32(events)) < 0:
        error = _os_error(path)
        os.close(fd)
        raise error
    return fd


# Privileges: prctl(2), seccomp(2), capset(2) and keyctl(2).


def _prctl(option: int, argument: int = 0, third: int = 0) -> int:
    result: int = _libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(third), _long(0), _long(0))
    if result < 0:
        raise _os_error()
    return result


def set_process_name(name: str) -> None:
    """Name this process for ps(1), at most 15 bytes."""
    buffer = ctypes.create_string_buffer(_bytes(name)[:15], 16)
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send `number` when the parent dies; cleared by a change of credentials."""
    _prctl(_PR_SET_PDEATHSIG, number)


def set_child_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """Allow or deny core dumps and ptrace by processes without CAP_SYS_PTRACE."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def io_priority() -> int:
    """Return class and level by which this process does I/O, ioprio_get(2)."""
    return _call(None, _SYS_IOPRIO_GET, _long(_IOPRIO_WHO_PROCESS), _long(0))


def set_io_priority(priority: int) -> None:
    """Set class and level by which this process does I/O, ioprio_set(2)."""
    _call(None, _SYS_IOPRIO_SET, _long(_IOPRIO_WHO_PROCESS), _long(0), _long(priority))


def personality() -> int:
    """Return the execution domain and flags of this process, personality(2)."""
    persona: int = _libc.personality(ctypes.c_ulong(_PERSONALITY_QUERY))
    if persona < 0:
        raise _os_error()
    return persona


def set_personality(persona: int) -> None:
    """Set the execution domain and flags of this process, personality(2)."""
    if _libc.personality(ctypes.c_ulong(persona)) < 0:
        raise _os_error()


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
    filter = _SockFprog(len(program) // _SOCK_FILTER_BYTES, program)
    _call(None, _SYS_SECCOMP, _long(_SECCOMP_SET_MODE_FILTER), _long(0), ctypes.byref(filter))


# Asked forty times, and the answer is the same for every process.
_last_capability: int | None = None


def last_capability() -> int:
    """Return the highest capability this kernel knows."""
    global _last_capability
    number = 0
    while _last_capability is None:
        try:
            _prctl(_PR_CAPBSET_READ, number + 1)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            _last_capability = number
        number += 1
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


def clear_ambient_capabilities() -> None:
    """Empty the ambient set."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def get_capabilities() -> tuple[int, int, int]:
    """Return the effective, permitted and inheritable sets as bit masks, capget(2)."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    if _libc.capget(ctypes.byref(header), ctypes.byref(data)) < 0:
        raise _os_error()
    return (
        data[0].effective | data[1].effective << 32,
        data[0].permitted | data[1].permitted << 32,
        data[0].inheritable | data[1].inheritable << 32,
    )


def set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    """Set the three sets of this thread from bit masks, capset(2)."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    low = 0xFFFFFFFF
    data = (_CapData * 2)(
        _CapData(effective & low, permitted & low, inheritable & low),
        _CapData(effective >> 32, permitted >> 32, inheritable >> 32),
    )
    if _libc.capset(ctypes.byref(header), ctypes.byref(data)) < 0:
        raise _os_error()


# BPF programs on control groups: bpf(2).


def bpf_prog_load(prog_type: int, instructions: bytes, name: str) -> int:
    """Return a close-on-exec descriptor of a program that the kernel has checked, bpf(2); `name` is for bpftool(8)."""
    attributes = _BpfLoad(prog_type=prog_type, insn_cnt=len(instructions) // _BPF_INSTRUCTION_BYTES)
    code = ctypes.create_string_buffer(instructions, len(instructions))
    # It decides which functions of the kernel the program may call.
    license = ctypes.create_string_buffer(b"GPL")
    attributes.insns = ctypes.addressof(code)
    attributes.license = ctypes.addressof(license)
    attributes.prog_name = _bytes(name)[:15]
    return _call(None, _SYS_BPF, _long(_BPF_PROG_LOAD), ctypes.byref(attributes), _long(ctypes.sizeof(attributes)))


def bpf_prog_attach(group: int, program: int, attach_type: int, flags: int = 0) -> None:
    """Attach a program to the cgroup v2 directory `group`, bpf(2); without flags instead of the one that is there."""
    attributes = _BpfAttach(group, program, attach_type, flags)
    _call(None, _SYS_BPF, _long(_BPF_PROG_ATTACH), ctypes.byref(attributes), _long(ctypes.sizeof(attributes)))


def join_session_keyring() -> None:
    """Make a new anonymous keyring this process's session keyring, keyctl_join_session_keyring(3)."""
    _call(None, _SYS_KEYCTL, _long(_KEYCTL_JOIN_SESSION_KEYRING), None)


# The machine as a whole.


def reboot(command: int) -> None:
    """End this machine, or the PID namespace of this process, or decide what Ctrl-Alt-Del does, reboot(2)."""
    _call(None, _SYS_REBOOT, _long(_REBOOT_MAGIC), _long(_REBOOT_MAGIC_2), _long(command), None)


def finit_module(fd: int, options: str = "") -> None:
    """Load the kernel module in the file `fd`, finit_module(2)."""
    _call(None, _SYS_FINIT_MODULE, _long(fd), _bytes(options), _long(0))
