"""An update is written to a slot as a whole, and whatever it lacks leaves the slot empty or as it was."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError, UpdateError
from minit.base.progress import silent
from minit.base.value import replace
from minit.machine.update import NothingNewer, Running, SlotWriter, check_version, read_manifest, tell_tenths
from minit.machine.updatesource import Read, open_source
from minit.manifest.machineupdate import (
    BLOCK_BYTES,
    UpdateManifest,
    UpdatePart,
    dump_update,
    make_header,
    signed_bytes,
)

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_RUNNING = Running(
    model="sensor",
    version="1.9",
    architecture="amd64",
    root_hash="f" * 64,
    keys=(_KEY.public_key().public_bytes_raw(),),
)
_ROOT_HASH = bytes(range(32))
_BLOCKS = 70
_TREE = b"verity\0\0" + bytes(8) + _ROOT_HASH[:16] + b"tree".ljust(BLOCK_BYTES - 32, b"\1")
_ROOT = b"".join(number.to_bytes(2, "big") * (BLOCK_BYTES // 2) for number in range(1, _BLOCKS + 1)) + 2 * _TREE
_BOOT = b"\xeb\x58\x90FAT".ljust(BLOCK_BYTES, b"\2") + b"\3" * 2 * BLOCK_BYTES
_OLD = b"verity\0\0" + b"old".ljust(BLOCK_BYTES - 8, b"\4")


def _part(data: bytes, partition_bytes: int) -> UpdatePart:
    return UpdatePart(size_bytes=len(data), sha512=hashlib.sha512(data).hexdigest(), partition_bytes=partition_bytes)


_MANIFEST = UpdateManifest(
    model="sensor",
    version="1.10",
    architecture="amd64",
    root_hash=_ROOT_HASH.hex(),
    root_blocks=_BLOCKS,
    root=_part(_ROOT, len(_ROOT)),
    boot=_part(_BOOT, 8 * BLOCK_BYTES),
)


class Slot:
    """Two files as the partitions of a slot with an old version, whose hash tree is behind the new one."""

    def __init__(self, directory: Path) -> None:
        self.boot, self.root = directory / "boot", directory / "root"
        self.boot.write_bytes(b"\5" * 10 * BLOCK_BYTES)
        self.root.write_bytes(b"\6" * (len(_ROOT) + BLOCK_BYTES) + _OLD + b"\7" * BLOCK_BYTES)
        self.before = self.boot.read_bytes(), self.root.read_bytes()

    def write(self, manifest: UpdateManifest, data: bytes) -> None:
        """Write an update that is `data` behind its manifest."""
        with SlotWriter(str(self.boot), str(self.root)) as writer:
            writer.write(manifest, _reader(data), "update", silent)

    def holds(self) -> bool:
        """Tell whether the update is there."""
        with SlotWriter(str(self.boot), str(self.root)) as writer:
            return writer.holds(_MANIFEST)


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    """A slot with an old version."""
    return Slot(tmp_path)


def _reader(data: bytes) -> Read:
    rest = memoryview(data)

    def read(size_bytes: int) -> bytes:
        nonlocal rest
        # As a socket does it.
        piece, rest = rest[: min(size_bytes, 1000)], rest[min(size_bytes, 1000) :]
        return bytes(piece)

    return read


def test_an_update_is_written(slot: Slot) -> None:
    """Both parts are in their places, and nothing else is changed but blocks that a kernel would take for a tree."""
    assert not slot.holds()
    slot.write(_MANIFEST, _ROOT + _BOOT + b"more")
    boot, root = slot.boot.read_bytes(), slot.root.read_bytes()
    assert boot == _BOOT + slot.before[0][len(_BOOT) :]
    assert root == _ROOT + b"\6" * BLOCK_BYTES + bytes(BLOCK_BYTES) + b"\7" * BLOCK_BYTES
    assert slot.holds()


def _damaged(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", r"update: cut short: 0 bytes of \d+ for the root partition"),
        (_ROOT[:-1], r"update: cut short: \d+ bytes of \d+ for the root partition"),
        (_ROOT + _BOOT[:-1], r"update: cut short: \d+ bytes of \d+ for the boot partition"),
        (_damaged(_ROOT, 0) + _BOOT, "update: damaged: the root partition is not the one that was signed"),
        (_damaged(_ROOT, len(_ROOT) - 1) + _BOOT, "update: damaged: the root partition"),
        (_ROOT + _damaged(_BOOT, 0), "update: damaged: the boot partition"),
        (_ROOT + _damaged(_BOOT, len(_BOOT) - 1), "update: damaged: the boot partition"),
    ],
)
def test_a_bad_part(slot: Slot, data: bytes, line: str) -> None:
    """A part that is cut short, or not the one that was signed, is one line, and the slot is empty."""
    with pytest.raises(UpdateError, match=f"^{line}"):
        slot.write(_MANIFEST, data)
    assert slot.boot.read_bytes()[:BLOCK_BYTES] == bytes(BLOCK_BYTES)
    assert not slot.holds()


def test_the_slot_is_empty_while_it_is_written(slot: Slot) -> None:
    """From the first byte to the last no firmware finds a file system there, and no kernel an old hash tree."""
    seen = []

    def read(size_bytes: int) -> bytes:
        seen.append((slot.boot.read_bytes()[:BLOCK_BYTES], _OLD in slot.root.read_bytes()))
        return inner(size_bytes)

    inner = _reader(_ROOT + _BOOT)
    with SlotWriter(str(slot.boot), str(slot.root)) as writer:
        writer.write(_MANIFEST, read, "update", silent)
    assert set(seen) == {(bytes(BLOCK_BYTES), False)}


@pytest.mark.parametrize(("name", "size_bytes"), [("root", len(_ROOT) - 1), ("boot", 8 * BLOCK_BYTES - 1)])
def test_a_partition_that_is_too_small(slot: Slot, name: str, size_bytes: int) -> None:
    """A slot with too little room is one line, and stays as it was."""
    path = getattr(slot, name)
    os.truncate(path, size_bytes)
    before = slot.boot.read_bytes(), slot.root.read_bytes()
    with pytest.raises(UpdateError, match=rf"^update: the update needs \d+ bytes of {path}, which .*disk.{name}_mib"):
        slot.write(_MANIFEST, _ROOT + _BOOT)
    assert (slot.boot.read_bytes(), slot.root.read_bytes()) == before


def test_two_updates_at_once(slot: Slot) -> None:
    """A second update is refused while the first one is written, and changes nothing."""
    with slot.boot.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UpdateError, match="is not free: another update is being written$"):
            slot.write(_MANIFEST, _ROOT + _BOOT)
    assert (slot.boot.read_bytes(), slot.root.read_bytes()) == slot.before
    slot.write(_MANIFEST, _ROOT + _BOOT)


def test_a_disk_that_keeps_something_else(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk has is read again: if it is something else, the slot is empty."""
    real = os.pwrite

    def pwrite(fd: int, data: Any, place: int) -> int:
        if os.path.samestat(os.fstat(fd), slot.root.stat()) and place == 128 << 10:
            data = bytes(data[:-1]) + b"x"
        return real(fd, data, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(UpdateError, match=f"^{slot.root} has not what was written there"):
        slot.write(_MANIFEST, _ROOT + _BOOT)
    assert slot.boot.read_bytes()[:BLOCK_BYTES] == bytes(BLOCK_BYTES)


def _written(manifest: UpdateManifest = _MANIFEST, key: Ed25519PrivateKey = _KEY) -> bytes:
    data = dump_update(manifest)
    return make_header(data, key.sign(signed_bytes(data))) + data


def test_a_manifest_for_this_machine() -> None:
    """It is read from a stream, of which no byte behind it is taken."""
    read = _reader(_written() + b"rest")
    assert read_manifest(read, "update", _RUNNING) == _MANIFEST
    assert read(100) == b"rest"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "update: expected an update for a machine"),
        (_written()[:-1], r"update: expected \d+ bytes of manifest, got \d+"),
        (
            _written(key=Ed25519PrivateKey.from_private_bytes(b"1" * 32)),
            r"update: expected a signature by one of this machine's keys \(update.keys\)",
        ),
        (
            _written(replace(_MANIFEST, model="valve")),
            'update: an update for the model "valve", and this machine is "sensor"',
        ),
        (
            _written(replace(_MANIFEST, architecture="aarch64")),
            'update: an update for the processor "aarch64", and this machine is "amd64"',
        ),
    ],
)
def test_a_manifest_for_others(data: bytes, line: str) -> None:
    """What is not for this machine is one line."""
    with pytest.raises(MinitError, match=f"^{line}"):
        read_manifest(_reader(data), "update", _RUNNING)


