"""OCI layouts and docker archives: choosing an image, what is refused in which words, and what ACIs they become."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.archives.aci import check_processor, convert_manifest
from minit.archives.layered import LayeredImage, Platform, choose_platform
from minit.archives.opening import open_image
from minit.archives.squash import write_aci
from minit.base.errors import ImageError
from minit.base.processors import processor_named, processor_of_machine
from tests import tars
from tests.support.layers import (
    INDEX,
    LAYER,
    REF_NAME,
    Json,
    Layout,
    archive,
    config_document,
    docker_files,
    gzipped,
    layer,
    sha256,
)
from tests.support.zstandard import zstd

ONE = layer(tars.file("a", b"data"))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose for one kind of machine wherever the tests run."""
    for module in ("aci", "oci", "opening"):
        monkeypatch.setattr(f"minit.archives.{module}.this_processor", lambda: processor_named("amd64"))


@contextmanager
def opened(reference: str) -> Iterator[LayeredImage]:
    """Open an image, with a temporary file for a compressed archive."""
    with open_image(reference, tempfile.TemporaryFile) as image:
        yield image


def manifest_of(reference: str) -> Json:
    """The manifest of the ACI that an image becomes, once all of the image has been read."""
    with opened(reference) as image, tempfile.TemporaryDirectory() as path:
        _, manifest = write_aci(image, lambda data: None, Path(path))
        assert manifest == convert_manifest(image)
    document: Json = json.loads(manifest)
    return document


def refusal(reference: str) -> str:
    """The message with which an image is refused, one line."""
    with pytest.raises(ImageError) as caught:
        manifest_of(reference)
    message = str(caught.value)
    assert "\n" not in message
    return message


def named(pairs: object) -> dict[str, str]:
    """The list of names and values in a manifest."""
    assert isinstance(pairs, list)
    return {pair["name"]: pair["value"] for pair in pairs}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a test's image."""
    return tmp_path / "web.tar"


# Reading


