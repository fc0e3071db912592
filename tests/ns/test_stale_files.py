"""Files of an app that stage0 removes in the overlay's upper directory, behind the mount that PID 1 and app/rm use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.launcher.apps import remove_traces
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.process import ProcessPlan
from minit.podfiles import paths
from minit.supervisor.control.adding import write_app_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="overlays need root")

APP = "web"


@pytest.fixture
def stage1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An overlay as the stage1 root of the pod in the working directory; its upper directory is beside it."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    root = tmp_path / paths.POD_STAGE1_ROOTFS
    for path in (
        tmp_path / "lower/rkt/env",
        tmp_path / "lower/rkt/status",
        tmp_path / "upper",
        tmp_path / "work",
        root,
    ):
        path.mkdir(parents=True)
    options = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
    monkeypatch.chdir(tmp_path)
    yield root
    monkeypatch.chdir("/")
    subprocess.run(["umount", root], check=True)
    subprocess.run(["umount", tmp_path], check=True)


def test_an_app_is_added_and_removed_under_the_name_of_one_that_stage0_took_back(
    stage1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount still knows what was removed, and cannot remove it: what is written anew is seen all the same."""
    environment = stage1 / paths.env_file(APP).lstrip("/")
    for value in ("old", "new"):
        with monkeypatch.context() as inside:
            for name in ("env_file", "created_marker"):
                path = getattr(paths, name)(APP)
                inside.setattr(paths, name, lambda app, path=path: f"{stage1}{path}")
            write_app_files(
                AppSpec(
                    name=APP,
                    process=ProcessPlan(candidates=("/x",), environment=(("A", value),)),
                    confinement=Confinement(),
                )
            )
        assert environment.read_text() == f"A={value}\n"
        Path(f"upper{paths.env_file(APP)}").unlink(missing_ok=True)
    with pytest.raises(OSError, match="Stale file handle"):
        environment.unlink()
    assert [problem for problem in remove_traces(APP) if paths.env_file(APP) in problem] == []
