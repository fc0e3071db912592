"""Kernel modules: what is collected for a machine, and which are for a device."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ImageError
from minit.image.kernelmodules import collect_firmware, collect_modules, find_kernel, parse_softdeps
from minit.machine.devices import parse_volume_ids
from minit.machine.modules import Modules, module_options
from tests.support.elf import module_bytes


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A kernel package, unpacked, with a few modules."""
    drivers = tmp_path / "lib/modules/6.1.0-test/kernel/drivers"
    drivers.mkdir(parents=True)
    (drivers / "net-card.ko").write_bytes(module_bytes("alias=pci:v00001AF4d00001000sv*", "depends=bus,helper-lib"))
    (drivers / "bus.ko.gz").write_bytes(gzip.compress(module_bytes("depends=", "alias=virtio:d*")))
    (drivers / "helper-lib.ko").write_bytes(module_bytes("depends=bus"))
    (drivers / "broken.ko").write_bytes(b"\x7fELF\x02\x01")
    (drivers / "endless.ko").write_bytes(module_bytes()[:0x28] + b"\xff" * 200)
    (drivers / "orphan.ko").write_bytes(module_bytes("depends=nowhere"))
    (drivers.parent.parent / "modules.builtin").write_bytes(b"kernel/\xff.ko\nkernel/fs/ext4/ext4.ko\n")
    return tmp_path


def test_modules_come_with_what_they_need(package: Path) -> None:
    """Each is after what it needs, uncompressed, under the one spelling that the kernel has."""
    found = collect_modules(package, ["net_card", "ext4"])
    assert [one.name for one in found.modules] == ["bus", "helper_lib", "net_card"]
    assert (found.release, found.builtin) == ("6.1.0-test", ("ext4",))
    assert found.modules[0].data == module_bytes("depends=", "alias=virtio:d*")
    assert json.loads(found.table())["modules"][2] == {
        "name": "net_card",
        "before": ["bus", "helper_lib"],
        "after": [],
        "aliases": ["pci:v00001AF4d00001000sv*"],
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("CONFIG_FW_LOADER_COMPRESS_XZ=y", {"a.bin.xz": lzma.compress(b"a"), "b.bin": b"b", "sub/c-1.fw": b"c"}),
        ("# CONFIG_FW_LOADER_COMPRESS_XZ is not set", {"a.bin": b"a", "b.bin": b"b", "sub/c-1.fw": b"c"}),
        (None, {"a.bin": b"a", "b.bin": b"b", "sub/c-1.fw": b"c"}),
    ],
)
def test_firmware_of_modules(tmp_path: Path, config: str | None, expected: dict[str, bytes]) -> None:
    """It is found where a kernel looks for it, by name or pattern, and compressed where the kernel takes that."""
    kernel, place = tmp_path / "kernel", tmp_path / "firmware"
    drivers = kernel / "lib/modules/6.1.0-test/kernel"
    for directory in (drivers, kernel / "boot", place / "6.1.0-test", place / "updates", place / "sub"):
        directory.mkdir(parents=True)
    if config is not None:
        (kernel / "boot/config-6.1.0-test").write_text(f"# a kernel\n{config}\n")
    (tmp_path / "secret").write_bytes(b"secret")
    (place / "a.bin.xz").write_bytes(lzma.compress(b"a"))
    (place / "b.bin").write_bytes(b"old")
    (place / "6.1.0-test/b.bin").write_bytes(b"older")
    (place / "updates/b.bin").write_bytes(b"b")
    (place / "sub/c-1.fw").symlink_to("target")
    (place / "sub/target").write_bytes(b"c")
    (place / "sub/d.fw").symlink_to("nowhere")
    names = ("a.bin", "b.bin", "sub/c-*.fw", "sub/d.fw", "sub", "../secret", f"{tmp_path}/secret")
    (drivers / "card.ko").write_bytes(module_bytes(*(f"firmware={name}" for name in names)))
    modules = collect_modules(kernel, ["card"])
    found = collect_firmware(modules.modules, modules.release, kernel, [tmp_path / "empty", place])
    assert dict(found.files) == expected
    assert found.missing == (("card", names[3:]),)


@pytest.fixture
def soft_package(tmp_path: Path) -> Path:
    """The modules of Debian's kernel 6.1 that have a softdep, and those they name, with their own words."""
    drivers = tmp_path / "lib/modules/6.1.0-test/kernel"
    drivers.mkdir(parents=True)
    for name, pairs in {
        "btrfs": ("depends=libcrc32c", "softdep=pre: blake2b-256", "softdep=pre: crypto-crc32c", "alias=fs-btrfs"),
        "libcrc32c": ("depends=", "softdep=pre: crc32c"),
        "crc32c-intel": ("alias=crypto-crc32c-intel", "alias=crc32c", "alias=crypto-crc32c"),
        "crc32c-slow": ("depends=nowhere", "alias=crypto-crc32c"),
        "vfio": ("depends=", "softdep=post: vfio_iommu_type1 vfio_iommu_spapr_tce"),
        "vfio_iommu_type1": ("depends=vfio",),
        "cifs": ("softdep=gcm", "softdep=pre: ext4"),
        "gcm": (),
        "chicken": ("softdep=pre: egg",),
        "egg": ("depends=chicken",),
    }.items():
        (drivers / f"{name}.ko").write_bytes(module_bytes(*pairs))
    (drivers.parent / "modules.builtin").write_bytes(b"kernel/fs/ext4/ext4.ko\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("btrfs", ["crc32c_intel", "libcrc32c", "btrfs"]),
        ("vfio", ["vfio", "vfio_iommu_type1"]),
        ("cifs", ["cifs"]),
        ("chicken", ["chicken"]),
        ("egg", ["chicken", "egg"]),
    ],
)
def test_a_softdep(
    soft_package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, order: list[str]
) -> None:
    """Modules of a softdep, by name or alias, come along where there are such, and are loaded before or after."""
    found = collect_modules(soft_package, [name])
    assert [one.name for one in found.modules] == order
    Modules(json.loads(found.table()), str(tmp_path)).load(name)
    # No file is there, so that each is tried in vain.
    assert [line.split()[2] for line in capfd.readouterr().err.splitlines()] == [f"{one}:" for one in order]


