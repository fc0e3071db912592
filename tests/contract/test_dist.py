"""What `make dist` builds in a Debian: the same bytes everywhere, each tried on a Debian that has no compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import minit
from minit.image.libraries import MAGIC
from tests.support.campaign import LONG
from tests.support.stage0_world import REPOSITORY
from tests.support.unpack import unpack

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="enters a root and runs pods, which needs root"),
    pytest.mark.timeout(600),
]

BUILDER = REPOSITORY / "build/builder"
CLEAN = REPOSITORY / "build/clean"
LIBRARIES = REPOSITORY / "build/libraries"
NAMES = {"x86_64": ("x86_64", "amd64", "amd64"), "aarch64": ("aarch64", "arm64", "aarch64")}[os.uname().machine]
"""Of this processor, in wheels, Debian and appc."""

_ENTER = """\
mount -t overlay -o lowerdir=$CLEAN/root,upperdir=$PWD/upper,workdir=$PWD/work none root
mkdir root/dist root/wheels root/var/lib/rkt
mount --bind $DIST root/dist
mount --bind $CLEAN/wheels root/wheels
mount --bind data root/var/lib/rkt
mount -t proc proc root/proc
mount --rbind /sys root/sys
mount --rbind /dev root/dev
exec chroot root sh -euc "$0"
"""


def build(sources: Path, output: Path, **environment: str) -> None:
    """Build all that is published from the sources in a directory."""
    if not BUILDER.exists() or not LIBRARIES.exists():
        pytest.skip("no Debian in build/builder, or no libraries in build/libraries")
    result = call(sources, BUILDER, LIBRARIES, output, **environment)
    assert result.returncode == 0, result.stderr


def call(
    sources: Path, debian: Path, libraries: Path, output: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the program of `make dist` of the sources in a directory."""
    command = [sys.executable, str(sources / "contrib/dist.py"), f"--debian={debian}", f"--libraries={libraries}"]
    command.append(f"--output={output}")
    environment = {**os.environ, "PYTHONPATH": str(sources), **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def debian(tmp_path: Path) -> Path:
    """The root of a Debian with Python 3.99, a shell script that reports its view."""
    root = tmp_path / "debian"
    for name in ("proc", "dev", "usr/bin"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "usr/bin")
    program = root / "usr/bin" / f"python{_VERSION}"
    program.write_text(_REPORT)
    program.chmod(0o755)
    (root / "usr/bin/python3").symlink_to(program.name)
    return root


_VERSION = "3.99"
_REPORT = """\
#!/usr/bin/busybox sh
busybox cat /usr/local/lib/python3.99/dist-packages/name /libraries/3.98/name
busybox cmp /sources/contrib/dist.py "$1" && busybox test -e /proc/self -a -c /dev/null && echo "$@" >/output/arguments
busybox env >/output/environment
"""


def test_the_view_of_a_build(debian: Path, tmp_path: Path) -> None:
    """A build has sources, its Python's libraries, the output and no variable of the machine, and leaves no mount."""
    for version in ("3.98", "3.99"):
        (tmp_path / "libraries" / version).mkdir(parents=True)
        (tmp_path / "libraries" / version / "name").write_text(f"for {version}\n")
    output = tmp_path / "output"
    result = call(REPOSITORY, debian, tmp_path / "libraries", output, PIP_INDEX_URL="https://example.org")
    assert (result.returncode, result.stdout, result.stderr) == (0, "for 3.99\nfor 3.98\n", "")
    assert (output / "arguments").read_text().split() == [
        *("/sources/contrib/dist.py", "--libraries=/libraries", "--output=/output")
    ]
    names = {line.partition("=")[0] for line in (output / "environment").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "OLDPWD"} == {"PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LC_ALL"}
    assert str(debian) not in Path("/proc/self/mounts").read_text()


def test_no_libraries_for_the_python_of_a_debian(debian: Path, tmp_path: Path) -> None:
    """A build is refused in a Debian with another Python than those that libraries are there for."""
    (tmp_path / "libraries/3.13").mkdir(parents=True)
    result = call(REPOSITORY, debian, tmp_path / "libraries", tmp_path / "output")
    assert result.returncode == 1
    assert result.stderr == (
        f"dist.py: there is no {tmp_path}/libraries/3.99 for the Debian in {debian}, which has python3.99\n"
    )


@pytest.fixture(scope="module")
def dist(work_directory: Path) -> Path:
    """The directory with all that is published."""
    if not LONG:
        pytest.skip("building all that is published takes a minute")
    output = work_directory / "dist"
    build(REPOSITORY, output)
    return output


@pytest.fixture
def clean(dist: Path, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run a script on a Debian of its own, with what is published in /dist, and what that depends on in /wheels."""
    if not CLEAN.exists():
        pytest.skip("no clean Debian in build/clean")
    for name in ("root", "upper", "work", "data"):
        (tmp_path / name).mkdir()
    variables = {"CLEAN": str(CLEAN), "DIST": str(dist), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}

    def run(script: str) -> subprocess.CompletedProcess[str]:
        # The package is for several versions, and what pip installs for one.
        if _PIP in script and os.readlink(CLEAN / "root/usr/bin/python3") != f"python3.{sys.version_info.minor}":
            pytest.skip("Debian's Python is of another version")
        command = ["unshare", "--mount", "sh", "-euc", _ENTER, script]
        result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run


def test_what_is_published(dist: Path) -> None:
    """There are a wheel for this processor, a package, the sources and a stage1 image, with the checksums of all."""
    version, (wheel, debian, appc) = minit.__version__, NAMES
    names = [
        f"minit-{version}-py3-none-manylinux_2_17_{wheel}.whl",
        f"minit-{version}.tar.gz",
        f"minit-stage1-{version}-linux-{appc}.aci",
        f"minit_{version}_{debian}.deb",
    ]
    assert sorted(os.listdir(dist)) == ["SHA256SUMS", *names]
    assert [line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()] == names
    with zipfile.ZipFile(dist / names[0]) as archive:
        assert {name.partition("/")[0].partition("-")[0] for name in archive.namelist()} == {"minit", "entrypoints"}
        # No program of the wheel's is for a machine's C library; those of the image are looked at when it is built.
        assert not [name for name in archive.namelist() if archive.read(name).startswith(MAGIC)]
        assert archive.read("minit/image/stage1.aci") == (dist / names[2]).read_bytes()
        metadata = archive.read(f"minit-{version}.dist-info/METADATA").decode()
    assert [link for link in re.findall(r"]\((.*?)\)", metadata) if not link.startswith("https://")] == []
    assert "`docs/design.md`: how it works and why" in metadata
    with tarfile.open(dist / names[1]) as archive:
        members = {member.name.partition("/")[2]: member for member in archive}
    assert {"PKG-INFO", "Makefile", "tests/conftest.py", "docs/design.md"} < set(members)
    assert not [name for name in members if "__pycache__" in name or name.endswith(".aci") or name.startswith(".")]
    assert {(member.uname, member.uid, member.mode) for member in members.values()} == {
        ("root", 0, mode) for mode in (0o644, 0o755)
    }


def test_the_interpreter_of_the_image(dist: Path, tmp_path: Path) -> None:
    """The stage1 image carries the Python of the Debian that builds, whatever the machine has."""
    [image] = dist.glob("*.aci")
    unpack(image, tmp_path / "stage1")
    script = "import sys; print('python{}.{}'.format(*sys.version_info))"
    program = [str(tmp_path / "stage1/rootfs/usr/lib/minit/bin/minit"), "-c", script]
    said = subprocess.run(program, env={}, capture_output=True, text=True, check=True).stdout
    assert said.strip() == os.readlink(BUILDER / "usr/bin/python3")


def test_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """Sources elsewhere, built later by somebody with another umask, time zone and locale, give the same."""
    sources = tmp_path / "elsewhere"
    shutil.copytree(
        REPOSITORY, sources, ignore=shutil.ignore_patterns(".*", "build", "dist"), copy_function=shutil.copy
    )
    before = os.umask(0o077)
    try:
        build(sources, tmp_path / "dist", TZ="Asia/Tokyo", LC_ALL="C", HOME=str(tmp_path), TMPDIR=str(tmp_path))
    finally:
        os.umask(before)
    assert (tmp_path / "dist/SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()


_PIP = "PATH=/opt/minit/bin:$PATH; python3 -m venv /opt/minit; pip install -q --no-index -f /wheels"
_RUN = """
minit image build --quiet --output box.aci --from-host /bin/busybox --exec /bin/busybox
minit run box.aci -- echo it works
minit gc --grace-period=0s
minit image gc --grace-period=0s
minit run box.aci -- echo it still works
minit gc --grace-period=0s
printf '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "played"}, "spec": {"containers": [
    {"name": "box", "image": "box.aci", "args": ["sleep", "60"]}]}}' >pod.yaml
