"""
The readers of archives under atheris: `python -m tests.support.fuzz_archives CORPUS [OPTION...]`, options of libFuzzer.

An input is a tar, whose checksums are made right first, since chance hits none; or with a magic number in front a
compressed image. Anything but an ImageError of one line, or a path that leaves the archive, is a find.
"""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["minit"]):
    from minit.archives.aci import copy_image
    from minit.archives.streams import Limits
    from minit.archives.tar import DEPTH_LIMIT, TarReader
    from minit.archives.tarentry import Kind
    from minit.base.errors import ImageError

from tests import tars

_LIMITS = Limits(size_bytes=1 << 20, ratio=100, ratio_from_bytes=1 << 16)
_BLOCK = 512
_CHECKSUM = slice(148, 156)


def read_one(data: bytes) -> None:
    """Read one input to its end."""
    try:
        if data[:2] == b"\x1f\x8b" or data[:3] == b"BZh" or data[:6] == b"\xfd7zXZ\x00":
            copy_image(io.BytesIO(data), "x.aci", lambda written: None, _LIMITS)
            return
        tar = TarReader(io.BytesIO(with_checksums(data)), "x.aci")
        for entry in tar:
            parts = entry.path.split("/")
            assert ".." not in parts and not entry.path.startswith("/") and len(parts) <= DEPTH_LIMIT, entry
            assert "\0" not in entry.path and 0 <= entry.mode <= 0o7777 and entry.size_bytes >= 0, entry
            if entry.kind is Kind.HARD_LINK:
                assert ".." not in entry.link_target.split("/") and not entry.link_target.startswith("/"), entry
            assert 0 <= entry.hole_bytes <= entry.size_bytes, entry
            tar.read(100)
            for offset, piece in tar.pieces(100):
                assert offset + len(piece) <= entry.size_bytes, entry
        copy_image(io.BytesIO(with_checksums(data)), "x.aci", lambda written: None, _LIMITS)
    except ImageError as error:
        assert "\n" not in str(error), error


def with_checksums(data: bytes) -> bytes:
    """Return a tar with the right checksum in all that looks like a header."""
    archive = bytearray(data)
    for start in range(0, len(archive) - _BLOCK + 1, _BLOCK):
        block = archive[start : start + _BLOCK]
        if block[257:262] == b"ustar":
            block[_CHECKSUM] = b" " * 8
            archive[start + _CHECKSUM.start : start + _CHECKSUM.stop] = b"%06o\0 " % sum(block)
    return bytes(archive)


def write_corpus(directory: Path) -> None:
    """Write what to begin with: something of everything that the reader knows."""
    entries = {
        "file": tars.file("rootfs/x", b"data"),
        "directory": tars.directory("rootfs/d"),
        "symlink": tars.symlink("rootfs/l", "x"),
        "hard-link": tars.hard_link("rootfs/h", "rootfs/x"),
        "device": tars.header("rootfs/n", b"3", device=(1, 3)),
        "pax": tars.pax({"path": "rootfs/y", "size": "4", "mtime": "1.5", "SCHILY.xattr.user.x": "1"}) + tars.file("z"),
        "gnu": tars.gnu_long(b"L", "rootfs/z") + tars.gnu_long(b"K", "t") + tars.symlink("a", "b"),
        "global": tars.pax({"comment": "x"}, b"g"),
        "prefix": tars.file("name", prefix=b"rootfs/p"),
        "large": tars.file("rootfs/b", uid=tars.base256(1 << 30, 8), magic=tars.GNU),
        "old": tars.header("rootfs/o/", magic=tars.V7),
        **{
            f"sparse-{form}": tars.sparse(form, f"rootfs/{form}", 9999, [(512, 512), (8192, 4)], bytes(516))
            for form in ("old", "0.0", "0.1", "1.0")
        },
    }
    for name, data in entries.items():
        (directory / name).write_bytes(data + tars.END)
    image = tars.image(*entries.values())
    (directory / "image").write_bytes(image)
    (directory / "gzip").write_bytes(gzip.compress(image))


def main() -> None:
    """Fuzz, from a corpus that is made when its directory is empty."""
    directory = Path(sys.argv[1])
    if not any(directory.iterdir()):
        write_corpus(directory)
    atheris.Setup(sys.argv, read_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
