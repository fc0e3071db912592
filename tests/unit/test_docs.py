"""The documents name only what is there: commands, options, files, tests, annotations."""

from __future__ import annotations

import ast
import functools
import re
import runpy
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

import minit
from minit.cli.commandgroups import commands
from minit.cli.manual import render
from minit.containerinit import USAGE
from minit.manifest.annotations import Annotation, Place
from minit.plan.rights import seccompfilter
from minit.plan.rights.protection import plan_protection, with_pid_1
from minit.podfiles.paths import PodEvent

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MANUALS = sorted((ROOT / "docs/man").iterdir())
FOLDERS = [path.parent for path in sorted((ROOT / "minit").rglob("*/__init__.py"))]
DOCUMENTS = [*MARKDOWN, *MANUALS]

# First directories of the absolute paths a reader can look up: of any Linux, of the stage1 image, of the demo's app.
_KNOWN_PLACES = frozenset(
    {
        *("bin", "boot", "dev", "etc", "home", "lib", "opt", "proc", "run", "sys", "tmp", "usr", "var"),
        *("entrypoints", "rkt", "missing", "x", "www", "data", "init"),
    }
)


def text_of(document: Path) -> str:
    """Return a document's text, a manual page without its fonts and escapes."""
    text = document.read_text()
    return text if document.suffix == ".md" else plain_roff(text)


def plain_roff(text: str) -> str:
    """Return roff without its fonts and escapes."""
    return re.sub(r"\\f[A-Z]", "", text).replace(r"\-", "-").replace(r"\&", "")


def walk(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with the words it is called by."""
    yield " ".join(names), command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from walk(child, (*names, name))


def options_of(command: click.Command) -> set[str]:
    """Return the options that the command's help shows."""
    context = click.Context(command, **command.context_settings)
    shown = [option for option in command.get_params(context) if option.get_help_record(context) is not None]
    return {word for option in shown if isinstance(option, click.Option) for word in option.opts}


COMMANDS = dict(walk(commands))
MANUAL_SOURCE = (ROOT / "docs/man/minit.1.in").read_text()
MANUAL_ROFF = render(MANUAL_SOURCE, commands)
MANUAL = plain_roff(MANUAL_ROFF)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not isinstance(command, click.Group)])
def test_the_manual_has_every_command_with_its_options(name: str) -> None:
    """Every option of `minit COMMAND --help` is in minit(1)."""
    assert re.search(rf'^\.SY "minit {name}"$', MANUAL, re.MULTILINE)
    missing = {option for option in options_of(COMMANDS[name]) if not re.search(rf"{option}(?![\w-])", MANUAL)}
    assert not missing


def test_the_manual_has_no_other_options() -> None:
    """Every option in minit(1) can be given."""
    known = set().union(*(options_of(command) for command in COMMANDS.values()))
    known |= set(re.findall(r"--[a-z][\w-]*", USAGE))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", MANUAL)) <= known


def test_the_manual_has_no_other_commands() -> None:
    """The synopses of minit(1) are those of commands there are."""
    assert set(re.findall(r'^\.SY "minit ([^"]+)"$', MANUAL, re.MULTILINE)) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@command frobnicate", "there is no such command"),
        ("@command list\n@option --nope", "there is no option --nope"),
        ("@option --full", "not within a command"),
        ("@command list\n@nonsense", "no such line"),
    ],
)
def test_a_source_of_the_manual_that_does_not_fit(line: str, reason: str) -> None:
    """Commands and options in the source of minit(1) must exist."""
    with pytest.raises(ValueError, match=reason):
        render(f"{line}\n", commands)


