"""The stage1 image that a wheel or a package of minit brings, so that the machine needs nothing to build one."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).with_name("stage1.aci")


def shipped_fingerprint() -> str | None:
    """Return a word that changes with the shipped image; None if there is none, as in a checkout."""
    try:
        information = SHIPPED.stat()
    except FileNotFoundError:
        return None
    # Files of two versions may have one date, and an installer sets it: the time of its change is the kernel's.
    return f"shipped-{information.st_size}-{information.st_mtime_ns}-{information.st_ctime_ns}"
