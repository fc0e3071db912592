"""The `gc_many` entrypoint, minit's own: `gc` of one pod after the other, without the start of a program for each."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import NoReturn

from entrypoints._main import outcome, run_entrypoint
from entrypoints.gc import FLAGS
from minit.base.errors import UsageError
from minit.base.goflags import parse_flags, usage
from minit.launcher.cgroups import read_hierarchies
from minit.launcher.gc import collect, collect_each
from minit.plan.inputs.runflags import parse_uuid


def main() -> NoReturn:
    """Collect pods until the end of standard input, and exit."""
    run_entrypoint("stage1 gc", usage("gc_many", "", FLAGS), _collect_each)


def _collect_each(arguments: list[str]) -> int:
    values, operands = parse_flags(arguments, FLAGS)
    if operands:
        raise UsageError(f"expected no arguments, got {len(operands)}")
    hierarchies = read_hierarchies()

    def collect_one(word: str, freed: ExitStack | None) -> int:
        uuid = parse_uuid(word)
        os.chdir(word)
        return collect(uuid, hierarchies, str(values["local-config"]), freed, debug=bool(values["debug"]))

    collect_each(lambda word, freed: outcome("stage1 gc", "", lambda: collect_one(word, freed)))
    return 0
