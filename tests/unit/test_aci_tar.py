"""The tar reader: what it understands, what it refuses, and that nothing it is given breaks it."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.archives import tar as tar_module
from minit.archives.tar import TarReader, shown
from minit.archives.tarentry import Entry, Kind
from minit.base.errors import ImageError
from tests import tars


def read(data: bytes) -> list[tuple[Entry, bytes]]:
    """Return all entries with their data."""
    reader = TarReader(io.BytesIO(data), "x.aci")
    return [(entry, reader.read(1 << 30)) for entry in reader]


def entry(*blocks: bytes) -> Entry:
    """Return the only entry of an archive."""
    [(found, _)] = read(b"".join(blocks) + tars.END)
    return found


def test_reads_what_the_standard_library_writes() -> None:
    """Every format of Python's tarfile reads back with the same names, kinds, modes and data."""
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            for number, kind in enumerate((b"0", b"5", b"2", b"1", b"3", b"4", b"6")):
                info = tarfile.TarInfo("/".join(["d" * 40] * 3) + f"/{number}")
                info.type, info.mode, info.uid, info.gid, info.mtime = kind, 0o4751, 7, 8, 99
                info.linkname = "target" if kind in b"12" else ""
                info.devmajor, info.devminor = (1, 3) if kind in b"34" else (0, 0)
                info.size = 700 if kind == b"0" else 0
                archive.addfile(info, io.BytesIO(b"x" * 700))
        found = read(buffer.getvalue())
        assert [item.kind for item, _ in found] == [
            *(Kind.FILE, Kind.DIRECTORY, Kind.SYMLINK, Kind.HARD_LINK),
            *(Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE, Kind.FIFO),
        ]
        assert [len(data) for _, data in found] == [700, 0, 0, 0, 0, 0, 0]
        assert {(item.mode, item.uid, item.gid, item.mtime_ns) for item, _ in found} == {(0o4751, 7, 8, 99 * 10**9)}
        assert found[4][0].device == os.makedev(1, 3)
        assert found[2][0].link_target == found[3][0].link_target == "target"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./rootfs/x", "rootfs/x"),
        ("rootfs//x", "rootfs/x"),
        ("rootfs/a/../x", "rootfs/x"),
        ("./", ""),
        (".", ""),
        ("rootfs/./x/.", "rootfs/x"),
    ],
)
def test_paths_are_cleaned(name: str, path: str) -> None:
    """Names are cleaned lexically, as rkt does."""
    assert entry(tars.directory(name)).path == path


def test_posix_prefix_is_put_before_the_name() -> None:
    """A POSIX header's prefix belongs to the name; in GNU and v7 headers these bytes mean something else."""
    assert entry(tars.file("x", prefix=b"rootfs/a")).path == "rootfs/a/x"
    assert entry(tars.file("x", prefix=b"12345", magic=tars.GNU)).path == "x"
    assert entry(tars.file("x", prefix=b"12345", magic=tars.V7)).path == "x"


def test_gnu_long_names() -> None:
    """GNU headers give names and link targets beyond 100 bytes."""
    long = "rootfs/" + "n" * 200
    found = entry(tars.gnu_long(b"L", long), tars.gnu_long(b"K", "t" * 300), tars.symlink("short", "short"))
    assert (found.path, found.link_target) == (long, "t" * 300)


def test_pax_records_override_the_header() -> None:
    """Path, link, size, owner and times of a pax header win, times to the nanosecond."""
    records = {
        "path": "rootfs/p",
        "size": "3",
        "uid": "70000",
        "gid": "3000000000",
        "mtime": "-1.5",
        "atime": "2.000000001",
    }
    found = entry(tars.pax(records), tars.header("x", size=999) + tars.padded(b"abc"))
    assert (found.path, found.size_bytes, found.uid, found.gid) == ("rootfs/p", 3, 70000, 3_000_000_000)
    assert (found.mtime_ns, found.atime_ns) == (-1_500_000_000, 2_000_000_001)


def test_pax_xattrs() -> None:
    """Extended attributes come as SCHILY records, binary values included."""
    value = b"\x01\0\0\x02=\n\xff"
    found = entry(
        tars.pax({"SCHILY.xattr.security.capability": value, "LIBARCHIVE.xattr.user.x": "eA=="}), tars.file("x")
    )
    assert found.xattrs == (("security.capability", value),)


def test_base_256_numbers() -> None:
    """GNU's binary numbers are read; times may be negative."""
    found = entry(tars.file("x", uid=tars.base256(3_000_000, 8), mtime=tars.base256(-2, 12)))
    assert (found.uid, found.mtime_ns) == (3_000_000, -2_000_000_000)


def test_access_time_defaults_to_modification_time() -> None:
    """An archive without access times gives files their modification time for both."""
    assert entry(tars.file("x", mtime=5)).atime_ns == 5_000_000_000


def test_comments_of_git_archive_are_skipped() -> None:
    """A global pax header with nothing but a comment changes nothing."""
    assert entry(tars.pax({"comment": "0" * 40}, b"g"), tars.file("x")).path == "x"


