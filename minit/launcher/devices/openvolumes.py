"""
Opening directories of the host as detached mounts that PID 1 and the app inherit: sources of volumes, and the logs.

A volume is attached in the app's own mount namespace and nowhere else: none is ever mounted below the pod directory in
the host's namespace, where the removal of a pod would reach into the volume.
"""

from __future__ import annotations

import errno
import os
import stat

from minit.base.errors import LaunchError, SourceMissing, describe
from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.linux.idmapping import in_user_namespace, open_user_namespace
from minit.linux.mountinfo import is_on_shared_mount
from minit.linux.treecopy import copy_directory
from minit.plan.appplan import AppPlan
from minit.plan.root.mountdetails import SHARED, SLAVE
from minit.plan.root.mountoperations import MountFilesystem
from minit.plan.root.volumes import HOST, VolumeMount
from minit.podfiles import paths
from minit.supervisor.root.applymounts import new_filesystem
from minit.supervisor.root.attachvolumes import clone_part, option_attributes
from minit.supervisor.root.targets import open_existing

_DEVICES = "/dev"
_MODE = 0o755
# The pod's root is the disk's root there: a device or a setuid program made by that root is for nobody in the pod.
_IDMAP_FLAGS = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_RIGHTS = {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}
_PRIVATE_MODE = 0o770  # until owner and mode are those that the volume asks for

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_NODE = "node"
_FILESYSTEM = MountFilesystem(fstype="tmpfs", target="/", options=(("mode", "0700"), ("size", "64k")), nodev=False)

_ATTRIBUTES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC


def open_volumes(app: AppPlan, mapped: IdRange | None) -> tuple[int, ...]:
    """
    Return a detached mount of each of the app's volumes, making the directories of empty ones in the pod directory.

    The owners are ids of the pod, `mapped` to others on the host for a pod with a user namespace. SourceMissing for a
    source missing on the host, LaunchError for any other failure.
    """
    return tuple(_open_volume(app.name, volume, mapped) for volume in app.storage.volumes)


def _open_volume(app: str, volume: VolumeMount, mapped: IdRange | None) -> int:
    try:
        if volume.kind != HOST:
            _make_directory(app, volume, mapped)
        elif in_user_namespace():
            _require_rights(volume)
        return open_tree(volume, mapped)
    except FileNotFoundError as error:
        if volume.kind == HOST:
            # systemd-nspawn's words, which rkt's users look for.
            raise SourceMissing(
                f"Failed to stat {volume.source}: No such file or directory ({volume.place}, volume {volume.volume})"
            ) from error
        raise LaunchError(f'{volume.place}: volume "{volume.volume}": {describe(error)}') from error
    except OSError as error:
        reason = describe(error)
        if error.errno == errno.EINVAL and volume.kind == HOST and not volume.recursive and in_user_namespace():
            # Mounts of another owner cover what is below (mount_namespaces(7)).
            reason += ": the kernel shows you a directory only with the mounts below: leave recursive=false out"
        raise LaunchError(f'{volume.place}: volume "{volume.volume}": {reason}') from error


def _require_rights(volume: VolumeMount) -> None:
    """
    Raise LaunchError for a volume of the host that root of this user namespace, and so the pod, has no right to.

    No policy of devices can be written from here, so a device that can be written is no read-only volume.
    """
    where = f'{volume.place}: volume "{volume.volume}"'
    os.stat(volume.source)
    may = {right for right, mode in _RIGHTS.items() if os.access(volume.source, mode)}
    if not may:
        remedy = "let root change its owner or mode (your groups do not count in pods)"
        raise LaunchError(f"{where}: you may not open {volume.source}: {remedy}")
    if not has_devices(volume) or os.path.isdir(volume.source):
        return
    if os.statvfs(volume.source).f_flag & os.ST_NODEV:
        raise LaunchError(f"{where}: {volume.source} lies on a mount with nodev, where root lets nobody use devices")
    wanted = set(volume.device_access or ("r" if volume.read_only else "")) & _RIGHTS.keys()
    if wanted - may:
        raise LaunchError(f"{where}: you have no right to {volume.source} but {''.join(sorted(may))}: ask for no more")
    if wanted and "w" in may - wanted:
        raise LaunchError(
            f"{where}: {volume.source} cannot be read-only, which takes root: you may write to the device"
        )


def open_tree(volume: VolumeMount, mapped: IdRange | None) -> int:
    """Return a detached mount of a volume's source, or of a node for the same device in a pod with `mapped` ids."""
    if volume.idmap and has_devices(volume):
        raise LaunchError(f'{volume.place}: volume "{volume.volume}": minit/idmap cannot be had for devices')
    if volume.device_access and not has_devices(volume):
        raise LaunchError(f'{volume.place}: volume "{volume.volume}": deviceAccess: {volume.source} is no device')
    if mapped is not None and has_devices(volume) and not os.path.isdir(volume.source):
        return _make_node(volume, mapped)
    try:
        if volume.sub_path and has_devices(volume):
            raise LaunchError("a part of devices cannot be had")
        of_image = paths.tree_of_source(volume.source) is not None
        tree = clone_part(volume.source, volume.sub_path, recursive=volume.recursive, of_image=of_image)
    except LaunchError as error:
        raise LaunchError(f'{volume.place}: volume "{volume.volume}": {describe(error)}') from error
    # A later mount of the host below a recursive volume appears in the app; below a read-only one the mount would be
    # writable, below an idmapped one not mapped.
    follows = volume.recursive and not volume.read_only and not volume.idmap
    if volume.propagation is not None:
        follows = volume.propagation == SLAVE
    read_only = syscalls.MOUNT_ATTR_RDONLY if volume.read_only else 0
    syscalls.mount_setattr(
        tree,
        flags=syscalls.AT_RECURSIVE,
        set=(0 if volume.flat_read_only else read_only)
        | (_IDMAP_FLAGS if volume.idmap else 0)
        | option_attributes(volume),
        propagation=_propagation(volume, follows=follows),
    )
    if volume.flat_read_only:
        syscalls.mount_setattr(tree, set=read_only)
    if has_devices(volume) and "nodev" not in volume.options:
        # Of one mount alone: mounts below, /dev/shm say, have their own reasons.
        syscalls.mount_setattr(tree, clear=syscalls.MOUNT_ATTR_NODEV)
    return tree


