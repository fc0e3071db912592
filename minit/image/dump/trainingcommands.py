"""Training of the command, which shows the pages it writes to: commands that are used often, on pods of no use."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from minit import jsontext
from minit.archives.tarentry import Kind
from minit.archives.tarwriter import TarWriter, new_entry
from minit.manifest.image import APPC_VERSION

_SECONDS = 60
"""For one of them, which takes less than one."""
_STAGE1_PREFIX = "coreos.com/rkt/stage1/"
_ENTRYPOINTS = ("run", "enter", "stop", "gc")
_DIRECTORIES = ("etc", "opt", "opt/stage2", "rkt", "rkt/env", "rkt/status")


def run_commands(program: Path) -> None:
    """Run the command that `program` is on pods that end at once; what fails is only not found out."""
    with TemporaryDirectory(prefix="minit-") as name, suppress(OSError, subprocess.TimeoutExpired):
        scratch = Path(name)
        data, stage1, app, uuid = (scratch / name for name in ("data", "stage1.aci", "app.aci", "uuid"))
        _write_stage1(stage1)
        _write_app(app)

        def minit(*words: object) -> None:
            command = [str(word) for word in (program, "/bin/false", f"--dir={data}", *words)]
            subprocess.run(command, env={}, capture_output=True, check=False, timeout=_SECONDS)

        run = ("run", "--no-overlay", "--net=none", f"--stage1-path={stage1}", f"--uuid-file-save={uuid}", app)
        minit(*run, "--exec=/bin/true", "--", "argument")
        pod = uuid.read_text() if uuid.exists() else "none"
        for words in (["list"], ["status", pod], ["app", "list", pod], ["stop", pod], ["enter", pod, "true"]):
            minit(*words)
        minit("gc", "--grace-period=0s")


def _write_stage1(output: Path) -> None:
    annotations = [{"name": f"{_STAGE1_PREFIX}{name}", "value": f"/{name}"} for name in _ENTRYPOINTS]
    directories = [f"rootfs/{name}" for name in _DIRECTORIES]
    scripts = {f"rootfs/{name}": b"#!/bin/sh\n" for name in _ENTRYPOINTS}
    _write_image(output, _manifest("stage1", annotations=annotations), directories, scripts)


def _write_app(output: Path) -> None:
    manifest = _manifest("app", app={"exec": ["/bin/true"], "user": "0", "group": "0"})
    _write_image(output, manifest, ["rootfs/etc"], {})


def _write_image(output: Path, manifest: bytes, directories: Iterable[str], programs: Mapping[str, bytes]) -> None:
    """Write an ACI that need not outlive a crash."""
    with open(output, "wb") as file:
        tar = TarWriter(file.write)
        for directory in ("rootfs", *directories):
            tar.add(new_entry(directory, Kind.DIRECTORY, 0o755))
        for path, content in {**programs, "manifest": manifest}.items():
            tar.add(new_entry(path, Kind.FILE, 0o755), data=content)
        tar.finish()


def _manifest(name: str, **fields: object) -> bytes:
    labels = [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}]
    kind = {"acKind": "ImageManifest", "acVersion": APPC_VERSION}
    return jsontext.dump({**kind, "name": f"minit/{name}", "labels": labels, **fields})
