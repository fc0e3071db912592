"""Isolators, seen from the apps they are about and in the control groups where rkt's tools look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minit.linux import syscalls
from minit.manifest.capabilities import DEFAULT, capability_mask, capability_names
from tests.support.pods import MakePod, PodDirectory, guest, handlers, shell
from tests.support.processes import status_of
from tests.support.usersession import is_capable

RETAIN, REMOVE = "os/linux/capabilities-retain-set", "os/linux/capabilities-remove-set"
IDLE = "while :; do sleep 1; done"


def isolator(name: str, value: object) -> dict[str, Any]:
    """Return an isolator of a manifest."""
    return {"name": name, "value": value}


def limit(resource: str, quantity: str) -> dict[str, Any]:
    """Return the isolator that limits a resource."""
    return isolator(f"resource/{resource}", {"limit": quantity})


def capabilities(pod: PodDirectory, app: str) -> dict[str, int]:
    """Return the sets of an app that reported."""
    status = pod.report(app).status
    return {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")}


def sets(bounding: int, held: int) -> dict[str, int]:
    """Return the sets of a process with this bounding set that holds these."""
    return {"CapPrm": held, "CapEff": held, "CapBnd": bounding, "CapInh": 0, "CapAmb": 0}


def limits_of(pod: PodDirectory, group: str) -> dict[str, str]:
    """Return what the files of a group below the pod's say, of all hierarchies together."""
    files = (
        *("memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "pids.max"),
        *("memory.max", "cpu.max", "cpu.weight"),
    )
    found = [top / group / file for top in pod.control_groups() for file in files]
    return {path.name: path.read_text().strip() for path in found if path.exists()}


# Capabilities.


@pytest.mark.private_users
@pytest.mark.rootless
@pytest.mark.subordinate_ids("an app has another user")
def test_capabilities_of_each_app(make_pod: MakePod) -> None:
    """Retained, removed and default sets side by side; only root holds any; PID 1 gave up what no app retains."""
    retained = [isolator(RETAIN, {"set": ["CAP_NET_ADMIN"]}), isolator(RETAIN, {"set": ["CAP_SYSLOG"]})]
    names = ["CAP_KILL", "CAP_SYS_ADMIN", "CAP_MKNOD"]
    pod = make_pod(
        {
            "retains": guest("report", "/tmp/report", isolators=retained),
            "removes": guest("report", "/tmp/report", isolators=[isolator(REMOVE, {"set": names})]),
            "user": guest("report", "/tmp/report", isolators=retained[1:], user="1000", group="1000"),
            "default": guest("report", "/tmp/report"),
            "stays": shell(IDLE),
        }
    )
    process = pod.start()
    for name in ("retains", "removes", "user", "default"):
        assert pod.wait_status(name) == 0
    own = capability_mask("CAP_NET_ADMIN", "CAP_SYSLOG")
    left = DEFAULT & ~capability_mask(*names)
    assert capabilities(pod, "retains") == sets(own, own)
    assert capabilities(pod, "removes") == sets(left, left)
    assert capabilities(pod, "user") == sets(capability_mask("CAP_SYSLOG"), 0)
    assert capabilities(pod, "default") == sets(DEFAULT, DEFAULT)
    assert int(status_of(pod.pid)["CapBnd"], 16) == DEFAULT | own
    # A command that is entered has what that app may have, and not what any other may.
    assert f"CapBnd:\t{DEFAULT:016x}" in pod.enter("stays", "cat", "/proc/self/status").stdout
    process.terminate()
    assert pod.finish(process).returncode == 0


def test_no_capabilities(make_pod: MakePod) -> None:
    """All can be removed, from root too; a set in the image counts if the pod has no section of its own."""
    removed = isolator(REMOVE, {"set": capability_names(DEFAULT)})
    pod = make_pod({"a": guest("report", "/tmp/report", isolators=[removed])}, app_in_image=True)
    assert pod.run().returncode == 0
    assert capabilities(pod, "a") == sets(0, 0)


def test_the_pods_section_counts(make_pod: MakePod) -> None:
    """The isolators of an image are none of an app that has its section in the pod manifest."""
    section = guest("report", "/tmp/report", isolators=[isolator(RETAIN, {"set": ["CAP_KILL"]})])
    pod = make_pod({"a": section}, app_in_image=True)
    manifest = json.loads((pod.path / "pod").read_text())
    manifest["apps"][0]["app"] = guest("report", "/tmp/report", isolators=[isolator(RETAIN, {"set": ["CAP_CHOWN"]})])
    (pod.path / "pod").write_text(json.dumps(manifest))
    assert pod.run().returncode == 0
    assert capabilities(pod, "a")["CapBnd"] == capability_mask("CAP_CHOWN")


@pytest.mark.private_users
def test_a_disabled_restriction_beats_isolators(make_pod: MakePod, private_users: tuple[int, int] | None) -> None:
    """With --insecure-options=capabilities they restrict nothing."""
    held = syscalls.bounding_set() if private_users is None else syscalls.every_capability()
    pod = make_pod({"a": guest("report", "/tmp/report", isolators=[isolator(RETAIN, {"set": ["CAP_KILL"]})])})
    assert pod.run("--disable-capabilities-restriction").returncode == 0
    assert capabilities(pod, "a")["CapBnd"] == held


# Limits.


@pytest.mark.delegated_groups("it sets limits")
def test_limits_are_where_tools_look(make_pod: MakePod) -> None:
    """Each app's are in its own group, the pod's in the one around all apps; PID 1 has none."""
    pod = make_pod(
        {
            "a": shell(
                IDLE,
                isolators=[limit("memory", "4194304"), limit("cpu", "100m"), isolator("os/linux/cpu-shares", 512)],
                annotations=[{"name": "minit/pids-limit", "value": "50"}],
            ),
            "b": shell(IDLE),
        },
        isolators=[limit("memory", "1Gi"), limit("cpu", "1.5")],
        annotations={"minit/pids-limit": "100"},
    )
    process = pod.start()
    pod.wait_ready()
    app, other, pods, ours = (
        limits_of(pod, group)
        for group in ("system.slice/a.service", "system.slice/b.service", "system.slice", "init.scope")
    )
    if "memory.max" in app:
        assert app == {"memory.max": "4194304", "cpu.max": "10000 100000", "cpu.weight": "50", "pids.max": "50"}
        assert pods == {"memory.max": "1073741824", "cpu.max": "150000 100000", "cpu.weight": "100", "pids.max": "100"}
        assert other == ours == {"memory.max": "max", "cpu.max": "max 100000", "cpu.weight": "100", "pids.max": "max"}
    else:
        period = {"cpu.cfs_period_us": "100000"}
        limited = {"memory.limit_in_bytes": "4194304", "cpu.cfs_quota_us": "10000", "cpu.shares": "512"}
        assert app == {**period, **limited, "pids.max": "50"}
        limited = {"memory.limit_in_bytes": "1073741824", "cpu.cfs_quota_us": "150000", "cpu.shares": "1024"}
        assert pods == {**period, **limited, "pids.max": "100"}
        unlimited = {"memory.limit_in_bytes": str((1 << 63) - 4096), "cpu.cfs_quota_us": "-1", "cpu.shares": "1024"}
        assert other == ours == {**period, **unlimited, "pids.max": "max"}
    process.terminate()
    result = pod.finish(process)
    assert (result.returncode, "warning" in result.stderr) == (0, False)
    pod.gc()
    assert pod.control_groups() == []


# Whatever of an app is not executed yet has less: the kernel kills the largest process.
TAKE = "dd if=/dev/zero of=/dev/null bs=128M count=1"
HUNGRY = [limit("memory", "65M")]
LIMIT = "for want of memory: its limit is 65000000 bytes (62 MiB)"


@pytest.mark.parametrize(
    ("section", "status", "killed"),
    [
        (shell(f"exec {TAKE}", isolators=HUNGRY), 137, "it"),
        (shell(f"{TAKE}; exit 3", isolators=HUNGRY), 3, "1 of its processes"),
        (shell(f"{TAKE}; {TAKE}; exit 3", isolators=HUNGRY), 3, "2 of its processes"),
        (
            shell("true", isolators=HUNGRY, eventHandlers=handlers(pre_start=("/bin/sh", "-c", TAKE))),
            254,
            "1 of its processes",
        ),
        (
            shell("true", isolators=HUNGRY, eventHandlers=handlers(post_stop=("/bin/sh", "-c", TAKE))),
            0,
            "1 of its processes",
        ),
        (shell(f"exec {TAKE}", isolators=[limit("memory", "256M")]), 0, None),
        (shell(f"{TAKE}; exit 0", isolators=HUNGRY), 0, None),
    ],
    ids=["itself", "child", "children", "pre-start", "post-stop", "enough", "well"],
)
@pytest.mark.private_users
@pytest.mark.delegated_groups("it sets limits")
def test_memory_that_is_not_there(make_pod: MakePod, section: dict[str, Any], status: int, killed: str | None) -> None:
    """A line says what of an app was killed and by which limit, if that made the app or a handler of it fail."""
    pod = make_pod({"a": section})
    result = pod.run()
    assert pod.status("a") == status
    lines = [line for line in result.stderr.splitlines() if "want of memory" in line]
    assert lines == ([] if killed is None else [f'stage1: app "a": the kernel has killed {killed} {LIMIT}'])


@pytest.mark.delegated_groups("it sets limits")
def test_memory_of_all_apps_together(make_pod: MakePod) -> None:
    """The pod's limit counts for an app without one, and PID 1 survives to record its end."""
    take = shell("until [ -e /tmp/go ]; do sleep 0.01; done; dd if=/dev/zero of=/dev/null bs=64M count=1")
    pod = make_pod({"a": take, "b": shell(f"touch /tmp/up; {IDLE}")}, isolators=[limit("memory", "16M")])
    process = pod.start()
    # Before it is executed it has a part of PID 1's memory, and might be the one that is killed.
    pod.wait_file("b", "/tmp/up")
    pod.file("a", "/tmp/go").touch()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (137, 137, 0)
    assert "want of memory: the limit of all apps of the pod is 15998976 bytes (15.3 MiB)\n" in result.stderr


@pytest.mark.private_users
@pytest.mark.delegated_groups("it sets limits")
def test_processes_that_are_not_there(make_pod: MakePod) -> None:
    """An app can fork up to its limit and no further, and can be stopped then."""
    fork = "i=0; while [ $i -lt 20 ]; do sleep 1000 & i=$((i+1)); done; wait"
    limited = [{"name": "minit/pids-limit", "value": "10"}]
    pod = make_pod({"a": shell(fork, annotations=limited), "b": shell(IDLE)})
    result = pod.run()
    assert result.returncode == 2 and "can't fork: Resource temporarily unavailable" in result.stderr
    # The other one may not have been executed by then, and has no status.
    assert (pod.status("a"), pod.status("b") or 0) == (2, 0)


@pytest.mark.delegated_groups("it sets limits")
def test_a_limit_of_one_process(make_pod: MakePod) -> None:
    """The least there is leaves room for the app itself, and for none of its children."""
    limited = [{"name": "minit/pids-limit", "value": "1"}]
    pod = make_pod({"a": shell("sleep 0 & wait", annotations=limited)})
    assert "can't fork" in pod.run().stderr
    pod = make_pod({"a": guest("report", "/tmp/report", annotations=limited)})
    assert pod.run().returncode == 0


@pytest.mark.delegated_groups("it sets limits")
def test_processor_time(make_pod: MakePod) -> None:
    """An app with a tenth of a processor is throttled."""
    pod = make_pod({"a": shell("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", isolators=[limit("cpu", "100m")])})
    process = pod.start()
    assert pod.wait_status("a") == 0
    pod.finish(process)
    [group] = [top / "system.slice/a.service/cpu.stat" for top in pod.control_groups() if _counts_throttling(top)]
    counts = dict(line.split() for line in group.read_text().splitlines())
    assert int(counts["nr_throttled"]) > 0


def _counts_throttling(top: Path) -> bool:
    path = top / "system.slice/a.service/cpu.stat"
    return path.exists() and "nr_throttled" in path.read_text()


# The OOM killer.


@pytest.mark.parametrize("score", [0, 1, 500, 1000])
@pytest.mark.private_users
def test_the_oom_score(make_pod: MakePod, score: int) -> None:
    """The app's processes have the adjustment they ask for; an event handler and another app have none."""
    read = "cat /proc/self/oom_score_adj"
    handlers = [{"name": "pre-start", "exec": ["/bin/sh", "-c", f"echo handler $({read})"]}]
    section = shell(
        f"echo app $({read})", isolators=[isolator("os/linux/oom-score-adj", score)], eventHandlers=handlers
    )
    pod = make_pod({"a": section, "b": shell(f"echo other $({read})")})
    result = pod.run()
    said = sorted(line.partition("]: ")[2] for line in result.stdout.splitlines())
    assert said == [f"app {score}", "handler 0", "other 0"], result.stderr
    assert "warning" not in result.stderr


@pytest.mark.private_users
def test_a_lower_oom_score(make_pod: MakePod) -> None:
    """Below 0 it takes CAP_SYS_RESOURCE; without that a warning says that it is left as it is."""
    privileged = is_capable("CAP_SYS_RESOURCE")
    pod = make_pod({"a": shell("cat /proc/self/oom_score_adj", isolators=[isolator("os/linux/oom-score-adj", -500)])})
    result = pod.run()
    text = 'stage1: warning: app "a": oom_score_adj cannot be lowered to -500 without CAP_SYS_RESOURCE, skipping\n'
    assert (text in result.stderr) is not privileged
    assert result.stdout.endswith(f"]: {-500 if privileged else 0}\n")


# What an app sees of control groups.

_LOOK = """
while IFS=: read -r number names path; do
    case $names in
        memory) file=/proc/1/root/sys/fs/cgroup/memory$path/memory.limit_in_bytes;;
        "") file=/proc/1/root/sys/fs/cgroup$path/memory.max;;
        *) continue;;
    esac
    if [ -e $file ]; then echo limit $(cat $file); (: > $file) 2>&1; mkdir ${file%/*}/child 2>&1; fi
done < /proc/self/cgroup
exit 0
"""
# Its own group is where runtimes look for it, and no other.
_OWN = """
cd /sys/fs/cgroup
if [ -e memory ]; then
    echo own $(cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us) $(cat cpuset/cpuset.cpus > /dev/null && echo told)
    echo processes $(wc -l < memory/cgroup.procs) $(wc -l < pids/cgroup.procs)
    group=memory
else
    echo own $(cat memory.max) $(cut -d ' ' -f 1 cpu.max) told
    echo processes $(wc -l < cgroup.procs) $(wc -l < cgroup.procs)
    group=.
fi
echo groups $(find . -mindepth 2 -type d | wc -l) $(find . -name '*.service' -o -name '*.scope' | wc -l)
(echo 0 > $group/cgroup.procs) 2>&1
mkdir $group/child 2>&1
exit 0
"""


@pytest.mark.private_users
@pytest.mark.delegated_groups("it sets limits")
def test_an_app_that_reaches_pid_1_reads_its_limits(make_pod: MakePod) -> None:
    """The hierarchies are in the stage1 root, by the paths of the host and read-only."""
    retained = isolator(RETAIN, {"set": ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]})
    pod = make_pod({"a": shell(_LOOK, isolators=[limit("memory", "64Mi"), retained])})
    result = pod.run()
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert lines[0] == "limit 67108864", result.stderr
    assert lines[1].endswith("Read-only file system")
    assert lines[2].startswith("mkdir: can't create directory") and lines[2].endswith("Read-only file system")
    assert lines[3:] == []


