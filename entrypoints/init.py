"""The `init` entrypoint: the first program of a machine, which the kernel executes."""

from __future__ import annotations

from minit.machine.init import run_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the machine until it is switched off."""
    run_machine()
