"""OCI images and docker archives in the store, and pods of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from minit.base.errors import ImageError, StoreError
from minit.base.processors import this_processor
from minit.base.progress import silent
from minit.linux.loop import wait_readable
from minit.stage0.images import layerstore
from minit.stage0.images.extract import extract_image
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.registry import Skopeo, skopeo_source
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import ImageDigests, PullPolicy
from tests import tars
from tests.support.layers import (
    REF_NAME,
    Layout,
    archive,
    busybox_layer,
    config_document,
    docker_files,
    gzipped,
    layer,
    whiteout,
)
from tests.support.pods import LOOPBACK_ONLY
from tests.support.processes import children_of
from tests.support.registry import IDENTITY_TOKEN, PASSWORD, USER, registry
from tests.support.stage0_world import World
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1 = stage1_image
    return world


def busybox_layout(**config: object) -> Layout:
    """A layout with a shell in two layers, the upper of which removes and adds a file."""
    upper = layer(whiteout("etc/group"), tars.file("etc/hello", b"hello\n"))
    layout = Layout()
    layout.add(
        *(busybox_layer(), upper), tag="1.0", config=config, architecture=MACHINE, compress=gzipped, suffix="+gzip"
    )
    return layout


def left_in(store: Store) -> list[str]:
    """The files of the store, without locks."""
    own = store.data / "minit" / "cas"
    return sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file())


def run(world: World, *words: object, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a pod without a network."""
    result = world.minit(
        *("run", "--quiet", f"--stage1-path={world.stage1}", "--net=none", "--hostname=h", *words),
        code=code,
        **variables,
    )
    result.stderr = result.stderr.replace(LOOPBACK_ONLY, "")
    return result


def test_a_pod_of_an_oci_archive(world: World) -> None:
    """An OCI archive is run as it is named, with its program, user, directory and environment, and its exit code."""
    layout = busybox_layout(
        Entrypoint=["sh", "-c"],
        Cmd=["cat hello; ls group 2>&1; echo $A; id -u; exit 7"],
        Env=["PATH=/bin", "A=b"],
        User="app",
        WorkingDir="/etc",
    )
    path = layout.write_archive(world.root / "box.tar")
    result = run(world, f"oci-archive:{path}", code=7)
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert lines == ["hello", "ls: group: No such file or directory", "b", "7"]


def test_pods_of_a_directory_and_of_a_docker_archive(world: World) -> None:
    """A layout's directory, by its tag, and an archive of docker save make a pod of two apps."""
    directory = busybox_layout(Cmd=["/bin/sh", "-c", "echo oci"]).write_directory(world.root / "box")
    files = docker_files(busybox_layer(), tags=["team/tool:3"])
    (world.root / "tool.tar").write_bytes(archive(files))
    result = run(
        *(world, f"oci:{directory}:1.0", "---", "docker-archive:tool.tar", "--exec=/bin/sh", "--", "-c", "echo docker")
    )
    assert {line.partition("[")[0]: line.partition("]: ")[2] for line in result.stdout.splitlines()} == {
        "box": "oci",
        "tool": "docker",
    }
    names = [line.split("\t") for line in world.minit("image", "list", "--no-legend").stdout.splitlines()]
    assert any("registry-1.docker.io/team/tool:3" in fields for fields in names)
    by_name = run(world, "--no-overlay", "team/tool", "--exec=/bin/busybox", "--", "echo", "by name")
    assert by_name.stdout.endswith(": by name\n")


def test_fetch_prints_the_id_and_prepare_finds_the_image(world: World) -> None:
    """The id that fetch prints is that of the image that prepare takes for the same reference."""
    path = busybox_layout(Cmd=["/bin/true"]).write_archive(world.root / "box.tar")
    image_id = world.minit("fetch", "--full", f"oci-archive:{path}").stdout.strip()
    uuid = world.minit("prepare", f"--stage1-path={world.stage1}", f"oci-archive:{path}").stdout.strip()
    manifest = json.loads(world.minit("cat-manifest", uuid).stdout)
    assert manifest["apps"][0]["image"]["id"] == image_id


