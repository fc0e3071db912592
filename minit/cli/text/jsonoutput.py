"""JSON on standard output, compact or indented with tabs as Go does it."""

from __future__ import annotations

import json

import click

from minit.base import jsontext
from minit.base.harmless import harmless_json

FORMATS = ("json", "json-pretty")

format_option = click.option(
    "--format", "output_format", type=click.Choice(FORMATS), help="Print JSON instead of text."
)


def json_text(value: object, output_format: str) -> str:
    """Return `value` in one of FORMATS, without a final newline."""
    if output_format == "json":
        return jsontext.dump(value).decode("ascii")
    return harmless_json(json.dumps(value, indent="\t", ensure_ascii=False))
