"""Image files: compression, bombs, the image ID, and what every image must contain."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.archives.aci import copy_image
from minit.archives.streams import Limits, Uncompressed
from minit.base.errors import ImageError
from tests import tars
from tests.support.zstandard import zstd

SMALL = Limits(size_bytes=8 << 20, ratio_from_bytes=1 << 20)
# The last is of a frame of zstd to be skipped.
MAGICS = [b"", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}


def copy(data: bytes, limits: Limits = SMALL) -> tuple[str, bytes, bytes]:
    """Return image ID, manifest and uncompressed tar of an image file."""
    written = bytearray()
    image_id, manifest = copy_image(io.BytesIO(data), "x.aci", written.extend, limits)
    return image_id, manifest, bytes(written)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_gives_the_same_image(compression: str) -> None:
    """ID, manifest and stored tar depend on the uncompressed tar alone."""
    data = tars.image(tars.file("rootfs/x", os.urandom(700_000)))
    image_id, manifest, written = copy(COMPRESSIONS[compression](data))
    assert image_id == "sha512-" + hashlib.sha512(data).hexdigest()[:64]
    assert manifest == tars.manifest()
    assert written == data


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
def test_concatenated_streams_and_padding_are_one_image(compression: str) -> None:
    """Two compressed halves by cat are read to their end, zeros between and after them skipped."""
    data = tars.image(tars.file("rootfs/x", os.urandom(5000)))
    compress = COMPRESSIONS[compression]
    assert copy(compress(data[:3000]) + bytes(8) + compress(data[3000:]) + bytes(512))[2] == data


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
def test_a_stream_for_each_file(compression: str) -> None:
    """More than a thousand streams of 600 bytes, with padding and empty ones between some, are one image."""
    data = tars.image(tars.file("rootfs/x", os.urandom(720 << 10)))
    compress = COMPRESSIONS[compression]
    parts = [compress(data[start : start + 600]) for start in range(0, len(data), 600)]
    parts[100::500] = [part + bytes(4) + compress(b"") for part in parts[100::500]]
    assert copy(b"".join(parts))[2] == data


NEXT_TO_NOTHING = {
    **{name: compress(b"") for name, compress in COMPRESSIONS.items() if name != "tar"},
    "a letter in zstd": zstd.compress(b"x"),
    "zeros in zstd": zstd.compress(bytes(512)),
    "zeros in gzip": gzip.compress(bytes(4096)),
    "a frame to be skipped": b"\x50\x2a\x4d\x18" + bytes(4),
}


@pytest.mark.parametrize("stream", NEXT_TO_NOTHING.values(), ids=NEXT_TO_NOTHING.keys())
@pytest.mark.parametrize("padding", [b"", b"\0"])
def test_streams_with_nothing_in_them(stream: bytes, padding: bytes) -> None:
    """However many streams of next to nothing follow each other, no more than a thousand or two are read."""
    many = io.BytesIO((stream + padding) * ((8 << 20) // len(stream)))
    with pytest.raises(ImageError, match="decompression bomb"):
        Uncompressed(many, "x.aci").readall()
    assert many.tell() < 1 << 20


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
def test_damaged_compression_is_refused(compression: str) -> None:
    """A truncated stream, a changed byte and garbage behind the end are told apart from an image."""
    good = COMPRESSIONS[compression](tars.image(tars.file("rootfs/x", os.urandom(5000))))
    changed = bytearray(good)
    changed[len(good) // 2] ^= 0xFF
    for bad in (good[:-20], good[:40], bytes(changed), good + b"garbage"):
        with pytest.raises(ImageError, match=rf"x.aci: .*{compression} data"):
            copy(bad)


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
def test_bombs_are_refused_by_size(compression: str) -> None:
    """An image that grows beyond the limit is refused when it does, not after it filled the disk."""
    bomb = COMPRESSIONS[compression](tars.image(tars.file("rootfs/x", bytes(32 << 20))))
    written = bytearray()
    with pytest.raises(ImageError, match="more than 8388608 bytes when uncompressed"):
        copy_image(io.BytesIO(bomb), "x.aci", written.extend, Limits(size_bytes=8 << 20, ratio=1 << 40))
    assert len(written) <= (8 << 20) + (1 << 20)


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
def test_bombs_are_refused_by_ratio(compression: str) -> None:
    """More than a thousand bytes from one is a bomb once there are enough of them."""
    bomb = COMPRESSIONS[compression](tars.image(tars.file("rootfs/x", bytes(32 << 20))))
    with pytest.raises(ImageError, match="decompression bomb"):
        copy(bomb, Limits(ratio_from_bytes=2 << 20, ratio=900))


def test_memory_stays_bounded() -> None:
    """Reading a bomb takes a few buffers, not the size of what it expands to."""
    bomb = gzip.compress(tars.image(tars.file("rootfs/x", bytes(64 << 20))))
    tracemalloc.start()
    copy_image(io.BytesIO(bomb), "x.aci", len, Limits(ratio=1 << 40))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 8 << 20


def test_xz_dictionaries_are_bounded() -> None:
    """An xz file that asks for more memory than xz -9 ever does is refused."""
    data = bytearray(lzma.compress(b"x"))
    # The stream header has 12 bytes. Then comes a block header with its own length, LZMA2's number (0x21), the
    # length of its properties (1), the dictionary size as a code (38 is 2 GiB), and a CRC at the end.
    block, end = 12, 12 + (data[12] + 1) * 4
    data[data.index(b"\x21\x01", block) + 2] = 38
    data[end - 4 : end] = zlib.crc32(data[block : end - 4]).to_bytes(4, "little")
    with pytest.raises(ImageError, match="damaged xz data: Memory usage limit"):
        copy(bytes(data))


ROOTFS = tars.directory("rootfs")
MANIFEST = tars.file("manifest", tars.manifest())
LAYOUTS = {
    "nothing": (b"", "no manifest"),
    "empty-tar": (tars.END, "no manifest"),
    "no-manifest": (ROOTFS, "no manifest"),
    "no-rootfs": (MANIFEST, "no rootfs directory"),
    "rootfs-only-implied": (MANIFEST + tars.file("rootfs/x"), "no rootfs directory"),
    "rootfs-is-a-file": (MANIFEST + tars.file("rootfs"), "rootfs is a regular file"),
    "rootfs-is-a-symlink": (MANIFEST + tars.symlink("rootfs", "/"), "rootfs is a symbolic link"),
    "rootfs-becomes-a-symlink": (MANIFEST + ROOTFS + tars.symlink("./rootfs", "/"), "rootfs is a symbolic link"),
    "manifest-twice": (MANIFEST + ROOTFS + tars.file("./manifest", tars.manifest("b")), "two entries named manifest"),
    "manifest-too-big": (
        ROOTFS + tars.file("manifest", tars.manifest() + b" " * (4 << 20)),
        "a manifest of 4194.* bytes",
    ),
    "manifest-is-a-symlink": (ROOTFS + tars.symlink("manifest", "/etc/passwd"), "manifest is a symbolic link"),
    "manifest-is-a-hard-link": (ROOTFS + tars.hard_link("manifest", "rootfs/x"), "manifest is a hard link"),
    "manifest-is-a-directory": (ROOTFS + tars.directory("manifest"), "manifest is a directory"),
    "manifest-is-a-fifo": (ROOTFS + tars.header("manifest", b"6"), "manifest is a fifo"),
    "manifest-is-no-json": (ROOTFS + tars.file("manifest", b"{"), "x.aci: manifest"),
    "manifest-of-a-pod": (ROOTFS + tars.file("manifest", b'{"acKind":"PodManifest","acVersion":"0.8.11"}'), "acKind"),
    "manifest-repeats-a-key": (
        ROOTFS + tars.file("manifest", b'{"acKind":"ImageManifest","acKind":"ImageManifest"}'),
        "x.aci: manifest",
    ),
    "manifest-deeply-nested": (ROOTFS + tars.file("manifest", b"[" * 100_000), "x.aci: manifest"),
    "html": (b"<html>" * 200, "not a tar archive"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_no_image_is_refused(name: str) -> None:
    """An image has exactly one regular manifest that is valid, and a directory rootfs."""
    data, reason = LAYOUTS[name]
    with pytest.raises(ImageError, match=reason) as caught:
        copy(data)
    assert "\n" not in str(caught.value)


def test_the_manifest_may_come_last() -> None:
    """rkt's own export writes the manifest after the rootfs."""
    assert copy(ROOTFS + tars.file("./rootfs/x", b"1") + MANIFEST + tars.END)[1] == tars.manifest()


@given(st.sampled_from(MAGICS), st.binary(max_size=300))
def test_arbitrary_files_raise_nothing_but_image_error(magic: bytes, rest: bytes) -> None:
    """Any content behind a magic number is no image, and nothing breaks."""
    with pytest.raises(ImageError):
        copy(magic + rest)


@given(st.sampled_from(["gzip", "bzip2", "xz", "zstd"]), st.binary(max_size=600))
def test_arbitrary_contents_raise_nothing_but_image_error(compression: str, content: bytes) -> None:
    """Sound compression of something that is no tar is refused all the same."""
    with pytest.raises(ImageError):
        copy(COMPRESSIONS[compression](content))
