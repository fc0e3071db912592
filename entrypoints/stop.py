"""The `stop` entrypoint: has the supervisor of a running pod end it."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import parse_flags, usage
from minit.launcher.stop import stop_pod
from minit.plan.inputs.runflags import only_operand, parse_uuid

_FLAGS: dict[str, bool | str] = {"force": False, "debug": False}


def main() -> NoReturn:
    """Stop and exit."""
    run_entrypoint("stage1 stop", usage("stop", "UUID", _FLAGS), _stop)


def _stop(arguments: list[str]) -> int:
    values, operands = parse_flags(arguments, _FLAGS)
    parse_uuid(only_operand(operands))
    stop_pod(force=values["force"] is True)
    return 0
