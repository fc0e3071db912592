"""
`python -m benchmarks.picture DATA SVG`: draws bars of a run's main tables, of what `python -m benchmarks --json` wrote.

It needs matplotlib, the extra `pictures` of pyproject.toml.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

from benchmarks.table import Table, is_own

# The title of a table, and the heading of its bars.
SHOWN = {
    "exec to first instruction, isolated": "A pod's first instruction",
    "the last of 10 apps, exec to first instruction": "The last of ten apps",
    "a command, with one running pod": "A command",
    "one command in a running pod": "A command in a pod",
    "10 pods in a row, each": "Pods in a row, each",
    "init to first app, 10⁹ instructions/s": "A machine to its first app",
}
_COLUMNS = 2
_OWN_COLOUR, _OTHER_COLOUR = "#4c9a6a", "#b8bec4"
_LABEL_CHARACTERS = 30


def main() -> None:
    """Draw the picture."""
    data, picture = map(Path, sys.argv[1:])
    measured = json.loads(data.read_text())
    tables: list[Table] = [table for table in measured["tables"] if table["title"] in SHOWN]
    # The text stays text in a font of the reader's, and the same data gives the same bytes.
    rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "minit", "font.family": "sans-serif", "font.size": 8})
    lines = -(-len(tables) // _COLUMNS)
    figure = Figure(figsize=(9, 1.6 * lines + 0.3), layout="constrained")
    figure.suptitle(f"Minima, shorter is better: {measured['machine']}", fontsize=7)
    for axes in figure.subplots(lines, _COLUMNS, squeeze=False).flat:
        if not tables:
            axes.remove()
            continue
        table = tables.pop(0)
        rows = [(row["name"], row["min"]) for row in table["rows"] if row["min"] is not None]
        names = [_label(name) for name, _ in rows]
        colours = [_OWN_COLOUR if is_own(number, name) else _OTHER_COLOUR for number, (name, _) in enumerate(rows)]
        bars = axes.barh(range(len(rows)), [least for _, least in rows], color=colours)
        axes.bar_label(bars, fmt="%.1f", padding=2)
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set_title(f"{SHOWN[table['title']]}, {table['unit']}", loc="left", fontsize=9)
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.margins(x=0.12)
    figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
    picture.write_text("".join(f"{line.rstrip()}\n" for line in picture.read_text().splitlines()))


def _label(name: str) -> str:
    plain = name.replace("`", "")
    return plain if len(plain) <= _LABEL_CHARACTERS else f"{plain[: _LABEL_CHARACTERS - 1]}…"


if __name__ == "__main__":
    main()
