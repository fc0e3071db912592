"""The kernel's clock, and the chip that keeps the time without power (rtc(4))."""

from __future__ import annotations

import calendar
import fcntl
import os
import struct
import time

from minit.linux import syscalls

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
        """Have the clock reach its time by a changed pace, with a server asked every `poll_seconds`."""
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
    """Return the time of the chip in seconds since 1970; OSError if there is none that has one."""
    fields = _RTC_TIME.unpack(_control_rtc(os.O_RDONLY, _RTC_RD_TIME, bytes(_RTC_TIME.size)))
    second, minute, hour, day, month, year = fields[:6]
    return calendar.timegm((year + _FIRST_YEAR, month + 1, day, hour, minute, second))


def _control_rtc(mode: int, request: int, argument: bytes) -> bytes:
    fd = os.open(RTC, mode | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(fd, request, argument)
    finally:
        os.close(fd)
