"""
The content and the attributes of a regular file, from an archive to an open file.

File capabilities (the xattr `security.capability`) without a `rootid`, as images have them, count for every user
namespace, the host's own included. With a `rootid` they count for the namespace whose root that id is, and for the
namespaces below: capabilities(7), linux/capability.h.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable

from minit.archives.tar import TarReader, shown
from minit.archives.tarentry import Entry, is_kept_attribute, kept_attributes
from minit.base.errors import MinitError, reason_of
from minit.base.idrange import HeldIds, IdRange

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
# The disk's or the machine's fault; any other errno while an entry is created is the image's.
DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM, errno.ENOTSUP})

_REVISION = 0xFF000000
_REVISION_2 = 0x02000000
_REVISION_3 = 0x03000000
_MAGIC = struct.Struct("<I")
_SIZE_2 = 20
_SIZE_3 = 24


class DiskFault(OSError):
    """The disk's or the machine's error with an entry of an image; the entry is the file name of the error."""


def write_content(fd: int, entry: Entry, tar: TarReader, digest: hashlib._Hash | None = None) -> None:
    """Write the data of the current entry into an empty file, zeros as holes; `digest` gets data and zeros."""
    end = written_end = 0
    for offset, data in tar.pieces(_CHUNK):
        if digest is not None:
            _add_zeros(digest, offset - end)
            digest.update(data)
            end = offset + len(data)
        if data == _ZEROS[: len(data)]:  # a hole, so that sparse files stay sparse, and zeros fill no disk
            continue
        left = memoryview(data)
        while left:
            written = os.pwrite(fd, left, offset)
            left = left[written:]
            offset += written
        written_end = offset
    if written_end != entry.size_bytes:
        os.ftruncate(fd, entry.size_bytes)
    if digest is not None:
        _add_zeros(digest, entry.size_bytes - end)


def with_held_owner(entry: Entry, held: HeldIds | None, fault: Callable[[str, str], MinitError]) -> Entry:
    """
    Return an entry with the owner that its file gets in a user namespace: root where there is nobody else.

    For an owner that the namespace does not have, raises the error that `fault` makes of the path and the lack. None
    stands for every id.
    """
    if held is None:
        return entry
    if held.is_single:
        return entry._replace(uid=0, gid=0)
    lack = held.find_lack(entry.uid, entry.gid)
    if lack is not None:
        raise fault(entry.path, lack)
    return entry


def set_status(fd: int, entry: Entry, tar: TarReader) -> None:
    """Give an open file owner, mode, attributes and times of an entry."""
    # In this order: chown(2) clears set-id bits and capabilities, and all calls change the times.
    os.fchown(fd, entry.uid, entry.gid)
    os.fchmod(fd, entry.mode)
    _set_attributes(fd, entry, tar)
    os.utime(fd, ns=(entry.atime_ns, entry.mtime_ns))


def copy_file(
    from_directory: int, from_name: str, to_directory: int, to_name: str, owner: tuple[int, int] | None = None
) -> None:
    """Copy a regular file with mode, attributes and times, and with the owner, unless there is another `owner`."""
    source = os.open(from_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=from_directory)
    try:
        target = os.open(to_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=to_directory)
        try:
            status = os.fstat(source)
            while os.sendfile(target, source, None, _CHUNK):
                pass
            os.fchown(target, *(owner or (status.st_uid, status.st_gid)))
            os.fchmod(target, stat.S_IMODE(status.st_mode))
            for name, value in kept_attributes(source):
                os.setxattr(target, name, value)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(target)
    finally:
        os.close(source)


def _add_zeros(digest: hashlib._Hash, count: int) -> None:
    while count > 0:
        digest.update(_ZEROS[:count])
        count -= _CHUNK


def _set_attributes(fd: int, entry: Entry, tar: TarReader) -> None:
    kept = [(key, value) for key, value in entry.xattrs if is_kept_attribute(key)]
    for key, value in kept:
        try:
            os.setxattr(fd, key, value)
        except OSError as error:
            number = error.errno or 0
            # The error of a file system with a full room for the attributes of one file, not with a full disk.
            if number in (errno.E2BIG, errno.ERANGE) or (number == errno.ENOSPC and os.fstatvfs(fd).f_bfree):
                total = sum(len(key) + len(value) for key, value in kept)
                reason = f"its attributes have {total} bytes, more than the file system takes for one file"
            elif number in DISK_ERRNOS:
                place = f"{shown(entry.path)}: attribute {shown(key)}"
                raise DiskFault(number, os.strerror(number), place) from error
            else:
                reason = reason_of(number)
            raise tar.fault(entry.path, f"cannot set the attribute {shown(key)}: {reason}") from error


def shift_capabilities(value: bytes, ids: IdRange) -> bytes | None:
    """
    Return the capabilities for a file of an image in a pod with the ids `ids`, None if the `rootid` is not mapped.

    A value of another revision than 2 and 3 is returned unchanged, for the kernel to refuse.
    """
    magic, sets, rootid = _read(value)
    if sets is None:
        return value
    shifted = ids.to_host(rootid)
    return None if shifted is None else _MAGIC.pack(magic & ~_REVISION | _REVISION_3) + sets + _MAGIC.pack(shifted)


def unshift_capabilities(value: bytes, ids: IdRange) -> bytes | None:
    """Return the capabilities in an image for a file of a pod with the ids `ids`, None for an unmapped `rootid`."""
    magic, sets, rootid = _read(value)
    if sets is None or magic & _REVISION == _REVISION_2:
        return value
    unshifted = ids.from_host(rootid)
    if unshifted:
        return _MAGIC.pack(magic) + sets + _MAGIC.pack(unshifted)
    return None if unshifted is None else _MAGIC.pack(magic & ~_REVISION | _REVISION_2) + sets


def _read(value: bytes) -> tuple[int, bytes | None, int]:
    """Return magic number with flags, the sets (None: unknown form) and the `rootid`."""
    magic = _MAGIC.unpack_from(value)[0] if len(value) >= _MAGIC.size else 0
    revision = magic & _REVISION
    if revision == _REVISION_2 and len(value) == _SIZE_2:
        return magic, value[4:], 0
    if revision == _REVISION_3 and len(value) == _SIZE_3:
        return magic, value[4:_SIZE_2], _MAGIC.unpack_from(value, _SIZE_2)[0]
    return magic, None, 0
