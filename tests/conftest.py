"""Fixtures shared by all tests: the stage1 image, built once, and pods on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.pods import PodDirectory, STAGE1_TREE_ID, make_rootfs


@pytest.fixture(scope="session")
def work_directory() -> Iterator[Path]:
    """A directory for the whole session, on a disk rather than a tmpfs, where overlays and fsync are real."""
    path = Path(tempfile.mkdtemp(prefix="minit-test-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def stage1_image(work_directory: Path) -> Path:
    """The stage1 ACI."""
    from minit.image.stage1 import build_stage1
    from minit.progress import silent

    output = work_directory / "minit-stage1.aci"
    build_stage1(output, silent)
    return output


@pytest.fixture(scope="session")
def stage1_tree(work_directory: Path, stage1_image: Path) -> Path:
    """The stage1 image rendered as in the tree store."""
    tree = work_directory / "data/cas/tree" / STAGE1_TREE_ID
    tree.mkdir(parents=True)
    with tarfile.open(stage1_image) as image:
        image.extractall(tree, filter="fully_trusted")
    return tree


@pytest.fixture(scope="session")
def app_rootfs(work_directory: Path) -> Path:
    """The root of an app image with busybox."""
    rootfs = work_directory / "data/cas/tree/app/rootfs"
    rootfs.mkdir(parents=True)
    make_rootfs(rootfs)
    return rootfs


@pytest.fixture
def make_pod(work_directory: Path, stage1_tree: Path, app_rootfs: Path) -> Iterator[Callable[..., PodDirectory]]:
    """A function that prepares a pod directory; what it made is collected after the test."""
    pods: list[PodDirectory] = []

    def make(apps: dict, rootfs: Path = app_rootfs, **options: object) -> PodDirectory:
        pod = PodDirectory(work_directory / "data", stage1_tree, rootfs, apps, **options)
        pods.append(pod)
        return pod

    yield make
    for pod in pods:
        pod.remove()
