"""
Text in columns: byte for byte as Go's tabwriter with 8-column tabs aligns it (rkt's lists), or fitted into a terminal.

Scripts read the first; people have the second, which uses as few columns as it can and shortens what is too long.
"""

from __future__ import annotations

from collections.abc import Sequence

_TAB_WIDTH = 8
_GAP = "  "
_LEAST_WIDTH = 10  # of the longest heading


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with at least one tab between cells, each ended by a newline; all rows have as many cells."""
    if not rows:
        return ""
    # The last cell of a line ends no column, so it is neither measured nor padded.
    widths = [_cell_width(max(len(row[column]) for row in rows)) for column in range(len(rows[0]) - 1)]
    return "".join(_line(row, widths) for row in rows)


def fit(rows: Sequence[Sequence[str]], width: int, shortened: Sequence[int]) -> str:
    """
    Return the rows with two blanks between cells, at most `width` columns wide if that can be.

    The widest of the columns `shortened`, by number, loses the middles of its longest cells, and so on until all fits.
    """
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(shortened, key=lambda column: widths[column])
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
    lines = (
        _GAP.join(_shorten(cell, room).ljust(room) for cell, room in zip(row, widths, strict=True)) for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _shorten(cell: str, room: int) -> str:
    """Return a cell with its middle left out: a name's end says as much as its beginning."""
    if len(cell) <= room:
        return cell
    end = (room - 1) // 2
    return f"{cell[: room - 1 - end]}…{cell[-end:]}"


def _cell_width(text_width: int) -> int:
    return -(-(text_width + 1) // _TAB_WIDTH) * _TAB_WIDTH


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + "\t" * -(-(width - len(cell)) // _TAB_WIDTH) for cell, width in zip(row, widths, strict=False))
    return "".join(padded) + row[-1] + "\n"
