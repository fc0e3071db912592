"""The tree store: what a tree holds, who renders it, and that half of one is never taken for a whole."""

from __future__ import annotations

import hashlib
import os
import re
import select
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from minit.base.errors import ImageError, StoreError
from minit.linux import syscalls
from minit.stage0.files.durable import make_directory
from minit.stage0.files.locks import key_lock
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from tests import tars

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Trees:
    """A store and its tree store."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.store = Store(data)
        self.trees = TreeStore(data, self.store)

    def add(self, *entries: bytes, name: str = "example.com/app", **fields: object) -> StoredImage:
        """Import an image."""
        manifest = tars.manifest(name, **fields)  # type: ignore[arg-type]
        path = tars.write_image(self.data.parent / "x.aci", *entries, manifest_bytes=manifest)
        return self.store.import_file(path)

    def render(self, image: StoredImage) -> Path:
        """Render an image and return its tree."""
        return self.trees.path(self.trees.render(image.id))

    def scratch(self) -> list[Path]:
        """The files in the directories of work in progress."""
        return [path for tmp in ("cas/tmp", "minit/cas/tmp") for path in (self.data / tmp).glob("*")]


@pytest.fixture
def trees(tmp_path: Path) -> Iterator[Trees]:
    """An empty store with an empty tree store."""
    place = Trees(tmp_path / "data")
    yield place
    place.store.close()


def test_a_tree_has_the_files_rkt_expects(trees: Trees) -> None:
    """A tree holds manifest, rootfs, hash, rendered and image as rkt's, and minit's own hash, under any umask."""
    image = trees.add(tars.file("rootfs/x", b"hello", mode=0o640))
    before = os.umask(0o077)
    try:
        tree = trees.render(image)
    finally:
        os.umask(before)
    assert tree.name == "deps-sha512-" + hashlib.sha512(image.id.encode()).hexdigest()[:64]
    assert tree.name == trees.trees.tree_id_of(image.id)
    assert tree.parent == trees.data / "cas" / "tree"
    assert sorted(os.listdir(tree)) == ["hash", "image", "manifest", "minit-hash", "rendered", "rootfs"]
    assert (tree / "manifest").read_bytes() == image.manifest_bytes
    assert (tree / "image").read_text() == image.id
    assert (tree / "rendered").read_bytes() == b""
    assert re.fullmatch(r"sha512-[0-9a-f]{64}", (tree / "hash").read_text())
    assert (tree / "rootfs/x").read_bytes() == b"hello"
    paths = tree.parent, tree, tree / "hash", tree / "rootfs/x"
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o755, 0o755, 0o644, 0o640]
    assert trees.scratch() == []


def test_the_size_of_a_rendered_image_counts_its_tree(trees: Trees) -> None:
    """An image's size is its blob, and its tree while there is one."""
    image = trees.add(tars.file("rootfs/x", bytes(5000)))
    tree = trees.render(image)
    assert trees.store.get(image.id).size_bytes == image.size_bytes + 5000 + len(image.manifest_bytes)
    trees.trees.remove(tree.name)
    assert trees.store.get(image.id).size_bytes == image.size_bytes


def test_a_rendered_tree_is_used_again(trees: Trees) -> None:
    """Rendering twice does not touch the tree, even if the image's blob is gone."""
    image = trees.add(tars.file("rootfs/x"))
    tree = trees.render(image)
    inode = tree.stat().st_ino
    trees.store.blob_path(image.id).write_bytes(b"damaged")
    assert trees.render(image).stat().st_ino == inode


def test_dependencies_and_whitelists(trees: Trees) -> None:
    """A, C, D, B in this order make the tree of A, each narrowed by the whitelists above and its own."""

    def brings(image: str, *names: str) -> list[bytes]:
        return [tars.file(f"rootfs/{name}", image.encode()) for name in names]

    trees.add(*brings("d", "a", "b", "c", "d", "shared"), name="d")
    trees.add(*brings("b", "a", "b", "c", "d", "shared", "only-b"), name="b")
    below = [{"imageName": "d"}]
    trees.add(*brings("c", "c", "unlisted"), name="c", dependencies=below, pathWhitelist=["/c", "/d"])
    image = trees.add(*brings("a", "a"), name="a", dependencies=[{"imageName": "b"}, {"imageName": "c"}])
    tree = trees.render(image)
    contents = {path.name: path.read_text() for path in (tree / "rootfs").iterdir()}
    assert contents == {"a": "a", "c": "c", "d": "d", "b": "b", "shared": "b", "only-b": "b"}
    assert (tree / "image").read_text() == image.id
    keys = [trees.store.find(name).id for name in "acdb"]
    assert tree.name == "deps-sha512-" + hashlib.sha512(",".join(keys).encode()).hexdigest()[:64]


