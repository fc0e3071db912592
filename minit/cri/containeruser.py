"""The user and the groups that a container has, as stage1 has found them in its image."""

from __future__ import annotations

import os

from minit.base.errors import LaunchError
from minit.cri.api import cri_pb2 as api
from minit.plan.entering import MAXIMUM_PROFILE_BYTES, decode_profile
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.paths import enter_profile
from minit.stage0.pods.poddirectory import Pod


def read_user(pod: Pod, app: str) -> api.ContainerUser | None:
    """Return as whom an app of a pod runs, None if the pod has not written that down."""
    path = enter_profile(app)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=pod.fd)
        profile = decode_profile(read_bounded(fd, path, MAXIMUM_PROFILE_BYTES), path)
    except (OSError, LaunchError):
        return None
    ids = profile.confinement
    # Dict for the order, in which the group itself is the first.
    groups = dict.fromkeys((ids.gid, *ids.supplementary_gids))
    return api.ContainerUser(linux=api.LinuxContainerUser(uid=ids.uid, gid=ids.gid, supplemental_groups=groups))
