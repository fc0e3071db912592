"""Extraction: what comes out of good images, what is refused of bad ones, and what stays untouched outside."""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.base.errors import ImageError, StoreError
from minit.linux import syscalls
from minit.linux.forks import EXTRACTOR, fork
from minit.linux.mountinfo import read_mountinfo
from minit.stage0.images import untar, workers
from minit.stage0.images.extract import extract_image
from minit.stage0.images.store import Store
from minit.stage0.start.newpod import copy_tree
from tests import tars
from tests.support.campaign import campaign

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# vfs_cap_data of linux/capability.h, revision 2: cap_net_raw=ep
CAP_NET_RAW = b"\x01\x00\x00\x02\x00\x20\x00\x00" + bytes(12)


class Extraction:
    """A place to extract to, with a sentinel tree beside it that must not change."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory / "data")
        self.destination = directory / "pod" / "app"
        self.rootfs = self.destination / "rootfs"
        self.outside = directory / "outside"
        self.destination.parent.mkdir()
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(b"secret")
        (self.outside / "directory").mkdir()
        os.symlink("secret", self.outside / "link")
        self._before = self._look()

    def __call__(self, *entries: bytes, manifest_bytes: bytes | None = None) -> Path:
        """Extract an image that was put into rkt's store unchecked; return its rootfs."""
        extract_image(self.store, self.put(tars.image(*entries, manifest_bytes=manifest_bytes)), self.destination)
        return self.rootfs

    def put(self, data: bytes, manifest: bytes | None = None) -> str:
        """Put an image where rkt would, so that no check of the import is in the way; return its ID."""
        key = "sha512-" + hashlib.sha512(data).hexdigest()[:64]
        for kind, content in (("blob", data), ("imageManifest", tars.manifest() if manifest is None else manifest)):
            path = self.store.data / "cas" / kind / "sha512" / key[7:9] / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return key

    def clear(self) -> None:
        """Remove what was extracted."""
        shutil.rmtree(self.destination, ignore_errors=True)

    def check(self) -> None:
        """Nothing outside the destination changed, no mount, descriptor or process is left."""
        assert self._look() == self._before

    def _look(self) -> object:
        files = {}
        for path in [self.outside, *sorted(self.outside.rglob("*"))]:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            files[path] = (
                status.st_mode,
                status.st_uid,
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_nlink,
                content,
            )
        here = str(self.outside.parent)
        mounts = [mount.mount_point for mount in read_mountinfo() if mount.mount_point.startswith(here)]
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        beside = sorted(os.listdir(self.destination.parent.parent))
        return files, mounts, children, len(os.listdir("/proc/self/fd")), beside


@pytest.fixture
def extraction(tmp_path: Path) -> Iterator[Extraction]:
    """An extraction whose surroundings are checked at the end."""
    place = Extraction(tmp_path)
    yield place
    place.check()
    place.store.close()


# Good images.


def test_every_kind_of_entry(extraction: Extraction) -> None:
    """All kinds of entries come out with owner, mode and time; set-id bits are kept."""
    before = os.umask(0o077)
    try:
        root = extraction(
            tars.directory("rootfs/d", 0o1777, uid=1, gid=2, mtime=11),
            tars.file("rootfs/d/suid", b"x" * 70_000, mode=0o6755, uid=1000, gid=1001, mtime=12),
            tars.symlink("rootfs/d/link", "/absolute/../target", uid=3, gid=4, mtime=13),
            tars.hard_link("rootfs/hard", "rootfs/d/suid"),
            tars.header("rootfs/null", b"3", device=(1, 3), mode=0o666, mtime=14),
            tars.header("rootfs/loop", b"4", device=(7, 300), mode=0o640, gid=6),
            tars.header("rootfs/fifo", b"6", mode=0o622, uid=9),
        )
    finally:
        os.umask(before)

    def seen(name: str) -> tuple[int, int, int, int]:
        status = (root / name).lstat()
        return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns // 10**9

    assert seen("d") == (stat.S_IFDIR | 0o1777, 1, 2, 11)
    assert seen("d/suid") == seen("hard") == (stat.S_IFREG | 0o6755, 1000, 1001, 12)
    assert seen("d/link") == (stat.S_IFLNK | 0o777, 3, 4, 13)
    assert os.readlink(root / "d/link") == "/absolute/../target"
    assert seen("null")[:1] + seen("null")[3:] == (stat.S_IFCHR | 0o666, 14)
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert seen("loop")[:3] == (stat.S_IFBLK | 0o640, 0, 6)
    assert (root / "loop").stat().st_rdev == os.makedev(7, 300)
    assert seen("fifo")[:3] == (stat.S_IFIFO | 0o622, 9, 0)
    assert (root / "d/suid").stat().st_ino == (root / "hard").stat().st_ino
    assert (root / "d/suid").read_bytes() == b"x" * 70_000


def test_destination_holds_manifest_and_rootfs(extraction: Extraction) -> None:
    """The destination gets the image's own manifest, byte for byte, the rootfs, and nothing else."""
    text = tars.manifest() + b"\n\n"
    root = extraction(tars.file("other", b"x"), tars.file("etc/x", b"x"), manifest_bytes=text)
    assert sorted(os.listdir(extraction.destination)) == ["manifest", "rootfs"]
    assert (extraction.destination / "manifest").read_bytes() == text
    assert stat.S_IMODE(extraction.destination.stat().st_mode) == 0o750
    assert list(root.iterdir()) == []