def test_a_missing_dependency_is_named(trees: Trees) -> None:
    """An image whose dependency is not in the store is refused before anything is rendered."""
    dependency = {"imageName": "example.com/lib", "labels": [{"name": "os", "value": "linux"}]}
    image = trees.add(name="a", dependencies=[dependency])
    with pytest.raises(ImageError, match="a depends on example.com/lib,os=linux, which is not in the store"):
        trees.render(image)


def test_a_damaged_blob_is_not_rendered(trees: Trees) -> None:
    """A blob that changed since its import is noticed, and no tree appears."""
    image = trees.add(tars.file("rootfs/x", b"good"))
    blob = trees.store.blob_path(image.id)
    blob.write_bytes(blob.read_bytes().replace(b"good", b"evil"))
    with pytest.raises(ImageError, match="stored blob is damaged"):
        trees.render(image)
    assert os.listdir(trees.data / "cas" / "tree") == [] and trees.scratch() == []


def test_an_unrendered_tree_is_rendered_anew(trees: Trees) -> None:
    """A tree that a dead program left without its marker is replaced as a whole."""
    image = trees.add(tars.file("rootfs/x"))
    half = trees.trees.path(trees.trees.tree_id_of(image.id))
    (half / "rootfs" / "stale").mkdir(parents=True)
    assert not trees.trees.is_rendered(half.name)
    trees.render(image)
    assert os.listdir(half / "rootfs") == ["x"] and trees.trees.is_rendered(half.name)


def test_processes_render_a_tree_once(trees: Trees) -> None:
    """Of several processes that want one tree at once, one renders it and the others use it."""
    image = trees.add(tars.file("rootfs/x", os.urandom(8 << 20)))
    told, tell = os.pipe()
    pids = []
    reports: list[object] = []  # each child's own
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                with Store(trees.data) as store:
                    TreeStore(trees.data, store).render(image.id, lambda *report: reports.append(report))
                os.write(tell, b"r" if reports else b"u")
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0, 0]
    assert sorted(os.read(told, 10)) == sorted(b"ruuu")
    os.close(told)
    os.close(tell)
    trees.trees.verify(trees.trees.tree_id_of(image.id))


def test_a_killed_renderer_leaves_nothing_rendered(trees: Trees) -> None:
    """Killed at any progress, a renderer leaves no tree; the next one cleans up and renders."""
    image = trees.add(*(tars.file(f"rootfs/{number}", bytes(4 << 20)) for number in range(8)))
    told, tell = os.pipe()
    reports: list[object] = []  # each child's own
    for step in (1, 4, 8):
        pid = os.fork()
        if pid == 0:

            def die(*report: object, step: int = step) -> None:
                reports.append(report)
                if len(reports) == step:
                    os.write(tell, Path(f"/proc/self/task/{os.getpid()}/children").read_bytes())
                    os.kill(os.getpid(), signal.SIGKILL)

            with Store(trees.data) as store:
                TreeStore(trees.data, store).render(image.id, die)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        wait_until_ended(int(os.read(told, 64)))
        assert os.listdir(trees.data / "cas" / "tree") == []
        assert len(trees.scratch()) == 1
    os.close(told)
    os.close(tell)
    tree = trees.render(image)
    assert len(os.listdir(tree / "rootfs")) == 8 and trees.scratch() == []


def wait_until_ended(pid: int) -> None:
    """Return once a process that is not our child has ended."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        select.select([fd], [], [], 90)
        os.close(fd)


def test_rendering_waits_for_who_renders(trees: Trees) -> None:
    """A renderer takes rkt's own lock of the tree, so rkt and minit do not render it at once."""
    image = trees.add(tars.file("rootfs/x"))
    tree_id = trees.trees.tree_id_of(image.id)
    held: list[bool] = []

    def look(step: str, done: int, total: int | None) -> None:
        try:
            with key_lock(trees.data / "cas" / "treestorelocks", tree_id, exclusive=False, blocking=False):
                held.append(False)
        except BlockingIOError:
            held.append(True)

    trees.trees.render(image.id, look)
    assert held == [True]


