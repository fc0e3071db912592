"""
The common part of all tests: the stage1 image, built once, and pods on it; the strict mode; a session's own things.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from minit.linux import syscalls
from minit.linux.mountinfo import find_mounts
from minit.supervisor.kernelsettings import bring_up_loopback
from tests.support.afterwards import Afterwards
from tests.support.campaign import FOR_ARM64, LONG, campaign
from tests.support.guest import GUEST, build_guest
from tests.support.laterstage1 import write_later_stage1
from tests.support.leftovers import Leftovers
from tests.support.loopdevices import LoopDevice
from tests.support.mountedroot import make_root_a_mount
from tests.support.owndisk import OwnDisk, remove_stale_disks
from tests.support.owngroup import OwnGroup, remove_stale_groups
from tests.support.pods import PRIVATE_USERS, STAGE1_TREE_ID, MakePod, PodDirectory, make_rootfs
from tests.support.skips import ALLOWED_SKIPS
from tests.support.stage0_world import World, worlds
from tests.support.unpack import unpack
from tests.support.usersession import SURROUNDING, is_possible, make_directories, use_data_directory

STRICT = os.environ.get("MINIT_TEST_STRICT") == "1"
_BUILT = Path(__file__).parents[1] / "build/tests"
_AFTERWARDS = pytest.StashKey[Afterwards]()
_DISK = pytest.StashKey[OwnDisk]()
_GROUP = pytest.StashKey[OwnGroup]()

# The suite that decides whether a change lands tries the same examples each time; a campaign tries new ones. How long
# an example takes says more about the machine than about the code.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("new", _PATIENT)
hypothesis.settings.register_profile("same", _PATIENT, derandomize=True)
hypothesis.settings.register_profile("campaign", _PATIENT, max_examples=campaign(100))
hypothesis.settings.load_profile(("campaign" if LONG else "same") if STRICT else "new")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """
    Give the session mounts, a network, a control group and a disk of its own; with pytest-xdist, each of its workers.

    Nobody else's come and go meanwhile, none of its own outlive it, and the machine's addresses, routes and rules are
    never touched. The terminal's signals work as in a shell, though the suite may have been started in the background
    or by nohup(1), where they are ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # A worker's are not those of any terminal, and programs believe them more than the one that they have.
    # What a person has set for the interpreter hides what programs forget to write, or has each program of a thousand
    # compile all of minit: half a second of a processor.
    for name in ("COLUMNS", "LINES", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    if os.geteuid() != 0:
        return
    if SURROUNDING is not None:
        make_directories()
        with suppress(OSError):
            config.stash[_GROUP] = OwnGroup()
            config.stash[_GROUP].enter()
        return
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        _remove_stale()
    if _distributes(config):
        return
    group = None
    with suppress(OSError):
        group = OwnGroup()
    disk = OwnDisk()
    # The end of a worker is its own, or that of the session that it works for.
    config.stash[_AFTERWARDS] = Afterwards(group, disk, [os.getpid(), os.getppid()] if is_worker else [os.getpid()])
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
    make_root_a_mount()
    bring_up_loopback()
    for directory in ("/run/netns", "/run/minit", "/var/cache/minit", "/var/lib/cni", "/etc/cni/net.d"):
        os.makedirs(directory, exist_ok=True)
        syscalls.mount("tmpfs", directory, "tmpfs", 0)
        os.chmod(directory, 0o755)
    if group:
        group.enter()
        config.stash[_GROUP] = group
    disk.mount()
    config.stash[_DISK] = disk
    config.option.basetemp = str(disk.path / "tmp")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what is the session's own."""
    if group := config.stash.get(_GROUP, None):
        group.leave()
    if disk := config.stash.get(_DISK, None):
        disk.unmount()
        config.stash[_AFTERWARDS].begin()


def pytest_keyboard_interrupt() -> None:
    """Wait no more for the end of what the test has started that is interrupted: everything is removed at once."""
    Leftovers.patience_seconds = 0


def _remove_stale() -> None:
    """Remove what sessions have left that were killed together with what comes afterwards."""
    remove_stale_disks()
    with suppress(OSError):
        remove_stale_groups()


def _distributes(config: pytest.Config) -> bool:
    """Return whether this process has workers that run the tests."""
    return config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Run the tests of pods that are marked `private_users` once more with pods in a user namespace.

    With MINIT_TEST_LONG=1 all of them, but for those with the mark `host_users`, which has the reason.
    """
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if (
        SURROUNDING is None
        and "make_pod" in metafunc.fixturenames
        and "host_users" not in marks
        and (LONG or "private_users" in marks)
    ):
        ids = ["host-users", "private-users"]
        metafunc.parametrize("private_users", [None, PRIVATE_USERS], ids=ids, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave out pods that are in a user namespace and have overlays: stage0 makes none.

    In a session of a user also all that the user cannot do, and in an ordinary run what is for long ones.
    """
    impossible: set[pytest.Item] = {item for item in items if isinstance(item, pytest.Function) and _has_both(item)}
    if not (LONG or FOR_ARM64):
        impossible |= {item for item in items if item.get_closest_marker("long")}
    if SURROUNDING is not None:
        impossible |= {item for item in items if not is_possible(item)}
    config.hook.pytest_deselected(items=list(impossible))
    items[:] = [item for item in items if item not in impossible]


def _has_both(item: pytest.Function) -> bool:
    values = item.callspec.params if hasattr(item, "callspec") else {}
    return bool(values.get("private_users") and values.get("overlay"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function) -> Generator[None, object, object]:
    """Remove the directory of a test after all else of it: the session's disk need not hold those of all tests."""
    result = yield
    directory = item.funcargs.get("tmp_path")
    # What is left mounted there is not its own to delete.
    if isinstance(directory, Path) and next(find_mounts(str(directory)), None) is None:
        shutil.rmtree(directory, ignore_errors=True)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """With MINIT_TEST_STRICT=1 a skip fails, unless its reason is in the one list of them."""
    report = yield
    return _judge_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """The same for a module that skips itself as a whole."""
    report = yield
    return _judge_skip(report)


def _judge_skip(report: object) -> object:
    assert isinstance(report, (pytest.TestReport, pytest.CollectReport))
    # An expected failure is reported as a skip without a place.
    if STRICT and report.skipped and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if reason not in ALLOWED_SKIPS:
            report.outcome = "failed"
            report.longrepr = f"skipped although MINIT_TEST_STRICT=1: {reason}"
    return report


@pytest.fixture(autouse=True)
def nothing_left(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fail a test that leaves processes, control groups, mounts, namespaces or leases."""
    group = pytestconfig.stash.get(_GROUP, None)
    if group is None and SURROUNDING is None:
        yield
        return
    leftovers = Leftovers(group)
    yield
    leftovers.check()


@pytest.fixture
def loop() -> Iterator[LoopDevice]:
    """A block device that the test may add and remove."""
    device = LoopDevice()
    yield device
    device.remove()


@pytest.fixture(scope="session")
def work_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the whole session."""
    return tmp_path_factory.mktemp("work", numbered=False)


@pytest.fixture(scope="session")
def stage1_image(work_directory: Path) -> Path:
    """The stage1 ACI, which may have been built before."""
    if given := os.environ.get("MINIT_TEST_STAGE1"):
        return Path(given)
    return built_stage1(work_directory / "minit-stage1.aci", plain=False)


@pytest.fixture(scope="session")
def later_stage1(work_directory: Path, stage1_image: Path) -> Path:
    """A later release of the stage1 image."""
    return write_later_stage1(stage1_image, work_directory / "later-stage1.aci")


@pytest.fixture(scope="session")
def plain_stage1_image(work_directory: Path) -> Path:
    """The stage1 ACI whose interpreter is not dumped."""
    if given := os.environ.get("MINIT_TEST_PLAIN_STAGE1"):
        return Path(given)
    return built_stage1(work_directory / "plain-stage1.aci", plain=True)


def built_stage1(output: Path, *, plain: bool) -> Path:
    """Copy a stage1 ACI of these sources to `output`: the first worker or run that asks for it builds it for all."""
    from minit.base.progress import silent
    from minit.image.stage1 import build_stage1, stage1_fingerprint

    _BUILT.mkdir(parents=True, exist_ok=True)
    kind = "plain" if plain else "dumped"
    # Of the compiler and the linker the time will do.
    tools = (os.stat(tool).st_ctime_ns for tool in map(shutil.which, ("cc", "ld")) if tool is not None)
    built = _BUILT / "-".join((kind, stage1_fingerprint(), *map(str, tools)))
    with open(_BUILT / kind, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            for old in _BUILT.glob(f"{kind}-*"):
                old.unlink()
            warning = build_stage1(output, silent, plain=plain)
            assert not (plain and warning)
            new = Path(shutil.copy(output, _BUILT / f"{kind}-new"))
            new.rename(built)
        shutil.copy(built, output)
    return output


@pytest.fixture(scope="session")
def stage1_tree(work_directory: Path, stage1_image: Path) -> Path:
    """The stage1 image rendered as in the tree store."""
    tree = work_directory / "data/cas/tree" / STAGE1_TREE_ID
    unpack(stage1_image, tree)
    return tree


@pytest.fixture(scope="session")
def app_rootfs(work_directory: Path) -> Path:
    """The root of an app image with busybox and the guest program."""
    rootfs = work_directory / "data/cas/tree/app/rootfs"
    rootfs.mkdir(parents=True)
    make_rootfs(rootfs)
    build_guest(rootfs / GUEST.lstrip("/"))
    return rootfs


@pytest.fixture
def own_rootfs(work_directory: Path, app_rootfs: Path) -> Iterator[Path]:
    """A copy of the app root that a test may change."""
    directory = Path(tempfile.mkdtemp(prefix="rootfs-", dir=work_directory))
    shutil.copytree(app_rootfs, directory / "rootfs", symlinks=True)
    yield directory / "rootfs"
    shutil.rmtree(directory)


@pytest.fixture
def private_users(request: pytest.FixtureRequest) -> tuple[int, int] | None:
    """The ids of the host that pods have; None for those that are the host's."""
    ids: tuple[int, int] | None = getattr(request, "param", None)
    return ids


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A data directory of its own, and a stage1 that records its calls."""
    yield from worlds(tmp_path)


@pytest.fixture
def make_pod(
    work_directory: Path, stage1_tree: Path, app_rootfs: Path, private_users: tuple[int, int] | None
) -> Iterator[MakePod]:
    """A function that prepares a pod directory; what it made is collected after the test."""
    pods: list[PodDirectory] = []

    def make(apps: dict[str, dict[str, Any]], rootfs: Path = app_rootfs, **options: Any) -> PodDirectory:
        options.setdefault("private_users", private_users)
        use_data_directory(work_directory / "data")
        pod = PodDirectory(work_directory / "data", stage1_tree, rootfs, apps, **options)
        pods.append(pod)
        return pod

    yield make
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(PodDirectory.remove, pods))
