"""minit.supervisor.relocate: imports go on working after the files of the interpreter moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def run(program: str, *arguments: str) -> str:
    """Run a program in an isolated interpreter that has only minit on its path; return its output."""
    prelude = (
        f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from minit.supervisor.relocate import relocate_imports\n"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", prelude + program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a module that is not imported by it."""
    package = tmp_path / "old/lib/package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "late.py").write_text("VALUE = __file__\n")
    return package


MOVE = """
import os
old, new = sys.argv[1:]
sys.path.insert(0, f"{old}/lib")
import package
os.rename(old, new)
"""


def test_a_submodule_is_imported_from_the_new_place(tmp_path: Path, package: Path):
    """A package that was loaded before the move finds the rest of itself after it."""
    program = MOVE + "relocate_imports(old, new); from package.late import VALUE; print(VALUE)"
    assert run(program, str(tmp_path / "old"), str(tmp_path / "new")) == f"{tmp_path}/new/lib/package/late.py\n"


def test_without_it_the_import_fails(tmp_path: Path, package: Path):
    """The old paths are really gone: the same program without the rewriting cannot import."""
    program = MOVE + "\ntry:\n    from package.late import VALUE\nexcept ImportError: print('gone')"
    assert run(program, str(tmp_path / "old"), str(tmp_path / "new")) == "gone\n"


def test_no_path_below_the_old_root_is_left(tmp_path: Path, package: Path):
    """sys, every module, spec and loader name the new place, and the caches are empty."""
    program = (
        MOVE
        + """
sys.prefix = f"{old}/usr"
relocate_imports(old, new)
assert not sys.path_importer_cache
assert sys.prefix == f"{new}/usr"
seen = [*sys.path, package.__file__, *package.__path__, package.__spec__.origin, package.__spec__.loader.path]
seen += package.__spec__.submodule_search_locations
assert not [path for path in seen if path.startswith(f"{old}/")], seen
assert sum(path.startswith(f"{new}/") for path in seen) == 6, seen
"""
    )
    run(program, str(tmp_path / "old"), str(tmp_path / "new"))


def test_the_new_root_is_the_root_by_default():
    """After pivot_root the stage1 root is `/`, with or without a slash at the end of the old name."""
    program = """
sys.path.append("/old/root/lib/python")
sys.path.append("/old/rooted/lib")
relocate_imports(sys.argv[1])
print(*sys.path[-2:])
"""
    for old in ("/old/root", "/old/root/"):
        assert run(program, old) == "/lib/python /old/rooted/lib\n"


def test_what_lies_elsewhere_stays():
    """Modules outside the old root, built-in and frozen ones are not touched."""
    program = """
import os
before = (sys.path[:], os.__file__, sys.prefix, sys.executable)
relocate_imports("/old/root")
assert before == (sys.path, os.__file__, sys.prefix, sys.executable)
import json
"""
    run(program)
