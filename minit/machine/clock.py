"""The kernel's clock, the chip that keeps the time without power (rtc(4)), and the time at the start of a machine."""

from __future__ import annotations

import calendar
import fcntl
import os
import struct
import time

from minit import RELEASE_SECONDS
from minit.base.errors import describe
from minit.base.utctime import utc_text
from minit.linux import syscalls
from minit.podfiles import paths

RTC = "/dev/rtc0"

_RTC_TIME = struct.Struct("=9i")  # struct rtc_time, a struct tm
_RTC_RD_TIME, _RTC_SET_TIME = 0x80247009, 0x4024700A
_FIRST_YEAR = 1900


class KernelClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return time.time()

    def slew(self, offset_seconds: float, poll_seconds: float) -> None:
        """Correct the clock by a changed pace, with a server asked every `poll_seconds`."""
        syscalls.slew_clock(offset_seconds, poll_seconds)

    def step(self, offset_seconds: float) -> None:
        """Move the clock."""
        syscalls.step_clock(offset_seconds)

    def keep(self) -> None:
        """Give the time to the chip; FileNotFoundError if there is none."""
        broken = time.gmtime(round(time.time()))
        fields = (broken.tm_sec, broken.tm_min, broken.tm_hour, broken.tm_mday, broken.tm_mon - 1)
        _control_rtc(os.O_WRONLY, _RTC_SET_TIME, _RTC_TIME.pack(*fields, broken.tm_year - _FIRST_YEAR, 0, 0, 0))


def read_rtc() -> float:
    """Return the chip's time in seconds since 1970; OSError without a chip or a time."""
    fields = _RTC_TIME.unpack(_control_rtc(os.O_RDONLY, _RTC_RD_TIME, bytes(_RTC_TIME.size)))
    second, minute, hour, day, month, year = fields[:6]
    return calendar.timegm((year + _FIRST_YEAR, month + 1, day, hour, minute, second))


def _control_rtc(mode: int, request: int, argument: bytes) -> bytes:
    fd = os.open(RTC, mode | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(fd, request, argument)
    finally:
        os.close(fd)


def image_time() -> float | None:
    """
    Return the time of the image in seconds since 1970, from the file machine.toml; None without the file.

    A time before the release of minit does not count: files of an image may have any time, and the image has minit in
    it.
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
    Set a clock that has lost its time to the RTC's time, or at least to the image's.

    Return a line if the clock was set, or cannot be set. Most kernels read the RTC themselves.
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
