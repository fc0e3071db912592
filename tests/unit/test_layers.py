"""Layers become one ACI: whiteouts, opaque directories, replaced files, hard links and symbolic links on the way."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.archives.aci import copy_image
from minit.archives.imagenames import ImageName
from minit.archives.layered import ImageConfig, Layer, LayeredImage, Platform
from minit.archives.squash import write_aci
from minit.archives.streams import Limits
from minit.archives.tar import TarReader
from minit.base.errors import ImageError
from tests import tars
from tests.support.layers import layer, opaque, sha256, whiteout


def image_of(*layers: bytes, digests: Sequence[str] | None = None) -> LayeredImage:
    """An image of these layers, given uncompressed or not, whose digests are right unless given."""
    wanted = digests or [sha256(data) for data in layers]
    return LayeredImage(
        source="x.tar",
        name=ImageName(registry="", repository="x"),
        id=sha256(b"config"),
        config=ImageConfig(platform=Platform(os="linux", architecture="amd64"), diff_ids=tuple(wanted)),
        document=b"config",
        layers=tuple(
            Layer(
                name=f"x.tar: layer {number}",
                open=partial(io.BytesIO, data),  # type: ignore[arg-type]  # what is read of a file
                size_bytes=len(data),
                diff_id=digest,
            )
            for number, (data, digest) in enumerate(zip(layers, wanted, strict=True))
        ),
    )


def squashed(*layers: bytes, limits: Limits | None = None) -> bytes:
    """The ACI that layers become, checked as one that a user gives."""
    written = bytearray()
    with tempfile.TemporaryDirectory() as path:
        image_id, manifest = write_aci(image_of(*layers), written.extend, Path(path), limits=limits or Limits())
    assert copy_image(io.BytesIO(bytes(written)), "x.aci", lambda data: None) == (image_id, manifest)
    return bytes(written)


Tree = dict[str, object]


def tree_of(aci: bytes) -> Tree:
    """The rootfs of an ACI: data, the target of a link after `->`, None for a directory."""
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(aci)) as tar:
        for member in tar:
            path = member.name.removeprefix("rootfs").removeprefix("/")
            if not member.name.startswith("rootfs") or path.startswith("dev/") or not path:
                continue
            if member.isdir():
                tree[path] = None
            elif member.issym():
                tree[path] = "-> " + member.linkname
            elif member.islnk():
                tree[path] = tree[member.linkname.removeprefix("rootfs/")]
            else:
                file = tar.extractfile(member)
                assert file is not None
                tree[path] = file.read()
    return tree


def merged(*layers: bytes) -> Tree:
    """The tree that layers become."""
    return tree_of(squashed(*layers))


def test_an_upper_file_replaces_a_lower_one() -> None:
    """Of two layers with a file of the same name the upper one's counts, whichever is larger."""
    assert merged(layer(tars.file("a", b"lower, longer")), layer(tars.file("a", b"upper"))) == {"a": b"upper"}


def test_a_whiteout_hides_a_file_of_a_lower_layer() -> None:
    """A file whited out is gone, its neighbours stay, and no whiteout is left behind."""
    lower = layer(tars.directory("d"), tars.file("d/a", b"1"), tars.file("d/b", b"2"))
    assert merged(lower, layer(whiteout("d/a"))) == {"d": None, "d/b": b"2"}


def test_a_whiteout_hides_a_directory_with_all_that_is_in_it() -> None:
    """Entries below a directory that is whited out go with it."""
    lower = layer(tars.directory("d"), tars.directory("d/e"), tars.file("d/e/a", b"1"), tars.file("x"))
    assert merged(lower, layer(whiteout("d"))) == {"x": b""}


@pytest.mark.parametrize("whiteout_first", [True, False])
def test_a_whiteout_leaves_its_own_layer_alone(whiteout_first: bool) -> None:
    """A layer's entry under a name that it whites out stays, whichever comes first in its tar."""
    entries = [whiteout("d"), tars.directory("d", 0o700) + tars.file("d/new", b"new")]
    upper = layer(*(entries if whiteout_first else entries[::-1]))
    assert merged(layer(tars.directory("d"), tars.file("d/old", b"old")), upper) == {"d": None, "d/new": b"new"}


