"""The hardware watchdog, fed by PID 1 alone (Documentation/watchdog/watchdog-api.rst)."""

from __future__ import annotations

import fcntl
import os
import stat
import time

from minit.base.errors import describe
from minit.linux.stdio import complain_at_once
from minit.manifest.machineconfig import Watchdog

_WDIOC_SETTIMEOUT = 0xC0045706
_INT_BYTES = 4
# Several meals can be missed before it bites.
_MEALS = 4
_DESCRIPTORS = "/proc/self/fd"
_LAST_STREAM = 2
_FOOD = b"\0"
_FAREWELL = b"V"  # without it the watchdog goes on when it is closed


class Feeder:
    """An open watchdog; whoever opened it, or found it open, has to feed it from now on."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.fd = _take_over(watchdog.device)
        try:
            wanted = watchdog.timeout_seconds.to_bytes(_INT_BYTES, "little")
            # The device answers with what it can do.
            timeout_seconds = int.from_bytes(fcntl.ioctl(self.fd, _WDIOC_SETTIMEOUT, wanted), "little")
        except OSError:
            timeout_seconds = watchdog.timeout_seconds  # it has one timeout only
        self._period_seconds = max(timeout_seconds, 1) / _MEALS
        self.next_meal = 0.0
        self._refuses = False
        self.feed()

    def feed(self) -> None:
        """Feed it if it is time; one that refuses its food, as one that is gone does, is said so once."""
        now = time.monotonic()
        if now < self.next_meal:
            return
        self.next_meal = now + self._period_seconds
        try:
            os.write(self.fd, _FOOD)
        except OSError as error:
            # PID 1 must not end for it: if the watchdog works after all, it bites.
            if not self._refuses:
                complain_at_once(f"minit: watchdog: {describe(error)}")
            self._refuses = True
        else:
            self._refuses = False

    def release(self) -> None:
        """Let the machine be without a watchdog."""
        os.write(self.fd, _FAREWELL)
        os.close(self.fd)


def _take_over(device: str) -> int:
    """Return the watchdog open: what has made the root of a disk may have left it so, and it opens once only."""
    number = os.stat(device).st_rdev
    for name in os.listdir(_DESCRIPTORS):
        fd = int(name)
        try:
            status = os.fstat(fd)
        except OSError:
            continue  # that of the directory
        if fd > _LAST_STREAM and stat.S_ISCHR(status.st_mode) and status.st_rdev == number:
            os.set_inheritable(fd, False)
            return fd
    return os.open(device, os.O_WRONLY | os.O_CLOEXEC)
