"""Text in columns, byte for byte as Go's tabwriter with 8-column tabs aligns it (rkt's lists)."""

from __future__ import annotations

from collections.abc import Sequence

_TAB_WIDTH = 8


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with at least one tab between cells, each ended by a newline; all rows have as many cells."""
    if not rows:
        return ""
    # The last cell of a line ends no column, so it is neither measured nor padded.
    widths = [_cell_width(max(len(row[column]) for row in rows)) for column in range(len(rows[0]) - 1)]
    return "".join(_line(row, widths) for row in rows)


def _cell_width(text_width: int) -> int:
    return -(-(text_width + 1) // _TAB_WIDTH) * _TAB_WIDTH


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + "\t" * -(-(width - len(cell)) // _TAB_WIDTH) for cell, width in zip(row, widths, strict=False))
    return "".join(padded) + row[-1] + "\n"
