"""A podman with a store of its own, for tests that compare images."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.unpack import unpack


class Podman:
    """podman with a store of its own, which needs neither overlays nor control groups."""

    def __init__(self, root: Path, run_root: Path) -> None:
        self._words = ["podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs"]
        self._words += [
            f"--root={root / 'podman'}",
            f"--runroot={run_root / 'run'}",
            f"--tmpdir={run_root / 'tmp'}",
        ]

    def __call__(self, *words: object) -> str:
        """Run a command to its good end, and return the output."""
        command = [*self._words, *(str(word) for word in words)]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def files(self, image: str, directory: Path) -> Path:
        """Return the files of an image, as podman makes them of the layers."""
        container = self("create", "--network=none", image, "/x").strip()
        self("export", f"--output={directory}.tar", container)
        self("rm", container)
        unpack(Path(f"{directory}.tar"), directory)
        return directory

    def configuration(self, image: str, directory: Path) -> dict[str, Any]:
        """Return the configuration of an image in Docker's form, which has all fields of a Containerfile."""
        self("push", "--quiet", "--format=docker", image, f"dir:{directory}")
        manifest = json.loads((directory / "manifest.json").read_bytes())
        document = json.loads((directory / manifest["config"]["digest"].removeprefix("sha256:")).read_bytes())
        assert isinstance(document, dict)
        return document

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Yield the directory with the files of an image for the length of a with block."""
        yield Path(self("image", "mount", image).strip())
        self("image", "unmount", image)


@contextmanager
def own_podman(root: Path) -> Iterator[Podman]:
    """Yield a podman without images for the length of a with block."""
    with tempfile.TemporaryDirectory(prefix="podman-", dir="/tmp") as directory:  # podman allows fifty characters
        yield Podman(root, Path(directory))
