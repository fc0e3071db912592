"""Images that leave the store: archives, layouts, registries."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.archives.imagenames import parse_image_name
from minit.base.errors import ImageError, StoreError
from minit.base.progress import silent
from minit.pods import images as service
from minit.pods.caller import Caller
from minit.pods.images import ImageFormat
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy
from tests import tars
from tests.ns.test_export import change, run
from tests.ns.test_full_disks import small_disk
from tests.support.layers import (
    Layout,
    archive,
    config_document,
    docker_files,
    gzipped,
    layer,
    opaque,
    sha256,
    whiteout,
)
from tests.support.podman import Podman, own_podman
from tests.support.registry import registry
from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="unpacks layers, which needs root")

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)

# What programs that write layers do in many ways, and no two in one.
ODD = layer(
    tars.directory("./etc/", 0o2755, uid=7),
    tars.file("./etc/a", b"a", mode=0o4711, uid=tars.base256(3_000_000, 8), mtime=tars.base256(-5, 12), magic=tars.GNU),
    tars.file("etc/big", b"b", size=tars.base256(1, 12), magic=tars.GNU),
    tars.sparse("1.0", "etc/s", 1 << 20, [(0, 512)], bytes(512)),
    tars.pax({"SCHILY.xattr.user.x": b"1", "mtime": b"1.123456789", "VENDOR.own": b"kept"}) + tars.file("etc/b", b"b"),
    tars.hard_link("etc/c", "/etc/a", mode=0o4711, uid=tars.base256(3_000_000, 8), magic=tars.GNU),
    tars.symlink("etc/l", "../../outside"),
    tars.header("etc/null", b"3"),
    tars.header("etc/fifo", b"6"),
    tars.pax({"comment": b"x"}, b"g") + whiteout("etc/gone"),
    opaque("var"),
)
CONFIG = {
    "Entrypoint": ["/bin/e"],
    "Cmd": ["c", "d"],
    "Env": ["PATH=/bin", "E=x=y"],
    "User": "u:g",
    "WorkingDir": "/etc",
    "Labels": {"l": "v"},
    "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
    "Volumes": {"/var/data": {}},
    "StopSignal": "SIGQUIT",
    "Healthcheck": {"Test": ["CMD", "/bin/true"], "Interval": 5_000_000_000},
}
HISTORY = [{"created_by": "one"}, {"created_by": "nothing", "empty_layer": True}, {"created_by": "two"}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


class Leaving:
    """Sends images of a store away, and keeps the notes."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.notes: list[str] = []
        self.caller = Caller(data=store.data, note=self.notes.append, insecure=frozenset({"http"}))

    def export(self, reference: str, kind: ImageFormat, name: str = "out") -> Path:
        """Write an image, in the place of an earlier one."""
        path = self.directory / name
        service.export_stored(self.caller, self.store, reference, kind, path, silent, overwrite=True)
        return path

    def push(self, reference: str, target: str | None) -> str:
        """Push an image; return the digest."""
        return service.push(self.caller, self.store, reference, target, silent, None)[1]


@pytest.fixture
def leaving(store: Store, tmp_path: Path) -> Leaving:
    """What sends images of that store away."""
    return Leaving(store, tmp_path)


def odd_layout(name: str = "quay.io/team/odd:1", *more: bytes) -> Layout:
    """An image of two layers, in gzip, with `more` entries in the lower layer."""
    lower = layer(tars.file("etc/gone", b"gone"), tars.file("var/old", b"old"), *more)
    layout = Layout()
    layout.add(
        *(lower, ODD), tag=name, config=CONFIG, architecture=MACHINE, history=HISTORY, compress=gzipped, suffix="+gzip"
    )
    return layout


def blobs(path: Path) -> dict[str, bytes]:
    """The blobs of an OCI layout or archive, by digest."""
    if path.is_dir():
        files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    else:
        with tarfile.open(path) as tar:
            files = {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}  # type: ignore[union-attr]
    assert {"oci-layout", "index.json"} <= files.keys()
    index = json.loads(files["index.json"])
    found = {name.removeprefix("blobs/").replace("/", ":"): data for name, data in files.items() if "blobs/" in name}
    assert all(sha256(data) == digest for digest, data in found.items())
    assert index["manifests"][0]["digest"] in found
    return found


