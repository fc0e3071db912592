"""Images by their ids, tags and digests."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from minit.base import jsontext
from minit.base.processors import processor_of_appc
from minit.cri.nodeimages import NodeImage, find_image, image_info, node_images, outdated
from minit.manifest.image import parse_image_manifest
from minit.stage0.images.storedimage import ImageDigests, StoredImage

AMD64 = processor_of_appc("amd64")
RED, BLUE, MANIFEST, OTHER = (f"sha256:{digit * 64}" for digit in "abcd")
HUB = "docker.io/library/web"


def stored(
    number: int,
    original: str,
    configuration: str | None = RED,
    manifests: tuple[str, ...] = (),
    *,
    is_untagged: bool = False,
    annotations: Mapping[str, str] | None = None,
    architecture: str = "amd64",
) -> StoredImage:
    """Return an image of the store, whose number is that of its import."""
    name, _, version = original.partition("@")[0].partition(":")
    named = {"appc.io/docker/originalname": original} if "/" in original else {}
    document = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": name,
        "labels": [
            *([{"name": "version", "value": version}] if version else []),
            *({"name": name, "value": value} for name, value in (("os", "linux"), ("arch", architecture))),
        ],
        "annotations": [{"name": key, "value": value} for key, value in (named | dict(annotations or {})).items()],
    }
    data = jsontext.dump(document)
    return StoredImage(
        id=f"sha512-{number:064x}",
        manifest=parse_image_manifest(data, "manifest"),
        manifest_bytes=data,
        size_bytes=number,
        import_time_ns=number,
        last_used_ns=number,
        digests=None if configuration is None else ImageDigests(configuration=configuration, manifests=manifests),
        is_untagged=is_untagged,
    )


def ids(image: NodeImage | None) -> str | None:
    """Return an image's id."""
    return None if image is None else image.id


def test_images_for_other_machines() -> None:
    """An image for another processor is none of the node's, and takes no tag of one that is."""
    own, other = stored(1, "example.com/web:1"), stored(2, "example.com/web:1", BLUE, architecture="aarch64")
    older = stored(3, "example.com/web:2", OTHER, architecture="i386")
    images = node_images([own, other, older], AMD64)
    assert [(image.id, image.tags) for image in images] == [
        (RED, ("example.com/web:1",)),
        (OTHER, ("example.com/web:2",)),
    ]
    assert outdated(images) == ()


def test_names_of_one_configuration_are_one_image() -> None:
    """All names of a configuration are tags and digests of one image; stage1 is none."""
    images = node_images(
        [
            stored(1, "registry-1.docker.io/library/web:1", RED, (MANIFEST,)),
            stored(2, "example.com:5000/team/web:latest", RED, (MANIFEST, OTHER)),
            stored(3, f"example.com/web@{OTHER}", BLUE, (OTHER,)),
            stored(4, "app", None),
            stored(5, "stage1:1", None, annotations={"coreos.com/rkt/stage1/run": "/run"}),
        ],
        AMD64,
    )
    described = [(image.id, image.tags, image.digests) for image in images]
    assert described == [
        (
            RED,
            (f"{HUB}:1", "example.com:5000/team/web:latest"),
            (f"{HUB}@{MANIFEST}", f"example.com:5000/team/web@{MANIFEST}", f"example.com:5000/team/web@{OTHER}"),
        ),
        (BLUE, (), (f"example.com/web@{OTHER}",)),
        (f"sha512-{4:064x}", ("docker.io/library/app:latest",), ()),
    ]


def test_an_image_is_found_by_whatever_means_it() -> None:
    """Ids, their beginnings, tags as docker completes them, and digests find an image, and nothing else does."""
    images = node_images(
        [
            stored(1, "registry-1.docker.io/library/web:latest", RED, (MANIFEST,)),
            stored(2, "registry-1.docker.io/library/web:2", BLUE),
            stored(3, "app:1", None),
        ],
        AMD64,
    )
    for reference in (
        RED,
        RED[7:],
        "web",
        "web:latest",
        HUB,
        f"web@{MANIFEST}",
        f"web:9@{MANIFEST}",
        RED[:20],
        RED[7:9],
    ):
        assert ids(find_image(images, reference)) == RED, reference
    assert ids(find_image(images, "index.docker.io/library/web:2")) == BLUE
    assert ids(find_image(images, f"sha512-{3:064x}")) == ids(find_image(images, "app:1")) == f"sha512-{3:064x}"
    for reference in ("", "web:3", "app", f"web@{OTHER}", f"other@{MANIFEST}", "a", "sha256:", "sha512-0", "a b", "eb"):
        assert find_image(images, reference) is None, reference
    assert (
        find_image(node_images([stored(1, "a/b:1", "sha256:" + "1" * 64), stored(2, "a/b:2", "sha256:12")], AMD64), "1")
        is None
    )


def test_a_tag_has_one_image() -> None:
    """A tag is that of its last import, and nobody's once it was taken away from that."""
    old, new = stored(1, "example.com/web:1", RED), stored(2, "example.com/web:1", BLUE)
    assert [image.tags for image in node_images([old, new], AMD64)] == [(), ("example.com/web:1",)]
    untagged = stored(1, "example.com/web:1", RED, is_untagged=True)
    assert [image.tags for image in node_images([untagged], AMD64)] == [()]
    assert outdated(node_images([old, new], AMD64)) == (old.id,)
    assert outdated(node_images([untagged, new], AMD64)) == ()


def test_the_name_of_an_image_that_is_given_by_its_id() -> None:
    """A name that is the image's stays; for an id there is a tag, a digest or the id."""
    tagged = node_images([stored(1, "example.com/web:1"), stored(2, "example.com/web:2")], AMD64)[0]
    assert tagged.name_of("example.com/web:2") == "example.com/web:2"
    assert tagged.name_of(RED) == "example.com/web:1"
    [pulled] = node_images([stored(1, f"example.com/web@{OTHER}")], AMD64)
    assert pulled.name_of(RED[:12]) == f"example.com/web@{OTHER}"
    [nameless] = node_images([stored(1, "example.com/web:1", is_untagged=True)], AMD64)
    assert nameless.name_of(RED) == RED


def test_the_digest_of_an_image() -> None:
    """It is that of the repository of a name, which may have a port, or else any; an image of a file has its id."""
    port, other = "example.com:5000/web", f"sha256:{'0' * 64}"
    of_hosts = [
        stored(1, "example.com/web:1", manifests=(OTHER,)),
        stored(2, f"{port}@{other}"),
        stored(3, f"{port}:3"),
    ]
    [image] = node_images(of_hosts, AMD64)
    assert image.digest_of("example.com/web:1") == image.digest_of(RED) == f"example.com/web@{OTHER}"
    assert image.digest_of(f"{port}:3") == image.digest_of(f"{port}@{other}") == f"{port}@{other}"
    [of_file] = node_images([stored(1, "example.com/web:1")], AMD64)
    assert of_file.digest_of("example.com/web:1") == RED


@pytest.mark.parametrize(
    ("architecture", "name"), [("amd64", "amd64"), ("i386", "386"), ("aarch64", "arm64"), ("armv7l", "arm")]
)
def test_the_processor_of_an_image(architecture: str, name: str) -> None:
    """It is told by the name that OCI has for it."""
    [image] = node_images([stored(1, f"{HUB}:1", architecture=architecture)], processor_of_appc(architecture))
    told = json.loads(image_info(image, None)["info"])["imageSpec"]
    assert (told["os"], told["architecture"]) == ("linux", name)