def test_an_image_is_converted_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is found again without being unpacked, so are its layers in another one; a damaged one is refused."""
    layout = busybox_layout()
    reference = f"oci:{layout.write_directory(tmp_path / 'box')}"
    first = resolve_image(store, reference, silent)
    with monkeypatch.context() as patch:
        patch.setattr(layerstore, "unpack_layer", None)
        second = resolve_image(store, reference, silent)
        assert second.id == first.id and second.import_time_ns > first.import_time_ns
        assert resolve_image(store, reference, silent, PullPolicy.UPDATE).id == first.id
        # Another tag is another image, of the same layers.
        layout.index[0]["annotations"] = {REF_NAME: "2.0"}
        (tmp_path / "box" / "index.json").write_bytes(layout.contents()["index.json"])
        assert resolve_image(store, reference, silent).id != first.id
    for name, data in layout.files.items():
        if data.startswith(b"\x1f\x8b"):
            (tmp_path / "box" / name).write_bytes(data[:-1] + b"!")
    for _ in range(2):
        with pytest.raises(ImageError, match="damaged, copy the image again"):
            resolve_image(store, reference, silent)
        for image in store.list():
            store.remove(image.id)
    assert [name for name in left_in(store) if not name.startswith("known/")] == []


def test_a_renewed_image_has_its_configuration(store: Store, tmp_path: Path) -> None:
    """An image that was imported without its configuration gets the configuration with the next import."""
    path = busybox_layout().write_archive(tmp_path / "box.tar")
    image = resolve_image(store, f"oci-archive:{path}", silent)
    kept = store.configuration(image.id)
    (recorded,) = (store.data / "minit/cas/configuration").rglob("sha512-*")
    recorded.unlink()
    assert store.configuration(image.id) is None
    assert resolve_image(store, f"oci-archive:{path}", silent).id == image.id
    assert kept is not None and store.configuration(image.id) == kept


def test_what_was_removed_is_converted_again(store: Store, tmp_path: Path) -> None:
    """An image that is no longer in the store is not remembered, and nothing is left of the memory in the end."""
    reference = f"oci-archive:{busybox_layout().write_archive(tmp_path / 'box.tar')}"
    first = resolve_image(store, reference, silent)
    store.remove(first.id)
    (tmp_path / "other.tar").write_bytes(archive(docker_files(busybox_layer())))
    resolve_image(store, f"docker-archive:{tmp_path / 'other.tar'}", silent)
    assert len([name for name in left_in(store) if name.startswith("known/")]) == 1
    assert resolve_image(store, reference, silent).id == first.id


def test_an_archive_without_its_word(store: Store, tmp_path: Path) -> None:
    """An archive of layers that is given as an ACI is refused, with the word that goes before it."""
    path = tmp_path / "box.tar"
    busybox_layout().write_archive(path)
    with pytest.raises(ImageError, match=f"no app container image: give it as oci-archive:{path}"):
        resolve_image(store, str(path), silent)
    path.write_bytes(archive(docker_files(busybox_layer())))
    with pytest.raises(ImageError, match=f"no app container image: give it as docker-archive:{path}"):
        resolve_image(store, str(path), silent)


def test_nothing_is_left_of_a_failed_import(store: Store, tmp_path: Path) -> None:
    """A layer that proves to be wrong at its end leaves no file in the store, nor a temporary one."""
    files = docker_files(busybox_layer(), layer(tars.file("a", os.urandom(3 << 20))))
    path = next(name for name in files if name.endswith("layer.tar"))
    last = [name for name in files if name.endswith("layer.tar")][-1]
    for name in (path, last):
        (tmp_path / "bad.tar").write_bytes(archive({**files, name: files[name][:-1] + b"!"}))
        with pytest.raises(ImageError, match="damaged|goes on after its end"):
            resolve_image(store, f"docker-archive:{tmp_path / 'bad.tar'}", silent)
    assert left_in(store) == []


def test_an_image_for_another_machine_is_not_imported(store: Store, tmp_path: Path) -> None:
    """A foreign image is refused before any of its layers is read."""
    layout = Layout()
    layout.add(layer(), architecture="pdp11")
    with pytest.raises(ImageError, match="the image is for linux/pdp11, this machine is linux/"):
        resolve_image(store, f"oci-archive:{layout.write_archive(tmp_path / 'x.tar')}", silent)
    assert left_in(store) == []


def test_progress(store: Store, tmp_path: Path) -> None:
    """Progress counts the bytes of the layers."""
    layout = busybox_layout()
    reports: list[tuple[str, int, int | None]] = []
    path = layout.write_archive(tmp_path / "box.tar")
    resolve_image(store, f"oci-archive:{path}", lambda *report: reports.append(report))
    total = sum(len(data) for data in layout.files.values() if data.startswith(b"\x1f\x8b"))
    steps = list(dict.fromkeys(report[0] for report in reports))
    assert steps == ["importing box"]
    assert reports[-1] == ("importing box", total, total)
    assert [report[1] for report in reports] == sorted(report[1] for report in reports)


# A registry: skopeo is a stand-in that copies a layout, and writes down its arguments.

_DOCKER = "application/vnd.docker."
_SKOPEO = """#!/bin/sh
echo "$@" >> "{calls}"
for word; do
    case "$word" in --authfile=*) cat "${{word#--authfile=}}" > "{calls}.$1" ;; esac
