"""`minit image build` of Containerfiles: steps in pods and layers, as podman builds, from contexts that are hostile."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import Stage0
from tests.support.pods import LOOPBACK_ONLY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

Files = dict[str, tuple[int, int, int, str]]


def build(minit: Stage0, context: Path, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Build the Containerfile of a context without a network."""
    result = minit.call("image", "build", "--net=none", minit.stage1_flag, *words, context)
    assert result.returncode == code, result
    result.stderr = result.stderr.replace(LOOPBACK_ONLY, "")
    return result


def context_of(path: Path, text: str, **files: str) -> Path:
    """Make a context with a Containerfile, and files by names with dots and slashes written as _ and __."""
    path.mkdir(exist_ok=True)
    (path / "Containerfile").write_text(text)
    for name, content in files.items():
        place = path / name.replace("__", "/").replace("_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return path


def extracted(minit: Stage0, image: str, place: Path) -> Files:
    """Return mode, owner and content or target of the files of an image."""
    shutil.rmtree(place, ignore_errors=True)
    assert minit.call("image", "extract", "--rootfs-only", image, place).returncode == 0
    return files_of(place)


def files_of(place: Path) -> Files:
    """Return mode, owner and content or target of the files below a directory."""
    found = {}
    for path in place.rglob("*"):
        status = path.lstat()
        content = path.read_text(errors="replace") if stat.S_ISREG(status.st_mode) and status.st_size < 99 else ""
        content = os.readlink(path) if path.is_symlink() else content
        found[str(path.relative_to(place))] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found


@pytest.fixture
def base(minit: Stage0) -> str:
    """Return the name of an image with a busybox."""
    image = minit.image(environment=[{"name": "BASE", "value": "yes"}])
    assert minit.call("fetch", "--quiet", image).returncode == 0
    rows = minit.call("image", "list", "--no-legend", "--fields=name").stdout.split()
    return next(name for name in rows if "stage1" not in name)


EVERYTHING = """\
ARG FROM=none
FROM $FROM AS build
ARG WHAT=default
ENV A="two words"
RUN echo "$A $BASE $WHAT" > /said && mkdir -p /deep/er && chmod 2750 /deep/er && busybox chown 5:6 /said
RUN busybox rm /said; busybox mkdir /said; echo x > /said/x
RUN <<END
set -e
echo document > /document
END
WORKDIR /srv/app
COPY . .
COPY fil? lock* none* /some/
COPY --chown=7:8 --chmod=640 sub /owned/by/
COPY <<one.txt sub/f /made/
$A
one.txt
ADD x.tar /unpacked
VOLUME /data
FROM build AS other
RUN echo other > /other
FROM build
COPY --from=other /other /oth*er
COPY --from=build /deep /copied
USER 3:4
RUN busybox id -u > /tmp/id
EXPOSE 80
ENTRYPOINT ["/bin/busybox"]
CMD ["cat", "/srv/app/file"]
"""


def test_an_image_of_everything(minit: Stage0, base: str, tmp_path: Path) -> None:
    """Stages, commands, copies and settings make one image, whose second build takes all from the cache."""
    context = context_of(
        tmp_path / "context",
        EVERYTHING,
        file="f\n",
        sub__f="in sub\n",
        left_o="no\n",
        _dockerignore="*.o\nContainer*\n",
    )
    (context / "link").symlink_to("/etc/passwd")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/t").write_text("t\n")
    subprocess.run(
        ["tar", "-C", tmp_path / "tree", "--owner=9", "--group=9", "-czf", context / "x.tar", "t"], check=True
    )
    words = (f"--build-arg=FROM={base}", "--build-arg=WHAT=chosen", "--label=l=1", "-t", "web:1", "-t", "web:2")
    first = build(minit, context, *words)
    image = first.stdout.strip()
    assert image.startswith("sha512-")
    assert "STEP 1/23: FROM $FROM AS build" in first.stderr
    found = extracted(minit, "web:2", tmp_path / "out")
    expected = {
        "said/x": (0o100644, 0, 0, "x\n"),
        "deep/er": (0o42750, 0, 0, ""),
        "document": (0o100644, 0, 0, "document\n"),
        "srv/app/file": (0o100644, 0, 0, "f\n"),
        "srv/app/link": (0o120777, 0, 0, "/etc/passwd"),
        "some/file": (0o100644, 0, 0, "f\n"),
        "owned": (0o40755, 7, 8, ""),
        "owned/by/f": (0o100640, 7, 8, "in sub\n"),
        "made/one.txt": (0o100644, 0, 0, "two words\n"),
        "made/f": (0o100644, 0, 0, "in sub\n"),
        "unpacked/t": (0o100644, 9, 9, "t\n"),
        "oth*er": (0o100644, 0, 0, "other\n"),
        "copied/er": (0o42750, 0, 0, ""),
        "tmp/id": (0o100644, 3, 4, "3\n"),
        "data": (0o40755, 0, 0, ""),
    }
    assert {path: found.get(path) for path in expected} == expected
    assert not {"srv/app/left.o", "srv/app/Containerfile", "other"} & found.keys()
    app = json.loads(minit.call("image", "cat-manifest", image).stdout)["app"]
    assert (app["exec"], app["user"], app["group"]) == (["/bin/busybox", "cat", "/srv/app/file"], "3", "4")
    again = build(minit, context, *words)
    assert again.stdout.strip() == image
    assert "step-" not in again.stderr
    (context / "file").write_text("changed\n")
    changed = build(minit, context, *words)
    assert changed.stdout.strip() != image
    assert changed.stderr.count("--> from the cache") == 4  # up to WORKDIR
    assert extracted(minit, "web:1", tmp_path / "out")["srv/app/file"][3] == "changed\n"
    assert minit.call(*minit.run_words("web:1")).stdout.endswith("changed\n")
    assert minit.call("list", "--no-legend").stdout.count("\n") <= 1


def test_a_failing_step_leaves_nothing(minit: Stage0, base: str, tmp_path: Path) -> None:
    """A command that fails is told with file, line and code, and its steps before are not done again."""
    text = f"FROM {base}\nRUN echo one > /one\n\nRUN echo said; \\\n  exit 3\n"
    context = context_of(tmp_path / "context", text)
    failed = build(minit, context, "-t", "web", code=254)
    assert failed.stderr.splitlines()[-1] == f"build: {context}/Containerfile:4: RUN: exit code 3"
    assert failed.stdout == ""
    quiet = build(minit, context, "--quiet", code=254)
    assert "said" in quiet.stderr and "STEP" not in quiet.stderr
    assert "--> from the cache" in build(minit, context, code=254).stderr
    assert minit.call("list", "--no-legend").stdout == ""
    assert "web" not in minit.call("image", "list").stdout
    assert list((minit.data / "minit/cas/tmp").iterdir()) == []
    # As confined as any app.
    text = f"FROM {base}\nRUN busybox mount -t tmpfs none /tmp && exit 7; busybox mknod /d b 8 0 && exit 8; exit 0\n"
    build(minit, context_of(tmp_path / "context", text))


def test_no_copy_leaves_its_root(minit: Stage0, base: str, tmp_path: Path) -> None:
    """Neither links nor paths upwards lead out of the context or the image; a missing source is told by line."""
    (tmp_path / "secret").write_text("secret\n")
    context = context_of(tmp_path / "context", "", here="h\n")
    (context / "out").symlink_to("../secret")
    (context / "absolute").symlink_to(tmp_path / "secret")
    (context / "up").symlink_to("..")
    for source in ("out", "absolute", "up/secret", "../secret", "/../../secret", "no*ne"):
        context_of(context, f"FROM {base}\nCOPY {source} /x\n")
        assert f"Containerfile:2: COPY: {source}: not in the context" in build(minit, context, code=254).stderr
    (tmp_path / "victim").mkdir()
    text = f"FROM {base}\nRUN busybox ln -s {tmp_path}/victim /v && busybox mkdir -p {tmp_path}/victim\nCOPY here /v/\n"
    result = build(minit, context_of(context, text + "COPY here /../../etc/y\n"), "-t", "web")
    assert list((tmp_path / "victim").iterdir()) == []
    found = extracted(minit, result.stdout.strip(), tmp_path / "out")
    assert found[f"{tmp_path}/victim/here".lstrip("/")][3] == found["etc/y"][3] == "h\n"


def test_mounts_of_a_step(minit: Stage0, base: str, tmp_path: Path) -> None:
    """A cache lasts from build to build, memory for one command, and the image has neither, nor the places of both."""
    run = "RUN --mount=type=cache,target=/deep/cache --mount=type=tmpfs,target=/memory"
    text = f"FROM {base}\n{run} echo x >> /deep/cache/f; echo y > /memory/y; busybox cat /deep/cache/f > /seen\n"
    context = context_of(tmp_path / "context", text)
    build(minit, context)
    image = build(minit, context, "--no-cache").stdout.strip()
    found = extracted(minit, image, tmp_path / "out")
    assert found["seen"][3] == "x\nx\n"
    assert not {"cache", "deep", "memory"} & found.keys()


def test_files_that_a_step_only_reads(minit: Stage0, base: str, tmp_path: Path) -> None:
    """A step sees files of the context, a stage or an image, and its changes there are nowhere; new files change it."""
    text = f"""\
FROM {base} AS tools
RUN echo tool > /tool && busybox chown 5:6 /tool && busybox chmod 4750 /tool
FROM {base}
WORKDIR /work
RUN --mount=type=bind,target=. busybox find . | busybox sort > /listed; echo x > file || echo no > /refused
RUN --mount=source=sub/f,target=/deep/f,rw --mount=from=tools,source=/tool,target=/t busybox cat /deep/f /t > /both; \\
  echo more >> /deep/f; busybox stat -c %a:%u:%g /t > /owner
RUN --mount=from={base},target=/all test -x /all/bin/busybox
RUN --mount=source=sub,target=/sub --mount=target=/all busybox stat -c %a /sub /all > /modes
USER 7
RUN --mount=target=/all busybox cat /all/file
"""
    context = context_of(
        tmp_path / "context", text, file="f\n", sub__f="in sub\n", left_o="", _dockerignore="*.o\nCon*\n"
    )
    (context / "sub").chmod(0o2711)
    context.chmod(0o700)
    found = extracted(minit, build(minit, context).stdout.strip(), tmp_path / "out")
    assert found["modes"][3] == "711\n755\n"
    assert found["listed"][3] == ".\n./.dockerignore\n./file\n./sub\n./sub/f\n"
    assert [found[name][3] for name in ("refused", "both", "owner")] == ["no\n", "in sub\ntool\n", "4750:5:6\n"]
    assert not {"deep", "t", "all", "work/file"} & found.keys()
    assert (context / "sub/f").read_text() == "in sub\n"
    assert build(minit, context).stderr.count("--> from the cache") == 7
    (context / "sub/f").write_text("changed\n")
    result = build(minit, context)
    assert extracted(minit, result.stdout.strip(), tmp_path / "out")["both"][3] == "changed\ntool\n"
    context_of(context, f"FROM {base}\nRUN --mount=source=none,target=/x true\n")
    assert "Containerfile:2: RUN: none: not in the context" in build(minit, context, code=254).stderr


def test_directories_of_an_archive(minit: Stage0, tmp_path: Path) -> None:
    """Empty directories that a pod would make, as /tmp and /proc, come into the image as an archive has them."""
    names = ("dev", "proc", "run", "sys", "tmp")
    (tmp_path / "tree").mkdir()
    for name in names:
        (tmp_path / "tree" / name).mkdir()
        (tmp_path / "tree" / name).chmod(0o1750)
    context = context_of(tmp_path / "context", "FROM scratch\nADD root.tar /\n")
    subprocess.run(["tar", "-C", tmp_path / "tree", "-cf", context / "root.tar", "."], check=True)
    found = extracted(minit, build(minit, context).stdout.strip(), tmp_path / "out")
    assert {name: found[name][0] for name in names} == dict.fromkeys(names, 0o41750)


def test_the_unsupported_is_told_before_anything_is_built(minit: Stage0, base: str, tmp_path: Path) -> None:
    """A wrong line at the end ends a build before the first step, and a missing file before all."""
    context = context_of(tmp_path / "context", f"FROM {base}\nRUN exit 3\nADD https://a/b /c\n")
    result = build(minit, context, code=254)
    assert result.stderr.startswith(f"build: {context}/Containerfile:3: ADD: https://a/b: minit downloads nothing")
    assert "no Containerfile and no Dockerfile there" in build(minit, tmp_path, code=254).stderr
    context = context_of(tmp_path / "host", f"FROM {base}\nRUN exit 3\nRUN --network=host x\n")
    result = build(minit, context, code=254)
    assert result.stderr.startswith(f"build: {context}/Containerfile:3: RUN: --network=host: the caller has to give")