@pytest.mark.parametrize("opaque_first", [True, False])
def test_an_opaque_directory_hides_lower_layers_only(opaque_first: bool) -> None:
    """An opaque directory loses what lower layers had in it, at any depth, and keeps what its own layer brings."""
    lower = layer(
        tars.directory("a"), tars.directory("a/b"), tars.directory("a/b/c"), tars.file("a/b/c/bar"), tars.file("a/x")
    )
    entries = [opaque("a"), tars.directory("a/b") + tars.directory("a/b/c") + tars.file("a/b/c/foo", b"foo")]
    upper = layer(tars.directory("a"), *(entries if opaque_first else entries[::-1]))
    assert merged(lower, upper) == {"a": None, "a/b": None, "a/b/c": None, "a/b/c/foo": b"foo"}


def test_the_top_directory_can_be_opaque() -> None:
    """An opaque whiteout at the top hides all lower layers."""
    assert merged(layer(tars.file("a")), layer(tars.file(".wh..wh..opq"), tars.file("b"))) == {"b": b""}


def test_a_directory_can_be_hidden_again_and_again() -> None:
    """Each layer hides what those below it brought, also in a directory that one of them hid before."""
    layers = [layer(opaque("a"), tars.file(f"a/{number}", b"x")) for number in range(4)]
    assert merged(*layers) == {"a/3": b"x"}
    layers = [layer(whiteout("a/b"), tars.file(f"a/b/{number}", b"x")) for number in range(4)]
    assert merged(*layers) == {"a/b/3": b"x"}


def test_a_directory_made_anew_does_not_look_like_the_hidden_one() -> None:
    """Mode and owner of a directory that is hidden go with it, though the same layer puts a file there."""
    lower = layer(tars.directory("d/e", 0o700, uid=7))
    for hidden in (whiteout("d/e"), opaque("d")):
        with tarfile.open(fileobj=io.BytesIO(squashed(lower, layer(hidden, tars.file("d/e/new"))))) as tar:
            assert "rootfs/d/e" not in tar.getnames() and "rootfs/d/e/new" in tar.getnames()


def test_a_whiteout_of_nothing_is_harmless() -> None:
    """Builders white out what no lower layer has."""
    assert merged(layer(tars.file("a")), layer(whiteout("b"), whiteout("c/d"), opaque("e"))) == {"a": b""}


def test_a_file_comes_back_after_a_whiteout() -> None:
    """A third layer may bring again what a second one removed."""
    layers = layer(tars.file("a", b"1")), layer(whiteout("a")), layer(tars.file("a", b"3"))
    assert merged(*layers) == {"a": b"3"}


def test_a_file_replaces_a_directory_and_a_directory_a_file() -> None:
    """The kind may change from layer to layer, and nothing below a former directory is left."""
    lower = layer(tars.directory("d"), tars.file("d/a"), tars.file("f", b"f"))
    upper = layer(tars.file("d", b"d"), tars.directory("f"), tars.file("f/b", b"b"))
    assert merged(lower, upper) == {"d": b"d", "f": None, "f/b": b"b"}


def test_an_upper_directory_changes_how_it_looks_and_keeps_what_is_in_it() -> None:
    """A directory's entry in an upper layer sets its mode and owner; its content stays."""
    aci = squashed(layer(tars.directory("d", 0o755), tars.file("d/a")), layer(tars.directory("d", 0o2711, uid=7)))
    with tarfile.open(fileobj=io.BytesIO(aci)) as tar:
        found = tar.getmember("rootfs/d")
        assert (found.mode, found.uid) == (0o2711, 7)
        assert "rootfs/d/a" in tar.getnames()


def test_the_top_entry_says_how_the_root_looks() -> None:
    """An entry for `./` sets mode and owner of the rootfs."""
    aci = squashed(layer(tars.directory("./", 0o711, uid=5)))
    entries = {entry.path: entry for entry in TarReader(io.BytesIO(aci), "x")}
    assert (entries["rootfs"].mode, entries["rootfs"].uid) == (0o711, 5)


