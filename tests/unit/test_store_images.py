"""The image store: importing, finding, listing and removing images."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from minit.base.errors import ImageError, MinitError, StoreError
from minit.base.processors import processor_named
from minit.manifest.image import Dependency
from minit.stage0.files.locks import key_lock
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from tests import tars
from tests.support.effects import killed_child


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


def add(store: Store, tmp_path: Path, *, time: int = 0, **manifest: object) -> StoredImage:
    """Import an image with this manifest; `time` orders the imports."""
    manifest_bytes = tars.manifest(**manifest)  # type: ignore[arg-type]
    path = tars.write_image(tmp_path / "x.aci", manifest_bytes=manifest_bytes)
    image = store.import_file(path)
    file = store.blob_path(image.id).parents[3] / "imageManifest" / "sha512" / image.id[7:9] / image.id
    os.utime(file, ns=(time, time))
    return store.get(image.id)


def add_as_rkt(store: Store, data: bytes, manifest: bytes) -> str:
    """Put an image where rkt would, without any check, and return its ID."""
    key = "sha512-" + hashlib.sha512(data).hexdigest()[:64]
    for kind, content in (("blob", data), ("imageManifest", manifest)):
        path = store.data / "cas" / kind / "sha512" / key[7:9] / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return key


def test_an_import_is_stored_uncompressed_under_its_id(store: Store, tmp_path: Path) -> None:
    """Blob and manifest lie in minit's own store, in rkt's layout, with modes that ignore the umask."""
    data = tars.image(tars.file("rootfs/x", b"hello"))
    (tmp_path / "x.aci").write_bytes(gzip.compress(data))
    before = os.umask(0o077)
    try:
        image = store.import_file(tmp_path / "x.aci")
    finally:
        os.umask(before)
    assert image.id == "sha512-" + hashlib.sha512(data).hexdigest()[:64]
    assert (image.name, image.version, image.size_bytes) == ("example.com/app", "1", len(data))
    blob = tmp_path / "data/minit/cas/blob/sha512" / image.id[7:9] / image.id
    assert store.blob_path(image.id) == blob
    assert blob.read_bytes() == data
    assert stat.S_IMODE(blob.stat().st_mode) == 0o640
    assert stat.S_IMODE(blob.parent.stat().st_mode) == 0o770
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o770
    assert not (tmp_path / "data/cas/blob").exists()
    assert list((tmp_path / "data/minit/cas/tmp").iterdir()) == []


def test_importing_again_renews_the_import_time(store: Store, tmp_path: Path) -> None:
    """The same image imported twice is one image, imported last."""
    first = add(store, tmp_path, name="a", time=5)
    second = store.import_file(tmp_path / "x.aci")
    assert first.id == second.id and second.import_time_ns > first.import_time_ns
    assert len(store.list()) == 1


def test_importing_again_repairs_a_damaged_blob(store: Store, tmp_path: Path) -> None:
    """An import replaces what is stored under the same ID."""
    image = add(store, tmp_path, name="a")
    store.blob_path(image.id).write_bytes(b"damaged")
    store.import_file(tmp_path / "x.aci")
    assert store.blob_path(image.id).read_bytes() == (tmp_path / "x.aci").read_bytes()


def test_two_processes_import_the_same_file(tmp_path: Path) -> None:
    """Imports at the same moment both succeed and leave one whole image."""
    path = tars.write_image(tmp_path / "x.aci", tars.file("rootfs/x", os.urandom(3 << 20)))
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                Store(tmp_path / "data").import_file(path)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0, 0]
    with Store(tmp_path / "data") as store:
        [image] = store.list()
        assert store.blob_path(image.id).read_bytes() == path.read_bytes()
    assert list((tmp_path / "data/minit/cas/tmp").iterdir()) == []


def test_orphaned_blobs_are_collected(store: Store, tmp_path: Path) -> None:
    """Remains of an import killed between blob and manifest are removed by the next import, unless in use."""
    image = add(store, tmp_path, name="a")
    orphan = store.blob_path(image.id)
    (store.data / "minit/cas/imageManifest/sha512" / image.id[7:9] / image.id).unlink()
    with key_lock(store.data / "cas" / "imagelocks", image.id, exclusive=False):
        add(store, tmp_path, name="b")
        assert orphan.exists()
    add(store, tmp_path, name="c")
    assert not orphan.exists()
    assert [found.name for found in store.list()] == ["b", "c"]


def test_a_killed_removal_leaves_nothing(store: Store, tmp_path: Path) -> None:
    """Anything it has not removed is removed by the next collection, wherever it was killed."""
    step = 0
    was_killed = True
    while was_killed:
        step += 1
        image = add(store, tmp_path, name="a")
        store.mark_used(image.id)
        store.record_tree_size(image.id, 1)
        was_killed = killed_child(partial(store.remove, image.id), step)
        store.collect_leftovers()
        left = {path.name for path in (store.data / "minit").rglob("*") if not path.is_dir()}
        assert left == ({image.id} if store.has(image.id) else set())
    assert step > 3


def test_imports_report_progress(store: Store, tmp_path: Path) -> None:
    """Progress is told in bytes of the file and reaches its size."""
    path = tars.write_image(tmp_path / "x.aci", tars.file("rootfs/x", os.urandom(3 << 20)))
    reports: list[tuple[str, int, int | None]] = []
    store.import_file(path, lambda *report: reports.append(report))
    size = path.stat().st_size
    assert len(reports) > 3 and reports[-1] == ("importing x.aci", size, size)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)


def test_a_bad_file_leaves_nothing(store: Store, tmp_path: Path) -> None:
    """A source that is no image, no file, or not there is refused in one line and leaves no trace."""
    (tmp_path / "html.aci").write_bytes(b"<html>" * 100)
    whole = gzip.compress(tars.image(tars.file("rootfs/x", os.urandom(1 << 20))))
    (tmp_path / "cut.aci").write_bytes(whole[:-9])
    for name in ("html.aci", "cut.aci"):
        with pytest.raises(ImageError, match=name):
            store.import_file(tmp_path / name)
    with pytest.raises(StoreError, match="^open image .*none.aci: no such file or directory$"):
        store.import_file(tmp_path / "none.aci")
    os.mkfifo(tmp_path / "fifo.aci")
    with pytest.raises(StoreError, match=f"^open image {tmp_path}: is a directory$"):
        store.import_file(tmp_path)
    for path in (tmp_path / "fifo.aci", Path("/dev/zero")):
        with pytest.raises(StoreError, match=f"^open image {path}: not a regular file$"):
            store.import_file(path)
    assert store.list() == []
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert files == []


def test_images_are_found_by_id(store: Store, tmp_path: Path) -> None:
    """A whole ID, a prefix with or without sha512-, and an ID longer than rkt keeps all find the image."""
    image = add(store, tmp_path, name="a")
    digits = image.id.removeprefix("sha512-")
    for reference in (image.id, image.id[:20], digits[:2], digits, f"sha512-{digits}{digits}"):
        assert store.find(reference) == image


def test_images_are_found_by_name(store: Store, tmp_path: Path) -> None:
    """A name means the last import; a name with a version the last import of that version."""
    old = add(store, tmp_path, name="example.com/a", version="1", time=1)
    new = add(store, tmp_path, name="example.com/a", version="2", time=2)
    plain = add(store, tmp_path, name="example.com/b", version=None, time=3)
    assert store.find("example.com/a") == new
    assert store.find("example.com/a:1") == old
    assert store.find("example.com/b") == plain and plain.version is None


@pytest.mark.parametrize("reference", ["sha512-00", "ffff", "", "a:b:c", "../../etc", "nope,os=linux"])
def test_what_is_not_there_is_said_with_what_to_do(store: Store, tmp_path: Path, reference: str) -> None:
    """An unknown image that no registry could have is named together with the command that imports one."""
    add(store, tmp_path, name="example.com/a")
    with pytest.raises(StoreError, match="is not in the store .*: import it with: minit fetch FILE$"):
        store.find(reference)


@pytest.mark.parametrize(
    ("reference", "nearest"),
    [
        ("nope", ""),
        ("ngnix", ', which has "nginx:1"'),
        ("nginx:2", ', which has "nginx:1"'),
        ("library/Ngimx:1", ', which has "nginx:1"'),
        ("exmple.com/a:9", ', which has "example.com/a:2"'),
        ("example.com/a:3", ', which has "example.com/a:2"'),
    ],
)
def test_what_is_like_a_missing_name_is_said(store: Store, tmp_path: Path, reference: str, nearest: str) -> None:
    """A missing name is told with the nearest names of the store and the command that fetches it."""
    add(store, tmp_path, name="example.com/a", version="2")
    add(store, tmp_path, name="registry-1.docker.io/library/nginx")
    with pytest.raises(StoreError) as caught:
        store.find(reference)
    assert str(caught.value) == (
        f'image "{reference}" is not in the store {store.data}{nearest}:'
        f" import it with: minit fetch docker://{reference}"
    )


@pytest.mark.parametrize(
    "reference",
    [
        *("nginx", "nginx:1", "library/nginx", "docker.io/nginx:1", "docker.io/library/nginx:1", "docker://nginx"),
        *("index.docker.io/library/nginx:1", "registry-1.docker.io/library/nginx:1", "docker:nginx:1"),
        *("registry-1.docker.io/library/nginx,version=1", "registry-1.docker.io/library/nginx:1,os=linux"),
    ],
)
def test_every_name_of_an_image_finds_it(store: Store, tmp_path: Path, reference: str) -> None:
    """An image of Docker's registry is found by all names that docker, rkt and registries have for it."""
    image = add(store, tmp_path, name="registry-1.docker.io/library/nginx")
    assert store.find(reference) == image


