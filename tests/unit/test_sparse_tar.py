"""Sparse files in archives: every format reads as the file that was packed, and no map leads the reader astray."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.archives import sparse
from minit.archives.aci import copy_image
from minit.archives.blobs import ArchiveBlobs
from minit.archives.tar import TarReader
from minit.archives.tarentry import Entry
from minit.base.errors import ImageError
from tests import tars

FORMATS = ("old", "0.0", "0.1", "1.0")
PAGE = b"data" * 128

Piece = tuple[int, bytes]


def reader(*blocks: bytes) -> TarReader:
    """Return a reader of an archive."""
    return TarReader(io.BytesIO(b"".join(blocks) + tars.END), "x.aci")


def read(*blocks: bytes) -> list[tuple[Entry, bytes]]:
    """Return all entries with their content."""
    tar = reader(*blocks)
    return [(entry, tar.read(1 << 20)) for entry in tar]


@st.composite
def sparse_files(draw: st.DrawFn) -> tuple[int, list[Piece]]:
    """A file's size and what is not a hole in it: whole blocks, but for the last piece."""
    pieces: list[Piece] = []
    end = 0
    gaps = st.one_of(st.integers(0, 5000), st.just(0))
    for number in range(count := draw(st.integers(0, 60))):
        offset = end + draw(gaps)
        is_last = number == count - 1
        blocks = draw(st.integers(0 if is_last else 1, 3))
        length = blocks * 512 + (draw(st.integers(0, 511)) if is_last else 0)
        pieces.append((offset, bytes([1 + number]) * length))
        end = offset + length
    return end + draw(gaps), pieces


def archived(form: str, size: int, pieces: list[Piece]) -> bytes:
    """Return an archive's entry for a sparse file."""
    segments = [(offset, len(data)) for offset, data in pieces]
    return tars.sparse(form, "rootfs/x", size, segments, b"".join(data for _, data in pieces))


@pytest.mark.parametrize("form", FORMATS)
@given(model=sparse_files(), step=st.sampled_from([1 << 20, 4096, 700, 512]))
def test_content_is_that_of_the_file(form: str, model: tuple[int, list[Piece]], step: int) -> None:
    """A file with any holes reads as it was, in any steps, and the next entry follows it."""
    size, pieces = model
    content = bytearray(size)
    for offset, data in pieces:
        content[offset : offset + len(data)] = data
    tar = reader(archived(form, size, pieces), tars.file("next", b"1"))
    entry = next(entries := iter(tar))
    assert (entry.path, entry.size_bytes) == ("rootfs/x", size)
    assert entry.hole_bytes == size - sum(len(data) for _, data in pieces)
    found = bytearray()
    while data := tar.read(step):
        assert len(data) <= step
        found += data
    assert found == content
    assert [(item.path, tar.read(9)) for item in entries] == [("next", b"1")]


@pytest.mark.parametrize("form", FORMATS)
@given(model=sparse_files(), step=st.sampled_from([1 << 20, 700]))
def test_pieces_are_what_is_no_hole(form: str, model: tuple[int, list[Piece]], step: int) -> None:
    """A reader that keeps holes is given the data with its offsets, and nothing of the holes."""
    size, pieces = model
    tar = reader(archived(form, size, pieces))
    next(iter(tar))
    found: list[Piece] = []
    for offset, data in tar.pieces(step):
        assert 0 < len(data) <= step
        found.append((offset, data))
    expected = {offset + place: byte for offset, data in pieces for place, byte in enumerate(data)}
    assert {offset + place: byte for offset, data in found for place, byte in enumerate(data)} == expected
    assert tar.read(1) == b""


@pytest.mark.parametrize("form", FORMATS)
def test_a_hole_of_8_exbibytes(form: str) -> None:
    """A hole takes neither time nor memory, however large it says to be, whether it is skipped or not."""
    size = (8 << 60) - 1
    block = tars.sparse(form, "x", size, [(size - 512, 512)], PAGE)
    tar = reader(block, block, tars.file("next"))
    entries = iter(tar)
    assert next(entries).size_bytes == size
    assert next(entries).hole_bytes == size - 512
    assert list(tar.pieces(1 << 20)) == [(size - 512, PAGE)]
    assert next(entries).path == "next"


