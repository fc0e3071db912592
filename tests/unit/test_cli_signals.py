"""Signals that end a command."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# The importer has callbacks of this kind.
_IN_A_CALLBACK = """
import os, time, weakref
import click
from minit.cli.main import run_here

class Collected:
    pass

@click.group()
def commands():
    pass

@commands.command()
@click.argument("number", type=int)
def wait(number):
    collected = Collected()
    reference = weakref.ref(collected, lambda _: os.kill(os.getpid(), number))
    del collected
    time.sleep(60)

run_here(commands)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_callback_ends_the_command(number: signal.Signals) -> None:
    """Python drops what a callback raises, but not what a signal meant."""
    command = [sys.executable, "-c", _IN_A_CALLBACK, "wait", str(int(number))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (result.returncode, result.stderr.strip()) == (128 + number, "")
