"""
The stage1 image for machines with another processor: a machine of that kind, which qemu emulates, builds the image.

An image is made by running its interpreter, on a kernel that does what pods need. Debian's packages become the disk and
the kernel of that machine. Nothing is installed here, and no program of the packages runs here. The machine runs this
module as a program:

    foreign.py DIRECTORY [--plain]

The program leaves the image in the directory, with the reason if the interpreter should be dumped and is not; or an
error.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import minit
from minit.base import jsontext
from minit.base.errors import EXIT_FAILURE, ImageError, MinitError, describe
from minit.base.progress import Progress
from minit.base.value import Value
from minit.image.pythonmodules import PACKAGES, package_directories, package_versions, source_files
from minit.image.stage1 import build_stage1
from minit.image.toolchain import read_tool, require_tool, run_tool
from minit.linux import syscalls

# What the machine leaves behind. A line of its console with a step, the units done and the units in all has a prefix.
_IMAGE, _OBSTACLE, _ERROR = "stage1.aci", "obstacle", "error"
_PROGRESS = b"progress "


class ForeignProcessor(Value):
    """
    A processor for whose machines stage1 images are built elsewhere: the names in Debian and in appc.

    `qemu` is the program with the options of a machine that Debian's kernel can boot, `console` the serial line.
    """

    name: str
    appc_name: str
    kernel_package: str
    qemu: tuple[str, ...]
    console: str


ARM64 = ForeignProcessor(
    name="arm64",
    appc_name="aarch64",
    # The kernel includes the drivers for disks.
    kernel_package="linux-image-cloud-arm64",
    # Without the features that cost most to emulate.
    qemu=("qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth=off,sve=off"),
    console="ttyAMA0",
)
PROCESSORS = {processor.name: processor for processor in (ARM64,)}

_APT_CONFIGURATION = """\
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State "{directory}/state";
Dir::State::status "{directory}/status";
Dir::Cache "{directory}/cache";
"""
_ARCHIVES = "cache/archives"
# A line of `apt-get --simulate`: Inst libc6 (2.36-9+deb12u10 Debian:12.11/stable [arm64])
_CHOSEN = re.compile(r"^Inst (\S+) \((\S+) [^)]*\[(\S+)\]\)", re.MULTILINE)
# Directories of Debian that are links since version 12.
_MERGED = ("bin", "lib", "sbin")

_KERNEL, _DISK = "kernel", "disk"
_PACKAGES = (
    *("python3", "libpython3-dev", "gcc", "libc6-dev", "binutils", "patchelf", "libudev1"),
    "busybox-static",
)
# Of a disk that a firmware boots.
_EFI_STUB = "systemd-boot-efi"
_DISK_BYTES = 2 << 30
_RESULT_BYTES = 256 << 20
_MEMORY_MIB = 1024
_PROCESSORS = 2
_DISKS = ("/dev/nvme0n1", "/dev/nvme1n1", "/dev/nvme2n1")
_WORDS = (
    f"quiet panic=-1 root={_DISKS[0]} rootwait rootfstype=ext4 rw init=/usr/bin/busybox -- sh -c "
    f'"busybox mount -t devtmpfs none /dev && cd /run && busybox tar -x -f {_DISKS[1]} && exec busybox sh start"'
)
_START = f"""\
export PATH=/usr/bin:/usr/sbin PYTHONPATH=/run LC_ALL=C
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
mkdir /run/result
python3 -B -m minit.image.foreign /run/result OPTIONS || echo no result
busybox tar -c -f {_DISKS[2]} -C /run/result .
busybox poweroff -f
"""
_LINES_MAX = 5
"""The lines of the console that are shown of a machine without result."""


def fetch_machine(processor: ForeignProcessor, directory: Path, progress: Progress, others: Sequence[str] = ()) -> Path:
    """
    Make a disk and a kernel of Debian for a processor below `directory`, if both are not there.

    The disk has `others` too, packages that builds do not need. Returns the kernel's unpacked package. ImageError if
    the machine lacks a program.
    """
    with _alone(directory):
        return _fetch(processor, directory, progress, others)


def _fetch(processor: ForeignProcessor, directory: Path, progress: Progress, others: Sequence[str] = ()) -> Path:
    if (directory / _DISK).exists():
        return directory / _KERNEL
    require_tool(processor.qemu[0])
    with TemporaryDirectory(prefix="new-", dir=directory) as scratch:
        new = Path(scratch)
        progress(f"fetching Debian's packages for {processor.name}", 0, None)
        packages = fetch_packages(processor.name, [*_PACKAGES, *others, processor.kernel_package, _EFI_STUB], new)
        progress("unpacking them", 0, None)
        kernels = [package for package in packages if package.name.startswith(("linux-image-", _EFI_STUB))]
        unpack_packages((package for package in packages if package not in kernels), new / "root")
        unpack_packages(kernels, new / _KERNEL)
        _complete(new / "root")
        with (new / _DISK).open("wb") as disk:
            disk.truncate(_DISK_BYTES)
        run_tool("mkfs.ext4", "-q", "-O", "^has_journal", "-d", str(new / "root"), str(new / _DISK))
        shutil.rmtree(directory / _KERNEL, ignore_errors=True)
        (new / _KERNEL).rename(directory / _KERNEL)
        (new / _DISK).rename(directory / _DISK)
    return directory / _KERNEL


def foreign_stage1(processor: ForeignProcessor, directory: Path, progress: Progress) -> tuple[Path, str | None]:
    """
    Return the stage1 image for a processor, which is kept below `directory`, and the obstacle to a dump.

    The obstacle is None for a dumped interpreter, or for an earlier image. ImageError if the build fails.
    """
    with _alone(directory):
        _fetch(processor, directory, progress)
        image, record = directory / _IMAGE, directory / f"{_IMAGE}.of"
        fingerprint = _fingerprint(directory / _DISK)
        with suppress(FileNotFoundError):
            if record.read_text() == fingerprint and image.exists():
                return image, None
        record.unlink(missing_ok=True)
        obstacle = _build(processor, directory, image, progress, plain=False)
        record.write_text(fingerprint)
    return image, obstacle


def build_foreign_stage1(
    processor: ForeignProcessor, directory: Path, output: Path, progress: Progress, *, plain: bool = False
) -> str | None:
    """
    Have a machine build the stage1 image as build_stage1 does; a missing machine is made in `directory`.

    The same disk makes the same image on any emulating machine.
    """
    with _alone(directory):
        _fetch(processor, directory, progress)
        return _build(processor, directory, output, progress, plain=plain)


def _build(
    processor: ForeignProcessor, directory: Path, output: Path, progress: Progress, *, plain: bool
) -> str | None:
    try:
        with TemporaryDirectory(prefix="minit-") as scratch:
            project, result = Path(scratch, "project"), Path(scratch, "result")
            with tarfile.open(project, "w") as archive:
                _add_project(archive, plain)
            with result.open("wb") as file:
                file.truncate(_RESULT_BYTES)
            said = _boot(processor, directory, [project, result], progress)
            return _take(result, output, said)
    except OSError as error:
        raise ImageError(f"cannot build the stage1 image for {processor.name}: {describe(error)}") from error


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Make a missing directory, and be the only user: two users at once would do everything twice."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _complete(root: Path) -> None:
    """Do the work of the packages' scripts."""
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (root / "usr/bin/cc").symlink_to("gcc")
    for name in ("dev", "proc", "run", "sys"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").mkdir(exist_ok=True)


def _fingerprint(disk: Path) -> str:
    status = disk.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    for version in package_versions():
        digest.update(f"{version}\n".encode())
    for name, path in source_files():
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _add_project(archive: tarfile.TarFile, plain: bool) -> None:
    """Add minit and the packages for the build, which are pure Python."""
    own = Path(minit.__file__).parents[1]
    for name in ("entrypoints", "minit"):
        archive.add(own / name, name, filter=_without_results)
    for directory in map(Path, package_directories()):
        for name in PACKAGES:
            for path in (*directory.glob(name), *directory.glob(f"{name}-*-info")):
                archive.add(path, path.name, filter=_without_results)
    start = _START.replace("OPTIONS", "--plain" if plain else "").encode()
    member = tarfile.TarInfo("start")
    member.size = len(start)
    archive.addfile(member, io.BytesIO(start))


def _without_results(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("__pycache__", ".aci")) else member


def _boot(processor: ForeignProcessor, directory: Path, disks: list[Path], progress: Progress) -> list[str]:
    """Run the machine until it is off, and return the last lines of the console."""
    program, *options = processor.qemu
    [kernel] = (directory / _KERNEL / "boot").glob("vmlinuz-*")
    command = [require_tool(program), *options, "-accel", "tcg", "-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-m", str(_MEMORY_MIB), "-smp", str(_PROCESSORS), "-serial", "stdio"]
    command += ["-kernel", str(kernel), "-append", f"console={processor.console} {_WORDS}"]
    for number, disk in enumerate([directory / _DISK, *disks]):
        # The first disk is used again.
        mode = "snapshot=on" if number == 0 else "cache=unsafe"
        command += ["-drive", f"file={disk},format=raw,if=none,id=disk{number},{mode}"]
        command += ["-device", f"nvme,drive=disk{number},serial={number}"]
    lines: list[str] = []
    pipe, parent = subprocess.PIPE, os.getpid()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: _end_with(parent),
    ) as machine:
        assert machine.stdout is not None
        try:
            for line in machine.stdout:
                _, is_progress, report = line.partition(_PROGRESS)
                if is_progress:
                    progress(*_read_report(report))
                else:
                    lines = [*lines, line.decode(errors="replace").strip()][-_LINES_MAX:]
        finally:
            machine.kill()
    return lines


