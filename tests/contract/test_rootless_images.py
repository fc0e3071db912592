"""Setuid programs and file capabilities of images in pods of a user without root, and the removal of everything."""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_rootless import DATA, POD, clean, user
from tests.contract.test_rootless_attacks import by_stranger
from tests.support.guest import build_program
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.stage0_world import write_app

__all__ = ["clean", "user"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes users, which needs root")

CAPABILITY = "security.capability"
CHOWN, SYS_ADMIN = 1 << 0, 1 << 21
EFFECTIVE = 1
COLLECT = ("image", "gc", "--grace-period=0s")


def capabilities(permitted: int, rootid: int | None = None) -> bytes:
    """Return the attribute of a file with capabilities, of revision 3 with a `rootid`, else 2 (linux/capability.h)."""
    revision = 2 if rootid is None else 3
    words = (revision << 24 | EFFECTIVE, permitted, 0, 0, 0, *(() if rootid is None else (rootid,)))
    return struct.pack(f"<{len(words)}I", *words)


# The owner, the mode and the capabilities of a program.
Program = tuple[int, int, bytes | None]
PROGRAMS: dict[str, Program] = {
    "plain": (0, 0o755, None),
    "root": (0, 0o4755, None),
    "other": (2000, 0o4755, None),
    "capable": (0, 0o755, capabilities(CHOWN)),
    "nested": (0, 0o755, capabilities(CHOWN, 1000)),
    "mighty": (0, 0o755, capabilities(SYS_ADMIN)),
}


def write_image(user: OrdinaryUser, program: bytes, programs: dict[str, Program]) -> str:
    """Write an image with a program, by several names, and return the path for the user."""
    path = user.home / "rights.aci"
    write_app(path, app={"exec": ["/bin/sh"], "user": "0", "group": "0"}, files={"etc/kept/file": b"of the image"})
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
        for name, (owner, mode, attribute) in programs.items():
            entry = tarfile.TarInfo(f"rootfs/bin/{name}")
            entry.size, entry.mode, entry.uid = len(program), mode, owner
            if attribute is not None:
                entry.pax_headers = {f"SCHILY.xattr.{CAPABILITY}": attribute.decode("utf-8", "surrogateescape")}
            tar.addfile(entry, io.BytesIO(program))
    os.chown(path, user.uid, user.uid)
    return f"{HOME}/rights.aci"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The program that tells about its rights."""
    path = tmp_path_factory.mktemp("rights") / "rights"
    build_program("rights", path)
    return path.read_bytes()


def files(user: OrdinaryUser) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything in the user's store, as root of the machine sees it outside of the namespace."""
    for directory, directories, names in os.walk(user.home / ".local/share/minit"):
        for name in (*directories, *names):
            path = Path(directory, name)
            yield path, path.lstat()


# By the user of the app: user and effective capabilities of each program that may be executed.
GRANTED = {
    "plain": ("1000", 0),
    "root": ("0", None),
    "other": ("2000", 0),
    "capable": ("1000", CHOWN),
    "nested": ("1000", 0),
}


def test_programs_with_rights(clean: OrdinaryUser, program: bytes) -> None:
    """Inside a pod set-id bits and file capabilities count, up to the rights of root there; outside nobody has any."""
    image = write_image(clean, program, PROGRAMS)
    script = "; ".join(f"/bin/{name} || echo {name} refused" for name in PROGRAMS)
    ids = ("--user=1000", "--group=1000", "--annotation=minit/no-new-privileges=false")
    seen = {}
    for options in (), ids:
        done = clean.minit("run", *POD, image, *options, "--", "-c", script)
        said = [line.partition("]: ")[2].split() for line in done.stdout.splitlines()]
        seen[options] = {name: (uid, rights) for name, uid, *rights in said}
    of_root = int(seen[()]["plain"][1][0], 16)
    assert of_root & CHOWN and not of_root & SYS_ADMIN
    assert seen[ids].pop("mighty") == ("refused", [])
    expected = {name: (uid, [f"{of_root if rights is None else rights:x}"]) for name, (uid, rights) in GRANTED.items()}
    assert seen[ids] == expected
    granted = []
    for path, state in files(clean):
        if stat.S_ISREG(state.st_mode) and path.name in PROGRAMS:
            assert state.st_uid in clean.ids
            if CAPABILITY in os.listxattr(path):
                granted.append(struct.unpack("<6I", os.getxattr(path, CAPABILITY)))
            outside = by_stranger(clean, f"{DATA}/{path.relative_to(clean.home / '.local/share/minit')}")
            assert outside.returncode == 126, outside
    assert len(granted) >= 3 and all(words[0] >> 24 == 3 and words[5] in clean.ids for words in granted), granted


@pytest.mark.parametrize("rootid", [70000, 0xFFFFFFFF])
def test_capabilities_for_an_id_that_is_not_the_users(clean: OrdinaryUser, program: bytes, rootid: int) -> None:
    """An image with file capabilities of a namespace that is not below the user's is refused by one line."""
    image = write_image(clean, program, {"foreign": (0, 0o755, capabilities(CHOWN, rootid))})
    done = clean.minit("run", *POD, image, "--", "-c", "true")
    # A first pod has stage1 imported and unpacked before.
    steps = (": importing ", ": extracting ")
    [line] = [line for line in done.stderr.splitlines() if not any(step in line for step in steps)]
    assert done.returncode == 254, done
    assert line.endswith('bin/foreign": cannot set the attribute "security.capability": invalid argument')


def test_nothing_is_left_in_the_store(clean: OrdinaryUser, program: bytes) -> None:
    """After the removal of pods, images and volumes no file of the user's store is there but for its skeleton."""
    image = write_image(clean, program, PROGRAMS)
    steps = ("chown 2000:2000 /data", "rm -r /etc/kept", "mkdir /etc/kept", "touch /etc/kept/x /data/x")
    script = " && ".join(f"busybox {step}" for step in steps)
    for options in (), ("--no-overlay",):
        words = ("run", *POD, *options, "-v", "kept:/data")
        assert clean.minit(*words, image, "--", "-c", script).returncode == 0
    assert any(state.st_uid != clean.uid for _, state in files(clean))
    assert any(path.name == "work" and path.parent.name == "work" for path, _ in files(clean))
    for words in ("rm", "--all", "--force"), ("volume", "rm", "kept"), COLLECT:
        done = clean.minit(*words)
        assert done.returncode == 0, done.stderr
    clean.wait_end()
    left = [path for path, state in files(clean) if state.st_uid != clean.uid or not stat.S_ISDIR(state.st_mode)]
    assert [path for path in left if path.parent.name != "locks"] == []
    assert not any(path.name == "work" for path, _ in files(clean))
