"""Paths of /proc and /sys that are hidden in an app or cannot be written (stage1 contract 9.3)."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from minit.plan.rights.protection import Protection, plan_protection
from tests.support.pods import MakePod, shell

ALL: Protection = plan_protection(disabled=False, own_network=True)

# Whether there are the others depends on the kernel.
WRITES = (
    *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/panic_on_oom"),
    *("/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/sys/kernel/profiling"),
)


def lines_of(output: str) -> list[str]:
    """Return the lines of an app's output without their prefix."""
    return [line.partition("]: ")[2] for line in output.splitlines()]


@pytest.mark.private_users
def test_masked_paths(make_pod: MakePod) -> None:
    """
    Each is an empty node without any permission, of the kind it covers, that nobody can use or change; /sys/fs has
    nothing but the app's control groups.
    """
    present = [path for path in ALL.masked if os.path.lexists(path) and path != "/sys/fs"]
    assert {"/proc/kallsyms", "/proc/timer_list", "/sys/firmware"} <= set(present)
    script = (
        f"for path in {' '.join(present)}; do stat -c '%n %F %a %u:%g %s' $path; done; touch /sys/fs/x /proc/kallsyms;"
        "ls /sys/fs; stat -c '%a %u:%g' /sys/fs"
    )
    pod = make_pod({"a": shell(script)})
    result = pod.run("--disable-capabilities-restriction")
    kinds = {path: "directory" if Path(path).is_dir() else "regular empty file" for path in present}
    sizes = {"directory": "40", "regular empty file": "0"}
    assert lines_of(result.stdout) == [
        *(f"{path} {kinds[path]} 0 0:0 {sizes[kinds[path]]}" for path in present),
        *("cgroup", "555 0:0"),
    ]
    assert result.stderr.count("ead-only file system") == 2


def test_an_unprivileged_app_cannot_look_into_them(make_pod: MakePod) -> None:
    """Without CAP_DAC_OVERRIDE not even listing works."""
    pod = make_pod({"a": shell("ls /sys/firmware; cat /proc/kallsyms", user="1000", group="1000")})
    assert pod.run().stderr.count("ermission denied") == 2


@pytest.mark.private_users
def test_read_only_paths(make_pod: MakePod) -> None:
    """A write fails with EROFS, whatever the capabilities; reading works."""
    writes = [path for path in WRITES if os.path.exists(path)]
    assert "/proc/sys/kernel/core_pattern" in writes
    script = f"cat /proc/sys/kernel/core_pattern >/dev/null && for x in {' '.join(writes)}; do echo x > $x; done"
    pod = make_pod({"a": shell(script)})
    result = pod.run("--disable-capabilities-restriction")
    assert result.stderr.count("ead-only file system") == len(writes), result.stderr


@pytest.mark.parametrize(("net", "code"), [("none", 0), ("default", 0), ("host", 1)])
@pytest.mark.private_users
def test_parameters_of_the_network(
    make_pod: MakePod, private_users: tuple[int, int] | None, net: str, code: int
) -> None:
    """They can be set by a pod with a network of its own, as they are its own then, if its root is the host's."""
    pod = make_pod({"a": shell("echo 1 > /proc/sys/net/ipv4/conf/lo/log_martians")})
    assert pod.run(net=net).returncode == (code if private_users is None else 1)


# Opened, but not written: not all of what is the machine's could be undone; nf_hooks_lwtunnel stays set.
LIST_WRITABLE = "find /proc/sys -type f | while read x; do ( : >> $x ) 2>/dev/null && echo $x; done"
NETWORK_PREFIXES = tuple(f"/proc/sys/net/{name}" for name in ("core/somaxconn", "ipv4/", "ipv6/", "unix/", "mptcp/"))
# Another number for each parameter that is a number or begins with one.
CHANGE_ALL = f"""
{LIST_WRITABLE} > /tmp/writable
while read -r x; do
    value=$(cat $x); first=${{value%%[!0-9]*}}; rest=${{value#"$first"}}
    [ -z "$first" ] || echo "$((first + 1))$rest" > $x || echo "$((first - 1))$rest" > $x
done < /tmp/writable 2>/dev/null
cat /proc/sys/net/core/somaxconn; wc -l < /tmp/writable; exec sleep 1000
"""


def network_parameters() -> dict[str, str]:
    """Return the sysctls of this network with their values, but for those of its interfaces and counters."""
    found = {}
    for path in Path("/proc/sys/net").rglob("*"):
        if path.is_file() and not {"conf", "neigh"} & set(path.parts) and not path.name.endswith("_count"):
            with suppress(OSError):  # it can only be written, or its interface has gone
                found[str(path)] = path.read_text(errors="replace")
    return found


