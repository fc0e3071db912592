"""The `minit` command run inside the process of the test: the same code, without an interpreter's start each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minit.cli.main import run


class Outcome:
    """The outcome of a command line."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


Command = Callable[..., Outcome]


def command_on(data: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command line on a data directory and checks its exit code."""

    def call(*arguments: object, code: int = 0) -> Outcome:
        capsys.readouterr()
        result = run([f"--dir={data}", *map(str, arguments)])
        captured = capsys.readouterr()
        assert result == code, f"exit code {result}\n{captured.out}\n{captured.err}"
        return Outcome(result, captured.out, captured.err)

    return call
