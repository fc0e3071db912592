"""Overlay mounts of pods: support by this host, and mounting in the caller's namespace."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minit.base.errors import LaunchError, PodError, describe
from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.linux.idmapping import idmapped, in_user_namespace
from minit.linux.mountinfo import find_mounts, read_mountinfo

# Overlayfs on top of these filesystems has lost writes or whole files.          rkt stage0, common/overlay
_UNSUITABLE_FILESYSTEMS = ("aufs", "zfs")

# Known to hold an overlay's upper layer: ext4, xfs, btrfs and tmpfs; other filesystems are tried out.
_SUITABLE_FILESYSTEMS = (0xEF53, 0x58465342, 0x9123683E, 0x01021994)  # linux/magic.h

# mount(2) copies at most one page of options, the final NUL included.
_MAX_OPTIONS_BYTES = 4095

_ANY_IDS = IdRange(shift=1 << 16, count=1 << 16)
_NAME_BYTES = 8


@functools.cache
def overlay_obstacle(data: Path) -> str | None:
    """Return why pods below the existing directory `data` cannot use overlayfs, None if they can."""
    if not _kernel_has_overlay():
        # Without modprobe, or without the module, the second look says the same as the first.
        try:
            subprocess.run(["modprobe", "overlay"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError:
            pass
        if not _kernel_has_overlay():
            return "overlay is not in /proc/filesystems"
    # Without the table of mounts, which may have thousands of them.
    is_suitable = syscalls.filesystem_type(str(data)) in _SUITABLE_FILESYSTEMS and not in_user_namespace()
    fstype = None if is_suitable else _filesystem_of(data)
    if fstype in _UNSUITABLE_FILESYSTEMS:
        return f"{data} is on {fstype}"
    if not _tells_entry_types(data):
        return f"the filesystem of {data} does not tell the types of directory entries (d_type)"
    if not is_suitable:
        try:
            _try_upper_layer(data)
        except OSError as error:
            return f"{data} is on {fstype}, where no overlay can be written to: {describe(error)}"
    return None


@functools.cache
def idmap_obstacle(data: Path) -> str | None:
    """Return why pods below `data` with own users cannot use overlayfs although other pods can; else None."""
    try:
        _try_upper_layer(data, _ANY_IDS)
    except (OSError, LaunchError) as error:
        return f"overlayfs cannot map the owners of files of {data}: {describe(error)}"
    return None


def mount_overlay(
    lower: Path, upper: Path, work: Path, target: Path, ids: IdRange | None = None, between: Sequence[Path] = ()
) -> None:
    """
    Mount `upper` over `lower` at `target`, all of which exist; PodError names the failure.

    With `ids` the owners of `lower` are shown as the host sees a pod's owners, as the owners of `upper` have to be.
    `between` are more layers, the highest first.
    """
    try:
        with mapped_lower(lower, ids, work) as seen, ExitStack() as stack:
            layers = [*between, seen, upper, work]
            options = _overlay_options(*map(str, layers))
            if len(os.fsencode(options)) > _MAX_OPTIONS_BYTES:
                options = _overlay_options(*(stack.enter_context(_short_name(layer)) for layer in layers))
            syscalls.mount("overlay", str(target), "overlay", 0, options)
    except (OSError, LaunchError) as error:
        raise PodError(f"cannot mount an overlay of {lower}: {describe(error)}") from error


@contextmanager
def mapped_lower(lower: Path, ids: IdRange | None, beside: Path) -> Iterator[Path]:
    """
    Yield a lower layer whose owners are what they are on the host in a pod with `ids`; itself without any.

    For the with block it is mounted beside another directory, since older kernels make overlays of attached mounts
    only. An overlay has mounts of its own of its layers. OSError or LaunchError if the owners cannot be mapped.
    """
    if ids is None:
        yield lower
        return
    place = f"{beside}-lower-{os.urandom(_NAME_BYTES).hex()}"
    with idmapped(str(lower), ids) as tree:
        os.mkdir(place, 0o700)
        try:
            with _opened(Path(place)) as where:
                syscalls.move_mount(tree, where)
            try:
                yield Path(place)
            finally:
                syscalls.umount2(place, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
        finally:
            os.rmdir(place)


def _overlay_options(*layers: str) -> str:
    """Return the options of a mount of lower layers, upper layer and work directory; special characters are escaped."""
    *lower, upper, work = map(_escape, layers)
    return ",".join([f"lowerdir={':'.join(lower)}", f"upperdir={upper}", f"workdir={work}", *_own_attributes()])


def overlay_attribute(name: str) -> str:
    """Return the full name of an attribute by which overlays of this process tell about files of upper layers."""
    return f"user.overlay.{name}" if in_user_namespace() else f"trusted.overlay.{name}"


def _own_attributes() -> list[str]:
    """
    Return the option for overlays of root of a user namespace, who may write no attributes `trusted.overlay.*`.

    Without the option the kernel mounts the overlay as well, and fails with EIO where a directory of the lower layer is
    removed (Documentation/filesystems/overlayfs.rst, "User xattr").
    """
    return ["userxattr"] if in_user_namespace() else []


def is_mounted_at(path: Path) -> bool:
    """Return whether a mount lies exactly at `path` in this mount namespace."""
    return any(mount.mount_point == str(path) for mount in find_mounts(str(path)))


def _escape(path: str) -> str:
    for character in "\\:,":
        path = path.replace(character, "\\" + character)
    return path


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    with _opened(path) as fd:
        yield f"/proc/self/fd/{fd}"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _kernel_has_overlay() -> bool:
    with open("/proc/filesystems", encoding="ascii") as file:
        return any(line.split()[-1] == "overlay" for line in file)


def _filesystem_of(path: Path) -> str | None:
    """Return the type of the filesystem of `path`: the type of the last mount on the nearest mount point."""
    types = {mount.mount_point: mount.fstype for mount in read_mountinfo()}
    nearest = path.resolve()
    return next((types[str(place)] for place in (nearest, *nearest.parents) if str(place) in types), None)


def _tells_entry_types(directory: Path) -> bool:
    types = _entry_types(directory)
    if not types:
        with tempfile.TemporaryDirectory(prefix="d-type-", dir=directory):
            types = _entry_types(directory)
    return 0 not in types


def _entry_types(directory: Path) -> set[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        entries = syscalls.first_entries(fd)
    finally:
        os.close(fd)
    return {kind for name, kind in entries.items() if name not in (b".", b"..")}


def _try_upper_layer(directory: Path, ids: IdRange | None = None) -> None:
    """Do to an overlay what not every filesystem allows, remove what the lower layer has; OSError if that fails."""
    with tempfile.TemporaryDirectory(prefix="overlay-", dir=directory) as scratch, ExitStack() as stack:
        (Path(scratch) / "lower/old").mkdir(parents=True)
        context = syscalls.fsopen("overlay")
        stack.callback(os.close, context)
        upper, work = Path(scratch) / "upper", Path(scratch) / "work"
        upper.mkdir()
        work.mkdir()
        lower = stack.enter_context(mapped_lower(Path(scratch) / "lower", ids, work))
        for key, layer in (("lowerdir", lower), ("upperdir", upper), ("workdir", work)):
            syscalls.fsconfig_set_string(context, key, stack.enter_context(_short_name(layer)))
        for name in _own_attributes():
            syscalls.fsconfig_set_flag(context, name)
        syscalls.fsconfig_create(context)
        merged = syscalls.fsmount(context)
        stack.callback(os.close, merged)
        os.rmdir("old", dir_fd=merged)
        os.mkdir("old", dir_fd=merged)
