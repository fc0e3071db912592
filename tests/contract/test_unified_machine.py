"""Pods with limits on a machine that has the unified hierarchy of control groups alone, booted for that."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import BOOT_SECONDS, find_kernel, run_on_machine
from tests.support.pods import MakePod, PodDirectory, control_group_name, shell

pytestmark = pytest.mark.long

IDLE = "while :; do sleep 1; done"
MEASURED = ("memory.max", "cpu.max", "cpu.weight", "pids.max")

# Each start is of a shell's own, which is in the group of its first argument; the second is whether it stays there.
_HEAD = """
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/system.slice/one.service /sys/fs/cgroup/user.slice/session.scope

start() {  # POD GROUP FLAGS
    cd /machine/pods/$1
    exec 9< .
    echo 0 > /sys/fs/cgroup/$2/cgroup.procs
    RKT_LOCK_FD=9 exec stage1/rootfs/entrypoints/run --net=none $3 $(cat uuid)
}

show() {  # POD
    cd /machine/pods/$1
    until [ -L stage1/rootfs/rkt/supervisor-status ]; do sleep 0.1; done
    echo "$1 subcgroup $(cat subcgroup)"
    cd "/sys/fs/cgroup/$(cat subcgroup)"
    for group in . init.scope system.slice system.slice/*; do
        for file in %(files)s; do
            [ ! -e $group/$file ] || echo "$1 $group/$file $(cat $group/$file)"
        done
    done
    for group in . */; do echo "$1 $group $(cat $group/cgroup.procs | wc -l)"; done
}

end() {  # POD GROUP
    kill -TERM $3
    wait $3
    echo "$1 code $?"
    cd /machine/pods/$1
    stage1/rootfs/entrypoints/gc --local-config /etc/rkt $(cat uuid)
    echo "$1 left $(find /sys/fs/cgroup -name 'machine-rkt*' | wc -l)"
}
"""
_SCRIPT = (
    _HEAD
    + """
for run in "unit system.slice/one.service" "session user.slice/session.scope" "plain user.slice/session.scope"; do
    set -- $run
    [ $2 = system.slice/one.service ] || echo $$ > /sys/fs/cgroup/$2/cgroup.procs
    (start $1 $2) > /machine/out 2>&1 &
    show $1
    end $1 $2 $!
    while read -r line; do echo "$1 said $line"; done < /machine/out
done
(start greedy user.slice/session.scope) > /machine/out 2>&1
echo "greedy code $?"
while read -r line; do echo "greedy said $line"; done < /machine/out
(start starved user.slice/session.scope) > /machine/out 2>&1 &
cd /machine/pods/starved
until [ -L stage1/rootfs/rkt/supervisor-status ]; do sleep 0.1; done
group=/sys/fs/cgroup/$(cat subcgroup)/init.scope
mkdir /full && mount -t tmpfs none /full
echo $(($(cat $group/memory.current) + 1048576)) > $group/memory.max
(echo 0 > $group/cgroup.procs; exec dd if=/dev/zero of=/full/file bs=1M count=64) > /dev/null 2>&1
wait $!
echo "starved code $?"
while read -r line; do echo "starved said $line"; done < /machine/out
echo "starved limit $(cat $group/memory.max)"
while read -r line; do echo "starved event $line"; done < stage1/rootfs/rkt/minit/events.log
cd /
(start makes user.slice/session.scope) > /machine/out 2>&1
echo "makes code $?"
while read -r line; do echo "makes said $line"; done < /machine/out
(start sees user.slice/session.scope --disable-paths) > /machine/out 2>&1
echo "sees code $?"
while read -r line; do echo "sees said $line"; done < /machine/out
"""
)

# Soft and hard limit of open files.
_OF_A_POOR_CALLER = (
    _HEAD
    + """
