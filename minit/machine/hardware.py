"""The hardware watchdog, fed by PID 1 alone (Documentation/watchdog/watchdog-api.rst), and the power button."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator

from minit.base.carried import Carried, Descriptor
from minit.base.errors import describe
from minit.linux.stdio import complain_at_once
from minit.manifest.machineconfig import Watchdog

_WDIOC_SETTIMEOUT = 0xC0045706
_INT_BYTES = 4
# Several meals can be missed before the watchdog bites.
_MEALS = 4
_DESCRIPTORS = "/proc/self/fd"
_LAST_STREAM = 2
_FOOD = b"\0"
_FAREWELL = b"V"  # without it the watchdog goes on when it is closed

POWER_BUTTON = "power button"
"""The message of the machine's helper when somebody presses the button."""

_CLASS = "/sys/class/input"
_NODES = "/dev/input"
_KEY_POWER = 116
_EV_KEY = 1
_PRESSED = 1
# struct input_event: a struct timeval, then type, code and value.
_EVENT_BYTES = 24
_READ_BYTES = 64 * _EVENT_BYTES


class Feeder(Carried):
    """An open watchdog; after opening it, or finding it open, PID 1 has to feed it."""

    fd: Descriptor
    next_meal: float
    _period_seconds: float
    _refuses: bool

    def __init__(self, watchdog: Watchdog) -> None:
        self.fd = _take_over(watchdog.device)
        try:
            wanted = watchdog.timeout_seconds.to_bytes(_INT_BYTES, "little")
            # The device answers with its own timeout.
            timeout_seconds = int.from_bytes(fcntl.ioctl(self.fd, _WDIOC_SETTIMEOUT, wanted), "little")
        except OSError:
            timeout_seconds = watchdog.timeout_seconds  # it has one timeout only
        self._period_seconds = max(timeout_seconds, 1) / _MEALS
        self.next_meal = 0.0
        self._refuses = False
        self.feed()

    def feed(self) -> None:
        """Feed the watchdog if it is time; a refusal, also of a vanished watchdog, is reported once."""
        now = time.monotonic()
        if now < self.next_meal:
            return
        self.next_meal = now + self._period_seconds
        try:
            os.write(self.fd, _FOOD)
        except OSError as error:
            # PID 1 must not end for a refusal: if the watchdog works after all, it bites.
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
    """Return the open watchdog: the program that set up a disk's root may have left it open, and it opens only once."""
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


class PowerButtons:
    """
    Every input device with a power key (Documentation/input/event-codes.rst); later devices are found by looking again.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        return list(self._open.values())

    def look(self) -> None:
        """Open new devices."""
        for name in _devices_with_key():
            if name not in self._open:
                try:
                    self._open[name] = os.open(
                        f"{_NODES}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                    )
                except OSError:
                    continue  # its node is made in a moment, of which there is another event

    def take_presses(self) -> bool:
        """Read all events; return whether a button was pressed."""
        pressed = False
        for name, fd in list(self._open.items()):
            try:
                while data := os.read(fd, _READ_BYTES):
                    pressed = pressed or _has_press(data)
            except BlockingIOError:
                continue
            except OSError:
                pass
            # End of file, or no such device any more.
            os.close(fd)
            del self._open[name]
        return pressed


def _has_press(data: bytes) -> bool:
    """Tell whether the power key is pressed in a block of events."""
    for at in range(0, len(data) - _EVENT_BYTES + 1, _EVENT_BYTES):
        kind = int.from_bytes(data[at + 16 : at + 18], "little")
        code = int.from_bytes(data[at + 18 : at + 20], "little")
        value = int.from_bytes(data[at + 20 : at + 24], "little")
        if (kind, code, value) == (_EV_KEY, _KEY_POWER, _PRESSED):
            return True
    return False


def _has_power_key(bitmap: str) -> bool:
    """Tell whether the power key is in a bitmap of sysfs: words in hexadecimal, the highest first."""
    words = bitmap.split()
    word = _KEY_POWER // 64
    return word < len(words) and bool(int(words[-1 - word], 16) >> _KEY_POWER % 64 & 1)


def _devices_with_key() -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(_CLASS) if name.startswith("event"))
    except OSError:
        return
    for name in names:
        try:
            with open(f"{_CLASS}/{name}/device/capabilities/key", encoding="ascii") as file:
                if _has_power_key(file.read()):
                    yield name
        except (OSError, ValueError):
            continue
