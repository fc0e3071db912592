"""Memory that a machine keeps compressed, in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.conftest import BuildMachine
from tests.support.bootmachine import QemuMachine
from tests.support.machine import BOOT_SECONDS, Kernel
from tests.support.pods import shell

_CONFIG = """
[swap]
size_mib = 48
"""
# Of the root, most is the interpreter, and a third of that is left when it is compressed.
_WRITTEN_KIB, _FREED_KIB = 16 << 10, 8 << 10
_SCRIPT = f"""
value() {{ while read name number unit; do [ $name != $1 ] || echo $number; done < /proc/meminfo; }}
before=$(value MemAvailable:)
[ $(value SwapTotal:) -eq 0 ] && echo starts without
until [ $(value SwapTotal:) -gt 0 ]; do sleep 1; done
echo $(($(value SwapTotal:) / 1024)) MiB
until [ $(($(value SwapTotal:) - $(value SwapFree:))) -ge {_WRITTEN_KIB} ]; do sleep 1; done
until [ $(($(value MemAvailable:) - before)) -ge {_FREED_KIB} ]; do sleep 1; done
echo has more memory
"""


@pytest.mark.long
@pytest.mark.timeout(3 * BOOT_SECONDS)
def test_a_root_that_is_not_in_use(kernel: Kernel, build_machine: BuildMachine, tmp_path: Path) -> None:
    """When the apps have started, a root in memory is compressed, and what that frees is theirs; the machine ends."""
    initial = build_machine({"one": shell(_SCRIPT)}, _CONFIG)
    with QemuMachine(kernel, tmp_path, initial) as machine:
        machine.wait()
    assert machine.said("one") == ["starts without", "47 MiB", "has more memory"]
    own = [line for line in machine.lines if line.startswith("minit: ")]
    assert own == ["minit: the pod has ended with 0", "minit: poweroff"]
