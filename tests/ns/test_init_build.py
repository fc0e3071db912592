"""`minit init build`: what is in the root of a machine, how large it is, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from minit.base.progress import silent
from minit.image.foreign import foreign_stage1
from minit.podfiles import paths
from minit.podfiles.usersdirectory import program_directory
from tests.support.commands import Stage0
from tests.support.elf import AARCH64, module_bytes
from tests.support.foreignmachine import stand_in
from tests.support.stage0_world import write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="extracts images, which needs root")

_BUILT_IN = ("dm-verity", "squashfs", "overlay", "efivarfs")
NEWEST = 1600000000  # the time of a file of the app's image
MAXIMUM_BYTES = 39 << 20  # beside apps and modules


class Builder:
    """A data directory with an image, and a manifest for it."""

    def __init__(self, root: Path, stage1: Path) -> None:
        self.root = root
        self._stage1 = stage1
        self._stage0 = Stage0([sys.executable, "-m", "minit"], root, stage1)
        self.use_image()

    def use_image(self, **labels: str) -> None:
        """Write the manifest of an image that has a file of a known time."""
        write_app(self.root / "app.aci", app={"exec": ["/bin/sh"], "user": "0", "group": "0"}, labels=labels or None)
        with tarfile.open(self.root / "app.aci", "a") as tar:
            newest = tarfile.TarInfo("rootfs/newest")
            newest.mtime = NEWEST
            tar.addfile(newest)
        image = self._stage0.call("fetch", "--full", self.root / "app.aci").stdout.strip()
        self.write_manifest({"name": "one", "image": {"id": image}})

    def write_manifest(self, *apps: object) -> None:
        """Write the pod manifest."""
        manifest = {"acKind": "PodManifest", "acVersion": "0.8.11", "apps": apps}
        (self.root / "pod.json").write_text(json.dumps(manifest))

    def build(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return self.build_with_own(f"--stage1-path={self._stage1}", *words)

    def build_with_own(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run the command with minit's own stage1 image."""
        return self._stage0.call("init", "build", f"--manifest={self.root}/pod.json", "--quiet", *words)


@pytest.fixture
def builder(tmp_path: Path, stage1_image: Path) -> Builder:
    """A builder of machines from the pod manifest pod.json."""
    return Builder(tmp_path, stage1_image)


def test_the_same_parts_make_the_same_bytes(builder: Builder, tmp_path: Path) -> None:
    """Two builds give one archive, whose file is small and has no time; a kernel finds the first program in it."""
    for name, form in (("one", "gzip"), ("two", "none")):
        done = builder.build("--output", tmp_path / name, f"--format={form}")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    compressed = (tmp_path / "one").read_bytes()
    assert len(compressed) < MAXIMUM_BYTES / 2 and compressed[4:8] == bytes(4)
    archive = gzip.decompress(compressed)
    assert archive == (tmp_path / "two").read_bytes()
    assert re.search(rb"init\0+var/lib/rkt/pods/run/[^/]*/stage1/rootfs/entrypoints/init[\x000]", archive)


def test_a_directory(builder: Builder, tmp_path: Path) -> None:
    """As a directory it is the same: a pod, the stage1 tree with the apps in it, and what the first program reads."""
    (tmp_path / "machine.toml").write_text('[[filesystem]]\nsource = "LABEL=x"\ntarget = "/srv/data"\ntype = "ext4"\n')
    done = builder.build("--format=directory", "--output", tmp_path / "root", f"--config={tmp_path}/machine.toml")
    assert done.returncode == 0, done.stderr
    root = tmp_path / "root"
    assert sorted(path.name for path in root.iterdir()) == [
        *("bin", "dev", "etc", "init", "proc", "run", "srv", "sys", "tmp", "var")
    ]
    assert os.access(root / "init", os.X_OK) and os.access(root / "bin/minit", os.X_OK)
    assert (root / "etc/minit/machine.toml").read_bytes() == (tmp_path / "machine.toml").read_bytes()
    assert (root / "srv/data").is_dir()
    pod = root / paths.MACHINE_POD.lstrip("/")
    assert json.loads((pod / "pod").read_text())["apps"][0]["app"]["exec"] == ["/bin/sh"]
    app = pod / "stage1/rootfs/opt/stage2/one"
    assert (app / "manifest").exists() and (app / "rootfs/bin/busybox").exists()


def write_modules(place: Path, *modules: tuple[str, ...]) -> Path:
    """Write a kernel's modules, each with its name and information, and return their directory."""
    drivers = place / "lib/modules/6.1.0-test/kernel"
    drivers.mkdir(parents=True)
    for name, *information in modules:
        (drivers / f"{name}.ko").write_bytes(module_bytes(*information))
    return place


