"""Writing an ACI."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from minit.base.errors import ImageError
from minit.image.aciwriter import AciWriter


def write(output: Path, tree: Path | None = None) -> list[tarfile.TarInfo]:
    """Write an ACI with the entries of a directory, and return what a reader sees."""
    with AciWriter(output, b"{}") as writer:
        writer.add_directory("/")
        if tree is not None:
            for path in sorted(tree.rglob("*")):
                writer.add_as_is(str(path.relative_to(tree)), path)
    with tarfile.open(output) as aci:
        return aci.getmembers()


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    """Neither the time nor the name of the output gets into it."""
    write(tmp_path / "a.aci")
    write(tmp_path / "b.aci")
    assert (tmp_path / "a.aci").read_bytes() == (tmp_path / "b.aci").read_bytes()


def test_the_manifest_comes_first(tmp_path: Path) -> None:
    """A reader finds the manifest without reading the rootfs."""
    assert [entry.name for entry in write(tmp_path / "a.aci")] == ["manifest", "rootfs"]


def test_mode_time_and_links_are_kept(tmp_path: Path) -> None:
    """A tree taken as it is keeps setuid bits, times, symlinks, hard links and fifos, and loses its sockets."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("content")
    (tree / "a").chmod(0o4755)
    os.utime(tree / "a", (1, 1234567890))
    (tree / "b").hardlink_to(tree / "a")
    (tree / "c").symlink_to("/nowhere")
    os.mkfifo(tree / "d", 0o600)
    os.mknod(tree / "e", 0o140600)
    entries = {entry.name: entry for entry in write(tmp_path / "a.aci", tree)}
    assert sorted(entries) == ["manifest", "rootfs", "rootfs/a", "rootfs/b", "rootfs/c", "rootfs/d"]
    assert (entries["rootfs/a"].mode, entries["rootfs/a"].mtime) == (0o4755, 1234567890)
    assert entries["rootfs/b"].islnk()
    assert entries["rootfs/b"].linkname == "rootfs/a"
    assert entries["rootfs/c"].linkname == "/nowhere"
    assert entries["rootfs/d"].isfifo()


def test_long_names_and_large_numbers_are_kept(tmp_path: Path) -> None:
    """Names beyond the 100 bytes of a tar header are written whole."""
    name = "/".join(["d" * 90] * 4 + ["f" * 200])
    with AciWriter(tmp_path / "a.aci", b"{}") as writer:
        writer.add_bytes(name, b"x")
    with tarfile.open(tmp_path / "a.aci") as aci:
        assert aci.getnames() == ["manifest", f"rootfs/{name}"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """When the work inside the context fails there is no output and no temporary file, and an older output stays."""
    (tmp_path / "a.aci").write_text("older")
    with pytest.raises(ZeroDivisionError), AciWriter(tmp_path / "a.aci", b"{}") as writer:
        writer.add_bytes("a", b"x")
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["a.aci"]
    assert (tmp_path / "a.aci").read_text() == "older"


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A file that disappears while the image is written ends it with one line."""
    with (
        pytest.raises(ImageError, match=r"^cannot write .*/a\.aci: .*/gone: no such file or directory$"),
        AciWriter(tmp_path / "a.aci", b"{}") as writer,
    ):
        writer.add_file("gone", tmp_path / "gone", 0o644)
    assert not list(tmp_path.iterdir())


def test_a_missing_output_directory_is_named(tmp_path: Path) -> None:
    """The output's directory is not made for the user."""
    with pytest.raises(ImageError, match=r"^cannot write .*/no/a\.aci: no such file or directory$"):
        write(tmp_path / "no/a.aci")


@pytest.mark.parametrize("output", ["/dev/null", "/tmp"])
def test_only_a_regular_file_is_replaced(output: str) -> None:
    """A device or a directory in the output's place is refused, not replaced."""
    with pytest.raises(ImageError, match=f"^cannot write {output}: not a regular file$"):
        write(Path(output))
