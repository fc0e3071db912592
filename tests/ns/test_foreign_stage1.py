"""The stage1 image for another processor: its packages, and the machine that builds it, a script in qemu's place."""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from minit.base.errors import ImageError
from minit.base.progress import silent
from minit.image.foreign import ARM64, fetch_packages, foreign_stage1, unpack_packages
from minit.linux.loop import wait_readable
from tests.support.foreignmachine import stand_in
from tests.support.waiting import wait_for


def make_repository(directory: Path, *packages: dict[str, str]) -> None:
    """Make an archive of packages, each of which has a library and a program, as a directory that apt can use."""
    directory.mkdir()
    index = []
    for fields in packages:
        tree = directory / fields["Package"]
        for name in ("lib/library", "usr/bin/program"):
            file = tree / f"{name}-{fields['Package']}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(fields["Package"])
        control = "".join(
            f"{name}: {value}\n" for name, value in {**fields, "Maintainer": "x", "Description": "x"}.items()
        )
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN/control").write_text(control)
        file = directory / f"{fields['Package']}.deb"
        subprocess.run(["dpkg-deb", "--build", tree, file], check=True, stdout=subprocess.DEVNULL)
        data = file.read_bytes()
        index.append(
            f"{control}Filename: ./{file.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    (directory / "Packages.gz").write_bytes(gzip.compress("\n".join(index).encode()))


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of arm64 that is the only one that this machine knows."""
    if shutil.which("dpkg-deb") is None or shutil.which("apt-get") is None:
        pytest.skip("no dpkg-deb on PATH")
    make_repository(
        tmp_path / "mirror",
        {"Package": "one", "Version": "1:2.0-1", "Architecture": "arm64", "Depends": "two"},
        {"Package": "two", "Version": "3", "Architecture": "all"},
        {"Package": "three", "Version": "4", "Architecture": "arm64"},
    )
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] copy:{tmp_path}/mirror ./\n")
    configuration = f'Dir::Etc::sourcelist "{tmp_path}/sources.list"; Dir::Etc::sourceparts "/dev/null";'
    (tmp_path / "apt.conf").write_text(configuration)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))


@pytest.mark.usefixtures("mirror")
def test_packages_of_another_processor(tmp_path: Path) -> None:
    """apt fetches packages with all that they need, and below one root their files lie where merged ones do."""
    packages = fetch_packages("arm64", ["one"], tmp_path / "apt")
    assert sorted(path.name for path in packages) == ["one_1%3a2.0-1_arm64.deb", "two_3_all.deb"]
    unpack_packages(packages, tmp_path / "root")
    assert (tmp_path / "root/lib").is_symlink()
    found = sorted(str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root/usr").rglob("*-*"))
    assert found == [
        *(f"usr/bin/program-{name}" for name in ("one", "two")),
        "usr/lib/library-one",
        "usr/lib/library-two",
    ]


@pytest.mark.usefixtures("mirror")
def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    """A package that no mirror has is named."""
    with pytest.raises(ImageError, match="apt-get four: E: Unable to locate package four"):
        fetch_packages("arm64", ["four"], tmp_path / "apt")


def test_a_machine_builds_the_image(tmp_path: Path) -> None:
    """It gets minit with the libraries, says how far it is, and is booted once as long as its disk is the same."""
    processor = stand_in(
        tmp_path / "machine", tmp_path, f"cd {tmp_path} && echo image > stage1.aci && tar -cf $result ./stage1.aci"
    )
    steps: list[tuple[str, int, int | None]] = []
    for _ in range(2):
        image, obstacle = foreign_stage1(processor, tmp_path / "machine", lambda *step: steps.append(step))
        assert (image.read_text(), obstacle) == ("image\n", None)
    assert steps == [("thinking", 1, 2)]
    listed = (tmp_path / "listed").read_text().splitlines()
    assert {"start", "minit/image/launcher.c", "entrypoints/run.py", "trio/__init__.py"} <= set(listed)
    assert not [name for name in listed if "__pycache__" in name or name.endswith(".aci")]
    os.utime(tmp_path / "machine/disk", (1, 1))
    foreign_stage1(processor, tmp_path / "machine", silent)
    assert (tmp_path / "calls").read_text() == "booted\n" * 2


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("cd $(dirname $result) && echo no space > error && tar -cf $result ./error", "^no space$"),
        ("echo Kernel panic", "^the machine that should build it has not: Kernel panic$"),
        ("printf x > $result", "has not: "),
    ],
)
def test_a_machine_that_does_not(tmp_path: Path, script: str, message: str) -> None:
    """Its error is the error, or else what its console has said; no image is there, and it is tried again."""
    with pytest.raises(ImageError, match=message):
        foreign_stage1(stand_in(tmp_path / "machine", tmp_path, script), tmp_path / "machine", silent)
    assert sorted(path.name for path in (tmp_path / "machine").iterdir()) == ["disk", "kernel", "lock"]


def test_a_build_that_is_killed(tmp_path: Path) -> None:
    """Its machine ends with it."""
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    processor = stand_in(tmp_path / "machine", tmp_path, f"echo $$ > {pid}; exec sleep 1000")
    builder = multiprocessing.get_context("fork").Process(
        target=foreign_stage1, args=(processor, tmp_path / "machine", silent)
    )
    builder.start()
    machine = os.pidfd_open(int(pid.read_text()))
    try:
        builder.kill()
        builder.join()
        wait_for(lambda: bool(wait_readable([machine], 0)), "the end of the machine")
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(machine, signal.SIGKILL)
        os.close(machine)


def test_an_interpreter_that_is_not_dumped(tmp_path: Path) -> None:
    """The reason is that of the machine's."""
    script = f"cd {tmp_path} && echo image > stage1.aci && printf why > obstacle && tar -cf $result stage1.aci obstacle"
    assert foreign_stage1(stand_in(tmp_path / "machine", tmp_path, script), tmp_path / "machine", silent)[1] == "why"


def test_no_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without qemu is told what brings it."""
    monkeypatch.setenv("PATH", "/nonexistent")
    expected = r"qemu-system-aarch64 is not installed: install it \(Debian: apt install qemu-system-arm\)"
    with pytest.raises(ImageError, match=expected):
        foreign_stage1(ARM64, tmp_path / "machine", silent)
