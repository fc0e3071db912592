"""
The filter of system calls for a sidecar, which reads what apps and clients write.

It has all it will ever need: what is left to do is to read, to write, to make the next log file, and to take clients.
"""

from __future__ import annotations

import errno

from minit.plan.rights.syscallfilter import ALLOW, INT_MASK, Filter, Rule, Test, fail_with


def _names(text: str) -> list[str]:
    return text.split()


# With the calls by which the C libraries of other architectures do the same.
_CALLS = _names(
    """
    accept4 brk clock_gettime clock_gettime64 close epoll_ctl epoll_pwait epoll_wait exit exit_group flock fstat
    fstat64 fstatat64 ftruncate ftruncate64 futex getpid getrandom getsockname getsockopt gettimeofday _llseek
    lseek madvise mremap munmap newfstatat openat openat2 poll ppoll pread64 pwrite64 read readv recvmsg rename renameat
    renameat2 restart_syscall rt_sigreturn sendmsg setsockopt splice statx tee unlinkat write writev
    """
)
# FIONREAD, TIOCOUTQ and FIONBIO of any descriptor, TIOCGWINSZ, TIOCSWINSZ, TCGETS and TCGETS2, which is tcgetattr(3) of
# newer C libraries, of the app's terminal; TIOCSTI, by which something is typed into the caller's, is not among them
# (ioctl_tty(2)).
_REQUESTS = (0x541B, 0x5411, 0x5421, 0x5413, 0x5414, 0x5401, 0x802C542A)
_PROT_EXEC = 4

SIDECAR_FILTER = Filter(
    default=fail_with(errno.EPERM),
    rules=(
        *(Rule(call=name, action=ALLOW) for name in _CALLS),
        *(
            Rule(call="ioctl", action=ALLOW, tests=(Test(argument=1, mask=INT_MASK, value=request),))
            for request in _REQUESTS
        ),
        # Memory for data, never for code.
        *(
            Rule(call=name, action=ALLOW, tests=(Test(argument=2, mask=_PROT_EXEC, value=0),))
            for name in ("mmap", "mmap2", "mprotect")
        ),
    ),
)
