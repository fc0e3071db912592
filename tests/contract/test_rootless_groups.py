"""Pods of a user without root, by the control groups that root has delegated to the user: all, some, or none."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.image.dump.program import obstacle
from tests.contract.test_rootless import make_home
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.stage0_world import write_app
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

IMAGE = f"{HOME}/box.aci"
POD = ("--net=none", f"--stage1-path={HOME}/stage1.aci")
NONE = "warning: no control group is delegated to you"
FOREVER = "while :; do busybox sleep 0.05; done"


@pytest.fixture(scope="module")
def none(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user to whom no control group is delegated."""
    user = make_home(tmp_path_factory.mktemp("user"), stage1_image, has_groups=False)
    yield user
    user.remove()


@pytest.fixture
def alone(none: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user, whose pods are removed after the test, and with them every process."""
    yield none
    none.remove_pods()


def shell(user: OrdinaryUser, script: str, *flags: str, app: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script as the app of a pod to its end."""
    return user.minit("run", *POD, *flags, IMAGE, *app, "--", "-c", script)


def start(user: OrdinaryUser, name: str, script: str, *flags: str, app: tuple[str, ...] = ()) -> None:
    """Start a script as the app of a pod with a name, and wait for what it says first."""
    done = user.minit("run", "--detach", f"--name={name}", *POD, *flags, IMAGE, *app, "--", "-c", script)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: user.minit("logs", name).stdout != "", "the first word")


def said(text: str) -> list[str]:
    """Return what apps have said, without their names."""
    return [line.partition("]: ")[2] for line in text.splitlines()]