@pytest.mark.parametrize(
    ("compress", "suffix"),
    [(bytes, ""), (gzipped, "+gzip"), (zstd.compress, "+zstd"), (bz2.compress, ".bzip2"), (lzma.compress, ".xz")],
)
def test_layers_of_every_compression_give_the_same_image(
    path: Path, tmp_path: Path, compress: Callable[[bytes], bytes], suffix: str
) -> None:
    """However its layers are compressed, an image becomes the same tar; only digests in the manifest differ."""
    layout = Layout()
    layout.add(ONE, layer(tars.file("b")), compress=compress, suffix=suffix)
    layout.write_archive(path)
    written = bytearray()
    with opened(f"oci-archive:{path}") as image:
        write_aci(image, written.extend, tmp_path)
    with tarfile.open(fileobj=io.BytesIO(bytes(written))) as tar:
        assert {"manifest", "rootfs", "rootfs/a", "rootfs/b"} <= set(tar.getnames())


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd.compress])
def test_a_directory_and_an_archive_are_the_same(
    path: Path, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    """A layout gives the same manifest as a directory, as an archive, and as a compressed archive."""
    layout = Layout()
    layout.add(ONE, tag="1.0")
    layout.write_archive(path, compress)
    layout.write_directory(tmp_path / "web")
    assert manifest_of(f"oci:{tmp_path / 'web'}") == manifest_of(f"oci-archive:{path}")


def test_an_archive_made_by_tar_of_a_directory(path: Path, tmp_path: Path) -> None:
    """Names that begin with `./`, as tar(1) writes them, are found."""
    layout = Layout()
    layout.add(ONE)
    with tarfile.open(path, "w") as tar:
        tar.add(layout.write_directory(tmp_path / "d"), "./")
    assert manifest_of(f"oci-archive:{path}")["name"] == "web"


def test_the_tag_chooses_the_image(path: Path) -> None:
    """Of several images that one is read whose tag, name or digest follows the path."""
    layout = Layout()
    first = layout.add(ONE, tag="1.0")
    layout.add(layer(tars.file("b")), tag="registry.example:5000/Team/app:2.0")
    layout.write_archive(path)
    assert named(manifest_of(f"oci-archive:{path}:1.0")["labels"])["version"] == "1.0"
    assert manifest_of(f"oci-archive:{path}@{first['digest']}")["name"] == "web"
    second = manifest_of(f"oci-archive:{path}:registry.example:5000/Team/app:2.0")
    assert second["name"] == "registry.example_5000/team/app"
    assert named(second["labels"])["version"] == "2.0"
    assert refusal(f"oci-archive:{path}") == (
        f"{path}: more than one image: there is 1.0, registry.example:5000/Team/app:2.0:"
        " choose one by adding :TAG or @DIGEST"
    )
    assert refusal(f"oci-archive:{path}:3.0") == (
        f'{path}: no image "3.0": there is 1.0, registry.example:5000/Team/app:2.0'
    )


def test_a_path_may_have_colons(tmp_path: Path) -> None:
    """An existing path counts, with any colons in it."""
    layout = Layout()
    layout.add(ONE, tag="1")
    odd = layout.write_directory(tmp_path / "a:b@c")
    assert named(manifest_of(f"oci:{odd}:1")["labels"])["version"] == "1"
    assert manifest_of(f"oci:{odd}")["name"] == "a_b_c"
    assert refusal(f"oci:{tmp_path}/none:1") == f"open image {tmp_path}/none: no such file or directory"


def index_of(layout: Layout, *descriptors: Json) -> Json:
    """A nested index."""
    return layout.document({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(descriptors)}, INDEX)


def for_platform(descriptor: Json, architecture: str, variant: str = "", system: str = "linux") -> Json:
    """A descriptor with its platform."""
    platform = {"os": system, "architecture": architecture, **({"variant": variant} if variant else {})}
    return {**descriptor, "platform": platform}


@pytest.mark.parametrize("nested", [True, False])
def test_an_index_gives_the_image_for_this_machine(path: Path, nested: bool) -> None:
    """Of several platforms this machine's is read, past attestations of builders and other systems."""
    layout = Layout()
    entries = [
        for_platform(layout.manifest(layer(), architecture="arm64"), "arm64", "v8"),
        for_platform(layout.manifest(ONE), "amd64", system="windows"),
        for_platform(layout.manifest(ONE, config={"Cmd": ["/right"]}), "amd64"),
        for_platform(layout.manifest(layer(tars.file("x"))), "unknown", system="unknown"),
    ]
    layout.index = [index_of(layout, *entries)] if nested else entries
    layout.write_archive(path)
    assert manifest_of(f"oci-archive:{path}")["app"]["exec"] == ["/right"]  # type: ignore[index]


def test_an_index_for_other_machines_only(path: Path) -> None:
    """Without an image for this machine the error lists what there is."""
    layout = Layout()
    entries = [for_platform(layout.manifest(ONE), "arm", "v7"), for_platform(layout.manifest(layer()), "s390x")]
    layout.index = [index_of(layout, *entries)]
    layout.write_archive(path)
    assert refusal(f"oci-archive:{path}").endswith(
        "no image for linux/amd64, which this machine is: there is linux/arm/v7, linux/s390x"
    )


def test_an_image_for_another_machine(path: Path) -> None:
    """A single image is for the machine its configuration names, and for no other."""
    layout = Layout()
    layout.add(ONE, architecture="arm64")
    layout.write_archive(path)
    with opened(f"oci-archive:{path}") as image:
        check_processor(image, processor_named("arm64"))
        with pytest.raises(ImageError, match="the image is for linux/arm64, this machine is linux/amd64: copy") as own:
            check_processor(image, processor_named("amd64"))
        with pytest.raises(ImageError, match="the image is for linux/arm64, not for linux/s390x: copy") as other:
            check_processor(image, processor_named("s390x"))
    assert str(own.value).endswith(" --override-arch amd64 copy, or take it for another machine with: --arch=arm64")
    assert str(other.value).endswith(" --override-arch s390x copy")


@pytest.mark.parametrize(
    ("machine", "offered", "chosen"),
    [
        ("x86_64", ["amd64/v3", "amd64"], 1),
        ("x86_64", ["amd64/v3"], None),
        ("x86_64", ["386"], None),
        ("aarch64", ["arm/v7", "arm64"], 1),
        ("aarch64", ["arm64", "arm64/v8"], 1),
        ("armv7l", ["arm/v5", "arm/v6", "arm/v7"], 2),
        ("armv6l", ["arm/v7", "arm/v5"], 1),
        ("riscv64", ["riscv64"], 0),
    ],
)
def test_the_best_variant_is_chosen(machine: str, offered: list[str], chosen: int | None) -> None:
    """A machine takes the newest variant it can run, and nothing that it cannot."""
    platforms = []
    for text in offered:
        architecture, _, variant = text.partition("/")
        platforms.append(Platform(os="linux", architecture=architecture, variant=variant))
    assert choose_platform(platforms, processor_of_machine(machine)) == chosen


# What is refused


def changed(path: Path, change: Callable[[Json], object]) -> str:
    """The refusal of an image whose manifest was changed, with right digests."""
    layout = Layout()
    descriptor = layout.manifest(ONE)
    manifest = json.loads(layout.files["blobs/" + str(descriptor["digest"]).replace(":", "/")])
    change(manifest)
    layout.index = [layout.document(manifest, str(descriptor["mediaType"]))]
    layout.write_archive(path)
    return refusal(f"oci-archive:{path}")


def layer_kind(kind: str, **fields: object) -> Callable[[Json], object]:
    """A change of the first layer's descriptor."""
    return lambda manifest: manifest["layers"][0].update({"mediaType": kind, **fields})  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(manifests=[]), "an image with layers and manifests: refused as ambiguous"),
        (lambda m: m.update(mediaType=INDEX), "but is listed as application/vnd.oci.image.manifest.v1+json: refused"),
        (lambda m: m.update(schemaVersion=1), "an image of Docker's schema 1, which is no longer read: convert"),
        (lambda m: m.update(fsLayers=[{}]), "refused as ambiguous"),
        (lambda m: m["config"].update(mediaType="application/vnd.cncf.helm.config.v1+json"), "not an image to run"),
        (layer_kind(LAYER + "+gzip+encrypted"), "is encrypted: decrypt it with: skopeo copy --decryption-key"),
        (layer_kind("application/x-unheard-of"), 'has the unknown media type "application/x-unheard-of"'),
        (layer_kind(LAYER, size=7), "has 2048 bytes, expected 7"),
        (layer_kind(LAYER, digest="md5:aa"), 'the digest "md5:aa" is of an unknown kind'),
        (layer_kind(LAYER, digest="sha256:aa"), '"sha256:aa" is no digest'),
        (layer_kind(LAYER, digest="sha256:../../../../etc/passwd"), "is no digest"),
        (layer_kind(LAYER, digest="sha256:" + "0" * 64), "is missing: copy the image again"),
        (
            layer_kind(LAYER, digest="sha256:" + "0" * 64, urls=["https://example.com/base"]),
            "is not in the image but at https://example.com/base, and nothing is downloaded",
        ),
        (lambda m: m["layers"].append(m["layers"][0]), "2 layers, but 1 diff_ids in the configuration"),
        (lambda m: m.update(layers={}), "expected a list"),
        (lambda m: m.pop("config"), "config"),
    ],
)
def test_bad_manifests(path: Path, change: Callable[[Json], object], reason: str) -> None:
    """A manifest that is ambiguous, old, encrypted, foreign or wrong is refused with one line that says so."""
    assert reason in changed(path, change)