@pytest.mark.parametrize("kind", [ImageFormat.OCI, ImageFormat.OCI_ARCHIVE])
def test_an_image_leaves_as_it_came(store: Store, leaving: Leaving, kind: ImageFormat) -> None:
    """Manifest, configuration and layers have the bytes of the import, and two exports are the same."""
    layout = odd_layout("quay.io/team/odd:1", tars.sparse("old", "t", 1 << 20, [(512, 512)], b"t" * 512))
    resolve_image(store, f"oci:{layout.write_directory(leaving.directory / 'in')}", silent)
    out = leaving.export("quay.io/team/odd:1", kind)
    expected = {
        name.removeprefix("blobs/").replace("/", ":"): data for name, data in layout.files.items() if "blobs/" in name
    }
    assert blobs(out) == expected and leaving.notes == []
    first = out.read_bytes() if out.is_file() else None
    again = leaving.export("quay.io/team/odd", kind, "again")
    assert blobs(again) == expected and (first is None or again.read_bytes() == first)
    image = resolve_image(store, f"{kind}:{out}", silent, PullPolicy.NEW)
    assert image.own_name == "quay.io/team/odd:1" and len(store.list()) == 1


def test_plain_layers_of_docker_leave_as_they_came(store: Store, leaving: Leaving) -> None:
    """Layers of `docker save` have their diff_ids, and the configuration its digest, in every format."""
    files = docker_files(ODD, tags=["odd:2"], config=config_document([ODD], CONFIG, history=HISTORY[:1]))
    (leaving.directory / "in.tar").write_bytes(archive(files))
    image = resolve_image(store, f"docker-archive:{leaving.directory / 'in.tar'}", silent)
    assert image.digests is not None
    found = blobs(leaving.export("odd:2", ImageFormat.OCI_ARCHIVE))
    assert found[sha256(ODD)] == ODD and image.digests.configuration in found
    with tarfile.open(leaving.export("odd:2", ImageFormat.DOCKER_ARCHIVE)) as tar:
        entry = json.load(tar.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        assert entry["RepoTags"] == ["docker.io/library/odd:2"]
        assert [tar.extractfile(name).read() for name in entry["Layers"]] == [ODD]  # type: ignore[union-attr]
        config = tar.extractfile(entry["Config"]).read()  # type: ignore[union-attr]
        assert sha256(config) == image.digests.configuration


def test_a_layer_compressed_in_two_ways(store: Store, leaving: Leaving) -> None:
    """A second image of the same layer, compressed otherwise, leaves with its own file."""
    first, second = odd_layout(), Layout()
    second.add(
        ODD,
        tag="quay.io/team/two:1",
        config=CONFIG,
        architecture=MACHINE,
        compress=lambda data: gzipped(data)[:9] + b"\1" + gzipped(data)[10:],
        suffix="+gzip",
    )
    for number, layout in enumerate((first, second)):
        resolve_image(store, f"oci:{layout.write_directory(leaving.directory / str(number))}", silent)
    for name, layout in (("odd", first), ("two", second)):
        found = blobs(leaving.export(f"quay.io/team/{name}:1", ImageFormat.OCI))
        assert {"blobs/" + digest.replace(":", "/") for digest in found} <= layout.files.keys()


def test_an_image_from_before_leaves_as_one_layer(store: Store, leaving: Leaving) -> None:
    """Without the bytes of layers all files are one layer, which is said; a new fetch brings the bytes."""
    layout = odd_layout().write_directory(leaving.directory / "in")
    image = resolve_image(store, f"oci:{layout}", silent)
    for path in (store.data / "minit/cas/layer").glob("*/packed"):
        shutil.rmtree(path)
    found = blobs(leaving.export(image.id, ImageFormat.OCI))
    assert len(found) == 3 and "was imported before layers were kept" in leaving.notes[0]
    configuration = next(json.loads(data) for data in found.values() if b'"diff_ids"' in data)
    assert configuration["config"] == CONFIG and len(configuration["rootfs"]["diff_ids"]) == 1
    assert [entry.get("empty_layer") for entry in configuration["history"]] == [True, True, True, None]
    leaving.notes.clear()
    resolve_image(store, f"oci:{layout}", silent, PullPolicy.UPDATE)
    assert len(blobs(leaving.export(image.id, ImageFormat.OCI))) == 4 and leaving.notes == []


def test_what_oci_has_no_words_for_is_said(store: Store, leaving: Leaving) -> None:
    """An ACI becomes one layer and a configuration, and the parts of its manifest that are lost are listed."""
    app = {
        "exec": ["/x", "y"],
        "user": "5",
        "group": "6",
        "environment": [{"name": "E", "value": "1"}],
        "mountPoints": [{"name": "d", "path": "/d", "readOnly": True}],
        "ports": [{"name": "p", "protocol": "tcp", "port": 80, "count": 2}],
        "isolators": [{"name": "os/linux/no-new-privileges", "value": True}],
    }
    path = tars.write_image(
        leaving.directory / "x.aci",
        tars.file("rootfs/f", b"f", uid=9),
        manifest_bytes=tars.manifest("example.com/x", app=app, annotations=[{"name": "homepage", "value": "h"}]),
    )
    store.import_file(path)
    found = blobs(leaving.export("example.com/x", ImageFormat.OCI))
    [told] = leaving.notes
    assert (
        "OCI has no words for isolator os/linux/no-new-privileges, read-only mount point d, annotation homepage" in told
    )
    config = next(json.loads(data) for data in found.values() if b'"diff_ids"' in data)["config"]
    assert config == {
        "User": "5:6",
        "ExposedPorts": {"80/tcp": {}, "81/tcp": {}},
        "Env": ["E=1"],
        "Cmd": ["/x", "y"],
        "Volumes": {"/d": {}},
    }


def test_a_failed_export_leaves_nothing(store: Store, leaving: Leaving) -> None:
    """A damaged layer is an error with the remedy, and no file is left, nor is one in the store."""
    resolve_image(store, f"oci:{odd_layout().write_directory(leaving.directory / 'in')}", silent)
    packed = max((store.data / "minit/cas/layer").glob("*/packed/*"), key=lambda path: path.stat().st_size)
    data = bytearray(packed.read_bytes())
    data[-5] ^= 1
    packed.write_bytes(data)
    before = sorted(leaving.directory.iterdir())
    for kind in (ImageFormat.OCI, ImageFormat.OCI_ARCHIVE, ImageFormat.DOCKER_ARCHIVE):
        with pytest.raises(ImageError, match="damaged"):
            leaving.export("quay.io/team/odd:1", kind)
        assert sorted(leaving.directory.iterdir()) == before
    assert list((store.data / "minit/cas/tmp").iterdir()) == []


needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")


@needs_skopeo
def test_a_fetched_image_is_pushed_as_it_came(store: Store, leaving: Leaving) -> None:
    """An image from a registry arrives in another one with the same manifest, also under another name."""
    with registry({"team/odd": odd_layout("1")}) as source, registry({}) as target:
        image = resolve_image(store, f"docker://{source.host}/team/odd:1", silent, verify_tls=False)
        assert image.digests is not None
        pushed = leaving.push(image.id, f"{target.host}/other/name:2")
        assert (pushed,) == image.digests.manifests
        assert target.repositories["other/name"].index[0]["digest"] == pushed
        store.tag(image.id, parse_image_name(f"{target.host}/third:x"))
        assert leaving.push(f"{target.host}/third:x", None) == pushed
        assert sorted(target.repositories) == ["other/name", "third"]
        target.is_full = True
        with pytest.raises(StoreError, match=f'cannot push "docker://{target.host}/fourth:latest": skopeo: .*'):
            leaving.push(image.id, f"{target.host}/fourth")
    with pytest.raises(ImageError, match="is no name to push to"):
        leaving.push(image.id, f"quay.io/x@{pushed}")
    assert list((store.data / "minit/cas/tmp").iterdir()) == []


@needs_skopeo
@pytest.mark.parametrize("schema", ["docker", "oci"])
def test_documents_of_docker_come_and_go_unchanged(store: Store, leaving: Leaving, schema: str) -> None:
    """An image of Docker's own format keeps manifest and configuration, which skopeo would write anew."""
    layout = Layout()
    kind = "application/vnd.docker." if schema == "docker" else "application/vnd.oci.image."
    config_kind = f"{kind}container.image.v1+json" if schema == "docker" else f"{kind}config.v1+json"
    layer_kind = f"{kind}image.rootfs.diff.tar.gzip" if schema == "docker" else f"{kind}layer.v1.tar+gzip"
    manifest_kind = f"{kind}distribution.manifest.v2+json" if schema == "docker" else f"{kind}manifest.v1+json"
    document: dict[str, object] = {
        "architecture": MACHINE,
        "os": "linux",
        "config": CONFIG,
        "container_config": {"Hostname": "h"},
        "docker_version": "20",
        "rootfs": {"type": "layers", "diff_ids": [sha256(ODD)]},
    }
    manifest: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": manifest_kind,
        "config": layout.document(document, config_kind),
        "layers": [layout.blob(gzipped(ODD), layer_kind)],
    }
    entry = layout.document(manifest, manifest_kind)
    layout.index.append({**entry, "annotations": {"org.opencontainers.image.ref.name": "1"}})
    with registry({"odd": layout}) as source, registry({}) as target:
        resolve_image(store, f"docker://{source.host}/odd:1", silent, verify_tls=False)
        assert leaving.push(f"{source.host}/odd:1", f"{target.host}/odd:1") == entry["digest"]
        assert (
            target.repositories["odd"].files.items()
            >= {name: data for name, data in layout.files.items() if "blobs/" in name}.items()
        )


