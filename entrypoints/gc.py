"""The `gc` entrypoint: removes what an exited pod left outside its directory."""

from __future__ import annotations

from entrypoints._main import run_entrypoint
from minit.errors import EXIT_FAILURE, MinitError
from minit.goflags import parse_flags, usage
from minit.launcher.gc import detach_networks, remove_groups
from minit.plan.flags import only_operand, parse_uuid
from minit.stdio import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_FLAGS: dict[str, bool | str] = {"debug": False, "local-config": "/etc/rkt"}


def main() -> NoReturn:
    """Collect and exit; what could not be removed is printed and makes the exit code 254."""
    run_entrypoint("stage1 gc", usage("gc", "UUID", _FLAGS), _collect)


def _collect(arguments: list[str]) -> int:
    values, operands = parse_flags(arguments, _FLAGS)
    uuid = parse_uuid(only_operand(operands))
    failure: MinitError | None = None
    problems = []
    try:
        problems = remove_groups(uuid)
    except MinitError as error:
        failure = error
    for problem in problems:
        complain(f"stage1 gc: {problem}")
    for problem in detach_networks(uuid, str(values["local-config"]), debug=bool(values["debug"])):
        complain(f"networking: {problem}")
    if failure is not None:
        raise failure
    return EXIT_FAILURE if problems else 0