def test_a_hard_link_to_a_lower_layer_keeps_what_it_meant() -> None:
    """A link made to a lower file keeps that file's data although an upper layer replaces or removes the file."""
    lower = layer(tars.file("a", b"data", mode=0o640))
    for change in (tars.file("a", b"other"), whiteout("a")):
        aci = squashed(lower, layer(tars.hard_link("b", "a"), tars.hard_link("c", "b")), layer(change))
        tree = tree_of(aci)
        assert tree["b"] == tree["c"] == b"data"
        with tarfile.open(fileobj=io.BytesIO(aci)) as tar:
            assert tar.getmember("rootfs/b").mode == 0o640
            assert tar.getmember("rootfs/c").linkname == "rootfs/b"


def test_hard_links_of_one_layer_stay_links() -> None:
    """Two names of a file remain one file."""
    aci = squashed(layer(tars.file("a", b"data"), tars.hard_link("d/b", "/a")))
    with tarfile.open(fileobj=io.BytesIO(aci)) as tar:
        assert tar.getmember("rootfs/d/b").linkname == "rootfs/a"


def test_a_name_leads_through_a_symbolic_link_inside_the_image() -> None:
    """A file below a link to a directory is put where the link leads, as docker does, and never out of the image."""
    lower = layer(tars.directory("usr/lib"), tars.symlink("lib", "usr/lib"), tars.symlink("up", "../../usr"))
    upper = layer(tars.file("lib/a", b"a"), tars.file("up/b", b"b"), whiteout("lib/c"))
    tree = merged(lower, upper)
    assert tree["usr/lib/a"] == b"a" and tree["usr/b"] == b"b"
    assert tree["lib"] == "-> usr/lib"


def test_a_whiteout_leads_through_a_symbolic_link() -> None:
    """A whiteout below a link to a directory means the file that the link leads to."""
    lower = layer(tars.directory("usr/lib"), tars.file("usr/lib/c"), tars.symlink("lib", "usr/lib"))
    assert merged(lower, layer(whiteout("lib/c"))) == {"usr/lib": None, "lib": "-> usr/lib"}


def test_a_directory_replaces_a_symbolic_link() -> None:
    """An entry for the directory itself is no way through the link but takes its place."""
    lower = layer(tars.directory("usr/lib"), tars.symlink("lib", "usr/lib"))
    tree = merged(lower, layer(tars.directory("lib"), tars.file("lib/a", b"a")))
    assert tree == {"usr/lib": None, "lib": None, "lib/a": b"a"}


def test_names_may_begin_with_a_slash() -> None:
    """Layers of some builders have absolute names, which begin at the image's root."""
    assert merged(layer(tars.file("/ko-app/x", b"x"))) == {"ko-app/x": b"x"}


def test_what_aufs_left_is_not_part_of_the_image() -> None:
    """Old layers carry aufs's own files; a hard link to one of those keeps its data."""
    entries = tars.directory(".wh..wh.plnk"), tars.file(".wh..wh.plnk/1.2", b"data"), tars.file(".wh..wh.aufs")
    assert merged(layer(*entries, tars.hard_link("a", ".wh..wh.plnk/1.2"))) == {"a": b"data"}


def test_empty_layers_are_layers() -> None:
    """A layer may be an empty tar, or no bytes at all."""
    assert merged(layer(), b"", layer(tars.file("a"))) == {"a": b""}


def test_what_docker_images_expect_in_dev_is_added() -> None:
    """The links for the standard streams are added where no layer has them."""
    with tarfile.open(fileobj=io.BytesIO(squashed(layer(tars.file("dev/stdin", b"own"))))) as tar:
        assert tar.getmember("rootfs/dev/stdin").isfile()
        assert tar.getmember("rootfs/dev/fd").linkname == "/proc/self/fd"
        assert tar.getmember("rootfs/dev/stderr").linkname == "/dev/console"
    with tarfile.open(fileobj=io.BytesIO(squashed(layer(tars.symlink("dev", "/tmp"))))) as tar:
        assert "rootfs/dev/fd" not in tar.getnames()


