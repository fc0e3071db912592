"""The built-in plugins and the reference plugins of the CNI: one configuration, the same network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from minit import paths
from tests.support.campaign import thinned
from tests.support.comparison import Case, read_observations, script
from tests.support.referencecases import CASES, REFERENCE, is_understood
from tests.support.samenetwork import Seen, assert_same

pytestmark = pytest.mark.skipif(not (REFERENCE / "ptp").exists(), reason="containernetworking-plugins is not installed")


def play(case: Case, plugins: Path, directory: Path) -> Seen:
    """Return what is seen of a case, by stages; its host and pod are gone afterwards."""
    directory.mkdir()
    path = directory / "script"
    path.write_text(script([case], str(plugins), str(directory / "leases")))
    place = "mount -t tmpfs none /run && mkdir /run/netns && exec sh"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{place} {path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return read_observations(done.stdout.splitlines())[case.name]


@pytest.mark.parametrize("case", thinned(CASES), ids=lambda case: case.name.replace(" ", "-"))
def test_the_same_network(stage1_tree: Path, tmp_path: Path, case: Case) -> None:
    """Results, links, addresses, routes and settings are those of the reference plugins, but for what is listed."""
    is_understood(case)
    theirs = play(case, REFERENCE, tmp_path / "theirs")
    assert_same(case, theirs, play(case, stage1_tree / "rootfs" / paths.PLUGINS, tmp_path / "ours"))