def test_capabilities_and_user_attributes_are_kept(extraction: Extraction) -> None:
    """Files keep security.capability and user attributes; others, and those of directories, are left out."""
    records = {
        "SCHILY.xattr.security.capability": CAP_NET_RAW,
        "SCHILY.xattr.user.note": b"\0\xff",
        "SCHILY.xattr.trusted.overlay.opaque": b"y",
        "SCHILY.xattr.security.selinux": b"x",
    }
    root = extraction(
        tars.pax(records) + tars.file("rootfs/ping", uid=5),
        tars.pax({"SCHILY.xattr.user.note": b"x"}) + tars.directory("rootfs/d"),
    )
    names = set(os.listxattr(root / "ping")) - {"security.selinux"}
    assert names == {"security.capability", "user.note"}
    assert os.getxattr(root / "ping", "security.capability") == CAP_NET_RAW
    assert "user.note" not in os.listxattr(root / "d")


def test_missing_parents_are_made(extraction: Extraction) -> None:
    """Parents no entry describes are root's with mode 0755, whatever umask and group bit say."""
    os.chmod(extraction.destination.parent, 0o2777)
    os.chown(extraction.destination.parent, 0, 1234)
    before = os.umask(0o077)
    try:
        root = extraction(
            tars.file("rootfs/a/b/c/x", b"1"),
            tars.directory("rootfs/a", 0o700, uid=3),
            tars.directory("rootfs/s", 0o2775, gid=77),
            tars.file("rootfs/s/t/x"),
        )
    finally:
        os.umask(before)
    modes = [(root / name).stat().st_mode for name in ("a", "a/b", "a/b/c")]
    assert modes == [stat.S_IFDIR | 0o700, stat.S_IFDIR | 0o755, stat.S_IFDIR | 0o755]
    assert ((root / "a").stat().st_uid, (root / "a/b").stat().st_gid) == (3, 0)
    assert ((root / "s/t").stat().st_mode, (root / "s/t").stat().st_gid) == (stat.S_IFDIR | 0o755, 0)


def test_directory_times_survive_their_content(extraction: Extraction) -> None:
    """A directory has the time of its entry although files were made in it later."""
    root = extraction(
        tars.directory("rootfs/d", mtime=5),
        tars.file("rootfs/d/x"),
        tars.directory("rootfs/d/e", mtime=6),
        tars.file("rootfs/d/e/y"),
    )
    assert [(root / name).stat().st_mtime for name in ("d", "d/e")] == [5, 6]


def test_odd_names(extraction: Extraction) -> None:
    """Bytes that are no UTF-8, newlines and long names come out as they are."""
    long = "rootfs/" + "/".join(["n" * 250] * 15)
    root = extraction(
        tars.file(b"rootfs/caf\xe9"),
        tars.file("rootfs/a\nb"),
        tars.pax({"path": long}) + tars.file("x", b"deep"),
        tars.file("./rootfs/./dot//x"),
    )
    assert os.path.exists(os.fsencode(root) + b"/caf\xe9")
    assert (root / "a\nb").exists() and (root / "dot" / "x").exists()
    fd = os.open(root, os.O_RDONLY)
    for name in long.split("/")[1:-1]:
        lower = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = lower
    assert os.stat("n" * 250, dir_fd=fd).st_size == 4
    os.close(fd)


def test_later_entries_replace_earlier_ones(extraction: Extraction) -> None:
    """Of entries with one path the last stays, also when the kind changes; hard links keep the old file."""
    root = extraction(
        tars.file("rootfs/x", b"old", mode=0o4755),
        tars.hard_link("rootfs/kept", "rootfs/x"),
        tars.file("rootfs/x", b"new"),
        tars.file("rootfs/d"),
        tars.directory("rootfs/d", 0o711),
        tars.file("rootfs/d/inside"),
        tars.directory("rootfs/d", 0o700),
        tars.directory("rootfs/e"),
        tars.symlink("rootfs/e", "d"),
        tars.symlink("rootfs/f", "d"),
        tars.directory("rootfs/f"),
        tars.file("rootfs/f/x"),
    )
    assert ((root / "x").read_bytes(), (root / "kept").read_bytes()) == (b"new", b"old")
    assert stat.S_IMODE((root / "x").stat().st_mode) == 0o644
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o700 and (root / "d/inside").exists()
    assert os.readlink(root / "e") == "d"
    assert not (root / "f").is_symlink() and not (root / "d/x").exists()


def test_a_hard_link_to_a_symlink_links_the_symlink(extraction: Extraction) -> None:
    """The link is not followed, wherever it points."""
    target = str(extraction.outside / "secret")
    root = extraction(tars.symlink("rootfs/l", target), tars.hard_link("rootfs/h", "rootfs/l"))
    assert (root / "h").is_symlink()
    assert (root / "h").lstat().st_ino == (root / "l").lstat().st_ino


