"""Layers that images share: on the disk, in trees, when they are fetched, and until the last image is gone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from minit.base.errors import ImageError, StoreError
from minit.base.progress import silent
from minit.stage0.files.locks import directory_lock
from minit.stage0.garbage.survey import survey
from minit.stage0.images import layerstore, untar
from minit.stage0.images.extract import export_image, extract_image
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from minit.stage0.images.treestore import TreeStore
from tests import tars
from tests.support.effects import killed_child
from tests.support.layers import Layout, archive, config_document, docker_files, gzipped, layer, sha256, whiteout
from tests.support.skopeostandin import SkopeoStandIn
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="keeps the owners of files, which needs root")

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
CONTENT = os.urandom(1 << 20)
CAPABILITIES = bytes.fromhex("0100000200040000000000000000000000000000")
BASE = layer(
    tars.directory("bin", 0o755),
    tars.file("bin/tool", CONTENT, mode=0o4711, uid=3, gid=4, mtime=77),
    tars.hard_link("bin/link", "bin/tool"),
    tars.file("empty"),
    tars.file("gone", b"x" * 1000),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


def write_layout(path: Path, *names: str) -> Path:
    """Write a layout with an image of each name, which has a layer of its own on the base."""
    layout = Layout()
    for name in names:
        own = layer(tars.file(f"own-{name}", name.encode()), whiteout("gone"), tars.hard_link("again", "bin/tool"))
        layout.add(BASE, own, tag=name, architecture=MACHINE, compress=gzipped, suffix="+gzip")
    return layout.write_directory(path)


def fetch(store: Store, layout: Path, name: str) -> StoredImage:
    """Import an image of a layout."""
    return resolve_image(store, f"oci:{layout}:{name}", silent, PullPolicy.UPDATE)


def used_bytes(path: Path) -> int:
    """The bytes of regular files below a directory, each file counted once however many names it has."""
    statuses = [file.lstat() for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum({status.st_ino: status.st_size for status in statuses}.values())


def layers_of(store: Store) -> list[Path]:
    """The directories of the store's layers."""
    return sorted((store.data / "minit/cas/layer").glob("*"))


def left_in_scratch(store: Store) -> list[Path]:
    """What is half done in the store."""
    return list((store.data / "minit/cas").glob("tmp/*"))


def facts(root: Path) -> dict[str, object]:
    """The contents of a tree, without the number of links, which layers add to."""
    found: dict[str, object] = {}
    for path in sorted(set(root.rglob("*")) - {root / "dev"}):  # no entry says how that one looks
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        attributes = [(name, os.getxattr(path, name)) for name in os.listxattr(path)] if path.is_file() else []
        times = (status.st_mtime_ns, status.st_mode, status.st_uid, status.st_gid)
        found[str(path.relative_to(root))] = (*times, content, attributes)
    return found


def test_images_of_one_base_take_its_room_once(store: Store, tmp_path: Path) -> None:
    """Five images of a base take what one takes, unpacked and packed, and their own; trees have the same files."""
    names = ["a", "b", "c", "d", "e"]
    layout, trees = write_layout(tmp_path / "box", *names), TreeStore(store.data, store)
    images = [fetch(store, layout, name) for name in names]
    roots = [trees.path(trees.render(image.id)) / "rootfs" for image in images]
    assert len({image.id for image in images}) == 5 and len(layers_of(store)) == 6
    assert used_bytes(store.data) < 2 * len(CONTENT) + 100_000  # of bytes that no compression makes less
    inodes = {(root / name).stat().st_ino for root in roots for name in ("bin/tool", "bin/link", "again")}
    assert len(inodes) == 1
    for image, root, name in zip(images, roots, names, strict=True):
        assert (root / f"own-{name}").read_text() == name and not (root / "gone").exists()
        trees.verify(trees.tree_id_of(image.id))
        store.verify(image.id)
    status = (roots[0] / "bin/tool").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_mtime) == (0o4711, 3, 4, 77)
    assert oct(layers_of(store)[0].parent.stat().st_mode)[-3:] == "700"
    found = survey(store.data, store, trees, images[0], (), lambda text: None)
    assert [len(kind) for kind in (found.images, found.layers, found.trees)] == [5, 6, 5]
    assert sum(layer.is_needed for layer in found.layers) == 2
    total = sum(item.size_bytes for kind in (found.images, found.layers, found.trees) for item in kind)
    assert 2 * len(CONTENT) < total < 3 * len(CONTENT)


