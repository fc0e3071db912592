"""The `gc` entrypoint: removes what an exited pod left outside its directory."""

from __future__ import annotations

from entrypoints._main import run_entrypoint
from minit.errors import MinitError, describe
from minit.goflags import parse_flags, usage
from minit.launcher.gc import detach_networks, remove_groups
from minit.plan.flags import only_operand, parse_uuid
from minit.stdio import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_FLAGS: dict[str, bool | str] = {"debug": False, "local-config": "/etc/rkt"}


def main() -> NoReturn:
    """Collect and exit, with 75 if groups have to be left to another call."""
    run_entrypoint("stage1 gc", usage("gc", "UUID", _FLAGS), _collect)


def _collect(arguments: list[str]) -> int:
    values, operands = parse_flags(arguments, _FLAGS)
    uuid = parse_uuid(only_operand(operands))
    code = 0
    try:
        remove_groups(uuid)
    except MinitError as error:
        complain(f"stage1 gc: {describe(error)}")
        code = error.exit_code
    for problem in detach_networks(uuid, str(values["local-config"]), debug=bool(values["debug"])):
        complain(f"networking: {problem}")
    return code