def test_layers_that_may_not_be_distributed_are_read_if_they_are_there(path: Path) -> None:
    """It is the layer that counts, not its media type or its urls."""
    layout = Layout()
    kind = "application/vnd.oci.image.layer.nondistributable.v1.tar"
    descriptor = layout.blob(ONE, kind, urls=["https://example.com/base"])
    layout.add(ONE, more={"layers": [descriptor]})
    layout.write_archive(path)
    assert manifest_of(f"oci-archive:{path}")["name"] == "web"


def test_what_is_listed_as_something_else(path: Path) -> None:
    """An index entry of a schema 1 image or of an unknown kind is refused."""
    for kind, reason in (
        ("application/vnd.docker.distribution.manifest.v1+prettyjws", "an image of Docker's schema 1"),
        ("application/vnd.example", 'unknown media type "application/vnd.example": not an image'),
    ):
        layout = Layout()
        layout.index = [{**layout.manifest(ONE), "mediaType": kind}]
        layout.write_archive(path)
        assert reason in refusal(f"oci-archive:{path}")


def test_damaged_blobs(path: Path) -> None:
    """A manifest, a configuration and a layer with a changed or a missing byte are refused as damaged."""
    layout = Layout()
    layout.add(layer(tars.file("a", os.urandom(3000))), compress=gzipped, suffix="+gzip")
    names = [name for name in layout.files if name.startswith("blobs/")]
    assert len(names) == 3
    good = dict(layout.files)
    for name in names:
        for bad in (good[name][:-1], good[name][:-1] + b"!"):
            layout.files = {**good, name: bad}
            layout.write_archive(path)
            message = refusal(f"oci-archive:{path}")
            assert name.removeprefix("blobs/").replace("/", ":") in message and "copy" in message


