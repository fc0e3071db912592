"""Apps that cannot be started, and images that try to make minit do something outside of them."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from minit.base.processors import processor_named, this_processor
from tests.support.campaign import few
from tests.support.elf import elf_bytes
from tests.support.pods import MakePod, PodDirectory, app_section, guest, handlers, shell
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for


def place(rootfs: Path, name: str, data: bytes, mode: int = 0o755) -> None:
    """Put a file into an image."""
    (rootfs / name).write_bytes(data)
    (rootfs / name).chmod(mode)


def _big_endian_elf() -> bytes:
    return elf_bytes(order=">")


OTHER = next(one for one in map(processor_named, ("arm64", "amd64")) if one != this_processor())
EXEC_FAILURES: dict[str, tuple[bytes | None, int, int, str]] = {
    "missing": (None, 0, errno.ENOENT, 'Unable to open "/tool": No such file or directory'),
    "loader": (
        elf_bytes(interpreter="/lib/ld linux.so.9"),
        0o755,
        errno.ENOENT,
        'Unable to open "/lib/ld linux.so.9": No such file or directory',
    ),
    "interpreter": (
        b"#!/no/such/sh -e\n",
        0o755,
        errno.ENOENT,
        'Unable to open "/no/such/sh": No such file or directory',
    ),
    "mode": (b"#!/bin/sh\n", 0o644, errno.EACCES, '"/tool" is not executable'),
    "text": (b"hello\n", 0o755, errno.ENOEXEC, "Unsupported file type"),
    "empty": (b"", 0o755, errno.ENOEXEC, "Unsupported file type"),
    "elf": (b"\x7fELF" + b"\0" * 100, 0o755, errno.ENOEXEC, "Unsupported ELF format"),
    "processor": (
        elf_bytes(machine=OTHER.elf_machine or 0),
        0o755,
        errno.ENOEXEC,
        f'"/tool" is for {OTHER.appc}, this machine is {this_processor().appc}',
    ),
    "endian": (_big_endian_elf(), 0o755, errno.ENOEXEC, "Unsupported ELF format"),
}


@pytest.mark.parametrize("case", EXEC_FAILURES)
def test_why_an_exec_failed(make_pod: MakePod, own_rootfs: Path, case: str) -> None:
    """203 is recorded, the app's own output has rkt's diagnosis, the record has step, errno and path."""
    data, mode, number, text = EXEC_FAILURES[case]
    if data is not None:
        place(own_rootfs, "tool", data, mode)
    pod = make_pod({"a": app_section("/tool")}, own_rootfs)
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (203, 203)
    assert f"]: Error: {text}\n" in result.stderr
    record = pod.record("a")
    assert (record["step"], record["errno"], record["path"]) == ("exec", number, "/tool")


def test_a_directory_is_not_an_executable(make_pod: MakePod) -> None:
    """Nor is anything else that is not a regular file."""
    pod = make_pod({"a": app_section("/etc")})
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (203, 203)
    assert ']: Error: "/etc" is not a regular file\n' in result.stderr
    assert pod.record("a")["errno"] == errno.EACCES


def test_the_diagnosis_is_logged_too(make_pod: MakePod) -> None:
    """As all output of the app."""
    pod = make_pod({"a": app_section("/tool")})
    pod.run()
    assert b'stderr F Error: Unable to open "/tool": No such file or directory\n' in pod.log("a")


def test_an_exec_failure_ends_the_pod_like_any_failure(make_pod: MakePod) -> None:
    """The other app is stopped and recorded."""
    pod = make_pod({"a": app_section("/tool"), "b": shell("while :; do sleep 1; done")})
    assert pod.run().returncode == 203
    assert pod.status("a") == 203
    # Both were executed at the same moment. What `b` met first was its own exec or its stop, or the pod's end: then it
    # was never executed, and has no status.
    assert pod.status("b") in (0, None)


SETUP_FAILURES: dict[str, tuple[dict[str, Any], str, int | None, str]] = {
    "missing-directory": ({"workingDirectory": "/not/there"}, "change directory to", errno.ENOENT, "/not/there"),
    "file-as-directory": ({"workingDirectory": "/etc/passwd"}, "change directory to", errno.ENOTDIR, "/etc/passwd"),
}


@pytest.mark.parametrize("case", SETUP_FAILURES)
def test_a_failed_step_is_named(make_pod: MakePod, case: str) -> None:
    """254 is recorded; the line and the record have the step, the path and the reason."""
    fields, step, number, path = SETUP_FAILURES[case]
    pod = make_pod({"a": shell("true", **fields)})
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (254, 254)
    assert result.stderr.startswith(f'stage1: app "a": {step} {path}: ')
    assert result.stderr.count("\n") == 1
    record = pod.record("a")
    assert (record["step"], record["errno"], record["path"]) == (step, number, path)


@pytest.mark.parametrize("name", ["dev", "proc", "sys", "tmp"])
def test_a_file_where_a_directory_has_to_be(make_pod: MakePod, own_rootfs: Path, name: str) -> None:
    """One line names the place; nothing hangs and nothing is left."""
    shutil.rmtree(own_rootfs / name)
    (own_rootfs / name).write_text("in the way")
    pod = make_pod({"a": shell("true")}, own_rootfs)
    result = pod.run()
    assert result.returncode in (0, 254)
    if result.returncode:
        assert f"/{name}" in result.stderr and result.stderr.count("\n") == 1
    assert not pod.is_running() and pod.members() == []


@pytest.fixture
def outside(work_directory: Path) -> Path:
    """A directory of the host with a file, which no image may touch."""
    path = work_directory / "outside"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    (path / "sentinel").write_text("untouched")
    return path


def _listing(path: Path) -> list[tuple[str, int, int, int]]:
    return sorted(
        (str(entry), entry.lstat().st_mode, entry.lstat().st_size, entry.lstat().st_mtime_ns)
        for entry in (path, *path.rglob("*"))
    )


TARGETS = ("/", "../../../../../..", "OUTSIDE", "UP/OUTSIDE", "/nowhere", "/proc/1/root")
# A fifth of them has each directory with and without overlay, and each target.
LINKS = [*itertools.product(TARGETS, ("dev", "proc", "sys", "etc", "tmp", "run"), ("overlay", "flat"))]


@pytest.mark.parametrize(("target", "name", "kind"), few(LINKS))
def test_directories_that_are_links_lead_nowhere(
    make_pod: MakePod, own_rootfs: Path, outside: Path, name: str, target: str, kind: str
) -> None:
    """A symlink of the image is resolved inside the image: nothing outside is made, mounted on or changed."""
    if (own_rootfs / name).exists():
        shutil.rmtree(own_rootfs / name)
    text = target.replace("UP", "../" * 20).replace("OUTSIDE", str(outside))
    (own_rootfs / name).symlink_to(text)
    pod = make_pod({"a": shell("true"), "b": shell("true")}, own_rootfs, overlay=kind == "overlay")
    places = [outside, pod.stage1 / "dev", pod.stage1 / "etc", pod.stage1 / "proc", pod.stage1 / "entrypoints"]
    before = [_listing(path) for path in places], sorted(os.listdir("/")), pod.mounts()
    result = pod.run()
    assert result.returncode in (0, 203, 254)
    assert "Traceback" not in result.stderr
    after = [_listing(path) for path in places], sorted(os.listdir("/")), pod.mounts()
    assert after == before
    assert not pod.is_running() and pod.members() == []


def test_a_reason_with_bytes_of_the_image_ends_that_app_alone(make_pod: MakePod, own_rootfs: Path) -> None:
    """A link to a name that is no text is in the way: adding the app fails, the pod goes on and can tell of it."""
    # A path through a file, which is what fails, by the name after it.
    (own_rootfs / "file").touch()
    shutil.rmtree(own_rootfs / "run", ignore_errors=True)
    os.symlink(b"/file/\xff\xfe", os.fsencode(own_rootfs / "run"))
    notifies = {"name": "appc.io/executor/supports-systemd-notify", "value": "true"}
    sandbox = Sandbox(make_pod, rootfs=own_rootfs)
    result = sandbox.add("a", app_section("/bin/sh", annotations=[notifies]))
    assert result.returncode != 0
    assert "\\xff\\xfe: not a directory" in result.stdout
    assert sandbox.app("a") is None
    assert sandbox.pod.ask({"op": "events", "since": 0})["ok"]
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize("name", ["dev/null", "dev/shm", "dev/pts", "dev/net", "dev/ptmx", "dev/fd"])
def test_links_below_dev_are_covered(make_pod: MakePod, own_rootfs: Path, outside: Path, name: str) -> None:
    """The app's /dev is a new filesystem: what the image has there does not matter."""
    path = own_rootfs / name
    path.symlink_to(outside / "sentinel")
    pod = make_pod({"a": guest("report", "/tmp/report")}, own_rootfs)
    assert pod.run().returncode == 0
    assert (outside / "sentinel").read_text() == "untouched"


