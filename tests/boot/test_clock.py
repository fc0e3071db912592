"""A machine whose battery is empty, and a server of NTP that has a name."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from minit import RELEASE_SECONDS
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import USER_NETWORK, QemuMachine
from tests.support.dnsserver import DnsServer
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.ntpserver import NtpServer
from tests.support.pods import shell

CONFIG = """
modules = ["virtio_pci"]
name_servers = ["10.0.2.2"]
[[interface]]
name = "eth0"
dhcp = true
[clock]
servers = ["ntp.test"]
wait_seconds = 60
"""
# The time constant is of the second answer, by which the clock goes faster or slower.
APP = """
echo $(date +%s) $(cat /sys/class/rtc/rtc0/since_epoch)
until adjtimex | grep -q 'timeconstant: *1$'; do sleep 1; done
adjtimex | grep -o PLL
"""


@pytest.mark.long
@pytest.mark.timeout(2 * BOOT_SECONDS)
def test_a_clock_that_is_set(
    kernel: Kernel, build_machine: BuildMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A machine of which the clock was lost, with files of 1970 alone, starts its app with a server's time, and keeps it
    in its RTC and kernel.
    """
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    # The host's clock may be before the release, which no server's time is.
    offset_seconds = 1000.0 + max(0.0, RELEASE_SECONDS - time.time())
    app = {**shell(APP), "annotations": [{"name": "minit/seccomp", "value": "unconfined"}]}
    initial = build_machine({"one": app}, CONFIG, ("virtio_net",))
    with NtpServer("127.0.0.1", offset_seconds=offset_seconds) as server, DnsServer("127.0.0.1") as names:
        names.hosts = {"ntp.test": ["10.0.2.2"]}
        options = ["-rtc", "base=2001-01-01"]
        with QemuMachine(kernel, tmp_path, initial, networks=[USER_NETWORK], options=options) as machine:
            machine.wait()
    assert len(server.asked) >= 2, machine.lines
    times, status = machine.said("one")
    for told in map(int, times.split()):
        assert abs(told - (time.time() + offset_seconds)) < 300
    assert status == "PLL"
    own = [line for line in machine.lines if line.startswith("minit: clock")]
    assert len(own) == 1 and own[0].endswith("s), by ntp.test (10.0.2.2)")