def test_indexes_within_indexes_end(path: Path) -> None:
    """An index in an index in an index is followed only so far."""
    layout = Layout()
    descriptor = layout.manifest(ONE)
    for _ in range(6):
        descriptor = index_of(layout, descriptor)
    layout.index = [descriptor]
    layout.write_archive(path)
    assert "indexes within indexes" in refusal(f"oci-archive:{path}")


def test_no_images_at_all(path: Path, tmp_path: Path) -> None:
    """Files of another kind are told apart, with the words that would have been right."""
    Layout().write_archive(path)
    assert refusal(f"oci-archive:{path}") == f"{path}: no image in its index"
    path.write_bytes(archive(docker_files(ONE)))
    assert "no OCI layout but a docker archive: give it as docker-archive:FILE" in refusal(f"oci-archive:{path}")
    path.write_bytes(archive({"x": b""}))
    assert "no file oci-layout" in refusal(f"oci-archive:{path}")
    assert "no file manifest.json: not an archive of docker save" in refusal(f"docker-archive:{path}")
    path.write_bytes(archive({"oci-layout": b"{}"}))
    assert "give it as oci-archive:FILE" in refusal(f"docker-archive:{path}")
    path.write_bytes(archive({"repositories": b"{}"}))
    assert "saved by a Docker before 1.10" in refusal(f"docker-archive:{path}")
    path.write_bytes(archive({"oci-layout": b'{"imageLayoutVersion": "2.0.0"}'}))
    assert 'version "2.0.0" of the layout is unknown' in refusal(f"oci-archive:{path}")
    path.write_bytes(b"no tar, surely" * 100)
    assert "not a tar archive" in refusal(f"oci-archive:{path}")
    assert "not a regular file" in refusal(f"oci-archive:{tmp_path}") or "directory" in refusal(
        f"oci-archive:{tmp_path}"
    )
    assert refusal("oci:") == "expected a path after the colon of the image's name"


def test_a_layout_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    """A blob that is a symbolic link, or lies below one, is not read."""
    layout = Layout()
    layout.add(ONE)
    directory = layout.write_directory(tmp_path / "d")
    os.rename(directory / "blobs", tmp_path / "blobs")
    os.symlink("../blobs", directory / "blobs")
    assert "is reached by a symbolic link: copy the directory with: cp -rL" in refusal(f"oci:{directory}")


