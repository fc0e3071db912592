"""
A data directory of its own for a test of stage0, with a stage1 image whose entrypoints only write down their calls.

Every entrypoint dumps what it was called with into the directory of the environment variable STAGE1_DUMP: argv,
environment, working directory, descriptors and what they point to. `run` then behaves as the files there say: with
`hold`, a fifo, it reports pid and readiness and waits until somebody opens and closes the fifo; it exits with the
number in `code`. With `for-ever` it is one process that ends by a signal only. `gc-many` is minit's own, by which many
pods are collected.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from minit.launcher.cgroups import read_hierarchies, remove_pod_groups
from tests.support.forkedcommand import forked_minit, quick_words, without_python
from tests.support.usersession import own_runtime_directory, without_warning
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
BUSYBOX = Path("/usr/bin/busybox")

PREFIX = "coreos.com/rkt/stage1/"

_PROGRESS = re.compile(r"^[a-z -]+: [a-z]+ing \S+\n", re.MULTILINE)

_DUMP = r"""#!/bin/sh
# Some get an environment without it.
: "${STAGE1_DUMP:=$PWD/../../../../dump}"
call="$STAGE1_DUMP/NAME"
rm -f "$call".*
printf '%s\0' "$0" "$@" > "$call.argv"
cat /proc/$$/environ > "$call.environ"
pwd -P > "$call.cwd"
# By the shell itself: while it forks another program it has all signals blocked.
while IFS= read -r line; do printf '%s\n' "$line"; done < /proc/$$/status > "$call.status"
for fd in /proc/$$/fd/*; do
    # The shell itself has its script open, as 10 in dash.
    echo "${fd##*/} $(readlink "$fd")" >> "$call.fds"
done
"""

_RUN = """
if [ -e "$STAGE1_DUMP/for-ever" ]; then exec sleep infinity; fi
if [ -e "$STAGE1_DUMP/hold" ]; then
    mkdir -p stage1/rootfs/rkt
    ln -s ready stage1/rootfs/rkt/supervisor-status
    echo $$ > pid.new
    mv pid.new pid
    echo ready
    cat "$STAGE1_DUMP/hold" > "$STAGE1_DUMP/said"
fi
if [ -e "$STAGE1_DUMP/code" ]; then exit "$(cat "$STAGE1_DUMP/code")"; fi
"""

_OTHER = """
echo "NAME on stdout"
echo "NAME on stderr" >&2
if [ -e "$STAGE1_DUMP/NAME-raw" ]; then stty raw -echo; fi
if [ -e "$STAGE1_DUMP/NAME-hold" ]; then read -r _ < "$STAGE1_DUMP/NAME-hold"; fi
if [ -e "$STAGE1_DUMP/NAME-signal" ]; then kill -s "$(cat "$STAGE1_DUMP/NAME-signal")" $$; fi
if [ -e "$STAGE1_DUMP/NAME-code" ]; then exit "$(cat "$STAGE1_DUMP/NAME-code")"; fi
"""

# Each start is a line in `starts`, and each pod one in `collected`. `at-UUID` is what it does then.
_GC_MANY = """
echo "$$" >> "$STAGE1_DUMP/starts"
while read -r uuid; do
    echo "$uuid" >> "$STAGE1_DUMP/collected"
    code=0
    if [ -e "$STAGE1_DUMP/at-$uuid" ]; then . "$STAGE1_DUMP/at-$uuid"; fi
    echo "$uuid $code"
done
"""
_SCRIPTS = {"run": _RUN, "gc-many": _GC_MANY}


def entrypoint_script(name: str) -> bytes:
    """Return the text of one recording entrypoint, by the name of its file."""
    return (_DUMP + _SCRIPTS.get(name, _OTHER)).replace("NAME", name).encode()


def add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    """Add a regular file of root's."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def add_directory(tar: tarfile.TarFile, name: str, mode: int = 0o755, uid: int = 0) -> None:
    """Add a directory."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid = tarfile.DIRTYPE, mode, uid
    tar.addfile(entry)


def add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    """Add a symbolic link."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


_MACHINE = os.uname().machine
_ARCHITECTURE = {"x86_64": "amd64"}.get(_MACHINE, _MACHINE)


