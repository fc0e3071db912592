"""Taking turns, and printing what came out as a table whose last column is the ratio to minit."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypedDict

Measure = Callable[[], float]

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
