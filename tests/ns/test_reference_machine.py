"""The comparison with the reference plugins on a machine whose kernel has every kind of link."""

from __future__ import annotations

import base64
import gzip
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from minit.podfiles import paths
from tests.support.comparison import Case, read_observations, script
from tests.support.machine import BOOT_SECONDS, Kernel, find_kernel, run_on_machine
from tests.support.referencecases import CASES_OF_MODULES, DUMMY, REFERENCE
from tests.support.samenetwork import Seen, assert_same

# In the order in which they need each other.
MODULES = ("llc", "stp", "mrp", "garp", "8021q", "ipvlan", "dummy", "veth")
PROGRAMS = ("ip", "bridge")
REFUSED_BY_BOTH = ("vlan without master",)
PLUGINS = ("host-local", "ipvlan", "static", "vlan")

pytestmark = [
    pytest.mark.skipif(not (REFERENCE / "ptp").exists(), reason="containernetworking-plugins is not installed"),
    pytest.mark.long,
]

_SCRIPT = """
mkdir -p /lib64 /lib /usr/lib /run/netns
ln -s /run /var/run
cp -a /machine/root/. /
for module in {modules}; do insmod /machine/modules/$module.ko; done
for side in theirs ours; do
    sh /machine/$side > /tmp/said 2> /tmp/errors
    echo "begin $side"
    gzip -c /tmp/said | base64
    echo "end $side"
    tail -n 3 /tmp/errors
done
"""


def collect_machine(directory: Path, kernel: Kernel, stage1: Path, case: Case) -> None:
    """Make the directory of a machine: modules, programs with their libraries, plugins, and two scripts."""
    (directory / "modules").mkdir(parents=True)
    for module in MODULES:
        shutil.copy(next(kernel.modules.glob(f"**/kernel/**/{module}.ko")), directory / "modules")
    programs, theirs, root = directory / "programs", directory / "reference", directory / "root"
    for place, sources in ((programs, PROGRAMS), (theirs, [str(REFERENCE / plugin) for plugin in PLUGINS])):
        place.mkdir()
        for source in sources:
            shutil.copy(str(shutil.which(source)), place)
    for library in libraries((*programs.iterdir(), *theirs.iterdir())):
        place = root / str(library).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    shutil.copytree(stage1 / "rootfs", directory / "stage1", symlinks=True)
    # The shell, busybox, has an ip of its own, which it prefers to programs but not to functions.
    functions = "".join(f'{program}() {{ /machine/programs/{program} "$@"; }}\n' for program in PROGRAMS)
    (directory / "theirs").write_text(functions + script([case], "/machine/reference", "/tmp/theirs"))
    ours = script([case], f"/machine/stage1/{paths.PLUGINS}", "/tmp/ours")
    (directory / "ours").write_text(functions + ours)


def libraries(programs: Iterable[Path]) -> set[str]:
    """Return the files that the dynamic linker reads for programs, itself included."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    return {word for line in listed.splitlines() for word in line.split() if word.startswith("/") and ":" not in word}


def said_by(lines: list[str], side: str) -> list[str]:
    """Return what one of the two scripts has said."""
    begin, end = lines.index(f"begin {side}"), lines.index(f"end {side}")
    return gzip.decompress(base64.b64decode("".join(lines[begin + 1 : end]))).decode().splitlines()


def play(case: Case, stage1: Path, directory: Path) -> tuple[Seen, Seen]:
    """Return what is seen of a case on a machine of its own, of the reference plugins and of ours."""
    kernel = find_kernel()
    collect_machine(directory / "machine", kernel, stage1, case)
    lines = run_on_machine(kernel, directory / "machine", _SCRIPT.format(modules=" ".join(MODULES)), directory)
    theirs, ours = (read_observations(said_by(lines, side))[case.name] for side in ("theirs", "ours"))
    return theirs, ours


@pytest.mark.timeout(BOOT_SECONDS + 60)
@pytest.mark.parametrize("case", CASES_OF_MODULES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_same_network_on_another_kernel(stage1_tree: Path, tmp_path: Path, case: Case) -> None:
    """ipvlan and vlan do what the reference plugins do."""
    theirs, ours = play(case, stage1_tree, tmp_path)
    assert_same(case, theirs, ours)
    assert ours["added"]["answer ADD.0 code"] == int(case.name in REFUSED_BY_BOTH)


@pytest.mark.timeout(BOOT_SECONDS + 60)
def test_dummy_on_another_kernel(stage1_tree: Path, tmp_path: Path) -> None:
    """It works as a program of the image; Debian has no reference plugin of the type."""
    _, seen = play(DUMMY, stage1_tree, tmp_path)
    codes = [value for facts in seen.values() for name, value in facts.items() if name.endswith(" code")]
    assert codes == [0, 0, 0, 0]
    assert seen["added"]["pod address eth0 fd00:9::2/64 scope"] == "global"
