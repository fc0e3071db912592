"""What each program imports, which is most of what its start costs, and who may import whom."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

# What these cost is why the boot path does without them.
HEAVY = {
    *("trio", "structlog", "asyncio", "logging", "subprocess", "json", "re", "enum", "typing", "dataclasses"),
    *("collections", "socket", "signal", "threading", "pyroute2", "pyudev", "msgspec", "click"),
}

BASE = {
    *("entrypoints", "entrypoints._main", "minit", "minit.errors", "minit.goflags", "minit.harmless", "minit.launcher"),
    "minit.paths",
}
# The first structure that is defined loads more than ctypes itself.
STRUCTURES = "import ctypes, os; type('S', (ctypes.Structure,), {'_fields_': []})"
STDLIB = {"__future__", "errno", "gc"}  # beside what `bare_modules` has
CONTROL = {"minit.jsontext", "minit.messages", "minit.supervisor.client", "minit.supervisor.protocol"}
SHARED = {*BASE, "minit.plan", "minit.stdio", "minit.supervisor", "minit.syscalls"}

APP_VERBS = ("app_rm", "app_start", "app_stop")

STDLIB_OF = {
    "run": {*STDLIB, "_json", "_socket", "fcntl", "resource", "select"},
    "stop": {*STDLIB, "_json", "_socket", "fcntl", "select"},
    "gc": STDLIB,
    "enter": {*STDLIB, "_json", "_socket", "fcntl", "resource", "select"},
    "control": {*STDLIB, "_json", "_socket"},
    "attach": {*STDLIB, "_json"},
    "app_add": {*STDLIB, "_json", "_socket", "fcntl", "resource", "select"},
    **dict.fromkeys(APP_VERBS, {*STDLIB, "_json", "_socket"}),
}
MODULES_OF = {
    "run": {
        *SHARED,
        "minit.value",
        *("entrypoints.run", "minit.boundedfile", "minit.boundedlog"),
        *("minit.iottymux", "minit.iottymux.linebuffer", "minit.iottymux.logfile", "minit.iottymux.loop"),
        "minit.iottymux.sidecar",
        "minit.iottymux.spawner",
        *("minit.jsontext", "minit.kernel", "minit.messages", "minit.mountinfo"),
        *("minit.launcher.cgroups", "minit.launcher.devices", "minit.launcher.launch", "minit.launcher.load"),
        *("minit.launcher.ownimage", "minit.launcher.preparation", "minit.launcher.seccomp", "minit.launcher.watch"),
        "minit.podfile",
        *("minit.manifest", "minit.manifest.app", "minit.manifest.image", "minit.manifest.labels"),
        *("minit.manifest.names", "minit.manifest.pod", "minit.manifest.reader"),
        *("minit.manifest.capabilities", "minit.manifest.seccomp"),
        *("minit.plan.app", "minit.plan.confinement", "minit.plan.devices", "minit.plan.environment"),
        *("minit.plan.files", "minit.plan.flags", "minit.plan.guards"),
        *("minit.plan.mounts", "minit.plan.pod", "minit.plan.protection", "minit.plan.stopping"),
        "minit.plan.users",
        *("minit.reaper", "minit.reaper.diagnose", "minit.reaper.exit_status", "minit.reaper.reaper"),
        "minit.reaper.record",
        *("minit.supervisor.app", "minit.supervisor.boot", "minit.supervisor.child", "minit.supervisor.confinement"),
        *(
            "minit.supervisor.events",
            "minit.supervisor.group",
            "minit.supervisor.groups",
            "minit.supervisor.handlers",
            "minit.supervisor.journal",
            "minit.supervisor.lifecycle",
        ),
        *("minit.supervisor.pod", "minit.supervisor.protection", "minit.supervisor.records"),
        *("minit.attributes", "minit.supervisor.loopback", "minit.supervisor.mounts", "minit.process"),
        "minit.supervisor.relocate",
        *("minit.supervisor.streams", "minit.supervisor.supervisor", "minit.supervisor.targets"),
        *("minit.supervisor.sidecars", "minit.supervisor.sources", "minit.supervisor.volumes"),
    },
    "stop": {
        *SHARED,
        "minit.value",
        *CONTROL,
        "entrypoints.stop",
        "minit.launcher.stop",
        "minit.podlock",
        "minit.plan.flags",
    },
    "gc": {
        *SHARED,
        "minit.value",
        *("entrypoints.gc", "minit.boundedfile"),
        *(
            "minit.launcher.cgroups",
            "minit.launcher.gc",
            "minit.launcher.leftgroups",
            "minit.mountinfo",
            "minit.plan.flags",
        ),
        "minit.supervisor.group",
    },
    "enter": {
        *SHARED,
        *CONTROL,
        "entrypoints.enter",
        *("minit.attributes", "minit.boundedfile", "minit.mountinfo", "minit.value"),
        *("minit.launcher.cgroups", "minit.launcher.enter", "minit.launcher.enterchild"),
        *("minit.launcher.enterprofile", "minit.launcher.enterwatch", "minit.launcher.stop", "minit.podlock"),
        *("minit.manifest", "minit.manifest.capabilities", "minit.plan.confinement", "minit.plan.entering"),
        "minit.plan.environment",
        *("minit.reaper", "minit.reaper.diagnose"),
        *("minit.supervisor.confinement", "minit.supervisor.group", "minit.process"),
    },
    "control": {
        *(SHARED | CONTROL) - {"minit.supervisor.protocol", "minit.syscalls"},
        *("entrypoints.control", "minit.launcher.control", "minit.plan.flags", "minit.value"),
    },
    "attach": {
        *BASE,
        *("entrypoints.attach", "minit.boundedfile", "minit.iottymux", "minit.iottymux.protocol", "minit.jsontext"),
        *("minit.launcher.attach", "minit.manifest", "minit.manifest.names", "minit.stdio", "minit.syscalls"),
        "minit.value",
    },
}
MODULES_OF["app_add"] = {
    *MODULES_OF["run"] - {"entrypoints.run", "minit.launcher.launch", "minit.launcher.watch", "minit.podfile"},
    *("entrypoints.app_add", "minit.launcher.addapp", "minit.launcher.apps", "minit.launcher.profiles"),
    *("minit.supervisor.adding", *CONTROL),
    *("minit.plan.appflags", "minit.plan.connection", "minit.plan.entering", "minit.plan.limits"),
    *("minit.plan.network", "minit.plan.sockets", "minit.plan.speccodec", "minit.plan.volumes"),
    *("minit.plan.order", "minit.plan.restart"),
}
for verb in APP_VERBS:
    MODULES_OF[verb] = {
        *(SHARED | CONTROL) - {"minit.syscalls"},
        *(f"entrypoints.{verb}", "minit.launcher.apps", "minit.manifest", "minit.manifest.names"),
        *("minit.plan.appflags", "minit.plan.flags", "minit.value"),
    }
# What `attach` goes on with, once it is clear that streams are to be attached and not listed.
ATTACHED = {
    *("minit.iottymux.attach", "minit.iottymux.detachkeys", "minit.iottymux.queries"),
    *("minit.iottymux.screenmodes", "minit.iottymux.session", "minit.messages", "minit.terminal"),
}
# The first program of a machine has the launcher's duties without its way of making and watching PID 1.
MODULES_OF["init"] = (
    MODULES_OF["run"] - {"entrypoints.run", "entrypoints._main", "minit.launcher.launch", "minit.launcher.watch"}
) | {
    *("entrypoints.init", "minit.launcher.delegation"),
    *("minit.machine", "minit.machine.clock", "minit.machine.ending", "minit.machine.helper", "minit.machine.init"),
    *("minit.machine.kernellog", "minit.machine.machine", "minit.machine.mounts", "minit.machine.supervisor"),
    *("minit.hostname", "minit.manifest.machine"),
    *("minit.plan.restart", "minit.supervisor.restarts"),
}
STDLIB_OF["init"] = STDLIB_OF["run"]
# But for the command of a machine, for which nobody waits who starts a pod.
ENTRYPOINTS = sorted({path.stem for path in (PROJECT / "entrypoints").glob("[a-z]*.py")} - {"minit"})


def modules_after(statement: str) -> set[str]:
    """Return all modules that an interpreter has after a statement, with nothing but the project on its path."""
    program = f"import sys; sys.path.append({str(PROJECT)!r})\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-B", "-c", program]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@functools.cache
def bare_modules(statement: str) -> set[str]:
    """Return what this version of the interpreter has by itself, and has loaded for one of its own modules."""
    return modules_after(statement)


def modules_of_command(statement: str) -> set[str]:
    """Return all modules that the `minit` command has after a statement, with all of its libraries at hand."""
    program = f"import sys; sys.path.insert(0, {str(PROJECT)!r})\n{statement}\nprint('modules', *sys.modules)"
    printed = subprocess.run([sys.executable, "-B", "-c", program], check=True, capture_output=True, text=True).stdout
    return set(printed.splitlines()[-1].split()[1:])


def test_every_entrypoint_is_listed():
    """A new entrypoint gets its list here."""
    assert ENTRYPOINTS == sorted(MODULES_OF) == sorted(STDLIB_OF)


@pytest.mark.parametrize("name", ENTRYPOINTS)
def test_modules_of_an_entrypoint(name: str):
    """An entrypoint loads exactly the modules of ours in its list, no others of Python than those, nothing heavy."""
    loaded = modules_after(f"import entrypoints.{name}")
    ours = {module for module in loaded if module.partition(".")[0] in ("minit", "entrypoints")}
    assert ours == MODULES_OF[name]
    assert loaded - ours - bare_modules(STRUCTURES) <= STDLIB_OF[name]
    # What is heavy of the interpreter's own has a stand-in in the image.
    assert not {module.partition(".")[0] for module in loaded - bare_modules(STRUCTURES)} & HEAVY


@pytest.mark.parametrize("name", ["stop", "gc", "enter", "control", *APP_VERBS])
def test_thin_entrypoints_stay_thin(name: str):
    """What only asks or cleans up loads neither the launcher of pods nor PID 1."""
    forbidden = {"minit.launcher.launch", "minit.supervisor.boot", "minit.supervisor.supervisor", "minit.plan.pod"}
    assert not MODULES_OF[name] & forbidden
    manifests = {module for module in MODULES_OF[name] if module.startswith(("minit.iottymux", "minit.manifest"))}
    assert manifests <= {"minit.manifest", "minit.manifest.names", "minit.manifest.capabilities"}


def test_a_client_of_a_sidecar_stays_thin():
    """What `attach` goes on with is little more, and nothing of the sidecar itself."""
    loaded = modules_after("import entrypoints.attach, minit.iottymux.attach")
    ours = {module for module in loaded if module.partition(".")[0] in ("minit", "entrypoints")}
    assert ours == MODULES_OF["attach"] | ATTACHED
    assert loaded - ours - bare_modules(STRUCTURES) <= {
        *STDLIB,
        "_json",
        "_socket",
        "fcntl",
        "select",
        "termios",
    }


def test_the_helper_of_a_machine_is_little_more_than_its_init():
    """Before the apps start it loads nothing large that the machine's configuration does not ask for."""
    loaded = modules_after("import entrypoints.init, minit.machine.duties")
    tops = {module.partition(".")[0] for module in loaded - bare_modules(STRUCTURES)}
    assert not tops & {*HEAVY, "fnmatch", "random", "shutil", "tomllib"}
    assert not loaded & {"minit.devices.lookup", "minit.machine.network"}


