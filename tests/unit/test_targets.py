"""minit.supervisor.root.targets: where a path leads inside a root, whatever symlinks and whoever else is there."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.base.errors import LaunchError
from minit.supervisor.root.targets import open_existing, open_target, resolve_target
from tests.support.campaign import campaign

SWAPS = campaign(10_000)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root below a directory with something to find if it is left."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    yield tmp_path / "root"
    assert os.listdir(tmp_path / "outside") == []
    assert sorted(os.listdir(tmp_path)) == ["outside", "root"]


def resolve(root: Path, target: str) -> str:
    """Return where a target leads, as a path."""
    fd = os.open(root, os.O_PATH)
    before = os.listdir("/proc/self/fd")
    try:
        return "/" + "/".join(resolve_target(fd, target))
    finally:
        assert os.listdir("/proc/self/fd") == before
        os.close(fd)


def make(root: Path, target: str, *, is_directory: bool = True) -> str:
    """Return where the target that was opened is, below the root."""
    fd = os.open(root, os.O_PATH)
    try:
        found = open_target(fd, target, is_directory=is_directory)
        try:
            return os.readlink(f"/proc/self/fd/{found}").removeprefix(str(root))
        finally:
            os.close(found)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/data", "/data"),
        ("data", "/data"),
        ("//data/./x/", "/data/x"),
        ("/dir1/../../../foo", "/foo"),
        ("/nothing/../foo", "/foo"),
        ("/absolute", "/dir1"),
        ("/absolute/x", "/dir1/x"),
        ("/dir1/relative/x", "/dir2/x"),
        ("/dir1/from-root/x", "/dir2/x"),
        ("/to-missing/x", "/missing/place/x"),
        ("/to-missing/../x", "/missing/x"),
        ("/above", "/outside"),
        ("/up/x", "/x"),
        ("/chain/x", "/dir2/x"),
        ("/", "/"),
        ("/dir1/..", "/"),
    ],
)
def test_where_a_target_leads(root: Path, target: str, place: str) -> None:
    """Symlinks and ".." are followed inside the root; what is missing keeps its name and is made there."""
    for name in ("dir1", "dir2"):
        (root / name).mkdir()
    for link, text in (
        ("absolute", "/dir1"),
        ("dir1/relative", "../dir2"),
        ("dir1/from-root", "/dir2"),
        ("to-missing", "/missing/place"),
        ("above", "../../../outside"),
        ("up", "/dir1/../.."),
        ("chain", "absolute/relative"),
    ):
        (root / link).symlink_to(text)
    assert resolve(root, target) == place
    if place == "/":
        with pytest.raises(LaunchError, match="the root of the app"):
            make(root, target)
    else:
        assert make(root, target) == place
        assert (root / place[1:]).is_dir()


def test_what_is_skipped_by_dots_is_not_made(root: Path) -> None:
    """A missing name before ".." leaves no directory behind."""
    assert make(root, "/nothing/../foo") == "/foo"
    assert os.listdir(root) == ["foo"]


def test_made_directories_and_files(root: Path) -> None:
    """Directories have mode 0755, a file is empty with mode 0644, and what is there stays as it is."""
    mask = os.umask(0)
    try:
        make(root, "/a/b/file", is_directory=False)
        (root / "own").mkdir(mode=0o700)
        make(root, "/own/x")
    finally:
        os.umask(mask)
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in root.rglob("*")}
    assert modes == {"a": "drwxr-xr-x", "b": "drwxr-xr-x", "file": "-rw-r--r--", "own": "drwx------", "x": "drwxr-xr-x"}
    (root / "a/b/file").write_text("kept")
    make(root, "/a/b/file", is_directory=False)
    assert (root / "a/b/file").read_text() == "kept"


def test_a_directory_and_a_file_do_not_fit(root: Path) -> None:
    """The error says which is which."""
    (root / "file").touch()
    (root / "dir").mkdir()
    with pytest.raises(LaunchError, match="cannot mount a directory on a file"):
        make(root, "/file")
    with pytest.raises(LaunchError, match="cannot mount a file on a directory"):
        make(root, "/dir", is_directory=False)


def test_a_file_on_the_way(root: Path) -> None:
    """Nothing can lie below a file."""
    (root / "file").touch()
    with pytest.raises(NotADirectoryError):
        make(root, "/file/x")


@pytest.mark.parametrize(("count", "fails"), [(255, False), (256, True)])
def test_how_many_symlinks_are_followed(root: Path, count: int, fails: bool) -> None:
    """255, more than the kernel would, and not one more."""
    for number in range(count):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    if fails:
        with pytest.raises(OSError) as caught:  # noqa: PT011 # the errno is what it is about
            resolve(root, "/l0")
        assert caught.value.errno == errno.ELOOP
    else:
        assert resolve(root, "/l0") == f"/l{count}"


def test_a_circle_of_symlinks(root: Path) -> None:
    """It ends with an error, and with no descriptor left open."""
    (root / "a").symlink_to("b/x")
    (root / "b").symlink_to("/a/y")
    with pytest.raises(OSError) as caught:  # noqa: PT011 # the errno is what it is about
        resolve(root, "/a")
    assert caught.value.errno == errno.ELOOP


def test_a_name_that_is_too_long(root: Path) -> None:
    """The kernel's own limit is the error."""
    with pytest.raises(OSError, match="File name too long"):
        resolve(root, f"/{'x' * 256}/y")


