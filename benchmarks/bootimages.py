"""Initial file systems with one app, for each init: minit's as it builds it, those of its peers as small as they go."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, cast

from minit.base.progress import silent
from minit.image.cpio import write_cpio
from minit.image.stage1 import build_stage1
from tests.support.machine import X86_64
from tests.support.stage0_world import add_directory, add_file, image_manifest

DISK_SUFFIX = ".disk"
WITH_SWAP = "minit, with [swap]"
_IMAGE_SUFFIX = ".cpio.gz"
_DISK_SIZE = "128M"

# The first program of every machine: says when that is, and becomes the init.
_START = r"""
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    dprintf(1, "bench start %lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    execl("/init", "/init", (char *)0);
    return 1;
}
"""
# The app of every machine.
_APP = r"""
#include <stdio.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>
int main(void)
{
    struct timespec now;
    long total = 0, available = 0;
    char line[128];
    FILE *file;
    clock_gettime(CLOCK_MONOTONIC, &now);
    dprintf(1, "bench app %lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    sleep(10); /* until the init has nothing more to do */
    if (access("/proc/meminfo", F_OK) < 0)
        mount("proc", "/proc", "proc", 0, 0);
    file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "MemTotal: %ld", &total);
        sscanf(line, "MemAvailable: %ld", &available);
    }
    dprintf(1, "bench used %ld\n", total - available);
    for (;;)
        pause();
}
"""
_APP_PATH = "bench/app"
_MOUNTS = """\
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
"""
_INITTAB = f"::sysinit:/bin/busybox sh /etc/start\n::respawn:/{_APP_PATH}\n"
_S6_INIT = f"#!/bin/busybox sh\n{_MOUNTS}exec /usr/bin/s6-svscan /service\n"
_S6_RUN = f"#!/bin/busybox sh\nexec /{_APP_PATH}\n"
_TARGET = "[Unit]\nDescription=one app\nRequires=app.service\n"
_SERVICE = f"[Service]\nExecStart=/{_APP_PATH}\nStandardOutput=file:/dev/console\nRestart=always\n"
_UNITS = "lib/systemd/system"
_SYSTEMD = (
    *("lib/systemd/systemd", "lib/systemd/systemd-shutdown"),
    *(f"{_UNITS}/{name}.target" for name in ("sysinit", "basic", "shutdown", "umount", "sockets")),
)
# Those who keep a log and look after devices, as Debian starts them.
_DAEMONS = (
    *("lib/systemd/systemd-journald", "lib/systemd/systemd-udevd", "bin/udevadm", "lib/udev"),
    *(f"{_UNITS}/systemd-journald{kind}" for kind in (".service", ".socket", "-dev-log.socket")),
    *(f"{_UNITS}/systemd-udevd{kind}" for kind in (".service", "-control.socket", "-kernel.socket")),
    f"{_UNITS}/systemd-udev-trigger.service",
    *(f"{_UNITS}/sysinit.target.wants/systemd-{name}.service" for name in ("journald", "udevd", "udev-trigger")),
    *(f"{_UNITS}/sockets.target.wants/systemd-journald{kind}.socket" for kind in ("", "-dev-log")),
    *(f"{_UNITS}/sockets.target.wants/systemd-udevd-{kind}.socket" for kind in ("control", "kernel")),
)
_LIBRARIES = tuple(
    f"{start}{directory}"
    for directory in ("lib/x86_64-linux-gnu", "lib/systemd", "lib/x86_64-linux-gnu/systemd")
    for start in ("", "usr/")
)
_LOADER = "lib64/ld-linux-x86-64.so.2"


def make_images(path: Path, peers: Path) -> dict[str, Path]:
    """Make the initial file systems in a directory, with programs of Debian packages that are unpacked in `peers`."""
    for name, source in {"start": _START, "app": _APP}.items():
        (path / f"{name}.c").write_text(source)
        subprocess.run(["cc", "-O2", "-static", "-s", "-o", path / name, path / f"{name}.c"], check=True)
    mounts = {"etc/start": _MOUNTS}
    systemd = {
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "etc/os-release": "ID=bench\n",
        "etc/passwd": "root:x:0:0::/:/bin/sh\n",
        f"{_UNITS}/default.target": _TARGET,
        f"{_UNITS}/app.service": _SERVICE,
    }
    return {
        "minit": _make_minit(path, "minit", ""),
        WITH_SWAP: _make_minit(path, "swap", "[swap]\nsize_mib = 64\n"),
        "BusyBox init": _make_peer(path, peers, "busybox", "bin/busybox", [], {**mounts, "etc/inittab": _INITTAB}),
        "s6": _make_peer(
            *(path, peers, "s6", None, ["bin/busybox", "usr/bin/s6-svscan", "usr/bin/s6-supervise"]),
            {"init": _S6_INIT, "service/app/run": _S6_RUN},
        ),
        "systemd": _make_peer(path, peers, "systemd", "lib/systemd/systemd", _SYSTEMD, systemd),
        "systemd, journald, udevd": _make_peer(
            path, peers, "daemons", "lib/systemd/systemd", [*_SYSTEMD, *_DAEMONS], systemd
        ),
        "no init: the app": _make_peer(path, peers, "none", _APP_PATH, [], {}),
    }


def make_disk(image: Path) -> Path:
    """Make a disk with an ext4 of an initial file system that `make_images` has made."""
    root = image.with_name(image.name.removesuffix(_IMAGE_SUFFIX))
    disk = root.with_suffix(DISK_SUFFIX)
    subprocess.run(["mkfs.ext4", "-q", "-d", root, disk, _DISK_SIZE], check=True, stdout=subprocess.DEVNULL)
    return disk


def _make_minit(path: Path, name: str, config: str) -> Path:
    minit = [sys.executable, "-m", "minit", f"--dir={path}/data"]
    app, stage1, manifest, root = path / "app.aci", path / "stage1.aci", path / "pod.json", path / name
    if not stage1.exists():
        build_stage1(stage1, silent)
    (path / "machine.toml").write_text(config)
    with tarfile.open(app, "w") as tar:
        fields = {"exec": [f"/{_APP_PATH}"], "user": "0", "group": "0"}
        add_file(tar, "manifest", json.dumps(image_manifest("app", fields)).encode())
        for directory in ("rootfs", "rootfs/bench"):
            add_directory(tar, directory)
        add_file(tar, f"rootfs/{_APP_PATH}", (path / "app").read_bytes(), 0o755)
    words = [*minit, "--insecure-options=image", "fetch", "--full", str(app)]
    image = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    apps = [{"name": "app", "image": {"id": image}}]
    manifest.write_text(json.dumps({"acKind": "PodManifest", "acVersion": "0.8.11", "apps": apps}))
    words = [*minit, "init", "build", f"--manifest={manifest}", f"--stage1-path={stage1}", "--quiet"]
    words += [f"--config={path}/machine.toml", f"--modules-from={X86_64.directory}"]
    subprocess.run([*words, "--format=directory", f"--output={root}"], check=True)
    return _pack(path, root)


def _make_peer(
    path: Path, peers: Path, name: str, init: str | None, programs: Iterable[str], texts: Mapping[str, str]
) -> Path:
    """Make one of an `init` that is linked to, if it is no text itself, with `programs` and what these need."""
    root = path / name
    for directory in ("dev", "proc", "sys", "run", "tmp", "bench"):
        (root / directory).mkdir(parents=True)
    shutil.copy(path / "app", root / _APP_PATH)
    for program in (*([init] if init and init != _APP_PATH else []), *programs):
        _copy(peers, root, program)
    for place, text in texts.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
        (root / place).chmod(0o755 if text.startswith("#!") else 0o644)
    if init is not None:
        (root / "init").symlink_to(f"/{init}")
    return _pack(path, root)


def _copy(peers: Path, root: Path, name: str) -> None:
    """Copy a file, link or directory with every library that it needs."""
    source, target = peers / name, root / name
    if target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        for below in source.iterdir():
            _copy(peers, root, f"{name}/{below.name}")
        return
    shutil.copy2(source, target, follow_symlinks=False)
    if source.is_symlink():
        _copy(peers, root, os.path.normpath(os.path.join("/", Path(name).parent, os.readlink(source))).lstrip("/"))
    elif source.read_bytes()[:4] == b"\x7fELF":
        search = ":".join(str(peers / directory) for directory in _LIBRARIES)
        words = [str(peers / _LOADER), "--library-path", search, "--list", str(source)]
        for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines():
            library = line.partition("=> ")[2].partition(" (")[0]
            if library:
                _copy(peers, root, _LOADER)
                _copy(peers, root, str(Path(library).relative_to(peers)))


def _pack(path: Path, root: Path) -> Path:
    (root / "bench").mkdir(exist_ok=True)
    shutil.copy(path / "start", root / "bench/start")
    image = path / f"{root.name}{_IMAGE_SUFFIX}"
    with image.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as archive:
        write_cpio(root, cast("IO[bytes]", archive))
    return image