def image_manifest(
    name: str,
    app: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return an image manifest; without other labels it is for this machine's platform."""
    chosen = {"version": "1.0", "os": "linux", "arch": _ARCHITECTURE} if labels is None else labels
    manifest: dict[str, object] = {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": name,
        "labels": [{"name": key, "value": value} for key, value in chosen.items()],
        "annotations": [{"name": key, "value": value} for key, value in (annotations or {}).items()],
    }
    if app is not None:
        manifest["app"] = app
    return manifest


def write_stage1(
    path: Path,
    *,
    version: str | None = "6",
    entrypoints: Sequence[str] = ("run", "enter", "gc", "stop"),
    with_status: bool = True,
    with_etc: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Write the recording stage1 image, with `annotations` beside those of its entrypoints."""
    files = {name: name.replace("/", "-") for name in entrypoints}
    paths = {("minit/stage1/" if name == "gc-many" else PREFIX) + name: f"/ex/{file}" for name, file in files.items()}
    annotations = {**paths, **(annotations or {})}
    if version is not None:
        annotations[PREFIX + "interface-version"] = version
    manifest = image_manifest("example.com/recorder", annotations=annotations)
    with tarfile.open(path, "w") as tar:
        add_file(tar, "manifest", json.dumps(manifest).encode())
        for directory in ("", "/ex", "/rkt", "/rkt/env", "/opt", "/opt/stage2"):
            add_directory(tar, f"rootfs{directory}")
        if with_etc:
            add_directory(tar, "rootfs/etc")
        if with_status:
            add_directory(tar, "rootfs/rkt/status")
        for file in files.values():
            add_file(tar, f"rootfs/ex/{file}", entrypoint_script(file), 0o755)


DEFAULT_APP: Mapping[str, object] = {
    "exec": ["/bin/sh", "-c", "true"],
    "user": "0",
    "group": "0",
    "environment": [{"name": "FROM", "value": "image"}, {"name": "KEPT", "value": "yes"}],
}


def write_app(
    path: Path,
    name: str = "example.com/busybox",
    app: Mapping[str, object] | None = DEFAULT_APP,
    labels: Mapping[str, str] | None = None,
    etc: str = "directory",
    root_uid: int = 0,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """
    Write an app image of a busybox; `etc` is what /etc is: a directory, `with-mtab` in it, a link, or nothing.

    `files` are by their paths in directories that are there.
    """
    with tarfile.open(path, "w") as tar:
        add_file(tar, "manifest", json.dumps(image_manifest(name, app, labels)).encode())
        add_directory(tar, "rootfs", 0o755, root_uid)
        add_directory(tar, "rootfs/bin")
        add_file(tar, "rootfs/bin/busybox", BUSYBOX.read_bytes(), 0o755)
        add_link(tar, "rootfs/bin/sh", "busybox")
        if etc == "link":
            add_link(tar, "rootfs/etc", "/run")
        elif etc != "nothing":
            add_directory(tar, "rootfs/etc")
        if etc == "with-mtab":
            add_file(tar, "rootfs/etc/mtab", b"its own")
        for name_of_file, content in (files or {}).items():
            add_file(tar, f"rootfs/{name_of_file}", content)


def image_id(path: Path) -> str:
    """Return the image ID of an uncompressed image file."""
    return "sha512-" + hashlib.sha512(path.read_bytes()).hexdigest()[:64]


def without_progress(errors: str) -> str:
    """Return what the command said but for what a slow machine alone hears: how long work goes on."""
    return without_warning(_PROGRESS.sub("", errors))


class World:
    """A data directory, a stage1 image, an app image, and the `minit` command on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self._of_user = own_runtime_directory(root.with_name(f"{root.name}-user"), self.data)
        self.dump = root / "dump"
        self.dump.mkdir()
        self.stage1 = root / "stage1.aci"
        self.app = root / "busybox.aci"
        write_stage1(self.stage1)
        write_app(self.app)

    def command(self, *arguments: object) -> list[str]:
        """Return the words that run minit on the data directory."""
        return [sys.executable, "-m", "minit", f"--dir={self.data}", *map(str, arguments)]

    def quick_command(self, *arguments: object) -> list[str]:
        """Return the words that run minit on the data directory without an interpreter's start."""
        return [*quick_words(), f"--dir={self.data}", *map(str, arguments)]

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment that minit is called with."""
        own = {"PYTHONPATH": str(REPOSITORY), "STAGE1_DUMP": str(self.dump), **self._of_user}
        return {**os.environ, **own, **variables}

    def minit(self, *arguments: object, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run minit to its end and check its exit code."""
        words = [f"--dir={self.data}", *map(str, arguments)]
        result = self.quick_call(words, self.environment(**variables))
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        result.stderr = without_progress(result.stderr)
        return result

    def succeeds(self, *arguments: object) -> bool:
        """Run minit to its end and return whether it exits with 0."""
        words = [f"--dir={self.data}", *map(str, arguments)]
        return self.quick_call(words, self.environment()).returncode == 0

    def quick_call(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end, without an interpreter's start."""
        return forked_minit(words, environment, self.root)

    def prepare(self, *arguments: object) -> str:
        """Prepare a pod of the app image and return its UUID."""
        words = arguments or (self.app,)
        return self.minit("prepare", f"--stage1-path={self.stage1}", *words).stdout.strip()

    def start(self, *arguments: object) -> RunningPod:
        """Start a pod that stays until it is told to end."""
        return RunningPod(self, arguments or ("--net=none", self.app))

    def start_sandbox(self, *arguments: object) -> RunningPod:
        """Start a pod without apps that stays until it is told to end."""
        return RunningPod(self, arguments, ("app", "sandbox"))

    def call(self, name: str) -> Call:
        """Return what an entrypoint was called with."""
        return Call(self.dump / name)

    def pod_path(self, place: str, uuid: str) -> Path:
        """Return where a pod would be in a state directory."""
        return self.data / "pods" / place / uuid

    def pods(self, place: str) -> list[str]:
        """Return the names in a state directory."""
        directory = self.data / "pods" / place
        return sorted(os.listdir(directory)) if directory.exists() else []

    def mounts(self) -> list[str]:
        """Return what is mounted below the world, in this process's namespace."""
        return _mounts_below(self.root)

    def clean_up(self) -> None:
        """Undo all mounts, and remove the control groups of pods, which `gc` would."""
        for point in reversed(self.mounts()):
            subprocess.run(["umount", "-l", point], check=True)
        for path in self.data.glob("pods/*/*/subcgroup"):
            remove_pod_groups(read_hierarchies(), path.read_text())
        for directory in self._of_user.values():
            wait_for(partial(_has_one_at_most, directory), "the end of the uplink, which removes the last name")
            for point in _mounts_below(directory):
                subprocess.run(["umount", point], check=True)


def _mounts_below(directory: Path | str) -> list[str]:
    with open("/proc/self/mountinfo") as lines:
        return [line.split()[4] for line in lines if line.split()[4].startswith(f"{directory}/")]


def _has_one_at_most(directory: str) -> bool:
    """Return whether nothing but the directory of named networks is mounted below."""
    return len(_mounts_below(directory)) <= 1


class Call:
    """A call of an entrypoint."""

    def __init__(self, base: Path) -> None:
        self.argv = base.with_suffix(".argv").read_text().split("\0")[:-1]
        variables = base.with_suffix(".environ").read_text().split("\0")[:-1]
        self.environment = dict(variable.split("=", 1) for variable in variables)
        self.cwd = base.with_suffix(".cwd").read_text().strip()
        lines = base.with_suffix(".fds").read_text().splitlines()
        self.fds = {int(number): target for number, target in (line.split(" ", 1) for line in lines)}


class RunningPod:
    """A pod whose `run` entrypoint waits; a context manager that ends it."""

    def __init__(self, world: World, arguments: Sequence[object], command: Sequence[str] = ("run",)) -> None:
        self._world = world
        self._hold = world.dump / "hold"
        os.mkfifo(self._hold)
        uuid_file = world.root / "uuid"
        self.process = subprocess.Popen(
            world.quick_command(*command, f"--stage1-path={world.stage1}", f"--uuid-file-save={uuid_file}", *arguments),
            env=without_python(world.environment()),
            cwd=world.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == "ready\n", said + "".join(self.process.communicate())
        self._writer = open(self._hold, "w")
        self.uuid = uuid_file.read_text()

    def __enter__(self) -> RunningPod:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """Let the entrypoint go on to its end and return the exit code."""
        if not self._writer.closed:
            self._writer.close()
            self.process.communicate()
            self._hold.unlink()
        return self.process.returncode


def worlds(root: Path, make: Callable[[Path], World] = World) -> Iterator[World]:
    """Yield a world for one test, and take it down."""
    world = make(root)
    try:
        yield world
    finally:
        world.clean_up()