def test_a_fifo_as_a_blob_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A file of a layout that is no regular file is refused at once."""
    directory = Layout().write_directory(tmp_path / "d")
    (directory / "index.json").unlink()
    os.mkfifo(directory / "index.json")
    assert "is no regular file" in refusal(f"oci:{directory}")


def test_a_truncated_archive(path: Path) -> None:
    """An archive that ends in the middle is refused as such."""
    layout = Layout()
    layout.add(layer(tars.file("a", os.urandom(100_000))))
    data = layout.write_archive(path).read_bytes()
    for length in (700, 50_000, 100_000):
        path.write_bytes(data[:length])
        assert "ends in the middle" in refusal(f"oci-archive:{path}") or "missing" in refusal(f"oci-archive:{path}")


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", INDEX, LAYER, "sha256:" + "0" * 64]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["schemaVersion", "mediaType", "manifests", "config", "layers", "digest", "size", "platform", "os"]
                + ["annotations", "rootfs", "diff_ids", "Env", "Cmd", "Volumes", "ExposedPorts", "Labels", "User"]
                + ["Config", "RepoTags", "Layers"]
            ),
            children,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.sampled_from(["index", "manifest", "config", "docker", "docker-config"]), documents)
def test_no_document_breaks_the_reader(which: str, document: object) -> None:
    """For any document the image is read or refused with one line."""
    layout = Layout()
    text = json.dumps(document).encode()
    if which.startswith("docker"):
        files = docker_files(ONE)
        name = "manifest.json" if which == "docker" else next(iter(files))
        listing = files["manifest.json"].replace(b".json", b".txt") if which == "docker-config" else text
        files = {**files, name: text, name.replace(".json", ".txt"): text, "manifest.json": listing}
        reference = "docker-archive:"
    else:
        reference = "oci-archive:"
        if which == "config":
            config = layout.blob(text, "application/vnd.oci.image.config.v1+json")
            layout.add(more={"config": config})
        elif which == "manifest":
            layout.index = [layout.blob(text, "application/vnd.oci.image.manifest.v1+json")]
        files = layout.contents()
        if which == "index":
            files["index.json"] = text
    with tempfile.NamedTemporaryFile() as file:
        file.write(archive(files))
        file.flush()
        try:
            manifest_of(reference + file.name)
        except ImageError as error:
            assert "\n" not in str(error)


def _archives() -> list[tuple[str, bytes]]:
    layout = Layout()
    layout.add(ONE, compress=gzipped, suffix="+gzip")
    return [("oci-archive", archive(layout.contents())), ("docker-archive", archive(docker_files(ONE)))]


@settings(deadline=None)
@given(
    st.sampled_from(_archives()), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4), st.floats(0, 2)
)
def test_no_archive_breaks_the_reader(good: tuple[str, bytes], changes: list[tuple[float, int]], length: float) -> None:
    """An archive with changed bytes, or cut short, is read or refused with one line."""
    transport, content = good
    data = bytearray(content[: int(length * len(content))] or content)
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            manifest_of(f"{transport}:{file.name}")
        except ImageError as error:
            assert "\n" not in str(error)


def test_names_that_are_none(path: Path) -> None:
    """A name that docker itself could not read does not hide the others."""
    path.write_bytes(archive(docker_files(ONE, tags=["<none>:<none>", "busybox:1"])))
    assert manifest_of(f"docker-archive:{path}:busybox:1")["name"] == "registry-1.docker.io/library/busybox"


# Docker archives


def test_a_docker_archive_is_named_by_its_tag(path: Path) -> None:
    """An image of docker save has registry, repository and tag of its first name."""
    path.write_bytes(archive(docker_files(ONE, layer(tars.file("b")), tags=["busybox:1.36", "other:2"])))
    manifest = manifest_of(f"docker-archive:{path}")
    assert manifest["name"] == "registry-1.docker.io/library/busybox"
    assert named(manifest["labels"]) == {"version": "1.36", "os": "linux", "arch": "amd64"}
    assert manifest_of(f"docker-archive:{path}:other:2")["name"] == "registry-1.docker.io/library/other"
    assert manifest_of(f"docker-archive:{path}:docker.io/library/other:2") == manifest_of(f"docker-archive:{path}:2")
    assert refusal(f"docker-archive:{path}:x") == f'{path}: no image "x": there is busybox:1.36, other:2'


def test_a_docker_archive_of_several_images(path: Path) -> None:
    """Without a name the error lists the images; an image without name is called by its id."""
    one, two = docker_files(ONE), docker_files(layer(), tags=[])
    listing = json.loads(one["manifest.json"]) + json.loads(two["manifest.json"])
    listing[1]["RepoTags"] = None
    path.write_bytes(archive({**one, **two, "manifest.json": json.dumps(listing).encode()}))
    image_id = "sha256:" + listing[1]["Config"].removesuffix(".json")
    assert refusal(f"docker-archive:{path}") == (
        f"{path}: more than one image: there is busybox:1, @{image_id}: choose one by adding :NAME or @ID"
    )
    assert manifest_of(f"docker-archive:{path}@{image_id}")["name"] == "web"


def test_links_inside_a_docker_archive_are_followed(path: Path) -> None:
    """docker save wrote a symbolic link where a layer was in the archive already; none leads out of it."""
    files = docker_files(ONE)
    layer_path = next(name for name in files if name.endswith("layer.tar"))
    for target, works in (("../real/layer.tar", True), ("../../../etc/passwd", False), ("layer.tar", False)):
        content = {name: data for name, data in files.items() if name != layer_path}
        with tarfile.open(path, "w") as tar:
            for name, data in {**content, "real/layer.tar": ONE}.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            link = tarfile.TarInfo(layer_path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        if works:
            assert manifest_of(f"docker-archive:{path}")["name"] == "registry-1.docker.io/library/busybox"
        else:
            assert "layer" in refusal(f"docker-archive:{path}")


def test_a_docker_archive_with_a_layout_in_it(path: Path) -> None:
    """An archive of Docker 25 can be read as either kind, and is the same image."""
    layout = Layout()
    descriptor = layout.add(ONE, compress=gzipped, suffix="+gzip")
    descriptor["annotations"] = {"io.containerd.image.name": "docker.io/library/busybox:1", REF_NAME: "1"}
    manifest = json.loads(layout.files["blobs/" + str(descriptor["digest"]).replace(":", "/")])
    places = ["blobs/" + entry["digest"].replace(":", "/") for entry in (manifest["config"], *manifest["layers"])]
    listing = [{"Config": places[0], "RepoTags": ["busybox:1"], "Layers": places[1:]}]
    path.write_bytes(archive({**layout.contents(), "manifest.json": json.dumps(listing).encode()}))
    as_docker = manifest_of(f"docker-archive:{path}")
    assert as_docker == manifest_of(f"oci-archive:{path}:busybox:1")
    assert as_docker["name"] == "registry-1.docker.io/library/busybox"


def test_a_docker_archive_with_a_wrong_configuration_or_layer(path: Path) -> None:
    """A configuration that is not the one its name says, and a layer that is not the configuration's, are refused."""
    files = docker_files(ONE)
    name = next(iter(files))
    path.write_bytes(archive({**files, name: files[name] + b" "}))
    assert "has another digest: damaged, save the image again" in refusal(f"docker-archive:{path}")
    layer_path = next(name for name in files if name.endswith("layer.tar"))
    path.write_bytes(archive({**files, layer_path: layer(tars.file("other"))}))
    assert "has the diff_id" in refusal(f"docker-archive:{path}")