@pytest.mark.parametrize(("script", "code"), [("exit 42", 42), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_an_end_without_groups(alone: OrdinaryUser, script: str, code: int) -> None:
    """The exit code is that of everywhere, also for a signal without a handler, and the first line says why."""
    done = shell(alone, script)
    assert done.returncode == code, done.stderr
    assert f"stage1: {NONE}" in done.stderr


@pytest.mark.skipif(obstacle() is not None, reason="this Python cannot be dumped")
def test_the_first_process_of_an_app_has_next_to_no_memory(alone: OrdinaryUser) -> None:
    """The memory that the first process shared with PID 1 before PID 1 wrote there is given back."""
    start(alone, "box", f"echo up; {FOREVER}")
    [pid] = [pid for pid, name in alone.processes().items() if name.startswith("init-")]
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [private] = [int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty:")]
    assert private <= 300  # KiB


SLOW = "trap '' TERM; echo up; while :; do busybox sleep 1; done"
DAEMONS = 20
FORKING = """
echo 'busybox sleep 0.01; busybox setsid sh /chain &' > /chain
for _ in 1 2 3; do busybox setsid sh /chain & done
i=0; while [ $i -lt %d ]; do i=$((i + 1)); (busybox setsid busybox sleep 7777 &); done
trap '' TERM; echo up; while :; do busybox sleep 1; done
"""


def test_nothing_outlives_a_stop(alone: OrdinaryUser) -> None:
    """Daemons that left the app's session, deaf to signals or forking without end, are gone after a stop of the app."""
    sandbox(alone, "box")
    add(alone, "box", "one", FORKING % DAEMONS)
    assert alone.minit("app", "start", "--app=one", "box").returncode == 0
    wait_for(lambda: "up" in alone.minit("logs", "box").stdout, "the first word")

    def programs() -> list[int]:
        return [pid for pid, name in alone.processes().items() if name in ("busybox", "sh")]

    assert len(programs()) > DAEMONS
    assert alone.minit("app", "stop", "--app=one", "--timeout=1s", "box").returncode == 0
    assert not programs()


def sandbox(user: OrdinaryUser, name: str) -> None:
    """Start a pod that apps can be added to."""
    done = user.minit("app", "sandbox", "--detach", f"--name={name}", *POD)
    assert done.returncode == 0, done.stderr


def add(user: OrdinaryUser, pod: str, name: str, script: str) -> None:
    """Add a script as an app to a pod."""
    done = user.minit("app", "add", pod, IMAGE, f"--name={name}", "--exec=/bin/sh", "--", "-c", script)
    assert done.returncode == 0, done.stderr


def test_a_stop_with_grace(alone: OrdinaryUser) -> None:
    """The stop signal reaches every process of the app, and the exit code is the app's own."""
    wait = "while :; do read -t 1 _ <> /fifo; done"
    script = f"busybox mkfifo /fifo; (trap 'echo child; exit' TERM; {wait}) & trap 'wait; exit 7' TERM; echo up; {wait}"
    start(alone, "web", script)
    assert alone.minit("stop", "web").returncode == 0
    assert alone.minit("logs", "web").stdout.split() == ["up", "child"]
    assert "app-busybox=7" in alone.minit("status", "web").stdout


def test_a_command_enters(alone: OrdinaryUser) -> None:
    """A command sees the processes of the app, and none of another app, with its own exit code."""
    start(alone, "web", f"echo up; {FOREVER}")
    look = "busybox ps -o comm,pid; exit 5"
    done = alone.minit("enter", "web", "/bin/sh", "-c", look)
    assert done.returncode == 5
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert names.count("init-busybox") == 1 and "minit" not in names


def test_a_command_with_a_time_limit(alone: OrdinaryUser) -> None:
    """Of a command whose time is over nothing is left, a daemon in a session of its own included, but the app is."""
    start(alone, "web", f"echo up; {FOREVER}")
    script = "(busybox setsid busybox sleep 7777 &); busybox sleep 1000"
    done = alone.minit("enter", "--timeout=2s", "web", "/bin/sh", "-c", script)
    assert done.returncode == 124, done.stderr
    left = alone.minit("enter", "web", "busybox", "ps").stdout
    assert "7777" not in left and "sleep" in left
    assert alone.minit("enter", "--timeout=100s", "web", "/bin/sh", "-c", "kill -TERM $$").returncode == -15


def test_an_app_starts_again(alone: OrdinaryUser) -> None:
    """Each start of an app has a new namespace, with a /proc of its own, and a daemon of the start before is gone."""
    look = (
        "busybox ls -d /proc/[0-9]* | busybox wc -l; (busybox setsid busybox sleep 7777 &); busybox sleep 0.2; exit 3"
    )
    done = shell(alone, look, app=("--restart=on-failure:2", "--stop-timeout=1"))
    assert done.returncode == 3, done.stderr
    counts = [line for line in said(done.stdout) if line.isdigit()]
    # The first process, the shell, ls and wc.
    assert len(counts) == 3 and all(int(count) <= 4 for count in counts)


def test_handlers_without_groups(alone: OrdinaryUser) -> None:
    """A pre-start handler runs before the app, nothing of it is left, and a post-stop handler runs after a kill."""
    after = "/bin/busybox ls -d /proc/self/fd"
    handlers = [
        {"name": "pre-start", "exec": ["/bin/sh", "/daemon"]},
        {"name": "post-stop", "exec": ["/bin/sh", "-c", f"echo after $$; {after}"]},
    ]
    app = {"exec": ["/bin/sh", "-c", SLOW], "user": "0", "group": "0", "eventHandlers": handlers}
    write_app(alone.home / "handled.aci", app=app, files={"daemon": b"busybox setsid busybox sleep 7777 & echo before"})
    os.chown(alone.home / "handled.aci", alone.uid, alone.uid)
    words = ("--detach", "--name=web", *POD, f"{HOME}/handled.aci", "--stop-timeout=1")
    assert alone.minit("run", *words).returncode == 0
    wait_for(lambda: "up" in alone.minit("logs", "web").stdout, "the start")
    assert "7777" not in alone.minit("enter", "web", "busybox", "ps").stdout
    assert alone.minit("stop", "web").returncode == 0
    lines = alone.minit("logs", "web").stdout.splitlines()
    assert lines[:2] == ["before", "up"] and lines[2].startswith("after ") and lines[3] == "/proc/self/fd"


def test_use_without_groups(alone: OrdinaryUser) -> None:
    """The statistics are sums over the processes of the pod, and of the app."""
    count = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"
    start(alone, "web", f"{count}; busybox sleep 1000 & echo up; {FOREVER}")
    [pod] = [json.loads(line) for line in alone.minit("stats", "--format=json", "web").stdout.splitlines()]
    [app] = pod["apps"]
    assert pod["pod"]["memory_bytes"] > app["memory_bytes"] > 0
    assert pod["pod"]["processes"] > app["processes"] >= 2
    assert app["cpu_ns"] > 0
    assert [line.split("\t")[3] for line in alone.minit("stats", "web").stdout.splitlines()].count("--") == 0
    report = json.loads(alone.minit("diagnose", "--format=json", "web").stdout)
    assert report["pod"]["delegated_groups"].startswith("no control group is delegated")
    assert any(line.endswith(" init-busybox") for line in report["processes"])


def test_what_needs_groups_is_refused(alone: OrdinaryUser) -> None:
    """Limits, pause, hotplug and a volume at /proc are refused in a line with the reason."""
    for limit in ("--memory=64M", "--pids-limit=10"):
        done = shell(alone, "true", app=(limit,))
        lines = [line for line in done.stderr.splitlines() if "control groups" in line]
        assert done.returncode == 254 and len(lines) == 1, done.stderr
        assert 'app "busybox": limits need control groups' in lines[0]
    for pod, app, kind in (
        ((), ("--annotation=minit/hotplug=true",), "an app with minit/hotplug"),
        (("--volume=p,kind=host,source=/proc",), ("--mount=volume=p,target=/proc",), "an app with a volume at /proc"),
    ):
        done = shell(alone, "true", *pod, app=app)
        lines = [line for line in done.stderr.splitlines() if line.startswith("stage1: ")]
        assert done.returncode == 254 and len(lines) == 1, done.stderr
        assert f"{kind} needs control groups, and none are delegated to you" in lines[0]
    start(alone, "web", f"echo up; {FOREVER}")
    for words, problem in (
        (("app", "pause", "--app=busybox", "web"), "it has no control groups"),
        (("app", "update", "--app=busybox", "--memory=64M", "web"), "no control group is delegated to you"),
    ):
        done = alone.minit(*words)
        assert done.returncode == 254 and problem in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_apps_of_a_mutable_pod(alone: OrdinaryUser) -> None:
    """An app is added, started, stopped, started again and removed, and sees no process of its neighbour."""
    sandbox(alone, "box")
    for name in ("one", "two"):
        add(alone, "box", name, f"echo up; {FOREVER}")
        assert alone.minit("app", "start", f"--app={name}", "box").returncode == 0
    assert alone.minit("app", "stop", "--app=one", "box").returncode == 0
    assert alone.minit("app", "start", "--app=one", "box").returncode == 0
    seen = alone.minit("enter", "--app=one", "box", "busybox", "ps", "-o", "comm").stdout.split()
    assert "init-one" in seen and "init-two" not in seen
    for words in ("stop", "--app=two"), ("rm", "--app=two"), ("stop", "--app=one"):
        done = alone.minit("app", *words, "box")
        assert done.returncode == 0, done.stderr


SOME = ("name=systemd", "memory")


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user to whom some hierarchies are delegated."""
    user = make_home(tmp_path_factory.mktemp("partial"), stage1_image, delegated=SOME)
    yield user
    user.remove()


@pytest.fixture
def partly(partial: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user, whose pods are removed after the test, and with them every process."""
    yield partial
    partial.remove_pods()


def test_delegated_hierarchies(partly: OrdinaryUser) -> None:
    """A pod has groups in the delegated hierarchies alone, with limits there, and is gone from these at its end."""
    start(partly, "web", f"echo up; {FOREVER}", app=("--memory=64Mi",))
    own = partly.run("sh", "-c", "find /sys/fs/cgroup -name busybox.service -user $(id -u)").stdout.split()
    assert {path.split("/")[4] for path in own} == {"systemd", "memory"}
    limits = [Path(path, "memory.limit_in_bytes") for path in own if "/memory/" in path]
    assert [limit.read_text().strip() for limit in limits] == [str(64 << 20)]
    assert partly.minit("app", "update", "--app=busybox", "--memory=32Mi", "web").returncode == 0
    assert [limit.read_text().strip() for limit in limits] == [str(32 << 20)]
    assert partly.minit("enter", "web", "busybox", "true").returncode == 0
    told = json.loads(partly.minit("diagnose", "--format=json", "web").stdout)["pod"]["delegated_groups"]
    delegated, _, others = told.partition("; not delegated: ")
    assert delegated == "groups delegated to the user: memory" and {"cpu", "pids"} <= {*others.split()}
    assert partly.minit("stop", "web").returncode == 0
    assert partly.minit("rm", "web").returncode == 0
    assert not any(Path(path).exists() for path in own)


IN_SCOPE = r"""
for part in systemd memory; do
    own=$(sed -n "s/^[0-9]*:\(name=\)\?$part://p" /proc/self/cgroup)
    mkdir "/sys/fs/cgroup/$part$own/user@7.service"
    echo $$ > "/sys/fs/cgroup/$part$own/user@7.service/cgroup.procs"
done
exec "$@"
"""


def test_the_surrounding_of_systemd_is_told(partly: OrdinaryUser) -> None:
    """A pod below the service of a user's systemd is in a scope of that, with other controllers than the machine's."""
    words = ("run", "--detach", "--name=web", *POD, IMAGE, "--", "-c", FOREVER)
    done = partly.run("sh", "-ec", IN_SCOPE, "-", *partly.minit_words(*words))
    assert done.returncode == 0, done.stderr
    told = json.loads(partly.minit("diagnose", "--format=json", "web").stdout)["pod"]["delegated_groups"]
    assert told.startswith("a scope of the user's systemd: memory; not delegated: ")


def test_what_is_not_delegated_is_refused(partly: OrdinaryUser) -> None:
    """A limit of a controller that root has not delegated is refused with the controller's name."""
    for app, controller in ((("--cpu=500m",), "cpu"), (("--pids-limit=10",), "pids"), (("--cpuset-cpus=0",), "cpuset")):
        done = shell(partly, "true", app=app)
        problem = (
            f'app "busybox": no limit of {controller}: its control group is not delegated to you (delegated: memory; '
        )
        lines = [line for line in done.stderr.splitlines() if problem in line]
        assert done.returncode == 254 and len(lines) == 1, done.stderr
    start(partly, "web", f"echo up; {FOREVER}")
    for words, problem in (
        (("app", "pause", "--app=busybox", "web"), "have no freezer"),
        (("app", "update", "--app=busybox", "--cpu=1", "web"), "no controller cpu: none is delegated to you"),
    ):
        done = partly.minit(*words)
        assert done.returncode == 254 and problem in done.stderr and done.stderr.count("\n") == 1, done.stderr


STAND_IN = f"""#!/bin/sh
echo "$$ $*" >> {HOME}/scopes
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def managed(alone: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user, with a socket of a service manager, and a stand-in for systemd-run that makes no scope."""
    programs, systemd = alone.home / "bin", alone.home / "run" / "systemd"
    for path in (programs, systemd):
        path.mkdir()
    program = programs / "systemd-run"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(systemd, os.O_PATH)
        # A socket's path must be short.
        listener.bind(f"/proc/self/fd/{here}/private")
        os.close(here)
        listener.listen(64)
        for path in (programs, program, systemd, systemd / "private"):
            os.chown(path, alone.uid, alone.uid)
        before = alone.environment["PATH"]
        alone.environment["PATH"] = f"{HOME}/bin:{before}"
        yield alone
        alone.environment["PATH"] = before
    for path in (programs, systemd):
        shutil.rmtree(path)


def test_a_scope_of_systemd(managed: OrdinaryUser) -> None:
    """Commands with processes in a pod go through systemd-run once, as the same process, and others do not."""
    words = managed.minit_words("run", *POD, IMAGE, "--", "-c", "exit 5")
    done = managed.run("sh", "-c", 'echo $$; exec "$@"', "-", *words)
    assert done.returncode == 5, done.stderr
    scopes = managed.home / "scopes"
    [line] = scopes.read_text().splitlines()
    pid = done.stdout.splitlines()[0]
    assert line.startswith(f"{pid} --user --scope --quiet --collect --property=Delegate=yes -- ")
    assert line.endswith(f" -m minit run {' '.join(POD)} {IMAGE} -- -c exit 5")
    assert managed.minit("list").returncode == 0
    assert managed.minit("gc").returncode == 0
    assert len(scopes.read_text().splitlines()) == 1