def test_dependencies_are_rendered_too(extraction: Extraction) -> None:
    """Without a tree an image with dependencies is put together just the same, with the upper manifest."""
    lower = tars.manifest("lower")
    contents = tars.file("rootfs/a", b"low"), tars.file("rootfs/b", b"low")
    extraction.put(tars.image(*contents, manifest_bytes=lower), lower)
    upper = tars.manifest("upper", dependencies=[{"imageName": "lower"}])
    key = extraction.put(tars.image(tars.file("rootfs/a", b"up"), manifest_bytes=upper), upper)
    extract_image(extraction.store, key, extraction.destination)
    assert (extraction.destination / "manifest").read_bytes() == upper
    assert [(extraction.rootfs / name).read_bytes() for name in "ab"] == [b"up", b"low"]


def test_progress_is_told_in_bytes_of_the_image(extraction: Extraction) -> None:
    """Progress rises to the size of the image."""
    key = extraction.put(tars.image(tars.file("rootfs/x", bytes(20 << 20))))
    reports: list[tuple[str, int, int | None]] = []
    extract_image(extraction.store, key, extraction.destination, lambda *report: reports.append(report))
    size = extraction.store.blob_path(key).stat().st_size
    assert len(reports) >= 5 and reports[-1] == ("extracting example.com/app", size, size)


# Bad images. OUT stands for the absolute path of the sentinel tree, UP for one relative to the rootfs.


def through(link: str, *rest: str) -> Callable[[Path], list[bytes]]:
    """A symbolic link in the rootfs, then entries that would be written through it."""

    def entries(outside: Path) -> list[bytes]:
        target = link.replace("OUT", str(outside)).replace("UP", "../../../outside")
        return [tars.symlink("rootfs/l", target), *(tars.file(name, b"evil") for name in rest)]

    return entries


def plain(*entries: bytes) -> Callable[[Path], list[bytes]]:
    """Entries that need not know where the sentinel tree is."""
    return lambda outside: list(entries)


def absolute(make: Callable[[str], list[bytes]]) -> Callable[[Path], list[bytes]]:
    """Entries that name the sentinel tree by its absolute path."""
    return lambda outside: make(str(outside))


