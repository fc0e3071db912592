"""The size of the stage1 image."""

from __future__ import annotations

import gzip

from benchmarks.table import compare
from benchmarks.world import world


def main() -> None:
    """Print the table."""
    with world() as bench:
        image = (bench.path / "stage1.aci").read_bytes()
        if image[:2] != b"\x1f\x8b":
            image = gzip.compress(image)
        compare("stage1 image, gzip", "MB", {"minit": lambda: len(image) / 1e6}, 1)