def _propagation(volume: VolumeMount, *, follows: bool) -> int:
    """Return the propagation of a clone; 0 leaves a peer of the source, so that mounts of the app reach the host."""
    if volume.propagation != SHARED:
        return syscalls.MS_SLAVE if follows else syscalls.MS_PRIVATE
    if not is_on_shared_mount(volume.source):
        raise LaunchError(
            f'{volume.place}: volume "{volume.volume}": propagation {SHARED}: {volume.source} is not on a shared mount'
        )
    return 0


def has_devices(volume: VolumeMount) -> bool:
    """Tell whether a volume is devices of the host."""
    return volume.kind == HOST and is_device_source(volume.source)


def is_device_source(path: str) -> bool:
    """
    Tell whether a source is devices: a device node, or a directory of the file system mounted on /dev.

    Nowhere else: in an ordinary directory an app of another pod may have left nodes that the app could not use.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISDIR(status.st_mode):
        return status.st_dev == os.stat(_DEVICES).st_dev != os.stat("/").st_dev
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)


def _make_directory(app: str, volume: VolumeMount, mapped: IdRange | None) -> None:
    """
    Make the directory of an empty volume; apps that share the volume agree on nothing, so the owner of the last app
    stays.
    """
    os.makedirs(paths.POD_SHARED_VOLUMES, _MODE, exist_ok=True)
    try:
        os.mkdir(volume.source, _PRIVATE_MODE)
    except FileExistsError:
        pass
    else:
        if volume.copy_up and _copy_up(app, volume):
            return
    shift = 0 if mapped is None else mapped.shift
    os.chown(volume.source, volume.uid + shift, volume.gid + shift)
    os.chmod(volume.source, volume.mode)


def _copy_up(app: str, volume: VolumeMount) -> bool:
    """
    Copy the image's content at the volume's target into the new directory, owners, modes and times too.

    Docker's VOLUME keeps such files, and appc's mount points hide them: the copy is for images from Docker. The image
    is read before anything of the pod runs: paths are resolved inside the image's root, and no symlink below is
    followed. Returns whether the image has a directory there. Hard links become files of their own. OSError names a
    file that could not be copied.
    """
    image = os.open(f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app)}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = open_existing(image, volume.target)
    finally:
        os.close(image)
    if place is None:
        return False
    try:
        source = os.open(".", _DIRECTORY, dir_fd=place)
    except NotADirectoryError:
        return False
    finally:
        os.close(place)
    copy_directory(source, os.open(volume.source, _DIRECTORY), volume.target)
    return True


def _make_node(volume: VolumeMount, mapped: IdRange) -> int:
    """
    Return a detached mount of a node for the device `volume.source`.

    The node has the mode of the host's node, and owner and group have the same numbers in the pod, or 0 if the pod does
    not have them. No change by the pod reaches the host's node.
    """
    status = os.lstat(volume.source)
    directory = new_filesystem(_FILESYSTEM)
    try:
        os.mknod(_NODE, stat.S_IFMT(status.st_mode), status.st_rdev, dir_fd=directory)
        owner, group = (mapped.to_host(number) or mapped.shift for number in (status.st_uid, status.st_gid))
        os.chown(_NODE, owner, group, dir_fd=directory)
        os.chmod(_NODE, stat.S_IMODE(status.st_mode), dir_fd=directory)
        tree = syscalls.open_tree(directory, _NODE, syscalls.OPEN_TREE_CLONE)
    finally:
        os.close(directory)
    read_only = syscalls.MOUNT_ATTR_RDONLY if volume.read_only else 0
    syscalls.mount_setattr(tree, set=read_only, propagation=syscalls.MS_PRIVATE)
    return tree


def open_kubernetes_log(directory: str, mapped: IdRange | None) -> int:
    """
    Return a detached mount of the directory; SourceMissing if there is none, LaunchError if it cannot be mounted.

    With `mapped` ids, those of a pod with a user namespace, the mount is idmapped: the sidecars, processes of the pod,
    write there as root of the host, and no app sees the directory.
    """
    try:
        if in_user_namespace() and os.path.isdir(directory) and not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)
        tree = syscalls.open_tree(syscalls.AT_FDCWD, f"{directory}/.", syscalls.OPEN_TREE_CLONE)
        syscalls.mount_setattr(tree, set=_ATTRIBUTES, propagation=syscalls.MS_PRIVATE)
        if mapped is not None:
            _map_owners(tree, mapped)
    except FileNotFoundError as error:
        # systemd-nspawn's words, as for volumes.
        raise SourceMissing(f"Failed to stat {directory}: No such file or directory (directory for logs)") from error
    except OSError as error:
        raise LaunchError(f"directory for logs: {describe(error)}") from error
    return tree


def _map_owners(tree: int, mapped: IdRange) -> None:
    namespace = open_user_namespace(mapped)
    try:
        syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_IDMAP, user_namespace=namespace)
    finally:
        os.close(namespace)
