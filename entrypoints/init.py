"""The `init` entrypoint: the first program of a machine, which the kernel executes."""

from __future__ import annotations

from typing import NoReturn

from minit.machine.init import run_machine


def main() -> NoReturn:
    """Run the machine until it is switched off."""
    run_machine()
