"""The `app/rm` entrypoint: removes an app from a pod that runs."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import usage
from minit.launcher.apps import remove_app
from minit.plan.inputs.appflags import APP_FLAGS, parse_app


def main() -> NoReturn:
    """Remove and exit."""
    run_entrypoint("stage1 app rm", usage("app_rm", "", APP_FLAGS), _rm)


def _rm(arguments: list[str]) -> int:
    remove_app(parse_app(arguments))
    return 0
