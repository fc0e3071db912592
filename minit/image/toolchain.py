"""The programs of the build machine that an image is made with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from minit.base.errors import ImageError

DEBIAN_PACKAGES = {
    "cc": "gcc libc6-dev",
    **dict.fromkeys(("nm", "objcopy", "strip"), "binutils"),
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "mkfs.ext4": "e2fsprogs",
    "patchelf": "patchelf",
    "qemu-system-aarch64": "qemu-system-arm",
    "mksquashfs": "squashfs-tools",
    "veritysetup": "cryptsetup-bin",
    "mkfs.vfat": "dosfstools",
    **dict.fromkeys(("mmd", "mcopy"), "mtools"),
    "sfdisk": "fdisk",
}
"""What apt installs each program with."""

_LINES_MAX = 5
"""Of what a program that failed has said."""


def find_tool(tool: str) -> str | None:
    """Return the path of one of the programs, None if it is not installed."""
    # A virtual environment's programs lie beside its interpreter, whether or not it is activated.
    return shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")


def require_tools(tools: Sequence[str]) -> None:
    """Raise ImageError if some of the programs are not installed."""
    missing = [tool for tool in tools if find_tool(tool) is None]
    if missing:
        packages = " ".join(dict.fromkeys(DEBIAN_PACKAGES[tool] for tool in missing))
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ImageError(f"{', '.join(missing)} {verb} not installed: install {them} (Debian: apt install {packages})")


def require_tool(tool: str) -> str:
    """Return the path of one of the programs; ImageError if it is not installed."""
    require_tools([tool])
    return str(find_tool(tool))


def run_tool(
    tool: str, *arguments: str, environment: Mapping[str, str | None] | None = None, standard_input: str = ""
) -> None:
    """
    Run one of the programs; ImageError if it is not installed or fails.

    `environment` has the variables that it gets beside those of minit; None takes one of these away.
    """
    read_tool(tool, *arguments, environment=environment, standard_input=standard_input)


def read_tool(
    tool: str, *arguments: str, environment: Mapping[str, str | None] | None = None, standard_input: str = ""
) -> str:
    """Run one of the programs and return what it prints; ImageError as for `run_tool`."""
    program = require_tool(tool)
    variables = {name: value for name, value in {**os.environ, **(environment or {})}.items() if value is not None}
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=variables,
        input=standard_input,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "warning: " not in line and ": in function" not in line]
        reason = " ".join(" ".join(lines[:_LINES_MAX]).split()) or f"exit status {done.returncode}"
        raise ImageError(f"{tool} {arguments[-1]}: {reason}")
    return done.stdout