def test_the_same_name_elsewhere_is_another_image(store: Store, tmp_path: Path) -> None:
    """Another registry, port, path, tag, label or digest is not the image; `latest` goes before later imports."""
    add(store, tmp_path, name="registry-1.docker.io/library/nginx", version="latest", time=1)
    add(store, tmp_path, name="registry-1.docker.io/library/nginx", version="2", time=2)
    for reference in ("quay.io/nginx", "nginx:1", "me/nginx", f"nginx@sha256:{'0' * 64}", "nginx,os=plan9"):
        with pytest.raises(StoreError, match="is not in the store"):
            store.find(reference)
    assert store.find("nginx").version == "latest" and store.find("nginx:2").version == "2"
    local = add(store, tmp_path, name="localhost_5000/team/app", version="2")
    assert store.find("localhost:5000/Team/app:2") == store.find("localhost:5000/team/app") == local


def test_ambiguous_prefixes_list_the_candidates(store: Store, tmp_path: Path) -> None:
    """A prefix of several IDs is refused with all of them."""
    images = [add(store, tmp_path, name=f"n{number}") for number in range(300)]
    first_digits = [image.id[:9] for image in images]
    common = next(digits for digits in first_digits if first_digits.count(digits) > 1)
    with pytest.raises(StoreError, match="is ambiguous: ") as caught:
        store.find(common)
    for image in images:
        assert (image.id[:19] in str(caught.value)) == image.id.startswith(common)


