"""The power button, which is a keyboard with one key (the kernel's Documentation/input/event-codes.rst)."""

from __future__ import annotations

import os
from collections.abc import Iterator

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


class PowerButtons:
    """Every input device with that key; those that come later are found by looking again."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        return list(self._open.values())

    def look(self) -> None:
        """Open the devices that have come."""
        for name in _devices_with_key():
            if name not in self._open:
                try:
                    self._open[name] = os.open(
                        f"{_NODES}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                    )
                except OSError:
                    continue  # its node is made in a moment, of which there is another event

    def take_presses(self) -> bool:
        """Take what has come; returns whether a button was pressed."""
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
