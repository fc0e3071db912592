"""Installing minit: by pip, by the Debian package, and the examples of contrib/ that run pods and collect garbage."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from minit.image.dump.program import obstacle
from tests.support.stage0_world import REPOSITORY, World
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

CONTRIB = REPOSITORY / "contrib"
SCRIPTS = [
    "openrc/minit-cri",
    "openrc/minit-pod",
    "sysv/minit-pod",
    "debian/postinst",
    "debian/postrm",
    "debian/prerm",
    "../bin/minit",
    *("runit/run", "runit/check", "runit/log/run", "s6/run", "s6/log/run", "runit-cri/run", "s6-cri/run"),
]


def call(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which must be a success."""
    result: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in words],
        **{"capture_output": True, "text": True, "timeout": 100, "check": False, **options},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def test_pip(tmp_path: Path, world: World, stage1_image: Path) -> None:
    """`pip install .` gives a command that works, with all files that it reads, and the stage1 image."""
    # A copy: the build leaves its own directories in the sources.
    sources = tmp_path / "sources"
    for name in ("bin", "minit", "entrypoints"):
        shutil.copytree(REPOSITORY / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, sources)
    # Where a wheel that is published has it.
    shutil.copy(stage1_image, sources / "minit/image/stage1.aci")
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-build-isolation"]
    call(*pip, "--target", target, sources, cwd=tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    options: dict[str, Any] = {"env": environment, "cwd": tmp_path}
    assert call(target / "bin/minit", "version", **options).stdout.startswith("minit Version: ")
    assert "complete -F" in call(target / "bin/minit", "completion", "bash", **options).stdout
    assert call(target / "bin/minit", "--", "sh", "-c", "echo $0 as init", **options).stdout == "sh as init\n"
    where = "import minit.image.stage1 as s; s.stage1_fingerprint(); print(s.__file__)"
    installed = Path(call(sys.executable, "-c", where, **options).stdout.strip())
    assert installed == target / "minit/image/stage1.py" and installed.with_name("launcher.c").exists()
    assert sorted({path.name.partition("-")[0] for path in target.iterdir()}) == ["bin", "entrypoints", "minit"]
    # No compiler: an image that had to be built would be refused.
    options["env"] = {**environment, "PATH": "/nonexistent"}
    command = [sys.executable, target / "bin/minit-plain", f"--dir={world.data}"]
    prepared = call(*command, "prepare", world.app, **options)
    assert "building" not in prepared.stderr
    assert "minit/stage1:" in call(*command, "image", "list", **options).stdout


@pytest.fixture(scope="module")
def package(work_directory: Path, stage1_image: Path) -> Path:
    """The Debian package."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on PATH")
    build = [sys.executable, CONTRIB / "debian/build.py", "--compression=none", f"--stage1={stage1_image}"]
    result = call(*build, f"--output={work_directory}/deb", env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    return Path(result.stdout.strip())


@pytest.mark.skipif(obstacle() is not None, reason="this Python cannot be dumped")
def test_what_the_stage1_of_a_package_lacks(tmp_path: Path) -> None:
    """The builder of a package or an image is told that its interpreter is not dumped, and why."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/objcopy").write_text("#!/bin/sh\necho no objcopy here >&2\nexit 1\n")
    (tmp_path / "bin/objcopy").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    build = [sys.executable, CONTRIB / "debian/build.py", "--compression=none", f"--output={tmp_path}"]
    stage1 = [sys.executable, "-m", "minit", "stage1", "build", "--quiet", f"--output={tmp_path}/stage1.aci"]
    for command in (build, stage1):
        said = call(*command, env=environment).stderr
        assert "the interpreter is not dumped, so that pods take longer to start: objcopy" in said
        assert "no objcopy here" in said


def test_what_the_package_has(package: Path) -> None:
    """The package depends on this minor version of Python, and has command, manuals, completion, units and a stage1."""
    fields = call("dpkg-deb", "--field", package).stdout
    major, minor = sys.version_info[:2]
    assert f"Depends: python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}), libc6" in fields
    listed = {line.split()[5]: line for line in call("dpkg-deb", "--contents", package).stdout.splitlines()}
    for path in (
        *("./usr/bin/minit", "./usr/bin/minit-plain"),
        *("./usr/lib/minit/minit/image/stage1.aci", "./usr/lib/minit/click/__init__.py"),
        *("./usr/share/man/man1/minit.1.gz", "./usr/share/man/man7/minit-stage1.7.gz"),
        *("./usr/share/bash-completion/completions/minit", "./usr/share/zsh/vendor-completions/_minit"),
        *("./usr/share/fish/vendor_completions.d/minit.fish", "./usr/lib/systemd/system/minit-gc.timer"),
        *("./usr/share/doc/minit/examples/sysv-minit-pod", "./usr/share/doc/minit/examples/s6/log/run"),
    ):
        assert path in listed
    assert not [path for path in listed if "__pycache__" in path or "pytest" in path]
    assert all(line.split()[1] == "root/root" for line in listed.values())


