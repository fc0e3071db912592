"""minit.supervisor.exec.privileges: whatever becomes a program of an app does so by the same last steps."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minit
from minit.base.value import replace
from minit.linux import syscalls
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.process import ProcessPlan
from minit.supervisor.exec import privileges

PACKAGE = Path(minit.__file__).parent
WHERE = "supervisor/exec/privileges.py"
LAST_STEPS = {"execve", "install_seccomp_filter", "clear_ambient_capabilities", "join_session_keyring", "setresuid"}
OWN = {"supervisor/execution.py", "launcher/upgradable.py"}
PROGRAMS = {"supervisor/exec/child.py", "supervisor/apps/handlers.py", "launcher/enter/enterchild.py"}


def users_of(names: set[str]) -> set[str]:
    """Return the modules of PID 1 and the launcher that use any of these names."""
    texts = {path: path.read_text() for part in ("supervisor", "launcher") for path in (PACKAGE / part).rglob("*.py")}
    return {
        str(path.relative_to(PACKAGE))
        for path, text in texts.items()
        if any(name in text for name in names)
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Attribute) and node.attr in names) or (isinstance(node, ast.Name) and node.id in names)
    }


def test_one_module_does_the_last_steps() -> None:
    """The app, its handlers and what is entered have no way around it, to the exec itself."""
    for name in LAST_STEPS:
        assert users_of({name}) == {WHERE}, name
    # PID 1 and the launcher execute their own program, minit.linux.ownprogram.
    assert users_of({"execute", "become_program"}) - OWN == {WHERE, *PROGRAMS}
    assert users_of({"choose_profile"}) == PROGRAMS


SPEC = AppSpec(
    name="a",
    handler_filters=(b"1",),
    process=ProcessPlan(candidates=("/a",)),
    confinement=Confinement(
        uid=7, gid=8, supplementary_gids=(9,), bounding=1, filters=(b"1", b"2"), has_own_filters=True
    ),
)


def _spec(**fields: Any) -> AppSpec:
    return replace(SPEC, confinement=replace(SPEC.confinement, **fields))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is done instead of the steps, none of which has an effect."""
    calls: list[str] = []

    def note(name: str, result: object = None) -> Callable[..., object]:
        return lambda *_: (calls.append(name), result)[1]

    for name, result in (
        ("drop_bounding_capability", None),
        ("get_capabilities", (0, 0, 0)),
        ("set_capabilities", None),
        ("clear_ambient_capabilities", None),
        ("keep_capabilities", None),
        ("join_session_keyring", None),
        ("set_dumpable", None),
        ("set_no_new_privileges", None),
        ("install_seccomp_filter", None),
    ):
        monkeypatch.setattr(syscalls, name, note(name, result))
    for name in ("setgroups", "setresgid", "setresuid", "execve"):
        monkeypatch.setattr(os, name, note(name))
    monkeypatch.setattr(privileges, "reset_signals", note("reset_signals"))
    monkeypatch.setattr(privileges, "check_exec", note("check_exec"))
    monkeypatch.setattr(privileges, "_dropped", ~2)
    return calls


@pytest.mark.parametrize("no_new_privileges", [True, False])
@pytest.mark.parametrize("of", ["confinement", "handler_confinement", "command_confinement"])
def test_the_order_of_the_last_steps(done: list[str], of: str, no_new_privileges: bool) -> None:
    """No path before capabilities are gone, no new privileges after; filters come last, by one more if they must."""
    confinement: Confinement = getattr(_spec(no_new_privileges=no_new_privileges), of)

    def get_ready() -> privileges.Command:
        done.append("get ready")
        return "/a", [b"/a"], {}

    privileges.execute(confinement, (), lambda: done.append("look up"), get_ready)
    filters = ["install_seccomp_filter"] * len(confinement.filters)
    expected = ["drop_bounding_capability", "get_capabilities", "set_capabilities", "clear_ambient_capabilities"]
    expected += ["look up", "join_session_keyring"]
    expected += ["keep_capabilities"] if confinement.needs_right_to_filters else []
    expected += ["setgroups", "setresgid", "setresuid"]
    expected += ["set_capabilities"] if confinement.needs_right_to_filters else []
    expected += ["set_dumpable"]
    expected += ["set_no_new_privileges"] if confinement.no_new_privileges else []
    expected += ["reset_signals", "get ready"]
    expected += ["check_exec"] if confinement.has_own_filters else []
    expected += ["set_capabilities"] if confinement.needs_right_to_filters else []
    expected += filters
    assert done == [*expected, "execve"]


def test_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app, its handlers and its commands have the app's, written at once; without one nothing is opened."""
    file = tmp_path / "exec"
    monkeypatch.setattr(privileges, "_PROFILE_OF_EXEC", str(file))
    privileges.choose_profile(SPEC.confinement)
    file.touch()
    spec = _spec(apparmor_profile="web 1")
    for confinement in (spec.confinement, spec.handler_confinement, spec.command_confinement):
        privileges.choose_profile(confinement)
        assert file.read_bytes() == b"exec web 1"
        file.write_bytes(b"")