def test_pieces_of_an_ordinary_file() -> None:
    """A file that is not sparse is data from its beginning to its end."""
    tar = reader(tars.file("x", PAGE * 2))
    assert next(iter(tar)).hole_bytes == 0
    assert list(tar.pieces(700)) == [(0, (PAGE * 2)[:700]), (700, (PAGE * 2)[700:])]


def test_the_real_name_counts() -> None:
    """The name that other programs would give the map's file is not that of the entry, even if it was too long."""
    name = "rootfs/" + "n" * 200
    records = {"path": "rootfs/GNUSparseFile.1/" + "n" * 200, "GNU.sparse.size": "9", "GNU.sparse.name": name}
    [(entry, data)] = read(tars.pax({**records, "GNU.sparse.numblocks": "1", "GNU.sparse.map": "9,0"}), tars.file("y"))
    assert (entry.path, data) == (name, bytes(9))
    [(entry, _)] = read(tars.gnu_long(b"L", name), tars.old_sparse("short", 9, [(9, 0)]))
    assert entry.path == name


def test_an_image_with_a_sparse_file() -> None:
    """An image with sparse files is imported as it is, its id that of its bytes."""
    written = bytearray()
    image = tars.image(*(tars.sparse(form, f"rootfs/{form}", 1 << 30, [(0, 512)], PAGE) for form in FORMATS))
    copy_image(io.BytesIO(image), "x.aci", written.extend)
    assert written == image


def test_a_sparse_file_among_those_of_a_layout(tmp_path: Path) -> None:
    """Files that are read where they lie in an archive cannot have holes, and that is said."""
    path = tmp_path / "image.tar"
    path.write_bytes(tars.sparse("1.0", "oci-layout", 1024, [(0, 512)], PAGE) + tars.END)
    with pytest.raises(ImageError, match="a sparse file: pack the archive without --sparse"):
        ArchiveBlobs(path, tempfile.TemporaryFile)


MAPS: dict[str, tuple[int, list[tuple[int, int]], str]] = {
    "overlap": (4096, [(0, 512), (511, 512)], "overlap"),
    "out-of-order": (4096, [(1024, 512), (0, 512)], "out of order"),
    "empty-out-of-order": (4096, [(0, 512), (512, 512), (0, 0)], "out of order"),
    "beyond-the-end": (4096, [(0, 512), (4000, 512)], "ends at 4512, beyond its 4096 bytes"),
    "empty-beyond-the-end": (4096, [(0, 512), (512, 512), (5000, 0)], "beyond its 4096 bytes"),
    "too-little": (4096, [(0, 512)], "segments have 512 bytes, but its data 1024"),
    "too-much": (4096, [(0, 1536)], "segments have 1536 bytes, but its data 1024"),
    "nothing": (4096, [], "segments have 0 bytes"),
    "smaller-than-its-data": (512, [(0, 1024)], "beyond its 512 bytes"),
    "empty-in-between": (4096, [(0, 512), (512, 0), (512, 512)], "empty segment"),
    "empty-twice": (4096, [(0, 1024), (4096, 0), (4096, 0)], "empty segment"),
    "no-whole-blocks": (4096, [(0, 500), (512, 524)], "no whole blocks"),
    "offsets-beyond-counting": ((8 << 60) - 1, [((8 << 60) - 1, (8 << 60) - 1)], "beyond its"),
    "offset-too-large": (4096, [(1 << 63, 0), (0, 1024)], "bad number"),
    "length-too-large": (4096, [(0, 1 << 70)], "bad number"),
    "size-too-large": (1 << 63, [(0, 1024)], "bad number"),
    "negative-offset": (4096, [(-512, 512), (0, 512)], "bad number"),
    "negative-length": (4096, [(512, 1024), (512, -512), (1024, 512)], "bad number"),
    "negative-size": (-1, [(0, 1024)], "bad number"),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MAPS)
