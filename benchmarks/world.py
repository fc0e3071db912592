"""The world of the benchmarks: a stage1 tree, an app with one static program, and pod directories."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minit.base.progress import silent
from minit.image.stage1 import build_stage1
from tests.support.owngroup import OwnGroup, remove_groups
from tests.support.pods import PodDirectory, app_section, make_rootfs
from tests.support.unpack import unpack

FIRST_INSTRUCTION = r"""
#include <stdio.h>
#include <time.h>
int main(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    return 0;
}
"""


class World:
    """A scratch directory with everything the measured programs need."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stage1 = path / "stage1"
        self.rootfs = path / "rootfs"
        image = path / "stage1.aci"
        build_stage1(image, silent)
        unpack(image, self.stage1)
        make_rootfs(self.rootfs)
        source = path / "first.c"
        source.write_text(FIRST_INSTRUCTION)
        subprocess.run(["cc", "-O2", "-static", "-o", self.rootfs / "bin/first", source], check=True)

    def interpreter(self, text: str = "import os; os._exit(0)", *arguments: str) -> list[str]:
        """Return the words that run a program text by the image's interpreter, which may be one that was dumped."""
        directory = self.stage1 / "rootfs/usr/lib/minit"
        if (dumped := directory / "bin/minit").exists():
            return [str(dumped), "-c", text, *arguments]
        program = str(directory / "bin/python3")
        start = [str(directory / "ld.so"), "--inhibit-cache", "--argv0", program, program]
        return [*start, "-I", "-S", "-c", text, *arguments]

    @contextmanager
    def pod(self, *command: str, **fields: Any) -> Iterator[PodDirectory]:
        """A prepared one-app pod that runs `command`, with `fields` of its app section; removed afterwards."""
        with self.pod_of({"app": app_section(*command, **fields)}) as pod:
            yield pod

    @contextmanager
    def pod_of(self, apps: dict[str, dict[str, Any]]) -> Iterator[PodDirectory]:
        """A prepared pod of these apps; removed afterwards."""
        pod = PodDirectory(self.path / "data", self.stage1, self.rootfs, apps)
        try:
            yield pod
        finally:
            pod.remove()


@contextmanager
def own_group() -> Iterator[OwnGroup]:
    """A control group that everything started in here is in; what is left of it at the end is killed."""
    group = OwnGroup()
    group.enter()
    try:
        yield group
    finally:
        group.leave()
        remove_groups(group.directories)
        os.close(group.claim)


@contextmanager
def world() -> Iterator[World]:
    """A world that is deleted afterwards."""
    path = Path(tempfile.mkdtemp(prefix="minit-bench-", dir="/var/tmp"))
    try:
        yield World(path)
    finally:
        shutil.rmtree(path)