def test_a_name_made_of_digits_cannot_stand_in_for_an_id(store: Store, tmp_path: Path) -> None:
    """An image named like another's ID does not take its place: a prefix is ambiguous, a whole ID never."""
    image = add(store, tmp_path, name="a")
    digits = image.id.removeprefix("sha512-")
    whole, prefix = add(store, tmp_path, name=digits), add(store, tmp_path, name=digits[:12])
    assert store.find(digits) == store.find(image.id[:19]) == image
    with pytest.raises(StoreError, match="ambiguous"):
        store.find(digits[:12])
    assert {whole.name, prefix.name} == {digits, digits[:12]}


def test_images_of_rkt_are_found_and_left_alone(store: Store, tmp_path: Path) -> None:
    """rkt's own images are listed and found, but not removed."""
    data = tars.image()
    key = add_as_rkt(store, data, tars.manifest("rkt.example/x"))
    assert store.find("rkt.example/x").id == store.find(key[:15]).id == key
    assert store.open_blob(key).read() == data
    with pytest.raises(StoreError, match=f"was fetched by rkt: remove it with: rkt image rm {key}"):
        store.remove(key)
    assert store.find(key).size_bytes == len(data)


def test_an_image_in_both_stores_is_one_image(store: Store, tmp_path: Path) -> None:
    """An image that rkt has and minit imported is listed once and removed from minit's store only."""
    image = add(store, tmp_path, name="a")
    add_as_rkt(store, (tmp_path / "x.aci").read_bytes(), tars.manifest("a"))
    assert [found.id for found in store.list()] == [image.id]
    store.remove(image.id)
    assert [found.id for found in store.list()] == [image.id]
    with pytest.raises(StoreError, match="fetched by rkt"):
        store.remove(image.id)


