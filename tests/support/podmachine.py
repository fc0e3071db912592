"""
Tests of pods on a machine of arm64: pytest is its program, on the disk of Debian that builds stage1 images for it.

It has the project with tests/conftest.py, the libraries of the tests, a stage1 image, and modules of its kernel.
"""

from __future__ import annotations

import shlex
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

from minit.image.kernelmodules import collect_modules
from tests.support.bootmachine import QemuMachine
from tests.support.machine import AARCH64, Kernel
from tests.support.stage0_world import REPOSITORY

DEBIAN_PACKAGES = ("dash", "e2fsprogs", "iproute2", "mount", "nftables", "procps", "strace", "util-linux")
"""What the tests call, beside what builds need."""

_MODULES = ("overlay", "loop", "veth", "bridge", "dummy", "nf_tables", "nft_chain_nat", "nft_masq", "nft_nat", "nft_ct")
_PROJECT = ("benchmarks", "entrypoints", "minit", "pyproject.toml", "tests")
# Of the libraries: programs, and those that `make test-arm64` has for this processor.
_LEFT_OUT = (
    *("atheris", "grimp", "importlinter", "libclang", "mypy", "pip", "ruff", "setuptools"),
    *("_yaml", "backports", "google", "hypothesis", "_hypothesis", "yaml"),
)
_MEMORY_MIB = 2048
_PROCESSORS = 2
_DISKS = ("/dev/nvme0n1", "/dev/nvme1n1")
_WORDS = (
    f'root={_DISKS[0]} rootwait rootfstype=ext4 rw init=/usr/bin/busybox -- sh -c "busybox mount -t devtmpfs none /dev '
    f'&& mkdir /p && cd /p && busybox tar -x -f {_DISKS[1]} && exec busybox sh start"'
)
_START = """\
export PATH=/usr/sbin:/usr/bin PYTHONPATH=/p/libraries HOME=/root LC_ALL=C.UTF-8 MINIT_TEST_STAGE1=/p/stage1.aci
mkdir -p /dev/pts /dev/shm /root /var/tmp
for place in proc/proc sysfs/sys tmpfs/run tmpfs/dev/shm devpts/dev/pts cgroup2/sys/fs/cgroup; do
    busybox mount -t ${place%%/*} none /${place#*/}
done
for group in root:0 daemon:1 tty:5 disk:6 nogroup:65534; do echo ${group%:*}:x:${group#*:}: >> /etc/group; done
for user in root:0 daemon:1 nobody:65534; do
    echo ${user%:*}:x:${user#*:}:${user#*:}::/:/bin/sh >> /etc/passwd
done
busybox --install -s /usr/bin 2>/dev/null
while read module; do busybox insmod modules/$module.ko || echo no module $module; done < modules/order
busybox ip link set lo up
python3 -B -m pytest -v -rs --tb=short --color=no --no-header --timeout=900 -p no:cacheprovider TESTS
echo "ENDED$?"
busybox poweroff -f
"""
_END = "the tests have ended with "


def run_pod_tests(kernel: Kernel, directory: Path, stage1: Path, tests: Sequence[str]) -> list[str]:
    """
    Return what pytest says of tests, which are its arguments, on a machine; AssertionError if any of them fails.

    The directory is for the machine's files.
    """
    project = directory / "project"
    with tarfile.open(project, "w") as archive:
        _add_project(archive, directory, stage1)
        _add_modules(archive, directory, kernel)
        text = _START.replace("TESTS", shlex.join(tests)).replace("ENDED", _END)
        _add_text(archive, directory, "start", text)
    options = ["-smp", str(_PROCESSORS)]
    for number, disk in enumerate((f"{AARCH64.directory}/disk,snapshot=on", str(project))):
        options += ["-drive", f"file={disk},format=raw,if=none,id=disk{number}"]
        options += ["-device", f"nvme,drive=disk{number},serial={number}"]
    with QemuMachine(kernel, directory, words=_WORDS, memory_mib=_MEMORY_MIB, options=options) as machine:
        seen = 0
        while not machine.wait_for_line("", after=seen).startswith(_END):
            seen += 1
        machine.wait()
    assert f"{_END}0" in machine.lines, "\n".join(machine.lines)
    return machine.lines


def _add_project(archive: tarfile.TarFile, directory: Path, stage1: Path) -> None:
    for name in _PROJECT:
        archive.add(REPOSITORY / name, name, filter=_sources)
    archive.add(stage1, "stage1.aci")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(_LEFT_OUT):
            archive.add(path, f"libraries/{path.name}", filter=_sources)
    archive.add(AARCH64.directory / "libraries", "libraries")


def _add_modules(archive: tarfile.TarFile, directory: Path, kernel: Kernel) -> None:
    modules = collect_modules(kernel.modules, _MODULES).modules
    for module in modules:
        (directory / "module").write_bytes(module.data)
        archive.add(directory / "module", f"modules/{module.name}.ko")
    _add_text(archive, directory, "modules/order", "".join(f"{module.name}\n" for module in modules))


def _add_text(archive: tarfile.TarFile, directory: Path, name: str, text: str) -> None:
    (directory / "text").write_text(text)
    archive.add(directory / "text", name)


def _sources(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("__pycache__", ".aci", ".so", ".pth")) else member
