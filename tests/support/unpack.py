"""Unpacking images by tar(1), which knows nothing of minit and nothing of what tarfile's filters refuse."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(image: Path, directory: Path) -> None:
    """Make `directory` if need be and fill it with the files of `image`, owners and modes kept."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-p", "--numeric-owner", "-f", image, "-C", directory], check=True)
