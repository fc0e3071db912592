"""The built-in plugins and the reference plugins of the CNI: one configuration, the same network."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from minit import paths
from tests.support.comparison import STAGES, WORDS, Case, Facts, differences, read_observations, script
from tests.support.referencecases import CASES, DELIBERATE, REFERENCE, REFUSED, is_understood

# A bridge stays, and what has its name. up0 is down when it comes back from a pod, and has lost its addresses. DEL of
# loopback brings lo down.
STAYS = r"host (.*\b(br9|cni0|up0)\b.*|sysctl .*forward.*)|pod .*\blo\b.*"

pytestmark = pytest.mark.skipif(not (REFERENCE / "ptp").exists(), reason="containernetworking-plugins is not installed")

Seen = dict[str, Facts]


def play(case: Case, plugins: Path, directory: Path) -> Seen:
    """Return what is seen of a case, by stages; its host and pod are gone afterwards."""
    directory.mkdir()
    path = directory / "script"
    path.write_text(script([case], str(plugins), str(directory / "leases")))
    place = "mount -t tmpfs none /run && mkdir /run/netns && exec sh"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{place} {path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return read_observations(done.stdout.splitlines())[case.name]


def compare(case: Case, theirs: Seen, ours: Seen) -> None:
    """Fail with all that differs and has no reason, and with what ours leaves after DEL."""
    added = (theirs["added"]["answer ADD.0 code"], ours["added"]["answer ADD.0 code"])
    if added == (1, 0) and case.name in REFUSED:
        assert {ours[stage][f"answer {command}.0 code"] for stage, command in ANSWERS} == {0}
        return
    unexplained = {}
    for stage in STAGES:
        for name, values in differences(theirs.get(stage, {}), ours.get(stage, {})).items():
            # The reference plugins leave what they have made when they fail, until DEL.
            is_failure = name.endswith(WORDS) or (added == (1, 1) and stage == "added" and not name.endswith("code"))
            if not is_failure and not any(one.explains(case, stage, name, values) for one in DELIBERATE):
                unexplained[f"{stage}: {name}"] = values
    shown = "\n".join(f"{name}: theirs {values[0]!r}, ours {values[1]!r}" for name, values in unexplained.items())
    shown += "".join(
        f"\nof {who}, {text}" for who, seen in (("theirs", theirs), ("ours", ours)) for text in words(seen)
    )
    assert not unexplained, f"\n{shown}"
    left = [name for name in differences(ours["before"], ours["again"]) if not name.startswith("answer")]
    assert [name for name in left if not re.fullmatch(STAYS, name)] == []


ANSWERS = (("added", "ADD"), ("checked", "CHECK"), ("deleted", "DEL"), ("again", "DEL"))


def words(seen: Seen) -> list[str]:
    """Return the errors that were told."""
    return [
        f"{stage}: {name}: {value}" for stage in seen for name, value in seen[stage].items() if name.endswith(WORDS)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_same_network(stage1_tree: Path, tmp_path: Path, case: Case) -> None:
    """Results, links, addresses, routes and settings are those of the reference plugins, but for what is listed."""
    is_understood(case)
    theirs = play(case, REFERENCE, tmp_path / "theirs")
    compare(case, theirs, play(case, stage1_tree / "rootfs" / paths.PLUGINS, tmp_path / "ours"))
