"""The images that a rendered image is made of, their order, and the source of each file."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from minit.archives.tarentry import Entry, Kind
from minit.base.errors import ImageError
from minit.base.processors import Processor
from minit.manifest.image import Dependency, parse_image_manifest
from minit.stage0.images.rendering import Layer, Selection, flatten, tree_id
from minit.stage0.images.storedimage import StoredImage
from tests import tars


def stored(name: str, *dependencies: str, whitelist: list[str] | None = None) -> StoredImage:
    """An image called `name`, whose ID is spelled from the name."""
    fields: dict[str, Any] = {"dependencies": [{"imageName": lower} for lower in dependencies]}
    if whitelist is not None:
        fields["pathWhitelist"] = whitelist
    text = tars.manifest(name, **fields)
    key = "sha512-" + hashlib.sha512(name.encode()).hexdigest()[:64]
    manifest = parse_image_manifest(text, "manifest")
    return StoredImage(id=key, manifest=manifest, manifest_bytes=text, size_bytes=0, import_time_ns=0, last_used_ns=0)


def flat(*images: StoredImage) -> tuple[Layer, ...]:
    """Flatten the first of the images; the others are in the store."""
    by_name = {image.name: image for image in images}

    def resolve(dependency: Dependency, _processor: Processor) -> StoredImage | None:
        return by_name.get(dependency.image_name)

    return flatten(images[0], resolve)


def names(*images: StoredImage) -> list[str]:
    """The names of the flattened list."""
    return [layer.name for layer in flat(*images)]


def test_later_dependencies_come_first() -> None:
    """A with dependencies B and C, C with dependency D, is A, C, D, B."""
    assert names(stored("a", "b", "c"), stored("b"), stored("c", "d"), stored("d")) == ["a", "c", "d", "b"]


def test_a_diamond_repeats_what_is_shared() -> None:
    """An image two others depend on is listed below both of them."""
    assert names(stored("a", "b", "c"), stored("b", "d"), stored("c", "d"), stored("d")) == ["a", "c", "d", "b", "d"]


def test_cycles_are_refused() -> None:
    """An image that depends on itself, through others or at once, is refused."""
    with pytest.raises(ImageError, match="b depends on a, which depends on it again"):
        flat(stored("a", "b"), stored("b", "a"))
    with pytest.raises(ImageError, match="a depends on a, which depends on it again"):
        flat(stored("a", "a"))


def test_exponential_dependencies_are_refused() -> None:
    """A tower of diamonds is refused before its list fills the memory."""
    tower = [stored(f"n{level}", f"n{level + 1}", f"n{level + 1}") for level in range(40)]
    with pytest.raises(ImageError, match="more than 256 images in its dependencies"):
        flat(*tower, stored("n40"))


def test_missing_dependencies_are_named() -> None:
    """An image that is not in the store is named with the image that needs it and what to do."""
    with pytest.raises(ImageError, match="image a: b depends on c, which is not in the store: .*minit fetch"):
        flat(stored("a", "b"), stored("b", "c"))


def test_tree_id_is_the_hash_of_the_keys() -> None:
    """The tree ID is half of SHA-512 over the keys of the list, joined by commas."""
    layers = flat(stored("a", "b"), stored("b"))
    text = ",".join(layer.image_id for layer in layers)
    assert tree_id(layers) == "deps-sha512-" + hashlib.sha512(text.encode()).hexdigest()[:64]


def entry(path: str) -> Entry:
    """An entry: a directory if the path ends in a slash, else a file."""
    kind = Kind.DIRECTORY if path.endswith("/") else Kind.FILE
    return Entry(path=path.rstrip("/"), kind=kind, mode=0o755, uid=0, gid=0, size_bytes=0, mtime_ns=0, atime_ns=0)


def taken(layers: tuple[Layer, ...], *contents: list[str]) -> list[list[str]]:
    """The part of each layer's paths that the selection takes."""
    selection = Selection(layers)
    result = []
    for layer, paths in zip(layers, contents, strict=True):
        result.append([path for path in paths if selection.takes(layer, entry(path))])
        selection.next_layer()
    return result


