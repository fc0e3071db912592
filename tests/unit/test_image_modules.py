"""The modules of the stage1 image and their bytecode."""

from __future__ import annotations

import ast
import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

import pytest

import minit.image.pythonmodules
from minit.base.errors import ImageError
from minit.image.dump.command import command_modules
from minit.image.pythonmodules import STANDINS, Module, compile_modules, record_modules, stage1_modules
from minit.image.stage1 import stage1_fingerprint
from minit.image.toolchain import run_tool


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def _has_a_file(name: str) -> bool:
    specification = importlib.util.find_spec(name)
    return specification is not None and specification.has_location


def compiled(tmp_path: Path, source: str) -> bytes:
    """Return the bytecode file of a module."""
    (tmp_path / "module.py").write_text(source)
    compile_modules([Module(name="package.module", source=tmp_path / "module.py")], tmp_path / "out")
    return (tmp_path / "out/package/module.pyc").read_bytes()


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the stand-ins."""
    return tmp_path_factory.mktemp("standins")


@pytest.fixture(scope="module")
def image_modules(standins: Path) -> list[Module]:
    """The modules of the image."""
    return stage1_modules(standins)


@pytest.fixture(autouse=True)
def package_directory(tmp_path: Path) -> None:
    """The directory of a package to compile into."""
    (tmp_path / "out/package").mkdir(parents=True)


def test_what_is_installed_by_chance_stays_out(image_modules: list[Module]) -> None:
    """rich, which structlog uses where it finds it, is not carried, nor what makes images; trio and minit are."""
    names = {module.name for module in image_modules}
    assert {"trio", "structlog", "minit.linux.syscalls", "entrypoints.run"} <= names
    tops = {name.partition(".")[0] for name in names}
    assert not tops & {"rich", "pygments", "_pytest", "_ssl", "_hashlib"}
    assert not {name for name in names if name.startswith(("minit.archives", "minit.image"))}
    assert not names & {"minit.stage0.images.store", "minit.stage0.images.untar", "minit.cli.commands.runcommands"}


@pytest.mark.parametrize(
    ("is_command", "not_needed"),
    # The second where there is no _syscalls.
    [
        (False, {"minit.cli.completion", "minit.pods.rootless", "minit.pods.userscope"}),
        (True, {"minit.linux.ctypescalls"}),
    ],
)
def test_whatever_functions_import_is_dumped(
    image_modules: list[Module], is_command: bool, not_needed: set[str]
) -> None:
    """A program that was dumped has what its functions import, but for what no command needs there."""
    carried = command_modules() if is_command else image_modules
    names = {module.name for module in carried}
    missing = {
        name
        for module in carried
        if module.name.startswith(("minit.", "entrypoints."))
        for node in ast.walk(ast.parse(module.source.read_text()))
        for name in _imported(node)
        if name not in names and _has_a_file(name)
    }
    # For types alone.
    assert missing - {"typing_extensions"} == not_needed


def test_a_module_in_the_place_of_another_is_carried(tmp_path: Path) -> None:
    """A module that is imported and puts another one in its own place is recorded, as collections.abc of 3.13.0 is."""
    (tmp_path / "replaced.py").write_text("import sys\nsys.modules[__name__] = sys\n")
    script = Path(minit.image.pythonmodules.__file__).with_name("record_imports.py")
    command = [sys.executable, "-I", "-S", "-B", str(script), "/nowhere", str(tmp_path), "replaced", "", "", "replaced"]
    recorded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert f"replaced\t{tmp_path}/replaced.py" in recorded


def test_large_modules_have_stand_ins(image_modules: list[Module], standins: Path) -> None:
    """Each stand-in that there is takes the place of a module that the image's modules import, with some Python."""
    sources = {module.name: module.source for module in image_modules}
    assert sources["ssl"] == standins / "ssl.py"
    # pathlib of Python 3.13 imports it in a function.
    not_imported = {"urllib/parse.py"} if sys.version_info >= (3, 13) else set()
    used = {str(path.relative_to(standins)) for path in sources.values() if standins in path.parents}
    assert used == {*STANDINS} - not_imported


