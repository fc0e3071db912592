"""Helpers that `app/add` leaves behind: for apps with devices that come and go, or with health checks."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.test_launcher_execution import execution_of, offer, rights_of, words_of
from tests.contract.test_reexecution import other_tree
from tests.support.campaign import campaign
from tests.support.loopdevices import LoopDevice
from tests.support.pods import MakePod, app_section, shell
from tests.support.processes import control_groups_of, descriptors_of, status_of
from tests.support.sandbox import Sandbox
from tests.support.waiting import TIMEOUT_SECONDS, wait_for

__all__ = ["other_tree"]  # a fixture

HOTPLUG = {"name": "minit/hotplug", "value": "true"}
FOREVER = "exec sleep 1000"


def checked(script: str, *annotations: dict[str, str], **checks: dict[str, object]) -> dict[str, object]:
    """Return an app with checks, each every tenth of a second unless it says otherwise."""
    value = {kind: {"interval": "100ms", "timeout": "5s", "failures": 2, **check} for kind, check in checks.items()}
    return shell(script, annotations=[{"name": "minit/health", "value": json.dumps(value)}, *annotations])


def fine() -> dict[str, object]:
    """Return a check that is good while the app has no file /tmp/bad."""
    return {"exec": ["/bin/sh", "-c", "[ ! -e /tmp/bad ] || { echo out of order; exit 1; }"]}


def held(sandbox: Sandbox) -> list[str]:
    """Return what PID 1 holds open, one connection among it."""
    with sandbox.pod.connect() as client:
        # By the third answer it has seen that the clients before are gone.
        for _ in range(3):
            client.send(b'{"op":"ping"}')
            client.recv(1 << 16)
        targets = [target.partition(":")[0] for target in descriptors_of(sandbox.pod.pid).values()]
    return sorted(target for target in targets if not target.startswith("/rkt/minit/"))


def kinds_of_descriptors(pid: int) -> list[str]:
    """Return what a process holds open, in the order of the descriptors, without the numbers of sockets."""
    return [target.partition(":")[0] for _, target in sorted(descriptors_of(pid).items())]


def health(sandbox: Sandbox, check: str = "liveness") -> object:
    """Return whether a check of the app is good, None while that is not known."""
    app = sandbox.app("web")
    assert app is not None
    return app.get("health", {}).get(check, {}).get("healthy")


def has_ended(pidfd: int) -> bool:
    """Return whether a process has ended by now, and close its pidfd."""
    ended = bool(select.select([pidfd], [], [], 0)[0])
    os.close(pidfd)
    return ended


@pytest.mark.private_users
def test_checks_of_an_added_app(make_pod: MakePod) -> None:
    """They are made at each of its starts, what they find is known and acted on, and the pod goes on."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("web", checked(FOREVER, liveness=fine())).stdout == ""
    bad = sandbox.pod.file("web", "/tmp/bad")
    for _ in range(2):
        assert sandbox.start("web").returncode == 0
        wait_for(lambda: health(sandbox) is True, "a good result")
        bad.touch()
        assert sandbox.pod.wait_status("web") == 254
        sandbox.wait_state("web", "exited")
        record = json.loads((sandbox.pod.status_root / "rkt/minit/state/web.json").read_text())
        assert (record["end"], record["reason"]) == ("liveness check: out of order", "unhealthy")
        bad.unlink()
    assert sandbox.remove("web").returncode == 0
    assert sandbox.traces("web") == []
    assert sandbox.end().returncode == 0


def test_restarts_and_readiness_by_checks(make_pod: MakePod) -> None:
    """An app with a policy is started again when it fails a check, and others wait until it is ready by its checks."""
    sandbox = Sandbox(make_pod)
    policy = {"name": "minit/restart", "value": "always"}
    ready: dict[str, object] = {"exec": ["/bin/sh", "-c", "[ -e /tmp/up ]"]}
    assert sandbox.add("web", checked("rm -f /tmp/bad; exec sleep 1000", policy, liveness=fine(), readiness=ready))
    assert sandbox.add("next", shell(FOREVER, annotations=[{"name": "minit/after", "value": "web"}])).returncode == 0
    assert sandbox.start("web").returncode == 0
    wait_for(lambda: health(sandbox, "readiness") is False, "a result")
    assert sandbox.start("next").returncode == 254
    sandbox.pod.file("web", "/tmp/up").touch()
    wait_for(lambda: health(sandbox, "readiness") is True, "a good result")
    assert sandbox.start("next").returncode == 0
    sandbox.pod.file("web", "/tmp/bad").touch()
    wait_for(lambda: (sandbox.app("web") or {})["restarts"] == 1 and health(sandbox) is True, "a restart")
    assert sandbox.end().returncode == 0