# Conversion


def test_the_whole_configuration_is_converted(path: Path) -> None:
    """Program, environment, user, directory, volumes, ports, labels and annotations are what docker2aci made."""
    config = {
        "Entrypoint": ["/entry", "point"],
        "Cmd": ["a", "b"],
        "Env": ["PATH=/bin:/usr/bin", "EMPTY=", "TWICE=1", "TWICE=a=b", "NOTHING"],
        "User": "app:staff",
        "WorkingDir": "/srv",
        "Volumes": {"/var/lib/data": {}, "/var-lib/data": {}, "/etc": {}},
        "ExposedPorts": {"80/tcp": {}, "53/UDP": {}, "443": {}, "7000-7002/tcp": {}},
        "Labels": {"maintainer": "me"},
        "StopSignal": "sigint",
        "Healthcheck": {"Test": ["NONE"]},
    }
    layout = Layout()
    layout.add(
        ONE,
        tag="quay.io/Org/App:V1",
        config=config,
        author="Somebody",
        created="2024-05-01T10:11:12.123456789Z",
        history=[{"empty_layer": True}],
    )
    layout.write_archive(path)
    assert manifest_of(f"oci-archive:{path}") == {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": "quay.io/org/app",
        "labels": [
            {"name": "version", "value": "V1"},
            {"name": "os", "value": "linux"},
            {"name": "arch", "value": "amd64"},
        ],
        "app": {
            "exec": ["/entry", "point", "a", "b"],
            "user": "app",
            "group": "staff",
            "environment": [
                {"name": "PATH", "value": "/bin:/usr/bin"},
                {"name": "EMPTY", "value": ""},
                {"name": "TWICE", "value": "a=b"},
            ],
            "workingDirectory": "/srv",
            "mountPoints": [
                {"name": "volume-etc", "path": "/etc"},
                {"name": "volume-var-lib-data", "path": "/var-lib/data"},
                {"name": "volume-var-lib-data-1", "path": "/var/lib/data"},
            ],
            "ports": [
                {"name": "443", "protocol": "tcp", "port": 443},
                {"name": "53-udp", "protocol": "udp", "port": 53},
                {"name": "7000-7002-tcp", "protocol": "tcp", "port": 7000, "count": 3},
                {"name": "80-tcp", "protocol": "tcp", "port": 80},
            ],
            "userLabels": {"maintainer": "me"},
        },
        "annotations": [
            {"name": "authors", "value": "Somebody"},
            {"name": "created", "value": "2024-05-01T10:11:12.123456789Z"},
            {"name": "appc.io/docker/originalname", "value": "quay.io/Org/App:V1"},
            {"name": "appc.io/docker/registryurl", "value": "quay.io"},
            {"name": "appc.io/docker/repository", "value": "Org/App"},
            {"name": "appc.io/docker/tag", "value": "V1"},
            {"name": "appc.io/docker/chainid", "value": sha256(ONE)},
            {"name": "appc.io/docker/entrypoint", "value": '["/entry","point"]'},
            {"name": "appc.io/docker/cmd", "value": '["a","b"]'},
            {"name": "minit/stop-signal", "value": "SIGINT"},
        ],
    }


