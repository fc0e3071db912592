"""
Filling the implicit volumes of images converted from Docker's format with what the image has at their place.

Docker's VOLUME keeps what the image has there; appc's mount points hide it. The image is read from the host before
anything of the pod runs: every path is resolved inside its root, and no symlink below is followed.
"""

from __future__ import annotations

import os

from minit import paths
from minit.plan.root.volumes import VolumeMount
from minit.supervisor.root.targets import open_existing
from minit.treecopy import copy_directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_up(app: str, volume: VolumeMount) -> bool:
    """
    Copy what the image of `app` has at the volume's target into its new directory, owners, modes and times too.

    Returns whether the image has a directory there. Hard links become files of their own. OSError names what could
    not be copied.
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
