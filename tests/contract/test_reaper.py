"""PID 1 reaps everybody's orphans and loses nobody's status."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.campaign import campaign
from tests.support.pods import MakePod, PodDirectory, guest, shell
from tests.support.processes import children_of, status_of
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"


def zombies(pod: PodDirectory) -> list[int]:
    """Return the dead children that PID 1 has not reaped."""
    found = []
    for pid in children_of(pod.pid):
        try:
            if status_of(pid)["State"].startswith("Z"):
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_two_thousand_orphans_leave_no_zombie(make_pod: MakePod) -> None:
    """In bursts of 250 and one by one; those of a running app are reaped while it runs."""
    bursts, singles = campaign(1500), campaign(500)
    script = f"/bin/guest orphans {bursts} 250; /bin/guest orphans {singles} 1; touch /tmp/done; {FOREVER}"
    pod = make_pod({"a": shell(script)})
    process = pod.start()
    pod.wait_file("a", "/tmp/done")
    wait_for(lambda: not zombies(pod), "the last zombie's end")
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


@pytest.mark.delegated_groups("without groups the kernel reaps orphans")
def test_deaths_that_pid_1_slept_through(make_pod: MakePod) -> None:
    """A thousand of them make one SIGCHLD; all are reaped for it, and the next status is not late."""
    wait = "while [ ! -e /tmp/go ]; do :; done"
    pod = make_pod({"a": shell(f"{wait}; /bin/guest orphans 1000 500; touch /tmp/done; {FOREVER}")})
    process = pod.start()
    pod.wait_ready()
    os.kill(pod.pid, signal.SIGSTOP)
    pod.file("a", "/tmp/go").touch()
    pod.wait_file("a", "/tmp/done")
    wait_for(lambda: len(zombies(pod)) >= 1000, "a thousand zombies")
    os.kill(pod.pid, signal.SIGCONT)
    wait_for(lambda: not zombies(pod), "the last zombie's end")
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


def test_no_status_is_lost_in_a_storm_of_orphans(make_pod: MakePod) -> None:
    """Sixty-four apps that end while 2,000 orphans do have their own codes."""
    apps = {f"a{code}": guest("meet", "65", "exit", str(code)) for code in range(64)}
    storm = shell(f"trap '' TERM; touch /dev/shm/storm; /bin/guest orphans {campaign(2000)} 100; exit 99")
    pod = make_pod({**apps, "storm": storm})
    result = pod.run()
    assert {app: pod.status(app) for app in apps} == {f"a{code}": code for code in range(64)}
    assert pod.status("storm") is not None
    assert 0 < result.returncode < 64 or result.returncode == 99


def test_the_status_of_an_app_that_made_the_orphans(make_pod: MakePod) -> None:
    """Its own exit comes in the middle of theirs."""
    pod = make_pod({"a": guest("orphans", "2000", "200")})
    assert pod.run().returncode == 7
    assert pod.status("a") == 7


def test_the_control_socket_answers_during_a_storm(make_pod: MakePod) -> None:
    """Reaping is done in batches, so that others get their turn."""
    pod = make_pod({"a": shell(f"while [ ! -e /tmp/stop ]; do /bin/guest orphans 1000 500; done; {FOREVER}")})
    process = pod.start()
    pod.wait_ready()
    delays = []
    for _ in range(50):
        before = time.monotonic()
        assert pod.ask({"op": "ping"})["ok"]
        delays.append(time.monotonic() - before)
    assert sorted(delays)[-3] < 60, "even with all processors busy"
    pod.file("a", "/tmp/stop").touch()
    pod.stop()
    assert pod.finish(process).returncode == 0
