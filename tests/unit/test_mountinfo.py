"""minit.linux.mountinfo: proc(5) lines, with what the kernel escapes in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.linux.mountinfo import Mount, find_mounts, parse_line, read_mountinfo

PROJECT = Path(__file__).parents[2]

LINE = "36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue\n"

# What is left of a text after the kernel's seq_escape() and seq_path(): no blank, tab, line feed, # or backslash.
ESCAPED = {" ": "\\040", "\t": "\\011", "\n": "\\012", "\\": "\\134", "#": "\\043"}
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def escape(text: str) -> str:
    """Return `text` as the kernel prints it."""
    return "".join(ESCAPED.get(character, character) for character in text)


def test_every_field_is_read() -> None:
    """The example of proc(5) gives a mount with all its fields."""
    assert parse_line(LINE) == Mount(
        mount_id=36,
        parent_id=35,
        root="/mnt1",
        mount_point="/mnt2",
        options="rw,noatime",
        tags=("shared:1", "master:2"),
        fstype="ext3",
        source="/dev/root",
        super_options="rw,errors=continue",
    )


def test_a_private_mount_has_no_tags() -> None:
    """The optional fields may be none at all."""
    assert parse_line("1 1 0:2 / / rw - rootfs none rw").tags == ()


@given(st.lists(TEXTS, min_size=3, max_size=3))
def test_escapes_round_trip(texts: list[str]) -> None:
    """A path or a source comes back as it was, backslashes before digits included."""
    root, point, source = f"/{texts[0]}", f"/{texts[1]}", texts[2]
    line = f"36 35 98:0 {escape(root)} {escape(point)} rw - tmpfs {escape(source)} rw\n"
    mount = parse_line(line)
    assert (mount.root, mount.mount_point, mount.source) == (root, point, source)


@given(st.text())
def test_anything_else_is_a_value_error(text: str) -> None:
    """A line that is none gives ValueError and nothing worse."""
    try:
        parse_line(text)
    except ValueError:
        pass


@pytest.mark.parametrize("line", ["", "\n", "1 2 3", LINE.replace(" - ", " "), LINE.replace("36", "x")])
def test_a_damaged_line_is_refused(line: str) -> None:
    """A line without its separator, fields or numbers is no mount."""
    with pytest.raises(ValueError):
        parse_line(line)


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """A carriage return is not escaped by the kernel and stays part of the path."""
    file = tmp_path / "mountinfo"
    file.write_bytes(LINE.replace("/mnt2", "/mnt\r2").encode() + LINE.encode())
    assert [mount.mount_point for mount in read_mountinfo(str(file))] == ["/mnt\r2", "/mnt2"]


@pytest.mark.parametrize("odd", ["", *ESCAPED, "\udcff", "\r"], ids=repr)
def test_mounts_that_a_text_is_in(tmp_path: Path, odd: str) -> None:
    """A path finds its mount whatever is in it; lines without it are passed over, also those that are none."""
    path = f"/mnt2/x{odd}y"
    lines = ["no line\n", LINE, LINE.replace("/mnt2", escape(path)), "neither\n"]
    file = tmp_path / "mountinfo"
    file.write_bytes("".join(lines).encode(errors="surrogateescape"))
    assert [mount.mount_point for mount in find_mounts(path, str(file))] == [path]


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    """A path in another encoding can still be opened."""
    file = tmp_path / "mountinfo"
    file.write_bytes(LINE.encode().replace(b"/mnt2", b"/mnt\xff"))
    [mount] = read_mountinfo(str(file))
    assert os.fsencode(mount.mount_point) == b"/mnt\xff"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_the_kernel_escapes_what_we_think(tmp_path: Path) -> None:
    """A mount with every odd character in its path and source is read back as it was made."""
    program = """
import os, sys
from minit.linux import syscalls
from minit.linux.mountinfo import read_mountinfo
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
point = sys.argv[1]
os.mkdir(point)
syscalls.mount("a#b c\\td\\\\040", point, "tmpfs", 0)
[mount] = [mount for mount in read_mountinfo() if mount.mount_point == point]
assert mount.source == "a#b c\\td\\\\040", mount
"""
    point = str(tmp_path / "a b\tc\nd\\040#\re")
    subprocess.run([sys.executable, "-c", program, point], check=True, cwd=PROJECT)