done
[ "$1" = inspect ] || echo "Getting image source signatures"
if [ -n "$FAIL" ]; then
    echo "time=\\"2024-01-01T00:00:00Z\\" level=fatal msg=\\"reading manifest: $FAIL\\"" >&2
    exit 1
fi
if [ "$1" = inspect ]; then
    cat "{manifest}"
    exit
fi
mkdir -p "${{3#oci:}}"
cp -rn "{layout}/." "${{3#oci:}}"
"""


@pytest.fixture
def skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A skopeo that has one image; returns the file with its calls."""
    busybox, calls = busybox_layout(), tmp_path / "calls"
    layout = busybox.write_directory(tmp_path / "registry")
    manifest = layout / "blobs" / str(busybox.index[0]["digest"]).replace(":", "/")
    program = tmp_path / "bin" / "skopeo"
    program.parent.mkdir()
    program.write_text(_SKOPEO.format(calls=calls, layout=layout, manifest=manifest))
    program.chmod(0o755)
    calls.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    # A machine without skopeo has no policy.
    policy = tmp_path / "home/.config/containers/policy.json"
    policy.parent.mkdir(parents=True)
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return calls


def test_an_image_of_a_registry(store: Store, skopeo: Path) -> None:
    """skopeo fetches an image once; the pull policy decides about a second time; it is named by where it came from."""
    reports: list[str] = []
    reference = "docker://quay.io/team/box:2"
    with pytest.raises(StoreError, match="is not in the store .* --pull-policy=never"):
        resolve_image(store, reference, silent, PullPolicy.NEVER)
    first = resolve_image(store, reference, lambda step, done, total: reports.append(step))
    assert (first.name, first.version) == ("quay.io/team/box", "2")
    assert "skopeo: Getting image source signatures" in reports
    for policy, calls in ((PullPolicy.NEW, 1), (PullPolicy.NEVER, 1), (PullPolicy.UPDATE, 2)):
        assert resolve_image(store, reference, silent, policy).id == first.id
        assert skopeo.read_text().count("copy ") == calls
    assert resolve_image(store, "docker:box", silent).name == "registry-1.docker.io/library/box"
    asked, copied = skopeo.read_text().splitlines()[-2:]
    assert asked == "inspect docker://docker.io/library/box:latest --raw"
    assert copied.startswith("copy docker://docker.io/library/box@sha256:")
    assert list((store.data / "minit/cas/tmp").iterdir()) == []


def test_the_digests_of_an_image_are_kept(store: Store, skopeo: Path, tmp_path: Path) -> None:
    """An image has the digest of its configuration whatever it came from, and that of its manifest in a registry."""
    layout = busybox_layout()
    document = json.loads(layout.files["blobs/" + str(layout.index[0]["digest"]).replace(":", "/")])
    configuration = document["config"]["digest"]
    archive_path = tmp_path / "docker.tar"
    files = docker_files(busybox_layer(), tags=["team/tool:3"])
    archive_path.write_bytes(archive(files))
    imported = resolve_image(store, f"docker-archive:{archive_path}", silent)
    assert imported.digests == ImageDigests(configuration=f"sha256:{next(iter(files)).removesuffix('.json')}")
    layout.write_directory(tmp_path / "box")
    for _ in range(2):  # the second time the image is known
        imported = resolve_image(store, f"oci:{tmp_path / 'box'}", silent)
        assert imported.digests == ImageDigests(configuration=configuration)
    manifests = (str(layout.index[0]["digest"]),)
    for reference, expected in ((f"dir:{tmp_path}", ()), ("docker://quay.io/team/box:2", manifests)):
        for policy in (PullPolicy.NEW, PullPolicy.UPDATE):
            imported = resolve_image(store, reference, silent, policy)
            assert imported.digests == ImageDigests(configuration=configuration, manifests=expected)
    store.remove(imported.id)
    assert not any(imported.id in path and "imagelocks" not in path for path in left_in(store))


