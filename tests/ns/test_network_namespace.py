"""minit.network.namespace: making and removing the network namespace of a pod."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from minit.base.errors import NetworkError
from minit.linux.mountinfo import read_mountinfo
from minit.network.namespace import is_namespace, make_namespace, namespace_path, remove_namespace


@pytest.fixture
def path() -> Iterator[str]:
    """The place of a pod's namespace, cleared afterwards."""
    path = namespace_path(str(uuid.uuid4()))
    yield path
    remove_namespace(path)


def mounts_of(path: str) -> list[str]:
    """Return the filesystem types of what is mounted at a path of /var/run, which leads to /run."""
    real = os.path.realpath(path)
    return [mount.fstype for mount in read_mountinfo() if mount.mount_point == real]


def test_a_namespace_is_new_and_has_a_name(path: str) -> None:
    """It has nothing but lo, and this process stays where it was."""
    own = os.readlink("/proc/self/ns/net")
    make_namespace(path)
    assert os.readlink("/proc/self/ns/net") == own
    assert is_namespace(path)
    links = subprocess.run(["nsenter", f"--net={path}", "ip", "-o", "link"], capture_output=True, text=True, check=True)
    assert links.stdout.split()[1] == "lo:"
    assert len(links.stdout.splitlines()) == 1


def test_ip_knows_it_by_name(path: str) -> None:
    """`ip netns` lists it, whose mounts it shares."""
    make_namespace(path)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert os.path.basename(path) in listed


def test_removed_it_is_gone(path: str) -> None:
    """Neither mount nor file is left, and a second time is no error."""
    make_namespace(path)
    remove_namespace(path)
    assert not os.path.lexists(path)
    assert mounts_of(path) == []
    remove_namespace(path)


def test_one_that_was_never_mounted_is_removed(path: str) -> None:
    """A plain file, which is left of a making that was killed, and of a reboot on some systems, goes."""
    make_namespace(path)
    remove_namespace(path)
    os.close(os.open(path, os.O_CREAT))
    assert not is_namespace(path)
    remove_namespace(path)
    assert not os.path.lexists(path)


def test_a_name_is_taken_once(path: str) -> None:
    """A second namespace of the same name is refused, and the first stays."""
    make_namespace(path)
    with pytest.raises(NetworkError, match=f"{path}: file exists"):
        make_namespace(path)
    assert mounts_of(path) == ["nsfs"]


def test_others_see_it_go(path: str) -> None:
    """Unmounted here, it is unmounted in the mount namespace of another process too, so that it can end."""
    make_namespace(path)
    command = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", "echo; read _; cat /proc/self/mountinfo"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        remove_namespace(path)
        mounts, _ = other.communicate("\n")
    assert os.path.basename(path) not in mounts