minit play --detach pod.yaml
minit play --down pod.yaml
minit cri --listen=unix:///etc/passwd/cri.sock || echo no socket
"""


@pytest.mark.parametrize("install", ["dpkg --install /dist/*.deb", f"{_PIP} /dist/*.whl"], ids=["package", "wheel"])
def test_nothing_is_compiled(clean: Callable[[str], subprocess.CompletedProcess[str]], install: str) -> None:
    """A package or a wheel, where nothing else is installed, runs pods on its own stage1 image, and the daemon."""
    result = clean(f"! command -v cc; {install}; {_RUN}")
    assert "]: it works\n" in result.stdout and "]: it still works\n" in result.stdout
    assert "cri: /etc/passwd: file exists\n" in result.stderr and "no socket\n" in result.stdout
    assert "building" not in result.stderr


def test_sources_and_the_image(clean: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    """minit of the sources runs pods on the published image, and on its own with what it asks to install."""
    result = clean(
        f"""
        (cd /dist; sha256sum --check SHA256SUMS)
        # Of what was downloaded already, and without a question.
        printf 'APT::Get::Assume-Yes "true";\\nAPT::Get::Download "false";\\n' >/etc/apt/apt.conf.d/00
        {_PIP} /dist/*.tar.gz
        minit image build --quiet --output box.aci --from-host /bin/busybox --exec /bin/busybox
        minit run --stage1-path=/dist/minit-stage1-{minit.__version__}-linux-{NAMES[2]}.aci box.aci -- echo it runs
        minit image rm box
        if minit run box.aci -- echo it cannot 2>said; then false; fi
        minit image list --fields=name --no-legend >images
        cat said images
        sed -n 's/.*(Debian: \\(apt install .*\\))$/\\1/p' said >command
        DEBIAN_FRONTEND=noninteractive sh command >apt 2>&1 || cat apt
        {_RUN}
        """
    )
    assert "]: it runs\n" in result.stdout and "]: it works\n" in result.stdout
    assert "run: the stage1 image has to be built, for which this machine lacks cc, " in result.stdout
    assert "\nbox\n" not in result.stdout
    assert "building stage1 (first use)" in result.stderr and "not dumped" not in result.stderr
