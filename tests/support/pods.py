"""
Pod directories as stage0 leaves them, and the entrypoints run on them as stage0 does.

Independent of minit's own stage0, so that both sides of the contract are checked against its text.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

BUSYBOX = Path("/usr/bin/busybox")
APPLETS = "sh cat echo sleep id env ls kill true false stat mount ps hostname ip wc head touch mkdir readlink grep nc test dd"
STAGE1_TREE_ID = "deps-sha512-" + "5" * 64
APP_TREE_ID = "deps-sha512-" + "a" * 64
TIMEOUT_SECONDS = 60


def make_rootfs(rootfs: Path) -> None:
    """Fill a directory with a busybox and what an ordinary image has."""
    for name in ("bin", "etc", "tmp", "dev", "proc", "sys", "usr/bin"):
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    shutil.copy2(BUSYBOX, rootfs / "bin/busybox")
    for applet in APPLETS.split():
        (rootfs / "bin" / applet).symlink_to("busybox")
    (rootfs / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def app_section(*command: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object of a manifest."""
    return {"exec": list(command), "user": "0", "group": "0", **fields}


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object that runs a shell script."""
    return app_section("/bin/sh", "-c", script, **fields)


class PodDirectory:
    """A pod in `pods/run`, ready for its `run` entrypoint."""

    def __init__(
        self,
        data: Path,
        stage1_tree: Path,
        app_rootfs: Path,
        apps: dict[str, dict[str, Any]],
        *,
        overlay: bool = True,
        annotations: dict[str, str] | None = None,
        app_in_image: bool = False,
        **manifest: Any,
    ) -> None:
        self.uuid = str(uuid.uuid4())
        self.data = data
        self.path = data / "pods/run" / self.uuid
        self.tree = stage1_tree
        self.overlay = overlay
        self.stage1 = self.path / "stage1/rootfs"
        self.apps = list(apps)
        self.entrypoints = json.loads((stage1_tree / "manifest").read_text())["annotations"]
        self.path.mkdir(parents=True, mode=0o750)
        for name in ("stage1", "appsinfo"):
            (self.path / name).mkdir(mode=0o750)
        shutil.copy(stage1_tree / "manifest", self.path / "stage1/manifest")
        (self.path / "stage1TreeStoreID").write_text(STAGE1_TREE_ID)
        (self.path / "pod.lck").touch(mode=0o600)
        entries = []
        for name, section in apps.items():
            image = {
                "acKind": "ImageManifest",
                "acVersion": "0.8.11",
                "name": "test/image",
                "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
            }
            entry: dict[str, Any] = {"name": name, "image": {"id": "sha512-" + "a" * 64}}
            (image if app_in_image else entry)["app"] = {k: v for k, v in section.items() if k != "annotations"}
            if "annotations" in section:
                entry["annotations"] = section["annotations"]
            entries.append(entry)
            (self.path / "appsinfo" / name).mkdir(mode=0o750)
            (self.path / "appsinfo" / name / "manifest").write_text(json.dumps(image))
        pod = {
            "acVersion": "0.8.11",
            "acKind": "PodManifest",
            "apps": entries,
            "volumes": None,
            "isolators": None,
            "annotations": [{"name": k, "value": v} for k, v in (annotations or {}).items()],
            "ports": [],
            **manifest,
        }
        (self.path / "pod").write_text(json.dumps(pod))
        (self.path / "pod-created").touch()
        if overlay:
            (self.path / "overlay-prepared").touch()
            self._mount_overlay(stage1_tree / "rootfs", STAGE1_TREE_ID, self.stage1)
        else:
            shutil.copytree(stage1_tree / "rootfs", self.stage1, symlinks=True)
        (self.stage1 / "rkt/status").touch()
        for name in apps:
            app = self.stage1 / "opt/stage2" / name
            app.mkdir(mode=0o750)
            shutil.copy(self.path / "appsinfo" / name / "manifest", app / "manifest")
            if overlay:
                self._mount_overlay(app_rootfs, APP_TREE_ID, app / "rootfs", name)
            else:
                shutil.copytree(app_rootfs, app / "rootfs", symlinks=True)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _mount_overlay(self, lower: Path, tree_id: str, target: Path, suffix: str = "") -> None:
        upper, work = (self.path / "overlay" / tree_id / part / suffix for part in ("upper", "work"))
        for directory in (upper, work, target):
            directory.mkdir(parents=True, exist_ok=True)
        shutil.copymode(lower, upper)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(target)], check=True)

    @property
    def status_root(self) -> Path:
        """Where stage0 reads statuses: the overlay's upper directory, behind the mount."""
        return self.path / "overlay" / STAGE1_TREE_ID / "upper" if self.overlay else self.stage1

    def entrypoint(self, name: str, *, from_tree: bool = False) -> str:
        """Return the host path of an entrypoint, by the annotation of the stage1 manifest."""
        annotation = f"coreos.com/rkt/stage1/{name}"
        [value] = [entry["value"] for entry in self.entrypoints if entry["name"] == annotation]
        return f"{self.tree / 'rootfs' if from_tree else self.stage1}{value}"

    def start(self, *flags: str, net: str = "none", env: dict[str, str] | None = None, **popen: Any) -> subprocess.Popen[bytes]:
        """Execute `run` as stage0 does and give up the lock to it."""
        environment = {
            **os.environ,
            "RKT_LOCK_FD": str(self._lock),
            "RKT_SELINUX_CONTEXT": "",
            "RKT_SELINUX_MOUNT_CONTEXT": "",
            **(env or {}),
        }
        command = [self.entrypoint("run"), f"--net={net}", "--local-config=/etc/rkt", *flags, self.uuid]
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        fds = (self._lock, *popen.pop("pass_fds", ()))
        process = subprocess.Popen(command, cwd=self.path, env=environment, pass_fds=fds, **popen)
        os.close(self._lock)
        self._lock = -1
        return process

    def run(self, *flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the pod to its end."""
        process = self.start(*flags, **options)
        try:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(
            process.args, process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace")
        )

    def call(self, name: str, *arguments: str, from_tree: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run another entrypoint on the pod to its end."""
        command = [self.entrypoint(name, from_tree=from_tree), *arguments]
        options = {"capture_output": True, "text": True, "timeout": TIMEOUT_SECONDS, "stdin": subprocess.DEVNULL, **options}
        return subprocess.run(command, cwd=self.path, check=False, **options)

    def enter(self, app: str, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in an app as `rkt enter` does: from the tree store."""
        pid = (self.path / "pid").read_text().strip()
        return self.call("enter", f"--pid={pid}", f"--appname={app}", "--", *command, from_tree=True, **options)

    def status(self, app: str) -> int | None:
        """Return the recorded exit status of an app, None without one."""
        path = self.status_root / "rkt/status" / app
        return int(path.read_text()) if path.exists() else None

    def is_running(self) -> bool:
        """Return what stage0's probe finds: whether somebody holds the lock."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def wait_exited(self) -> None:
        """Block until nobody holds the lock any more."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        signal.alarm(TIMEOUT_SECONDS)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        finally:
            signal.alarm(0)
            os.close(fd)

    def control_groups(self) -> list[Path]:
        """Return the pod's control groups on the host, in every hierarchy."""
        name = "machine-rkt\\x2d" + self.uuid.replace("-", "\\x2d") + ".scope"
        return [path for path in Path("/sys/fs/cgroup").rglob(name)]

    def mounts(self) -> list[str]:
        """Return the mount points below the pod directory in this namespace."""
        with open("/proc/self/mountinfo") as lines:
            points = [line.split()[4] for line in lines]
        return [point for point in points if point.startswith(str(self.path))]

    def remove(self) -> None:
        """Collect what is left of the pod and delete its directory."""
        if self._lock >= 0:
            os.close(self._lock)
        with suppress(OSError, ValueError):
            os.kill(int((self.path / "pid").read_text()), signal.SIGKILL)
        self.wait_exited()
        self.call("gc", self.uuid)
        for point in sorted(self.mounts(), reverse=True):
            subprocess.run(["umount", point], check=True)
        shutil.rmtree(self.path)
