"""Writing what `enter` needs of each app into the pod directory, for when PID 1 does not answer."""

from __future__ import annotations

import os

from minit import paths
from minit.plan.entering import encode_profile, profile_of
from minit.process import read_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from minit.plan.app import AppSpec


def write_profiles(apps: Iterable[AppSpec], open_files: tuple[int, int]) -> None:
    """Write the profiles of a pod's apps, for root alone; `open_files` is the RLIMIT_NOFILE of their processes."""
    os.mkdir(paths.POD_ENTER, 0o700)
    limits = read_limits(open_files)
    for app in apps:
        fd = os.open(paths.enter_profile(app.name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = encode_profile(profile_of(app, limits))
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
