"""Spans of time on the command line, as Go writes them."""

from __future__ import annotations

import click

from minit.goduration import parse_duration


def read_duration(ctx: click.Context, parameter: click.Parameter, value: str) -> float:
    """Return a Go duration in seconds; a callback of options."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error
