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
import socket
import stat
import struct
import subprocess
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from minit.linux import syscalls
from minit.linux.pidnamespaces import members_of
from tests.support.guest import GUEST, Report
from tests.support.owngroup import find_groups
from tests.support.processes import children_of, status_of
from tests.support.usersession import NO_GROUPS, SURROUNDING, kept_variables, without_warning
from tests.support.waiting import wait_for

BUSYBOX = Path("/usr/bin/busybox")
APPLETS = (
    *("sh", "cat", "cp", "echo", "sleep", "id", "env", "ls", "kill", "true", "false", "stat", "mount", "umount", "ps"),
    *("hostname", "ip", "wc", "head", "seq", "touch", "mkdir", "rm", "ln", "mknod", "readlink", "grep", "nc", "test"),
    *("dd", "tr", "ipcs", "printf", "yes", "pwd", "find", "sort", "ping"),
)
STAGE1_TREE_ID = "deps-sha512-" + "5" * 64
APP_TREE_ID = "deps-sha512-" + "a" * 64
TIMEOUT_SECONDS = 90
CONTROL = "stage1/rootfs/rkt/minit/control"
LOOPBACK_ONLY = "networking: networking namespace with loopback only\n"
_FIRST = "init-"  # how the name of a first process begins

# The ids of the host that a pod with private users has: where they begin, and how many.
PRIVATE_USERS = (0x309 << 16, 1 << 16)

MakePod = Callable[..., "PodDirectory"]


