"""The system calls that an app may make: policies, the isolators that ask for them, and named sets of calls."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from minit.base.value import Value
from minit.manifest.app import NO_NEW_PRIVILEGES, SECCOMP_REMOVE, SECCOMP_RETAIN, Isolator
from minit.manifest.reader import Node

# Values of the annotation minit/seccomp. Any other value is a profile.
WORD_UNCONFINED = "unconfined"
WORD_GUARDED = "guarded"
WORD_CAPABILITIES = "by-capabilities"
SECCOMP_WORDS = (WORD_UNCONFINED, WORD_GUARDED, WORD_CAPABILITIES)
MAXIMUM_PROFILE_BYTES = 1 << 18


class SeccompPolicy(Value):
    """
    The system calls that an app may make: a whitelist or, with `is_blacklist`, all calls but the listed ones.

    `names` are system calls, some unknown to this machine; None stands for the default whitelist. `own` are the calls
    that the manifest names one by one. A refused call fails with `error`, an errno; with None the call kills the app.
    The calls in `opened` are allowed as well, and no guard of the host refuses them.
    """

    is_blacklist: bool = False
    names: frozenset[str] | None = None
    own: tuple[str, ...] = ()
    error: int | None = None
    opened: frozenset[str] = frozenset()

    @property
    def is_default(self) -> bool:
        """Tell whether `names` is the default whitelist."""
        return self.names is None

    def describe(self) -> str:
        """Return the decision as a line for --debug."""
        if self.names is None:
            calls = "the default whitelist" + (f" and {' '.join(sorted(self.opened))}" if self.opened else "")
        else:
            calls = f"{'all but' if self.is_blacklist else 'only'} {len(self.names)} listed"
        refusal = "are fatal" if self.error is None else f"fail with {errno.errorcode.get(self.error, self.error)}"
        return f"system calls: {calls}, others {refusal}"


DEFAULT_POLICY = SeccompPolicy()
LENIENT_POLICY = SeccompPolicy(error=errno.EPERM)

# Missing in Python's errno module.
_MORE_ERRORS = {"EHWPOISON": 133}


def plan_seccomp(app: str, isolators: Iterable[Isolator]) -> tuple[SeccompPolicy | None, list[str]]:
    """
    Return the policy that the isolators of an app ask for, None for no filter at all, and the warnings to show.

    ManifestError for a value that a seccomp isolator cannot have.
    """
    for isolator in isolators:
        if isolator.name in (SECCOMP_RETAIN, SECCOMP_REMOVE):
            return _plan_set(app, isolator)
    return DEFAULT_POLICY, []


def plan_no_new_privileges(app: str, isolators: Iterable[Isolator]) -> bool:
    """Return whether any of the isolators no-new-privileges is true: an app may have several."""
    given = [_node(app, isolator).boolean() for isolator in isolators if isolator.name == NO_NEW_PRIVILEGES]
    return True in given


def _plan_set(app: str, isolator: Isolator) -> tuple[SeccompPolicy | None, list[str]]:
    node = _node(app, isolator)
    words = node["set"].each(Node.non_empty)
    if not words:
        raise node["set"].error("at least one system call")
    error = node["errno"].optional(_read_error)
    is_blacklist = isolator.name == SECCOMP_REMOVE
    decisive = next((word for word in words if word in (EVERY_CALL, NO_CALL)), None)
    policy: SeccompPolicy | None
    if decisive is None:
        policy, notes = _policy_of(words, is_blacklist, error)
    else:
        # rkt's rule: the first word of EVERY_CALL and NO_CALL decides alone.
        notes = [f"{decisive} stands alone, what else is in the set is ignored"] if len(words) > 1 else []
        policy = SeccompPolicy(is_blacklist=is_blacklist, names=frozenset(), error=error)
        if decisive == EVERY_CALL:
            if is_blacklist:
                notes.append(f"{EVERY_CALL} removes nothing: every system call is allowed")
            else:
                policy = None
        elif is_blacklist:
            policy = SeccompPolicy(error=error)
    return policy, [f'warning: app "{app}": {isolator.name}: {note}' for note in notes]


def _policy_of(words: tuple[str, ...], is_blacklist: bool, error: int | None) -> tuple[SeccompPolicy, list[str]]:
    own = tuple(dict.fromkeys(word for word in words if not word.startswith("@")))
    sets = [word for word in words if word.startswith("@")]
    names = frozenset(own).union(*(CALL_SETS[word] for word in sets if word in CALL_SETS))
    notes = [f"ignoring unknown set {word}" for word in sets if word not in CALL_SETS]
    return SeccompPolicy(is_blacklist=is_blacklist, names=names, own=own, error=error), notes


def _node(app: str, isolator: Isolator) -> Node:
    return Node(isolator.value, None, f'app "{app}": isolator {isolator.name}')


def find_error(name: str) -> int | None:
    """Return the number of an error by name (EPERM, say), None for an unknown name."""
    number = _MORE_ERRORS.get(name) or getattr(errno, name, None)
    return number if name.startswith("E") and isinstance(number, int) else None


def _read_error(node: Node) -> int | None:
    name = node.string()
    # Go writes "" for an absent errno.
    if not name:
        return None
    number = find_error(name)
    if number is None:
        raise node.error("the name of an error, EPERM for one")
    return number


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOCKER_WHITELIST = _names(
    """
    _llseek _newselect accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown chown32
    chroot clock_getres clock_gettime clock_nanosleep clone close connect copy_file_range creat dup dup2 dup3
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_wait epoll_wait_old eventfd eventfd2
    execve execveat exit exit_group faccessat fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod
    fchmodat fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr
    fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futimesat
    get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid
    getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom
    getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid
    gettimeofday getuid getuid32 getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
    io_cancel io_destroy io_getevents io_setup io_submit ioctl ioprio_get ioprio_set ipc kill lchown lchown32
    lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat lstat64 madvise
    memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 modify_ldt mprotect
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv msgsnd
    msync munlock munlockall munmap nanosleep newfstatat open openat pause personality pipe pipe2 poll ppoll
    prctl pread64 preadv prlimit64 pselect6 pwrite64 pwritev read readahead readlink readlinkat readv recv
    recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
    sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop send sendfile sendfile64
    sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsgid32 setfsuid
    setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid
    setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr
    shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigreturn socket socketcall socketpair
    splice stat stat64 statfs statfs64 symlink symlinkat sync sync_file_range syncfs sysinfo syslog tee tgkill
    time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat utime utimensat
    utimes vfork vmsplice wait4 waitid waitpid write writev
    """
)

# Calls of the ARM architectures, which rkt's list has there.
_ARM = _names(
    """
    arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2
    """
)

_DOCKER_BLACKLIST = _names(
    """
    _sysctl acct add_key adjtimex bpf clock_adjtime clock_settime create_module delete_module finit_module
    get_kernel_syms get_mempolicy init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie
    mbind mount move_pages name_to_handle_at nfsservctl open_by_handle_at perf_event_open pivot_root
    process_vm_readv process_vm_writev ptrace query_module quotactl reboot request_key set_mempolicy setns
    settimeofday stime swapoff swapon sysfs umount umount2 unshare uselib userfaultfd ustat vm86 vm86old
    """
)

_CLOCK = _names(
    """
    adjtimex clock_adjtime clock_adjtime64 clock_settime clock_settime64 settimeofday
    """
)

_RAW_IO = _names(
    """
    ioperm iopl pciconfig_iobase pciconfig_read pciconfig_write
    """
)

MINIMUM_CALLS = _names(
    """
    arch_prctl brk cacheflush clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
    clock_nanosleep_time64 execve exit exit_group futex futex_time64 futex_waitv get_robust_list get_thread_area
    getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getpgid getpgrp getpid getppid
    getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getsid gettid gettimeofday getuid getuid32
    membarrier mmap mmap2 mprotect munmap nanosleep pause prlimit64 restart_syscall rseq rt_sigreturn
    sched_getaffinity sched_yield set_robust_list set_thread_area set_tid_address set_tls sigreturn time
    ugetrlimit
    """
)
"""
The calls that every whitelist allows, named or not: without them no program can be executed, or end.

