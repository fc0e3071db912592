"""App images made from programs and directories of this machine, run in a root of their own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import minit
from minit.base.progress import silent
from minit.image.appimage import ImageFields, build_app_image
from tests.support.unpack import unpack

# Run in a mount namespace of its own.
BUILD_ON_A_FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
from minit.base.errors import ImageError
from minit.image.appimage import ImageFields, build_app_image
from minit.base.progress import silent
directory = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", directory], check=True)
busybox = Path("/usr/bin/busybox")
try:
    build_app_image(Path(directory, "a.aci"), ImageFields(), silent, from_host=[busybox])
except ImageError as error:
    print(error, os.listdir(directory))
"""

CAP_NET_RAW = bytes.fromhex("0100000200200000000000000000000000000000")  # struct vfs_cap_data, revision 2

PROJECT = Path(minit.__file__).parent.parent
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """A function that builds an image and returns its rootfs, unpacked."""
    directory = tmp_path_factory.mktemp("app")

    def build(rootfs: Path | None = None, from_host: Sequence[Path] = (), **fields: Any) -> Path:
        build_app_image(directory / "app.aci", ImageFields(**fields), silent, rootfs=rootfs, from_host=from_host)
        unpack(directory / "app.aci", directory)
        return directory / "rootfs"

    yield build
    shutil.rmtree(directory)


def chroot(rootfs: Path, *command: str) -> str:
    """Run a command in the image and return its output."""
    done = subprocess.run(["chroot", rootfs, *command], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_static_program_runs(unpacked: Callable[..., Path]) -> None:
    """A busybox works in the image made from it."""
    rootfs = unpacked(from_host=[Path("/usr/bin/busybox")])
    assert chroot(rootfs, "/usr/bin/busybox", "echo", "hello") == "hello\n"


def test_a_file_of_the_host_keeps_its_time(unpacked: Callable[..., Path]) -> None:
    """A program has the time in the image that it has on this machine, to the second."""
    program = Path("/usr/bin/busybox")
    rootfs = unpacked(from_host=[program])
    assert int((rootfs / "usr/bin/busybox").stat().st_mtime) == int(program.stat().st_mtime)


def test_a_shell_runs_by_every_name_of_its_path(unpacked: Callable[..., Path]) -> None:
    """The symlinks on the way to a program and its loader are in the image."""
    rootfs = unpacked(from_host=[Path("/bin/sh"), Path("/usr/bin/env")])
    assert chroot(rootfs, "/bin/sh", "-c", "env; echo done").endswith("done\n")


def test_python_has_its_standard_library(unpacked: Callable[..., Path]) -> None:
    """A Python interpreter imports what needs extension modules and libraries, and ends its threads."""
    interpreter = Path(sys.executable).resolve()
    rootfs = unpacked(from_host=[interpreter])
    # One that was built on a machine without a library does without the module for it.
    optional = [name for name in ("_bz2", "_lzma", "_sqlite3", "_ssl", "_uuid") if importlib.util.find_spec(name)]
    program = (
        f"import ctypes, {', '.join(optional)}"
        + """
import decimal, hashlib, json, os, pwd, sys, threading, time, zlib
import http.server, unittest
threading.Thread(target=ctypes.CDLL(None).pthread_exit, args=(None,)).start()
time.sleep(0.1)
print(sys.prefix, pwd.getpwuid(0).pw_name, hashlib.sha256(b"").hexdigest()[:4], flush=True)
os._exit(0)
"""
    )
    assert not [*rootfs.rglob("__pycache__")]
    assert chroot(rootfs, str(interpreter), "-c", program) == f"{sys.base_prefix} root e3b0\n"


def test_the_users_tree_is_kept_as_it_is(unpacked: Callable[..., Path], tmp_path: Path) -> None:
    """Owners, modes, times, devices, links and file capabilities of a directory arrive in the image."""
    tree = tmp_path / "tree"
    tree.mkdir(mode=0o751)
    (tree / "setuid").write_text("x")
    os.chown(tree / "setuid", 1000, 2000)
    (tree / "setuid").chmod(0o4711)
    os.utime(tree / "setuid", (0, 1_000_000_000))
    (tree / "hard").hardlink_to(tree / "setuid")
    (tree / "soft").symlink_to("setuid")
    os.mknod(tree / "null", 0o020666, os.makedev(1, 3))
    (tree / "capable").write_text("y")
    os.setxattr(tree / "capable", "security.capability", CAP_NET_RAW)
    (tree / "sticky").mkdir()
    (tree / "sticky").chmod(0o1777)

    rootfs = unpacked(rootfs=tree)
    setuid = (rootfs / "setuid").stat()
    assert (setuid.st_uid, setuid.st_gid, setuid.st_mode & 0o7777) == (1000, 2000, 0o4711)
    assert setuid.st_mtime == 1_000_000_000
    assert (rootfs / "hard").stat().st_ino == setuid.st_ino
    assert (rootfs / "soft").readlink() == Path("setuid")
    assert (rootfs / "null").stat().st_rdev == os.makedev(1, 3)
    assert rootfs.stat().st_mode & 0o777 == 0o751
    assert (rootfs / "sticky").stat().st_mode & 0o7777 == 0o1777
    # Python's tarfile restores no extended attributes; the header is what an extractor of ACIs reads.
    with tarfile.open(rootfs.parent / "app.aci") as aci:
        value = aci.getmember("rootfs/capable").pax_headers["SCHILY.xattr.security.capability"]
    assert value.encode("utf-8", "surrogateescape") == CAP_NET_RAW


def test_a_directory_and_programs_make_one_image(unpacked: Callable[..., Path], tmp_path: Path) -> None:
    """A script of the user's runs with a shell of the machine's."""
    tree = tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/hello").write_text("#!/bin/sh\necho hello from $0\n")
    (tree / "bin/hello").chmod(0o755)
    rootfs = unpacked(rootfs=tree, from_host=[Path("/bin/sh")])
    assert chroot(rootfs, "/bin/hello") == "hello from /bin/hello\n"


def test_a_full_disk_is_one_line_and_no_file(tmp_path: Path) -> None:
    """When the output's disk is full the message says so, and the half-written file is removed."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", BUILD_ON_A_FULL_DISK]
    done = subprocess.run([*command, tmp_path], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == f"cannot write {tmp_path}/a.aci: no space left on device []\n"
    assert done.stderr == ""
