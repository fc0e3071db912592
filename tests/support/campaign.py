"""How long a campaign is: a sample in an ordinary run, ten times that with MINIT_TEST_LONG=1."""

from __future__ import annotations

import os

LONG = os.environ.get("MINIT_TEST_LONG") == "1"
_LONG_FACTOR = 10


def campaign(sample: int) -> int:
    """Return how many times to try what `sample` times are enough of in an ordinary run."""
    return sample * _LONG_FACTOR if LONG else sample