def test_old_directories_end_in_a_slash() -> None:
    """A v7 archive marks a directory by the slash at its end."""
    assert entry(tars.header("d/", b"\0", magic=tars.V7)).kind is Kind.DIRECTORY


def test_signed_checksums_are_accepted() -> None:
    """Some old tars summed signed characters."""
    block = tars.header("é", checksum=b" " * 8)
    signed = sum(byte - 256 if byte > 127 else byte for byte in block)
    assert entry(tars.header("é", checksum=b"%06o\0 " % signed)).path == "é"


@pytest.mark.parametrize("end", [b"", bytes(512), bytes(1024), bytes(10240)])
def test_end_of_archive(end: bytes) -> None:
    """The two zero blocks at the end may be missing, and more zeros may follow."""
    assert [item.path for item, _ in read(tars.file("a", b"1") + tars.file("b") + end)] == ["a", "b"]


def test_unread_data_is_skipped() -> None:
    """A reader that skips an entry's data finds the next entry all the same."""
    data = tars.file("a", b"x" * 1000) + tars.file("b") + tars.END
    assert [item.path for item in TarReader(io.BytesIO(data), "x.aci")] == ["a", "b"]


def test_names_that_are_no_utf8_survive() -> None:
    """A name is bytes to Linux; it comes back from os.fsencode as it was, and is escaped when printed."""
    found = entry(tars.file(b"caf\xe9"))
    assert os.fsencode(found.path) == b"caf\xe9"
    assert shown(found.path) == '"caf\\xe9"'
    assert shown('a\nb\x1b"') == '"a\\x0ab\\x1b\\x22"'


