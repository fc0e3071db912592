"""
The program of the machine that builds a stage1 image: what it prints and leaves behind is for builder.py.

    onmachine.py DIRECTORY [--plain]

In the directory is the image then, with a text why its interpreter is not dumped, if it should be; or an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import MinitError, describe
from minit.image.stage1 import build_stage1

IMAGE, OBSTACLE, ERROR = "stage1.aci", "obstacle", "error"
"""The files."""

PROGRESS = b"progress "
"""Begins a line with the step, the units done and the units in all, as JSON."""


def main(directory: Path, *options: str) -> None:
    """Build it."""

    def report(step: str, done: int, total: int | None) -> None:
        print(f"{PROGRESS.decode()}{jsontext.dump([step, done, total]).decode()}", flush=True)

    try:
        obstacle = build_stage1(directory / IMAGE, report, plain="--plain" in options)
    except MinitError as error:
        (directory / ERROR).write_text(describe(error))
    else:
        if obstacle is not None:
            (directory / OBSTACLE).write_text(obstacle)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