def test_the_init_of_a_container_is_next_to_nothing():
    """`minit -- COMMAND` loads neither click nor the rest of minit, and as process 1 not even ctypes."""
    loaded = modules_after("import minit.__main__, minit.reaper.init")
    ours = {module for module in loaded if module.partition(".")[0] in ("minit", "entrypoints")}
    assert ours == {
        *("minit", "minit.__main__", "minit.errors", "minit.harmless", "minit.reaper", "minit.reaper.exit_status"),
        *("minit.reaper.init", "minit.stdio", "minit.value"),
    }
    assert loaded - ours - bare_modules("import os") <= {"__future__", "errno"}


def test_the_help_of_minit_imports_no_command():
    """`minit --help` loads what it shows of the commands, and none of them."""
    loaded = modules_of_command("from minit.cli.main import run; run(['--help'])")
    assert {module for module in loaded if module.startswith("minit.")} == {
        *("minit.cli", "minit.cli.commandgroups", "minit.cli.commandtable", "minit.cli.completioncommand"),
        *("minit.cli.flagwords", "minit.cli.grammar", "minit.cli.invocation", "minit.cli.main"),
        *("minit.cli.standardstreams", "minit.cli.suggestion"),
        *("minit.errors", "minit.goflags", "minit.harmless", "minit.stdio", "minit.value"),
    }