def test_firmware(builder: Builder, tmp_path: Path) -> None:
    """What the modules name is in the image, from the first place that has it; the rest is a line, and no failure."""
    names = ("firmware=acme/wifi.bin", *(f"firmware=acme/{number}.bin" for number in range(6)))
    package = write_modules(tmp_path / "kernel", ("radio", *names), ("quiet",))
    for place in ("one", "two/usr/lib/firmware"):
        (tmp_path / place / "acme").mkdir(parents=True)
        (tmp_path / place / "acme/wifi.bin").write_text(place)
    (tmp_path / "two/usr/lib/firmware/acme/0.bin").write_text("zero")
    words = [f"--modules-from={package}", *(f"--firmware-from={tmp_path}/{name}" for name in ("one", "two"))]
    done = builder.build("--format=directory", "--module=radio", "--output", tmp_path / "root", *words)
    assert done.returncode == 0, done.stderr
    own = {path.name: path.read_text() for path in (tmp_path / "root/lib/firmware").rglob("*.bin")}
    assert own == {"wifi.bin": "one", "0.bin": "zero"}
    reason = "kernel module radio: its firmware is missing, see --firmware-from"
    assert f"{reason}: acme/1.bin, acme/2.bin, acme/3.bin, acme/4.bin and 1 more\n" in done.stderr
    done = builder.build("--dry-run", "--module=radio", *words)
    assert re.search(r"^firmware\s+2\s", done.stdout, re.MULTILINE), done.stdout
    done = builder.build("--dry-run", "--module=quiet", *words)
    assert (done.stderr, "firmware" in done.stdout) == ("", False)
    assert "does not exist" in builder.build("--dry-run", "--firmware-from=/nowhere").stderr


