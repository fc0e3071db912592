"""From a file that --seccomp names to the annotation with its profile, so that a pod does not depend on the file."""

from __future__ import annotations

import os
import stat

from minit.base.errors import LaunchError, PodError
from minit.base.jsontext import dump, parse
from minit.base.value import replace
from minit.cli.flags.isolatorflags import PROFILE_FILE
from minit.manifest.annotations import Annotation
from minit.manifest.seccomp import MAXIMUM_PROFILE_BYTES
from minit.podfiles.boundedfile import read_bounded
from minit.stage0.pods.appsection import AppOverrides


def with_profile(overrides: AppOverrides) -> AppOverrides:
    """Return the settings of an app with its profile read; OSError or MinitError for one that cannot be had."""
    if overrides.seccomp is None:
        return overrides
    text = overrides.seccomp
    if text.startswith(PROFILE_FILE):
        text = read_profile(text.removeprefix(PROFILE_FILE))
    annotations = (*overrides.annotations, (Annotation.SECCOMP, text))
    return replace(overrides, seccomp=None, annotations=annotations)


def read_profile(path: str) -> str:
    """Return the annotation for the profile in a file; OSError or PodError for one that cannot be had."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PodError(f"{path}: expected a regular file with a seccomp profile")
    try:
        data = read_bounded(fd, path, MAXIMUM_PROFILE_BYTES)
    except LaunchError as error:
        raise PodError(str(error)) from error
    return dump(parse(data, path)).decode()
