"""Trials that need a machine with a kernel of its own, and its remains when its first program stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from minit import RELEASE_SECONDS
from minit.base.utctime import utc_text
from minit.podfiles import paths
from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.campaign import LONG
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.pods import shell

ORPHANS = 10_000 if LONG else 300
BUILT_SECONDS = RELEASE_SECONDS + 1_000_000
CONFIG = """
modules = ["softdog"]
[watchdog]
timeout_seconds = 30
"""
LIMITED = "tail /dev/zero; echo more than its own memory: $?"
SURVIVOR = f"""
[ $(date +%s) -ge {BUILT_SECONDS} ] && echo a clock
i=0; while [ $i -lt {ORPHANS} ]; do until (true &) 2>/dev/null; do sleep 1; done; i=$((i+1)); done
while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 1; done
echo no zombies
tail /dev/zero; echo all memory: $?
for process in /proc/[0-9]*; do
    read name < $process/comm && case $name in minit|minit-machine) echo $name $(cat $process/oom_score_adj);; esac
done
grep -o -e 'Linux version' -e 'minit: the clock was' -e 'Out of memory: Killed' /log/kernel.log
cd /pod
# PID 1 answers no process of an app.
(
    for top in /groups /groups/*; do [ -e $top/cgroup.procs ] && echo 0 > $top/cgroup.procs && break; done
    echo '{{"op":"reexecute"}}' | stage1/rootfs/usr/lib/minit/bin/minit control {paths.MACHINE_UUID}
)
until grep -q supervisor.resumed {paths.POD_EVENTS}; do sleep 1; done
echo freezing PID 1
for top in /groups /groups/*; do
    # Alone: what this app has said is still on its way through another process of that group.
    [ -e $top/init.scope/cgroup.freeze ] || continue
    mkdir $top/frozen && echo 1 > $top/frozen/cgroup.procs && echo 1 > $top/frozen/cgroup.freeze
done
sleep 10000
"""


@pytest.mark.long
@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_what_a_machine_survives(
    kernel: Kernel, build_machine: BuildMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A clock without a battery, a storm of orphans, apps that take all memory of theirs and of the machine, another
    program of PID 1; and when PID 1 itself does not go on, the watchdog resets the machine.
    """
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(BUILT_SECONDS))
    places = {"log": "/run/log", "groups": "/sys/fs/cgroup", "pod": paths.MACHINE_POD}
    initial = build_machine(
        {
            "limited": shell(LIMITED, isolators=[{"name": "resource/memory", "value": {"limit": "16Mi"}}]),
            "one": {**shell(SURVIVOR), "mounts": [{"volume": name, "path": f"/{name}"} for name in places]},
        },
        CONFIG,
        volumes=tuple({"name": name, "kind": "host", "source": source} for name, source in places.items()),
    )
    with QemuMachine(kernel, tmp_path, initial, options=["-rtc", "base=2001-01-01"]) as machine:
        machine.wait()
    said = machine.said("one")
    assert said[0] == "a clock", machine.lines
    assert [line for line in said if not line.startswith(("a clock", "Killed"))] == [
        *("no zombies", "all memory: 137", "minit -999", "minit-machine -900"),
        *("Linux version", "minit: the clock was", "Out of memory: Killed", '{"ok":true}', "freezing PID 1"),
    ]
    assert machine.said("limited")[-1] == "more than its own memory: 137"
    own = [line for line in machine.lines if line.startswith("minit: ")]
    assert own == ["minit: the clock was before the time of the image: now it is " + utc_text(BUILT_SECONDS)]
    # The kernel would say that somebody had closed the watchdog.
    assert not any("Unexpected close" in line for line in machine.lines)
    assert machine.lines[-1].endswith("softdog: Initiating system reboot")