def test_refused_maps(name: str, form: str) -> None:
    """A map that contradicts itself, the size or the data is refused in one line, whatever format it is in."""
    size, segments, reason = MAPS[name]
    with pytest.raises(ImageError, match=reason) as caught:
        read(tars.sparse(form, "x", size, segments, PAGE * 2))
    assert str(caught.value).startswith("x.aci: ") and "\n" not in str(caught.value)
    assert "sparse" in str(caught.value) or "bad number" in str(caught.value)


def records(version: str = "0.1", /, **changed: str | None) -> bytes:
    """A file of 512 bytes of data after 512 that are a hole, with some records changed or left out."""
    known = {"size": "1024", "numblocks": "1", "map": "512,512"}
    if version == "1.0":
        known = {"major": "1", "minor": "0", "realsize": "1024"}
    kept = {f"GNU.sparse.{key}": value for key, value in (known | changed).items() if value is not None}
    data = PAGE if version == "0.1" else tars.padded(b"1\n512\n512\n") + PAGE
    return tars.pax(kept) + tars.file("x", data)


def data_map(text: bytes) -> bytes:
    """A file whose data begins with this map."""
    return tars.pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}) + tars.file(
        "x", text
    )


def test_the_unchanged_records_are_good() -> None:
    """The valid records beside the refused ones are read."""
    assert [read(records(form))[0][1] for form in ("0.1", "1.0")] == [bytes(512) + PAGE] * 2


