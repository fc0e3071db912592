"""Tests of pods once more as an ordinary user: a session of tests in the namespace of the user."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.campaign import LONG
from tests.support.ordinaryuser import OrdinaryUser
from tests.support.usersession import DELEGATED, NO_GROUPS, ONE_ID, has_possible, session_words

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

SURROUNDINGS: dict[str, Callable[[Path], OrdinaryUser]] = {
    DELEGATED: OrdinaryUser,
    NO_GROUPS: partial(OrdinaryUser, has_groups=False),
    ONE_ID: partial(OrdinaryUser, has_ids=False),
}
"""How to make the user of each surrounding."""

GIVEN = shlex.split(os.environ.get("MINIT_TEST_ROOTLESS", ""))
"""What a developer gives to the session in place of the sample."""

LEAST_OF_SAMPLE = 30
FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("test_*.py")) if has_possible(path, DELEGATED)}
SAMPLE = "sample"
PARTS = ["given"] if GIVEN else [*FILES] if LONG else [SAMPLE]
SESSIONS = [
    (one, part) for one in SURROUNDINGS for part in PARTS if part not in FILES or has_possible(FILES[part], one)
]
if LONG and not GIVEN:
    # Most other files have apps of other users somewhere.
    SESSIONS = [session for session in SESSIONS if session[0] != ONE_ID] + [(ONE_ID, SAMPLE)]


@pytest.fixture
def user(surrounding: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OrdinaryUser]:
    """A user in a surrounding, with the images of stage1 at home."""
    user = SURROUNDINGS[surrounding](tmp_path)
    try:
        for name in ("stage1", "plain_stage1") if LONG or GIVEN else ("stage1",):
            user.give(f"{name.replace('_', '-')}.aci", request.getfixturevalue(f"{name}_image"))
        yield user
    finally:
        user.remove()


@pytest.mark.parametrize(("surrounding", "part"), SESSIONS)
def test_tests_of_pods_as_a_user(user: OrdinaryUser, surrounding: str, part: str, tmp_path: Path) -> None:
    """Tests of pods pass with the rights of a user, and leave no process of the user."""
    arguments = GIVEN or ([str(FILES[part])] if part in FILES else ["-m", "rootless", *map(str, files_of_sample())])
    words = session_words(user, surrounding, arguments)
    log = tmp_path / "session"
    with log.open("w") as output:
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False)
        finally:
            # Also of a session that takes too long.
            print(log.read_text())
    assert done.returncode == 0, "the session has failed: its output is above, or below"
    passed = sum(map(int, re.findall(r"(\d+) passed", log.read_text().splitlines()[-1])))
    assert passed >= (LEAST_OF_SAMPLE if part == SAMPLE else 1)
    user.wait_end()


def files_of_sample() -> list[Path]:
    """Return the files with tests of the sample."""
    return [path for path in FILES.values() if "pytest.mark.rootless" in path.read_text()]