def test_everything_tar_records_is_kept() -> None:
    """Long names, large numbers, times before 1970 with nanoseconds, devices and attributes survive."""
    name, target = "n" * 90 + "/" + "m" * 90, "t" * 300
    records: dict[str, bytes | str] = {
        "path": name,
        "uid": "3000000",
        "gid": "4000000",
        "mtime": "-1.25",
        "atime": "5.5",
        "SCHILY.xattr.user.x": b"\0\xff",
    }
    entries = (
        tars.pax(records) + tars.file("x", b"data"),
        tars.pax({"linkpath": target}) + tars.symlink("link", "x"),
        tars.header("null", b"3", device=(1, 3), mode=0o666),
        tars.header("fifo", b"6"),
        tars.file(b"caf\xe9", b"latin"),
    )
    found = {entry.path: entry for entry in TarReader(io.BytesIO(squashed(layer(*entries))), "x")}
    file = found["rootfs/" + name]
    assert (file.uid, file.gid, file.mtime_ns, file.atime_ns) == (3_000_000, 4_000_000, -1_250_000_000, 5_500_000_000)
    assert file.xattrs == (("user.x", b"\0\xff"),)
    assert found["rootfs/link"].link_target == target
    assert found["rootfs/null"].device == os.makedev(1, 3)
    assert "rootfs/" + os.fsdecode(b"caf\xe9") in found


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([tars.file(".wh.")], "a whiteout of nothing"),
        ([tars.file("a/.wh...")], "a whiteout of nothing"),
        ([tars.directory(".wh.a")], "a whiteout that is a directory"),
        ([tars.file(".wh.a/b")], "lies below a whiteout"),
        ([tars.hard_link("a", "b")], "a hard link to .b., which is not there"),
        ([tars.directory("d"), tars.hard_link("a", "d")], "a hard link to .d., which is a directory"),
        ([tars.file("a"), tars.file("a/b")], "a directory of its path is none"),
        ([tars.file("a/b/c"), tars.file("a/b"), tars.file("a/b/d")], "a directory of its path is none"),
        ([tars.symlink("a", "b"), tars.symlink("b", "a"), tars.file("a/c")], "more than 40 symbolic links"),
        ([tars.file("../a")], "leaves the archive"),
        ([tars.symlink("top", "."), tars.file("", b"")], "empty name"),
        ([tars.file("./", b"")[:512].replace(b"\x000", b"\x000")], ""),
    ],
)
def test_layers_that_cannot_be_applied_are_refused(entries: list[bytes], reason: str) -> None:
    """A layer that no builder writes is refused with layer, entry and reason, rather than guessed at."""
    if not reason:
        squashed(layer(*entries))  # an old tar's way of writing a directory
        return
    with pytest.raises(ImageError, match=f"^x.tar: layer 0: .*{reason}"):
        squashed(layer(*entries))


def test_names_do_not_grow_through_links() -> None:
    """Links that lead deeper and deeper end at the depth any archive may have."""
    deep = "/".join("d" * 48)
    entries = tars.directory(deep), tars.symlink("s", deep), tars.directory("s/" + deep), tars.symlink("t", "s/" + deep)
    squashed(layer(*entries, tars.file("t/" + deep[:31] + "/x")))
    with pytest.raises(ImageError, match="more than 127 directories deep"):
        squashed(layer(*entries, tars.file("t/" + deep + "/x")))


def test_a_wrong_diff_id_is_refused(tmp_path: Path) -> None:
    """A layer that is not what the configuration says is refused with both digests, when nothing was written yet."""
    data = layer(tars.file("a", b"1"))
    written = bytearray()
    with pytest.raises(ImageError, match=rf"layer 0 has the diff_id {sha256(data)}, expected {sha256(b'x')}: damaged"):
        write_aci(image_of(data, digests=[sha256(b"x")]), written.extend, tmp_path)
    assert not written


def test_layers_together_may_not_be_too_large() -> None:
    """The limit of size is one for all layers, not for each."""
    layers = [layer(tars.file(f"f{number}", bytes(300_000))) for number in range(4)]
    with pytest.raises(ImageError, match="more than .* bytes when uncompressed"):
        squashed(*layers, limits=Limits(size_bytes=1_000_000))


@pytest.mark.parametrize("form", ["old", "0.0", "0.1", "1.0"])
def test_a_sparse_file_is_written_with_its_zeros(form: str) -> None:
    """In the ACI a sparse file is one like others, for whoever reads it."""
    page = b"data" * 128
    sparse = tars.sparse(form, "x", 3 << 20, [(512, 512), (2 << 20, 512)], page * 2)
    content = bytearray(3 << 20)
    content[512:1024] = content[2 << 20 : (2 << 20) + 512] = page
    assert merged(layer(sparse, tars.file("y", b"y"))) == {"x": bytes(content), "y": b"y"}


