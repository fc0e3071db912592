"""The hash of a rendered tree, byte for byte as rkt computes it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.stage0.images.treestore import go_string, tree_hash

STRINGS = {
    "plain": ("rootfs/bin/sh", '"rootfs/bin/sh"'),
    "quotes": ('a"b\\c', '"a\\"b\\\\c"'),
    "html": ("<a&b>", '"\\u003ca\\u0026b\\u003e"'),
    "short-forms": ("\n\r\t", '"\\n\\r\\t"'),
    "controls": ("\b\f\x00\x1f\x7f", '"\\u0008\\u000c\\u0000\\u001f\x7f"'),
    "javascript-line-ends": ("\u2028\u2029", '"\\u2028\\u2029"'),
    "no-utf8": (os.fsdecode(b"\xff\xe2\x82"), '"\\ufffd\\ufffd\\ufffd"'),
    "unicode": ("é🚀", '"é🚀"'),
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_gos(name: str) -> None:
    """Names are escaped as Go's encoding/json does: HTML's characters too, and no short form for backspace."""
    text, expected = STRINGS[name]
    assert go_string(text) == expected


@given(st.text())
def test_strings_are_json(text: str) -> None:
    """Any name is one valid JSON string and reads back, unless it holds lone surrogates."""
    assert json.loads(go_string(text)) == "".join("�" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_a_tree_with_everything(tmp_path: Path) -> None:
    """Directories come before their content, names are sorted as bytes, a second name is a link without data."""
    root = tmp_path / "rootfs"
    root.mkdir(mode=0o755)
    (root / "b").write_bytes(b"data")
    (root / "b").chmod(0o4711)
    (root / "B").mkdir(mode=0o700)
    (root / "B/fifo").touch()
    os.link(root / "b", root / "c")
    (root / "d").symlink_to("<b>")
    for name in ("hash", "manifest", "rendered", "image"):
        (tmp_path / name).write_bytes(b"left out")
    uid, gid = os.getuid(), os.getgid()

    def entry(name: str, mode: int, kind: int, size: int = 0, link: str = "") -> bytes:
        return (
            f'{{"Name":"{name}","Mode":{mode},"UID":{uid},"GID":{gid},"Size":{size},"Typeflag":{kind}'
            f',"Linkname":"{link}","Devmajor":0,"Devminor":0,"Xattrs":[]}}'
        ).encode()

    digest = hashlib.sha512()
    for part in (
        entry("rootfs", 0o755, 53),
        entry("rootfs/B", 0o700, 53),
        entry("rootfs/B/fifo", 0o644, 48),
        entry("rootfs/b", 0o4711, 48, 4) + b"data",
        entry("rootfs/c", 0o4711, 49, 0, "rootfs/b"),
        entry("rootfs/d", 0o777, 50, 0, "\\u003cb\\u003e"),
    ):
        digest.update(part)
    (root / "B/fifo").chmod(0o644)
    assert tree_hash(tmp_path) == f"sha512-{digest.hexdigest()[:64]}"