def test_modules_by_what_else_they_are_called(soft_package: Path) -> None:
    """All modules with an alias come along, and none is missed where there is no such."""
    found = collect_modules(soft_package, [], ["crypto-crc32c", "crypto-lzo-rle"])
    assert [module.name for module in found.modules] == ["crc32c_intel"]


@given(st.lists(st.text(st.sampled_from("pre:ost \n-_ab")) | st.text()))
def test_any_softdep(values: list[str]) -> None:
    """Nothing in a softdep is more than names, and each has a side."""
    pre, post = parse_softdeps(values)
    assert not {"", "pre:", "post:"} & {*pre, *post}
    assert {*pre, *post} <= {word for value in values for word in value.split()}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "there is no kernel module missing"),
        ("orphan", "there is no kernel module nowhere, which orphan needs"),
        ("broken", "broken.ko: not a kernel module"),
        ("endless", "endless.ko: not a kernel module"),
    ],
)
def test_what_cannot_be_collected(package: Path, name: str, message: str) -> None:
    """A module that is not there is an error when the image is built, not when it boots."""
    with pytest.raises(ImageError, match=message):
        collect_modules(package, [name])


def test_a_directory_without_modules(tmp_path: Path) -> None:
    """A file that is no kernel package is refused."""
    with pytest.raises(ImageError, match="has no kernel modules"):
        collect_modules(tmp_path, ["x"])


def test_the_kernel_of_modules(package: Path) -> None:
    """A kernel lies beside its modules, as packages have it, or among them; without one it is said where to put it."""
    with pytest.raises(ImageError, match=r"has no kernel: expected boot/vmlinuz-6\.1\.0-test in it"):
        find_kernel(package)
    (package / "boot").mkdir()
    for place in ("boot/vmlinuz-6.1.0-test", "lib/modules/6.1.0-test/vmlinuz"):
        (package / place).write_bytes(b"kernel")
        assert find_kernel(package) == find_kernel(package / "lib/modules/6.1.0-test") == package / place


def test_modules_of_a_device(package: Path) -> None:
    """MODALIAS is matched against the patterns of the modules."""
    modules = Modules(json.loads(collect_modules(package, ["net-card"]).table()))
    assert modules.matching("pci:v00001AF4d00001000sv00001AF4sd00000001bc02sc00i00") == ["net_card"]
    assert modules.matching("virtio:d00000001v00001AF4") == ["bus"]
    assert modules.matching("usb:v1D6Bp0002") == []


def test_the_module_of_a_file_system(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is found by the alias that the kernel would ask modprobe for; without one the kernel has it in itself."""
    table = {"modules": [{"name": "odd", "before": [], "after": [], "aliases": ["fs-oddfs"]}]}
    modules = Modules(table, str(tmp_path))
    assert not modules.are_for_devices
    for fstype in ("oddfs", "ext4"):
        modules.load_filesystem(fstype)
    assert capfd.readouterr().err == f"minit: module odd: {tmp_path}/odd.ko: no such file or directory\n"


def test_names_of_filesystems() -> None:
    """Label and UUID are read from the superblocks of ext4 and xfs."""
    ext = bytearray(2048)
    ext[1024 + 0x38 : 1024 + 0x3A] = b"\x53\xef"
    ext[1024 + 0x68 : 1024 + 0x78] = bytes(range(16))
    ext[1024 + 0x78 : 1024 + 0x7C] = b"data"
    uuid = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert parse_volume_ids(bytes(ext)) == {"UUID": uuid, "LABEL": "data"}
    xfs = b"XFSB" + bytes(28) + bytes(range(16)) + bytes(60) + bytes(12)
    assert parse_volume_ids(xfs) == {"UUID": uuid}


@given(st.binary(max_size=2048))
def test_any_content_of_a_device(data: bytes) -> None:
    """Nothing on a device makes reading its names fail."""
    assert set(parse_volume_ids(data)) <= {"UUID", "LABEL"}


def test_parameters_of_modules() -> None:
    """They are on the kernel's command line, where a module's name may have hyphens."""
    assert module_options("quiet i2c-stub.chip_addr=0x50 minit.debug root=LABEL=a.b i2c_stub.functionality=1\n") == {
        "i2c_stub": "chip_addr=0x50 functionality=1",
        "minit": "debug",
    }