systemd, and so rkt's own stage1, adds the same calls to a whitelist.
"""

_MOUNT = _names(
    """
    chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root umount umount2
    """
)

_NETWORK_IO = _names(
    """
    accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmmsg_time64
    recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socket socketcall socketpair
    """
)

_OBSOLETE = _names(
    """
    _sysctl afs_syscall bdflush break create_module ftime get_kernel_syms getpmsg gtty idle lock mpx prof profil
    putpmsg query_module security sgetmask ssetmask stime stty sysfs tuxcall ulimit uselib ustat vserver
    """
)

_PROCESS = _names(
    """
    capget clone clone3 execveat fork getrusage kill pidfd_open pidfd_send_signal prctl rt_sigqueueinfo
    rt_tgsigqueueinfo setns swapcontext tgkill times tkill unshare vfork wait4 waitid waitpid
    """
)

_PRIVILEGED = _names(
    """
    chown chown32 fchown fchown32 fchownat lchown lchown32 delete_module finit_module init_module
    kexec_file_load kexec_load reboot swapoff swapon _sysctl acct bpf capset chroot fanotify_init fanotify_mark
    nfsservctl open_by_handle_at pivot_root quotactl quotactl_fd setdomainname setfsuid setfsuid32 setgroups
    setgroups32 sethostname setresuid setresuid32 setreuid setreuid32 setuid setuid32 vhangup
    """
)

EVERY_CALL = "@appc.io/all"
NO_CALL = "@appc.io/empty"

CALL_SETS = {
    "@docker/default-blacklist": _DOCKER_BLACKLIST,
    "@docker/default-whitelist": _DOCKER_WHITELIST,
    "@rkt/default-blacklist": _DOCKER_BLACKLIST,
    "@rkt/default-whitelist": _DOCKER_WHITELIST | _ARM,
    "@systemd/clock": _CLOCK,
    "@systemd/default-whitelist": MINIMUM_CALLS,
    "@systemd/mount": _MOUNT,
    "@systemd/network-io": _NETWORK_IO,
    "@systemd/obsolete": _OBSOLETE,
    "@systemd/privileged": _PRIVILEGED | _CLOCK | _RAW_IO,
    "@systemd/process": _PROCESS,
    "@systemd/raw-io": _RAW_IO,
}
"""
The members of each named set of system calls, but for EVERY_CALL and NO_CALL, which change the isolator's meaning.