def _end_with(parent: int) -> None:
    """Have this process killed with `parent`: a machine without a waiting parent would work on for minutes."""
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_FAILURE)


def _read_report(data: bytes) -> tuple[str, int, int | None]:
    step, done, total = json.loads(data)
    return step, done, total


def _take(result: Path, output: Path, said: list[str]) -> str | None:
    """Move the image to `output`, and return the obstacle to a dump."""
    try:
        with tarfile.open(result, "r:") as archive:
            files = {member.name.removeprefix("./"): member for member in archive if member.isfile()}
            texts = {name: _read(archive, files[name]).decode() for name in (_ERROR, _OBSTACLE) if name in files}
            if _ERROR in texts:
                raise ImageError(texts[_ERROR])
            with TemporaryDirectory(prefix=f".{output.name}.", dir=output.absolute().parent) as scratch:
                image = Path(scratch, _IMAGE)
                image.write_bytes(_read(archive, files[_IMAGE]))
                os.replace(image, output)
    except (tarfile.TarError, KeyError) as error:
        raise ImageError(f"the machine that should build it has not: {' '.join(said) or 'it said nothing'}") from error
    return texts.get(_OBSTACLE)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def fetch_packages(architecture: str, names: Sequence[str], directory: Path) -> list[Path]:
    """
    Fetch packages with all dependencies below `directory`, and return the files.

    ImageError if this machine has no Debian, or there is no mirror or no such package.
    """
    for name in ("state/lists/partial", f"{_ARCHIVES}/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "status").touch()  # of a machine on which nothing is installed
    configuration = directory / "apt.conf"
    configuration.write_text(_APT_CONFIGURATION.format(architecture=architecture, directory=directory.absolute()))
    apt = ("-c", str(configuration), "-qq")
    run_tool("apt-get", *apt, "update")
    chosen = _CHOSEN.findall(read_tool("apt-get", *apt, "--simulate", "install", *names))
    run_tool("apt-get", *apt, "--download-only", "--yes", "install", *names)
    return [directory / _ARCHIVES / _file_name(*package) for package in chosen]


def unpack_packages(packages: Iterable[Path], root: Path) -> None:
    """Unpack packages into one root, with the files of the packages and no results of an installation."""
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as reader:
            # dpkg-deb alone would replace a link by a directory.
            command = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
            unpacked = subprocess.run(command, stdin=reader.stdout, capture_output=True, text=True, check=False)
        if reader.returncode != 0 or unpacked.returncode != 0:
            raise ImageError(f"cannot unpack {package}: {unpacked.stderr.strip() or 'dpkg-deb has failed'}")


def _file_name(name: str, version: str, architecture: str) -> str:
    return f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"


def main(directory: Path, *options: str) -> None:
    """Build the image, and report the progress on standard output."""

    def report(step: str, done: int, total: int | None) -> None:
        print(f"{_PROGRESS.decode()}{jsontext.dump([step, done, total]).decode()}", flush=True)

    try:
        obstacle = build_stage1(directory / _IMAGE, report, plain="--plain" in options)
    except MinitError as error:
        (directory / _ERROR).write_text(describe(error))
    else:
        if obstacle is not None:
            (directory / _OBSTACLE).write_text(obstacle)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