@pytest.mark.parametrize(
    ("size", "reason"),
    [(1 << 30, "refused as a decompression bomb"), (1 << 60, "more than .* bytes when uncompressed")],
)
def test_holes_count_as_what_they_become(size: int, reason: str) -> None:
    """Holes are written as zeros, so that a bomb of them is one, before any is written."""
    with pytest.raises(ImageError, match=reason):
        squashed(layer(tars.sparse("0.1", "x", size, [(size, 0)])))


def test_holes_of_all_layers_together_may_not_be_too_large() -> None:
    """The limit of size is one for the holes of all layers, too."""
    layers = [layer(tars.sparse("1.0", f"f{number}", 300_000, [])) for number in range(4)]
    with pytest.raises(ImageError, match="more than .* bytes when uncompressed"):
        squashed(*layers, limits=Limits(size_bytes=1_000_000))


# Hypothesis: the same layers, applied to a model that works on names and inodes, as simply as can be.

NAMES = ["a", "b"]
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
operations = st.one_of(
    st.tuples(st.just("file"), paths),
    st.tuples(st.just("directory"), paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("whiteout"), paths),
    st.tuples(st.just("opaque"), paths),
)


class Refused(Exception):
    """The model cannot apply an operation."""


class Model:
    """A file system of dicts: an inode is a list with one element, its data; a name knows the layer that made it."""

    def __init__(self) -> None:
        self.names: dict[str, tuple[int, list[bytes] | None]] = {}
        self.serial = 0

    def apply(self, number: int, operations: Sequence[tuple[str, ...]]) -> bytes:
        """Apply a layer's operations as its tar has them, and return the tar."""
        # Hiding is about lower layers alone, so that its order does not matter.
        entries: list[bytes] = []
        for operation in operations:
            kind, path = operation[:2]
            if kind in ("whiteout", "opaque"):
                entries.append(whiteout(path) if kind == "whiteout" else opaque(path))
                self.hide(number, path, itself=kind == "whiteout")
            else:
                with suppress(Refused):
                    entries.append(self.make(number, kind, path, *operation[2:]))
        return layer(*entries)

    def hide(self, number: int, path: str, *, itself: bool) -> None:
        for name in list(self.names):
            below = name.startswith(path + "/") or (itself and name == path)
            if below and self.names[name][0] < number:
                del self.names[name]
        # A directory that holds something of this layer stays, whoever made it.
        for name in list(self.names):
            self.make_parents(number, name)

    def make(self, number: int, kind: str, path: str, target: str = "") -> bytes:
        for parent in parents_of(path):
            if parent in self.names and self.names[parent][1] is not None:
                raise Refused
        if kind == "link":
            inode = self.names.get(target, (0, None))[1]
            if inode is None:
                raise Refused
            entry = tars.hard_link(path, target)
        elif kind == "file":
            self.serial += 1
            inode = [b"%d" % self.serial]
            entry = tars.file(path, inode[0])
        else:
            inode = None
            entry = tars.directory(path)
        if inode is not None:
            for name in [name for name in self.names if name.startswith(path + "/")]:
                del self.names[name]
        self.make_parents(number, path)
        self.names[path] = (number, inode)
        return entry

    def make_parents(self, number: int, path: str) -> None:
        for parent in parents_of(path):
            self.names.setdefault(parent, (number, None))


def parents_of(path: str) -> list[str]:
    """The directories a path leads through."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


@settings(deadline=None)
@given(st.lists(st.lists(operations, max_size=6), max_size=4))
def test_layers_give_what_applying_them_gives(layers: list[list[tuple[str, ...]]]) -> None:
    """For any layers the ACI holds the files, and the data, that applying them one by one leaves."""
    model = Model()
    tree = merged(*[model.apply(number, operations) for number, operations in enumerate(layers)])
    files = {name: inode[0] for name, (_, inode) in model.names.items() if inode is not None}
    assert {name: data for name, data in tree.items() if data is not None} == files
    for name in tree:
        for parent in parents_of(name):
            tree_parent = tree.get(parent)
            assert tree_parent is None, f"{parent} of {name} is no directory"


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    """A layer of any bytes is read or refused with one line."""
    try:
        squashed(data)
    except ImageError as error:
        assert "\n" not in str(error)
