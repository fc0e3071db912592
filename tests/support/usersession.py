"""
Sessions of tests as root of an ordinary user's namespace: tests of pods run once more with the rights of such a root.

The session is started by `minit unshare` of an OrdinaryUser, and has the user's home for all files.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from minit.manifest.capabilities import capability_mask
from minit.podfiles.usersdirectory import RUNTIME_VARIABLE, network_namespaces
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.processes import status_of

DELEGATED = "delegated"
"""Root has delegated a control group to the user in every hierarchy."""
NO_GROUPS = "no-groups"
"""Nothing is delegated to the user, and PID namespaces take the place of groups."""

ONE_ID = "one-id"
"""The user has no subordinate ids, and root is the only user of a pod."""

_SURROUNDING_VARIABLE = "MINIT_TEST_SURROUNDING"
SURROUNDING = os.environ.get(_SURROUNDING_VARIABLE)
"""What this session's user has; None for a session of the machine's root."""

_WARNING = (
    "stage1: warning: no control group is delegated to you: no limits and no pause, and each app has a PID namespace"
    " (see docs/rootless.md)\n"
)
_DATA_LINK = "data"
_PROJECT = Path(__file__).parents[2]

HOST_ROOT_FILES: dict[str, str] = {
    "test_cri*": "minit cri serves kubelets of the machine",
    "test_demo": "it has a data directory of its own",
    "test_devices": "a user makes no devices, and has none of the machine's",
    "test_dhcp_pods": "addresses by DHCP are for links of the machine",
    "test_dist": "nothing of it is about a pod",
    "test_dumped_command": "how the command is executed has nothing to do with its rights",
    "test_failed_disks": "it mounts disks of its own",
    "test_group_parent": "groups that are not the user's are root's",
    "test_host_pids": "only the owner of a PID namespace mounts its /proc",
    "test_idmap": "file systems of the machine have no other ids for a user",
    "test_machine*": "machines have devices of the machine",
    "test_network_*": "it looks at the machine's network, which pods of a user do not touch",
    "test_networks": "it looks at the machine's network, which pods of a user do not touch",
    "test_own_code": "minit cri serves kubelets of the machine",
    "test_package": "nothing of it is about a pod",
    "test_podman_builds": "podman builds as root",
    "test_ports": "it looks at the machine's network, which pods of a user do not touch",
    "test_private_users": "pods of a user have no other ids than the user's",
    "test_rootless*": "it makes users",
    "test_stuck_apps": "it needs /dev/fuse",
    "test_supervisors": "services of the machine are root's",
    "test_unified_machine*": "a machine boots with it",
}
"""Files of tests/contract that need the machine's root as a whole, by patterns of names, with the reason."""


DELEGATED_FILES: dict[str, str] = {
    "test_app_pause": "apps are paused by their groups",
    "test_app_update": "limits are those of groups",
    "test_crowded_machine": "groups are what other pods have left",
    "test_gc": "groups are what gc removes of a pod that is not in pod directories",
    "test_pid_namespaces": "without groups each app has a PID namespace of another kind",
    "test_stats": "numbers are those of groups",
}
"""Files that need control groups, by patterns of names, with the reason."""

# Marks of tests that need what a surrounding lacks.
_MARKS = {NO_GROUPS: "delegated_groups", ONE_ID: "subordinate_ids"}
# Fixtures: a server of kubelets, and a device.
_OF_HOST_ROOT = {"daemon", "loop"}


def has_possible(file: Path, surrounding: str | None) -> bool:
    """Return whether a file has tests that can pass in a surrounding."""
    impossible = (*HOST_ROOT_FILES, *(DELEGATED_FILES if surrounding == NO_GROUPS else ()))
    return not any(fnmatch(file.stem, pattern) for pattern in impossible)


def is_possible(item: pytest.Item) -> bool:
    """Return whether a test can pass in the surrounding of this session."""
    return (
        has_possible(item.path, SURROUNDING)
        and not _OF_HOST_ROOT & {*getattr(item, "fixturenames", ())}
        and not _has_private_users(item)
        and item.get_closest_marker("host_root") is None
        and item.get_closest_marker(_MARKS.get(SURROUNDING or "", "")) is None
    )


def _has_private_users(item: pytest.Item) -> bool:
    values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return bool(values.get("private_users") or re.search("private[-_]users", str([*values.values()])))


def is_capable(name: str) -> bool:
    """Return whether this session has a capability on the machine, and not on a user's namespace alone."""
    return SURROUNDING is None and bool(int(status_of(os.getpid())["CapEff"], 16) & capability_mask(name))


def use_data_directory(data: Path) -> None:
    """Make the namespace of a user's session that of another data directory, as commands in the namespace ask."""
    if SURROUNDING is None:
        return
    directory = Path(os.environ[RUNTIME_VARIABLE])
    # Some tests have several threads.
    new = directory / f"new-data-{threading.get_ident()}"
    new.symlink_to(os.path.realpath(data))
    new.replace(directory / _DATA_LINK)


def without_warning(errors: str, times: int = 1) -> str:
    """Return what a pod said but for what each pod says in this surrounding; -1 is for many pods."""
    return errors.replace(_WARNING, "", times) if SURROUNDING == NO_GROUPS else errors


def without_shown_warning(shown: bytes) -> bytes:
    """Return what a terminal has shown but for what each pod says in this surrounding."""
    return re.sub(re.escape(_WARNING.rstrip().encode()) + rb"\r*\n", b"", shown) if SURROUNDING == NO_GROUPS else shown


def kept_variables() -> dict[str, str]:
    """Return what a program in a user's session has in the environment always."""
    return {} if SURROUNDING is None else {RUNTIME_VARIABLE: os.environ[RUNTIME_VARIABLE]}


def own_runtime_directory(directory: Path, data: Path) -> dict[str, str]:
    """Return the variables with which commands of a user's session have a data directory beside that of others."""
    if SURROUNDING is None:
        return {}
    directory.mkdir(mode=0o700)
    (directory / _DATA_LINK).symlink_to(os.path.realpath(data))
    return {RUNTIME_VARIABLE: str(directory)}


def make_directories() -> None:
    """Make what a session of root finds on the machine."""
    os.makedirs(network_namespaces(), exist_ok=True)


def session_words(user: OrdinaryUser, surrounding: str, arguments: Sequence[str]) -> list[str]:
    """Return the words that run a session as a user who has images of stage1 at home."""
    variables = [
        f"{_SURROUNDING_VARIABLE}={surrounding}",
        f"MINIT_TEST_STAGE1={HOME}/stage1.aci",
        f"MINIT_TEST_PLAIN_STAGE1={HOME}/plain-stage1.aci",
        "MINIT_TEST_STRICT=1",
    ]
    prepare = ["env", f"--chdir={_PROJECT}"]
    pytest_words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--color=no", "--tb=short"]
    pytest_words += [f"--basetemp={HOME}/tmp"]
    return user.words([*prepare, *variables, *user.minit_words("unshare"), *pytest_words, *arguments])
