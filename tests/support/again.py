"""
Run once more, one after the other, what failed when tests ran at the same time: `python -m tests.support.again`.

A few tests in thousands wait for something in a way that a busy machine can break, each once in many runs. What fails
here too is an error of the code; what does not is named, and is an error of the test. More than `LIMIT` are never that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

LIMIT = 3
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Return 0 if all that failed before, few tests, passes now."""
    failed = list(json.loads(_FAILED.read_text())) if _FAILED.exists() else []
    if not 0 < len(failed) <= LIMIT:
        return 1
    print(f"Once more, alone: {' '.join(failed)}", flush=True)
    code = pytest.main(["-q", "-n0", "--last-failed", "--last-failed-no-failures", "none"])
    if code == 0:
        print(f"UNSTABLE, passed when alone: {' '.join(failed)}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
