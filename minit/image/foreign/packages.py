"""
Packages of Debian for another processor: fetched by apt and unpacked, not installed.

apt has a state of its own in the caller's directory. Of this machine it uses the mirrors, their keys and the proxy.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from minit.errors import ImageError
from minit.image.toolchain import read_tool, run_tool

_CONFIGURATION = """\
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
# The directories of a Debian that are links since version 12.
_MERGED = ("bin", "lib", "sbin")


def fetch_packages(architecture: str, names: Sequence[str], directory: Path) -> list[Path]:
    """
    Return the files of packages and of all that they depend on, which are then below `directory`.

    ImageError if this is no Debian, or there is no mirror or no such package.
    """
    for name in ("state/lists/partial", f"{_ARCHIVES}/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "status").touch()  # of a machine on which nothing is installed
    configuration = directory / "apt.conf"
    configuration.write_text(_CONFIGURATION.format(architecture=architecture, directory=directory.absolute()))
    apt = ("-c", str(configuration), "-qq")
    run_tool("apt-get", *apt, "update")
    chosen = _CHOSEN.findall(read_tool("apt-get", *apt, "--simulate", "install", *names))
    run_tool("apt-get", *apt, "--download-only", "--yes", "install", *names)
    return [directory / _ARCHIVES / _file_name(*package) for package in chosen]


def unpack_packages(packages: Iterable[Path], root: Path) -> None:
    """Unpack packages into one root, which has what they bring and nothing that installing them would make."""
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as reader:
            # dpkg-deb alone would put a directory in the place of a link.
            command = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
            unpacked = subprocess.run(command, stdin=reader.stdout, capture_output=True, text=True, check=False)
        if reader.returncode != 0 or unpacked.returncode != 0:
            raise ImageError(f"cannot unpack {package}: {unpacked.stderr.strip() or 'dpkg-deb has failed'}")


def _file_name(name: str, version: str, architecture: str) -> str:
    return f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
