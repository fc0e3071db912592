"""
The root of a machine that minit boots, as a directory: a pod, prepared as for stage1, and the first program's files.

    init                        a link to the entrypoint that the kernel executes
    bin/minit                   one to the command
    var/lib/rkt/pods/run/UUID/  the pod directory, with the stage1 tree and the apps' roots in it
    etc/minit/machine.toml      how the machine is to be
    etc/minit/keys/             public keys of whoever signs its updates
    lib/modules/minit/          kernel modules, each with what it says of itself
    lib/firmware/               files that these hand to their devices
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from minit.base.errors import PodError
from minit.base.progress import Progress
from minit.base.value import Value
from minit.manifest.machineconfig import MachineConfig
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors
from minit.stage0.images.extract import extract_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.podmanifest import PlannedApp
from minit.stage0.stage1.entrypoints import require_path

# Where something is mounted, or written while the machine runs.
_DIRECTORIES = (("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("run", 0o755), ("tmp", 0o1777), ("etc", 0o755))
_INIT = "entrypoints/init"
_COMMAND = "entrypoints/minit"


class MachineParts(Value):
    """
    The parts of a machine's root; `modules` are the files of lib/modules/minit by name, `firmware` those of
    lib/firmware, and `keys` those of etc/minit/keys.

    `built_seconds` since 1970 is the time of files that come from no image. None stands for the time of the newest
    file of the images, so that the same parts make the same bytes.
    """

    stage1: StoredImage
    apps: tuple[PlannedApp, ...]
    manifest_bytes: bytes
    config: MachineConfig
    config_bytes: bytes
    modules: tuple[tuple[str, bytes], ...] = ()
    firmware: tuple[tuple[str, bytes], ...] = ()
    keys: tuple[tuple[str, bytes], ...] = ()
    built_seconds: int | None = None


class Part(Value):
    """The size of a part of a machine's root: name, number of files and bytes."""

    name: str
    files: int
    size_bytes: int


def make_machine_root(root: Path, store: Store, parts: MachineParts, progress: Progress) -> list[Part]:
    """Fill the empty directory `root` and return the parts; PodError for a stage1 that boots no machine."""
    require_path(parts.stage1.manifest, "run")
    with disk_errors("make the machine's root", root):
        return _fill(root, store, parts, progress)


def _fill(root: Path, store: Store, parts: MachineParts, progress: Progress) -> list[Part]:
    os.chmod(root, 0o755)
    for name, mode in _DIRECTORIES:
        (root / name).mkdir()
        (root / name).chmod(mode)
    pod = root / paths.MACHINE_POD.lstrip("/")
    pod.mkdir(parents=True)
    extract_image(store, parts.stage1.id, pod / paths.POD_STAGE1, progress)
    stage1 = pod / paths.POD_STAGE1_ROOTFS
    if not (stage1 / _INIT).exists():
        raise PodError(f'stage1 image "{parts.stage1.name}" has no /{_INIT}: it cannot boot a machine')
    sizes = [_measure("stage1", [stage1])]
    for app in parts.apps:
        place = stage1 / "opt/stage2" / app.name
        extract_image(store, app.image.id, place, progress)
        sizes.append(_measure(f"app {app.name}", [place]))
        _write(pod, f"appsinfo/{app.name}/manifest", (place / "manifest").read_bytes())
    (pod / paths.POD_MANIFEST).write_bytes(parts.manifest_bytes)
    _write(root, paths.MACHINE_CONFIG, parts.config_bytes)
    for name, key in parts.keys:
        _write(root, f"{paths.MACHINE_KEYS}/{name}", key)
    (root / "etc/resolv.conf").symlink_to(paths.MACHINE_RESOLV_CONF)
    for link, entrypoint in ((paths.MACHINE_INIT, _INIT), (paths.MACHINE_COMMAND, _COMMAND)):
        path = root / link.lstrip("/")
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(os.path.relpath(stage1 / entrypoint, path.parent))
    for filesystem in parts.config.filesystems:
        (root / filesystem.target.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name, data in parts.modules:
        _write(root, f"{paths.MACHINE_MODULES}/{name}", data)
    if parts.modules:
        sizes.append(_measure("kernel modules", [root / paths.MACHINE_MODULES.lstrip("/")]))
    for name, data in parts.firmware:
        _write(root, f"{paths.MACHINE_FIRMWARE}/{name}", data)
    if parts.firmware:
        sizes.append(_measure("firmware", [root / paths.MACHINE_FIRMWARE.lstrip("/")]))
    _set_times(root, stage1, parts.built_seconds)
    return sizes


def lost_capabilities(root: Path) -> list[str]:
    """Return the files below `root` with capabilities, which a kernel's initial file system cannot hold."""
    found = []
    for path in _below(root):
        if stat.S_ISREG(path.lstat().st_mode) and "security.capability" in os.listxattr(path, follow_symlinks=False):
            found.append(str(path.relative_to(root)))
    return found


def _measure(name: str, roots: Sequence[Path]) -> Part:
    inodes: Mapping[int, int] = {
        status.st_ino: status.st_size
        for root in roots
        for path in _below(root)
        if stat.S_ISREG((status := path.lstat()).st_mode)
    }
    return Part(name=name, files=len(inodes), size_bytes=sum(inodes.values()))


def _set_times(root: Path, stage1: Path, built: int | None) -> None:
    """Give all files but the images' the same time; extraction has set the times of image files."""
    own = [stage1, stage1 / "opt", stage1 / "opt/stage2"]
    of_images = []
    for path in (root, *_below(root)):
        if not path.is_relative_to(stage1) or path.parent == stage1 / "opt/stage2":
            own.append(path)
        elif path not in own:
            of_images.append(path)
    if built is None:
        # Not a future time, which the machine would set its clock to.
        built = min(int(time.time()), max(int(path.lstat().st_mtime) for path in of_images))
    for path in own:
        os.utime(path, (built, built), follow_symlinks=False)


def _below(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def _write(root: Path, name: str, data: bytes) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
