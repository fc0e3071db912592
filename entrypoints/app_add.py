"""The `app/add` entrypoint: adds an app that stage0 has laid out to a pod that runs."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import usage
from minit.launcher.addapp import add_app
from minit.plan.inputs.appflags import ADD_FLAGS, parse_add_flags


def main() -> NoReturn:
    """Add and exit."""
    run_entrypoint("stage1 app add", usage("app_add", "", ADD_FLAGS), _add)


def _add(arguments: list[str]) -> int:
    add_app(parse_add_flags(arguments))
    return 0
