"""Taking turns, and printing what came out as a table whose last column is the ratio to minit."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypedDict

Measure = Callable[[], float]
# From here on a figure is worse than in an earlier run, and not only otherwise.
_WORSE = 1.1

# The minima of all tables of this run, by title and name.
MINIMA: dict[tuple[str, str], float] = {}


class Row(TypedDict):
    """A measure by name: its minimum and its median, or None of what cannot be measured here."""

    name: str
    min: float | None
    median: float | None


class Table(TypedDict):
    """What `compare` has printed, in a unit; the first row is minit's."""

    title: str
    unit: str
    rows: list[Row]


TABLES: list[Table] = []
"""The tables of this run so far."""


def machine() -> str:
    """Return a line that names what the figures were taken on."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    python = platform.python_version()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, CPython {python}"


def missing(*programs: str) -> str | None:
    """Return which of the programs is not installed, None if all are."""
    return next((program for program in programs if shutil.which(program) is None), None)


def compare(title: str, unit: str, measures: dict[str, Measure | str], runs: int) -> None:
    """
    Print minimum and median of each measure, and its minimum as a multiple of the first one's.

    The measures take turns, so that a change of the machine's speed meets all of them. A string stands for a
    measure that cannot be taken here and says why.
    """
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(runs):
        for name, measure in measures.items():
            if not isinstance(measure, str):
                figures[name].append(measure())
    base = min(next(iter(figures.values())))
    print(f"\n| {title} | min {unit} | median {unit} | x minit |")
    print("|---|---|---|---|")
    rows: list[Row] = []
    TABLES.append({"title": title, "unit": unit, "rows": rows})
    for name, measure in measures.items():
        if isinstance(measure, str):
            rows.append({"name": name, "min": None, "median": None})
            print(f"| {name} | - | - | {measure} |")
        else:
            lowest, middle = min(figures[name]), median(figures[name])
            MINIMA[title, name] = lowest
            rows.append({"name": name, "min": lowest, "median": middle})
            print(f"| {name} | {lowest:.1f} | {middle:.1f} | {lowest / base:.2f} |")


def is_own(number: int, name: str) -> bool:
    """Tell whether a row of a table, by its number and name, is minit's."""
    return not number or "minit" in name


def print_worse(earlier: Sequence[Table]) -> None:
    """Print those of minit's figures of this run that are worse by a tenth than in an earlier one."""
    rows = [*_worse(TABLES, earlier)]
    if rows:
        print("\n| worse than in the earlier run | then | now | times as much, by the peers |")
        print("|---|---|---|---|")
    for title, name, then, now, factor in rows:
        print(f"| {title}: {name} | {then:.1f} | {now:.1f} | {factor:.2f} |")


def _worse(tables: Sequence[Table], earlier: Sequence[Table]) -> Iterator[tuple[str, str, float, float, float]]:
    """
    Yield title, name, minimum of the earlier run and of this one, and the factor, of what is worse.

    The peers of a table tell how much slower the machine is, whatever machine it was.
    """
    before = {table["title"]: {row["name"]: row["min"] for row in table["rows"]} for table in earlier}
    for table in tables:
        both: list[tuple[bool, str, float, float]] = []
        for number, row in enumerate(table["rows"]):
            name, now, then = row["name"], row["min"], before.get(table["title"], {}).get(row["name"])
            if now and then:
                both.append((is_own(number, name), name, then, now))
        slowness = median([now / then for own, _, then, now in both if not own] or [1.0])
        for own, name, then, now in both:
            if own and now / then / slowness >= _WORSE:
                yield table["title"], name, then, now, now / then / slowness
