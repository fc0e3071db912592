"""The label and UUID of a file system, from its superblock, of ext2 to ext4 and xfs."""

from __future__ import annotations

import os

_READ_BYTES = 2048
# Of the superblock, at byte 1024 (the kernel's Documentation/filesystems/ext4/super.rst).
_EXT_SUPERBLOCK = 1024
_EXT_MAGIC, _EXT_UUID, _EXT_LABEL = (0x38, 2), (0x68, 16), (0x78, 16)
_EXT_MAGIC_BYTES = b"\x53\xef"
# At byte 0 (xfs_format.h, struct xfs_dsb).
_XFS_MAGIC_BYTES = b"XFSB"
_XFS_UUID, _XFS_LABEL = (32, 16), (108, 12)


def read_volume_ids(node: str) -> dict[str, str]:
    """Return LABEL and UUID of what is on a block device, nothing for what is not known or cannot be read."""
    try:
        fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.pread(fd, _READ_BYTES, 0)
        finally:
            os.close(fd)
    except OSError:
        return {}
    return parse_volume_ids(data)


def parse_volume_ids(data: bytes) -> dict[str, str]:
    """Return LABEL and UUID as the first 2048 bytes of a device have them."""
    if _field(data, _EXT_MAGIC, _EXT_SUPERBLOCK) == _EXT_MAGIC_BYTES:
        return _name(_field(data, _EXT_UUID, _EXT_SUPERBLOCK), _field(data, _EXT_LABEL, _EXT_SUPERBLOCK))
    if data.startswith(_XFS_MAGIC_BYTES):
        return _name(_field(data, _XFS_UUID), _field(data, _XFS_LABEL))
    return {}


def _field(data: bytes, place: tuple[int, int], start: int = 0) -> bytes:
    offset, size = place
    return data[start + offset : start + offset + size]


def _name(uuid: bytes, label: bytes) -> dict[str, str]:
    digits = uuid.hex()
    names = {"UUID": "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))}
    text = label.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return {**names, "LABEL": text} if text else names