MANY = [(offset, 0) for offset in range(60)]
PAIR = tars.pax_record("GNU.sparse.offset", "0") + tars.pax_record("GNU.sparse.numbytes", "0")
HOSTILE = {
    "truncated-map-blocks": (tars.old_sparse("x", 99, MANY, blocks=1)[:-100], "middle of a header"),
    "map-blocks-missing": (tars.old_sparse("x", 99, MANY, blocks=0) + tars.file("y"), "after its end|bad number"),
    "map-after-its-end": (
        tars.header("x", b"S", magic=tars.GNU, prefix=bytes(41 + 24) + tars.octal(0, 12) * 2),
        "goes on after its end",
    ),
    "map-block-after-its-end": (
        tars.header("x", b"S", magic=tars.GNU, prefix=bytes(41 + 96) + b"\1") + bytes(512),
        "goes on after its end",
    ),
    "old-of-another-tar": (tars.header("x", b"S"), "mixed formats"),
    "old-with-records": (tars.pax({"size": "0"}) + tars.old_sparse("x", 9, []), "mixed formats"),
    "old-and-new": (tars.pax({"GNU.sparse.size": "9"}) + tars.old_sparse("x", 9, []), "mixed formats"),
    "a-directory": (tars.pax({"GNU.sparse.size": "9"}) + tars.directory("x"), "mixed formats"),
    "a-link": (tars.pax({"GNU.sparse.size": "9"}) + tars.symlink("x", "y"), "mixed formats"),
    "an-old-directory": (tars.old_sparse("x/", 9, []), "mixed formats"),
    "name-that-leaves": (records(name="../x"), "leaves the archive"),
    "absolute-name": (records(name="/etc/passwd"), "absolute name"),
    "no-map": (records(map=None), "as many segments"),
    "no-size": (records(size=None), "without GNU.sparse.size"),
    "no-count": (records(numblocks=None), "without GNU.sparse.numblocks"),
    "no-real-size": (records("1.0", realsize=None), "without GNU.sparse.realsize"),
    "wrong-count": (records(numblocks="2"), "as many segments"),
    "odd-map": (records(map="512,512,1024"), "as many segments"),
    "map-of-text": (records(map="512,x"), "bad number"),
    "map-of-nothing": (records(map=","), "bad number"),
    "map-with-spaces": (records(map="512, 512"), "bad number"),
    "two-maps": (records("1.0", map="0,512"), "records that its format does not have"),
    "two-sizes": (records(realsize="4096"), "records that its format does not have"),
    "unknown-record": (records(colour="red"), "records that its format does not have"),
    "version-2": (records("1.0", major="2"), "none of 0.0, 0.1 and 1.0"),
    "version-1.1": (records("1.0", minor="1"), "none of 0.0, 0.1 and 1.0"),
    "half-a-version": (records("1.0", minor=None), "none of 0.0, 0.1 and 1.0"),
    "pairs-and-map": (tars.raw_pax(PAIR + tars.pax_record("GNU.sparse.map", "0,0")) + tars.file("x"), "two headers"),
    "half-a-pair": (
        tars.raw_pax(PAIR + tars.pax_record("GNU.sparse.offset", "0")) + tars.file("x"),
        "do not alternate",
    ),
    "pairs-reversed": (
        tars.raw_pax(tars.pax_record("GNU.sparse.numbytes", "0") + tars.pax_record("GNU.sparse.offset", "0")),
        "do not alternate",
    ),
    "two-in-one": (
        tars.raw_pax(tars.pax_record("GNU.sparse.offset", "0,0") + tars.pax_record("GNU.sparse.numbytes", "0,0")),
        "bad number",
    ),
    "data-without-map": (data_map(b""), "does not begin with a whole map"),
    "half-a-map": (data_map(tars.padded(b"2\n0\n0\n1\n")), "does not begin with a whole map"),
    "half-a-block": (data_map(b"0\n"), "does not begin with a whole map"),
    "map-that-is-data": (data_map(b"x" * 2048), "does not begin with a whole map"),
    "line-of-text": (data_map(tars.padded(b"1\n0x0\n0\n")), "bad number"),
    "negative-count": (data_map(tars.padded(b"-1\n")), "bad number"),
    "empty-lines": (data_map(b"\n" * 512), "bad number"),
    "endless-count": (data_map(tars.padded(b"9223372036854775807\n")), "at most 1048576"),
    "map-that-is-cut-off": (data_map(b"100000\n".ljust(1024, b"0"))[:-512], "middle of an entry's data|whole map"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused(name: str) -> None:
    """Sparse files that two readers would read differently, or none at all, are refused in one line."""
    blocks, reason = HOSTILE[name]
    with pytest.raises(ImageError, match=reason) as caught:
        for _ in TarReader(io.BytesIO(blocks), "x.aci"):
            pass
    assert str(caught.value).startswith("x.aci: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("form", ["old", "1.0"])
def test_number_of_segments_is_bounded(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of more segments than the limit is refused before memory is filled with it."""
    monkeypatch.setattr(sparse, "SEGMENTS_LIMIT", 40)
    some = [(number * 1024, 512) for number in range(25)]
    assert len(read(tars.sparse(form, "x", 99_999, some, PAGE * 25))[0][1]) == 99_999
    with pytest.raises(ImageError, match="more than 40 segments|at most 40"):
        read(tars.sparse(form, "x", 99, MANY))


@given(st.sampled_from(FORMATS), st.data())
def test_damage_raises_nothing_but_image_error(form: str, data: st.DataObject) -> None:
    """A sound sparse file with some bytes changed, and its checksums made right again, is read or refused."""
    pieces = [(number * 1024, PAGE) for number in range(7)] + [(8192, b"123456789")]
    archive = bytearray(archived(form, 9999, pieces))
    for _ in range(data.draw(st.integers(0, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.sampled_from(b"\0\x01\x800159,\n=\xff"))
    for start in range(0, len(archive), 512):
        block = archive[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            archive[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    tar = reader(bytes(archive))
    try:
        for entry in tar:
            assert 0 <= entry.hole_bytes <= entry.size_bytes
            assert sum(len(piece) for _, piece in tar.pieces(4096)) == entry.size_bytes - entry.hole_bytes
    except ImageError as error:
        assert "\n" not in str(error)
