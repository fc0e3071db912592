"""The clock of a machine, which may have lost its time with its power."""

from __future__ import annotations

import os
import time

from minit import paths
from minit.errors import describe


def correct_clock() -> str | None:
    """
    Set the clock to the time of the image if it is before that; return a line if it was, or cannot be set.

    The time of the image is that of machine.toml. A clock that runs on a battery is read by the kernel itself.
    """
    try:
        built = os.stat(paths.MACHINE_CONFIG).st_mtime
        if time.time() >= built:
            return None
        time.clock_settime(time.CLOCK_REALTIME, built)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"clock: {describe(error)}"
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(built))
    return f"the clock was before the time of the image: now it is {now}"