def test_only_the_rootfs_is_taken() -> None:
    """Other top-level entries of an image are ignored."""
    paths = ["manifest", "rootfs/", "rootfs/x", "rootfs2/x", "rootfsx", "etc/passwd"]
    assert taken(flat(stored("a")), paths) == [["rootfs/", "rootfs/x"]]


def test_upper_images_hide_lower_ones() -> None:
    """A path of an upper image is not taken from a lower one, directories neither."""
    layers = flat(stored("a", "b"), stored("b"))
    upper = ["rootfs/", "rootfs/d/", "rootfs/d/x", "rootfs/implied/x"]
    lower = ["rootfs/", "rootfs/d/", "rootfs/d/x", "rootfs/d/y", "rootfs/implied/", "rootfs/implied/x"]
    assert taken(layers, upper, lower) == [upper, ["rootfs/d/y", "rootfs/implied/"]]


def test_a_file_hides_what_lies_below_its_name() -> None:
    """Below a path that an upper image has as a file, nothing is taken."""
    layers = flat(stored("a", "b"), stored("b"))
    assert taken(layers, ["rootfs/d"], ["rootfs/d/", "rootfs/d/x", "rootfs/d/e/y", "rootfs/dd"]) == [
        ["rootfs/d"],
        ["rootfs/dd"],
    ]


def test_a_parent_nobody_listed_hides_files_only() -> None:
    """A directory an upper image needs as a parent cannot become a file, but may get its mode from below."""
    layers = flat(stored("a", "b", "c"), stored("b"), stored("c"))
    assert taken(layers, ["rootfs/d/x"], ["rootfs/d"], ["rootfs/d/"]) == [["rootfs/d/x"], [], ["rootfs/d/"]]


def test_the_last_entry_of_a_path_wins_within_an_image() -> None:
    """A path an image repeats is taken again."""
    paths = ["rootfs/x", "rootfs/x"]
    assert taken(flat(stored("a", "b"), stored("b")), paths, paths) == [paths, []]


def test_an_images_own_whitelist_spares_directories() -> None:
    """Files that an image's path whitelist lacks are skipped, directories are not."""
    layers = flat(stored("a", whitelist=["/bin/sh", "/etc//../lib/x"]))
    paths = ["rootfs/", "rootfs/bin/", "rootfs/bin/sh", "rootfs/bin/ls", "rootfs/lib/x", "rootfs/var/"]
    assert taken(layers, paths) == [["rootfs/", "rootfs/bin/", "rootfs/bin/sh", "rootfs/lib/x", "rootfs/var/"]]


def test_an_upper_whitelist_holds_for_directories_too() -> None:
    """Of the images below one with a whitelist only what it lists is taken, and the rootfs itself."""
    layers = flat(stored("a", "b", whitelist=["/etc", "/etc/x"]), stored("b"))
    lower = ["rootfs/", "rootfs/etc/", "rootfs/etc/x", "rootfs/etc/y", "rootfs/var/"]
    assert taken(layers, [], lower) == [[], ["rootfs/", "rootfs/etc/", "rootfs/etc/x"]]


def test_the_whitelist_nearest_the_top_rules() -> None:
    """Of several whitelists above an image that of the topmost counts, and none of a sibling's."""
    top = flat(stored("a", "b", whitelist=["/x"]), stored("b", "c", whitelist=["/y"]), stored("c"))
    assert [layer.upper_whitelist for layer in top] == [None, {"rootfs/x"}, {"rootfs/x"}]
    middle = flat(stored("a", "b"), stored("b", "c", whitelist=["/y"]), stored("c"))
    assert [layer.upper_whitelist for layer in middle] == [None, None, {"rootfs/y"}]
    sibling = flat(stored("a", "b", "c"), stored("b"), stored("c", whitelist=["/y"]))
    assert [layer.upper_whitelist for layer in sibling] == [None, None, None]