def test_lists_are_sorted_by_import(store: Store, tmp_path: Path) -> None:
    """The oldest import comes first."""
    for name, time in (("b", 2), ("c", 3), ("a", 1)):
        add(store, tmp_path, name=name, time=time)
    assert [image.name for image in store.list()] == ["a", "b", "c"]


def test_an_unreadable_image_does_not_hide_the_others(store: Store, tmp_path: Path) -> None:
    """A stored manifest that minit cannot read is reported, and no obstacle to the other images."""
    add(store, tmp_path, name="good")
    key = add_as_rkt(store, b"x", b"{}")
    errors: list[MinitError] = []
    assert [image.name for image in store.list(errors.append)] == ["good"]
    assert len(errors) == 1 and key in str(errors[0])
    with pytest.raises(MinitError, match=key):
        store.find(key)
    assert store.find("good").name == "good"


def test_removed_images_are_gone(store: Store, tmp_path: Path) -> None:
    """Nothing of a removed image stays in minit's store; removing it again says that it is not there."""
    image = add(store, tmp_path, name="a")
    store.record_tree_size(image.id, 1000)
    assert store.get(image.id).size_bytes == image.size_bytes + 1000
    store.remove(image.id)
    assert [path for path in (tmp_path / "data/minit").rglob("*") if path.is_file()] == []
    with pytest.raises(StoreError, match="not in the store"):
        store.remove(image.id)


def test_an_open_blob_survives_its_removal(store: Store, tmp_path: Path) -> None:
    """A reader of a blob reads it to its end."""
    image = add(store, tmp_path, name="a")
    with store.open_blob(image.id) as blob:
        store.remove(image.id)
        assert len(blob.read()) == image.size_bytes


def test_dependencies_are_resolved_by_id_or_by_labels(store: Store, tmp_path: Path) -> None:
    """An image ID decides alone; else name and all labels must match, and the last import for the processor wins."""
    amd64, arm64 = map(processor_named, ("amd64", "arm64"))
    old = add(store, tmp_path, name="a", version="1", time=1)
    new = add(store, tmp_path, name="a", version="2", time=2)
    assert store.find_dependency(Dependency(image_name="a"), amd64) == new
    assert store.find_dependency(Dependency(image_name="a", labels=(("version", "1"), ("os", "linux"))), amd64) == old
    assert store.find_dependency(Dependency(image_name="a", labels=(("arch", "i386"),)), amd64) is None
    assert store.find_dependency(Dependency(image_name="b"), amd64) is None
    assert store.find_dependency(Dependency(image_name="b", image_id=old.id + "0" * 64), amd64) == old
    assert store.find_dependency(Dependency(image_name="a", image_id="sha512-" + "0" * 64), amd64) is None
    assert store.find_dependency(Dependency(image_name="a"), arm64) == new
    labels = [{"name": "os", "value": "linux"}, {"name": "arch", "value": "aarch64"}]
    other = add(store, tmp_path, name="a", labels=labels, time=0)
    for processor, image in ((amd64, new), (arm64, other)):
        assert store.find_dependency(Dependency(image_name="a"), processor) == image
        assert store.find("a", processor) == image


def test_malformed_ids_never_become_paths(store: Store) -> None:
    """An ID is checked before it is looked for."""
    for bad in ("sha512-../../../etc/passwd", "sha512-" + "0" * 63, "", "sha512-" + "G" * 64):
        with pytest.raises(StoreError, match="is no image ID"):
            store.get(bad)


def test_an_open_store_holds_rkts_lock(tmp_path: Path) -> None:
    """While the store is open nobody can migrate it: cas is locked, shared, until it is closed."""
    fd = os.open(tmp_path, os.O_RDONLY)
    os.close(fd)
    with Store(tmp_path / "data"), Store(tmp_path / "data"):
        fd = os.open(tmp_path / "data" / "cas", os.O_RDONLY | os.O_DIRECTORY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_a_data_directory_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """A data directory below a file is refused in one line."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="open the image store in .*file/data: .*: not a directory"):
        Store(tmp_path / "file" / "data")
