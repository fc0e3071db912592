"""The `app/start` entrypoint: starts an app of a pod that runs."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import usage
from minit.launcher.apps import start_app
from minit.plan.inputs.appflags import APP_FLAGS, parse_app


def main() -> NoReturn:
    """Start and exit."""
    run_entrypoint("stage1 app start", usage("app_start", "", APP_FLAGS), _start)


def _start(arguments: list[str]) -> int:
    start_app(parse_app(arguments))
    return 0
