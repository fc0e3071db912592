"""The imports of each program, most of the cost of its start, and the importers of some modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def modules_after(statement: str) -> set[str]:
    """Return all modules that an interpreter has after a statement, with nothing but the project on its path."""
    program = f"import sys; sys.path.append({str(PROJECT)!r})\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-B", "-c", program]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def modules_of_command(statement: str) -> set[str]:
    """Return all modules that the `minit` command has after a statement, with all of its libraries at hand."""
    program = f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n{statement}\nprint('modules', *sys.modules)"
    printed = subprocess.run([sys.executable, "-B", "-c", program], check=True, capture_output=True, text=True).stdout
    return set(printed.splitlines()[-1].split()[1:])


def test_the_init_of_a_container_is_little() -> None:
    """`minit -- COMMAND` loads neither click nor the rest of minit, and as process 1 not even ctypes."""
    loaded = modules_after("import minit.__main__, minit.containerinit")
    ours = {module for module in loaded if module.partition(".")[0] in ("minit", "entrypoints")}
    assert ours == {
        *("minit", "minit.__main__", "minit.linux", "minit.linux.loop", "minit.linux.stdio"),
        *("minit.base", "minit.base.errors", "minit.base.harmless", "minit.base.processors", "minit.base.value"),
        "minit.containerinit",
        *("minit.reaper", "minit.reaper.diagnose", "minit.reaper.exit_status"),
    }
    assert not loaded & {"click", "ctypes", "dataclasses", "json"}


def test_the_help_of_minit_imports_no_command() -> None:
    """`minit --help` loads what it shows of the commands, and none of them."""
    loaded = modules_of_command("from minit.cli.main import run; run(['--help'])")
    assert {module for module in loaded if module.startswith("minit.")} == {
        *("minit.cli", "minit.cli.commandgroups"),
        *("minit.cli.flagwords", "minit.cli.grammar", "minit.cli.invocation", "minit.cli.main"),
        *("minit.cli.otherwords", "minit.cli.uuidfile"),
        *("minit.base", "minit.base.errors", "minit.base.goflags", "minit.base.harmless", "minit.base.value"),
        *("minit.linux", "minit.linux.loop", "minit.linux.stdio", "minit.pods", "minit.pods.caller"),
        *("minit.podfiles", "minit.podfiles.usersdirectory"),
    }


def test_completing_a_command_imports_no_command() -> None:
    """The names of commands are completed without one of them."""
    loaded = modules_of_command(
        "from minit.cli import completion, main; completion.answer(main.commands, ['fish', 'minit', ''])"
    )
    assert "minit.cli.completion" in loaded
    assert not loaded & {"minit.cli.commands.podcommands", "minit.cli.commands.runcommands"}


@pytest.mark.parametrize("command", ["list", "status"])
def test_looking_at_pods_imports_nothing_of_running_them(command: str) -> None:
    """`minit list` and `minit status` load neither the store nor what makes, runs or removes pods."""
    loaded = modules_of_command(f"from minit.cli.main import run; run(['{command}', '--help'])")
    assert not loaded & {
        "minit.stage0.garbage.podgc",
        "minit.stage0.start.newpod",
        "minit.stage0.start.run",
        "minit.stage0.images.store",
    }
    assert not loaded & {"rich", "sqlite3", "tarfile"}


def test_the_command_of_a_machine_is_little() -> None:
    """The command of a machine, which imports all of its commands, loads neither images nor rich."""
    loaded = modules_of_command("import minit.cli.machinegroup")
    assert "minit.cli.commands.outputcommands" in loaded
    assert not [name for name in loaded if name.startswith(("rich", "minit.archives", "minit.stage0.images"))]


def test_layers() -> None:
    """The import contracts of pyproject.toml hold."""
    command = Path(sys.executable).with_name("lint-imports")
    if not command.exists():
        pytest.skip("import-linter is not installed")
    result = subprocess.run([command, "--no-cache"], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def importers_of(name: str) -> set[str]:
    """Return the files of ours that import a module anywhere, in a function or for type checking only, too."""
    found = set()
    for path in [*(PROJECT / "minit").rglob("*.py"), *(PROJECT / "entrypoints").rglob("*.py")]:
        if path.parent.name == "dump":
            continue  # texts that are run in an interpreter with everything
        if path.is_relative_to(PROJECT / "minit/cri"):
            continue  # a program of its own, on trio
        text = path.read_bytes()
        if name.encode() not in text:
            continue  # parsing all takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            if name in {imported.partition(".")[0] for imported in names}:
                found.add(str(path.relative_to(PROJECT)))
    return found


@pytest.mark.parametrize(
    ("name", "importers"),
    [
        ("ctypes", {"minit/linux/ctypescalls.py", "minit/linux/libcrypto.py"}),
        ("trio", {"minit/launcher/portforwarder.py", "minit/supervisor/control/serve.py"}),
        ("structlog", {"minit/supervisor/control/serve.py"}),
        ("pyudev", {"minit/devices.py"}),
        ("asyncio", set()),
        ("multiprocessing", set()),
        ("selectors", set()),
    ],
)
def test_sole_importers(name: str, importers: set[str]) -> None:
    """Each of these has one module that may import it, if any."""
    assert importers_of(name) == importers


def test_one_module_waits() -> None:
    """Nothing but `minit/linux/loop.py` calls poll(2), epoll(7) or select(2)."""
    found = set()
    for path in [*(PROJECT / "minit").rglob("*.py"), *(PROJECT / "entrypoints").rglob("*.py")]:
        text = path.read_bytes()
        for node in ast.walk(ast.parse(text)) if b"select" in text else ():
            if isinstance(node, ast.ImportFrom):
                module = node.module
            elif isinstance(node, ast.Attribute) and node.attr in ("epoll", "poll", "select"):
                module = ast.unparse(node.value)
            else:
                continue
            if module == "select":
                found.add(str(path.relative_to(PROJECT)))
    assert found == {"minit/linux/loop.py"}


def test_pid_1_never_runs_processes_by_a_library() -> None:
    """Nothing on the side of a pod imports subprocess or threading, whose waiting and forking race with the reaper."""
    sides = (
        "minit/supervisor/",
        "minit/machine/",
        "minit/reaper/",
        "minit/iottymux/",
        "minit/launcher/",
        "minit/plan/",
        "entrypoints/",
    )
    for name in ("subprocess", "threading", "concurrent"):
        # What restores a dump looks after threading's own idea of the only thread.
        importers = importers_of(name) - {"entrypoints/_dumped.py"}
        assert not [path for path in importers if path.startswith(sides)]
