"""The pictures of the documents, and the data behind their bars."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import table
from demo.pictures import DIRECTORY, PICTURES, Picture, draw, take

ROOT = Path(__file__).parents[2]
DATA = ROOT / DIRECTORY / "benchmarks.json"
SVG = "{http://www.w3.org/2000/svg}"
MAX_BYTES = 60_000


@pytest.mark.parametrize("name", ["benchmarks", *(picture.name for picture in PICTURES)])
def test_a_picture_is_small_shown_and_loads_nothing(name: str) -> None:
    """It is an SVG of less than 60 kB, stands in a document, and refers to nothing of the network, fonts neither."""
    path = ROOT / DIRECTORY / f"{name}.svg"
    assert path.stat().st_size < MAX_BYTES
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    targets = [value for element in root.iter() for key, value in element.attrib.items() if key.endswith("href")]
    targets += re.findall(r"url\((.*?)\)", path.read_text())
    assert [target for target in targets if not target.startswith("#")] == []
    assert "@import" not in path.read_text() and "@font-face" not in path.read_text()
    documents = "".join(each.read_text() for each in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
    assert re.search(rf"!\[[^]]+\]\((docs/)?pictures/{name}\.svg\)", documents)


def test_a_screen_of_a_terminal_is_drawn(tmp_path: Path) -> None:
    """What a shell in a terminal shows is in the picture, with colours, and without the steps before."""
    steps = (("printf 'a \\33[1;33mb\\33[0m %s\\n' $((6 * 7))\n", None), ("printf 'ask> '; read -r x\n", r"ask> $"))
    before, after = (("echo never-seen\n", None),), (("\n", None),)
    picture = Picture(name="", title="<Title>", columns=60, rows=8, before=before, steps=steps, after=after)
    rows = take(picture, tmp_path)
    lines = ["".join(char.data for char in row).rstrip() for row in rows]
    assert lines[1:] == ["a b 42", "# printf 'ask> '; read -r x", "ask>"]
    [b] = [char for char in rows[1] if char.data == "b"]
    assert (b.fg, b.bold) == ("brown", True)
    svg = draw(rows, picture.title)
    texts = [(element.text or "").replace("\xa0", " ").rstrip() for element in ElementTree.fromstring(svg).iter()]
    assert {"b", "ask>", "<Title>"} <= set(texts)
    assert "@font-face" not in svg and "never-seen" not in svg and os.fspath(tmp_path) not in svg


def test_tables_are_kept_as_data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a benchmark prints is in the data of the run; what cannot be measured is null there."""
    monkeypatch.setattr(table, "TABLES", [])
    monkeypatch.setattr(table, "MINIMA", {})
    numbers = iter((3.0, 1.0, 2.0))
    table.compare("a thing", "ms", {"minit": lambda: next(numbers), "rkt": "rkt is not installed"}, 3)
    rows = [{"name": "minit", "min": 1.0, "median": 2.0}, {"name": "rkt", "min": None, "median": None}]
    assert [{"title": "a thing", "unit": "ms", "rows": rows}] == table.TABLES
    assert "| minit | 1.0 | 2.0 | 1.00 |" in capsys.readouterr().out


def test_the_bars_are_those_of_the_tables() -> None:
    """Minima and medians of the data are those of the tables in docs/benchmarks.md."""
    document = (ROOT / "docs/benchmarks.md").read_text()
    tables = json.loads(DATA.read_text())["tables"]
    assert len(tables) > 40
    for each in tables:
        lines = [f"| {each['title']} | min {each['unit']} | median {each['unit']} | x minit |\n|---|---|---|---|"]
        for row in each["rows"]:
            numbers = ["-" if row[key] is None else f"{row[key]:.1f}" for key in ("min", "median")]
            lines.append(f"| {row['name']} | {numbers[0]} | {numbers[1]} | ")
        text = document[document.index(lines[0]) :].splitlines()
        for number, line in enumerate("\n".join(lines).splitlines()):
            assert text[number].startswith(line)


def test_what_is_worse_than_in_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure of minit's that grew by a tenth more than the peers' is said; not one that the machine explains."""

    def made(title: str, **minima: float | None) -> table.Table:
        rows: list[table.Row] = [{"name": name, "min": least, "median": least} for name, least in minima.items()]
        return {"title": title, "unit": "ms", "rows": rows}

    now = [
        made("slower machine", minit=20.0, minit_net=23.0, runc=40.0, crun=22.0),
        made("alone", minit=11.0, only_now=1.0),
        made("lost peer", minit=10.0, runc=None),
    ]
    earlier = [
        made("slower machine", minit=10.0, minit_net=10.0, runc=20.0, crun=11.0),
        made("alone", minit=10.0),
        made("lost peer", minit=10.0, runc=5.0),
    ]
    monkeypatch.setattr(table, "TABLES", now)
    table.print_worse(earlier)
    assert capsys.readouterr().out.splitlines()[3:] == [
        "| slower machine: minit_net | 10.0 | 23.0 | 1.15 |",
        "| alone: minit | 10.0 | 11.0 | 1.10 |",
    ]
    table.print_worse(now)
    assert capsys.readouterr().out == ""
