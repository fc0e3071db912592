"""Every command against pods that are missing, half made, foreign or damaged: one clear line, and the others go on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from minit.cli.main import run
from tests.support.stage0_world import World, worlds

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A data directory with an exited pod of one app, `busybox`, without overlayfs so that it can be copied."""
    for world in worlds(tmp_path_factory.mktemp("world")):
        with world.start("--no-overlay", "--net=none", world.app):
            pass
        yield world


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def minit(world: World, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command on the world's data directory: from a line to its exit code and output."""

    def call(*line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        stdout = sys.stdout
        code = run([f"--dir={world.data}", *line])
        sys.stdout = stdout  # which a command may have given up
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def pod(world: World) -> Iterator[Path]:
    """A copy of the exited pod, for one test to damage."""
    healthy = world.data / "pods/run" / world.pods("run")[0]
    copy = healthy.with_name(str(uuid4()))
    shutil.copytree(healthy, copy, symlinks=True)
    yield copy
    shutil.rmtree(copy, ignore_errors=True)
    for garbage in ("exited-garbage", "garbage"):
        shutil.rmtree(world.data / "pods" / garbage / copy.name, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file or a directory."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def put(path: Path, data: bytes) -> None:
    """Put a file where something else may be."""
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def put_fifo(path: Path) -> None:
    """Put a FIFO, which nobody writes to, where a file should be."""
    remove(path)
    os.mkfifo(path)


def empty(pod: Path) -> None:
    """Remove everything from a pod directory."""
    for path in pod.iterdir():
        remove(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "pod truncated": lambda pod: put(pod / "pod", (pod / "pod").read_bytes()[:40]),
    "pod empty": lambda pod: put(pod / "pod", b""),
    "pod missing": lambda pod: remove(pod / "pod"),
    "pod not text": lambda pod: put(pod / "pod", b"\xff\xfe\x00" * 100),
    "pod of another kind": lambda pod: put(pod / "pod", b'["a list"]'),
    "pod without apps": lambda pod: put(pod / "pod", b'{"acKind":"PodManifest","acVersion":"0.8.11","apps":null}'),
    "pod a directory": lambda pod: (remove(pod / "pod"), (pod / "pod").mkdir()),
    "pod a link": lambda pod: (remove(pod / "pod"), (pod / "pod").symlink_to("/etc/passwd")),
    "pod a FIFO": lambda pod: put_fifo(pod / "pod"),
    "pod deep": lambda pod: put(pod / "pod", b"[" * 100_000),
    "no stage1 manifest": lambda pod: remove(pod / "stage1/manifest"),
    "stage1 manifest truncated": lambda pod: put(pod / "stage1/manifest", b'{"acKind":'),
    "no stage1": lambda pod: remove(pod / "stage1"),
    "stage1 a file": lambda pod: put(pod / "stage1", b""),
    "networks truncated": lambda pod: put(pod / "net-info.json", b'[{"netName":"def'),
    "networks a directory": lambda pod: (pod / "net-info.json").mkdir(),
    "networks not a list": lambda pod: put(pod / "net-info.json", b'{"a":7}'),
    "no image of the app": lambda pod: remove(pod / "appsinfo"),
    "image of the app truncated": lambda pod: put(pod / "appsinfo/busybox/manifest", b"{"),
    "status no number": lambda pod: put(pod / "stage1/rootfs/rkt/status/busybox", b"what?"),
    "pid no number": lambda pod: put(pod / "pid", b"one"),
    "pid of nobody": lambda pod: put(pod / "pid", b"4194304\n"),
    "tree id no id": lambda pod: put(pod / "stage1TreeStoreID", b"../../.."),
    "nothing at all": empty,
}
COMMANDS = [
    *(
        ["status"],
        ["status", "--format=json"],
        ["status", "--wait=1s"],
        ["cat-manifest"],
        ["logs"],
        ["enter", "UUID", "/x"],
    ),
    *(["attach"], ["stop"], ["stop", "--force"], ["export", "UUID", "OUTPUT"], ["run-prepared"], ["events"]),
    *(["app", "list"], ["app", "status", "--app=busybox"], ["app", "stats"], ["app", "stop", "--app=busybox"]),
    *(["app", "start", "--app=busybox"], ["diagnose"]),
]


def is_clear(text: str, command: str) -> bool:
    """Return whether what went wrong is one line that names the command, and is no failure of minit itself."""
    return text.count("\n") == 1 and text.startswith(f"{command}: ") and "bug in minit" not in text


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_pod(damage: str, minit: Command, pod: Path, world: World, tmp_path: Path) -> None:
    """Each command says in one line what it cannot read, or does without; `list` has the other pod, and `rm` works."""
    DAMAGES[damage](pod)
    healthy = next(name for name in world.pods("run") if name != pod.name)
    for words in COMMANDS:
        words = [{"UUID": pod.name, "OUTPUT": f"{tmp_path}/x.aci"}.get(word, word) for word in words]
        line = words if pod.name in words else [*words, pod.name]
        code, _, errors = minit(*line)
        assert "bug in minit" not in errors, (line, errors)
        if code != 0 and "diagnose" not in line:
            name = line[1] if line[0] == "app" else line[0]
            lines = [text for text in errors.splitlines() if not text.startswith(f"{name}: warning: ")]
            assert 1 <= len(lines) <= 2 and all(text.startswith(f"{name}: ") for text in lines), (line, errors)
    for flags in ([], ["--full"], ["--format=json"]):
        code, output, errors = minit("list", *flags)
        assert code == 0
        assert healthy[:8] in output
        assert "bug in minit" not in errors
    code, _, errors = minit("rm", pod.name)
    assert "bug in minit" not in errors
    assert not pod.exists() or is_clear(errors.splitlines(keepends=True)[0], "rm")


@pytest.mark.parametrize("uuid", ["ffffffff", "not-a-uuid", "../../etc", "f3690550-7b80-4be7-839b-2359a85fb0d2"])
def test_a_pod_that_is_not_there(uuid: str, minit: Command, tmp_path: Path) -> None:
    """Each command says in one line that there is no such pod."""
    for words in [*COMMANDS, ["rm"]]:
        words = [{"UUID": uuid, "OUTPUT": f"{tmp_path}/x.aci"}.get(word, word) for word in words]
        code, output, errors = minit(*(words if uuid in words else [*words, uuid]))
        assert code != 0
        assert output == ""
        name = words[1] if words[0] == "app" else words[0]
        first, *others = errors.splitlines(keepends=True)
        assert is_clear(first, name), (words, errors)
        # Commands for several pods say at the end that some failed.
        assert not others or (len(others) == 1 and "one or more pods" in others[0]), errors