def test_other_stores_are_read_by_skopeo(store: Store, skopeo: Path, tmp_path: Path) -> None:
    """Images of podman, of docker and in directories are asked for as skopeo names them; those have their names."""
    for reference, name in (
        ("containers-storage:[overlay@/var/x]localhost/team/box:3", "localhost/team/box:3"),
        ("docker-daemon:team/tool:4", "registry-1.docker.io/team/tool:4"),
    ):
        image = resolve_image(store, reference, silent, PullPolicy.NEVER)
        assert f"{image.name}:{image.version}" == name
        assert skopeo.read_text().splitlines()[-1].startswith(f"copy {reference} oci:")
    resolve_image(store, f"containers-storage:{'0' * 64}", silent)
    assert resolve_image(store, "dir:box", silent).name == "registry-1.docker.io/team/tool"
    assert skopeo.read_text().splitlines()[-1].startswith(f"copy dir:{Path('box').resolve()} oci:")
    with pytest.raises(StoreError, match='"dir:" names no image: expected something after the colon'):
        resolve_image(store, "dir:", silent)


def test_registries_without_certificates(world: World, skopeo: Path) -> None:
    """With http or tls among the insecure options skopeo is told to verify no registry, and without them not."""
    for option, told in (("http", True), ("tls", True), ("all-fetch", True), ("all", True), ("all-run", False)):
        world.minit(f"--insecure-options={option}", "fetch", "docker://localhost:5000/box")
        asked, copied = skopeo.read_text().splitlines()[-2:]
        assert ("--tls-verify=false" in asked, "--src-tls-verify=false" in copied) == (told, told)


