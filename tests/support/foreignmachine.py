"""A shell script in the place of the machine that builds stage1 images for another processor."""

from __future__ import annotations

from pathlib import Path

from minit.base.value import replace
from minit.image.foreign import ARM64, ForeignProcessor

# The machine's second disk has the project, and it writes to the third one.
_QEMU = """#!/bin/sh
for word; do case $word in
    file=*/project,*) project=${word#file=}; project=${project%%,*};;
    file=*/result,*) result=${word#file=}; result=${result%%,*};;
esac; done
echo booted >> CALLS
echo 'progress ["thinking", 1, 2]'
tar -tf $project > LISTED
SCRIPT
"""


def stand_in(directory: Path, tmp_path: Path, script: str) -> ForeignProcessor:
    """
    Return a processor whose machine is played by a script, of which a disk and a kernel are in the directory.

    The script writes a tar to $result. There are lists of its `calls`, and of what it was given: `listed`.
    """
    (directory / "kernel/boot").mkdir(parents=True, exist_ok=True)
    for name in ("disk", "kernel/boot/vmlinuz-1"):
        (directory / name).touch()
    program = tmp_path / "qemu"
    text = _QEMU.replace("CALLS", f"{tmp_path}/calls").replace("LISTED", f"{tmp_path}/listed")
    program.write_text(text.replace("SCRIPT", script))
    program.chmod(0o755)
    return replace(ARM64, qemu=(str(program),))
