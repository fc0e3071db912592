"""
A mutable pod as stage0 drives it: `rkt app add`, `start`, `stop` and `rm`, step by step, but for their checks.

Independent of minit's own stage0, so that both sides of the contract are checked against its text.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.pods import APP_TREE_ID, TIMEOUT_SECONDS, MakePod, PodDirectory, shift_owners
from tests.support.processes import named
from tests.support.usersession import kept_variables
from tests.support.waiting import wait_for

MUTABLE = {"coreos.com/rkt/stage1/mutable": "true"}
_RUNTIME_FIELDS = ("annotations", "mounts", "readOnlyRootFS")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Result = subprocess.CompletedProcess[str]


class Sandbox:
    """A running mutable pod; `process` is its launcher."""

    def __init__(
        self,
        make_pod: MakePod,
        *flags: str,
        annotations: dict[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        pass_fds: Sequence[int] = (),
        **pod: Any,
    ) -> None:
        """Start it, with `prepare` called in its launcher's process before, which inherits `pass_fds`."""
        self.pod: PodDirectory = make_pod({}, annotations={**MUTABLE, **(annotations or {})}, **pod)
        self.process = self.pod.start("--mutable", *flags, preexec_fn=prepare, pass_fds=pass_fds)
        self.pod.wait_ready()

    def add(self, name: str, section: dict[str, Any], *flags: str, **options: Any) -> Result:
        """Add an app as `rkt app add` does; its `app` object is the pod manifest's."""
        with self.locked():
            self.lay_out(name, section)
            return self.call("app/add", "--debug=false", f"--uuid={self.pod.uuid}", f"--app={name}", *flags, **options)

    def start(self, name: str, **options: Any) -> Result:
        """Start an app as `rkt app start` does."""
        self.mark_started(name)
        return self.call("app/start", "--debug=false", f"--app={name}", **options)

    def stop(self, name: str, **options: Any) -> Result:
        """Stop an app as `rkt app stop` does."""
        return self.call("app/stop", "--debug=false", f"--app={name}", **options)

    def remove(self, name: str) -> Result:
        """Remove an app as `rkt app rm` does; the result is that of the entrypoint that failed, or of the last."""
        with self.locked():
            for verb in ("app/stop", "app/rm"):
                result = self.call(verb, "--debug=false", f"--app={name}")
                if result.returncode != 0:
                    return result
            self.clear_away(name)
            return result

    def end(self) -> Result:
        """Stop the pod and return what its launcher said."""
        assert self.pod.stop().returncode == 0
        return self.pod.finish(self.process)

    # The steps.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the manifest."""
        lock = os.open(self.pod.path / "pod.lck", os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def lay_out(self, name: str, section: dict[str, Any]) -> None:
        """Do what stage0 does before `app/add`."""
        pod = self.pod
        image = {
            "acKind": "ImageManifest",
            "acVersion": "0.8.11",
            "name": "test/image",
            "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
        }
        information, app = pod.path / "appsinfo" / name, pod.stage1 / "opt/stage2" / name
        for directory in (information, app):
            directory.mkdir(mode=0o750)
            (directory / "manifest").write_text(json.dumps(image))
        if pod.overlay:
            (information / "treeStoreID").write_text(APP_TREE_ID)
            pod.mount_overlay(pod.app_rootfs, APP_TREE_ID, app / "rootfs", name)
        else:
            subprocess.run(["cp", "-a", str(pod.app_rootfs), str(app / "rootfs")], check=True)
            shift_owners(app, pod.shift)
        for source in [Path(mount.get("appVolume", {}).get("source", "/")) for mount in section.get("mounts", ())]:
            if pod.shift and source.exists() and source.is_relative_to(pod.data.parent):
                shift_owners(source, pod.shift)
        environment = {"PATH": _PATH, "HOME": "/root", "AC_APP_NAME": name}
        text = "".join(f"{key}={value}\n" for key, value in environment.items())
        (pod.stage1 / "rkt/env" / name).write_text(text)
        entry: dict[str, Any] = {"name": name, "image": {"id": "sha512-" + "a" * 64}}
        entry |= {key: section[key] for key in _RUNTIME_FIELDS if key in section}
        entry["app"] = {key: value for key, value in section.items() if key not in entry}
        self.rewrite(lambda apps: [*apps, entry])
        (pod.stage1 / f"rkt/status/{name}-created").touch()

    def rewrite(self, change: Any) -> None:
        """Replace the manifest by one with other apps."""
        path = self.pod.path / "pod"
        manifest = json.loads(path.read_text())
        manifest["apps"] = change(manifest["apps"])
        temporary = self.pod.path / "1234567890"
        temporary.write_text(json.dumps(manifest) + "\n")
        temporary.chmod(path.stat().st_mode)
        temporary.rename(path)

    def mark_started(self, name: str) -> None:
        """Do what stage0 does before `app/start`."""
        status = self.pod.stage1 / "rkt/status"
        for path in (status / f"{name}-started", status / name):
            path.unlink(missing_ok=True)
        (status / f"{name}-started").touch()

    def clear_away(self, name: str) -> None:
        """Do what stage0 does after `app/rm`: it unmounts the root without force, and removes files."""
        pod = self.pod
        app = pod.stage1 / "opt/stage2" / name
        if pod.overlay:
            subprocess.run(["umount", str(app / "rootfs")], check=True)
            for part in ("upper", "work"):
                # rkt's own removes what other apps of the image have there, too.
                shutil.rmtree(pod.path / "overlay" / APP_TREE_ID / part / name)
        shutil.rmtree(pod.path / "appsinfo" / name)
        shutil.rmtree(app)
        for directory in ("status", "env"):
            (pod.status_root / "rkt" / directory / name).unlink(missing_ok=True)
        self.rewrite(lambda apps: [app for app in apps if app["name"] != name])

    def call(self, entrypoint: str, *arguments: str, under: Sequence[str] = (), **options: Any) -> Result:
        """
        Run an entrypoint as stage0 runs those about apps: with three variables and one pipe for what it says.

        `under` is a program, a tracer say, that executes it.
        """
        environment = {
            "RKT_STAGE1_ENTERCMD": self.pod.entrypoint("enter"),
            "RKT_STAGE1_ENTERPID": str(self.pod.pid),
            "PATH": _PATH,
            **kept_variables(),
        }
        return subprocess.run(
            [*under, self.pod.entrypoint(entrypoint), *arguments],
            cwd=self.pod.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
            **options,
        )

    # What the pod shows.

    def app(self, name: str) -> dict[str, Any] | None:
        """Return what the control socket says about an app, None if it is not in the pod."""
        apps = self.pod.ask({"op": "state"})["apps"]
        return next((app for app in apps if app["name"] == name), None)

    def state(self, name: str) -> str:
        """Return the state of an app, in rkt's words for its app-level API."""
        app = self.app(name)
        return "unknown" if app is None else str(app["lifecycle_state"])

    def wait_state(self, name: str, state: str) -> None:
        """Block until an app is in a state."""
        wait_for(lambda: self.state(name) == state, f"{name} to be {state}")

    def rkt_state(self, name: str) -> str:
        """Return the state that rkt reads from the status files."""
        status = self.pod.status_root / "rkt/status"
        if not (status / f"{name}-created").exists():
            return "unknown"
        if not (status / f"{name}-started").exists():
            return "created"
        return "exited" if (status / name).exists() else "running"

    def helpers(self, name: str = "minit-health") -> list[int]:
        """Return the processes of that name which work for the pod's apps."""
        found = []
        for pid in named(map(int, filter(str.isdigit, os.listdir("/proc"))), name):
            # Others may be of another user.
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if os.readlink(f"/proc/{pid}/cwd") == str(self.pod.path):
                    found.append(pid)
        return found

    def traces(self, name: str) -> list[str]:
        """Return what there is of an app: files, mounts and control groups."""
        pod = self.pod
        found = [str(path) for path in (pod.path / "enter", pod.path / "appsinfo") if (path / name).exists()]
        for directory, _, files in os.walk(pod.stage1 / "rkt"):
            found += [f"{directory}/{file}" for file in files if file.split(".")[0].split("-")[0] == name]
            if directory.endswith(f"/{name}"):
                found.append(directory)
        found += [mount for mount in pod.mounts() if f"/opt/stage2/{name}/" in mount]
        for top in pod.control_groups():
            with suppress(FileNotFoundError):
                found += [str(path) for path in (top / "system.slice").glob(f"{name}.service")]
        return found
