"""
Control groups that a `gc` could not remove, noted on the host until a later one can, of whichever pod.

rkt deletes the pod's directory whatever `gc` says, and with it the only other place that names them. A reboot, after
which there are none, takes the notes too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit import paths
from minit.boundedfile import read_bounded
from minit.launcher.cgroups import MAX_PATH_BYTES, Hierarchy, remove_pod_groups
from minit.reaper.record import write_durably

_DIRECTORY = "/run/minit/groups"


def belongs_to(subcgroup: str, uuid: str) -> bool:
    """Return whether a path is that of a pod's groups: removing groups by any other one would be a weapon."""
    parts = subcgroup.split("/")
    return parts[-1] == paths.pod_cgroup_name(uuid) and ".." not in parts


def note_left(uuid: str, subcgroup: str) -> None:
    """Note that groups of a pod are left."""
    os.makedirs(_DIRECTORY, 0o755, exist_ok=True)
    write_durably(f"{_DIRECTORY}/{uuid}", os.fsencode(subcgroup))


def forget_left(uuid: str) -> None:
    """Note that none are left."""
    try:
        os.unlink(f"{_DIRECTORY}/{uuid}")
    except FileNotFoundError:
        pass


def remove_left(hierarchies: Sequence[Hierarchy]) -> None:
    """Remove what is left of any pod and can be removed now, without waiting."""
    try:
        # Others are being written.
        uuids = [name for name in os.listdir(_DIRECTORY) if not name.startswith(".")]
    except FileNotFoundError:
        return
    for uuid in uuids:
        try:
            fd = os.open(f"{_DIRECTORY}/{uuid}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            subcgroup = os.fsdecode(read_bounded(fd, uuid, MAX_PATH_BYTES))
            if not belongs_to(subcgroup, uuid) or not remove_pod_groups(hierarchies, subcgroup, patience_seconds=0):
                forget_left(uuid)
        except OSError:
            continue  # another gc was faster, or it is none of ours
