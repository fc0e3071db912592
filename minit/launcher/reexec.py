"""
Running from files that the pod cannot write, whatever capabilities its apps hold.

PID 1 is a copy of this process, so /proc/1/exe and /proc/1/map_files lead to the files it was loaded from, past any
mount of the pod. rkt executes `run` through a writable mount: an app with CAP_SYS_PTRACE or CAP_SYS_ADMIN could change
there what the host executes as root later, `gc` for one (the class of CVE-2019-5736). Opened through a read-only
mount they answer EROFS.
"""

from __future__ import annotations

import os
import sys

from minit import paths, syscalls
from minit.errors import LaunchError, describe

_BY_DESCRIPTOR = "/proc/self/fd/"
_INTERPRETER = "usr/lib/minit"


def image_descriptor() -> int | None:
    """Return the descriptor of the read-only mount this interpreter was started from, None if it was not."""
    if not sys.prefix.startswith(_BY_DESCRIPTOR):
        return None
    return int(sys.prefix.removeprefix(_BY_DESCRIPTOR).partition("/")[0])


def image_root() -> str:
    """Return the path of the stage1 root as the import system knows it."""
    return sys.prefix.removesuffix(f"/{_INTERPRETER}")


def start_from_read_only_mount() -> None:
    """Execute this program once more from a detached read-only mount of the stage1 root, unless that is done."""
    if image_descriptor() is not None:
        return
    try:
        tree = syscalls.open_tree(syscalls.AT_FDCWD, paths.POD_STAGE1_ROOTFS, syscalls.OPEN_TREE_CLONE)
        syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_RDONLY, propagation=syscalls.MS_PRIVATE)
        os.set_inheritable(tree, True)
        interpreter = f"{_BY_DESCRIPTOR}{tree}/{_INTERPRETER}"
        python = f"{interpreter}/bin/python3"
        arguments = ["--inhibit-cache", "--argv0", python, python, *sys.orig_argv[1:]]
        os.execve(f"{interpreter}/ld.so", [f"{interpreter}/ld.so", *arguments], os.environ)
    except OSError as error:
        raise LaunchError(f"failed to start from a read-only mount: {describe(error)}") from error
