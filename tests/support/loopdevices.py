"""Block devices that the kernel makes and removes on request, without hardware (drivers/block/loop.c)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

_CONTROL = "/dev/loop-control"
_NONE = "no /dev/loop-control that can be opened"
_LOOP_CTL_ADD = 0x4C80
_LOOP_CTL_REMOVE = 0x4C81
_FIRST_NUMBER = 5000


def _can_be_had() -> bool:
    """Return whether the machine lets this process make loop devices: few containers may."""
    try:
        os.close(os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


needs_loop_devices = pytest.mark.skipif(os.geteuid() == 0 and not _can_be_had(), reason=_NONE)
"""For tests that have /dev/loop-control as an example of a device, or make a LoopDevice."""


def require_loop_devices() -> None:
    """Skip the test where there are none."""
    if not _can_be_had():
        pytest.skip(_NONE)


class LoopDevice:
    """A loop device of the test's own, of a number that nobody else asks for; there from the beginning."""

    def __init__(self) -> None:
        require_loop_devices()
        for number in range(_FIRST_NUMBER + os.getpid() % 1000, 1 << 20):
            try:
                _control(_LOOP_CTL_ADD, number)
            except FileExistsError:
                continue
            self.number = number
            self.path = Path(f"/dev/loop{number}")
            return

    def add(self) -> None:
        """Have the kernel make the device again."""
        _control(_LOOP_CTL_ADD, self.number)

    def remove(self) -> None:
        """Have the kernel remove the device, and its node; nothing if it is gone."""
        if self.path.exists():
            _control(_LOOP_CTL_REMOVE, self.number)

    def announce(self, action: str) -> None:
        """Have the kernel tell everybody of an event that did not happen."""
        Path(f"/sys/block/{self.path.name}/uevent").write_text(action)

    @property
    def rule(self) -> str:
        """The device as a line of `devices.list` begins."""
        device = os.stat(self.path).st_rdev
        return f"b {os.major(device)}:{os.minor(device)}"


def _control(request: int, number: int) -> None:
    fd = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, request, number)
    finally:
        os.close(fd)
