"""The time that a machine starts with, which may have lost its own with its power."""

from __future__ import annotations

import os
import time

from minit import RELEASE_SECONDS
from minit.base.errors import describe
from minit.base.utctime import utc_text
from minit.machine.clock.kernelclock import read_rtc
from minit.podfiles import paths


def image_time() -> float | None:
    """
    Return the time of the image in seconds since 1970, that of machine.toml; None without that file.

    A time before the release of minit is none: files of an image may have any, and the image has minit in it.
    """
    try:
        return max(os.stat(paths.MACHINE_CONFIG).st_mtime, RELEASE_SECONDS)
    except OSError:
        return None


def is_lost(built: float) -> bool:
    """Tell whether the clock was before the time of the image at the boot, and has not been set since."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) < built


def correct_clock() -> str | None:
    """
    Set a clock that has lost its time to that of its RTC, or at least to that of the image.

    Return a line if it was set, or cannot be. Most kernels read the RTC themselves.
    """
    built = image_time()
    if built is None or not is_lost(built):
        return None
    wanted = max(built, _kept_time())
    if wanted <= time.time():
        return None
    try:
        time.clock_settime(time.CLOCK_REALTIME, wanted)
    except OSError as error:
        return f"clock: {describe(error)}"
    return f"the clock was before the time of the image: now it is {utc_text(wanted)}"


def _kept_time() -> float:
    try:
        return read_rtc()
    except OSError:
        return 0.0  # there is none, or its battery is empty
