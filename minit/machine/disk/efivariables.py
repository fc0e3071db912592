"""
The variables of an EFI firmware, by the kernel's efivarfs.

The file system is mounted nowhere: only a descriptor leads to it, for as long as somebody needs it. Its files are
variables, four bytes of attributes before their values (Documentation/filesystems/efivarfs.rst).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from minit import syscalls
from minit.errors import UpdateError, describe
from minit.machine.modules import read_modules

GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""The namespace of the variables of the UEFI specification (EFI_GLOBAL_VARIABLE)."""
OWN = "9dbc99db-f222-42ba-b1cc-5a80f0436170"
"""The namespace of minit's own variables."""

_FIRMWARE = "/sys/firmware/efi"
_FSTYPE = "efivarfs"
# It outlives a boot, and is there for the firmware and for the system that it boots.
_ATTRIBUTES = (7).to_bytes(4, "little")
_MAXIMUM_BYTES = 1 << 16
# linux/fs.h. The kernel makes variables that it does not know so, which keeps a mere rm away from them.
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_IMMUTABLE_FL = 0x10
_FLAGS_BYTES = 8


class EfiVariables:
    """The variables in the file system that is open as `directory`."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def names(self, namespace: str = GLOBAL) -> list[str]:
        """Return the names of all variables of a namespace, sorted."""
        end = f"-{namespace}"
        return sorted(name.removesuffix(end) for name in os.listdir(self._directory) if name.endswith(end))

    def read(self, name: str, namespace: str = GLOBAL) -> bytes | None:
        """Return the value of a variable, None if there is none."""
        try:
            fd = self._open(f"{name}-{namespace}", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, _MAXIMUM_BYTES)[len(_ATTRIBUTES) :]
        finally:
            os.close(fd)

    def write(self, name: str, value: bytes, namespace: str = GLOBAL) -> None:
        """
        Write a variable, which the firmware does as a whole; one that is as it should be is not written again.

        UpdateError if the firmware does not take it.
        """
        if self.read(name, namespace) == value:
            return
        try:
            with self._writable(f"{name}-{namespace}") as path:
                fd = self._open(path, os.O_WRONLY | os.O_CREAT)
                try:
                    os.write(fd, _ATTRIBUTES + value)
                finally:
                    os.close(fd)
        except OSError as error:
            raise UpdateError(f"the firmware does not take its variable {name}: {describe(error)}") from error

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644, dir_fd=self._directory)

    @contextmanager
    def _writable(self, path: str) -> Iterator[str]:
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            yield path
            return
        try:
            flags = int.from_bytes(fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(_FLAGS_BYTES)), "little")
            if flags & _FS_IMMUTABLE_FL:
                _set_flags(fd, flags & ~_FS_IMMUTABLE_FL)
            try:
                yield path
            finally:
                _set_flags(fd, flags)
        finally:
            os.close(fd)


@contextmanager
def open_variables() -> Iterator[EfiVariables]:
    """Open the variables of the firmware; UpdateError if it has none that this kernel can write."""
    if not os.path.isdir(_FIRMWARE):
        raise UpdateError("no EFI firmware has started this machine: nothing can tell it which slot to boot")
    read_modules().load_filesystem(_FSTYPE)
    try:
        directory = _open_filesystem()
        try:
            if os.fstatvfs(directory).f_flag & os.ST_RDONLY:
                raise UpdateError("the firmware's variables cannot be written while Linux runs")
            yield EfiVariables(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise UpdateError(f"the firmware's variables ({_FSTYPE}): {describe(error)}") from error


def _open_filesystem() -> int:
    context = syscalls.fsopen(_FSTYPE)
    try:
        syscalls.fsconfig_create(context)
        mount = syscalls.fsmount(context)
    finally:
        os.close(context)
    try:
        # That one names the directory only.
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def _set_flags(fd: int, flags: int) -> None:
    fcntl.ioctl(fd, _FS_IOC_SETFLAGS, flags.to_bytes(_FLAGS_BYTES, "little"))
