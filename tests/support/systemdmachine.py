"""
A Debian with systemd as its init, in qemu, and an ordinary user with subordinate ids, to whom the user's systemd
delegates control groups of the unified hierarchy.

The machine has the project, the libraries of the tests, and a stage1 image. The kernel is that of the other machines.
"""

from __future__ import annotations

import shutil
import sysconfig
import tarfile
from pathlib import Path

import pytest

from minit.image.cpio import write_cpio
from minit.image.kernelmodules import collect_modules
from tests.support.bootmachine import QemuMachine
from tests.support.machine import X86_64, Kernel
from tests.support.pods import BUSYBOX
from tests.support.stage0_world import REPOSITORY

USER = "tester"
NO_DEBIAN = "no Debian with systemd in build/systemd"

_DISK = REPOSITORY / "build/systemd/disk"
_MEMORY_MIB = 2048
_PROCESSORS = 2
_MODULES = (
    *("virtio_pci", "virtio_blk", "ext4", "overlay", "tun", "veth", "bridge"),
    *("nf_tables", "nft_chain_nat", "nft_masq", "nft_nat", "nft_ct"),
)
_PROJECT = ("entrypoints", "minit", "tests", "pyproject.toml")
_LEFT_OUT = ("atheris", "grimp", "importlinter", "libclang", "mypy", "pip", "ruff", "setuptools")
_END = "the script has ended with "
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs none /dev
echo
while read module; do insmod /modules/$module.ko || echo no module $module; done < /modules/order
mkdir /new
until mount -t ext4 /dev/vda /new; do sleep 0.1; done
mkdir /new/project
tar -x -f /dev/vdb -C /new/project
units=/new/etc/systemd/system
for place in $units $units/multi-user.target.wants; do ln -s /project/script.service $place; done
exec switch_root /new /lib/systemd/systemd
"""
# A service has no session of its own.
_SERVICE = """[Unit]
After=systemd-user-sessions.service systemd-logind.service
[Service]
Type=oneshot
ExecStart=/bin/sh /project/start
StandardOutput=file:/dev/console
StandardError=inherit
"""
_START = """\
set -e
useradd --create-home --shell /bin/sh USER
{ echo 'export PYTHONPATH=/project:/project/libraries LC_ALL=C.UTF-8'
  echo 'minit() { python3 -B -m minit "$@"; }'; } >> /home/USER/.profile
cp /project/*.aci /home/USER
chown USER:USER /home/USER/*
set +e
sh /project/script
echo "ENDED$?"
systemctl poweroff --force
"""


def run_on_systemd(kernel: Kernel, directory: Path, images: list[Path], script: str) -> list[str]:
    """
    Return what a shell script of root's says on the machine, where `images` are in the home of the user.

    The script becomes the user by `su -l`, which is a login to systemd. `minit` is a function of the user's shell.
    """
    if not _DISK.exists() or kernel.processor is not X86_64:
        pytest.skip(NO_DEBIAN)
    project = directory / "project"
    with tarfile.open(project, "w") as archive:
        _add_project(archive)
        for image in images:
            archive.add(image, image.name)
        start = _START.replace("USER", USER).replace("ENDED", _END)
        for name, text in ("script.service", _SERVICE), ("start", start), ("script", script):
            (directory / name).write_text(text)
            archive.add(directory / name, name)
    initial = directory / "initial.cpio"
    _make_initial(directory / "root", initial, kernel)
    disks = [f"{_DISK},snapshot=on", str(project)]
    options = ["-smp", str(_PROCESSORS)]
    words = "systemd.mask=serial-getty@ttyS0.service systemd.show_status=false systemd.firstboot=off"
    with QemuMachine(kernel, directory, initial, disks, (), words, _MEMORY_MIB, options) as machine:
        seen = 0
        while not (line := machine.wait_for_line("", after=seen)).startswith(_END):
            seen += 1
        machine.wait()
    assert line == f"{_END}0", "\n".join(machine.lines)
    return machine.lines


def _add_project(archive: tarfile.TarFile) -> None:
    for name in _PROJECT:
        archive.add(REPOSITORY / name, name, filter=_sources)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(_LEFT_OUT):
            archive.add(path, f"libraries/{path.name}", filter=_sources)


def _sources(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("__pycache__", ".aci", ".pth")) else member


def _make_initial(root: Path, initial: Path, kernel: Kernel) -> None:
    for name in ("bin", "dev", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy2(BUSYBOX, root / "bin")
    modules = collect_modules(kernel.modules, _MODULES).modules
    for module in modules:
        (root / f"modules/{module.name}.ko").write_bytes(module.data)
    (root / "modules/order").write_text("".join(f"{module.name}\n" for module in modules))
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    with initial.open("wb") as file:
        write_cpio(root, file)