def test_layers_stay_until_their_last_image_is_gone(store: Store, tmp_path: Path) -> None:
    """Removing an image removes the layers that no other has, unless somebody keeps layers; trees stay whole."""
    layout, trees = write_layout(tmp_path / "box", "a", "b"), TreeStore(store.data, store)
    first, second = fetch(store, layout, "a"), fetch(store, layout, "b")
    root = trees.path(trees.render(second.id)) / "rootfs"
    store.remove(first.id)
    assert len(layers_of(store)) == 2
    store.verify(second.id)
    with directory_lock(store.data / "minit/cas/layer", exclusive=False):
        store.remove(second.id)
        assert len(layers_of(store)) == 2
    store.collect_leftovers()
    assert layers_of(store) == [] and (root / "bin/tool").read_bytes() == CONTENT
    assert [path for path in (store.data / "minit").rglob("recipe/**/*") if path.is_file()] == []


def test_a_tree_and_a_copy_have_the_same_files(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of links is what a pod without overlay gets as copies, and what the exported ACI unpacks to."""
    upper = layer(
        tars.sparse("1.0", "holes", 1 << 20, [(0, 512), (1 << 19, 1)], b"a" * 512 + b"b"),
        tars.pax({"SCHILY.xattr.security.capability": CAPABILITIES, "SCHILY.xattr.user.x": b"y"}),
        tars.file("capable", b"c"),
        tars.symlink("dir", "bin"),
        tars.file("dir/through", b"t"),
    )
    layout = Layout()
    layout.add(BASE, upper, architecture=MACHINE)
    image = resolve_image(store, f"oci:{layout.write_directory(tmp_path / 'box')}", silent)
    trees = TreeStore(store.data, store)
    expected = facts(trees.path(trees.render(image.id)) / "rootfs")
    assert "bin/through" in expected and "holes" in expected
    extract_image(store, image.id, tmp_path / "copy")
    assert facts(tmp_path / "copy/rootfs") == expected
    assert (tmp_path / "copy/rootfs/bin/tool").stat().st_nlink == 2
    export_image(store, image.id, tmp_path / "x.aci", overwrite=False)
    with Store(tmp_path / "other") as other:
        again = other.import_file(tmp_path / "x.aci")
        assert again.id == image.id
        extract_image(other, again.id, tmp_path / "exported")
    assert facts(tmp_path / "exported/rootfs") == expected
    # Where nothing can be linked files are copied.
    trees.remove(trees.tree_id_of(image.id))
    monkeypatch.setattr(untar, "_link", _no_link)
    linked = trees.path(trees.render(image.id)) / "rootfs"
    assert facts(linked) == expected and (linked / "capable").stat().st_nlink == 1


def _no_link(*_: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.parametrize("together", [1, 2, 5, 6])
def test_links_come_a_few_at_a_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """A tree is the same however many of its links are made before they get their names."""
    layout = Layout()
    names = [f"file{number}" for number in range(5)]
    layout.add(layer(*(tars.file(name, name.encode()) for name in names)), architecture=MACHINE)
    image = resolve_image(store, f"oci:{layout.write_directory(tmp_path / 'box')}", silent)
    monkeypatch.setattr(untar, "_TOGETHER", together)
    trees = TreeStore(store.data, store)
    tree = trees.path(trees.render(image.id))
    assert {path.name: path.read_text() for path in tree.glob("rootfs/file*")} == {name: name for name in names}
    assert sorted(os.listdir(tree)) == ["hash", "image", "manifest", "minit-hash", "rendered", "rootfs"]


def _killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("link", "message"), [(_killed, "was killed; try again"), (_no_room, "no space left on device")]
)
def test_links_that_are_not_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[..., None], message: str
) -> None:
    """When no links come there is one message, and no tree."""
    layout = write_layout(tmp_path / "box", "a")
    image, trees = fetch(store, layout, "a"), TreeStore(store.data, store)
    monkeypatch.setattr(untar, "_link", link)
    with pytest.raises(StoreError, match=message):
        trees.render(image.id)
    assert trees.ids() == [] and os.listdir(store.data / "cas/tmp") == []


def test_a_changed_layer_is_noticed_and_replaced(store: Store, tmp_path: Path) -> None:
    """A file of a layer that was changed since fails what needs it, and the next import brings the layer anew."""
    layout, trees = write_layout(tmp_path / "box", "a", "b"), TreeStore(store.data, store)
    with Store(store.data) as other:
        image = fetch(other, layout, "a")
    [file] = [path for path in (store.data / "minit/cas/layer").rglob("files/*") if path.stat().st_size == len(CONTENT)]
    file.write_bytes(b"!" + CONTENT[1:])
    for use in (
        lambda: store.verify(image.id),
        lambda: trees.render(image.id),
        lambda: extract_image(store, image.id, tmp_path / "copy"),
    ):
        with pytest.raises((ImageError, StoreError), match="damaged"):
            use()
    assert fetch(store, layout, "b").id != image.id
    store.verify(image.id)
    shutil.rmtree(file.parent.parent)
    with pytest.raises(ImageError, match="is gone"):
        store.verify(image.id)
    assert fetch(store, layout, "a").id == image.id
    store.verify(image.id)


def test_what_was_just_unpacked_is_trusted(store: Store, tmp_path: Path) -> None:
    """Whoever imports an image and renders it reads its files for its ID and for the tree's hash, and no third time."""
    layout, trees = write_layout(tmp_path / "box", "a"), TreeStore(store.data, store)
    image = fetch(store, layout, "a")
    [file] = [path for path in (store.data / "minit/cas/layer").rglob("files/*") if path.stat().st_size == len(CONTENT)]
    file.write_bytes(b"!" + CONTENT[1:])
    tree = trees.render(image.id)
    trees.verify(tree)
    with pytest.raises(StoreError, match="damaged"):
        store.verify(image.id)


@pytest.mark.parametrize("small_bytes", [0, layerstore.SMALL_BYTES])
def test_a_killed_import_leaves_whole_layers_or_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    """Wherever an import or a process of it is killed, the next one works, and collecting leaves what images have."""
    monkeypatch.setattr(layerstore, "SMALL_BYTES", small_bytes)
    layout = write_layout(tmp_path / "box", "a")
    step, was_killed = 0, True

    def collected() -> bool:
        store.collect_leftovers()
        return len(layers_of(store)) == (2 if store.list() else 0) and not left_in_scratch(store)

    while was_killed:
        step += 3
        was_killed = killed_child(partial(fetch_or_die, store, layout, "a"), step)
        # Those who unpack are killed a moment later, and hold the locks till then.
        wait_for(collected, "an empty store")
        image = fetch(store, layout, "a")
        store.verify(image.id)
        store.remove(image.id)
        assert layers_of(store) == []
    assert step > 10


def fetch_or_die(store: Store, layout: Path, name: str) -> None:
    """Import an image, and die as the process does that unpacks a layer, if that was killed."""
    try:
        fetch(store, layout, name)
    except StoreError as error:
        assert "was killed" in str(error) and left_in_scratch(store) == []
        os.kill(os.getpid(), signal.SIGKILL)


def test_several_processes_import_images_of_one_base(store: Store, tmp_path: Path) -> None:
    """Imports at the same moment all succeed, and leave each layer once."""
    names = ["a", "b", "c", "d"]
    layout = write_layout(tmp_path / "box", *names)
    pids = []
    for name in names:
        pid = os.fork()
        if pid == 0:
            try:
                with Store(store.data) as own:
                    fetch(own, layout, name)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0, 0]
    assert len(layers_of(store)) == 5
    for image in store.list():
        store.verify(image.id)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SkopeoStandIn:
    """Registries with an image "a" in one repository, which has a second image of the base there and in another one."""
    registry = SkopeoStandIn(tmp_path / "skopeo", monkeypatch)
    registry.put("own.test/box", one_image("a"))
    return registry


