"""
The hashes by which a rendered tree is known to be unchanged.

`hash` is rkt's own (store/treestore): SHA-512 over a walk of the tree in the order of names, for each file a JSON
object of some fields of a tar header and then its data. Go writes that JSON, so it is written here byte by byte as Go
does. rkt leaves out the manifest and all extended attributes; `minit-hash` covers them, and `hash` covers that.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from minit.archives.readahead import ReadAhead, joined
from minit.archives.tarentry import is_kept_attribute

HASH = "hash"
OWN_HASH = "minit-hash"

_MANIFEST = "manifest"
_OUTSIDE = frozenset({_MANIFEST, HASH, "rendered", "image"})  # what rkt's walk leaves out
_CHUNK = 1 << 20
_DIGITS = 64

# archive/tar's type flags, as the numbers that Go's JSON has.
_TYPES = {
    stat.S_IFREG: ord("0"),
    stat.S_IFLNK: ord("2"),
    stat.S_IFCHR: ord("3"),
    stat.S_IFBLK: ord("4"),
    stat.S_IFDIR: ord("5"),
    stat.S_IFIFO: ord("6"),
}
_HARD_LINK = ord("1")

_ESCAPED = re.compile('["\\\\<>&\x00-\x1f\u2028\u2029\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def tree_hash(tree: Path) -> str:
    """Return what rkt expects in `hash`: `sha512-` and 64 hex digits over everything beside manifest and attributes."""
    digest = hashlib.sha512()
    with ReadAhead(joined(_pieces(tree))) as ahead:
        for chunk in ahead.chunks():
            digest.update(chunk)
    return _text(digest)


def own_hash(tree: Path) -> str:
    """Return what minit keeps in `minit-hash`: a hash over the manifest and the extended attributes of all files."""
    digest = hashlib.sha512()
    for data in _data(str(tree / _MANIFEST)):
        digest.update(data)
    for name, path, status in _walk(tree):
        if stat.S_ISREG(status.st_mode):
            for attribute in sorted(filter(is_kept_attribute, os.listxattr(path, follow_symlinks=False))):
                value = os.getxattr(path, attribute, follow_symlinks=False)
                digest.update(repr((os.fsencode(name), os.fsencode(attribute), value)).encode("ascii"))
    return _text(digest)


def go_string(text: str) -> str:
    """Return `text`, which may hold bytes that are no UTF-8, as the JSON string that Go's encoding/json writes."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        code = 0xFFFD  # os.fsdecode()'s stand-in for a byte that is no UTF-8, and what Go writes for it
    return f"\\u{code:04x}"


def _pieces(tree: Path) -> Iterator[bytes]:
    first_names: dict[int, str] = {}
    for name, path, status in _walk(tree):
        kind = _TYPES.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            continue  # a socket
        size = status.st_size if kind == _TYPES[stat.S_IFREG] else 0
        link = os.readlink(path) if kind == _TYPES[stat.S_IFLNK] else ""
        first = first_names.setdefault(status.st_ino, name)
        if first != name:
            kind, size, link = _HARD_LINK, 0, first
        is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
        device = status.st_rdev if is_device else 0
        yield (
            f'{{"Name":{go_string(name)},"Mode":{stat.S_IMODE(status.st_mode)},"UID":{status.st_uid}'
            f',"GID":{status.st_gid},"Size":{size},"Typeflag":{kind},"Linkname":{go_string(link)}'
            f',"Devmajor":{os.major(device)},"Devminor":{os.minor(device)},"Xattrs":[]}}'.encode()
        )
        if kind == _TYPES[stat.S_IFREG]:
            yield from _data(path)


def _walk(tree: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield name, path and status of what the tree holds, a directory before its content, by names as bytes."""
    pending = [name for name in os.listdir(tree) if name not in _OUTSIDE]
    pending.sort(key=os.fsencode, reverse=True)
    while pending:
        name = pending.pop()
        path = f"{tree}/{name}"
        status = os.lstat(path)
        yield name, path, status
        if stat.S_ISDIR(status.st_mode):
            inside = sorted(os.listdir(path), key=os.fsencode, reverse=True)
            pending.extend(f"{name}/{entry}" for entry in inside)


def _data(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            yield data


def _text(digest: hashlib._Hash) -> str:
    return f"sha512-{digest.hexdigest()[:_DIGITS]}"
