"""`minit system`: what takes room, and the removal of what nobody needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minit.podfiles.usersdirectory import program_directory
from tests.support.commands import Stage0
from tests.support.stage0_world import write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


def test_df_and_prune(minit: Stage0, tmp_path: Path) -> None:
    """Ended pods and what only they have go; running pods, stage1 and volumes stay, and without --all named images."""

    def say(*words: object, code: int = 0) -> str:
        result = minit.call(*words)
        assert result.returncode == code, result
        return result.stdout if code == 0 else result.stderr

    def numbers(kind: str) -> tuple[int, int]:
        of_kind: dict[str, Any] = json.loads(say("system", "df", "--format=json"))[kind]
        assert (of_kind["reclaimable"] > 0) == (of_kind["total"] > of_kind["active"])
        return of_kind["total"], of_kind["active"]

    used, other = tmp_path / "used.aci", tmp_path / "other.aci"
    write_app(used, "example.com/used")
    write_app(other, "example.com/other")
    # minit's own stage1, which is its own by this record alone.
    stage1 = say("image", "fetch", "--full", minit.stage1_flag.partition("=")[2]).strip()
    (minit.data / "minit/default-stage1").write_text(f"fingerprint {stage1}\n")
    script = ("--exec=/bin/busybox", "--", "dd", "if=/dev/zero", "of=/written", "bs=1M", "count=8")
    assert minit.call(*minit.run_words("--volume=old:/o", other, *script)).returncode == 0
    ended = minit.uuid
    with minit.running(*minit.run_words("--volume=new:/n", used, "--exec=/bin/busybox", "--", "sleep", "100")) as uuid:
        assert [numbers(kind) for kind in ("images", "trees", "pods", "volumes")] == [(3, 2), (3, 2), (2, 1), (2, 1)]
        rows = {line.split()[0]: line.split()[1:] for line in say("system", "df").splitlines()}
        assert rows["TYPE"] == ["TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"]
        assert rows["Pods"][:2] == ["2", "1"] and rows["Pods"][3].endswith("MiB")
        listed = say("system", "prune", "--dry-run", "--volumes").splitlines()
        assert [line.partition("\t")[0] for line in listed] == ["pod", "tree", "volume"]
        listed = say("system", "prune", "--dry-run", "--all", "--volumes").splitlines()
        assert listed[2].split("\t")[2] == "example.com/other:1.0"
        assert [line.partition("\t")[0] for line in listed] == ["pod", "tree", "image", "volume"]
        assert (listed[0].split()[1], listed[3].split()[1]) == (ended, "old")
        assert "--force" in say("system", "prune", code=254)
        assert numbers("pods") == (2, 1)
        assert "Total reclaimed space: " in say("system", "prune", "--force")
        assert numbers("images") == (3, 2)
        write_app(other, "example.com/other", files={"newer": b""})
        newer = say("image", "fetch", "--full", str(other)).strip()
        assert numbers("images") == (4, 2)
        say("system", "prune", "--force")
        assert numbers("images") == (3, 2) and newer in say("image", "list", "--full")
        say("system", "prune", "--force", "--all")
        assert [numbers(kind) for kind in ("images", "trees", "pods", "volumes")] == [(2, 2), (2, 2), (1, 1), (2, 1)]
        assert 'removed volume "old"' in say("system", "prune", "-f", "--volumes")
        assert numbers("volumes") == (1, 1)
        assert say("status", uuid).startswith("state=running")
        assert stage1 in say("image", "list", "--full")


def test_uninstall(minit: Stage0, tmp_path: Path) -> None:
    """Nothing goes while a pod runs; then what minit has made goes, and the data directory if asked for."""
    image = tmp_path / "app.aci"
    write_app(image, "example.com/app")
    programs = program_directory()
    there = programs.parent
    there.mkdir(exist_ok=True)
    script = f'mount -t tmpfs tmpfs {there} && mkdir {programs} && "$@"; code=$?; ls {there}; exit $code'
    words = [sys.executable, "-m", "minit", f"--dir={minit.data}", f"--local-config={minit.local_config}"]

    def call(*flags: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *words, "system", "uninstall", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with minit.running(*minit.run_words(image, "--exec=/bin/busybox", "--", "sleep", "100")) as uuid:
        refused = call("--force", "--data")
        assert refused.returncode == 254 and uuid in refused.stderr and "minit" in refused.stdout
    assert str(minit.data) in call("--data", "--dry-run").stdout
    kept = call("--force")
    assert kept.returncode == 0 and "stays" in kept.stdout and "minit" not in kept.stdout.splitlines(), kept
    assert (minit.data / "pods/run" / uuid).exists()
    result = call("--force", "--data")
    assert (result.returncode, minit.data.exists()) == (0, False), result