def make_rootfs(rootfs: Path, busybox: Path = BUSYBOX) -> None:
    """Fill a directory with a busybox and what an ordinary image has."""
    for name in ("bin", "etc", "tmp", "dev", "proc", "sys", "usr/bin"):
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    (rootfs / "tmp").chmod(0o1777)
    shutil.copy2(busybox, rootfs / "bin/busybox")
    for applet in APPLETS:
        (rootfs / "bin" / applet).symlink_to("busybox")
    (rootfs / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def shift_owners(top: Path, shift: int) -> None:
    """Add `shift` to the owner and group of a file, and of all that is below a directory, where that is not done."""
    _shift_owner(top, shift)
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            _shift_owner(Path(directory, name), shift)


def _shift_owner(path: Path, shift: int) -> None:
    status = path.lstat()
    uid, gid = (number if number >= shift else number + shift for number in (status.st_uid, status.st_gid))
    os.lchown(path, uid, gid)
    if not stat.S_ISLNK(status.st_mode):
        path.chmod(stat.S_IMODE(status.st_mode))  # the change of owner took setuid bits away


# Of the runtime app, which holds the `app` object.
_RUNTIME_FIELDS = ("annotations", "mounts", "readOnlyRootFS")


def app_section(*command: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object of a manifest; `annotations`, `mounts` and `readOnlyRootFS` are the runtime app's."""
    return {"exec": list(command), "user": "0", "group": "0", **fields}


def shell(script: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object that runs a shell script."""
    return app_section("/bin/sh", "-c", script, **fields)


def guest(*arguments: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object that runs the guest program."""
    return app_section(GUEST, *arguments, **fields)


def handlers(**commands: Sequence[str]) -> list[dict[str, Any]]:
    """Return the `eventHandlers` of an `app` object: `pre_start` and `post_stop` with their arguments."""
    return [{"name": name.replace("_", "-"), "exec": list(command)} for name, command in commands.items()]


def control_group_name(pod_uuid: str) -> str:
    """Return the name of a pod's control group."""
    return "machine-rkt\\x2d" + pod_uuid.replace("-", "\\x2d") + ".scope"


def _copy(tree: Path, copy: Path) -> None:
    # Not shutil.copytree, which takes four times as long.
    subprocess.run(["cp", "-a", str(tree), str(copy)], check=True)


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
        private_users: tuple[int, int] | None = None,
        annotations: dict[str, str] | None = None,
        app_in_image: bool = False,
        image_annotations: dict[str, str] | None = None,
        **manifest: Any,
    ) -> None:
        self.uuid = str(uuid.uuid4())
        self.data = data
        self.path = data / "pods/run" / self.uuid
        self.tree = stage1_tree
        self.app_rootfs = app_rootfs
        # No stage0 has both (stage0 contract 4.7).
        self.overlay = overlay = overlay and private_users is None
        self.private_users = private_users
        self.shift = 0 if private_users is None else private_users[0]
        self.stage1 = self.path / "stage1/rootfs"
        self.apps = list(apps)
        self.entrypoints = json.loads((stage1_tree / "manifest").read_text())["annotations"]
        self._process: subprocess.Popen[bytes] | None = None
        self.path.mkdir(parents=True, mode=0o750)
        for name in ("stage1", "appsinfo"):
            (self.path / name).mkdir(mode=0o750)
        shutil.copy(stage1_tree / "manifest", self.path / "stage1/manifest")
        (self.path / "stage1TreeStoreID").write_text(STAGE1_TREE_ID)
        (self.path / "pod.lck").touch(mode=0o600)
        self._write_manifests(apps, app_in_image, annotations or {}, image_annotations or {}, manifest)
        (self.path / "pod-created").touch()
        if overlay:
            (self.path / "overlay-prepared").touch()
            self.mount_overlay(stage1_tree / "rootfs", STAGE1_TREE_ID, self.stage1)
        else:
            _copy(stage1_tree / "rootfs", self.stage1)
        (self.stage1 / "rkt/status").touch()
        for name in apps:
            app = self.stage1 / "opt/stage2" / name
            app.mkdir(mode=0o750)
            shutil.copy(self.path / "appsinfo" / name / "manifest", app / "manifest")
            if overlay:
                self.mount_overlay(app_rootfs, APP_TREE_ID, app / "rootfs", name)
            else:
                _copy(app_rootfs, app / "rootfs")
        if private_users is not None:
            (self.path / "private-users-prepared").write_text(f"{private_users[0]}:{private_users[1]}")
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _write_manifests(
        self,
        apps: dict[str, dict[str, Any]],
        app_in_image: bool,
        annotations: dict[str, str],
        image_annotations: dict[str, str],
        manifest: dict[str, Any],
    ) -> None:
        entries = []
        for name, section in apps.items():
            image: dict[str, Any] = {
                "acKind": "ImageManifest",
                "acVersion": "0.8.11",
                "name": "test/image",
                "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
                "annotations": [{"name": k, "value": v} for k, v in image_annotations.items()],
            }
            entry: dict[str, Any] = {"name": name, "image": {"id": "sha512-" + "a" * 64}}
            of_runtime = {key: section[key] for key in _RUNTIME_FIELDS if key in section}
            entry.update(of_runtime)
            (image if app_in_image else entry)["app"] = {k: v for k, v in section.items() if k not in of_runtime}
            entries.append(entry)
            (self.path / "appsinfo" / name).mkdir(mode=0o750)
            (self.path / "appsinfo" / name / "manifest").write_text(json.dumps(image))
        pod = {
            "acVersion": "0.8.11",
            "acKind": "PodManifest",
            "apps": entries,
            "volumes": None,
            "isolators": None,
            "annotations": [{"name": k, "value": v} for k, v in annotations.items()],
            "ports": [],
            **manifest,
        }
        (self.path / "pod").write_text(json.dumps(pod))

    def mount_overlay(self, lower: Path, tree_id: str, target: Path, suffix: str = "") -> None:
        """Mount a tree where an app or stage1 is, with an upper directory of the pod's own."""
        upper, work = (self.path / "overlay" / tree_id / part / suffix for part in ("upper", "work"))
        for directory in (upper, work, target):
            directory.mkdir(parents=True, exist_ok=True)
        shutil.copymode(lower, upper)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}{'' if SURROUNDING is None else ',userxattr'}"
        syscalls.mount("overlay", str(target), "overlay", 0, options)

    # Running entrypoints.

    def entrypoint(self, name: str, *, from_tree: bool = False) -> str:
        """Return the host path of an entrypoint, by the annotation of the stage1 manifest."""
        annotation = f"{'minit' if name in ('control', 'gc-many') else 'coreos.com/rkt'}/stage1/{name}"
        [value] = [entry["value"] for entry in self.entrypoints if entry["name"] == annotation]
        return f"{self.tree / 'rootfs' if from_tree else self.stage1}{value}"

    def start(
        self,
        *flags: str,
        net: str | None = "none",
        operands: Sequence[str] | None = None,
        env: dict[str, str | None] | None = None,
        under: Sequence[str] = (),
        **popen: Any,
    ) -> subprocess.Popen[bytes]:
        """
        Execute `run` as stage0 does and give up the lock to it.

        `net=None` leaves --net out; `operands` stand in for the UUID; a variable of `env` that is None is removed;
        `under` is a program, a tracer say, that executes it.
        """
        environment: dict[str, str | None] = {
            **os.environ,
            "RKT_LOCK_FD": str(self._lock),
            "RKT_SELINUX_CONTEXT": "",
            "RKT_SELINUX_MOUNT_CONTEXT": "",
            **(env or {}),
        }
        network = [] if net is None else [f"--net={net}"]
        private = [] if self.private_users is None else self._give_to_private_users()
        last = [self.uuid] if operands is None else operands
        command = [*under, self.entrypoint("run"), *network, *private, "--local-config=/etc/rkt", *flags, *last]
        popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        fds = (self._lock, *popen.pop("pass_fds", ()))
        self._process = subprocess.Popen(
            command,
            cwd=self.path,
            env={name: value for name, value in environment.items() if value is not None},
            pass_fds=fds,
            **popen,
        )
        os.close(self._lock)
        self._lock = -1
        return self._process

    def _give_to_private_users(self) -> list[str]:
        """
        Shift the ids of the pod's files, and of the tests' files that are its volumes, and return the argument.

        Now, not when the pod was prepared, so that tests which change its files need not know.
        """
        shift_owners(self.stage1, self.shift)
        for source in self._volume_sources():
            # What cannot be a source is the test's subject.
            with suppress(OSError):
                if source.exists() and any(source.is_relative_to(top) for top in (self.data.parents[1], "/tmp")):
                    shift_owners(source, self.shift)
        return [f"--private-users={(self.path / 'private-users-prepared').read_text()}"]

    def _volume_sources(self) -> list[Path]:
        # Nor does every test have a manifest that can be read.
        with suppress(OSError, ValueError, LookupError, AttributeError):
            manifest = json.loads((self.path / "pod").read_bytes())
            mounts = [mount for app in manifest["apps"] for mount in app.get("mounts", ())]
            volumes = [*(manifest["volumes"] or ()), *(mount.get("appVolume", {}) for mount in mounts)]
            return [Path(volume.get("source", "/")) for volume in volumes]
        return []

    def run(self, *flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the pod to its end."""
        return self.finish(self.start(*flags, **options))

    def finish(self, process: subprocess.Popen[bytes]) -> subprocess.CompletedProcess[str]:
        """Wait for the end of a started pod and return its output, without what every pod like it says."""
        try:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
        texts = [(data or b"").decode(errors="replace") for data in (out, err)]
        texts[1] = without_warning(texts[1].replace(LOOPBACK_ONLY, "", 1))
        return subprocess.CompletedProcess(process.args, process.returncode, *texts)

    def call(
        self, name: str, *arguments: str, from_tree: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run another entrypoint on the pod to its end."""
        command = [self.entrypoint(name, from_tree=from_tree), *arguments]
        defaults = {"cwd": self.path, "capture_output": True, "text": True, "timeout": TIMEOUT_SECONDS}
        stdin = {} if "input" in options else {"stdin": subprocess.DEVNULL}
        if "env" in options:
            options["env"] = {**options["env"], **kept_variables()}
        return subprocess.run(command, check=False, **{**defaults, **stdin, **options})

    def stop(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run `stop`."""
        return self.call("stop", *flags, self.uuid)

    def gc(self) -> subprocess.CompletedProcess[str]:
        """Run `gc` as rkt does, with the directory of local configuration as a word of its own."""
        return self.call("gc", "--local-config", "/etc/rkt", self.uuid)

    def enter(self, app: str | None, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in an app as `rkt enter` does: from the tree store; without an app in the stage1 root."""
        where = [] if app is None else [f"--appname={app}"]
        return self.call("enter", f"--pid={self.pid}", *where, "--", *command, from_tree=True, **options)

    # What the pod shows.

    @property
    def status_root(self) -> Path:
        """The directory where stage0 reads statuses: the overlay's upper directory, behind the mount."""
        return self.path / "overlay" / STAGE1_TREE_ID / "upper" if self.overlay else self.stage1

    @property
    def pid(self) -> int:
        """The host pid of PID 1, once it is written."""
        return int(wait_for(lambda: self._read("pid"), "the pid file"))

    def _read(self, name: str) -> str:
        path = self.path / name
        return path.read_text() if path.exists() else ""

    def status(self, app: str) -> int | None:
        """Return the recorded exit status of an app, None without one."""
        with suppress(FileNotFoundError):
            return int((self.status_root / "rkt/status" / app).read_text())
        return None

    def record(self, app: str) -> dict[str, Any]:
        """Return minit's own record of an app's end."""
        record: dict[str, Any] = json.loads((self.status_root / f"rkt/minit/state/{app}.json").read_text())
        return record

    def file(self, app: str, path: str) -> Path:
        """Return the host path of a file in an app's root."""
        return self.stage1 / "opt/stage2" / app / "rootfs" / path.lstrip("/")

    def report(self, app: str, path: str = "/tmp/report") -> Report:
        """Return what the guest program reported."""
        return Report(self.file(app, path))

    def log(self, app: str) -> bytes:
        """Return the app's log file, empty until there is one."""
        try:
            return (self.status_root / f"rkt/minit/log/{app}.log").read_bytes()
        except FileNotFoundError:
            return b""

    def is_ready(self) -> bool:
        """Return what stage0 takes for readiness."""
        try:
            return os.readlink(self.status_root / "rkt/supervisor-status") == "ready"
        except OSError:
            return False  # not there, or between two of its states

    def wait_ready(self) -> None:
        """Block until the pod is ready."""
        wait_for(self.is_ready, "readiness")

    def wait_file(self, app: str, path: str) -> Path:
        """Block until an app has made a file."""
        wait_for(self.file(app, path).exists, f"{path} in {app}")
        return self.file(app, path)

    def wait_status(self, app: str) -> int:
        """Block until an app has a status."""
        wait_for((self.status_root / "rkt/status" / app).exists, f"the status of {app}")
        number = self.status(app)
        assert number is not None
        return number

    def events(self) -> list[dict[str, Any]]:
        """Return what the supervisor says to have happened, once it has written it."""
        path = self.stage1 / "rkt/minit/events.log"
        # What is being written may be there in part.
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def wait_event(self, event: str, app: str | None = None) -> dict[str, Any]:
        """Block until something has happened in the pod, or to an app of it, and return the first such event."""

        def find() -> dict[str, Any] | None:
            return next((one for one in self.events() if (one["event"], one.get("app")) == (event, app)), None)

        return wait_for(find, f"{event} of {app}")

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
        wait_for(lambda: not self.is_running(), "the pod's lock", TIMEOUT_SECONDS)

    def children(self) -> dict[str, int]:
        """
        Return the processes that PID 1 and its spawner made, by name; an app's name is its program's.

        First processes of PID namespaces that take the place of groups are left out.
        """
        return {name: pid for name, pid in self._children().items() if not name.startswith(_FIRST)}

    def first_processes(self) -> dict[str, int]:
        """Return the first processes of the PID namespaces that take the place of groups, by app; none with groups."""
        children = self._children().items()
        return {name.removeprefix(_FIRST): pid for name, pid in children if name.startswith(_FIRST)}

    def _children(self) -> dict[str, int]:
        names: dict[str, int] = {}
        pids = children_of(self.pid)
        while pids:
            pid = pids.pop()
            # Any of them may end while it is looked at.
            with suppress(FileNotFoundError, ProcessLookupError):
                name = status_of(pid)["Name"]
                if name == "minit-spawner":
                    pids += children_of(pid)
                names[name] = pid
        return names

    def control_groups(self) -> list[Path]:
        """Return the pod's control groups on the host, in every hierarchy."""
        return find_groups(control_group_name(self.uuid))

    def members(self) -> list[int]:
        """Return the processes in the pod's control groups, in any hierarchy; without groups in the pod's namespace."""
        pids: set[int] = set()
        if SURROUNDING == NO_GROUPS:
            # There is no number before PID 1 and, of a pod that could not be started, after it.
            with suppress(FileNotFoundError, ProcessLookupError):
                if self.is_running() and (text := self._read("pid")):
                    pids = {int(text), *members_of(int(text), os.stat(f"/proc/{text.strip()}/ns/pid").st_ino)}
        for top in self.control_groups():
            for group, _, _ in os.walk(top):
                with suppress(FileNotFoundError):
                    pids.update(map(int, Path(group, "cgroup.procs").read_text().split()))
        return sorted(pids)

    def members_of_app(self, app: str) -> list[int]:
        """Return the processes in an app's control groups; without groups in the app's namespace, but for the first."""
        if first := self.first_processes().get(app):
            # The first process may be ending.
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                return members_of(first, os.stat(f"/proc/{first}/ns/pid").st_ino)
        pids: set[int] = set()
        for top in self.control_groups():
            with suppress(FileNotFoundError):
                pids.update(map(int, (top / f"system.slice/{app}.service/cgroup.procs").read_text().split()))
        return sorted(pids)

    def mounts(self) -> list[str]:
        """Return the mount points below the pod directory in this namespace."""
        with open("/proc/self/mountinfo") as lines:
            points = [line.split()[4] for line in lines]
        return [point for point in points if point.startswith(f"{self.path}/")]

    def connect(self) -> socket.socket:
        """Return a connection to the control socket, by a path that fits into an address."""
        directory = os.open(self.path, os.O_PATH)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not settimeout(), with which connect(2) would fail at once while the backlog is full.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            client.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TIMEOUT_SECONDS, 0))
        try:
            client.connect(f"/proc/self/fd/{directory}/{CONTROL}")
        finally:
            os.close(directory)
        return client

    def ask(self, request: object) -> dict[str, Any]:
        """Send one request over the control socket and return the reply."""
        with self.connect() as client:
            client.send(request if isinstance(request, bytes) else json.dumps(request).encode())
            reply: dict[str, Any] = json.loads(client.recv(1 << 16))
            return reply

    def remove(self) -> None:
        """Collect what is left of the pod and delete its directory, unless that is done."""
        if not self.path.exists():
            return
        if self._lock >= 0:
            os.close(self._lock)
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
        if self.is_running():
            # Only a pod that still holds its lock has a pid file that is certainly about its own process.
            with suppress(OSError, ValueError):
                os.kill(int(self._read("pid")), signal.SIGKILL)
        self.wait_exited()
        self.gc()
        for point in sorted(self.mounts(), reverse=True):
            syscalls.umount2(point, 0)
        shutil.rmtree(self.path)


def run_all(pods: Iterable[PodDirectory], *flags: str) -> list[subprocess.CompletedProcess[str]]:
    """Run pods at the same time, each to its end."""
    started = [(pod, pod.start(*flags)) for pod in pods]
    return [pod.finish(process) for pod, process in started]