@pytest.mark.parametrize(
    "checker", [("groff", "-man", "-ww", "-z"), ("mandoc", "-T", "lint", "-W", "warning")], ids=lambda words: words[0]
)
def test_the_manuals_are_sound(checker: tuple[str, ...], tmp_path: Path) -> None:
    """Neither groff nor mandoc has anything to say of the manual pages."""
    if shutil.which(checker[0]) is None:
        pytest.skip(f"no {checker[0]} on PATH")
    (tmp_path / "minit.1").write_text(MANUAL_ROFF)
    for page in (tmp_path / "minit.1", ROOT / "docs/man/minit-stage1.7"):
        result = subprocess.run([*checker, page], capture_output=True, text=True, check=False)
        assert result.stdout + result.stderr == ""


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: path.name)
def test_manuals_are_of_this_version(manual: Path) -> None:
    """The head of a manual page has the version and the day of its release."""
    day = datetime.fromtimestamp(minit.RELEASE_SECONDS, UTC).date()
    assert f'{day} "minit {minit.__version__}" "minit"' in manual.read_text().partition("\n")[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_of_the_project_that_are_named_exist(document: Path) -> None:
    """A path that begins with one of the project's folders and has an extension is a file there."""
    named = re.findall(
        r"(?<![\w./])((?:minit|entrypoints|tests|benchmarks|demo|docs)/[\w/.-]+\.(?:py|c|sh|md|1\.in|[17]))\b",
        text_of(document),
    )
    assert not [path for path in named if not (ROOT / path).is_file()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_folder_says_what_to_read_first(folder: Path) -> None:
    """The docstring of a package names one of its files that a reader begins with."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    [file] = re.findall(r"Read `([\w./]+)`(?: and `[\w./]+`)?\s+first\b", docstring)
    assert (folder / file).is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_are_named_exist(document: Path) -> None:
    """`tests/FILE.py::NAME` is a test of that file."""
    for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text_of(document)):
        assert name in functions_of(path), f"{path}::{name}"


@functools.cache
def functions_of(path: str) -> set[str]:
    """Return the names of all functions in a file of the project."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_only_places_that_a_reader_has_are_named(document: Path) -> None:
    """No document mentions a directory of the machine it was written on, or one beside the project."""
    text = re.sub("<!--.*?-->", "", text_of(document))
    assert set(re.findall(r"(?<![\w/.\])}>*~-])(?<!\w`)/([a-z][\w-]*)", text)) <= _KNOWN_PLACES
    assert set(re.findall(r"\.\./([\w./-]+)", text)) <= {"proc/self/mounts"}


@pytest.mark.parametrize("document", MARKDOWN, ids=lambda path: path.name)
def test_links_resolve(document: Path) -> None:
    """A link within the project leads to a file, and one with `#` to a heading of it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.is_relative_to(ROOT) and file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("document", MARKDOWN, ids=lambda path: path.name)
def test_rows_and_items_have_lines_of_their_own(document: Path) -> None:
    """Each row of a table has as many cells as the first one, and no item of a list begins within a line."""
    text = document.read_text()
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = table.splitlines()
        assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != rows[0].count("|")] == []
    assert re.findall(r".*\S - \*\*.*", text) == []


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_annotation_of_ours_is_in_the_table() -> None:
    """docs/annotations.md has the annotations of the code with their places, and each is named in its reader."""
    rows = re.findall(r"^\| `(minit/[\w/-]+)` \| ([^|]+) \|", (ROOT / "docs/annotations.md").read_text(), re.MULTILINE)
    shown = [(name, {re.split(r"\W", place)[0] for place in places.split("; ")}) for name, places in rows]
    known = (Place.POD, Place.APP, Place.IMAGE)
    assert shown == [
        (each, {str(place.name).lower() for place in known if place in each.places}) for each in Annotation
    ]
    for each in Annotation:
        assert f"Annotation.{each.name}" in (ROOT / f"{each.reader.replace('.', '/')}.py").read_text(), each


def test_every_event_is_in_the_table() -> None:
    """docs/events.md has the events of the code and no other, and of each the fields that it is written with."""
    shown: dict[str, tuple[set[str], set[str]]] = {}
    for row in re.findall(r"^\|( `[^|]*)\|([^|]*)\|(.*)\|$", (ROOT / "docs/events.md").read_text(), re.MULTILINE):
        names, fields, when = (set(re.findall(r"`([a-z_.-]+)`", cell)) for cell in row)
        shown |= dict.fromkeys(names, (fields, fields | when))
    assert set(shown) == set(PodEvent)
    # One that stands for others, and one that the launcher writes.
    written: dict[str, set[str]] = {PodEvent.GAP: {"lost"}, PodEvent.POD_KILLED: {"reason", "end"}}
    for text in filter(re.compile("PodEvent").search, map(Path.read_text, (ROOT / "minit/supervisor").rglob("*.py"))):
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "event":
                for name in re.findall(r"PodEvent\.(\w+)", ast.unparse(call)):
                    written.setdefault(PodEvent[name], set()).update(str(each.arg) for each in call.keywords)
    assert set(written) == set(PodEvent)
    for event, fields in written.items():
        least, most = shown[event]
        assert fields <= most and (least - {"end", "pid"}) <= fields, event


def test_protected_paths_are_in_the_table() -> None:
    """docs/confinement.md has the paths that the planning protects by default, and no others."""
    [table] = re.findall(r"<!-- paths -->\n(.*?)<!-- /paths -->", (ROOT / "docs/confinement.md").read_text(), re.S)
    shown = [tuple(re.findall(r"`(/[^`]+)`", row)) for row in table.splitlines()[2:]]
    planned = with_pid_1(plan_protection(disabled=False, own_network=True))
    assert shown == [planned.masked, planned.read_only, planned.writable]


def test_every_guard_is_in_the_list() -> None:
    """docs/confinement.md has each guard of system calls by its name, in the order of the code."""
    [items] = re.findall(r"<!-- guards -->\n(.*?)<!-- /guards -->", (ROOT / "docs/confinement.md").read_text(), re.S)
    known = [
        value
        for name, value in vars(seccompfilter).items()
        if name[0] != "_" and name.isupper() and isinstance(value, str)
    ]
    assert re.findall(r"^- \*\*(\w+)\*\*:", items, re.MULTILINE) == known


def test_every_attack_has_a_defence_and_a_test() -> None:
    """A row of docs/security.md names a module there is, unless it refers to the row above, and a test."""
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
    attacks = [row for row in rows if row[0] != "Attack"]
    assert len(attacks) > 40
    for attack, defence, tests in attacks:
        paths = re.findall(r"`(minit/[^`]+)`", defence)
        assert paths or defence in ("The same", "As for programs there"), attack
        assert not [path for path in paths if not (ROOT / path).exists()], attack
        assert re.fullmatch(r"`tests/\S+::\w+`( `tests/\S+::\w+`)*", tests), attack


def test_every_clause_says_where_it_is_kept() -> None:
    """A row of docs/contract.md names a module there is, or says that it is not kept yet."""
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "docs/contract.md").read_text(), re.MULTILINE)
    clauses = [(clause, module) for clause, module, _ in rows if clause not in ("Clause", "---")]
    assert len(clauses) > 50
    for clause, module in clauses:
        paths = re.findall(r"`((?:minit|entrypoints)/[^`]+)`", module)
        assert paths or module.startswith(("**not yet**", "accepted", "all of stage1")), clause
        assert not [path for path in paths if not (ROOT / path).exists()], clause


def test_layers_are_those_of_the_contract() -> None:
    """HACKING has the layers as import-linter checks them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    shown = "\n".join(re.sub(" [|:] ", " ", layer) for layer in layers)
    assert f"<!-- layers -->\n```\n{shown}\n```\n<!-- /layers -->" in (ROOT / "HACKING.md").read_text()


def test_the_layout_has_the_folders_there_are() -> None:
    """HACKING has a row for each package at the top, and names no folder that is not there."""
    text = (ROOT / "HACKING.md").read_text().partition("## Layout")[2].partition("## Layers")[0]
    rows = re.findall(r"^\| `([\w/.]+)` \| (.+) \|$", text, re.MULTILINE)
    tops = {f"minit/{path.parent.name}/" for path in (ROOT / "minit").glob("*/__init__.py")}
    assert tops - {path for path, _ in rows} == set()
    for path, subject in rows:
        assert (ROOT / path).exists(), path
        inner = {each.parent.name for each in (ROOT / path).rglob("*.py")}
        assert set(re.findall(r"`(\w+)/`", subject)) <= inner, path


def test_what_to_read_first_is_little() -> None:
    """HACKING begins with fewer than 2,500 lines of code, and each of its journeys has eight files at most."""
    text = (ROOT / "HACKING.md").read_text().partition("## Set-up")[0]
    first, _, journeys = text.partition("The journeys")
    files = re.findall(r"`(minit/[\w/]+\.py)`", first)
    assert files
    assert sum(len((ROOT / path).read_text().splitlines()) for path in files) < 2500
    for journey in re.split(r"^- \*\*", journeys, flags=re.MULTILINE)[1:]:
        assert 1 < len(re.findall(r"`minit/[\w/]+\.py`", journey)) <= 8, journey


def test_what_pip_installs() -> None:
    """No text has pip install minit by a name, which nobody has published and anybody could: it is a file."""
    texts = [*MARKDOWN, *(ROOT / "minit").rglob("*.py"), *(ROOT / "docs/man").iterdir()]
    for path in texts:
        for words in re.findall(r"pip install (.*)", path.read_text()):
            assert not re.match(r"""["'`]*minit""", words), (path, words)


def test_the_description_of_the_package_has_no_relative_link() -> None:
    """Links of the README that lead nowhere on an index of packages are texts there, with the names of the files."""
    describe = runpy.run_path(str(ROOT / "contrib/dist.py"))["long_description"]
    assert describe(
        "[logs](docs/logs.md#x), [docs/a.md](docs/a.md), [b](#b), ![A pod](docs/a.svg), [c](https://d)"
    ) == ("logs (`docs/logs.md`), `docs/a.md`, b, A pod (`docs/a.svg`), [c](https://d)")
    text = describe((ROOT / "README.md").read_text())
    links = re.findall(r"]\((.*?)\)|(?:src|srcset|href)=\"(.*?)\"", text)
    assert links and [link for link in links if not "".join(link).startswith("https://")] == []
