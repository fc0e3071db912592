"""Containerfiles built by minit and by podman: the images have the same files and settings."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.value import Value
from tests import tars
from tests.support.commands import Stage0
from tests.support.podman import Podman, own_podman

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.skipif(shutil.which("podman") is None, reason="no podman on PATH"),
    pytest.mark.long,
]

# A base in an archive: podman's RUN needs the places of its mounts, which would else differ.
_BASE = "FROM scratch AS base\nADD base.tar /\n"
_PLACES = ("dev", "proc", "run", "sys")
_CONVERTED = ("dev/fd", "dev/stdin", "dev/stdout", "dev/stderr")
_OF_PODMAN = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "run/.containerenv", "run/secrets")

CONTAINERFILES = {
    "stages": """
ARG NAME=base
FROM $NAME AS one
WORKDIR /work
WORKDIR deep/er
COPY . .
COPY docs/*.txt none* /texts/
COPY package lock* ./
FROM scratch
COPY --from=1 /work /work
COPY --from=one /texts/a.txt /texts/b.txt /both/
COPY --from=one /bin/busybox /bin/
COPY --from=base /links /links
CMD ["/bin/busybox"]
""",
    "owners": """
FROM base
RUN echo web:x:1234:1234::/home/web:/bin/sh >> /etc/passwd && echo team:x:77:web >> /etc/group
COPY --chown=web:team docs /docs/
COPY --chown=web package /made/by/web
COPY --chown=5:6 --chmod=4711 package /made/numbers
COPY --chmod=0600 docs /private
ADD --chown=web tree.tar /tree/
WORKDIR /home/web/app
RUN chown -R web:77 /home/web
COPY package .
USER web
RUN id > id && mkdir own && chmod 2775 own && cp package two && ln two hard && ln -s nowhere soft
USER 4242:77
RUN id -u > /tmp/id; id -g >> /tmp/id
""",
    "settings": """
FROM base
ARG WITH=default WITHOUT
ENV A=1 B="two words" C=$A-$WITH
ENV OLD form  of value
ENV PATH=/opt/bin:$PATH
LABEL one=1 "two words"="a b" three=$C
LABEL old form of label
MAINTAINER Some One <one@example.com>
EXPOSE 80 443/tcp 53/udp
VOLUME /data /logs
STOPSIGNAL SIGQUIT
HEALTHCHECK --interval=30s --timeout=3s --retries=2 CMD ["/bin/true", "x"]
CMD echo never
ENTRYPOINT exec echo "$A"
SHELL ["/bin/sh", "-ec"]
RUN echo $WITH $C $- > /said
USER 7
""",
    "commands": """
FROM base
RUN ["/bin/busybox", "mkdir", "/made"]
RUN rm -r /links && mkdir /links && echo x > /links/x
RUN --mount=type=cache,target=/cache --mount=type=tmpfs,target=/memory echo c > /cache/c; echo m > /memory/m
RUN --mount=type=bind,source=docs,target=/docs --mount=from=base,source=/tree,target=/t,rw cat /docs/a.txt /t/a > /seen
RUN mv /tree /moved; rm /moved/a; ln -sf b /moved/link; mkfifo /moved/fifo
RUN chmod 700 /etc && chown 9:9 /moved/sub && \\
    # a comment within
    touch "/moved/a name"
RUN rm -r /moved/sub; mkdir /moved/sub
COPY docs /moved/sub
COPY package /moved/link
""",
    "present": """
FROM base
RUN mkdir -p /a/sub /b/sub /c/sub /d/sub && chmod 2775 /?/sub /? && chown 3:4 /? /?/sub && echo 3 > /c/sub/a
COPY docs /a
COPY --chown=7:8 docs /b
ADD tree.tar /
COPY --from=base /tree /c
COPY --chmod=711 docs /d
""",
    "documents": """
FROM base
ENV A="two words"
RUN <<END
set -e
mkdir /own
echo "$A" > /own/said
END
COPY --chmod=640 --chown=5:6 <<one <<-'two' /made/
$A and ${A}s
one
\t$A and \\$A
two
""",
    "triggers": """
FROM base AS parent
ONBUILD COPY package /app/
ONBUILD RUN cp /app/package /app/copy
ONBUILD ENV MADE=yes
ENTRYPOINT ["/bin/sh"]
CMD ["-c", "true"]
FROM parent
RUN test $MADE = yes && touch /made
ENTRYPOINT ["/bin/busybox"]
""",
}


def write_context(path: Path) -> Path:
    """Make a context with all that the Containerfiles copy."""
    for name in ("docs/a.txt", "docs/b.txt", "docs/left.out", "docs/kept.out", "docs/sub/deep/c", "package"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"{name}\n")
    (path / "docs/sub").chmod(0o750)
    (path / "docs/program").write_text("#!/bin/sh\n")
    (path / "docs/program").chmod(0o4755)
    os.chown(path / "docs/b.txt", 33, 33)
    (path / "docs/link").symlink_to("../package")
    (path / ".dockerignore").write_text("docs/left*\n**/*.out\nFile*\n!docs/kept.out\n# no more\n")
    tree = [tars.directory("tree/", 0o2750, uid=8), tars.file("tree/a", b"a", uid=8), tars.file("tree/b", mode=0o4711)]
    tree += [tars.hard_link("tree/c", "tree/a", uid=8), tars.symlink("tree/link", "a"), tars.directory("tree/sub/")]
    tree += [tars.pax({"SCHILY.xattr.user.x": b"1"}) + tars.file("tree/sub/x", b"x")]
    programs = os.popen("busybox --list").read().split()
    base = [tars.directory(f"{name}/") for name in (*_PLACES, "bin", "etc", "home", "links")]
    base += [tars.directory("tmp/", 0o1777), tars.file("bin/busybox", Path("/bin/busybox").read_bytes(), mode=0o755)]
    base += [tars.symlink(f"bin/{name}", "busybox") for name in programs if name != "busybox"]
    base += [tars.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n"), tars.file("etc/group", b"root:x:0:\n")]
    base += [tars.symlink("links/up", "../etc/passwd"), tars.symlink("links/none", "/none")]
    (path / "tree.tar").write_bytes(b"".join([*tree, tars.END]))
    (path / "base.tar").write_bytes(b"".join([*base, *tree, tars.END]))
    return path


class Seen(Value):
    """A file of an image: all that a build decides, but for times."""

    mode: int
    owner: tuple[int, int]
    content: str
    attributes: tuple[tuple[str, bytes], ...]
    links: tuple[str, ...]


def files_of(top: Path) -> dict[str, Seen]:
    """Return the files below a directory by their paths, but for those that belong to a running container."""
    names: dict[int, list[str]] = {}
    paths = {str(path.relative_to(top)): path for path in top.rglob("*")}
    for name, path in paths.items():
        names.setdefault(path.lstat().st_ino, []).append(name)
    return {
        name: _seen(path, tuple(sorted(names[path.lstat().st_ino])))
        for name, path in paths.items()
        if name not in (*_PLACES, *_CONVERTED, *_OF_PODMAN)
    }


def _seen(path: Path, links: tuple[str, ...]) -> Seen:
    status = path.lstat()
    content = os.readlink(path) if path.is_symlink() else ""
    if stat.S_ISREG(status.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    attributes = {
        name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
    }
    return Seen(
        mode=status.st_mode,
        owner=(status.st_uid, status.st_gid),
        content=content,
        attributes=tuple(sorted(attributes.items())),
        links=links,
    )


def settings_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration that are not empty, variables without their order."""
    settings = {name: value for name, value in document["config"].items() if value and name != "Hostname"}
    if settings.get("WorkingDir") == "/":
        del settings["WorkingDir"]
    settings["Env"] = sorted(settings.get("Env", ()))
    settings["Labels"] = {
        name: value for name, value in settings.get("Labels", {}).items() if name != "io.buildah.version"
    }
    return {**settings, "author": document.get("author", "")}


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    """A podman without images."""
    with own_podman(tmp_path) as started:
        yield started


@pytest.mark.parametrize("case", CONTAINERFILES)
def test_the_images_are_those_of_podman(minit: Stage0, podman: Podman, tmp_path: Path, case: str) -> None:
    """Type, mode, owner, content, links and attributes of all files and all settings are those of podman's image."""
    context = write_context(tmp_path / "context")
    if case == "documents" and podman("version", "--format={{.Client.Version}}").startswith("4."):
        pytest.skip("the machine's podman knows no here-documents")
    file = tmp_path / "File"
    head, _, rest = CONTAINERFILES[case].lstrip().partition("FROM")
    file.write_text(f"{head}{_BASE}FROM{rest}")
    # podman 5 asks for limits that a container's root may not have.
    options = ("--isolation=chroot", "--format=docker", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
    podman("build", *options, f"--file={file}", "--tag=it", context)
    words = ("build", "--net=none", minit.stage1_flag, f"--file={file}", "--tag=it:latest", context)
    result = minit.call(*words)
    assert result.returncode == 0, result.stderr
    out, layout = tmp_path / "out", tmp_path / "layout"
    assert minit.call("image", "extract", "--rootfs-only", "it", out).returncode == 0
    assert minit.call("image", "export", "--format=oci", "it", layout).returncode == 0
    with podman.mounted("it") as top:
        ours, theirs = files_of(out), files_of(top)
    assert {
        name: (ours.get(name), theirs.get(name)) for name in ours | theirs if ours.get(name) != theirs.get(name)
    } == {}
    index = json.loads((layout / "index.json").read_bytes())
    document = index["manifests"][0]
    for _ in range(2):
        blob = json.loads((layout / "blobs" / document["digest"].replace(":", "/")).read_bytes())
        document = blob.get("config", {})
    assert settings_of(blob) == settings_of(podman.configuration("it", tmp_path / "pushed"))
