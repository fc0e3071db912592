"""The `control` entrypoint, minit's own: carries what rkt's entrypoints cannot, as JSON lines."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import parse_flags, usage
from minit.launcher.control import relay_requests
from minit.plan.inputs.runflags import only_operand, parse_uuid

_FLAGS: dict[str, bool | str] = {"debug": False}


def main() -> NoReturn:
    """Answer until the end of standard input, and exit."""
    run_entrypoint("stage1 control", usage("control", "UUID", _FLAGS), _control)


def _control(arguments: list[str]) -> int:
    _, operands = parse_flags(arguments, _FLAGS)
    parse_uuid(only_operand(operands))
    relay_requests()
    return 0
