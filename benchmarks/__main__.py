"""
`python -m benchmarks [--json FILE] [--earlier FILE] [NAME...]`: runs the benchmarks, all by default, and prints
Markdown tables.

The last table has the goals that were measured: `goals` runs what has any. `gc-1000` and `node-110`, which
take minutes, and `boot-instructions`, which is a part of `boot`, have to be named. The file gets all tables as they
are measured, for `python -m benchmarks.picture`. With such a file of an earlier run the figures that became worse by a
tenth follow.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

from benchmarks import (
    apps,
    attach,
    boot,
    collecting,
    commands,
    enter,
    first_instruction,
    goals,
    image_import,
    image_size,
    images,
    init,
    isolation,
    logs,
    many_apps,
    memory,
    networks,
    node,
    orphans,
    pods_in_a_row,
    reexecution,
    rootless,
    stop,
    whole_run,
)
from benchmarks.table import TABLES, machine, print_worse

BENCHMARKS = {
    "apps": apps.main,
    "attach": attach.main,
    "boot": boot.main,
    "first-instruction": first_instruction.main,
    "image-import": image_import.main,
    "images": images.main,
    "isolation": isolation.main,
    "logs": logs.main,
    "whole-run": whole_run.main,
    "networks": networks.main,
    "many-apps": many_apps.main,
    "memory": memory.main,
    "stop": stop.main,
    "enter": enter.main,
    "commands": commands.main,
    "init": init.main,
    "gc": collecting.main,
    "pods-in-a-row": pods_in_a_row.main,
    "image-size": image_size.main,
    "orphans": orphans.main,
    "node": node.main,
    "rootless": rootless.main,
    "reexecution": reexecution.main,
}
_ONLY_BY_NAME = {
    "gc-1000": collecting.main_long,
    "boot-instructions": boot.main_goals,
    "node-110": node.main_full,
}


def main() -> None:
    """Run the benchmarks named by the arguments."""
    known = {**BENCHMARKS, **_ONLY_BY_NAME}
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--earlier", type=Path, metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    names: list[str] = given.names or list(BENCHMARKS)
    if "goals" in names:
        names = [name for name in names if name not in ("goals", *goals.MEASURED_BY)] + [*goals.MEASURED_BY]
    for name in names:
        if name not in known:
            sys.exit(f"benchmarks: no benchmark {name!r}: choose from goals, {', '.join(known)}")
    print(machine())
    failed = False
    for name in names:
        try:
            known[name]()
        except Exception:
            # The figures of the others, and their goals, are not to be lost.
            print(f"\n{name}: failed", flush=True)
            traceback.print_exc()
            failed = True
        if given.json is not None:
            given.json.write_text(_text())
    goals.main()
    if given.earlier is not None:
        print_worse(json.loads(given.earlier.read_text())["tables"])
    sys.exit(failed)


def _text() -> str:
    return json.dumps({"machine": machine(), "tables": TABLES}, indent=1, ensure_ascii=False) + "\n"


main()