def test_a_full_disk(store: Store, leaving: Leaving) -> None:
    """An export to a full file system names the file system, and leaves nothing there."""
    content = layer(tars.file("f", os.urandom(1 << 20)))
    layout = Layout()
    layout.add(content, tag="quay.io/team/big:1", architecture=MACHINE)
    resolve_image(store, f"oci:{layout.write_directory(leaving.directory / 'in')}", silent)
    with small_disk(leaving.directory / "disk", 256) as disk:
        for kind in (ImageFormat.OCI, ImageFormat.OCI_ARCHIVE, ImageFormat.DOCKER_ARCHIVE):
            with pytest.raises(StoreError, match="no space left on device"):
                leaving.export("quay.io/team/big:1", kind, "disk/out")
            assert list(disk.iterdir()) == []


needs_podman = pytest.mark.skipif(shutil.which("podman") is None, reason="no podman on PATH")


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    """A podman without images."""
    with own_podman(tmp_path) as started:
        yield started


@needs_podman
@pytest.mark.parametrize("kind", [ImageFormat.OCI_ARCHIVE, ImageFormat.DOCKER_ARCHIVE])
def test_podman_loads_what_leaves(store: Store, leaving: Leaving, podman: Podman, kind: ImageFormat) -> None:
    """podman finds names, configuration and layers of an image, and makes the files of the layers that minit makes."""
    image = resolve_image(store, f"oci:{odd_layout().write_directory(leaving.directory / 'in')}", silent)
    assert image.digests is not None
    assert "quay.io/team/odd:1" in podman("load", "--input", leaving.export("quay.io/team/odd:1", kind))
    [found] = json.loads(podman("inspect", "quay.io/team/odd:1"))
    assert found["RootFS"]["Layers"] == list(image.diff_ids)
    assert found["Config"]["Entrypoint"] == CONFIG["Entrypoint"] and found["Config"]["StopSignal"] == "SIGQUIT"
    assert [entry["created_by"] for entry in found["History"]] == ["one", "nothing", "two"]
    if kind is ImageFormat.OCI_ARCHIVE:
        assert found["Id"] == image.digests.configuration.removeprefix("sha256:")
    files = podman.files("quay.io/team/odd:1", leaving.directory / "files")
    assert {str(path.relative_to(files)) for path in files.rglob("*")} >= {f"etc/{name}" for name in "abcls"}
    assert not (files / "etc/gone").exists() and not (files / "var/old").exists()
    status = (files / "etc/a").stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (3_000_000, 0o4711)
    assert (files / "etc/c").stat().st_ino == status.st_ino and os.readlink(files / "etc/l") == "../../outside"


@needs_podman
def test_podman_sees_what_an_app_has_changed(world: World, podman: Podman) -> None:
    """The image of an app's changes has the files in podman that the app has left."""
    uuid, root = run(world, world.app)
    change(root)
    (root / os.fsdecode(b"\xff odd\n")).unlink()  # podman refuses such names
    archive_path = world.root / "changed.tar"
    world.minit("export", "--quiet", "--format=oci-archive", "--name=quay.io/changed:2", uuid, archive_path)
    podman("load", "--input", archive_path)
    files = podman.files("quay.io/changed:2", world.root / "files")
    assert not (files / "bin/sh").exists() and os.listdir(files / "bin") == ["busybox"]
    status = (files / "etc/new").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (5, 6, 0o4750)
    assert (files / "second").stat().st_ino == status.st_ino
    assert stat.S_ISFIFO((files / "fifo").stat().st_mode) and os.readlink(files / "link") == "/etc/passwd"
    assert (files / "sparse").stat().st_size == 100 << 20
    [found] = json.loads(podman("inspect", "quay.io/changed:2"))
    assert len(found["RootFS"]["Layers"]) == 2 and found["History"][-1]["created_by"] == "minit: changes of app busybox"
