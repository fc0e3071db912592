"""
Removes what a session of tests has once it has ended, also when it was killed: a process that outlives it.

It has the claims meanwhile, which a child of a test could keep open, and is in neither the control group, the process
group nor the mounts of the session. Arguments: descriptors of the processes that end the session, the directory of its
disk, and its control groups. Anything in standard input ends it as well.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.owndisk import OwnDisk, remove_disk
from tests.support.owngroup import OwnGroup, remove_groups

_PROJECT = Path(__file__).parents[2]


class Afterwards:
    """That process, waiting for the end of any of `pids`, or of `begin`."""

    def __init__(self, group: OwnGroup | None, disk: OwnDisk, pids: Iterable[int]) -> None:
        claims = [disk.claim] if group is None else [disk.claim, group.claim]
        ends = [os.pidfd_open(pid) for pid in pids]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.afterwards", ",".join(map(str, ends)), str(disk.around)),
                *(str(directory) for directory in (group.directories if group else ())),
            ],
            cwd=_PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(*claims, *ends),
            start_new_session=True,
        )
        for fd in (*claims, *ends):
            os.close(fd)

    def begin(self) -> None:
        """Remove everything now; this process has left it."""
        self._process.communicate(b"\n")


def main() -> None:
    """Wait, and remove."""
    ends, disk, *groups = sys.argv[1:]
    select.select([sys.stdin, *map(int, ends.split(","))], [], [])
    remove_groups([Path(group) for group in groups])
    remove_disk(Path(disk))


if __name__ == "__main__":
    main()