@given(data=st.binary(max_size=400), place=st.integers(0, len(_written())))
def test_hostile_updates(data: bytes, place: int) -> None:
    """Whatever is in an update, from any place on, is one line and no other error."""
    hostile = _written()[:place] + data
    if hostile.startswith(_written()):
        return
    with pytest.raises(MinitError, match="^update: [^\n]*$"):
        read_manifest(_reader(hostile), "update", _RUNNING)


def test_versions() -> None:
    """What is not newer needs permission, and the root that runs is never written again."""
    check_version(_MANIFEST, _RUNNING, allow_downgrade=False)
    for version in ("1.10", "1.10.0", "1.11", "2"):
        running = replace(_RUNNING, version=version)
        with pytest.raises(NothingNewer, match=f"^version 1.10 is not newer than {version}, which runs"):
            check_version(_MANIFEST, running, allow_downgrade=False)
        check_version(_MANIFEST, running, allow_downgrade=True)
    with pytest.raises(NothingNewer, match="^version 1.10 is the one that runs$"):
        check_version(_MANIFEST, replace(_RUNNING, root_hash=_ROOT_HASH.hex()), allow_downgrade=True)


def test_files_and_standard_input(tmp_path: Path) -> None:
    """A source is a path or standard input, and one that cannot be read is one line."""
    (tmp_path / "file").write_bytes(b"data")
    with open_source(str(tmp_path / "file")) as read:
        assert (read(3), read(3), read(3)) == (b"dat", b"a", b"")
    for source, line in (
        (str(tmp_path / "none"), f"cannot read the update: {tmp_path}/none: no such file or directory"),
        (str(tmp_path), f"cannot read the update: {tmp_path}: is a directory"),
        ("ftp://x/y", "ftp://x/y: only http:// is understood"),
    ):
        with pytest.raises(UpdateError, match=f"^{line}$"), open_source(source) as read:
            read(1)


def test_progress() -> None:
    """Each step is said, and a long one in tenths."""
    said: list[str] = []
    say: Callable[[str], object] = said.append
    progress = tell_tenths(say)
    for done in range(0, 100, 4):
        progress("writing", done, 100)
    progress("reading", 0, None)
    assert said == [*(f"writing: {10 * tenth} %" for tenth in range(10)), "reading"]
