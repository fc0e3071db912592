"""Builds app images: an ACI from a directory, from programs of this machine, or from both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from minit.base import jsontext
from minit.base.errors import ImageError, describe
from minit.base.processors import this_processor
from minit.base.progress import Progress
from minit.image.aciwriter import AciWriter
from minit.image.contents import Contents, Directory, Text
from minit.image.hostfiles import HostFiles
from minit.manifest.image import APPC_VERSION, parse_image_manifest
from minit.manifest.names import sanitize_ac_name

# Directories that a program expects of any root, beside itself and its libraries.
_BASICS = (
    (PurePosixPath("/"), Directory()),
    (PurePosixPath("/etc"), Directory()),
    (PurePosixPath("/etc/group"), Text(text="root:x:0:\n")),
    (PurePosixPath("/etc/passwd"), Text(text="root:x:0:0:root:/:/bin/sh\n")),
    (PurePosixPath("/tmp"), Directory(mode=0o1777)),
)


def build_app_image(
    output: Path,
    *,
    name: str | None,
    rootfs: Path | None,
    from_host: Sequence[Path],
    exec: Sequence[str],
    user: str = "0",
    group: str = "0",
    environment: Sequence[tuple[str, str]] = (),
    working_directory: str | None = None,
    ports: Sequence[tuple[str, str, int]] = (),
    mounts: Sequence[tuple[str, str]] = (),
    labels: Sequence[tuple[str, str]] = (),
    progress: Progress,
) -> None:
    """
    Write an app image to `output`.

    It has what is in `rootfs`, and the programs `from_host` with their libraries where `rootfs` has nothing.
    The name defaults to that of the first program or else of the directory, `exec` to the first program, the
    labels os and arch to this machine. `ports` are (name, protocol, port), `mounts` (name, path). ImageError
    or ManifestError says what is wrong; then there is no output.
    """
    if rootfs is None and not from_host:
        raise ImageError("nothing to make an image from: give a rootfs directory or programs of this machine")
    app: dict[str, object] = {
        "exec": [*(exec or [str(path.absolute()) for path in from_host[:1]])],
        "user": user,
        "group": group,
        "environment": [{"name": key, "value": value} for key, value in environment],
        "ports": [
            {"name": port_name, "protocol": protocol, "port": port, "count": 1, "socketActivated": False}
            for port_name, protocol, port in ports
        ],
        "mountPoints": [{"name": mount_name, "path": path} for mount_name, path in mounts],
    }
    if working_directory is not None:
        app["workingDirectory"] = working_directory
    manifest = jsontext.dump(
        {
            "acKind": "ImageManifest",
            "acVersion": APPC_VERSION,
            "name": name or sanitize_ac_name(_default_name(rootfs, from_host)),
            "labels": [{"name": key, "value": value} for key, value in _with_platform(labels)],
            "app": app,
        }
    )
    parse_image_manifest(manifest, "image manifest")

    progress("collecting files", 0, None)
    contents = _collect(output, rootfs, from_host)
    with AciWriter(output, manifest) as writer:
        contents.write(writer, progress)


def _default_name(rootfs: Path | None, from_host: Sequence[Path]) -> str:
    if from_host or rootfs is None:
        return from_host[0].name
    return rootfs.resolve().name


def _with_platform(labels: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    # rkt prepares no app whose image lacks one of the two.
    given = {name for name, _ in labels}
    defaults = (("os", "linux"), ("arch", this_processor().appc))
    return [*labels, *(label for label in defaults if label[0] not in given)]


def _collect(output: Path, rootfs: Path | None, from_host: Sequence[Path]) -> Contents:
    contents = Contents()
    if rootfs is not None:
        if output.resolve().is_relative_to(rootfs.resolve()):
            raise ImageError(f"{output} is inside {rootfs}, which it is made from: put it elsewhere")
        try:
            contents.add_tree(rootfs.resolve())
        except OSError as error:
            raise ImageError(f"cannot read the rootfs: {describe(error)}") from error
    if from_host:
        host_files = HostFiles(contents)
        for program in from_host:
            host_files.add_program(program)
        for path, entry in _BASICS:
            contents.add(path, entry)
    return contents
