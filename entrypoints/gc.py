"""The `gc` entrypoint: removes what an exited pod left outside its directory."""

from __future__ import annotations

from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.base.goflags import parse_flags, usage
from minit.launcher.cgroups import read_hierarchies
from minit.launcher.gc import collect
from minit.plan.inputs.runflags import only_operand, parse_uuid

FLAGS: dict[str, bool | str] = {"debug": False, "local-config": "/etc/rkt"}


def main() -> NoReturn:
    """Collect and exit, with 75 if groups have to be left to another call."""
    run_entrypoint("stage1 gc", usage("gc", "UUID", FLAGS), _collect)


def _collect(arguments: list[str]) -> int:
    values, operands = parse_flags(arguments, FLAGS)
    uuid = parse_uuid(only_operand(operands))
    return collect(uuid, read_hierarchies(), str(values["local-config"]), debug=bool(values["debug"]))