def test_of_pyroute2_only_messages_are_carried(image_modules: list[Module]) -> None:
    """The classes of messages come without the sockets, databases and tools that the package loads with them."""
    names = {module.name for module in image_modules}
    assert {"pyroute2.netlink.rtnl.ifinfmsg", "pyroute2.netlink.rtnl.rtmsg"} <= names
    assert not names & {"pyroute2.ndb", "pyroute2.iproute", "pyroute2.netns", "multiprocessing", "sqlite3"}
    assert len([name for name in names if name.startswith("pyroute2")]) < 20


def test_of_pyudev_no_toolkits_are_carried(image_modules: list[Module]) -> None:
    """Its modules for the event loops of graphical toolkits stay out."""
    names = {module.name for module in image_modules}
    assert {"pyudev.core", "pyudev.monitor", "pyudev.device"} <= names
    assert not names & {"pyudev.glib", "pyudev.pyqt5", "pyudev.pyside6", "pyudev._qt_base"}


def test_bytecode_has_lines_and_no_columns(tmp_path: Path) -> None:
    """A traceback tells the line, and nothing of what it could only show below the line's text."""
    code = marshal.loads(compiled(tmp_path, "a = 1\nb = [a]\n")[16:])
    assert {line for line, *_ in code.co_positions()} >= {1, 2}
    assert {column for _, _, *columns in code.co_positions() for column in columns} == {None}


def test_bytecode_names_no_directory_of_this_machine(tmp_path: Path) -> None:
    """A traceback shows the module's path in the package, and the image does not depend on where it was built."""
    code = marshal.loads(compiled(tmp_path, "def f(): pass\n")[16:])
    assert code.co_filename == "package/module.py"


def test_bytecode_is_never_checked_against_a_source(tmp_path: Path) -> None:
    """The header has PEP 552's flag for a hash that is not checked."""
    data = compiled(tmp_path, "x = 1\n")
    assert data[:8] == importlib.util.MAGIC_NUMBER + b"\1\0\0\0"
    assert data[8:16] == importlib.util.source_hash(b"x = 1\n")


def test_docstrings_go_and_assertions_stay(tmp_path: Path) -> None:
    """Docstrings of modules, classes and functions are dropped, also where they are the whole body."""
    source = '''"""Module."""
from __future__ import annotations

class C:
    """Class."""

def f(x):
    """Function."""
    assert x, "kept"
    return "kept"
'''
    data = compiled(tmp_path, source)
    for word in (b"Module.", b"Class.", b"Function."):
        assert word not in data
    names: dict[str, object] = {}
    exec(marshal.loads(data[16:]), names)
    function = names["f"]
    assert callable(function)
    with pytest.raises(AssertionError, match="kept"):
        function(0)


def test_a_syntax_error_is_one_line(tmp_path: Path) -> None:
    """A module that cannot be compiled ends the build with the compiler's message."""
    with pytest.raises(ImageError, match=r"^compile_modules\.py: SyntaxError: "):
        compiled(tmp_path, "def\n")


def test_the_fingerprint_is_stable() -> None:
    """The fingerprint does not change while nothing changes."""
    assert stage1_fingerprint() == stage1_fingerprint()


def test_a_missing_tool_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a compiler the message names its packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "interpreter"))
    with pytest.raises(ImageError, match=r"^cc is not installed: install it \(Debian: apt install gcc libc6-dev\)$"):
        run_tool("cc", "--version")


def test_a_failing_tool_gives_its_reason(tmp_path: Path) -> None:
    """A tool's complaint is in the message."""
    with pytest.raises(ImageError, match=r"^strip .*/none: .*No such file"):
        run_tool("strip", str(tmp_path / "none"))


@pytest.mark.parametrize("writes", [True, False])
def test_bytecode_of_recorded_modules_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool) -> None:
    """A module that is compiled to be recorded is not compiled again, but where the interpreter writes no bytecode."""
    (tmp_path / "recorded.py").touch()
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    modules = record_modules(["recorded"], directories=[str(tmp_path)], allowed=["recorded"], omitted=[])
    assert [module.source for module in modules if module.name == "recorded"] == [tmp_path / "recorded.py"]
    assert (tmp_path / "__pycache__").exists() == writes
