"""The rules of the source text: style, types and documentation."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGES = ("minit", "entrypoints")


def run(tool: str, *arguments: str) -> None:
    """Run a tool of the virtual environment in the project and fail with what it says."""
    command = Path(sys.executable).with_name(tool)
    if not command.exists():
        pytest.skip(f"{tool} is not installed")
    result = subprocess.run([command, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_check() -> None:
    """The linter has nothing to say about code or tests."""
    run("ruff", "check", "--no-cache", ".")


def test_ruff_format() -> None:
    """Everything is formatted as the formatter would."""
    run("ruff", "format", "--no-cache", "--check", ".")


def test_mypy() -> None:
    """The types of all code and tests are right, strictly, with the version of Python that runs the tests."""
    run("mypy", f"--python-version=3.{sys.version_info.minor}")


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    """Return the name and the tree of each file of ours."""
    paths = (path for package in PACKAGES for path in sorted((PROJECT / package).rglob("*.py")))
    return [(str(path.relative_to(PROJECT)), ast.parse(path.read_bytes())) for path in paths]


def documented(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield each definition below a node that needs a docstring: the public ones outside of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or child.name.startswith("_"):
            continue
        yield f"{name}: {child.name}", child
        if isinstance(child, ast.ClassDef):
            yield from documented(child, f"{name}: {child.name}")


def test_docstrings() -> None:
    """Every public module, class and function says what it is."""
    missing = []
    for name, tree in sources():
        for what, node in [(name, tree), *documented(tree, name)]:
            text = ast.get_docstring(node)  # type: ignore[arg-type]
            if not text or not text.splitlines()[0].strip():
                missing.append(what)
    assert not missing


def test_future_annotations() -> None:
    """Every module with code of its own has annotations that cost nothing at import."""
    missing = []
    for name, tree in sources():
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        annotated = any(isinstance(node, (ast.FunctionDef, ast.AnnAssign, ast.ClassDef)) for node in ast.walk(tree))
        if annotated and not imports:
            missing.append(name)
    assert not missing


def test_every_test_states_a_fact() -> None:
    """Each test has a docstring of one sentence, which is what a failure means."""
    wrong = []
    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                paragraph = " ".join(text.split("\n\n")[0].split())
                if not paragraph.endswith(".") or ". " in paragraph.replace("e.g. ", ""):
                    wrong.append(f"{path.relative_to(PROJECT)}: {node.name}: {paragraph!r}")
    assert not wrong, "\n".join(wrong)


def test_no_interpreter_is_found_by_name() -> None:
    """A machine needs no Python but the one that runs tests, benchmarks and demo, which is `sys.executable`."""
    named = r"""["'](/(usr/)?(local/)?bin/)?python[\d.]*[ "']"""
    patterns = {".py": named, ".c": named, ".sh": r"\bpython"}
    wrong = [
        f"{path.relative_to(PROJECT)}: {line}"
        for directory in ("tests", "benchmarks", "demo")
        for path in sorted((PROJECT / directory).rglob("*.*"))
        if path.suffix in patterns
        for line in path.read_text().splitlines()
        if re.search(patterns[path.suffix], line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_bare_except_and_no_todo() -> None:
    """Nothing is caught without a name, and nothing is left for later in a comment."""
    wrong = []
    for name, tree in sources():
        wrong += [
            f"{name}:{node.lineno}: bare except"
            for node in ast.walk(tree)
            if isinstance(node, ast.ExceptHandler) and node.type is None
        ]
        lines = (PROJECT / name).read_text().splitlines()
        wrong += [f"{name}:{number}" for number, line in enumerate(lines, 1) if "TODO" in line or "FIXME" in line]
    assert not wrong
