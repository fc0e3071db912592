"""The common part of tests of whole machines: a kernel with its modules, and images of machines that it boots."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Stage0
from tests.support.machine import KERNELS, find_kernel

# Of an app as `shell` returns it, what is not its image's to say.
_RUNTIME_FIELDS = ("mounts", "annotations", "readOnlyRootFS")

BuildMachine = Callable[..., Path]


@pytest.fixture
def kernel() -> Path:
    """A kernel to boot, whose modules can be put into images."""
    found = find_kernel()
    if not any((KERNELS / place).is_dir() for place in ("lib/modules", "usr/lib/modules")):
        pytest.skip("no qemu, or no kernel for it in build/kernel")  # or only a kernel, without its modules
    return found


@pytest.fixture
def build_machine(
    kernel: Path, request: pytest.FixtureRequest, work_directory: Path, app_rootfs: Path, tmp_path: Path
) -> BuildMachine:
    """A function that makes the root of a machine with these apps, which have a busybox."""
    # The kernel comes first: a test that is skipped builds nothing.
    stage1 = request.getfixturevalue("stage1_image")
    stage0 = Stage0([sys.executable, "-m", "minit"], work_directory / "boot", stage1)
    image = work_directory / "boot.id"
    if not image.exists():
        archive = work_directory / "boot.aci"
        stage0.call("image", "build", "--output", archive, "--rootfs", app_rootfs, "--exec", "/bin/sh", check=True)
        image.write_text(stage0.call("fetch", "--full", archive, check=True).stdout.strip())

    def build(
        apps: dict[str, dict[str, Any]],
        config: str = "",
        modules: tuple[str, ...] = (),
        volumes: tuple[dict[str, Any], ...] = (),
        form: str = "none",
    ) -> Path:
        runtime = [
            {
                "name": name,
                "image": {"id": image.read_text()},
                **{key: app[key] for key in _RUNTIME_FIELDS if key in app},
                "app": {key: value for key, value in app.items() if key not in _RUNTIME_FIELDS},
            }
            for name, app in apps.items()
        ]
        manifest = {"acKind": "PodManifest", "acVersion": "0.8.11", "volumes": list(volumes), "apps": runtime}
        (tmp_path / "pod.json").write_text(json.dumps(manifest))
        (tmp_path / "machine.toml").write_text(config)
        words = ["--manifest", tmp_path / "pod.json", "--config", tmp_path / "machine.toml", "--stage1-path", stage1]
        words += ["--quiet", "--format", form, "--output", tmp_path / "root", "--modules-from", KERNELS]
        words += [word for name in modules for word in ("--module", name)]
        done = stage0.call("init", "build", *words)
        assert done.returncode == 0, done.stderr
        return tmp_path / "root"

    return build
