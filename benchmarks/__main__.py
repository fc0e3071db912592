"""`python -m benchmarks [NAME...]`: runs the benchmarks, all of them by default, and prints Markdown tables."""

from __future__ import annotations

import sys

from benchmarks import (
    apps,
    attach,
    boot,
    commands,
    enter,
    first_instruction,
    image_import,
    images,
    init,
    isolation,
    logs,
    memory,
    networks,
    orphans,
    stop,
)
from benchmarks.table import machine

BENCHMARKS = {
    "apps": apps.main,
    "attach": attach.main,
    "boot": boot.main,
    "first-instruction": first_instruction.main,
    "image-import": image_import.main,
    "images": images.main,
    "isolation": isolation.main,
    "logs": logs.main,
    "networks": networks.main,
    "memory": memory.main,
    "stop": stop.main,
    "enter": enter.main,
    "commands": commands.main,
    "init": init.main,
    "orphans": orphans.main,
}


def main() -> None:
    """Run the benchmarks named by the arguments."""
    names = sys.argv[1:] or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"benchmarks: no benchmark {name!r}: choose from {', '.join(BENCHMARKS)}")
    print(machine())
    for name in names:
        BENCHMARKS[name]()


main()