def test_a_check_that_stops_the_pod(make_pod: MakePod) -> None:
    """The pod ends, with 0 as any mutable pod; so does the helper."""
    sandbox = Sandbox(make_pod)
    broken: dict[str, object] = {"exec": ["/bin/false"], "action": "stop-pod"}
    assert sandbox.add("web", checked(FOREVER, liveness=broken)).returncode == 0
    [helper] = map(os.pidfd_open, sandbox.helpers())
    assert sandbox.start("web").returncode == 0
    assert sandbox.pod.finish(sandbox.process).returncode == 0
    assert sandbox.pod.status("web") == 254
    select.select([helper], [], [], TIMEOUT_SECONDS)
    assert has_ended(helper)


@pytest.mark.private_users
def test_what_a_helper_has(make_pod: MakePod) -> None:
    """Nothing of who added the app: a session of its own, its streams, and the control groups of the launcher."""
    sandbox = Sandbox(make_pod)
    # Who adds it is in other groups, of the pod as it happens.
    groups = " ".join(f"'{top}/init.scope/cgroup.procs'" for top in sandbox.pod.control_groups())
    under = ("/bin/sh", "-c", f'for group in {groups}; do echo $$ > $group; done; exec "$@"', "sh")
    assert sandbox.add("web", checked(FOREVER, liveness=fine()), under=under).returncode == 0
    [helper] = sandbox.helpers()
    # While it asks PID 1 what the app does it has a socket more.
    kinds = sorted(["/dev/null", "/dev/null", "socket", "/", "/usr/lib/minit/bin/minit", "pipe", "socket"])
    wait_for(lambda: sorted(kinds_of_descriptors(helper)) == kinds, "a helper at rest")
    assert os.getsid(helper) == helper
    assert control_groups_of(helper) == control_groups_of(sandbox.process.pid)
    assert sandbox.remove("web").returncode == 0
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_a_helper_ends_with_its_app(make_pod: MakePod, stopped: bool) -> None:
    """When `app/rm` returns it is gone, even if it was stopped, and PID 1 holds nothing of it."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("plain", shell("true")).returncode == 0
    before = held(sandbox)
    assert sandbox.add("other", checked(FOREVER, liveness=fine())).returncode == 0
    [other] = sandbox.helpers()
    assert sandbox.add("web", checked(FOREVER, liveness={"exec": ["/bin/sleep", "1234"]})).returncode == 0
    [helper] = set(sandbox.helpers()) - {other}
    assert sandbox.start("web").returncode == 0
    if stopped:
        os.kill(helper, signal.SIGSTOP)
    pidfd = os.pidfd_open(helper)
    assert sandbox.remove("web").returncode == 0
    assert has_ended(pidfd)
    assert sandbox.helpers() == [other]
    assert sandbox.remove("other").returncode == 0
    assert sandbox.helpers() == []
    assert held(sandbox) == before
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_helpers_end_with_the_launcher(make_pod: MakePod, loop: LoopDevice, number: int, stopped: bool) -> None:
    """However that ends, and even if they were stopped."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("web", checked(FOREVER, liveness=fine())).returncode == 0
    assert sandbox.add("disk", following(loop)).returncode == 0
    pids = [*sandbox.helpers(), *sandbox.helpers("minit-devices")]
    assert len(pids) == 2
    pidfds = [os.pidfd_open(pid) for pid in pids]
    for pid in pids if stopped else ():
        os.kill(pid, signal.SIGSTOP)
    sandbox.process.send_signal(number)
    sandbox.process.wait()
    for pidfd in pidfds:
        select.select([pidfd], [], [], TIMEOUT_SECONDS)
    assert all(map(has_ended, pidfds))


