"""The `app/stop` entrypoint: stops an app of a pod that runs."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import usage
from minit.launcher.apps import stop_app
from minit.plan.inputs.appflags import STOP_FLAGS, parse_stop_flags


def main() -> NoReturn:
    """Stop and exit."""
    run_entrypoint("stage1 app stop", usage("app_stop", "", STOP_FLAGS), _stop)


def _stop(arguments: list[str]) -> int:
    stop_app(*parse_stop_flags(arguments))
    return 0
