"""The programs of the build machine for making images."""

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
"""The packages of apt for each program."""

_LINES_MAX = 5
"""The lines of a failed program that are shown."""


def find_tool(tool: str) -> str | None:
    """Return the path of a program, None if the program is not installed."""
    # The programs of a virtual environment, activated or not, lie beside the interpreter.
    return shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")


def require_tools(tools: Sequence[str]) -> None:
    """Raise ImageError if programs are not installed."""
    missing = [tool for tool in tools if find_tool(tool) is None]
    if missing:
        packages = " ".join(dict.fromkeys(DEBIAN_PACKAGES[tool] for tool in missing))
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ImageError(f"{', '.join(missing)} {verb} not installed: install {them} (Debian: apt install {packages})")


def require_tool(tool: str) -> str:
    """Return the path of a program; ImageError if the program is not installed."""
    require_tools([tool])
    return str(find_tool(tool))


def run_tool(
    tool: str, *arguments: str, environment: Mapping[str, str | None] | None = None, standard_input: str = ""
) -> None:
    """
    Run a program; ImageError if the program is not installed or fails.

    `environment` has variables beside minit's own; None removes a variable.
    """
    read_tool(tool, *arguments, environment=environment, standard_input=standard_input)


def read_tool(
    tool: str, *arguments: str, environment: Mapping[str, str | None] | None = None, standard_input: str = ""
) -> str:
    """Run a program and return the output; ImageError as for `run_tool`."""
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
