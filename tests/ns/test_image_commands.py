"""`minit image` with the images of the store."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests import tars
from tests.support.incommand import Command, command_on
from tests.support.stage0_world import World, image_id

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="extracts images, which needs root")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An empty data directory."""
    return tmp_path / "data"


@pytest.fixture
def minit(data: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, on that directory."""
    return command_on(data, capsys)


@pytest.fixture
def image(tmp_path: Path, minit: Command) -> str:
    """The ID of a stored image that depends on another one and lets not all of it pass."""
    lower = tars.write_image(
        tmp_path / "lower.aci",
        tars.directory("rootfs/d", 0o700, uid=7),
        tars.file("rootfs/d/low", b"low"),
        tars.file("rootfs/hidden", b"hidden"),
        manifest_bytes=tars.manifest("example.com/lower"),
    )
    upper = tars.write_image(
        tmp_path / "app.aci",
        tars.file("rootfs/x", b"hello", mode=0o4755, uid=5, gid=6),
        tars.hard_link("rootfs/y", "rootfs/x"),
        tars.pax({"SCHILY.xattr.user.x": "1"}) + tars.file("rootfs/attributes", b"a"),
        manifest_bytes=tars.manifest(
            dependencies=[{"imageName": "example.com/lower"}], pathWhitelist=["/x", "/y", "/attributes", "/d", "/d/low"]
        ),
    )
    minit("fetch", lower)
    return minit("image", "fetch", "--full", upper).stdout.strip()


def test_list_has_fields_orders_and_formats(tmp_path: Path, minit: Command) -> None:
    """`image list` shows the fields asked for, sorted by those asked for, up or down, in rkt's columns."""
    assert minit("image", "list").stdout.split() == ["ID", "NAME", "SIZE", "IMPORT", "TIME", "LAST", "USED"]
    assert minit("image", "list", "--format=json").stdout == "null\n"
    for name, size in (("b", 3), ("c", 1), ("a", 2)):
        path = tars.write_image(
            tmp_path / name, tars.file("rootfs/x", bytes(size << 10)), manifest_bytes=tars.manifest(name)
        )
        minit("fetch", f"{tmp_path}/./{name}", path.name and "--quiet")

    def names(*flags: str) -> list[str]:
        return minit("image", "list", "--fields=name", "--no-legend", *flags).stdout.split()

    assert names() == ["b:1", "c:1", "a:1"]
    assert names("--order=desc") == ["a:1", "c:1", "b:1"]
    assert names("--sort=name") == ["a:1", "b:1", "c:1"]
    assert names("--sort=size", "--order", "DESC") == ["b:1", "a:1", "c:1"]
    assert names("--sort=lastused,name") == ["b:1", "c:1", "a:1"]
    assert minit("image", "list", "--fields=size,id", "--full").stdout.splitlines()[0].split() == ["SIZE", "ID"]
    assert [one["name"] for one in json.loads(minit("image", "list", "--sort=name", "--format=json").stdout)] == names(
        "--sort=name"
    )
    for bad, reason in (
        ("--fields=name,latest", '--fields: expected some of id,name,size,importtime,lastused, got "latest"'),
        ("--fields=", 'got ""'),
        ("--sort=id", '--sort: expected some of name,importtime,lastused,size, got "id"'),
        ("--sort=name,name", '"name" is given twice'),
        ("--order=up", "order"),
    ):
        assert reason in minit("image", "list", bad, code=254).stderr


def test_manifests_are_indented_or_not(image: str, minit: Command) -> None:
    """`image cat-manifest` indents with tabs, unless told not to."""
    pretty, compact = (minit("image", "cat-manifest", *flag, image).stdout for flag in ((), ("--pretty-print=false",)))
    assert pretty.startswith('{\n\t"acKind"') and compact.count("\n") == 1
    assert json.loads(pretty) == json.loads(compact)


def test_removing_counts(image: str, minit: Command) -> None:
    """`image rm` says how many images it removed; one that is not there is a failure, and the others still go."""
    result = minit("image", "rm", "missing", image, "example.com/lower", code=254)
    assert result.stdout.splitlines()[0] == f'successfully removed aci for image: "{image}"'
    lines = result.stderr.splitlines()
    assert lines[0].startswith('rm: image "missing" is not in the store')
    assert lines[0].endswith(": minit image list shows the images")
    assert lines[1:] == ["rm: 2 image(s) successfully removed", "rm: failed to remove one or more images"]


def test_removing_what_was_unpacked(image: str, minit: Command, data: Path) -> None:
    """`image rm --unpacked` removes the trees of images that are gone, also of earlier ones, and no others."""

    def unpacked() -> set[str]:
        return {(tree / "image").read_text() for tree in (data / "cas/tree").iterdir()}

    [lower] = unpacked() - {image}
    minit("image", "rm", image)
    assert unpacked() == {lower, image}
    minit("image", "rm", "--unpacked", "missing", code=254)
    assert unpacked() == {lower}
    minit("image", "rm", "--unpacked", lower)
    assert unpacked() == set()


def test_export_is_the_uncompressed_image(tmp_path: Path, image: str, minit: Command) -> None:
    """`image export` writes the bytes whose hash is the ID, whole or not at all, and replaces nothing unasked."""
    output = tmp_path / "out.aci"
    minit("image", "export", image[:20], output)
    assert image_id(output) == image
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    output.write_bytes(b"mine")
    assert "output ACI file exists (try --overwrite)" in minit("image", "export", image, output, code=254).stderr
    assert output.read_bytes() == b"mine"
    minit("image", "export", "--overwrite", image, output)
    assert image_id(output) == image
    (tmp_path / "link").symlink_to(output)
    minit("image", "export", "--overwrite", image, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    for place, reason in (
        (tmp_path, "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / "none/x.aci", "no such file or directory"),
    ):
        assert reason in minit("image", "export", "--overwrite", image, place, code=254).stderr
    assert not list(tmp_path.glob(".*"))


def test_extract_is_the_image_alone(tmp_path: Path, image: str, minit: Command) -> None:
    """`image extract` unpacks the archive itself, with all that is kept; --rootfs-only leaves the manifest out."""
    out = tmp_path / "deep/out"
    minit("image", "extract", image, out)
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == [
        *("manifest", "rootfs", "rootfs/attributes", "rootfs/x", "rootfs/y")
    ]
    status = (out / "rootfs/x").stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_nlink) == (0o4755, 5, 6, 2)
    assert os.getxattr(out / "rootfs/attributes", "user.x") == b"1"
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    minit("image", "extract", "--rootfs-only", image, tmp_path / "rootfs")
    assert sorted(os.listdir(tmp_path / "rootfs")) == ["attributes", "x", "y"]
    assert not list(out.parent.glob(".*"))


def test_render_is_what_an_app_sees(tmp_path: Path, image: str, minit: Command) -> None:
    """`image render` unpacks an image with its dependencies and by their path whitelists."""
    out = tmp_path / "out"
    minit("image", "render", image, out)
    assert sorted(os.listdir(out)) == ["manifest", "rootfs"]
    assert sorted(os.listdir(out / "rootfs")) == ["attributes", "d", "x", "y"]
    assert os.listdir(out / "rootfs/d") == ["low"]
    assert (out / "rootfs/d").stat().st_uid == 7
    minit("image", "render", "--rootfs-only", "--overwrite", image, out)
    assert sorted(os.listdir(out)) == ["attributes", "d", "x", "y"]


def test_outputs_replace_only_what_they_should(tmp_path: Path, image: str, minit: Command) -> None:
    """--overwrite replaces a directory, a file or a link, but neither `/` nor what is mounted."""
    out = tmp_path / "out"
    (out / "old/d").mkdir(parents=True)
    assert "output directory exists (try --overwrite)" in minit("image", "extract", image, out, code=254).stderr
    assert (out / "old").exists()
    minit("image", "extract", "--overwrite", image, out)
    assert sorted(os.listdir(out)) == ["manifest", "rootfs"]
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(out)
    for name in ("file", "link"):
        minit("image", "extract", "--overwrite", image, tmp_path / name)
        assert not (tmp_path / name).is_symlink() and (tmp_path / name / "rootfs/x").exists()
    assert (out / "rootfs/x").exists()
    for root in ("/", "/.", "//", "/usr/.."):
        assert "Refusing" in minit("image", "render", "--overwrite", image, root, code=254).stderr
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    (out / "mnt").mkdir()
    subprocess.run(["mount", "--bind", precious, out / "mnt"], check=True)
    try:
        failed = minit("image", "extract", "--overwrite", image, out, code=254)
        assert "cannot remove what was replaced" in failed.stderr
        assert (precious / "data").read_text() == "mine"
    finally:
        [left] = tmp_path.glob(".out.*")
        subprocess.run(["umount", left / "old/mnt"], check=True)


def test_a_damaged_image_is_not_written(data: Path, tmp_path: Path, image: str, minit: Command) -> None:
    """An image that fails to unpack leaves what was there before, and nothing beside it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("")
    [blob] = data.glob(f"minit/cas/blob/sha512/*/{image}")
    blob.write_bytes(blob.read_bytes().replace(b"hello", b"jello"))
    assert "damaged" in minit("image", "extract", "--overwrite", image, out, code=254).stderr
    assert os.listdir(out) == ["mine"] and not list(tmp_path.glob(".out*"))


def test_verify_checks_blobs_and_trees(data: Path, tmp_path: Path, image: str, minit: Command) -> None:
    """`image verify` checks the blob, checks the tree, and renders a changed one anew, which then is right."""
    ok = f'successfully verified checksum for image: "{image}" ("{image}")\n'
    assert minit("image", "verify", image).stdout == ok
    [tree] = [path.parent for path in data.glob("cas/tree/*/image") if path.read_text() == image]
    (tree / "rootfs/x").write_bytes(b"jello")
    repaired = minit("image", "verify", image).stdout
    assert repaired.startswith(f"tree cache verification failed for image {image}: ") and "rebuilding..." in repaired
    assert (tree / "rootfs/x").read_bytes() == b"hello"
    assert minit("image", "verify", image).stdout == ok
    os.setxattr(tree / "rootfs/attributes", "user.x", b"2")
    assert "minit-hash" in minit("image", "verify", image).stdout
    minit("image", "gc")
    assert minit("image", "verify", image, "example.com/lower").stdout == (
        f'image "{image}" not rendered; no verification needed\n'
        'image "example.com/lower" not rendered; no verification needed\n'
    )
    [blob] = data.glob(f"minit/cas/blob/sha512/*/{image}")
    blob.write_bytes(blob.read_bytes().replace(b"hello", b"jello"))
    failed = minit("image", "verify", image, "none", "example.com/lower", code=254)
    assert f"image {image} is damaged" in failed.stderr and "import it again with: minit fetch FILE" in failed.stderr
    assert 'image "example.com/lower" not rendered' in failed.stdout
    minit("fetch", tmp_path / "app.aci")
    assert minit("image", "verify", image).stdout == ok


def trees(world: World) -> set[str]:
    """The trees there are."""
    return set(os.listdir(world.data / "cas/tree"))


def images(world: World) -> set[str]:
    """The images there are."""
    return {path.name for path in world.data.glob("minit/cas/imageManifest/sha512/*/*")}


def test_gc_keeps_what_pods_need(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """`image gc` removes the trees no pod has, whatever state the pod is in, and the images unused for the period."""
    minit = command_on(world.data, capsys)
    unused = tars.write_image(world.root / "unused.aci", tars.file("rootfs/x"), manifest_bytes=tars.manifest("unused"))
    minit("fetch", unused)
    before = trees(world)
    uuid = world.prepare()
    needed = trees(world) - before
    assert len(before) == 1 and len(needed) == 2
    result = minit("image", "gc")
    assert result.stderr.splitlines() == [f'gc: removed treestore "{tree}"' for tree in before] and not result.stdout
    assert trees(world) == needed and len(images(world)) == 3
    with world.start() as running:
        result = minit("image", "gc", "--grace-period=0s")
        # The recorder is an app of no running pod.
        assert images(world) == {image_id(world.app)}
        assert result.stderr == "gc: 2 image(s) successfully removed\n"
        assert set(result.stdout.splitlines()) == {
            f'successfully removed aci for image: "{image_id(path)}"' for path in (unused, world.stage1)
        }
    minit("image", "gc", "--grace-period=0s")
    assert images(world) == set() and trees(world) == needed
    minit("rm", running.uuid)
    world.minit("run-prepared", uuid)
    minit("image", "gc")
    assert trees(world) == needed
    minit("gc", "--mark-only")
    minit("image", "gc")
    assert trees(world) == needed
    minit("rm", uuid)
    minit("image", "gc")
    assert trees(world) == set() and not list((world.data / "cas/tmp").iterdir())


def test_gc_keeps_the_stage1_of_minit(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The image that is recorded as minit's own stays with its tree, however old, until `image rm` removes it."""
    minit = command_on(world.data, capsys)
    minit("rm", world.prepare())
    own = image_id(world.stage1)
    (world.data / "minit/default-stage1").write_text(f"fingerprint {own}\n")
    minit("image", "gc", "--grace-period=0s")
    assert images(world) == {own}
    [tree] = trees(world)
    manifest = json.loads((world.data / "cas/tree" / tree / "manifest").read_text())
    assert manifest["name"] == "example.com/recorder"
    minit("image", "rm", own)
    minit("image", "gc", "--grace-period=0s")
    assert images(world) == trees(world) == set()


def test_gc_goes_by_the_last_use(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Preparing a pod from an image counts as its use, as its import does; `image list` shows when that was."""
    minit = command_on(world.data, capsys)
    world.prepare()
    long_ago = 1_000_000_000
    for path in world.data.glob("minit/cas/*/sha512/*/*"):
        os.utime(path, (long_ago, long_ago))
    shown = json.loads(minit("image", "list", "--format=json").stdout)
    assert {one["last_used_time"] for one in shown} == {long_ago * 10**9}
    minit("prepare", f"--stage1-hash={image_id(world.stage1)}", image_id(world.app))
    shown = json.loads(minit("image", "list", "--format=json").stdout)
    assert {one["import_time"] for one in shown} == {long_ago * 10**9}
    assert min(one["last_used_time"] for one in shown) > long_ago * 10**9
    minit("image", "gc", "--grace-period=1h")
    assert len(images(world)) == 2


def test_an_unreadable_pod_keeps_all_trees(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod whose trees cannot be told might need any: `image gc` removes none, and says why."""
    minit = command_on(world.data, capsys)
    uuid = world.prepare()
    pod = world.pod_path("prepared", uuid)
    (pod / "appsinfo/busybox/treeStoreID").write_text("../../..")
    before = trees(world)
    assert f'pod "{uuid}" may need anything' in minit("image", "gc", code=254).stderr
    assert trees(world) == before
    # rkt forgets the trees of the apps of such a pod.
    (pod / "appsinfo/busybox/treeStoreID").write_text(min(before))
    (pod / "stage1TreeStoreID").unlink()
    minit("image", "gc")
    assert trees(world) == {min(before)}


def test_the_tree_of_a_pod_is_not_replaced(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed tree that a pod refers to stays as it is, and the pods are named."""
    minit = command_on(world.data, capsys)
    uuid = world.prepare()
    for tree in trees(world):
        (world.data / "cas/tree" / tree / "rootfs/changed").write_text("")
    inode = {tree: (world.data / "cas/tree" / tree / "rootfs").stat().st_ino for tree in trees(world)}
    failed = minit("image", "verify", image_id(world.app), code=254)
    assert f"cannot be replaced while pods refer to it: remove these first: {uuid}" in failed.stderr
    assert {tree: (world.data / "cas/tree" / tree / "rootfs").stat().st_ino for tree in trees(world)} == inode
    minit("rm", uuid)
    minit("image", "verify", image_id(world.app))
    assert "successfully" in minit("image", "verify", image_id(world.app)).stdout
