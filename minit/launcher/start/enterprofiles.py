"""Writing what `enter` needs of each app into the pod directory, for when PID 1 does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterable

from minit.linux.attributes import Attributes
from minit.plan.appspec import AppSpec
from minit.plan.entering import MAXIMUM_PROFILE_BYTES, encode_profile, profile_of
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded


def write_profiles(apps: Iterable[AppSpec], attributes: Attributes) -> None:
    """Write the profiles of a pod's apps, whose processes have these attributes, for root alone."""
    os.mkdir(paths.POD_ENTER, 0o700)
    for app in apps:
        _write(app.name, encode_profile(profile_of(app, attributes)), os.O_EXCL)


def write_profile(app: str, fd: int) -> None:
    """Write the profile of an app that was added, as PID 1 has it in an open file, which is closed."""
    os.lseek(fd, 0, os.SEEK_SET)
    _write(app, read_bounded(fd, "profile", MAXIMUM_PROFILE_BYTES), os.O_TRUNC)


def _write(app: str, data: bytes, how: int) -> None:
    fd = os.open(paths.enter_profile(app), os.O_WRONLY | os.O_CREAT | how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