def test_skopeo_ends_with_its_command(world: World, skopeo: Path) -> None:
    """Nothing goes on to fetch what a command wanted that was killed."""
    (skopeo.parent / "bin/skopeo").write_text("#!/bin/sh\nexec sleep 1000\n")
    words = world.command("fetch", "docker://quay.io/team/box:2")
    with subprocess.Popen(words, env=world.environment()) as process:
        [child] = wait_for(lambda: children_of(process.pid), "skopeo")
        pidfd = os.pidfd_open(child)
        process.kill()
    try:
        assert wait_readable([pidfd], 60.0)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def test_credentials(world: World, skopeo: Path) -> None:
    """skopeo reads the file of credentials from a descriptor; an empty one means none, and a bad one is named."""
    reference, given = "docker://quay.io/team/box:2", world.root / "auth.json"
    given.write_text('{"auths": {"quay.io": {"auth": "c2VjcmV0"}}}')
    world.minit("fetch", f"--authfile={given}", reference)
    for call in ("inspect", "copy"):
        assert skopeo.with_name(f"calls.{call}").read_text() == given.read_text()
    assert skopeo.read_text().count(" --authfile=/dev/fd/") == 2
    world.minit("fetch", "--authfile=/dev/null", reference)
    asked, copied = skopeo.read_text().splitlines()[-2:]
    assert asked.endswith(" --no-creds") and copied.endswith(" --src-no-creds")
    world.minit("fetch", reference)
    assert skopeo.read_text().splitlines()[-1].endswith(" --remove-signatures")
    failed = world.minit("fetch", f"--authfile={world.root}/none", reference, code=254)
    assert failed.stderr == f"fetch: --authfile: {world.root}/none: no such file or directory\n"
    given.write_text(" " * (1 << 20) + "x")
    failed = world.minit("fetch", f"--authfile={given}", reference, code=254)
    assert failed.stderr == f"fetch: --authfile: {given}: more than 1048576 bytes\n"


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_a_registry_that_demands_credentials(world: World, scheme: str) -> None:
    """The real skopeo is let in with a name and a password, or a token, and not without or with wrong ones."""
    layout = Layout()
    layout.add(busybox_layer(), tag="1", architecture=MACHINE)

    def fetched(entry: dict[str, str] | None, code: int = 0) -> str:
        authfile = world.root / "auth.json"
        authfile.write_text("" if entry is None else json.dumps({"auths": {served.host: entry}}))
        words = ("--insecure-options=http", "fetch", f"--authfile={authfile}", f"docker://{served.host}/team/box:1")
        return world.minit(*words, code=code).stderr

    with registry({"team/box": layout}, scheme) as served:
        right = {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
        wrong = {"auth": base64.b64encode(b"kubelet:wrong").decode()}
        for entry in (None, wrong):
            assert "nauthorized" in fetched(entry, 254) or "authentication required" in fetched(entry, 254)
            assert not served.seen
        fetched(right)
        if scheme == "Bearer":
            token = {"auth": base64.b64encode(b"<token>:").decode(), "identitytoken": IDENTITY_TOKEN}
            fetched(token)


def test_skopeo_fails(store: Store, skopeo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of skopeo becomes one line, and nothing is left."""
    said = 'cannot fetch "docker://docker.io/library/busybox:latest": skopeo: reading manifest: '
    remedy = ": containers-registries.conf(5) says which registries have no certificates"
    for failure, told in (
        (r"\"x\" unauthorized", '"x" unauthorized'),
        ("tls: unknown", f"tls: unknown{remedy}, or for one command --insecure-options=http,tls"),
    ):
        monkeypatch.setenv("FAIL", failure)
        with pytest.raises(StoreError) as caught:
            resolve_image(store, "docker://busybox", silent)
        assert str(caught.value) == f"{said}{told}"
    assert left_in(store) == []


_SLOW = """#!/bin/sh
[ -e "{fifo}" ] || exec sleep 1000
echo "Copying blob"
mkdir -p "${{3#oci:}}"
printf 12345 > "${{3#oci:}}/blob"
exec cat "{fifo}"
"""


def test_a_slow_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are reported as they come; a registry of which none come for some time is given up, with one line."""
    program, fifo = tmp_path / "bin/skopeo", tmp_path / "fifo"
    program.parent.mkdir()
    program.write_text(_SLOW.format(fifo=fifo))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    os.mkfifo(fifo)
    reports: list[tuple[str, int]] = []

    def progress(step: str, done: int, total: int | None) -> None:
        reports.append((step, done))
        if done == 5:
            fifo.write_text("")  # it may end now

    source = skopeo_source("docker://quay.io/team/box:2")
    Skopeo(source, this_processor(), progress, verify_tls=True, patience_seconds=3600).copy(
        source.wanted, tmp_path / "copy"
    )
    assert reports[-1] == ("skopeo: Copying blob", 5)
    fifo.unlink()
    skopeo = Skopeo(source, this_processor(), silent, verify_tls=True, patience_seconds=0.1)
    for stall in (lambda: skopeo.copy(source.wanted, tmp_path / "copy"), skopeo.read_manifest):
        with pytest.raises(StoreError) as caught:
            stall()
        assert str(caught.value) == 'cannot fetch "docker://quay.io/team/box:2": nothing came for 0.1 seconds'


def test_no_skopeo(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without skopeo the error says what to do on a machine that has it, and here."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError) as caught:
        resolve_image(store, "docker://quay.io/team/box:2", silent)
    assert str(caught.value) == (
        'cannot fetch "docker://quay.io/team/box:2": skopeo is not installed: install it, or on a machine that has it:'
        " skopeo copy docker://quay.io/team/box:2 oci-archive:box-2.tar:quay.io/team/box:2,"
        " and here: minit fetch oci-archive:box-2.tar"
    )
    with pytest.raises(StoreError, match='"a b" is no name of an image'):
        resolve_image(store, "docker://a b", silent)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
def test_what_skopeo_writes(tmp_path: Path, store: Store) -> None:
    """The real skopeo's copies of an image, in every form it has, are read and are the same image."""
    layout = busybox_layout(Cmd=["/bin/sh"]).write_directory(tmp_path / "box")
    images = []
    for target, name in (
        (f"docker-archive:{tmp_path}/docker.tar", "team/box:1.0"),
        (f"oci-archive:{tmp_path}/a.tar", "docker.io/team/box:1.0"),
        (f"oci:{tmp_path}/b", "registry-1.docker.io/team/box:1.0"),
        (f"dir:{tmp_path}/c", ""),
    ):
        copy_by_skopeo(f"oci:{layout}:1.0", f"{target}:{name}" if name else target)
        images.append(resolve_image(store, target, silent, PullPolicy.UPDATE))
    assert [image.id for image in images] == [images[0].id] * 4
    assert (images[0].name, images[0].version) == ("registry-1.docker.io/team/box", "1.0")


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo on PATH")
@pytest.mark.parametrize("is_index", [False, True])
def test_an_image_of_docker_has_its_own_configuration(store: Store, is_index: bool) -> None:
    """The real skopeo rewrites Docker's configurations: the image's id is the digest that the registry has."""
    base, layout = busybox_layer(), Layout()
    config = layout.document(config_document([base], architecture=MACHINE), f"{_DOCKER}container.image.v1+json")
    packed = layout.blob(gzipped(base), f"{_DOCKER}image.rootfs.diff.tar.gzip")
    kind = f"{_DOCKER}distribution.manifest.v2+json"
    manifest: dict[str, object] = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [packed]}
    top = layout.document(manifest, kind, platform={"os": "linux", "architecture": MACHINE})
    if is_index:
        kind = f"{_DOCKER}distribution.manifest.list.v2+json"
        top = layout.document({"schemaVersion": 2, "mediaType": kind, "manifests": [top]}, kind)
    layout.index.append({**top, "annotations": {REF_NAME: "1"}})
    with registry({"team/box": layout}) as served:
        image = resolve_image(store, f"docker://{served.host}/team/box:1", silent, verify_tls=False)
    digests = ImageDigests(configuration=str(config["digest"]), manifests=(str(top["digest"]),))
    assert image.digests == digests


_STEPS = (
    "mkdir -p etc/x/y bin opq/deep; echo 1 > etc/x/y/f; echo 2 > etc/g; ln etc/g etc/h; ln -s ../etc bin/etc;"
    " cp /usr/bin/busybox bin/b; chmod 4755 bin/b; mknod null c 1 3; mkfifo p; echo z > opq/deep/z; chown 7:8 etc/h",
    "rm -r etc/x etc/g; echo new > etc/x; rm -r opq; mkdir opq; echo q > opq/q; ln etc/h etc/i; chmod 700 bin",
    "rm etc/h; rm -r opq; echo file > opq; mv bin/b bin/c; rm null",
)


@pytest.mark.skipif(shutil.which("umoci") is None, reason="no umoci on PATH")
def test_what_umoci_writes_and_unpacks(tmp_path: Path, store: Store) -> None:
    """The layers that umoci makes of three changes become the files that umoci itself makes of them."""
    image = f"{tmp_path / 'image'}:one"
    by_umoci("init", "--layout", tmp_path / "image")
    by_umoci("new", "--image", image)
    for number, step in enumerate(_STEPS):
        bundle = tmp_path / f"bundle{number}"
        by_umoci("unpack", "--image", image, bundle)
        subprocess.run(["sh", "-ec", step], cwd=bundle / "rootfs", check=True, timeout=90)
        by_umoci("repack", "--image", image, bundle)
    by_umoci("raw", "unpack", "--image", image, tmp_path / "expected")
    found = resolve_image(store, f"oci:{image}", silent)
    extract_image(store, found.id, tmp_path / "found")
    shutil.rmtree(tmp_path / "found" / "rootfs" / "dev")  # what every converted image is given
    assert listing(tmp_path / "found" / "rootfs") == listing(tmp_path / "expected")


def by_umoci(*words: object) -> None:
    """Let the machine's umoci do something."""
    subprocess.run(["umoci", *map(str, words)], check=True, timeout=90, capture_output=True)


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    """A directory's contents, each with kind, mode, owner, links, time to the second, device, target or content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        facts = status.st_mode, status.st_uid, status.st_gid, int(status.st_mtime), status.st_rdev, content
        found[str(path.relative_to(root))] = facts if path.is_dir() else (*facts, status.st_nlink)
    return found


def copy_by_skopeo(source: str, target: str) -> None:
    """Let the machine's skopeo copy an image."""
    subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", source, target], check=True, timeout=90)
