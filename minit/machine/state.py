"""
The files that outlive a boot, in a directory on a file system of the machine:

    DIRECTORY/000012/   the files of the twelfth boot: /rkt of its stage1 root, with statuses, logs and events
    DIRECTORY/roots/    files that apps have written into their own roots, as overlayfs keeps them
    DIRECTORY/network/  the addresses of the last leases, which are asked for first

Each boot begins with a directory of its own, so that nothing in it is of another one. Its paths are those of any pod.
Without the directory all of that is where the pod is, and forgotten at the next boot.
"""

from __future__ import annotations

import os
import shutil

from minit.base.errors import LaunchError, describe
from minit.linux import syscalls
from minit.linux.stdio import complain_at_once
from minit.machine.modules import Modules
from minit.manifest.machineconfig import MachineConfig, State
from minit.plan.root.mountoperations import MountFilesystem
from minit.podfiles import paths
from minit.supervisor.root.applymounts import new_filesystem

_RECORDS = f"{paths.MACHINE_POD}/{paths.POD_STAGE1_ROOTFS}/rkt"
_ROOTS = "roots"
_ROOTS_IN_MEMORY = "/run/minit/roots"
# A directory that is being removed: half of a boot would tell lies about it.
_REMOVED = ".removed"
# More than PID 1 writes before the apps start, so that a full disk does not keep them from it.
_NEEDED_BYTES = 1 << 18


def prepare_state(config: MachineConfig, modules: Modules) -> bool:
    """
    Make the pod writable where its root is not, and have written down below the state directory what the boot does.

    Returns whether that outlives the boot. A reason why it does not is one line. LaunchError if no app could write to a
    read-only root.
    """
    state = config.state
    obstacle = None if state is None else _obstacle(config, state)
    if state is not None and obstacle is not None:
        complain_at_once(f"minit: state {state.directory}: nothing is kept: {obstacle}")
        state = None
    _make_pod_writable(state, modules)
    if state is not None:
        try:
            syscalls.mount(_begin_boot(state), _RECORDS, None, syscalls.MS_BIND)
        except OSError as error:
            complain_at_once(f"minit: state {state.directory}: this boot is not kept: {describe(error)}")
        else:
            return True
    _forget_records()
    return False


def state_directory(config: MachineConfig) -> str | None:
    """Return the state directory if the machine has one that can be used."""
    state = config.state
    return None if state is None or _obstacle(config, state) is not None else state.directory


def _obstacle(config: MachineConfig, state: State) -> str | None:
    """Return why the directory is not to be used, if the file system is not there that it should be on, say."""
    targets = [each.target for each in config.filesystems if f"{state.directory}/".startswith(f"{each.target}/")]
    missing = next((target for target in targets if not os.path.ismount(target)), None)
    if missing is not None:
        return f"filesystem {missing} is not mounted"
    real = os.path.realpath(state.directory)
    # An app that has a directory above it as a volume would choose what is removed.
    return None if real == state.directory else f"a symlink leads to {real}"


def _make_pod_writable(state: State | None, modules: Modules) -> None:
    if state is not None and state.keep_roots:
        try:
            _overlay_pod(os.path.join(state.directory, _ROOTS), modules)
        except OSError as error:
            complain_at_once(f"minit: state {state.directory}: what apps write is not kept: {describe(error)}")
        else:
            return
    if os.statvfs(paths.MACHINE_POD).f_flag & os.ST_RDONLY:
        try:
            _overlay_pod(_ROOTS_IN_MEMORY, modules)
        except OSError as error:
            raise LaunchError(f"the root is read-only, and cannot have an overlay: {describe(error)}") from error


def _overlay_pod(place: str, modules: Modules) -> None:
    modules.load_filesystem("overlay")
    upper, work = os.path.join(place, "upper"), os.path.join(place, "work")
    for directory in (upper, work):
        os.makedirs(directory, exist_ok=True)
    # It takes the place of the pod's own.
    os.chmod(upper, os.stat(paths.MACHINE_POD).st_mode & 0o7777)
    layers = ("lowerdir", paths.MACHINE_POD), ("upperdir", upper), ("workdir", work)
    overlay = MountFilesystem(
        fstype="overlay",
        target=paths.MACHINE_POD,
        options=(("source", "overlay"), *layers),
        nosuid=False,
        nodev=False,
        noexec=False,
    )
    tree = new_filesystem(overlay)
    try:
        syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=paths.MACHINE_POD)
    finally:
        os.close(tree)


def _begin_boot(state: State) -> str:
    """Make this boot's directory, with the directories that the image has there, and return it; the oldest go."""
    os.makedirs(state.directory, 0o700, exist_ok=True)
    boots = sorted((name for name in os.listdir(state.directory) if name.isascii() and name.isdigit()), key=int)
    # First: there may be no space for another one.
    _remove_boots(state, boots[: max(0, len(boots) + 1 - state.kept_boots)])
    boot = os.path.join(state.directory, f"{int(boots[-1]) + 1 if boots else 1:06}")
    try:
        for place, _, _ in os.walk(_RECORDS):
            made = boot + place.removeprefix(_RECORDS)
            os.mkdir(made)
            os.chmod(made, os.stat(place).st_mode & 0o7777)
        _require_space(boot)
        for place, _, _ in os.walk(boot):
            _make_durable(place)
        _make_durable(state.directory)
    except OSError:
        _remove(boot, ignore_errors=True)
        raise
    return boot


def _forget_records() -> None:
    """Remove what an earlier boot has written down where the pod is on a disk: a status would tell lies of this one."""
    for place, _, names in os.walk(_RECORDS):
        for name in names:
            try:
                os.unlink(os.path.join(place, name))
            except OSError as error:
                complain_at_once(f"minit: of an earlier boot: {describe(error)}")


def _remove_boots(state: State, names: list[str]) -> None:
    removed = os.path.join(state.directory, _REMOVED)
    if os.path.lexists(removed):
        _remove(removed)
    for name in names:
        os.rename(os.path.join(state.directory, name), removed)
        _remove(removed)


def _remove(directory: str, *, ignore_errors: bool = False) -> None:
    if os.path.islink(directory) or (os.path.exists(directory) and not os.path.isdir(directory)):
        os.unlink(directory)  # it is nothing of ours
        return
    shutil.rmtree(directory, ignore_errors=ignore_errors)


def _require_space(directory: str) -> None:
    path = os.path.join(directory, ".space")
    with open(path, "wb", buffering=0) as file:
        os.unlink(path)
        left = _NEEDED_BYTES
        while left:
            left -= file.write(bytes(left)) or 0
        os.fsync(file.fileno())


def _make_durable(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
