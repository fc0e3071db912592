"""
File capabilities in a tree with shifted owners: the xattr `security.capability`. Pure.

In the form that images have them they count for every user namespace, the host's own included. With a `rootid` they
count for the namespace whose root that is, and those below it: capabilities(7), linux/capability.h.
"""

from __future__ import annotations

import struct

from minit.base.idrange import IdRange

_REVISION = 0xFF000000
_REVISION_2 = 0x02000000
_REVISION_3 = 0x03000000
_MAGIC = struct.Struct("<I")
_SIZE_2 = 20
_SIZE_3 = 24


def shift_capabilities(value: bytes, ids: IdRange) -> bytes | None:
    """
    Return what a file of an image has to have in a pod with these ids, None if its `rootid` is not mapped.

    A value that is no revision 2 or 3 is returned as it is, for the kernel to refuse.
    """
    magic, sets, rootid = _read(value)
    if sets is None:
        return value
    shifted = ids.to_host(rootid)
    return None if shifted is None else _MAGIC.pack(magic & ~_REVISION | _REVISION_3) + sets + _MAGIC.pack(shifted)


def unshift_capabilities(value: bytes, ids: IdRange) -> bytes | None:
    """Return what a file of a pod with these ids has to have in an image, None if its `rootid` is not mapped."""
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