def test_the_package_is_for_several_versions_of_python(stage1_image: Path, tmp_path: Path) -> None:
    """Compiled modules of each version lie side by side, any version will do, and files that differ are refused."""
    own, site = sys.version_info.minor, Path(sysconfig.get_path("purelib"))
    # From 3.14 on Python has the compiled module itself.
    other = own + 1 if own < 13 else own - 1
    tag, next_tag = (f".cpython-3{minor}-" for minor in (own, other))
    libraries = [tmp_path / f"libraries/3.{minor}" for minor in (own, other)]
    for path in libraries:
        path.mkdir(parents=True)
        for entry in site.iterdir():
            if not entry.name.startswith("backports"):
                (path / entry.name).symlink_to(entry)
        for entry in site.glob("backports*"):
            shutil.copytree(entry, path / entry.name)
    for compiled in (libraries[1] / "backports").rglob("*.so"):
        compiled.rename(compiled.with_name(compiled.name.replace(tag, next_tag)))
    [record] = libraries[1].glob("backports*/RECORD")
    record.write_text(record.read_text().replace(tag, next_tag))
    build = [sys.executable, str(CONTRIB / "debian/build.py"), "--compression=none", f"--stage1={stage1_image}"]
    build += [f"--libraries={tmp_path}/libraries", f"--output={tmp_path}"]
    options: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(REPOSITORY)}}
    package = call(*build, **options).stdout.strip()
    low, high = sorted((own, other))
    assert f"Depends: python3 (>= 3.{low}~), python3 (<< 3.{high + 1})" in call("dpkg-deb", "--field", package).stdout
    listed = call("dpkg-deb", "--contents", package).stdout
    assert all(re.search(rf"/usr/lib/minit/backports/zstd/\S+{name}\S+\.so\n", listed) for name in (tag, next_tag))
    (libraries[1] / "backports/zstd/__init__.py").write_text("of another version")
    result = subprocess.run(build, **options, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == (
        "build.py: backports/zstd/__init__.py of backports.zstd differs between versions of Python: "
        "no package serves both\n"
    )


def test_the_package_runs_pods(package: Path, world: World, tmp_path: Path) -> None:
    """Put onto a machine it runs a pod on the stage1 that it brings, without building one, and then without Python."""
    call("dpkg-deb", "--extract", package, tmp_path / "root")
    # The distribution's interpreter, which the package depends on, may be another version than that of the tests.
    interpreter = tmp_path / "root/usr/bin/python3"
    interpreter.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} "$@"\n')
    interpreter.chmod(0o755)
    script = f"""
        set -e
        mount -t overlay -o lowerdir={tmp_path}/root/usr:/usr none /usr
        cd /
        /usr/bin/minit version
        /usr/bin/minit --dir={world.data} run --net=none {world.app} --exec=/bin/sh -- -c 'echo it works'
        if {str(obstacle() is None).lower()}; then mount --bind /bin/false /usr/bin/minit-plain; fi
        /usr/bin/minit --dir={world.data} list
        /usr/bin/minit -- sh -c 'exit 7'
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result: subprocess.CompletedProcess[str] = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 7, result.stderr
    assert re.search(r"\[\d+\]: it works$", result.stdout, re.MULTILINE)
    assert "building" not in result.stderr


@pytest.mark.long
def test_lintian(package: Path) -> None:
    """lintian has nothing to say of the package."""
    if shutil.which("lintian") is None:
        pytest.skip("no lintian on PATH")
    assert call("lintian", "--allow-root", package).stdout == ""


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_sound(script: str) -> None:
    """The scripts are of POSIX's language, and shellcheck has nothing to say."""
    call("sh", "-n", CONTRIB / script)
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on PATH")
    # What OpenRC sets and reads.
    ignored = "--exclude=SC2034,SC2154" if script.startswith("openrc") else "--exclude="
    call("shellcheck", "--shell=sh", ignored, CONTRIB / script)