def test_the_time_of_a_machine(builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What comes of no image has the time of the newest file that does, or SOURCE_DATE_EPOCH; the first program sets a
    clock to it that is before it.
    """

    def build(name: str) -> Path:
        done = builder.build("--format=directory", "--output", tmp_path / name)
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    root = build("newest")
    own = [path for path in root.rglob("*") if not path.is_relative_to(f"{root}{paths.MACHINE_POD}/stage1")]
    assert {path.lstat().st_mtime for path in own} == {NEWEST}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
    assert (build("told") / "etc/minit/machine.toml").stat().st_mtime == 1234567890
    for wrong in ("now", "9" * 25):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        done = builder.build("--dry-run")
        assert f'expected seconds since 1970 in SOURCE_DATE_EPOCH, got "{wrong}"' in done.stderr


def test_a_dry_run(builder: Builder, tmp_path: Path) -> None:
    """--dry-run shows the parts with their sizes, and writes nothing."""
    done = builder.build("--dry-run", "--output", tmp_path / "machine")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    cells = [[cell for cell in row if cell] for row in rows]
    assert [row[0] for row in cells] == ["PART", "stage1", "app one", "all"]
    assert float(cells[1][2].split()[0]) * (1 << 20) < MAXIMUM_BYTES
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # Before any work.
        (["--output={root}/pod.json", "--config={root}/none"], "pod.json exists (try --overwrite)"),
        (["--dry-run", "--modules-from={root}/pod.json"], "cannot unpack {root}/pod.json: dpkg-deb "),
        ([], "missing option '--output' (see minit init build --help)"),
        (["--dry-run", "--config={root}/none"], "cannot read {root}/none: no such file or directory"),
        (["--dry-run", "--config={root}/pod.json"], "{root}/pod.json: expected TOML: "),
        (["--dry-run", "--module=x"], "--module needs --modules-from"),
        (["--output={root}/x", "--format=disk"], "--format disk needs --modules-from"),
        (["--output={root}/x", "--efi-stub={root}/pod.json"], "--efi-stub needs --format disk"),
        (["--output={root}/x", "--signing-key={root}/pod.json"], "--format update and --signing-key need each other"),
        (
            ["--output={root}/x", "--format=update", "--modules-from={root}"],
            "--format update and --signing-key need each other",
        ),
        (
            [*("--output={root}/x", "--format=update"), *("--modules-from={root}", "--signing-key={root}/pod.json")],
            "--format update needs --config with a table [update]: model, version, keys",
        ),
        (["--output={root}/x", "--format=disk", "--modules-from={root}"], "{root} has no kernel modules: "),
        (["--dry-run", "--modules-from={root}", "--module=x"], "{root} has no kernel modules: "),
        (["--dry-run", "--modules-from={root}", "--module=../x"], 'expected the name of a kernel module, got "../x"'),
    ],
)
def test_what_is_refused(builder: Builder, tmp_path: Path, words: list[str], message: str) -> None:
    """An error is one line, and there is no output."""
    done = builder.build(*(word.format(root=tmp_path) for word in words))
    assert done.returncode == 254 and done.stdout == ""
    assert message.format(root=tmp_path) in done.stderr and done.stderr.count("\n") == 1


def test_what_a_disk_lacks(builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kernel, or without the programs that make a disk, it is said at once what to install."""
    disk = [
        "--format=disk",
        f"--modules-from={tmp_path}",
        "--output",
        tmp_path / "disk",
        f"--efi-stub={sys.executable}",
    ]
    modules = tmp_path / "lib/modules/6.1.0-test"
    (modules / "kernel").mkdir(parents=True)
    (modules / "modules.builtin").write_text("".join(f"{name}.ko\n" for name in _BUILT_IN))
    done = builder.build(*disk)
    assert done.returncode == 254 and "no kernel: expected boot/vmlinuz-6.1.0-test in it" in done.stderr
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/vmlinuz-6.1.0-test").write_bytes(b"kernel")
    monkeypatch.setenv("PATH", "/nowhere")
    done = builder.build(*disk)
    assert done.returncode == 254 and done.stderr.count("\n") == 1
    assert "mksquashfs, veritysetup, " in done.stderr and "apt install squashfs-tools cryptsetup-bin " in done.stderr


def test_keys_of_updates(builder: Builder, tmp_path: Path) -> None:
    """The public keys that machine.toml names lie beside it, and are in the root; what is no key is refused."""
    config, key = tmp_path / "machine.toml", tmp_path / "update.pub"
    config.write_text('[update]\nmodel = "sensor"\nversion = "1"\nkeys = ["update.pub"]\n')
    words = [f"--config={config}", "--format=directory", "--output", tmp_path / "root"]
    for data, message in (
        (None, f"{config}: update.keys: cannot read {key}: no such file or directory\n"),
        (b"key", f"{key}: expected a public key (PEM) for Ed25519\n"),
    ):
        if data is not None:
            key.write_bytes(data)
        done = builder.build(*words)
        assert done.returncode == 254 and done.stderr.endswith(message)
    public = Ed25519PrivateKey.generate().public_key()
    key.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    done = builder.build(*words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "root/etc/minit/keys/update.pub").read_bytes() == key.read_bytes()


def test_an_image_that_is_not_in_the_store(builder: Builder) -> None:
    """The manifest's images have to be there."""
    builder.write_manifest({"name": "one", "image": {"id": "sha512-" + "0" * 64}})
    done = builder.build("--dry-run")
    assert done.returncode == 254 and done.stderr.count("\n") == 1


@pytest.fixture
def arm64(stage1_image: Path, tmp_path: Path) -> Iterator[None]:
    """A stage1 image for arm64, which is the one for this machine but for its label, and a kernel."""
    if os.uname().machine != "x86_64":
        pytest.skip("images for another processor are built on x86-64 alone")
    with tarfile.open(stage1_image) as old, tarfile.open(tmp_path / "stage1.aci", "w") as new:
        for member in old:
            file = old.extractfile(member) if member.isfile() else None
            data = b"" if file is None else file.read()
            if member.name == "manifest":
                data = data.replace(b'"amd64"', b'"aarch64"')
                member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    directory = program_directory() / "machines/arm64"
    processor = stand_in(directory, tmp_path, f"cd {tmp_path} && tar -cf $result stage1.aci")
    add_module(directory / "kernel", AARCH64)
    foreign_stage1(processor, directory, silent)
    yield
    shutil.rmtree(directory)


def add_module(package: Path, machine: int) -> None:
    """Make an unpacked kernel package with a module."""
    modules = package / "lib/modules/6.1.0-test/kernel"
    modules.mkdir(parents=True)
    (modules / "card.ko").write_bytes(module_bytes(machine=machine))


@pytest.mark.usefixtures("arm64")
def test_a_machine_of_another_processor(builder: Builder, tmp_path: Path) -> None:
    """With --arch it has the stage1 image that was built for that processor, and modules of Debian's kernel for it."""
    builder.use_image(os="linux", arch="aarch64")
    done = builder.build_with_own("--arch=arm64", "--module=card", "--format=directory", f"--output={tmp_path}/root")
    assert (done.returncode, done.stderr) == (0, "")
    [pod] = (tmp_path / "root/var/lib/rkt/pods/run").iterdir()
    assert '"aarch64"' in (pod / "stage1/manifest").read_text()
    assert (tmp_path / "root/lib/modules/minit/card.ko").exists()


@pytest.mark.usefixtures("arm64")
def test_parts_of_another_processor(builder: Builder, tmp_path: Path) -> None:
    """Stage1, apps and modules are for the same processor, or an older one of its kind, or no machine is made."""
    add_module(tmp_path / "kernel", AARCH64)

    def refused(*words: str) -> str:
        done = builder.build("--dry-run", *words)
        assert done.returncode == 254 and done.stderr.count("\n") == 1
        return done.stderr.partition(": ")[2].strip()

    assert refused("--arch=arm64") == 'stage1 image "minit/stage1" is for amd64, the machine is aarch64'
    modules = f"--modules-from={tmp_path}/kernel", "--module=card"
    assert refused(*modules) == "kernel module card is for another processor, the machine is amd64"
    done = builder.build_with_own("--dry-run", "--arch=arm64")
    remedy = "prepare the pod with --arch=arm64, or build for another one with --arch"
    assert f'image "example.com/busybox" is for amd64, the machine is aarch64: {remedy}\n' in done.stderr
    builder.use_image(os="linux", arch="aarch64")
    assert refused().startswith('image "example.com/busybox" is for aarch64, the machine is amd64')
    builder.use_image(os="linux", arch="i386")
    assert builder.build("--dry-run", "--arch=amd64").returncode == 0