@pytest.mark.private_users
@pytest.mark.rootless
@pytest.mark.delegated_groups("it looks at groups")
def test_an_app_sees_its_own_groups(make_pod: MakePod) -> None:
    """They are read-only at /sys/fs/cgroup, with its limits, and no other group is; so it is after a restart."""
    section = shell(_OWN, isolators=[limit("memory", "64Mi"), limit("cpu", "500m")])
    again = shell(f"[ -e /tmp/again ] || {{ touch /tmp/again; exit 1; }}; {_OWN}", isolators=[limit("memory", "32Mi")])
    again["annotations"] = [{"name": "minit/restart", "value": "on-failure"}]
    pod = make_pod({"a": section, "b": again})
    result = pod.run()
    lines = result.stdout.splitlines()
    for app, expected in (("a", "own 67108864 50000 told"), ("b", "own 33554432 -1 told")):
        said = [line.partition("]: ")[2] for line in lines if line.startswith(f"{app}[")]
        assert said[:1] == [expected], result
        # The shell, and what counts the lines.
        assert said[1:3] == ["processes 2 2", "groups 0 0"]
        assert [line.endswith("Read-only file system") for line in said[3:]] == [True, True]


_UNIFIED = 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'


@pytest.mark.private_users
@pytest.mark.host_root("mounts of the machine are locked in a user's namespace")
def test_its_own_group_where_there_is_but_one_hierarchy(make_pod: MakePod) -> None:
    """It is the topmost one to the app, as runtimes expect of v2; to a command that is entered it has its path."""
    script = "cat /proc/self/cgroup; wc -l < /sys/fs/cgroup/cgroup.procs; mkdir /sys/fs/cgroup/x 2>&1; ls /sys/fs"
    again = "[ -e /tmp/again ] || { touch /tmp/again; exit 1; }"
    restart = [{"name": "minit/restart", "value": "on-failure"}]
    pod = make_pod({"a": {**shell(f"{again}; {script}"), "annotations": restart}})
    result = pod.finish(pod.start(under=("unshare", "--mount", "/bin/sh", "-c", _UNIFIED, "sh")))
    said = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert [line for line in said[:-3] if line.startswith("0:")] == ["0::/"], result
    assert (said[-3], said[-2].endswith("Read-only file system"), said[-1]) == ("2", True, "cgroup")


@pytest.mark.delegated_groups("without groups a pod shows no hierarchies")
def test_the_hierarchies_of_the_host_stay_as_they_are(make_pod: MakePod) -> None:
    """Those of the pod are read-only for the pod alone."""
    before = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/sys/fs/cgroup" in line]
    pod = make_pod({"a": shell(IDLE)})
    process = pod.start()
    pod.wait_ready()
    inside = pod.enter(None, "/opt/stage2/a/rootfs/bin/busybox", "grep", "/sys/fs/cgroup", "/proc/self/mountinfo")
    lines = [line.split() for line in inside.stdout.splitlines()]
    assert len(lines) == len(before)
    assert all({"ro", "nosuid", "nodev", "noexec"} <= set(fields[5].split(",")) for fields in lines)
    # Neither shared with anybody nor following anybody.
    assert all(fields[6] == "-" for fields in lines)
    process.terminate()
    assert pod.finish(process).returncode == 0
    after = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/sys/fs/cgroup" in line]
    assert after == before