@pytest.mark.parametrize(
    ("user", "expected"),
    [("", ("0", "0")), ("app", ("app", "app")), ("7", ("7", "7")), ("7:8", ("7", "8")), (":8", ("0", "8"))],
)
def test_users(path: Path, user: str, expected: tuple[str, str]) -> None:
    """A user without a group is given the group of that name, as by docker2aci; none at all is root."""
    path.write_bytes(archive(docker_files(ONE, config=config_document([ONE], {"User": user}))))
    app = manifest_of(f"docker-archive:{path}")["app"]
    assert (app["user"], app["group"]) == expected  # type: ignore[index]


def test_the_way_of_an_image_leaves_no_trace(path: Path) -> None:
    """The spelling of a name, and what programs drop when they rewrite a configuration, do not change the ACI."""
    manifests = []
    dropped = {"parent": "sha256:" + "1" * 64, "comment": "by hand"}
    for name, fields in (("docker.io/busybox:1", dropped), ("busybox:1", {})):
        document = config_document([ONE], {"Labels": dict([("a", "1"), ("b", "2")][:: 1 if fields else -1])}, **fields)
        path.write_bytes(archive(docker_files(ONE, tags=[name], config=document)))
        manifests.append(manifest_of(f"docker-archive:{path}"))
    assert manifests[0] == manifests[1]
    assert json.dumps(manifests[0]) == json.dumps(manifests[1])


@pytest.mark.parametrize(
    ("check", "fields"),
    [
        ({"Test": ["CMD-SHELL", "a b"]}, {"exec": ["/bin/sh", "-c", "a b"]}),
        (
            {"Test": ["CMD", "a", "b"], "Interval": 5 * 10**9, "Timeout": 1, "StartPeriod": 10**9, "Retries": 2},
            {"exec": ["a", "b"], "interval": "5s", "timeout": "100ms", "delay": "1s", "failures": 2},
        ),
        ({"Test": []}, None),
        ({"Test": ["NONE"]}, None),
    ],
)
def test_the_healthcheck(path: Path, check: Json, fields: Json | None) -> None:
    """The HEALTHCHECK of an image is an annotation, in the fields of minit/health."""
    layout = Layout()
    layout.add(ONE, tag="a", config={"Healthcheck": check})
    layout.write_archive(path)
    given = cast(list[dict[str, str]], manifest_of(f"oci-archive:{path}").get("annotations", []))
    annotations = {each["name"]: each["value"] for each in given}
    text = annotations.get("appc.io/docker/healthcheck")
    assert (None if text is None else json.loads(text)) == fields


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"Env": ["A\u007f=c"]}, 'the environment variable "A\\u007f" cannot be given to an app'),
        ({"ExposedPorts": {"0/tcp": {}}}, 'cannot expose "0/tcp"'),
        ({"ExposedPorts": {"http": {}}}, 'cannot expose "http"'),
        ({"ExposedPorts": {"9-8": {}}}, 'cannot expose "9-8"'),
        ({"StopSignal": "no signal"}, '"no signal" is no stop signal'),
        ({"Healthcheck": {"Test": ["RUN", "x"]}}, "config.Healthcheck.Test: expected NONE, CMD or CMD-SHELL and words"),
        ({"Healthcheck": {"Test": ["CMD", "x"], "Interval": -1}}, "config.Healthcheck.Interval: expected"),
        ({"Cmd": "words"}, "config.Cmd: expected a list"),
        ({"Cmd": ["a\0b"]}, "config.Cmd[0]: expected a string without NUL"),
    ],
)
def test_configurations_without_a_meaning(path: Path, config: Json, reason: str) -> None:
    """A setting that an app could not be given is refused with its place, not dropped."""
    path.write_bytes(archive(docker_files(ONE, config=config_document([ONE], config))))
    assert reason in refusal(f"docker-archive:{path}")
