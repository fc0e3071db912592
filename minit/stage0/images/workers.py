"""
Processes that are forked for an image: how they are confined, and what they tell their parent.

A worker writes lines of a word, a space and the rest to a pipe. A worker that ends without DONE or a fault was killed.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress

from minit.base.errors import ImageError
from minit.linux import syscalls
from minit.linux.process import enter_own_mounts

# The limits of one image, however small the archive is. Memory is counted from the memory of the parent on.
TIME_LIMIT_SECONDS = 3600.0
SIZE_LIMIT_BYTES = 20 << 30
MEMORY_LIMIT_BYTES = 1 << 30
_RESTRICTIONS = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC

PROGRESS = "progress"  # numbers of the work
DONE = "done"  # perhaps a number of the work
_IMAGE_FAULT = "image-fault"  # an ImageError's text
_DISK_FAULT = "disk-fault"  # an errno, a space, the file
_DEFECT = "defect"  # an exception nobody expected


class DefectError(Exception):
    """An exception in the process that nobody expected."""


def tell(report: int, word: str, *numbers: int) -> None:
    """Write PROGRESS or DONE; a parent that has closed the pipe gets nothing."""
    _write(report, " ".join([word, *map(str, numbers)]))


def tell_error(report: int, error: BaseException, file: str = "") -> None:
    """Write the error that ended the work; an error of the disk without a file name is about `file`."""
    if isinstance(error, ImageError):
        _write(report, f"{_IMAGE_FAULT} {error}")
    elif isinstance(error, OSError):
        _write(report, f"{_DISK_FAULT} {error.errno} {error.filename or file}")
    else:
        _write(report, f"{_DEFECT} {type(error).__name__}: {error}")


def numbers_of(line: str) -> tuple[str, list[int]]:
    """Return word and numbers of a line; raises the ImageError, OSError or DefectError that the line reports."""
    word, _, rest = line.rstrip("\n").partition(" ")
    if word == _IMAGE_FAULT:
        raise ImageError(rest)
    if word == _DISK_FAULT:
        number, _, file = rest.partition(" ")
        raise OSError(int(number), os.strerror(int(number)), file or None)
    if word == _DEFECT:
        raise DefectError(f"{rest}: a defect of minit, please report it")
    return word, [int(number) for number in rest.split()]


def _write(report: int, line: str) -> None:
    with suppress(BrokenPipeError):
        os.write(report, line.replace("\n", " ").encode("utf-8", "backslashreplace") + b"\n")


def confine(destination: str) -> None:
    """Confine this process to a directory, as root, with bounded time, memory and size of files."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    _limit()
    os.umask(0)

    root = syscalls.open_tree(syscalls.AT_FDCWD, destination, syscalls.OPEN_TREE_CLONE)
    syscalls.mount_setattr(root, set=_RESTRICTIONS, propagation=syscalls.MS_PRIVATE)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    enter_own_mounts(syscalls.MS_PRIVATE)
    syscalls.move_mount(root, syscalls.AT_FDCWD, to_path=".")
    os.fchdir(root)
    os.close(root)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")
    for finders in (sys.path, sys.meta_path, sys.path_hooks):
        finders.clear()
    sys.path_importer_cache.clear()


def _limit() -> None:
    """Bound the time, the memory and the size of a file; TarReader bounds the entries, their names and depth."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_SECONDS)
    with open("/proc/self/statm", encoding="ascii") as file:
        present = int(file.read().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, present + MEMORY_LIMIT_BYTES)
    _lower(resource.RLIMIT_FSIZE, SIZE_LIMIT_BYTES)  # Python ignores SIGXFSZ: write(2) fails with EFBIG


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, hard))
