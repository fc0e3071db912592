"""The programs of the build machine that an image is made with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from minit.errors import ImageError

DEBIAN_PACKAGES = {
    "cc": "gcc libc6-dev",
    **dict.fromkeys(("nm", "objcopy", "strip"), "binutils"),
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "mkfs.ext4": "e2fsprogs",
    "patchelf": "patchelf",
    "qemu-system-aarch64": "qemu-system-arm",
}
"""What apt installs each program with."""

_LINES_MAX = 5
"""Of what a program that failed has said."""


def find_tool(tool: str) -> str | None:
    """Return the path of one of the programs, None if it is not installed."""
    # A virtual environment's programs lie beside its interpreter, whether or not it is activated.
    return shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")


def require_tool(tool: str) -> str:
    """Return the path of one of the programs; ImageError if it is not installed."""
    program = find_tool(tool)
    if program is None:
        raise ImageError(f"{tool} is not installed: install it (Debian: apt install {DEBIAN_PACKAGES[tool]})")
    return program


def run_tool(tool: str, *arguments: str) -> None:
    """Run one of the programs; ImageError if it is not installed or fails."""
    read_tool(tool, *arguments)


def read_tool(tool: str, *arguments: str) -> str:
    """Run one of the programs and return what it prints; ImageError as for `run_tool`."""
    program = require_tool(tool)
    done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "warning: " not in line and ": in function" not in line]
        reason = " ".join(" ".join(lines[:_LINES_MAX]).split()) or f"exit status {done.returncode}"
        raise ImageError(f"{tool} {arguments[-1]}: {reason}")
    return done.stdout
