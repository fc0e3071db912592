"""minit in a chroot, as build machines have it: whoever calls it has a root that is not that of the mount namespace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.stage0_world import World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

# All of the machine's directories in an empty one.
IN_CHROOT = r"""
root=$1; shift
[ "$MOUNTED" = no ] || mount --bind "$root" "$root"
for path in /*; do
    if [ -L "$path" ]; then cp -P "$path" "$root$path"
    elif [ -d "$path" ]; then mkdir "$root$path" && mount --rbind "$path" "$root$path"; fi
done
exec chroot "$root" "$@"
"""
POD = r"""
cd "$1"; shift
uuid=$("$@" prepare --quiet --stage1-path=stage1.aci busybox.aci --exec=/bin/sh -- \
    -c 'trap "exit 7" TERM; echo started; while :; do busybox sleep 1000 & wait; done') || exit
"$@" run-prepared --net=none "$uuid" &
"$@" status --wait-ready=1m "$uuid" > /dev/null
"$@" enter "$uuid" /bin/busybox ls / /..
"$@" stop "$uuid" > /dev/null || kill $!
wait $!
"$@" status "$uuid" | grep app-
"""
NAMESPACES = r"""
cd "$1"; shift
"$@" run --quiet --no-overlay --net=none --stage1-path=stage1.aci --private-users busybox.aci || echo "ended with $?"
"""


def in_chroot(world: World, script: str, mounted: str = "no") -> subprocess.CompletedProcess[str]:
    """Run a script in a chroot whose root is a mount or not, with the world's directory and command for arguments."""
    root = world.root / "root"
    root.mkdir()
    command = ["unshare", "--mount", "sh", "-euc", IN_CHROOT, "sh", str(root)]
    return subprocess.run(
        [*command, "sh", "-uc", script, "sh", str(world.root), *world.command()],
        env=world.environment(MOUNTED=mounted),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )


@pytest.fixture
def world(world: World, stage1_image: Path) -> World:
    """A data directory of its own, with the real stage1."""
    world.stage1.unlink()
    world.stage1.symlink_to(stage1_image)
    return world


@pytest.mark.parametrize("mounted", ["no", "yes"])
def test_a_pod_in_a_chroot(world: World, mounted: str) -> None:
    """A pod runs, is entered and ends in a chroot, whether or not its root is a mount, and nothing is above its own."""
    result = in_chroot(world, POD, mounted)
    [started, *entered, ended] = result.stdout.splitlines()
    assert (started.partition("]: ")[2], ended) == ("started", "app-busybox=7"), result.stderr
    inside = entered[1 : entered.index("")]
    assert "bin" in inside and "usr" not in inside and entered == ["/:", *inside, "", "/..:", *inside]


@pytest.mark.host_root("pods of a user have no other ids than the user's")
def test_user_namespaces_in_a_chroot(world: World) -> None:
    """The kernel makes no user namespace there, which the message says, and what can be left out."""
    result = in_chroot(world, NAMESPACES)
    assert result.stdout == "ended with 254\n"
    reason = "in a chroot the kernel makes no user namespaces, leave out --private-users"
    assert f"failed to make the pod's namespaces: operation not permitted: {reason}" in result.stderr
