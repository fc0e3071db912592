"""Numbers of bytes for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def readable_size(size_bytes: float) -> str:
    """Return a size in the largest unit of which there is at least one: `512B`, `1.5MiB`, `20GiB`."""
    size, units = float(size_bytes), list(_UNITS)
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f}{units[0]}" if size < 10 and units[0] != "B" else f"{size:.0f}{units[0]}"
