"""The habits of commands that remove all that nobody needs: they ask first, or only say what they would remove."""

from __future__ import annotations

import sys

import click

force_option = click.option("-f", "--force", is_flag=True, help="Do not ask.")

dry_run_option = click.option("--dry-run", is_flag=True, help="Only print what would be removed.")


def confirm(question: str, *, force: bool) -> None:
    """Have somebody at the terminal agree, and end the command if nobody does; UsageError without a terminal."""
    if force:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked without a terminal: --force removes without asking")
    click.confirm(question, abort=True, err=True)
