"""A control group in which memory becomes short, so that the kernel kills one of its processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.pods import BUSYBOX

_SPARE_BYTES = 1 << 20
_MOST_MIB = 64
# Of v1 and v2: how much is used, and how much may be.
_FILES = (("memory.usage_in_bytes", "memory.limit_in_bytes"), ("memory.current", "memory.max"))


def memory_group(groups: list[Path], name: str = "") -> Path:
    """Return that one of a group's directories, or of a group in it, which has the memory controller."""
    places = [directory / name for directory in groups]
    return next(place for place in places if any((place / used).exists() for used, _ in _FILES))


def use_up(group: Path) -> int:
    """
    Limit the memory of a group and use it up, so that the kernel kills the largest process in it; return the limit.

    The memory is that of a file: no process of the test has it.
    """
    used, limit = next(files for files in _FILES if (group / files[0]).exists())
    (group / limit).write_text(str(int((group / used).read_text()) + _SPARE_BYTES))
    file = os.memfd_create("memory")
    fill = f'echo 0 >"$0/cgroup.procs" && exec {BUSYBOX} dd if=/dev/zero bs=1M count={_MOST_MIB}'
    subprocess.run([BUSYBOX, "sh", "-c", fill, group], stdout=file, stderr=subprocess.DEVNULL, check=False)
    os.close(file)
    return int((group / limit).read_text())
