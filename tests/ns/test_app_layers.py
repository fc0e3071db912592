"""The changes of an app as a layer, and images made of layers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile

import pytest

from minit.archives.imagenames import parse_image_name
from minit.base.errors import StoreError
from minit.stage0.apps.applayer import spool_app_layer
from minit.stage0.images.making import configuration_document, make_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import open_pod
from tests.ns.test_export import change, run
from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


def commit(world: World, uuid: str, notes: list[str] | None = None) -> tuple[StoredImage, list[str]]:
    """Make an image of the pod's only app, of a layer above the app's image; return the names in the layer."""
    told: list[str] = []
    with Store(world.data) as store, open_pod(world.data, uuid) as pod, store.temporary_file() as file:
        note = told.append
        layer = spool_app_layer(pod, "busybox", TreeStore(world.data, store), file, note=note, count=lambda _: None)
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            names = tar.getnames()
        digest = hashlib.sha256()
        with layer.open() as content:
            while data := content.read(1 << 20):
                digest.update(data)
        assert layer.diff_id == f"sha256:{digest.hexdigest()}"
        base = store.find("example.com/busybox")
        image = make_image(store, parse_image_name("changed:1"), base, [layer], configuration_document(store, base))
        assert store.find("changed:1").id == image.id and len(image.diff_ids) == 2
    assert told == (notes or [])
    return image, names


def facts(world: World, image: str) -> dict[str, object]:
    """Return all properties of the files of an image, by path, without the links that an ACI of layers has."""
    out = world.root / "out"
    world.minit("image", "render", "--quiet", "--overwrite", "--rootfs-only", image, out)
    found: dict[str, object] = {}
    first: dict[int, str] = {}
    for path in sorted(out.rglob("*")):
        name = os.fsdecode(path.relative_to(out))
        if name.partition("/")[0] == "dev":
            continue
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        xattrs = {
            key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)
        }
        link = name if path.is_dir() else first.setdefault(status.st_ino, name)
        found[name] = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_rdev,
            status.st_mtime_ns,
            content,
            xattrs,
            link,
        )
    return found


@pytest.mark.parametrize("flags", [[], ["--no-overlay"]], ids=["overlay", "flat"])
def test_the_layer_of_an_app_makes_what_the_app_left(world: World, flags: list[str]) -> None:
    """The image below and the layer are the files that the app has left, in every property."""
    uuid, root = run(world, *flags, world.app)
    change(root)
    world.minit("export", "--quiet", "--name=whole", uuid, world.root / "whole.aci")
    image, names = commit(world, uuid)
    assert "bin/.wh.sh" in names
    world.minit("fetch", "--quiet", world.root / "whole.aci")
    layered, whole = facts(world, image.id), facts(world, "whole")
    assert {
        name: (layered.get(name), whole.get(name)) for name in layered | whole if layered.get(name) != whole.get(name)
    } == {}


def test_names_of_an_image(world: World) -> None:
    """An image has any number of names; a name goes over to the image that got it last, and each can be taken away."""
    world.minit("fetch", "--quiet", world.app)
    with Store(world.data) as store:
        image = store.find("example.com/busybox")
        store.tag(image.id, parse_image_name("box:2"))
        store.tag(image.id, parse_image_name("localhost:5000/Box"))
        assert store.get(image.id).all_names == (
            "example.com/busybox:1.0",
            "box:2",
            "localhost:5000/Box:latest",
        )
        for name in ("box", "box:2", "docker.io/library/box:2", "localhost:5000/Box", "localhost:5000/Box:latest"):
            assert store.find(name).id == image.id
        with pytest.raises(StoreError, match="is not in the store"):
            store.find("box:3")
        other = make_image(store, parse_image_name("other"), None, [], {"config": {"Cmd": ["/x"]}})
        store.tag(other.id, parse_image_name("box:2"))
        assert store.find("box:2").id == other.id
        assert store.get(image.id).all_names == ("example.com/busybox:1.0", "localhost:5000/Box:latest")
        assert store.remove_name(image.id, image.id[:20]) is None
        assert store.remove_name(image.id, "example.com/busybox") == "example.com/busybox:1.0"
        with pytest.raises(StoreError, match="is not in the store"):
            store.find("example.com/busybox")
        assert store.remove_name(image.id, "localhost:5000/Box") is None
    world.minit("fetch", "--quiet", world.app)
    with Store(world.data) as store:
        assert store.get(image.id).all_names == ("example.com/busybox:1.0", "localhost:5000/Box:latest")


def test_names_on_the_command_line(world: World) -> None:
    """Names are listed, each in a line, taken away one by one, and the image goes with the last."""
    world.minit("fetch", "--quiet", world.app)
    world.minit("image", "tag", "example.com/busybox", "box:2", "localhost:5000/box")
    assert "is no name of an image" in world.minit("tag", "box:2", "Not a name", code=254).stderr
    rows = world.minit("image", "list", "--no-legend", "--fields=name").stdout.split()
    assert rows == ["example.com/busybox:1.0", "box:2", "localhost:5000/box:latest"]
    [shown] = json.loads(world.minit("image", "list", "--format=json").stdout)
    assert shown["names"] == rows and shown["name"] == rows[0]
    inspected = json.loads(world.minit("image", "inspect", "box:2").stdout)
    assert inspected["names"] == rows and inspected["configuration"]["config"]["Cmd"][0] == "/bin/sh"
    said = world.minit("image", "rm", "box:2", "example.com/busybox").stdout
    assert said == "".join(f'removed name "{name}" from image: "{shown["id"]}"\n' for name in ("box:2", rows[0]))
    assert world.minit("image", "list", "--no-legend", "--fields=name").stdout.split() == rows[2:]
    assert "successfully removed aci" in world.minit("image", "rm", "localhost:5000/box").stdout
    assert world.minit("image", "list", "--no-legend").stdout == ""


def test_a_name_like_a_deleted_file_is_left_out(world: World) -> None:
    """A file of the app cannot take files away from the image below, and a layer of nothing changes nothing."""
    uuid, root = run(world, world.app)
    assert commit(world, uuid)[1] == ["etc"]  # where minit has put a link
    (root / ".wh.bin").write_text("")
    (root / "bin/.wh..wh..opq").write_text("")
    told = "in a layer a name with .wh. stands for a deleted file"
    notes = [f'left out "{name}": {told}' for name in (".wh.bin", "bin/.wh..wh..opq")]
    image, names = commit(world, uuid, notes)
    assert names == ["bin", "etc"] and "bin/sh" in facts(world, image.id)


@pytest.mark.parametrize("flags", [[], ["--no-overlay"]], ids=["overlay", "flat"])
def test_a_directory_made_anew_hides_the_old_files(world: World, flags: list[str]) -> None:
    """Of a directory that an app removed and made again only the new files are there."""
    uuid, root = run(world, *flags, world.app)
    shutil.rmtree(root / "bin")
    (root / "bin").mkdir()
    (root / "bin/new").write_text("new")
    image, _ = commit(world, uuid)
    assert [name for name in facts(world, image.id) if name.startswith("bin")] == ["bin", "bin/new"]
