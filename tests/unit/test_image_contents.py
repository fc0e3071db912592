"""The contents of an image, before it is written."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from minit.base.errors import ImageError
from minit.image.appimage import Contents, Directory, Symlink, Text


def test_a_path_is_resolved_inside_the_image() -> None:
    """Symlinks lead to paths of the image, absolute ones and those with `..` too."""
    contents = Contents()
    contents.add(PurePosixPath("/usr"), Directory())
    contents.add(PurePosixPath("/usr/lib"), Directory())
    contents.add(PurePosixPath("/lib"), Symlink(target="usr/lib"))
    contents.add(PurePosixPath("/usr/lib/plugins"), Symlink(target="/lib/../../../usr"))
    assert contents.resolve(PurePosixPath("/lib/plugins/lib/x")) == PurePosixPath("/usr/lib/x")


def test_an_entry_lands_where_its_directory_leads() -> None:
    """A file added below a symlink is put into the directory the symlink names."""
    contents = Contents()
    contents.add(PurePosixPath("/usr"), Directory())
    contents.add(PurePosixPath("/bin"), Symlink(target="usr"))
    contents.add(PurePosixPath("/bin/sh"), Text(text=""))
    assert PurePosixPath("/usr/sh") in contents
    assert PurePosixPath("/bin/sh") in contents


def test_what_is_there_stays(tmp_path: Path) -> None:
    """The tree added first keeps its files when others of the same names come."""
    (tmp_path / "etc").mkdir()
    contents = Contents()
    contents.add_tree(tmp_path)
    contents.add(PurePosixPath("/etc"), Symlink(target="elsewhere"))
    assert contents.resolve(PurePosixPath("/etc/passwd")) == PurePosixPath("/etc/passwd")


def test_symlinks_of_an_added_tree_stay_in_the_image(tmp_path: Path) -> None:
    """An absolute symlink in the tree means a path of the image, not of this machine."""
    (tmp_path / "bin").symlink_to("/usr/bin")
    contents = Contents()
    contents.add_tree(tmp_path)
    assert contents.resolve(PurePosixPath("/bin/sh")) == PurePosixPath("/usr/bin/sh")
    assert PurePosixPath("/bin/sh") not in contents


def test_symlinks_in_a_circle_are_refused() -> None:
    """A path that never ends anywhere is an error, as in the kernel."""
    contents = Contents()
    contents.add(PurePosixPath("/a"), Symlink(target="b"))
    contents.add(PurePosixPath("/b"), Symlink(target="/a"))
    with pytest.raises(ImageError, match="^/a/x: too many levels of symbolic links in the image$"):
        contents.resolve(PurePosixPath("/a/x"))
