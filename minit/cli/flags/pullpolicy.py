"""The option that says when an image is fetched or converted again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from minit.stage0.images.pullpolicy import PullPolicy


def pull_policy_option(default: PullPolicy) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option with the default of its command."""
    return click.option(
        "--pull-policy",
        type=click.Choice([policy.value for policy in PullPolicy]),
        default=default.value,
        help="When to read the file of an image, convert it, or fetch it from a registry: if the store does not have"
        " it (new), always (update), or take one of a registry from the store only (never)."
        f"  [default: {default.value}]",
    )
