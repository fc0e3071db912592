"""The `run` entrypoint: runs the pod that stage0 prepared in the working directory."""

from __future__ import annotations

import os
from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import usage
from minit.launcher.start.launch import launch, lock_descriptor
from minit.plan.inputs.runflags import RUN_FLAGS, RUN_OPERANDS, parse_run_flags


def main() -> NoReturn:
    """Run and exit with the pod's code."""
    run_entrypoint("stage1", usage("run", RUN_OPERANDS, RUN_FLAGS), _run)


def _run(arguments: list[str]) -> int:
    return launch(parse_run_flags(arguments), lock_descriptor(os.environ))