def test_changed_trees_are_noticed(trees: Trees) -> None:
    """A changed byte, mode, name, owner, attribute or manifest shows when a tree is verified; times do not count."""
    image = trees.add(
        tars.file("rootfs/x", b"hello"),
        tars.directory("rootfs/d"),
        tars.symlink("rootfs/l", "x"),
        tars.header("rootfs/null", b"3", device=(1, 3)),
    )
    tree = trees.render(image)
    root = tree / "rootfs"
    os.utime(root / "x", (1, 1))
    trees.trees.verify(tree.name)

    def change_link() -> None:
        os.unlink(root / "l")
        os.symlink("y", root / "l")

    for change in (
        lambda: (root / "x").write_bytes(b"jello"),
        lambda: os.chmod(root / "d", 0o700),
        lambda: os.chown(root / "x", 5, 0),
        lambda: (root / "__pycache__").mkdir(),
        lambda: os.setxattr(root / "x", "user.x", b"1"),
        lambda: (tree / "manifest").write_bytes(b"{}"),
        lambda: (tree / "minit-hash").write_bytes(b""),
        lambda: (tree / "more").write_bytes(b""),
        change_link,
    ):
        before = (tree / "hash").read_text()
        change()
        with pytest.raises(StoreError, match="was changed"):
            trees.trees.verify(tree.name)
        trees.trees.remove(tree.name)
        trees.render(image)
        assert (tree / "hash").read_text() == before


def test_removed_trees_are_gone(trees: Trees) -> None:
    """A removed tree leaves nothing, its image stays, and removing it again is no error."""
    image = trees.add(tars.file("rootfs/d/x", mode=0), tars.directory("rootfs/d", 0))
    tree = trees.render(image)
    trees.trees.remove(tree.name)
    trees.trees.remove(tree.name)
    assert not tree.exists() and not trees.trees.is_rendered(tree.name)
    assert trees.store.find(image.id) == image
    assert trees.render(image) == tree


def test_a_packaged_hosts_group_bits_stay_out_of_trees(trees: Trees) -> None:
    """Trees and their files do not inherit the set-group-ID bit of rkt's directories."""
    for path in (trees.data / "cas", trees.data / "cas" / "tree", trees.data / "cas" / "tmp"):
        make_directory(path, 0o755)
        os.chown(path, 0, 4321)
        os.chmod(path, 0o2750)
    tree = trees.render(trees.add(tars.file("rootfs/implied/x")))
    for path in (tree, tree / "rootfs", tree / "rootfs/implied"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert (tree / "rootfs/implied").stat().st_gid == (tree / "rootfs/implied/x").stat().st_gid == 0


MALFORMED = ["", "..", "deps-sha512-", "deps-sha512-" + "0" * 63 + "/", "../../etc", "sha512-" + "0" * 64]


@pytest.mark.parametrize("bad", MALFORMED)
def test_malformed_tree_ids_never_become_paths(trees: Trees, bad: str) -> None:
    """A tree ID, which may come from a pod's files, is checked before it becomes a path."""
    with pytest.raises(StoreError, match="is no tree ID"):
        trees.trees.path(bad)


def test_a_full_disk_leaves_no_tree(tmp_path: Path) -> None:
    """When the disk fills while rendering, one line says what to do, and neither tree nor leftovers stay."""
    disk = tmp_path / "disk"
    disk.mkdir()
    syscalls.mount("tmpfs", str(disk), "tmpfs", 0, "size=2m")
    try:
        place = Trees(disk / "data")
        image = place.add(tars.file("rootfs/x", b"x" * (900 << 10)))
        os.unlink(disk / "x.aci")
        (disk / "ballast").write_bytes(bytes(700 << 10))
        with pytest.raises(StoreError, match=rf"no space left on device: free some on the file system at {disk}, or"):
            place.render(image)
        assert os.listdir(disk / "data/cas/tree") == [] and place.scratch() == []
        os.unlink(disk / "ballast")
        assert (place.render(image) / "rootfs/x").stat().st_size == 900 << 10
        place.store.close()
    finally:
        syscalls.umount2(str(disk), syscalls.MNT_DETACH)
