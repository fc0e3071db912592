"""Peers of pods without root: podman of the same user with the same image, and slirp4netns with nothing around."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.world import World
from minit.network.uplink import OPTIONS
from tests.support.ordinaryuser import HOME, OrdinaryUser

IMAGE = "localhost/bench"
_UNIFIED = "/sys/fs/cgroup/unified"
# The kernel's overlay, without fuse-overlayfs.
_STORAGE = '[storage]\ndriver = "overlay"\n'
_TAR = "image.tar"
_PODMAN = ("podman", "--log-level=error", "--cgroup-manager=cgroupfs", "--runtime=crun")


def call(words: Sequence[str]) -> str:
    """Run words to their end, and return the output."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def import_image(bench: World, user: OrdinaryUser) -> None:
    """Give the user's podman the root of the app as an image, and start what podman keeps for all its commands."""
    storage = user.home / ".config/containers/storage.conf"
    storage.parent.mkdir(parents=True)
    storage.write_text(_STORAGE)
    subprocess.run(["tar", "-C", bench.rootfs, "-cf", user.home / _TAR, "."], check=True)
    for path in (user.home / _TAR, storage, *storage.parents[:2]):
        os.chown(path, user.uid, user.uid)
    # All commands have the mounts of the first one, in which crun must not find a tree of v2 beside v1.
    for words in (["import", f"{HOME}/{_TAR}", IMAGE], ["run", "--rm", "--network=none", IMAGE, "/bin/first"]):
        line = podman_words(user, *words)
        if os.path.isdir(_UNIFIED):
            script = line.index("-ec") + 1
            line[script] = line[script].replace("exec setpriv", f"umount {_UNIFIED}; exec setpriv")
            line[line.index("sh") : line.index("sh")] = ["unshare", "--mount"]
        call(line)


def podman_words(user: OrdinaryUser, *words: str) -> list[str]:
    """Return the command line by which the user runs a `podman` command."""
    return user.words([*_PODMAN, *words])


@contextmanager
def bare_network(user: OrdinaryUser) -> Iterator[list[str]]:
    """A network with slirp4netns alone, as the uplink of pods starts it; gives the words before a command in there."""
    there = ["unshare", "--map-root-user", "--net", "sh", "-c", "echo; read line"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(user.words(there), **pipes) as holder:  # type: ignore[call-overload]
        holder.stdout.readline()
        namespaces = {kind: f"/proc/{holder.pid}/ns/{kind}" for kind in ("user", "net")}
        ready, theirs = os.pipe()
        # The sandbox takes the rights that only a process inside has.
        options = [option for option in OPTIONS if option != "--enable-sandbox"]
        words = ["slirp4netns", *options, f"--userns-path={namespaces['user']}", f"--ready-fd={theirs}"]
        words = user.words([*words, namespaces["net"], "tap0"])
        quiet = subprocess.DEVNULL
        with subprocess.Popen(words, pass_fds=[theirs], stdout=quiet, stderr=quiet) as uplink:
            os.close(theirs)
            assert os.read(ready, 1) == b"1"
            os.close(ready)
            try:
                yield [
                    "nsenter",
                    "--preserve-credentials",
                    f"--user={namespaces['user']}",
                    f"--net={namespaces['net']}",
                ]
            finally:
                uplink.kill()
                holder.communicate()
