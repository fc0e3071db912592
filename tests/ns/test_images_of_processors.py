"""Images for another processor than this machine's: chosen of several, kept beside each other, and refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.base.errors import ImageError, StoreError
from minit.base.processors import PROCESSORS, Processor, processor_named, this_processor
from minit.base.progress import silent
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy, StoredImage
from tests import tars
from tests.support.layers import INDEX, REF_NAME, Layout, busybox_layer, layer
from tests.support.registry import registry
from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="unpacks images, which needs root")

HERE = this_processor()
OTHER = next(processor for processor in map(processor_named, ("arm64", "amd64")) if processor != HERE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


def of_both() -> Layout:
    """A layout with one image, tagged 1, for two processors."""
    layout = Layout()
    entries = []
    for processor in (OTHER, HERE):
        files = busybox_layer(), layer(tars.file("processor", processor.name.encode()))
        entry = layout.manifest(*files, architecture=processor.architecture, config={"Cmd": ["/bin/sh"]})
        entries.append({**entry, "platform": {"os": "linux", "architecture": processor.architecture}})
    index = layout.document({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}, INDEX)
    layout.index.append({**index, "annotations": {REF_NAME: "1"}})
    return layout


def processor_of(image: StoredImage) -> str | None:
    """The processor that an image is for, by appc's name."""
    return image.manifest.label("arch")


@pytest.mark.parametrize("transport", ["oci-archive", pytest.param("dir", id="dir, by skopeo")])
def test_an_index_of_two(store: Store, tmp_path: Path, transport: str) -> None:
    """Of an index the image for the processor that is asked for is taken, and else that for this machine."""
    if transport == "dir":
        if shutil.which("skopeo") is None:
            pytest.skip("no skopeo on PATH")
        source = f"oci:{of_both().write_directory(tmp_path / 'layout')}:1"
        subprocess.run(["skopeo", "copy", "--quiet", "--all", source, f"dir:{tmp_path}/box"], check=True, timeout=90)
        reference = f"dir:{tmp_path}/box"
    else:
        reference = f"oci-archive:{of_both().write_archive(tmp_path / 'box.tar')}"
    for processor, expected in ((OTHER, OTHER), (None, HERE), (HERE, HERE), (OTHER, OTHER)):
        assert processor_of(resolve_image(store, reference, silent, processor=processor)) == expected.appc
    missing = next(one for one in PROCESSORS if one not in (HERE, OTHER))
    there_is = ", ".join(sorted(f"linux/{one.name}" for one in (HERE, OTHER)))
    with pytest.raises(ImageError, match=f"no image for linux/{missing.name}: there is {there_is}$"):
        resolve_image(store, reference, silent, processor=missing)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
def test_an_image_of_a_registry(store: Store) -> None:
    """What the store has under a name for one processor is neither run on another one nor keeps it from a fetch."""
    with registry({"team/box": of_both()}) as served:
        reference = f"docker://{served.host}/team/box:1"

        def fetch(processor: Processor | None, policy: PullPolicy) -> StoredImage:
            return resolve_image(store, reference, silent, policy, processor=processor, verify_tls=False)

        other = fetch(OTHER, PullPolicy.NEW)
        with pytest.raises(StoreError, match="is not in the store .* --pull-policy=never"):
            fetch(None, PullPolicy.NEVER)
        own = fetch(None, PullPolicy.NEW)
        assert (processor_of(own), processor_of(other)) == (HERE.appc, OTHER.appc)
        assert fetch(OTHER, PullPolicy.UPDATE).id == other.id
        for processor, image in ((None, own), (OTHER, other), (HERE, own)):
            assert fetch(processor, PullPolicy.NEVER).id == image.id
            assert resolve_image(store, f"{served.host}/team/box:1", silent, processor=processor).id == image.id
        assert store.find(f"{served.host}/team/box:1,arch={OTHER.appc}").id == other.id


def test_an_image_for_this_machine_alone(store: Store, tmp_path: Path) -> None:
    """An ACI, or an image of the store, that is for another processor than is asked for is refused, and told of."""
    labels = [{"name": "os", "value": "linux"}, {"name": "arch", "value": HERE.appc}]
    path = tars.write_image(tmp_path / "box.aci", manifest_bytes=tars.manifest("box", labels=labels))
    assert processor_of(resolve_image(store, str(path), silent, processor=HERE)) == HERE.appc
    for reference in (str(path), "box"):
        with pytest.raises(StoreError) as caught:
            resolve_image(store, reference, silent, processor=OTHER)
        assert str(caught.value) == (
            f'image "{reference}" is for {HERE.appc}, and not for {OTHER.appc}: images for it have that label arch, '
            f"or come with: minit fetch --arch={OTHER.name}"
        )


def test_a_pod_for_another_machine(world: World) -> None:
    """`fetch --arch` and `prepare --arch` are about the same image; the pod's manifest has it."""
    path = of_both().write_archive(world.root / "box.tar")
    own, other = (
        world.minit("fetch", "--full", *words, f"oci-archive:{path}").stdout.strip()
        for words in ((), (f"--arch={OTHER.name}",))
    )
    assert own != other
    for words, image in (((), own), ((f"--arch={OTHER.name}",), other)):
        for reference in (f"oci-archive:{path}", "box"):
            uuid = world.minit("prepare", *words, reference).stdout.strip()
            manifest = json.loads(world.minit("cat-manifest", uuid).stdout)
            assert manifest["apps"][0]["image"]["id"] == image
    pod = f"--pod-manifest={world.root}/pod.json"
    refused = world.minit("prepare", f"--arch={OTHER.name}", pod, code=254)
    assert "--pod-manifest excludes --arch: write what you mean into the manifest" in refused.stderr
