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
from contextlib import suppress
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
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(*claims, *ends),
            start_new_session=True,
        )
        for fd in (*claims, *ends):
            os.close(fd)
        # What goes on is nobody's child, which a test that ends its own could take for one.
        self._process.wait()

    def begin(self) -> None:
        """Remove everything now; this process has left it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        self._process.stdout.read()  # until it has ended


def main() -> None:
    """Wait, and remove."""
    if os.fork() != 0:
        os._exit(0)
    ends, disk, *groups = sys.argv[1:]
    select.select([sys.stdin, *map(int, ends.split(","))], [], [])
    remove_groups([Path(group) for group in groups])
    remove_disk(Path(disk))


if __name__ == "__main__":
    main()