@pytest.mark.private_users
def test_a_failed_add_leaves_no_helper(make_pod: MakePod, loop: LoopDevice) -> None:
    """Its helper ends in any case, seen by PID 1 or not."""
    sandbox = Sandbox(make_pod)
    mounts = [
        {"path": "/v", "volume": "d", "appVolume": {"name": "d", "kind": "host", "source": str(loop.path)}},
        {"path": "/etc/passwd/x", "volume": "v", "appVolume": {"name": "v", "kind": "empty"}},
    ]
    section = checked("true", HOTPLUG, liveness=fine())
    result = sandbox.add("web", {**section, "mounts": mounts})
    assert result.returncode == 254
    assert result.stdout.count("\n") == 1, result.stdout
    assert sandbox.helpers() == sandbox.helpers("minit-devices") == []
    assert sandbox.remove("web").returncode == 0
    assert sandbox.end().returncode == 0


def test_a_helper_that_is_killed(make_pod: MakePod) -> None:
    """The pod goes on without, which PID 1 says."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("web", checked(FOREVER, liveness=fine())).returncode == 0
    [helper] = sandbox.helpers()
    os.kill(helper, signal.SIGKILL)
    sandbox.pod.wait_event("app.helper-died", "web")
    assert sandbox.start("web").returncode == 0
    assert sandbox.remove("web").returncode == 0
    said = 'stage1: warning: app "web": its health is not checked any more: the process that did it died\n'
    assert said in sandbox.end().stderr


def deaths(sandbox: Sandbox) -> int:
    """Return how many deaths of helpers the pod has told."""
    return sum(event["event"] == "app.helper-died" for event in sandbox.pod.events())


@contextmanager
def in_new_program(*helpers: int) -> Iterator[None]:
    """Wait, after an upgrade, for new programs of helpers."""
    before = {helper: (execution_of(helper), words_of(helper)) for helper in helpers}
    yield
    for helper, (execution, words) in before.items():
        wait_for(lambda: execution_of(helper) != execution, "the new program")  # noqa: B023
        wait_for(lambda: words_of(helper) == words, "the words of the helper")  # noqa: B023


@pytest.mark.private_users
def test_helpers_of_an_upgraded_pod(
    make_pod: MakePod, private_users: tuple[int, int] | None, loop: LoopDevice, other_tree: Path
) -> None:
    """The same processes go on in the new program with what they know, tell PID 1, and still end with their apps."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("web", checked(FOREVER, liveness={**fine(), "action": "none"})).returncode == 0
    assert sandbox.add("disk", following(loop)).returncode == 0
    [health_helper], [device_helper] = sandbox.helpers(), sandbox.helpers("minit-devices")
    assert [sandbox.start(name).returncode for name in ("web", "disk")] == [0, 0]
    wait_for(lambda: health(sandbox) is True, "a good result")
    before = rights_of(health_helper), rights_of(device_helper)
    bad = sandbox.pod.file("web", "/tmp/bad")
    for tree in (None, other_tree if private_users is None else None, None):
        with in_new_program(health_helper, device_helper):
            offer(sandbox.pod, tree)
        assert (rights_of(health_helper), rights_of(device_helper)) == before
        bad.touch()
        wait_for(lambda: health(sandbox) is False, "a bad result")
        loop.remove()
        wait_for(lambda: not is_there(sandbox, "disk"), "the device to be gone")
        with in_new_program(health_helper, device_helper):
            offer(sandbox.pod, tree)
        bad.unlink()
        wait_for(lambda: health(sandbox) is True, "a good result")
        loop.add()
        wait_for(lambda: is_there(sandbox, "disk"), "the device to be back")
    pidfds = [os.pidfd_open(pid) for pid in (health_helper, device_helper)]
    # Nothing but the pipe of PID 1 ends a helper that is stopped.
    os.kill(health_helper, signal.SIGSTOP)
    assert [sandbox.remove(name).returncode for name in ("web", "disk")] == [0, 0]
    assert all(map(has_ended, pidfds))
    assert sandbox.end().stderr.count("goes on in the old version") == 0


def test_a_helper_that_is_killed_while_upgraded(make_pod: MakePod) -> None:
    """At any moment its end is an event and a line, once, and the pod goes on."""
    sandbox = Sandbox(make_pod)
    for sample in range(campaign(5)):
        assert sandbox.add("web", checked(FOREVER, liveness=fine())).returncode == 0
        [helper] = sandbox.helpers()
        offer(sandbox.pod)
        time.sleep(sample * 0.008)
        os.kill(helper, signal.SIGKILL)
        wait_for(lambda: deaths(sandbox) == sample + 1, "the event")  # noqa: B023
        assert sandbox.start("web").returncode == 0
        assert sandbox.remove("web").returncode == 0
    assert deaths(sandbox) == campaign(5)
    said = 'stage1: warning: app "web": its health is not checked any more: the process that did it died\n'
    assert sandbox.end().stderr.count(said) == campaign(5)