@pytest.mark.parametrize("net", ["none", "default"])
def test_parameters_that_can_be_written(make_pod: MakePod, net: str) -> None:
    """They are those of the network namespace, and none that is the machine's but there in every namespace."""
    result = make_pod({"a": shell(LIST_WRITABLE + "; true")}).run("--disable-capabilities-restriction", net=net)
    writable = lines_of(result.stdout)
    assert [path for path in writable if not path.startswith(NETWORK_PREFIXES)] == []
    assert {"/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4/ip_forward"} <= set(writable)


def test_parameters_of_the_machine(make_pod: MakePod) -> None:
    """Those of another network stay as they are when an app has changed all that it can write."""
    pod = make_pod({"a": shell(CHANGE_ALL)})
    before = network_parameters()
    process = pod.start("--disable-capabilities-restriction", stdout=subprocess.PIPE)
    assert process.stdout is not None
    somaxconn, writable = lines_of("".join(process.stdout.readline().decode() for _ in range(2)))
    try:
        assert (int(somaxconn), int(writable) > 50) == (int(before["/proc/sys/net/core/somaxconn"]) + 1, True)
        assert network_parameters() == before
    finally:
        process.terminate()
        pod.finish(process)
        now = network_parameters()
        for path in [path for path, value in before.items() if now.get(path, value) != value]:
            Path(path).write_text(before[path])


@pytest.mark.private_users
def test_in_every_app(make_pod: MakePod) -> None:
    """An app protects its own view; the pod's /proc that another one gets is as it was."""
    script = "stat -c %a /proc/kallsyms; echo x > /proc/sys/kernel/core_pattern; true"
    apps = {name: shell(script) for name in ("a", "b")}
    result = make_pod(apps).run()
    assert lines_of(result.stdout) == ["0", "0"]
    assert result.stderr.count("ead-only file system") == 2


def test_a_volume_does_not_lift_it(make_pod: MakePod) -> None:
    """The protected paths of the host's own /sys are protected too where it is mounted."""
    volumes = [{"name": "sys", "kind": "host", "source": "/sys", "readOnly": False, "recursive": True}]
    script = "stat -c %a /sys/firmware /sys/fs; ls /sys/fs; touch /sys/kernel/x"
    section = shell(script, mounts=[{"volume": "sys", "path": "/sys"}])
    result = make_pod({"a": section}, volumes=volumes).run()
    assert lines_of(result.stdout) == ["0", "555", "cgroup"]
    assert "ead-only file system" in result.stderr


def test_a_mount_point_of_an_image_does_not_lift_it(make_pod: MakePod) -> None:
    """A protected path stays hidden where only the image wants a volume, given or implicit."""
    volumes = [
        {"name": "sys", "kind": "host", "source": "/sys", "readOnly": True, "recursive": True},
        {"name": "given", "kind": "empty"},
    ]
    points = [{"name": "given", "path": "/proc/acpi"}, {"name": "implicit", "path": "/sys/fs/cgroup"}]
    script = "stat -c %a /proc/acpi /sys/fs; ls /sys/fs"
    section = shell(script, mounts=[{"volume": "sys", "path": "/sys"}], mountPoints=points)
    result = make_pod({"a": section}, volumes=volumes, app_in_image=True).run()
    assert lines_of(result.stdout) == ["0", "555", "cgroup"]


def test_a_mount_of_the_pod_lifts_it(make_pod: MakePod) -> None:
    """Nothing is hidden where the pod mounts a volume, nor without sysfs, where there is nothing to hide."""
    volumes = [{"name": name, "kind": "empty", "mode": "0751", "uid": 0, "gid": 0} for name in ("a", "b")]
    points = [{"name": "b", "path": "/sys/fs/cgroup"}]
    mounts = [{"volume": "a", "path": "/proc/acpi"}]
    section = shell("stat -c %a /proc/acpi /sys/fs/cgroup", mounts=mounts, mountPoints=points)
    assert lines_of(make_pod({"a": section}, volumes=volumes, app_in_image=True).run().stdout) == ["751", "751"]


def test_links_in_the_way_stay_in_the_root(make_pod: MakePod, tmp_path: Path) -> None:
    """A volume at /proc decides what is there: what a link in it leads to is covered in the app, and nowhere else."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "kcore").symlink_to(f"../../../../../../../../../../{outside}")
    volumes = [{"name": "p", "kind": "host", "source": str(proc)}]
    pod = make_pod({"a": shell("true", mounts=[{"volume": "p", "path": "/proc"}])}, volumes=volumes)
    assert pod.run().returncode == 0
    assert outside.read_text() == "x"


def test_without_protection(make_pod: MakePod) -> None:
    """--disable-paths leaves everything as the kernel has it."""
    script = "stat -c %a /sys/firmware; echo x > /proc/sys/kernel/ostype 2>&1; grep sysfs /proc/mounts"
    pod = make_pod({"a": shell(script)})
    result = pod.run("--disable-paths", "--disable-capabilities-restriction")
    assert lines_of(result.stdout)[0] == "755"
    assert "ead-only" not in result.stderr + result.stdout
    assert " /sys sysfs rw" in result.stdout