POISON = """import os
os.close(os.open("/poisoned", os.O_CREAT | os.O_WRONLY))
os.close(os.open("/dev/shm/poisoned", os.O_CREAT | os.O_WRONLY))
raise SystemExit(99)
"""
VERSION = f"python3.{sys.version_info.minor}"
PLACES = ("", "lib", "usr/lib/python3", f"usr/lib/{VERSION}", "usr/lib/minit", f"usr/lib/minit/lib/{VERSION}", "tmp")
NAMES = (
    *("sitecustomize.py", "usercustomize.py", "encodings/__init__.py", "encodings/idna.py", "encodings/utf_8.py"),
    *("json/__init__.py", "_json.py", "signal.py", "socket.py", "trio/__init__.py", "minit/__init__.py", "os.py"),
    *("codecs.py", "stat.py", "errno.py", "traceback.py", "linecache.py", "fcntl.py"),
)


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_nothing_of_a_poisoned_image_is_executed(make_pod: MakePod, own_rootfs: Path, overlay: bool) -> None:
    """Python files, a preload list, name services: none is used as an app starts, fails or is entered."""
    for place_name in PLACES:
        for name in NAMES:
            path = own_rootfs / place_name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(POISON)
    # A library that is no library: whoever honours the list complains about it.
    (own_rootfs / "lib/evil.so").write_bytes(b"\x7fELF" + struct.pack("<B", 2))
    (own_rootfs / "etc/ld.so.preload").write_text("/lib/evil.so\n")
    (own_rootfs / "etc/nsswitch.conf").write_text("passwd: evil\ngroup: evil\nhosts: evil\n")
    shutil.copy(own_rootfs / "lib/evil.so", own_rootfs / "lib/libnss_evil.so.2")
    forever = "while :; do sleep 1; done"
    poisoned = {"environment": [{"name": "PYTHONPATH", "value": "/"}, {"name": "PYTHONSTARTUP", "value": "/os.py"}]}
    pod = make_pod(
        {
            "good": shell(forever, **poisoned),
            "user": shell(forever, user="1000", group="1000", supplementaryGIDs=[7]),
            "quick": shell("exit 0"),
            "handled": shell("exit 0", eventHandlers=handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))),
        },
        own_rootfs,
        overlay=overlay,
    )
    process = pod.start()
    pod.wait_ready()
    assert pod.enter("good", "id", "-u").stdout == "0\n"
    assert "Unable to find" in pod.enter("good", "not-there").stderr
    assert 'Unable to open "/not/there"' in pod.enter("good", "/not/there").stderr
    assert not (Path(f"/proc/{pod.pid}/root") / "dev/shm/poisoned").exists()
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (0, "")
    unhandled = shell("true", eventHandlers=handlers(pre_start=("/not/there",)))
    broken_ones = app_section("/no/such"), app_section("nowhere"), shell("true", workingDirectory="/nowhere"), unhandled
    for broken in broken_ones:
        failing = make_pod({"a": broken}, own_rootfs, overlay=overlay)
        assert "evil" not in failing.run().stderr
        _assert_not_poisoned(failing)
    _assert_not_poisoned(pod)


def _assert_not_poisoned(pod: PodDirectory) -> None:
    assert not (pod.stage1 / "poisoned").exists()
    for app in pod.apps:
        assert not pod.file(app, "poisoned").exists()
    assert not Path("/poisoned").exists()


def test_a_failing_start_leaves_nothing_behind(make_pod: MakePod) -> None:
    """After gc there is no group, process, mount or lock of twenty pods that never ran an app."""
    mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
    for _ in range(20):
        pod = make_pod({"a": shell("true"), "b": shell("true", workingDirectory="/nowhere")})
        before = pod.mounts()
        assert pod.run().returncode == 254
        wait_for(lambda pod=pod: pod.members() == [], "the end of all processes")  # type: ignore[misc]
        assert pod.mounts() == before
        assert pod.gc().returncode == 0
        assert pod.control_groups() == []
    added = 20 * 3 if pod.overlay else 0
    assert len(Path("/proc/self/mountinfo").read_text().splitlines()) == mounts + added