DEEP = "rootfs/" + "d/" * 128
BAD = {
    "absolute": (tars.file("/etc/passwd"), "absolute name"),
    "dot-dot": (tars.file("../x"), "leaves the archive"),
    "dot-dot-inside": (tars.file("rootfs/../../x"), "leaves the archive"),
    "dot-dot-only": (tars.directory(".."), "leaves the archive"),
    "dot-dot-pax": (tars.pax({"path": "rootfs/../../x"}) + tars.file("x"), "leaves the archive"),
    "dot-dot-gnu": (tars.gnu_long(b"L", "../x") + tars.file("x"), "leaves the archive"),
    "hard-link-dot-dot": (tars.hard_link("rootfs/x", "../../etc/passwd"), "leaves the archive"),
    "hard-link-absolute": (tars.hard_link("rootfs/x", "/etc/passwd"), "absolute link target"),
    "hard-link-nowhere": (tars.hard_link("rootfs/x", ""), "empty link target"),
    "symlink-nowhere": (tars.symlink("rootfs/x", ""), "whose target is empty"),
    "symlink-nul": (tars.pax({"linkpath": "a\0b"}) + tars.symlink("rootfs/x", "y"), "has a NUL"),
    "symlink-too-long": (tars.gnu_long(b"K", "t" * 4096) + tars.symlink("rootfs/x", "y"), "too long"),
    "empty-name": (tars.file(""), "empty name"),
    "nul-in-pax-name": (tars.pax({"path": "a\0b"}) + tars.file("x"), "NUL in its name"),
    "nul-in-gnu-name": (tars.gnu_long(b"L", b"a\0b") + tars.file("x"), "NUL in its name"),
    "name-too-long": (tars.pax({"path": "n/" * 2100}) + tars.file("x"), "longer than 4096 bytes"),
    "too-deep": (tars.pax({"path": DEEP + "x"}) + tars.file("x"), "more than 128 directories deep"),
    "bad-checksum": (tars.header("x", checksum=b"000000\0 "), "checksum is wrong"),
    "no-checksum": (tars.header("x", checksum=b"zzzzzz\0 "), "bad checksum"),
    "not-a-tar": (b"<html>" * 200, "not a tar archive"),
    "negative-size": (tars.header("x", size=tars.base256(-512, 12)), "bad size"),
    "negative-size-octal": (tars.header("x", size=b"-0000000512"), "bad size"),
    "huge-size": (tars.header("x", size=b"\x80" + b"\xff" * 11), "bad size"),
    "size-beyond-the-end": (tars.header("x", size=1 << 30), "ends in the middle of an entry's data"),
    "pax-size-negative": (tars.pax({"size": "-1"}) + tars.file("x"), "bad size"),
    "pax-size-huge": (tars.pax({"size": str(1 << 63)}) + tars.file("x"), "bad size"),
    "pax-size-text": (tars.pax({"size": "1e3"}) + tars.file("x"), "bad size"),
    "pax-mtime-text": (tars.pax({"mtime": "inf"}) + tars.file("x"), "bad mtime"),
    "pax-mtime-huge": (tars.pax({"mtime": str(1 << 53)}) + tars.file("x"), "bad mtime"),
    "uid-minus-one": (tars.pax({"uid": str(0xFFFFFFFF)}) + tars.file("x"), "uid 4294967295"),
    "gid-huge": (tars.file("x", gid=tars.base256(1 << 40, 8)), "gid 1099511627776"),
    "mode-text": (tars.header("x", mode=b"rwxr-xr"), "bad mode"),
    "multi-volume": (tars.header("x", b"M", magic=tars.GNU), "multi-volume"),
    "unknown-type": (tars.header("x", b"Z"), "unknown type"),
    "link-with-data": (tars.hard_link("x", "y", size=512) + bytes(512), "hard link with 512 bytes of data"),
    "directory-with-data": (tars.directory("d", size=512) + bytes(512), "directory with 512 bytes of data"),
    "device-number": (tars.header("d", b"3", device=(0o7777777, 0)), "impossible number"),
    "truncated-header": (tars.file("x")[:300], "ends in the middle of a header"),
    "truncated-data": (tars.header("x", size=2000) + bytes(512), "1488 bytes early"),
    "goes-on-after-its-end": (bytes(512) + tars.file("x"), "goes on after its end"),
    "ends-after-pax": (tars.pax({"path": "x"}), "ends after a header"),
    "global-pax": (tars.pax({"path": "rootfs/x"}, b"g") + tars.file("y"), "global pax header"),
    "pax-twice": (tars.pax({"path": "a"}) + tars.pax({"path": "b"}) + tars.file("x"), "two headers"),
    "pax-and-gnu": (tars.pax({"path": "a"}) + tars.gnu_long(b"L", "b") + tars.file("x"), "two headers"),
    "pax-record-twice": (
        tars.raw_pax(tars.pax_record("path", "a") + tars.pax_record("path", "b")) + tars.file("x"),
        "two headers",
    ),
    "pax-length-zero": (tars.raw_pax(b"0 a=b\n") + tars.file("x"), "no list of"),
    "pax-length-negative": (tars.raw_pax(b"-6 a=b\n") + tars.file("x"), "no list of"),
    "pax-length-beyond": (tars.raw_pax(b"99 a=b\n") + tars.file("x"), "no list of"),
    "pax-length-short": (tars.raw_pax(b"2 a=b\n") + tars.file("x"), "no list of"),
    "pax-no-newline": (tars.raw_pax(b"6 a=bc") + tars.file("x"), "no list of"),
    "pax-no-equals": (tars.raw_pax(b"5 ab\n") + tars.file("x"), "without key or value"),
    "pax-no-key": (tars.raw_pax(b"5 =b\n") + tars.file("x"), "without key or value"),
    "pax-bomb": (tars.header("p", b"x", size=64 << 20), "header of 67108864 bytes"),
    "gnu-name-bomb": (tars.header("l", b"L", size=64 << 20), "header of 67108864 bytes"),
    "pax-forever": (tars.pax({"comment": "x"}, b"g") * 6 + tars.file("x"), "headers describe one entry"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str) -> None:
    """A broken, ambiguous or hostile archive is refused with one line that names it and the reason."""
    blocks, reason = BAD[name]
    with pytest.raises(ImageError, match=reason) as caught:
        read(blocks)
    assert str(caught.value).startswith("x.aci: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive with more entries than the limit is refused when the first too many appears."""
    monkeypatch.setattr(tar_module, "ENTRIES_LIMIT", 3)
    assert len(read(tars.file("x") * 3 + tars.END)) == 3
    with pytest.raises(ImageError, match="more than 3 entries"):
        read(tars.file("x") * 4 + tars.END)


GOOD_BLOCKS = st.sampled_from(
    [
        tars.file("rootfs/x", b"data"),
        tars.directory("rootfs"),
        tars.symlink("rootfs/l", "x"),
        tars.pax({"path": "rootfs/y", "size": "4"}),
        tars.gnu_long(b"L", "rootfs/z"),
        bytes(512),
    ]
)


@given(st.binary(max_size=2048))
def test_arbitrary_bytes_raise_nothing_but_image_error(data: bytes) -> None:
    """Bytes that are no archive are read or refused, never a crash."""
    try:
        read(data)
    except ImageError as error:
        assert "\n" not in str(error)


@settings(max_examples=300)
@given(st.lists(GOOD_BLOCKS, max_size=6), st.data())
def test_damaged_archives_raise_nothing_but_image_error(blocks: list[bytes], data: st.DataObject) -> None:
    """A sound archive with some bytes changed, and its checksums made right again, is read or refused."""
    archive = bytearray(b"".join(blocks))
    for _ in range(data.draw(st.integers(0, 4))):
        if archive:
            archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    for start in range(0, len(archive) - 511, 512):
        block = archive[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            archive[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    try:
        read(bytes(archive))
    except ImageError as error:
        assert "\n" not in str(error)


@given(
    st.dictionaries(
        st.sampled_from(["path", "linkpath", "size", "uid", "gid", "mtime", "atime"]), st.binary(max_size=40)
    )
)
def test_arbitrary_pax_values_raise_nothing_but_image_error(records: dict[str, bytes]) -> None:
    """With any pax header the entry is read or refused."""
    try:
        for item, _ in read(tars.pax(dict(records)) + tars.file("x") + tars.END):
            assert not item.path.startswith(("/", "../")) and "/../" not in item.path
    except ImageError as error:
        assert "\n" not in str(error)
