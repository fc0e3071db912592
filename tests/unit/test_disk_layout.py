"""The layout of a machine's disk, and the program that a firmware boots of it."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ImageError
from minit.base.value import replace
from minit.image.disk import find_stub, unified_kernel
from minit.image.disklayout import ARCHITECTURES, DATA_BYTES, plan_disk, sfdisk_script
from minit.manifest.machineconfig import Disk
from minit.podfiles import paths

MIB = 1 << 20
EFI = ARCHITECTURES["amd64"]


@given(st.integers(36, 4096), st.integers(1, 1 << 34))
def test_everything_has_its_place(boot_mib: int, root_bytes: int) -> None:
    """Partitions begin at whole MiB, do not overlap, leave room for both tables, and slots are of equal size."""
    layout = plan_disk(Disk(boot_mib=boot_mib), EFI, MIB, root_bytes, "seed")
    assert [part.name for part in layout.partitions] == ["boot-a", "root-a", "boot-b", "root-b", "data"]
    assert all(part.start_bytes % MIB == 0 and part.size_bytes % MIB == 0 for part in layout.partitions)
    assert layout.partitions[0].start_bytes == MIB
    assert all(one.start_bytes + one.size_bytes == other.start_bytes for one, other in pairwise(layout.partitions))
    last = layout.partitions[-1]
    assert layout.size_bytes - (last.start_bytes + last.size_bytes) >= 33 * 512
    assert {layout.partition(f"boot-{slot}").size_bytes for slot in paths.MACHINE_SLOTS} == {boot_mib * MIB}
    (slot_bytes,) = {layout.partition(f"root-{slot}").size_bytes for slot in paths.MACHINE_SLOTS}
    assert 2 * root_bytes <= slot_bytes < 2 * root_bytes + MIB
    assert last.size_bytes == DATA_BYTES


def test_the_same_parts_make_the_same_disk() -> None:
    """Identifiers depend on the seed alone, and differ from each other."""
    one, same, other = (plan_disk(Disk(), EFI, MIB, MIB, seed) for seed in ("one", "one", "other"))
    assert one == same
    found = [layout.identifier for layout in (one, other)]
    found += [part.identifier for layout in (one, other) for part in layout.partitions]
    assert len(set(found)) == 12


def test_a_slot_that_is_too_small() -> None:
    """A root or kernel that does not fit in its slot is an error that names the key and the size."""
    with pytest.raises(ImageError, match=r"^disk\.root_mib is 10: the root has 11 MiB$"):
        plan_disk(Disk(root_mib=10), EFI, MIB, 10 * MIB + 1, "seed")
    with pytest.raises(ImageError, match=r"^disk\.boot_mib is 36: the kernel has 36 MiB$"):
        plan_disk(Disk(boot_mib=36), EFI, 36 * MIB, MIB, "seed")


def test_a_table_of_partitions(tmp_path: Path) -> None:
    """sfdisk makes of the layout what it says, and finds it in order."""
    if shutil.which("sfdisk") is None:
        pytest.skip("no sfdisk on PATH")
    layout = plan_disk(Disk(), EFI, MIB, 5 * MIB, "seed")
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(layout.size_bytes)
    subprocess.run(["sfdisk", "--quiet", disk], input=sfdisk_script(layout), text=True, check=True)
    subprocess.run(["sfdisk", "--verify", "--quiet", disk], check=True)
    dumped = subprocess.run(["sfdisk", "--dump", disk], capture_output=True, text=True, check=True).stdout
    lines = [line.split(" : ", 1)[1] for line in dumped.splitlines() if " : " in line]
    assert [line.replace(" ", "") for line in lines] == [
        line.replace(" ", "") for line in sfdisk_script(layout).splitlines() if line.startswith("start=")
    ]


@pytest.fixture
def stub(tmp_path: Path) -> bytes:
    """A program of the format of firmware's."""
    (tmp_path / "stub.s").write_text(".globl _start\n_start: ret\n.data\n.long 1\n")
    program = tmp_path / "stub.efi"
    subprocess.run(["cc", "-c", "-o", tmp_path / "stub.o", tmp_path / "stub.s"], check=True)
    linker: list[str | Path] = [
        "ld",
        "-m",
        "i386pep",
        "--subsystem",
        "10",
        "--section-alignment",
        "512",
        "-o",
        program,
        tmp_path / "stub.o",
    ]
    if subprocess.run(linker, capture_output=True, check=False).returncode != 0:
        pytest.skip("no linker for programs of a firmware")
    return program.read_bytes()


def test_a_kernel_in_a_program(stub: bytes, tmp_path: Path) -> None:
    """Another program finds the sections that were added, at addresses of their own, beside those that were there."""
    sections = {".cmdline": b"quiet\0", ".linux": b"kernel" * 1000, ".initrd": b"root" * 2000}
    path = tmp_path / "whole.efi"
    path.write_bytes(unified_kernel(stub, sections, "stub"))
    for name, data in sections.items():
        out = tmp_path / "section"
        subprocess.run(["objcopy", "-O", "binary", f"--only-section={name}", path, out], check=True)
        assert out.read_bytes() == data
    shown = subprocess.run(["objdump", "-h", path], capture_output=True, text=True, check=True).stdout
    found = [line.split() for line in shown.splitlines() if line.lstrip()[:1].isdigit()]
    assert [section[1] for section in found][-3:] == list(sections) and ".text" in shown
    places = sorted((int(section[3], 16), int(section[2], 16)) for section in found)
    assert all(place + size <= other for (place, size), (other, _) in pairwise(places))
    assert all(place % 4096 == 0 for place, _ in places[-3:])


def test_the_stub_of_a_processor(tmp_path: Path) -> None:
    """A stub that is unpacked beside the kernel is used; where there is none it is said which package has it."""
    names = replace(EFI, stub="linuxnone.efi.stub")
    with pytest.raises(
        ImageError, match=r"^/usr/lib/.*/linuxnone\.efi\.stub is missing: Debian's package systemd-boot-efi"
    ):
        find_stub(names, tmp_path)
    place = tmp_path / "usr/lib/systemd/boot/efi/linuxnone.efi.stub"
    place.parent.mkdir(parents=True)
    place.touch()
    assert find_stub(names, tmp_path) == place


@given(st.binary(max_size=500))
def test_what_is_no_program(data: bytes) -> None:
    """Anything else than a program of a firmware is an error that names its file."""
    with pytest.raises(ImageError, match=r"^some/file: not a stub for a firmware"):
        unified_kernel(b"MZ" + data, {".linux": b"kernel"}, "some/file")
