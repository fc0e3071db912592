"""Standard error, which the caller of an entrypoint may have closed or left without a reader."""

from __future__ import annotations

import os


def complain(line: str) -> None:
    """Write a line to standard error; that it cannot be written must not turn one failure into another."""
    try:
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody is left to tell