ulimit -S -n 300
ulimit -H -n 600
for pod in usual wide; do
    users=/machine/pods/$pod-users
    cp -a /machine/pods/$pod $users
    chown -R 100000:100000 $users/stage1/rootfs
    cat /proc/sys/kernel/random/uuid > $users/uuid
    echo 100000:65536 > $users/private-users-prepared
    (start $pod user.slice/session.scope) 2>&1 | sed "s/^/$pod: /"
    (start $pod-users user.slice/session.scope --private-users=100000:65536) 2>&1 | sed "s/^/$pod-users: /"
done
"""
)


def limits(**quantities: str) -> list[dict[str, Any]]:
    """Return isolators that limit resources."""
    return [{"name": f"resource/{name}", "value": {"limit": text}} for name, text in quantities.items()]


def facts_of(said: list[str], pod: str) -> dict[str, str]:
    """Return what was said about a pod, `POD FACT VALUE`."""
    return dict(line.split(" ", 2)[1:] for line in said if line.startswith(f"{pod} ") and line.count(" ") > 1)


def files_of(facts: dict[str, str], group: str) -> dict[str, str]:
    """Return what the files of a group of a pod say."""
    found = (key.rpartition("/") for key in facts)
    return {file: facts[f"{group}/{file}"] for directory, _, file in found if directory == group and file in MEASURED}


@pytest.fixture
def make_plain_pod(make_pod: MakePod, tmp_path: Path) -> MakePod:
    """A function that prepares a pod without overlays, where the machine finds it."""

    def make(name: str, apps: dict[str, Any], **manifest: Any) -> PodDirectory:
        pod = make_pod(apps, overlay=False, **manifest)
        directory = tmp_path / "machine/pods" / name
        shutil.copytree(pod.path, directory, symlinks=True)
        (directory / "uuid").write_text(pod.uuid)
        return pod

    return make


@pytest.mark.timeout(BOOT_SECONDS + 60)
def test_limits_of_the_unified_hierarchy(make_plain_pod: MakePod, tmp_path: Path) -> None:
    """
    Where they are, with a launcher that has its group alone and one that has not; what they do, and the BPF program for
    devices; that gc removes them.

    All in one boot, which takes most of the time.
    """
    kernel = find_kernel()
    section = shell(
        IDLE,
        isolators=[*limits(memory="64Mi", cpu="250m"), {"name": "os/linux/cpu-shares", "value": 512}],
        annotations=[{"name": "minit/pids-limit", "value": "20"}],
    )
    look = "cat /sys/fs/cgroup$(cat /proc/self/cgroup | { IFS=: read -r a b path; echo $path; })/memory.max; exit 0"
    make = "for d in 'c 1 3' 'c 5 2' 'c 10 237'; do mknod /tmp/n $d && rm /tmp/n && echo made; done 2>&1"
    use = "for f in /dev/null /dev/ptmx /console; do true <> $f && echo opened; done 2>&1; exit 0"
    console = {"volumes": [{"name": "v", "kind": "host", "source": "/dev/console"}]}
    pods = {
        "makes": make_plain_pod(
            "makes", {"a": shell(f"{make}; {use}", mounts=[{"volume": "v", "path": "/console"}])}, **console
        ),
        "unit": make_plain_pod("unit", {"a": section, "b": shell(IDLE)}, isolators=limits(memory="128Mi")),
        "session": make_plain_pod("session", {"a": section}),
        "plain": make_plain_pod("plain", {"a": shell(IDLE)}),
        "greedy": make_plain_pod(
            "greedy", {"a": shell("dd if=/dev/zero of=/dev/null bs=64M count=1", isolators=limits(memory="16M"))}
        ),
        "starved": make_plain_pod("starved", {"a": shell(IDLE, isolators=limits(memory="64Mi"))}),
        "sees": make_plain_pod("sees", {"a": shell(look, isolators=limits(memory="32Mi"))}),
    }
    said = run_on_machine(kernel, tmp_path / "machine", _SCRIPT % {"files": " ".join(MEASURED)}, tmp_path)
    facts = {name: facts_of(said, name) for name in pods}
    own = {name: control_group_name(pod.uuid) for name, pod in pods.items()}
    unlimited = {"memory.max": "max", "cpu.max": "max 100000", "cpu.weight": "100", "pids.max": "max"}
    limited = {"memory.max": "67108864", "cpu.max": "25000 100000", "cpu.weight": "50", "pids.max": "20"}

    # Alone in its group the launcher moves into the pod, which lies there.
    assert facts["unit"]["subcgroup"] == f"system.slice/one.service/{own['unit']}"
    assert facts["unit"]["launcher.scope/"] == "1"
    assert files_of(facts["unit"], "system.slice/a.service") == limited
    assert files_of(facts["unit"], "system.slice/b.service") == unlimited
    assert files_of(facts["unit"], "system.slice") == {**unlimited, "memory.max": "134217728"}
    assert files_of(facts["unit"], "init.scope") == files_of(facts["unit"], ".") == unlimited

    # Beside others it stays, and the pod lies beside its group.
    assert facts["session"]["subcgroup"] == f"user.slice/{own['session']}"
    assert "launcher.scope/" not in facts["session"]
    assert files_of(facts["session"], "system.slice/a.service") == limited

    # Without limits no group is changed.
    assert facts["plain"]["subcgroup"] == f"user.slice/session.scope/{own['plain']}"
    assert not [key for key in facts["plain"] if ".max" in key]

    for name in ("unit", "session", "plain"):
        assert (facts[name]["code"], facts[name]["left"]) == ("0", "0")
    assert facts["greedy"]["code"] == "137"
    line = 'app "a": the kernel has killed it for want of memory: its limit is 16000000 bytes (15.3 MiB)'
    assert f"greedy said stage1: {line}" in said
    assert facts["starved"]["code"] == "137"
    line = f"the limit of /sys/fs/cgroup/user.slice/{own['starved']}/init.scope is {facts['starved']['limit']} bytes"
    [told] = [text for text in said if text.startswith("starved said stage1: PID 1 ")]
    assert f"was killed by the kernel for want of memory: {line} (" in told
    [event] = [text for text in said if text.startswith("starved event ") and "pod.killed" in text]
    assert '"reason":"oom-killed"' in event
    assert [line.rpartition(" ")[2] for line in said if line.startswith("sees said a[")] == ["33554432"]
    answers = [line.partition("]: ")[2].rpartition(": ")[2] for line in said if line.startswith("makes said a[")]
    refused = "Operation not permitted"
    assert answers == ["made", refused, refused, "opened", "opened", "opened"]
    assert not [line for line in said if "warning" in line]


@pytest.mark.timeout(BOOT_SECONDS + 60)
def test_limits_of_processes(make_plain_pod: MakePod, tmp_path: Path) -> None:
    """With CAP_SYS_RESOURCE they may be wider than the caller's hard ones, for root of a user namespace too."""
    told = "echo $(ulimit -n) $(ulimit -Hn) $(ulimit -l)"
    wide = {"name": "minit/ulimits", "value": '{"nofile": "700000:2000000", "memlock": "102400000"}'}
    make_plain_pod("usual", {"a": shell(told)})
    make_plain_pod("wide", {"a": shell(told, annotations=[wide])})
    script = _OF_A_POOR_CALLER % {"files": ""}
    said = [line for line in run_on_machine(find_kernel(), tmp_path / "machine", script, tmp_path) if ": " in line]
    for pod, expected in (("usual", "1024 524288 8192"), ("wide", "700000 1048576 100000")):
        for name in (pod, f"{pod}-users"):
            lines = [line.partition(": ")[2] for line in said if line.startswith(f"{name}: ")]
            assert [line.partition("]: ")[2] for line in lines if line.startswith("a[")] == [expected], said
            warnings = [line for line in lines if "warning: " in line]
            assert ["nofile=700000:1048576 in place of 700000:2000000" in line for line in warnings] == (
                [True] if pod == "wide" else []
            )
