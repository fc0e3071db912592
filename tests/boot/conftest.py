"""The common part of tests of whole machines: a kernel with its modules, and images of machines that it boots."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minit.base.progress import silent
from minit.image.disk import TOOLS
from minit.image.foreign import ARM64, foreign_stage1
from minit.image.toolchain import find_tool
from tests.support.campaign import FOR_ARM64
from tests.support.commands import Stage0
from tests.support.disks import read_disk
from tests.support.machine import AARCH64, BOOT_SECONDS, HERE, NO_KERNEL, Firmware, Kernel, find_kernel
from tests.support.pods import make_rootfs

NO_FIRMWARE = "no firmware in build/firmware, or no programs that make disks"
# `make test-arm64` gets all of it, so that this is no reason that a test there may have.
NO_ARM64_FIRMWARE = "no AAVMF, no stub for it in build/arm64, or no programs that make disks"
# Of an app as `shell` returns it, what is not its image's to say.
_RUNTIME_FIELDS = ("mounts", "annotations", "readOnlyRootFS")

BuildMachine = Callable[..., Path]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have machines be of this machine's processor, and of another one where that is asked for."""
    if "build_machine" in metafunc.fixturenames:
        is_sample = metafunc.definition.get_closest_marker("arm64") is not None
        others = [AARCH64] if is_sample and HERE is not AARCH64 else []
        processors = [AARCH64] if FOR_ARM64 else [HERE, *others]
        names = ["unknown" if processor is None else processor.name for processor in processors]
        metafunc.parametrize("kernel", processors, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """A kernel to boot, whose modules can be put into images."""
    found = find_kernel(getattr(request, "param", HERE))
    if not any((found.modules / place).is_dir() for place in ("lib/modules", "usr/lib/modules")):
        pytest.skip(NO_KERNEL)  # or only a kernel, without its modules
    return found


@pytest.fixture
def firmware(kernel: Kernel, tmp_path: Path) -> Firmware:
    """A firmware with variables of its own."""
    code, variables = kernel.processor.firmware
    if not (code.exists() and kernel.processor.stub.exists() and all(map(find_tool, TOOLS))):
        pytest.skip(NO_ARM64_FIRMWARE if kernel.processor is AARCH64 else NO_FIRMWARE)
    own = Path(shutil.copy(variables, tmp_path / "variables"))
    return Firmware(code=code, variables=own, processor=kernel.processor)


@pytest.fixture(scope="session")
def machine_image(request: pytest.FixtureRequest, kernel: Kernel, work_directory: Path) -> tuple[Stage0, Path, str]:
    """A command, the stage1 image of its machines, and the ID of an image with a busybox in its store."""
    # The kernel comes first: a test that is skipped builds nothing.
    # Made anew when a test had a kernel by another parameter meanwhile.
    directory = Path(tempfile.mkdtemp(prefix=f"boot-{kernel.processor.name}-", dir=work_directory))
    if kernel.processor is HERE:
        stage1, rootfs = request.getfixturevalue("stage1_image"), request.getfixturevalue("app_rootfs")
    else:
        stage1, obstacle = foreign_stage1(ARM64, AARCH64.directory, silent)
        assert obstacle is None
        busybox, rootfs = directory / "busybox", directory / "rootfs"
        busybox.write_bytes(read_disk(AARCH64.directory / "disk", "/usr/bin/busybox"))
        busybox.chmod(0o755)
        make_rootfs(rootfs, busybox)
    stage0 = Stage0([sys.executable, "-m", "minit"], directory / "data", stage1)
    archive = directory / "app.aci"
    words = [
        "--output",
        archive,
        "--rootfs",
        rootfs,
        "--exec",
        "/bin/sh",
        "--label",
        f"arch={kernel.processor.appc_name}",
    ]
    stage0.call("image", "build", *words, check=True)
    return stage0, stage1, stage0.call("fetch", "--full", archive, check=True).stdout.strip()


@pytest.fixture(scope="session")
def quick_programs(work_directory: Path) -> Path:
    """A directory for PATH with a mksquashfs(1) that compresses less, which saves five seconds of a processor."""
    directory = work_directory / "quick"
    directory.mkdir()
    if (real := find_tool("mksquashfs")) is not None:
        (directory / "mksquashfs").write_text(f'#!/bin/sh\nexec {real} "$@" -Xcompression-level 1\n')
        (directory / "mksquashfs").chmod(0o755)
    return directory


@pytest.fixture
def build_machine(
    kernel: Kernel,
    machine_image: tuple[Stage0, Path, str],
    quick_programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> BuildMachine:
    """
    A function that makes the root of a machine with these apps, which have a busybox.

    WORDS in its configuration stand for those that the kernel is told on such a processor. Disks are compressed less
    than that of `test_documented_disk.py`.
    """
    stage0, stage1, image = machine_image
    monkeypatch.setenv("PATH", f"{quick_programs}:{os.environ['PATH']}")

    def build(
        apps: dict[str, dict[str, Any]],
        config: str = "",
        modules: tuple[str, ...] = (),
        volumes: tuple[dict[str, Any], ...] = (),
        form: str = "none",
        signing_key: Path | None = None,
        firmware: Path | None = None,
    ) -> Path:
        runtime = [
            {
                "name": name,
                "image": {"id": image},
                **{key: app[key] for key in _RUNTIME_FIELDS if key in app},
                "app": {key: value for key, value in app.items() if key not in _RUNTIME_FIELDS},
            }
            for name, app in apps.items()
        ]
        manifest = {"acKind": "PodManifest", "acVersion": "0.8.11", "volumes": list(volumes), "apps": runtime}
        (tmp_path / "pod.json").write_text(json.dumps(manifest))
        (tmp_path / "machine.toml").write_text(config.replace("WORDS", kernel.processor.words))
        words = ["--manifest", tmp_path / "pod.json", "--config", tmp_path / "machine.toml", "--stage1-path", stage1]
        words += ["--quiet", "--format", form, "--output", tmp_path / "root", "--overwrite"]
        words += ["--modules-from", kernel.modules]
        words += ["--efi-stub", kernel.processor.stub] if form in ("disk", "update") else []
        words += ["--signing-key", signing_key] if signing_key is not None else []
        words += ["--firmware-from", firmware] if firmware is not None else []
        words += [word for name in modules for word in ("--module", name)]
        done = stage0.call("init", "build", *words, timeout=BOOT_SECONDS)
        assert done.returncode == 0, done.stderr
        return tmp_path / "root"

    return build