def test_units_are_sound(tmp_path: Path) -> None:
    """systemd has nothing to say of the units."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on PATH")
    for unit in sorted((CONTRIB / "systemd").iterdir()):
        # The command need not be installed.
        text = unit.read_text().replace("/usr/bin/minit", "/bin/true").replace("Documentation=man:minit(1)\n", "")
        (tmp_path / unit.name.replace("@", "@name")).write_text(text)
    result = call("systemd-analyze", "verify", *sorted(tmp_path.iterdir()))
    assert result.stdout + result.stderr == ""


def test_cron() -> None:
    """A line for cron runs both kinds of garbage collection as root."""
    [line] = [text for text in (CONTRIB / "cron/minit-gc").read_text().splitlines() if text[0].isdigit()]
    assert re.fullmatch(r"[\d,]+ \* \* \* \* root minit gc > /dev/null; minit image gc > /dev/null", line)


@pytest.fixture
def machine(world: World, tmp_path: Path, stage1_image: Path) -> dict[str, str]:
    """The environment of a boot script, with a `minit` for the world's data directory, and settings for one pod."""
    program = tmp_path / "bin" / "minit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {" ".join(world.command())} "$@"\n')
    program.chmod(0o755)
    world.minit("fetch", stage1_image)
    pod = f"--net=none --stage1-name=minit/stage1 {world.app} --exec=/bin/busybox -- sleep 1000"
    (tmp_path / "settings").write_text(f'MINIT={program}\nPOD="{pod}"\n')
    run = tmp_path / "run"
    run.mkdir()
    return {**world.environment(), "MINIT_SETTINGS": str(tmp_path / "settings"), "MINIT_RUN": str(run)}


def test_sysv(machine: dict[str, str], world: World, tmp_path: Path) -> None:
    """The script for System V init starts its pod, knows whether it runs, and stops and removes it."""
    link = tmp_path / "S20minit-pod-web"
    link.symlink_to(CONTRIB / "sysv/minit-pod")

    def script(action: str, code: int = 0) -> str:
        result: subprocess.CompletedProcess[str] = subprocess.run(
            [link, action],
            env=machine,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == code, result.stderr
        return result.stdout

    def wait_ready() -> None:
        wait_for(lambda: world.succeeds("status", "--wait-ready=30s", "minit-pod-web"), "the pod")

    assert script("status", 3) == "minit-pod-web does not run\n"
    script("start")
    wait_ready()
    assert script("status") == "minit-pod-web runs\n"
    script("start")
    [first] = world.pods("run")
    script("restart")
    wait_for(lambda: first not in world.pods("run"), "the next pod")
    wait_ready()
    script("stop")
    wait_for(lambda: not world.pods("run") + world.pods("exited-garbage"), "the removal of the pod")
    assert os.listdir(tmp_path / "run") == []
    script("nonsense", 2)


def test_the_profile_of_apparmor(package: Path) -> None:
    """The package has the profile, which names the command in every place where the package or pip puts it."""
    profile = (CONTRIB / "apparmor/minit").read_text()
    [places] = re.findall(r"^@\{minit\} = (.*)$", profile, re.MULTILINE)
    installed = [
        f"/{directory}/{name}" for directory in ("usr/bin", "usr/local/bin") for name in ("minit", "minit-plain")
    ]
    assert places.split() == installed
    assert "\nprofile minit @{minit} flags=(unconfined) {\n  userns,\n" in profile
    listed = [line.split()[5] for line in call("dpkg-deb", "--contents", package).stdout.splitlines()]
    assert "./usr/share/minit/apparmor/minit" in listed
    assert {path[1:] for path in listed if path.startswith("./usr/bin/minit")} == {*places.split()[:2]}


def test_the_profile_of_apparmor_is_sound() -> None:
    """AppArmor's parser, of version 4 or newer, reads the profile."""
    if shutil.which("apparmor_parser") is None:
        pytest.skip("no apparmor_parser on PATH")
    call("apparmor_parser", "--skip-kernel-load", "--skip-cache", CONTRIB / "apparmor/minit")


@pytest.mark.parametrize("parser", ["3", "4"])
def test_the_profile_is_installed_for_a_parser_that_reads_it(tmp_path: Path, parser: str) -> None:
    """An old parser finds no profile, a new one a link; the removal of the package leaves neither, but a file stays."""
    for directory in ("bin", "apparmor.d"):
        (tmp_path / directory).mkdir()
    for name, code in (("apparmor_parser", 0 if parser == "4" else 1), ("py3compile", 0)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    link = tmp_path / "apparmor.d/minit"
    shipped = CONTRIB / "apparmor/minit"

    def run(script: str, action: str) -> None:
        text = (CONTRIB / f"debian/{script}").read_text().replace("/etc/apparmor.d", f"{tmp_path}/apparmor.d")
        text = text.replace("/usr/share/minit/apparmor/minit", str(shipped)).replace(
            "/sys/kernel/security", str(tmp_path)
        )
        call("sh", "-c", text, script, action, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})

    for _ in range(2):
        run("postinst", "configure")
        assert link.is_symlink() == (parser == "4")
    run("postrm", "remove")
    assert not os.path.lexists(link)
    link.write_text("of the administrator")
    run("postinst", "configure")
    run("postrm", "remove")
    assert link.read_text() == "of the administrator"