def test_completing_a_command_imports_no_command():
    """The names of commands are completed without one of them, and without the store."""
    loaded = modules_of_command(
        "from minit.cli.main import *; completioncommand.answer(commands, ['fish', 'minit', ''])"
    )
    assert "minit.cli.completion" in loaded
    assert not loaded & {"minit.cli.podcommands", "minit.cli.runcommands", "minit.stage0.store", "sqlite3"}


@pytest.mark.parametrize("command", ["list", "status"])
def test_looking_at_pods_imports_nothing_of_running_them(command: str):
    """`minit list` and `minit status` load neither the store nor what makes, runs or removes pods."""
    loaded = modules_of_command(f"from minit.cli.main import run; run(['{command}', '--help'])")
    assert not loaded & {"minit.stage0.gc", "minit.stage0.prepare", "minit.stage0.run", "minit.stage0.store"}
    assert not loaded & {"rich", "sqlite3", "subprocess", "tarfile", "tempfile"}


def test_sidecars_are_forked_without_trio():
    """What a sidecar runs is loaded by the boot path, so the spawner's memory never holds trio."""
    assert {"minit.iottymux.spawner", "minit.iottymux.sidecar"} <= MODULES_OF["run"]
    assert "trio" not in modules_after("import minit.supervisor.boot")


def test_layers():
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
        for node in ast.walk(ast.parse(path.read_bytes())):
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
        ("ctypes", {"minit/syscalls.py", "minit/libseccomp.py"}),
        ("trio", {"minit/supervisor/serve.py"}),
        ("structlog", {"minit/log.py"}),
        ("pyudev", {"minit/devices/lookup.py"}),
        ("asyncio", set()),
        ("multiprocessing", set()),
    ],
)
def test_sole_importers(name: str, importers: set[str]):
    """Each of these has one module that may import it, if any."""
    assert importers_of(name) == importers


def test_pid_1_never_runs_processes_by_a_library():
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
        assert not [path for path in importers_of(name) if path.startswith(sides)]
