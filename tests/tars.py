"""Builds tars and images byte by byte, so that tests can say things no tar program would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

BLOCK = 512
END = bytes(2 * BLOCK)
POSIX = b"ustar\x0000"
GNU = b"ustar  \0"
V7 = bytes(8)


def octal(number: int, width: int) -> bytes:
    """A numeric field as POSIX wants it."""
    return b"%0*o\0" % (width - 1, number)


def base256(number: int, width: int) -> bytes:
    """A numeric field as GNU tar writes what octal digits cannot hold."""
    raw = number.to_bytes(width, "big", signed=True)
    return bytes([raw[0] | 0x80]) + raw[1:]


def header(
    name: bytes | str,
    typeflag: bytes = b"0",
    *,
    size: int | bytes = 0,
    mode: int | bytes = 0o644,
    uid: int | bytes = 0,
    gid: int | bytes = 0,
    mtime: int | bytes = 1_000_000_000,
    link: bytes | str = b"",
    device: tuple[int, int] = (0, 0),
    magic: bytes = POSIX,
    prefix: bytes = b"",
    checksum: bytes | None = None,
) -> bytes:
    """One header block; numbers given as bytes are put there as they are."""

    def field(value: int | bytes, width: int) -> bytes:
        return value.ljust(width, b"\0") if isinstance(value, bytes) else octal(value, width)

    def text(value: bytes | str, width: int) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        assert len(raw) <= width
        return raw.ljust(width, b"\0")

    before = text(name, 100) + field(mode, 8) + field(uid, 8) + field(gid, 8) + field(size, 12) + field(mtime, 12)
    after = typeflag + text(link, 100) + magic + bytes(64)
    after += octal(device[0], 8) + octal(device[1], 8) + text(prefix, 155) + bytes(12)
    if checksum is None:
        checksum = b"%06o\0 " % (sum(before) + 8 * 0x20 + sum(after))
    return before + checksum + after


def padded(data: bytes) -> bytes:
    """Data with the zeros that fill its last block."""
    return data + bytes(-len(data) % BLOCK)


def file(name: bytes | str, data: bytes = b"", **fields: object) -> bytes:
    """A regular file with its data."""
    fields.setdefault("size", len(data))
    return header(name, **fields) + padded(data)  # type: ignore[arg-type]


def directory(name: bytes | str, mode: int = 0o755, **fields: object) -> bytes:
    """A directory."""
    return header(name, b"5", mode=mode, **fields)  # type: ignore[arg-type]


def symlink(name: bytes | str, target: bytes | str, **fields: object) -> bytes:
    """A symbolic link."""
    return header(name, b"2", link=target, mode=0o777, **fields)  # type: ignore[arg-type]


def hard_link(name: bytes | str, target: bytes | str, **fields: object) -> bytes:
    """A hard link."""
    return header(name, b"1", link=target, **fields)  # type: ignore[arg-type]


def pax(records: Mapping[str, bytes | str], typeflag: bytes = b"x") -> bytes:
    """A pax header with these records."""
    lines = b"".join(pax_record(key, value) for key, value in records.items())
    return raw_pax(lines, typeflag)


def raw_pax(data: bytes, typeflag: bytes = b"x") -> bytes:
    """A pax header with this data."""
    return header("PaxHeaders/x", typeflag, size=len(data)) + padded(data)


def pax_record(key: str, value: bytes | str) -> bytes:
    """One record, whose length counts its own digits."""
    body = b" " + key.encode() + b"=" + (value.encode() if isinstance(value, str) else value) + b"\n"
    length = len(body)
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body


def gnu_long(typeflag: bytes, text: bytes | str) -> bytes:
    """A GNU header with the long name (L) or link target (K) of the next entry."""
    data = (text.encode() if isinstance(text, str) else text) + b"\0"
    return header("././@LongLink", typeflag, size=len(data), magic=GNU) + padded(data)


def sparse(version: str, name: str, size: int, segments: Sequence[tuple[int, int]], data: bytes = b"") -> bytes:
    """A sparse file as GNU tar's formats old, 0.0, 0.1 and 1.0 have it, its map as given, sound or not."""
    if version == "old":
        return old_sparse(name, size, segments, data)
    records: list[tuple[str, str]]
    if version == "1.0":
        numbers = [len(segments), *(number for segment in segments for number in segment)]
        data = padded("".join(f"{number}\n" for number in numbers).encode()) + data
        records = [("major", "1"), ("minor", "0"), ("name", name), ("realsize", str(size))]
        name = "GNUSparseFile.1/x"
    else:
        records = [("size", str(size)), ("numblocks", str(len(segments)))]
        if version == "0.0":
            for offset, length in segments:
                records += [("offset", str(offset)), ("numbytes", str(length))]
        else:
            records += [("name", name), ("map", ",".join(f"{offset},{length}" for offset, length in segments))]
            name = "GNUSparseFile.1/x"
    lines = b"".join(pax_record(f"GNU.sparse.{key}", value) for key, value in records)
    return raw_pax(lines) + file(name, data)


def old_sparse(
    name: str, size: int, segments: Sequence[tuple[int, int]], data: bytes = b"", *, blocks: int | None = None
) -> bytes:
    """A sparse file in GNU tar's old format; of the blocks of its map only so many are there."""

    def field(number: int) -> bytes:
        return octal(number, 12) if 0 <= number < 1 << 33 else base256(number, 12)

    fields = [field(offset) + field(length) for offset, length in segments]
    groups = [fields[start : start + 21] for start in range(4, len(fields), 21)]
    more = [
        b"".join(group).ljust(504, b"\0") + bytes([number < len(groups) - 1]) for number, group in enumerate(groups)
    ]
    rest = bytes(41) + b"".join(fields[:4]).ljust(96, b"\0") + bytes([bool(more)]) + field(size)
    first = header(name, b"S", size=len(data), magic=GNU, prefix=rest)
    return first + b"".join(block.ljust(BLOCK, b"\0") for block in more[:blocks]) + padded(data)


def manifest(name: str = "example.com/app", version: str | None = "1", **fields: object) -> bytes:
    """An image manifest."""
    labels = [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}]
    if version is not None:
        labels.append({"name": "version", "value": version})
    document = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": name, "labels": labels, **fields}
    return json.dumps(document).encode()


def image(*entries: bytes, manifest_bytes: bytes | None = None) -> bytes:
    """An image: manifest, rootfs and these entries."""
    text = manifest() if manifest_bytes is None else manifest_bytes
    return file("manifest", text) + directory("rootfs") + b"".join(entries) + END


def write_image(path: Path, *entries: bytes, manifest_bytes: bytes | None = None) -> Path:
    """Write an image to a file and return its path."""
    path.write_bytes(image(*entries, manifest_bytes=manifest_bytes))
    return path