@pytest.mark.parametrize(("target", "there"), [("/link", True), ("/dangling", False), ("/none", False), ("/", True)])
def test_what_is_there_already(root: Path, target: str, there: bool) -> None:
    """Only what exists is opened, symlinks followed; nothing is made."""
    (root / "file").touch()
    (root / "link").symlink_to("/file")
    (root / "dangling").symlink_to("/none")
    fd = os.open(root, os.O_PATH)
    found = open_existing(fd, target)
    assert (found is not None) is there
    os.close(fd)
    if found is not None:
        os.close(found)
    assert sorted(os.listdir(root)) == ["dangling", "file", "link"]


# A tree of few names, so that links meet each other.

NAMES = ("a", "b", "c")
PARTS = st.lists(st.sampled_from([*NAMES, "..", ".", ""]), max_size=5)
PATHS = st.tuples(st.sampled_from(["", "/"]), PARTS).map(lambda parts: parts[0] + "/".join(parts[1]))
TREES = st.dictionaries(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), st.none() | PATHS.filter(bool), max_size=8
)


def model(tree: dict[tuple[str, ...], str | None], target: str) -> tuple[str, ...] | None:
    """Return where a target leads in a tree of directories (None) and links, None if it never ends."""
    done: tuple[str, ...] = ()
    pending = target.split("/")
    for _ in range(10_000):
        if not pending:
            return done
        name, *pending = pending
        if name == "..":
            done = done[:-1]
        elif name not in ("", "."):
            text = tree.get((*done, name))
            if text is None:
                done = (*done, name)
            else:
                pending = text.split("/") + pending
                done = () if text.startswith("/") else done
    return None


@settings(deadline=None)
@given(TREES, PATHS)
def test_any_tree_is_walked_as_the_model_says(entries: dict[tuple[str, ...], str | None], target: str) -> None:
    """Any links lead to the same place as in a model that cannot leave its root."""
    tree: dict[tuple[str, ...], str | None] = {}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "outer/root")
        root.mkdir(parents=True)
        for names, text in sorted(entries.items(), key=lambda item: len(item[0])):
            parents = [names[:depth] for depth in range(1, len(names))]
            if any(tree.get(parent) is not None for parent in parents):
                continue
            tree.update(dict.fromkeys(parents))
            path = root.joinpath(*names)
            path.parent.mkdir(parents=True, exist_ok=True)
            tree[names] = text
            path.mkdir() if text is None else path.symlink_to(text)
        expected = model(tree, target)
        if expected is None:
            with pytest.raises(OSError):  # noqa: PT011 # only ELOOP is possible
                resolve(root, target)
        else:
            assert resolve(root, target) == "/" + "/".join(expected)
            if expected:
                assert make(root, target) == "/" + "/".join(expected)
        assert os.listdir(Path(directory, "outer")) == ["root"]
        assert os.listdir(directory) == ["outer"]


# Somebody who changes the tree while it is walked.


@contextmanager
def attacking(step: Callable[[], object]) -> Iterator[None]:
    """Repeat `step` in another process all the time."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                step()
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the attacker had an error"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def exchange(first: Path, second: Path) -> None:
    """Let two names change places at once, renameat2(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(first), -100, os.fsencode(second), 2) < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.parametrize("text", ["../../outside", "OUTSIDE", "/../../outside"])
def test_a_directory_exchanged_for_a_link(root: Path, text: str) -> None:
    """Exchanging names of the way leads nobody out of the root: everything that is opened and made is inside."""
    (root / "shared/dir").mkdir(parents=True)
    (root / "shared/link").symlink_to(text.replace("OUTSIDE", str(root.parent / "outside")))
    fd = os.open(root, os.O_PATH)
    targets = ("/shared/dir/../dir/new", "/shared/dir", "/shared/link/../dir/file")
    with attacking(lambda: exchange(root / "shared/dir", root / "shared/link")):
        for number in range(SWAPS):
            try:
                found = open_target(fd, targets[number % 3], is_directory=bool(number % 2))
            except (LaunchError, OSError):
                continue
            assert os.readlink(f"/proc/self/fd/{found}").startswith(f"{root}/")
            assert not stat.S_ISLNK(os.fstat(found).st_mode)
            os.close(found)
    os.close(fd)


def test_a_directory_moved_out_of_the_root(root: Path) -> None:
    """ ".." of a directory that somebody moved elsewhere still leads back to where the walk came from."""
    away = root.parent / "outside"
    (root / "shared/dir").mkdir(parents=True)

    def move() -> None:
        os.rename(root / "shared/dir", away / "dir")
        os.rename(away / "dir", root / "shared/dir")

    fd = os.open(root, os.O_PATH)
    with attacking(move):
        for _ in range(SWAPS):
            assert resolve_target(fd, "/shared/dir/../../../x") == ("x",)
    os.close(fd)
    for name in os.listdir(away):
        (away / name).rmdir()