The members are those of rkt's documentation and stage1 (`@docker/`, `@rkt/`), and of systemd 252 (`@systemd/`:
`systemd-analyze syscall-filter`). A name that an architecture lacks has no effect there.
"""

_LATER = _names(
    """
    membarrier pkey_alloc pkey_free pkey_mprotect preadv2 pwritev2 statx io_pgetevents io_pgetevents_time64 rseq
    pidfd_send_signal pidfd_open close_range openat2 faccessat2 epoll_pwait2 landlock_add_rule
    landlock_create_ruleset landlock_restrict_self memfd_secret process_mrelease futex_waitv futex_wake
    futex_wait futex_requeue cachestat fchmodat2 map_shadow_stack mseal clock_getres_time64 clock_gettime64
    clock_nanosleep_time64 futex_time64 mq_timedreceive_time64 mq_timedsend_time64 ppoll_time64 pselect6_time64
    recvmmsg_time64 rt_sigtimedwait_time64 sched_rr_get_interval_time64 semtimedop_time64 timer_gettime64
    timer_settime64 timerfd_gettime64 timerfd_settime64 utimensat_time64
    """
)

DEFAULT_CALLS = CALL_SETS["@rkt/default-whitelist"] | _LATER
"""
The calls of an app without a seccomp isolator: rkt's list of 2016, and newer calls that C libraries use.

`clone3` is left out: its flags are in memory, where no filter can see them. io_uring is left out too, because it makes
calls that no filter sees.
"""

# Calls of Linux 4.10 that no list of rkt's has.
_OTHERS = _names(
    """
    afs_syscall bdflush break fanotify_init ftime getpmsg gtty idle lock migrate_pages mpx nice oldfstat
    oldlstat oldolduname oldstat olduname pciconfig_iobase pciconfig_read pciconfig_write prof profil putpmsg
    readdir security setdomainname sethostname sgetmask sigaction signal sigpending sigprocmask sigsuspend
    ssetmask stty tuxcall ulimit vhangup vserver
    """
)

# On i386 each of the two makes many calls that also have names of their own.
_MULTIPLEXED = _names("ipc socketcall")

ANCIENT_CALLS = (_DOCKER_WHITELIST | _ARM | _DOCKER_BLACKLIST | _OTHERS) - _MULTIPLEXED
"""
The calls of Linux 4.10, when rkt's lists were written, but for some that C libraries began to use later.

A program that makes an ancient call depends on the call. A newer call may be a trial of a C library, which falls back
on an older call.
"""

CAPABILITY_CALLS = {
    "CAP_BPF": _names("bpf"),
    "CAP_DAC_READ_SEARCH": _names("name_to_handle_at open_by_handle_at"),
    "CAP_PERFMON": _names("perf_event_open"),
    "CAP_SYS_ADMIN": _names(
        """
        bpf clone clone3 fanotify_init lookup_dcookie name_to_handle_at perf_event_open quotactl quotactl_fd
        setdomainname sethostname setns unshare
        """
    ),
    "CAP_SYS_BOOT": _names("reboot"),
    "CAP_SYS_MODULE": _names("delete_module finit_module init_module"),
    "CAP_SYS_NICE": _names("get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    "CAP_SYS_PACCT": _names("acct"),
    "CAP_SYS_PTRACE": _names("kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    "CAP_SYS_RAWIO": _names("ioperm iopl"),
    "CAP_SYS_TIME": _names("adjtimex clock_adjtime clock_adjtime64 clock_settime clock_settime64 settimeofday stime"),
    "CAP_SYS_TTY_CONFIG": _names("vhangup"),
}
"""
The calls, beyond DEFAULT_CALLS, that a capability is for, capabilities(7). Other runtimes allow both together.

Calls of mounts are left out: with them CAP_SYS_ADMIN is the host's root; under other runtimes AppArmor refuses mounts.
Other capabilities, as CAP_NET_ADMIN and CAP_SYSLOG, need only calls of DEFAULT_CALLS.
"""
