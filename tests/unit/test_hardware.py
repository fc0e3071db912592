"""minit.machine.hardware: a device that fails."""

from __future__ import annotations

import os

import pytest

from minit.machine.hardware import Feeder
from minit.manifest.machineconfig import Watchdog


def test_a_watchdog_that_refuses_its_food_does_not_end_pid_1(capfd: pytest.CaptureFixture[str]) -> None:
    """It is said once, and tried again as long as it takes."""
    feeder = Feeder(Watchdog(device="/dev/full", timeout_seconds=4))
    assert feeder.next_meal > 0
    feeder.next_meal = 0.0
    feeder.feed()
    assert capfd.readouterr().err.count("minit: watchdog: no space left on device") == 1
    reader, writer = os.pipe()
    os.dup2(writer, feeder.fd)
    feeder.next_meal = 0.0
    feeder.feed()
    assert os.read(reader, 1) == b"\0"
    for fd in (reader, writer, feeder.fd):
        os.close(fd)