@pytest.mark.private_users
def test_a_helper_executes_no_program_of_another_user(make_pod: MakePod, tmp_path: Path) -> None:
    """A program that root of a pod's user namespace could have made is refused by the helper itself, with a line."""
    files = tmp_path / "rootfs/usr/lib/minit"
    sandbox = Sandbox(make_pod)
    shutil.copytree(sandbox.pod.tree / "rootfs/usr/lib/minit", files, symlinks=True)
    os.chown(files / "bin/minit", 65534, 0)
    assert sandbox.add("web", checked(FOREVER, liveness=fine())).returncode == 0
    [helper] = sandbox.helpers()
    assert sandbox.start("web").returncode == 0
    before = execution_of(helper)
    offer(sandbox.pod, tmp_path)
    wait_for(lambda: health(sandbox) is True, "a good result")
    # The answer is behind the refusal.
    sandbox.pod.file("web", "/tmp/bad").touch()
    assert sandbox.pod.wait_status("web") == 254
    assert execution_of(helper) == before
    said = "stage1: the health helper goes on in the old version of minit: the program is not the own user's\n"
    assert sandbox.end().stderr.count(said) == 1


def test_a_helper_idles(make_pod: MakePod) -> None:
    """While its app does not run, before its first start or after its end, nothing wakes it up."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("web", checked("exit 0", liveness=fine())).returncode == 0
    [helper] = sandbox.helpers()

    def switches() -> str:
        return status_of(helper)["voluntary_ctxt_switches"]

    def after_a_second() -> str:
        time.sleep(1)
        return switches()

    wait_for(lambda: switches() == after_a_second(), "a second without a wake-up")
    assert sandbox.start("web").returncode == 0
    sandbox.wait_state("web", "exited")
    wait_for(lambda: switches() == after_a_second(), "a second without a wake-up")
    assert sandbox.end().returncode == 0


def test_apps_without_need_none(make_pod: MakePod, loop: LoopDevice) -> None:
    """No process stays for an app without checks, or whose devices stay as they are."""
    sandbox = Sandbox(make_pod)
    section = {**following(loop), "annotations": []}
    assert sandbox.add("disk", section).returncode == 0
    assert sandbox.helpers() == sandbox.helpers("minit-devices") == []
    assert sandbox.end().returncode == 0


def following(loop: LoopDevice) -> dict[str, object]:
    """Return an app with a device that comes and goes."""
    volume = {"name": "d", "kind": "host", "source": str(loop.path)}
    mounts = [{"path": "/v", "volume": "d", "appVolume": volume}]
    return app_section("/bin/sh", "-c", FOREVER, mounts=mounts, annotations=[HOTPLUG])


@pytest.mark.private_users
def test_devices_of_an_added_app(make_pod: MakePod, loop: LoopDevice) -> None:
    """They disappear from it and return with their rule, before its first start, while it runs and after its end."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("web", following(loop), "--debug=true").returncode == 0
    assert len(sandbox.helpers("minit-devices")) == 1

    def come_and_go() -> None:
        loop.remove()
        wait_for(lambda: not is_there(sandbox), "the device to be gone")
        loop.add()
        wait_for(lambda: is_there(sandbox), "the device to be back")

    come_and_go()
    assert sandbox.start("web").returncode == 0
    come_and_go()
    assert sandbox.pod.enter("web", "/bin/guest", "may", "/v").returncode == 0
    assert sandbox.stop("web").returncode == 0
    come_and_go()
    assert sandbox.start("web").returncode == 0
    assert sandbox.pod.enter("web", "/bin/guest", "may", "/v").returncode == 0
    assert sandbox.remove("web").returncode == 0
    assert sandbox.helpers("minit-devices") == []
    assert sandbox.traces("web") == []
    said = sandbox.end().stderr
    assert f"stage1: app web: gone: device {loop.path}: b " in said


def is_there(sandbox: Sandbox, app: str = "web") -> bool:
    """Return whether an app has a block device at /v."""
    return sandbox.pod.enter(app, "/bin/sh", "-c", "[ -b /v ]").returncode == 0