def one_image(name: str, own: bytes | None = None, *, without: bytes = b"") -> Layout:
    """Return a layout with an image on the base, of which a blob may be missing."""
    layout = Layout()
    own = layer(tars.file(f"own-{name}")) if own is None else own
    layout.add(BASE, own, tag=name, architecture=MACHINE, compress=gzipped, suffix="+gzip")
    layout.files = {path: data for path, data in layout.files.items() if data != without}
    return layout


def test_layers_of_a_repository_are_not_fetched_again(store: Store, registry: SkopeoStandIn) -> None:
    """A second image of a repository is fetched without the layer that the first one has brought."""
    resolve_image(store, "docker://own.test/box:a", silent)
    registry.put("own.test/box", one_image("b", without=gzipped(BASE)))
    image = resolve_image(store, "docker://own.test/box:b", silent)
    store.verify(image.id)


def test_another_repository_has_to_bring_its_layers(store: Store, registry: SkopeoStandIn) -> None:
    """An image of another repository that names a layer of the store gets nothing of it unless it brings the layer."""
    resolve_image(store, "docker://own.test/box:a", silent)
    for name in ("other.test/box", "own.test/box2"):
        registry.put(name, one_image("b", without=gzipped(BASE)))
        with pytest.raises((ImageError, StoreError), match="layer sha256:.* is missing"):
            resolve_image(store, f"docker://{name}:b", silent)
        registry.put(name, one_image("b"))
        store.verify(resolve_image(store, f"docker://{name}:b", silent).id)
    assert len(layers_of(store)) == 3


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
def test_another_store_has_to_bring_its_layers(store: Store, tmp_path: Path) -> None:
    """An image of a directory that lacks a layer of the store is refused."""
    layout = write_layout(tmp_path / "box", "a")
    command = ["skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}:a", f"dir:{tmp_path / 'a'}"]
    subprocess.run(command, check=True, timeout=90)
    resolve_image(store, f"dir:{tmp_path / 'a'}", silent)
    (tmp_path / "a" / json.loads((tmp_path / "a/manifest.json").read_bytes())["layers"][0]["digest"][7:]).unlink()
    with pytest.raises(StoreError, match="skopeo: "):
        resolve_image(store, f"dir:{tmp_path / 'a'}", silent)