REFUSED: dict[str, tuple[Callable[[Path], list[bytes]], str]] = {
    "write-through-absolute-link": (through("OUT", "rootfs/l/new"), "is a symbolic link"),
    "write-through-relative-link": (through("UP", "rootfs/l/new"), "is a symbolic link"),
    "write-through-root-link": (through("/", "rootfs/l/etc/passwd"), "is a symbolic link"),
    "write-through-dot-link": (through(".", "rootfs/l/x"), "is a symbolic link"),
    "write-through-inner-link": (through("d", "rootfs/d/y", "rootfs/l/x"), "is a symbolic link"),
    "write-through-proc-link": (through("/proc/self/root/etc", "rootfs/l/x"), "is a symbolic link"),
    "write-deep-through-link": (through("OUT", "rootfs/l/directory/deep/x"), "is a symbolic link"),
    "directory-through-link": (
        lambda outside: [tars.symlink("rootfs/l", str(outside)), tars.directory("rootfs/l/new")],
        "is a symbolic link",
    ),
    "symlink-through-link": (
        lambda outside: [tars.symlink("rootfs/l", str(outside)), tars.symlink("rootfs/l/new", "x")],
        "is a symbolic link",
    ),
    "device-through-link": (
        lambda outside: [tars.symlink("rootfs/l", str(outside)), tars.header("rootfs/l/n", b"3", device=(1, 1))],
        "is a symbolic link",
    ),
    "fifo-through-link": (
        lambda outside: [tars.symlink("rootfs/l", str(outside)), tars.header("rootfs/l/n", b"6")],
        "is a symbolic link",
    ),
    "hard-link-source-through-link": (
        lambda outside: [tars.symlink("rootfs/l", str(outside)), tars.hard_link("rootfs/h", "rootfs/l/secret")],
        "is a symbolic link",
    ),
    "hard-link-name-through-link": (
        lambda outside: [
            tars.symlink("rootfs/l", str(outside)),
            tars.file("rootfs/x"),
            tars.hard_link("rootfs/l/h", "rootfs/x"),
        ],
        "is a symbolic link",
    ),
    "chain-of-links": (
        lambda outside: [
            tars.symlink("rootfs/a", "."),
            tars.symlink("rootfs/b", f"a/{outside}"),
            tars.file("rootfs/b/x"),
        ],
        "is a symbolic link",
    ),
    "hard-link-to-link-then-through-it": (
        lambda outside: [
            tars.symlink("rootfs/l", str(outside)),
            tars.hard_link("rootfs/h", "rootfs/l"),
            tars.file("rootfs/h/new"),
        ],
        "is a symbolic link",
    ),
    "directory-replaced-by-link": (
        lambda outside: [
            tars.directory("rootfs/d"),
            tars.symlink("rootfs/d", str(outside)),
            tars.file("rootfs/d/new", b"evil"),
        ],
        "is a symbolic link",
    ),
    "cached-directory-replaced-by-link": (
        lambda outside: [
            tars.file("rootfs/d/x"),
            tars.symlink("rootfs/d", str(outside)),
            tars.file("rootfs/d/new", b"evil"),
        ],
        "has entries",
    ),
    "rootfs-replaced-by-link": (
        lambda outside: [tars.symlink("rootfs", str(outside)), tars.file("rootfs/new", b"evil")],
        "is a symbolic link",
    ),
    "rootfs-replaced-by-file": (plain(tars.file("rootfs"), tars.file("rootfs/x")), "is none"),
    "full-rootfs-replaced": (plain(tars.file("rootfs/x"), tars.symlink("rootfs", "/")), "has entries"),
    "below-a-file": (plain(tars.file("rootfs/f"), tars.file("rootfs/f/x")), "is none"),
    "below-a-device": (plain(tars.header("rootfs/f", b"3", device=(1, 3)), tars.file("rootfs/f/x")), "is none"),
    "below-a-fifo": (plain(tars.header("rootfs/f", b"6"), tars.file("rootfs/f/x")), "is none"),
    "full-directory-replaced-by-file": (plain(tars.file("rootfs/d/x"), tars.file("rootfs/d")), "has entries"),
    "full-directory-replaced-by-hard-link": (
        plain(tars.file("rootfs/x"), tars.file("rootfs/d/x"), tars.hard_link("rootfs/d", "rootfs/x")),
        "has entries",
    ),
    "hard-link-to-nothing": (plain(tars.hard_link("rootfs/h", "rootfs/none")), "no such file"),
    "hard-link-to-itself": (plain(tars.file("rootfs/h"), tars.hard_link("rootfs/h", "rootfs/h")), "no such file"),
    "hard-link-to-directory": (plain(tars.directory("rootfs/d"), tars.hard_link("rootfs/h", "rootfs/d")), "permitted"),
    "hard-link-to-manifest": (plain(tars.hard_link("rootfs/h", "manifest")), "is not below rootfs"),
    "hard-link-to-rootfs": (plain(tars.hard_link("rootfs/h", "rootfs")), "is not below rootfs"),
    "hard-link-to-top-level": (plain(tars.file("x"), tars.hard_link("rootfs/h", "x")), "is not below rootfs"),
    "hard-link-absolute": (
        absolute(lambda outside: [tars.hard_link("rootfs/h", f"{outside}/secret"[:100])]),
        "absolute link target",
    ),
    "hard-link-relative": (plain(tars.hard_link("rootfs/h", "../../outside/secret")), "leaves the archive"),
    "hard-link-relative-inside": (plain(tars.hard_link("rootfs/h", "rootfs/../../../outside/secret")), "leaves"),
    "absolute-name": (absolute(lambda outside: [tars.file(f"{outside}/secret"[:100], b"evil")]), "absolute name"),
    "dot-dot": (plain(tars.file("../../outside/secret", b"evil")), "leaves the archive"),
    "dot-dot-below-rootfs": (plain(tars.file("rootfs/../../../outside/secret", b"evil")), "leaves the archive"),
    "dot-dot-directory": (plain(tars.directory("rootfs/../..", 0o777)), "leaves the archive"),
    "manifest-as-link": (
        lambda outside: [tars.symlink("manifest", f"{outside}/secret")],
        "manifest is no regular file",
    ),
    "manifest-as-device": (plain(tars.header("manifest", b"3", device=(1, 3))), "manifest is no regular file"),
    "huge-manifest": (plain(tars.file("manifest", bytes((4 << 20) + 1))), "manifest is no regular file"),
    "component-too-long": (plain(tars.pax({"path": "rootfs/" + "n" * 256}) + tars.file("x")), "name too long"),
    "bad-capability": (plain(tars.pax({"SCHILY.xattr.security.capability": "x"}) + tars.file("rootfs/x")), "invalid"),
    "huge-attribute": (
        plain(tars.pax({"SCHILY.xattr.user.x": "x" * 70_000}) + tars.file("rootfs/x")),
        'entry "rootfs/x": cannot set the attribute "user.x": its attributes have 70006 bytes, more than',
    ),
    "too-many-attributes": (
        plain(tars.pax({f"SCHILY.xattr.user.{n}": "x" * 900 for n in range(9)}) + tars.file("rootfs/x")),
        r'entry "rootfs/x": cannot set the attribute "user.\d": its attributes have 8154 bytes, more than',
    ),
    "impossible-device": (plain(tars.header("rootfs/d", b"4", device=(4096, 0))), "impossible number"),
    "sparse-map-and-data": (plain(tars.header("rootfs/x", b"S", size=512, magic=tars.GNU) + bytes(512)), "sparse"),
    "truncated": (plain(tars.header("rootfs/x", size=1 << 20)), "early"),
    "negative-size": (plain(tars.header("rootfs/x", size=tars.base256(-1, 12))), "bad size"),
    "uid-unchanged": (plain(tars.pax({"uid": "4294967295"}) + tars.file("rootfs/x")), "uid"),
    "bad-checksum": (plain(tars.header("rootfs/x", checksum=b"000001\0 ")), "checksum is wrong"),
    "pax-bomb": (plain(tars.header("x", b"x", size=1 << 30)), "header of"),
    "global-path": (plain(tars.pax({"path": "rootfs/x"}, b"g")), "global pax header"),
    "hard-link-through-device": (
        plain(tars.header("rootfs/n", b"4", device=(8, 0)), tars.hard_link("rootfs/h", "rootfs/n/x")),
        "is none",
    ),
    "rootfs-as-hard-link": (plain(tars.file("rootfs/x"), tars.hard_link("rootfs", "rootfs/x")), "has entries"),
    "rootfs-as-device": (plain(tars.header("rootfs", b"4", device=(8, 0)), tars.file("rootfs/x")), "is none"),
    "directory-with-data": (plain(tars.directory("rootfs/d", size=512) + bytes(512)), "512 bytes of data"),
    "sparse-in-pax": (plain(tars.pax({"GNU.sparse.realsize": str(8 << 60)}) + tars.file("rootfs/x")), "sparse"),
    "a-hole-of-8-EiB": (
        plain(
            tars.pax({"GNU.sparse.size": str((8 << 60) - 1), "GNU.sparse.numblocks": "0", "GNU.sparse.map": ""})
            + tars.file("rootfs/x")
        ),
        "more than 21474836480 bytes in all files",
    ),
    "escapes-of-a-terminal": (
        plain(tars.hard_link(b"rootfs/\x1b[2J\x9b\n", b"rootfs/\x1b]0;x\a")),
        r'entry "rootfs/\\x1b\[2J\\x9b\\x0a": cannot create hard link to "rootfs/\\x1b\]0;x\\x07"',
    ),
    "too-deep": (plain(tars.pax({"path": "rootfs/" + "d/" * 128}) + tars.directory("x")), "directories deep"),
    "huge-file": (plain(tars.header("rootfs/x", size=tars.base256(8 << 50, 12))), "more than 21474836480 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(extraction: Extraction, name: str) -> None:
    """The image is refused in one line, nothing of it stays, and nothing outside has changed."""
    make, reason = REFUSED[name]
    with pytest.raises(ImageError, match=reason) as caught:
        extraction(*make(extraction.outside))
    assert "\n" not in str(caught.value) and "example.com/app" in str(caught.value)
    assert os.listdir(extraction.destination) == []
    extraction.check()


HARMLESS: dict[str, Callable[[Path], list[bytes]]] = {
    "absolute-symlink": through("OUT/secret"),
    "relative-symlink": through("UP/secret"),
    "symlink-loop": plain(tars.symlink("rootfs/a", "b"), tars.symlink("rootfs/b", "a")),
    "file-replaces-symlink-to-outside": through("OUT/secret", "rootfs/l"),
    "file-replaces-relative-symlink": through("UP/secret", "rootfs/l"),
    "file-replaces-symlink-to-device": through("/dev/null", "rootfs/l"),
    "directory-replaces-symlink": lambda outside: [
        tars.symlink("rootfs/l", str(outside / "directory")),
        tars.directory("rootfs/l", 0o777, uid=7),
    ],
    "device-replaces-symlink": lambda outside: [
        tars.symlink("rootfs/l", str(outside / "secret")),
        tars.header("rootfs/l", b"3", device=(1, 3), mode=0o666),
    ],
    "fifo-replaces-symlink": lambda outside: [
        tars.symlink("rootfs/l", str(outside / "secret")),
        tars.header("rootfs/l", b"6", uid=5),
    ],
    "symlink-replaces-symlink": lambda outside: [
        tars.symlink("rootfs/l", str(outside / "secret")),
        tars.symlink("rootfs/l", "x", uid=5, mtime=7),
    ],
    "hard-link-replaces-symlink": lambda outside: [
        tars.file("rootfs/x"),
        tars.symlink("rootfs/l", str(outside / "secret")),
        tars.hard_link("rootfs/l", "rootfs/x"),
    ],
    "hard-link-to-symlink-replaced": lambda outside: [
        tars.symlink("rootfs/l", str(outside / "secret")),
        tars.hard_link("rootfs/h", "rootfs/l"),
        tars.file("rootfs/h", b"evil", mode=0o777, uid=5),
    ],
    "device-opened-again": plain(
        tars.header("rootfs/n", b"3", device=(1, 1), mode=0o666), tars.file("rootfs/n", b"evil")
    ),
    "fifo-opened-again": plain(tars.header("rootfs/n", b"6"), tars.file("rootfs/n", b"evil")),
    "outside-of-rootfs": plain(
        tars.symlink("evil", "/"), tars.file("evil/etc/x"), tars.directory("rootfs2"), tars.hard_link("x", "y")
    ),
    "top-directory": plain(tars.directory("./", 0o777, uid=7)),
    "directory-of-a-link-with-a-dot": lambda outside: [
        tars.symlink("rootfs/l", str(outside / "directory")),
        tars.directory("rootfs/l/.", 0o4777, uid=7),
        tars.file("rootfs/l/x", mode=0o4777),
    ],
    "below-the-manifest": plain(tars.file("manifest/x")),
    "attributes-that-rule": plain(
        tars.pax({"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.security.selinux": "x"})
        + tars.file("rootfs/x")
    ),
    "whiteout-of-overlayfs": plain(tars.header("rootfs/x", b"3", device=(0, 0))),
    "attributes-of-a-link": lambda outside: [
        tars.pax({"SCHILY.xattr.user.x": "evil"}) + tars.symlink("rootfs/l", str(outside / "secret"))
    ],
    "mode-beyond-its-bits": plain(tars.file("rootfs/x", mode=0o7777777)),
    "times-at-the-ends": plain(tars.pax({"mtime": "-9007199254740991.9"}) + tars.file("rootfs/x")),
    "manifest-replaced": plain(tars.file("manifest", tars.manifest("other"))),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless(extraction: Extraction, name: str) -> None:
    """The image is extracted without following, opening or changing anything outside."""
    extraction(*HARMLESS[name](extraction.outside))
    assert (extraction.outside / "secret").read_bytes() == b"secret"
    assert extraction.destination.stat().st_uid == 0
    extraction.check()


NAMES = st.sampled_from(
    ["rootfs", "rootfs/l", "rootfs/l/x", "rootfs/d", "rootfs/d/", "rootfs/d/../l/x", "rootfs/d/l/x", "./rootfs/d/x"]
)
TARGETS = st.sampled_from(
    ["OUT", "OUT/directory", "OUT/secret", "/", ".", "..", "d", "../..", "l", "rootfs/l", "rootfs/d/x"]
)
ENTRIES = st.one_of(
    st.tuples(st.just(b"2"), NAMES, TARGETS),
    st.tuples(st.just(b"1"), NAMES, TARGETS),
    st.tuples(st.sampled_from([b"0", b"5", b"6", b"3"]), NAMES, st.just("")),
)


@settings(max_examples=campaign(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ENTRIES, min_size=2, max_size=8))
def test_no_order_of_links_and_files_leads_outside(
    extraction: Extraction, entries: list[tuple[bytes, str, str]]
) -> None:
    """No order of links, files, directories and devices in an image changes anything outside."""
    archive = []
    for typeflag, name, target in entries:
        link = target.replace("OUT", str(extraction.outside))
        archive.append(
            tars.pax({"linkpath": link} if link else {"comment": "x"})
            + tars.header(name, typeflag, device=(1, 3), mode=0o6777, uid=7, size=4 if typeflag == b"0" else 0)
            + (tars.padded(b"evil") if typeflag == b"0" else b"")
        )
    with suppress(ImageError):
        extraction(*archive)
    extraction.clear()
    extraction.check()


def test_zeros_become_holes(extraction: Extraction) -> None:
    """Long runs of zeros take no disk, and read back as what they are."""
    data = b"a" + bytes((3 << 20) - 1) + b"b" + bytes(5 << 20)
    extraction(tars.file("rootfs/x", data), tars.file("rootfs/zeros", bytes(64 << 20)), tars.file("rootfs/one", b"\0"))
    rootfs = extraction.destination / "rootfs"
    assert (rootfs / "x").read_bytes() == data and (rootfs / "one").read_bytes() == b"\0"
    assert (rootfs / "zeros").stat().st_size == 64 << 20
    assert (rootfs / "zeros").stat().st_blocks == 0 and (rootfs / "x").stat().st_blocks * 512 < 3 << 20


GNU_TAR = {
    "gnu": ["--format=gnu"],
    "0.0": ["--format=pax", "--sparse-version=0.0"],
    "0.1": ["--format=pax", "--sparse-version=0.1"],
    "1.0": ["--format=pax", "--sparse-version=1.0"],
}


@pytest.mark.parametrize("form", GNU_TAR)
def test_sparse_files_as_gnu_tar_packs_them(
    extraction: Extraction, tmp_path_factory: pytest.TempPathFactory, form: str
) -> None:
    """Sparse files of each of GNU tar's formats come out as they were, with their holes, and so does what follows."""
    tree = tmp_path_factory.mktemp("tree")
    source = tree / "rootfs" / ("d" * 90)  # with the name of a file too long for a header
    source.mkdir(parents=True)
    (tree / "manifest").write_bytes(tars.manifest())
    many = [(number * (192 << 10), bytes([1 + number]) * (4096 if number % 2 else 70_000)) for number in range(60)]
    contents: dict[str, tuple[int, list[tuple[int, bytes]]]] = {
        "many": (100 << 20, many),
        "hole": (9 << 30, []),
        "beginning": (1 << 20, [(0, b"a" * 4096)]),
        "end": ((1 << 20) + 3, [(1 << 20, b"abc")]),
        "dense": (9999, [(0, b"x" * 9999)]),
        "empty": (0, []),
    }
    for name, (size, pieces) in contents.items():
        with (source / name).open("wb") as file:
            for offset, data in pieces:
                file.seek(offset)
                file.write(data)
            file.truncate(size)
    packing = ["tar", "-cS", "--hole-detection=raw", *GNU_TAR[form], "-C", str(tree), "manifest", "rootfs"]
    packed = subprocess.run(packing, stdout=subprocess.PIPE, check=True).stdout
    assert len(packed) < 4 << 20
    extract_image(extraction.store, extraction.put(packed), extraction.destination)
    found = extraction.rootfs / source.name
    assert sorted(os.listdir(found)) == sorted(contents)
    for name, (size, _) in contents.items():
        assert (found / name).stat().st_size == size
        assert (found / name).stat().st_mtime_ns // 10**9 == (source / name).stat().st_mtime_ns // 10**9
        assert (found / name).stat().st_blocks <= (source / name).stat().st_blocks
        if size < 1 << 30:
            assert (found / name).read_bytes() == (source / name).read_bytes()
    assert (found / "hole").stat().st_blocks == 0
    assert (found / "many").stat().st_blocks * 512 < 4 << 20


def test_the_bytes_of_all_files_are_bounded(extraction: Extraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are too large together are refused, whatever their layers are, and none of them stays."""
    monkeypatch.setattr(workers, "SIZE_LIMIT_BYTES", 1 << 20)
    extraction(tars.file("rootfs/x", b"x" * (1 << 19)), tars.file("rootfs/y", b"y" * ((1 << 19) - 1000)))
    extraction.clear()
    with pytest.raises(ImageError, match=r'entry "rootfs/y": more than 1048576 bytes in all files'):
        extraction(tars.file("rootfs/x", b"x" * (1 << 19)), tars.file("rootfs/y", b"y" * (1 << 19)))
    assert os.listdir(extraction.destination) == []


def test_the_time_is_bounded(extraction: Extraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extraction that takes too long is ended and refused, and nothing of it stays."""
    monkeypatch.setattr(workers, "TIME_LIMIT_SECONDS", 0.01)
    with pytest.raises(ImageError, match=r"not done after 0 seconds, refused"):
        extraction(*(tars.file(f"rootfs/{n}", bytes([n % 256]) * 10_000) for n in range(5000)))
    assert os.listdir(extraction.destination) == []


def test_memory_is_bounded(extraction: Extraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that needs more memory than there is for it is refused in one line."""
    monkeypatch.setattr(untar, "TarReader", lambda *arguments: bytearray(2 << 30))
    with pytest.raises(ImageError, match=r"image example.com/app: needs more than 1073741824 bytes of memory"):
        extraction()
    assert os.listdir(extraction.destination) == []


def test_nothing_can_be_imported_inside(tmp_path: Path) -> None:
    """Once confined, a process imports nothing: no module it finds in its new root, no codec."""
    (tmp_path / "nobodys.py").write_text("")

    def run() -> int:
        refused = 0
        sys.path.insert(0, "/")
        workers.confine(str(tmp_path))
        assert os.path.exists("/nobodys.py")
        try:
            __import__("nobodys")
        except ImportError:
            refused += 1
        try:
            "x".encode("rot13")
        except LookupError:
            refused += 1
        return refused

    pid = fork(EXTRACTOR, run, {"report": None, "images": None, "links": None})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2


def test_a_confined_process_sees_nothing_else(tmp_path: Path) -> None:
    """Once confined, a process reaches no other file system and has only the descriptors it needs."""
    (tmp_path / "only").touch()
    kept, tell = os.pipe()

    def run() -> None:
        workers.confine(str(tmp_path))
        open_fds = []
        for fd in range(256):
            with suppress(OSError):
                os.fstat(fd)
                open_fds.append(fd)
        seen = (os.listdir("/"), os.listdir("../../.."), os.getcwd(), open_fds == [0, 1, 2, tell], os.umask(0))
        os.write(tell, repr(seen).encode())

    pid = fork(EXTRACTOR, run, {"report": tell, "images": None, "links": None})
    os.close(tell)
    os.waitpid(pid, 0)
    assert os.read(kept, 1000).decode() == "(['only'], ['only'], '/', True, 0)"
    os.close(kept)


# Damage, interruption, a full disk.


def test_a_damaged_blob_is_noticed(extraction: Extraction) -> None:
    """A blob that is not what its ID says is refused although it is a sound tar."""
    key = extraction.put(tars.image(tars.file("rootfs/x", b"good")))
    blob = extraction.store.blob_path(key)
    blob.write_bytes(blob.read_bytes().replace(b"good", b"evil"))
    with pytest.raises(ImageError, match="stored blob is damaged: import the image again"):
        extract_image(extraction.store, key, extraction.destination)
    assert os.listdir(extraction.destination) == []


def test_a_missing_blob_is_noticed(extraction: Extraction) -> None:
    """A manifest without its blob is one clear line."""
    key = extraction.put(tars.image())
    os.unlink(extraction.store.blob_path(key))
    with pytest.raises(StoreError, match=f"image {key}.*no such file"):
        extract_image(extraction.store, key, extraction.destination)


def test_an_image_without_manifest_is_noticed(extraction: Extraction) -> None:
    """A blob of rkt's store without manifest is refused."""
    key = extraction.put(tars.directory("rootfs") + tars.END)
    with pytest.raises(ImageError, match="no manifest"):
        extract_image(extraction.store, key, extraction.destination)


def test_a_full_destination_is_refused(extraction: Extraction) -> None:
    """A directory that has entries is not extracted into, and stays as it is."""
    extraction.destination.mkdir()
    (extraction.destination / "mine").touch()
    with pytest.raises(StoreError, match="is not empty"):
        extraction(tars.file("rootfs/x"))
    assert os.listdir(extraction.destination) == ["mine"]


def test_an_interrupted_extraction_leaves_nothing(extraction: Extraction) -> None:
    """When the caller gives up, the child is killed and what it wrote is removed."""
    key = extraction.put(tars.image(*(tars.file(f"rootfs/{number}", bytes(4 << 20)) for number in range(8))))

    def interrupt(step: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_image(extraction.store, key, extraction.destination, interrupt)
    assert os.listdir(extraction.destination) == []


def test_a_killed_child_is_an_error(extraction: Extraction) -> None:
    """When the extracting process dies, one line says so and nothing stays."""
    key = extraction.put(tars.image(*(tars.file(f"rootfs/{number}", bytes(4 << 20)) for number in range(8))))

    def kill_child(step: str, done: int, total: int | None) -> None:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    with pytest.raises(StoreError, match="the extracting process was killed"):
        extract_image(extraction.store, key, extraction.destination, kill_child)
    assert os.listdir(extraction.destination) == []


def test_the_child_dies_with_its_parent(extraction: Extraction, tmp_path: Path) -> None:
    """A killed minit leaves no extracting process behind."""
    key = extraction.put(tars.image(*(tars.file(f"rootfs/{number}", bytes(4 << 20)) for number in range(8))))
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:

        def report(step: str, done: int, total: int | None) -> None:
            [child] = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            os.kill(int(child), signal.SIGSTOP)  # so that it cannot just finish
            os.write(tell, child.encode())
            signal.pause()

        extract_image(extraction.store, key, extraction.destination, report)
        os._exit(1)
    child = os.pidfd_open(int(os.read(told, 64)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # A pidfd becomes readable when its process has ended.
    ended = select.select([child], [], [], 90)[0] == [child]
    if not ended:
        signal.pidfd_send_signal(child, signal.SIGKILL)
    assert ended
    for fd in (child, told, tell):
        os.close(fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    syscalls.mount("tmpfs", str(path), "tmpfs", 0, "size=2m")
    yield path
    syscalls.umount2(str(path), syscalls.MNT_DETACH)


FULL = "no space left on device: free some on the file system at .*/small, or use another one"


def test_a_full_disk_while_extracting(tmp_path: Path, small_disk: Path) -> None:
    """A full disk is one line with what to do, and what was written is removed."""
    place = Extraction(tmp_path)
    key = place.put(tars.image(tars.file("rootfs/x", b"x" * (4 << 20))))
    with pytest.raises(StoreError, match=rf"^extract image example.com/app: {FULL}"):
        extract_image(place.store, key, small_disk / "app")
    assert os.listdir(small_disk / "app") == []
    place.check()
    place.store.close()


def test_a_full_disk_while_importing(tmp_path: Path, small_disk: Path) -> None:
    """A full disk during an import is one line with what to do, and nothing of the image stays."""
    image = tars.write_image(tmp_path / "x.aci", tars.file("rootfs/x", bytes(4 << 20)))
    with Store(small_disk / "data") as store:
        with pytest.raises(StoreError, match=rf"import .*x.aci: {FULL}"):
            store.import_file(image)
        assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_full_disk_while_copying(tmp_path: Path, small_disk: Path) -> None:
    """A full disk during a copy is one line with what to do, and the copy is removed."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "x").write_bytes(bytes(4 << 20))
    with pytest.raises(StoreError, match=rf"copy .*: {FULL}"):
        copy_tree(tmp_path / "tree", small_disk / "copy")
    assert os.listdir(small_disk) == []


# Copies.


def test_a_copy_has_everything_but_hard_links_and_xattrs(extraction: Extraction, tmp_path: Path) -> None:
    """Owners, modes, times, links, devices and fifos are copied; hard links become files of their own."""
    root = extraction(
        tars.directory("rootfs/d", 0o1755, uid=1, mtime=5),
        tars.pax({"SCHILY.xattr.user.note": "x"})
        + tars.file("rootfs/d/suid", b"x" * 70_000, mode=0o4711, uid=7, mtime=6),
        tars.hard_link("rootfs/hard", "rootfs/d/suid"),
        tars.symlink("rootfs/l", "/nowhere", uid=3, mtime=7),
        tars.header("rootfs/null", b"3", device=(1, 3), mode=0o666, gid=9, mtime=8),
        tars.header("rootfs/fifo", b"6", mode=0o600, mtime=9),
        tars.directory("rootfs", 0o751, uid=4, mtime=10),
    )
    before = os.umask(0o077)
    try:
        copy_tree(root, tmp_path / "pod" / "copy")
    finally:
        os.umask(before)
    copy = tmp_path / "pod" / "copy"

    def seen(path: Path) -> tuple[object, ...]:
        status = path.lstat()
        return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_rdev

    assert {path.relative_to(root): seen(path) for path in root.rglob("*")} == {
        path.relative_to(copy): seen(path) for path in copy.rglob("*")
    }
    assert seen(copy) == seen(root)
    assert (copy / "d/suid").read_bytes() == b"x" * 70_000
    assert (copy / "hard").stat().st_nlink == 1
    assert "user.note" not in os.listxattr(copy / "d/suid")
    assert os.readlink(copy / "l") == "/nowhere"


def test_a_copy_does_not_overwrite(tmp_path: Path) -> None:
    """A destination that exists is refused and stays as it is."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    with pytest.raises(StoreError, match="file exists"):
        copy_tree(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path / "b") == ["mine"]
