"""The `minit` entrypoint: the command on a machine that minit boots."""

from __future__ import annotations

from minit.cli.machinegroup import main

__all__ = ["main"]