OTHER = layer(tars.file("other"))


def lying(layers: Sequence[bytes], named: Sequence[bytes]) -> Layout:
    """Return a layout with layers, whose configuration names others."""
    layout = Layout()
    rootfs = {"type": "layers", "diff_ids": [sha256(data) for data in named]}
    layout.add(*layers, architecture=MACHINE, rootfs=rootfs, compress=gzipped, suffix="+gzip")
    return layout


@pytest.mark.parametrize("has_layer", [False, True])
def test_a_layer_by_hearsay(store: Store, tmp_path: Path, has_layer: bool) -> None:
    """An image that names a layer and brings another file is refused, whether or not the store has the layer."""
    if has_layer:
        fetch(store, write_layout(tmp_path / "box", "a"), "a")
    before = [image.id for image in store.list()]
    for number, (layers, named) in enumerate((([OTHER], [BASE]), ([BASE, OTHER], [BASE, BASE]))):
        layout = lying(layers, named)
        for policy in PullPolicy:
            path = layout.write_directory(tmp_path / f"lie{number}")
            with pytest.raises(ImageError, match="diff_id"):
                resolve_image(store, f"oci:{path}", silent, policy)
        documents = docker_files(*layers, config=config_document(named, architecture=MACHINE))
        (tmp_path / f"lie{number}.tar").write_bytes(archive(documents))
        with pytest.raises(ImageError, match="diff_id"):
            resolve_image(store, f"docker-archive:{tmp_path}/lie{number}.tar", silent)
    assert [image.id for image in store.list()] == before


def test_an_image_that_is_known_is_read_again(store: Store, tmp_path: Path) -> None:
    """A layout of which a layer was damaged since is refused, though the store has what came of it."""
    layout = write_layout(tmp_path / "box", "a")
    image = resolve_image(store, f"oci:{layout}:a", silent)
    assert resolve_image(store, f"oci:{layout}:a", silent).id == image.id
    blob = layout / "blobs" / sha256(gzipped(BASE)).replace(":", "/")
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    with pytest.raises(ImageError, match="damaged"):
        resolve_image(store, f"oci:{layout}:a", silent)


def test_a_layer_in_another_compression(store: Store, tmp_path: Path) -> None:
    """An image whose layer is in another file than that of the store is imported, and the store has the layer once."""
    first = fetch(store, write_layout(tmp_path / "box", "a"), "a")
    layout = Layout()
    layout.add(BASE, architecture=MACHINE)
    second = resolve_image(store, f"oci:{layout.write_directory(tmp_path / 'plain')}", silent)
    assert first.id != second.id and len(layers_of(store)) == 2
    store.verify(second.id)
