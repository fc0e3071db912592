"""A machine's clock and servers of NTP on the addresses of a loopback; the clock is one of the test's own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.machine.clock import KernelClock
from minit.machine.timeclient import TimeClient
from minit.manifest.machineconfig import Clock
from tests.support.dnsserver import NO_SUCH_NAME, DnsServer
from tests.support.ntpserver import NtpServer, answer

DAY = 24 * 3600.0
USUAL = Clock()
HERE, THERE, ELSEWHERE = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class OwnClock(KernelClock):
    """A clock that is behind that of this machine by `lag`, and notes how it is set."""

    def __init__(self, lag: float = 0.0) -> None:
        self.lag = lag
        self.done: list[str] = []

    def now(self) -> float:
        """Return its time."""
        return time.time() - self.lag

    def slew(self, offset_seconds: float, poll_seconds: float) -> None:
        """Be right at once, for a test has no time."""
        self.done.append("slew")
        self.lag -= offset_seconds

    def step(self, offset_seconds: float) -> None:
        """Be right."""
        self.done.append("step")
        self.lag -= offset_seconds

    def keep(self) -> None:
        """Have no chip."""
        self.done.append("keep")
        raise FileNotFoundError


def built() -> float:
    """Return the time of an image of a week ago."""
    return time.time() - 7 * DAY


def follow(client: TimeClient, until: Callable[[], object]) -> None:
    """Have the client do what is due until something is so."""
    end = time.monotonic() + 90
    client.turn()
    while not until():
        assert time.monotonic() < end
        wait_readable(client.filenos(), 0.05)
        client.turn()


@pytest.fixture
def servers() -> Iterator[list[NtpServer]]:
    """Three servers with the right time."""
    with ExitStack() as stack:
        yield [stack.enter_context(NtpServer(address)) for address in (HERE, THERE, ELSEWHERE)]


def make(clock: OwnClock, *addresses: str, is_lost: bool = False, config: Clock = USUAL) -> TimeClient:
    """Return a client of these servers."""
    return TimeClient(config, built(), is_lost, lambda: addresses, clock)


def test_a_lost_clock_steps(servers: list[NtpServer], capfd: pytest.CaptureFixture[str]) -> None:
    """A clock at the image's time is set by a week at once, which is said, and then follows slowly."""
    clock = OwnClock(7 * DAY)
    client = make(clock, HERE, is_lost=True)
    follow(client, lambda: client.is_set)
    assert clock.done == ["step", "keep"] and abs(clock.lag) < 5
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("minit: clock: now it is 20") and line.endswith(f"(+{7 * DAY:.1f} s), by {HERE}")
    assert client.deadline is not None and 10 < client.deadline - time.monotonic() < 20
    clock.lag += 0.1
    ask_again(client, clock, 3)
    assert clock.done == ["step", "keep", "slew"] and abs(clock.lag) < 0.1
    assert capfd.readouterr().err == ""


def ask_again(client: TimeClient, clock: OwnClock, count: int) -> None:
    """Let the time of the next question come, until so much was done."""
    client.ask()
    follow(client, lambda: len(clock.done) >= count)


@pytest.mark.parametrize(
    ("offset", "is_lost", "reason"),
    [
        (25 * 365 * DAY, True, "more than first_step_days after the time of the image"),
        (25 * 365 * DAY, False, "more than maximum_step_seconds away"),
        (2 * DAY, False, "more than maximum_step_seconds away"),
        (-20 * DAY, True, "before the time of the image"),
    ],
)
def test_a_server_from_another_time(
    servers: list[NtpServer], capfd: pytest.CaptureFixture[str], offset: float, is_lost: bool, reason: str
) -> None:
    """A time out of bounds does nothing but a line on the console."""
    servers[0].offset_seconds = offset
    clock = OwnClock()
    client = make(clock, HERE, is_lost=is_lost)
    follow(client, lambda: client.deadline and client.deadline > time.monotonic() + 5)
    assert (clock.done, client.is_set) == ([], False)
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"minit: clock: {HERE} says 20") and line.endswith(reason)


def test_steps_do_not_add_up(servers: list[NtpServer], capfd: pytest.CaptureFixture[str]) -> None:
    """A clock that has been set once is moved by no more than the bound in all, in however many steps."""
    clock = OwnClock(7 * DAY)
    client = make(clock, HERE, is_lost=True, config=Clock(maximum_step_seconds=3600))
    follow(client, lambda: client.is_set)
    servers[0].offset_seconds = 3000.0
    ask_again(client, clock, 3)
    assert clock.done[2] == "step"
    servers[0].offset_seconds = 6000.0
    client.ask()
    follow(client, lambda: "maximum_step_seconds" in capfd.readouterr().err)
    assert abs(clock.lag + 3000.0) < 5


def test_who_is_not_believed(servers: list[NtpServer]) -> None:
    """Answers of somebody who has not seen the question, or with no good clock, are passed over for the true one."""

    def tell(question: bytes) -> list[bytes]:
        wrong = time.time() + 3600
        blind = answer(question[:40] + bytes(8), wrong)
        return [blind, blind[:20], b"", answer(question, wrong, first=0xE4), *servers[0].truth(question)]

    servers[0].reply = tell
    clock = OwnClock(60.0)
    client = make(clock, HERE)
    follow(client, lambda: client.is_set)
    assert abs(clock.lag) < 5
    servers[0].reply = servers[0].truth
    ask_again(client, clock, 3)
    [first, second] = servers[0].asked
    assert first != second, "each question has a port of its own"


def test_servers_that_do_not_agree(servers: list[NtpServer], capfd: pytest.CaptureFixture[str]) -> None:
    """One liar of three is outvoted; of two nobody is believed."""
    servers[0].offset_seconds = 3600.0
    clock = OwnClock(60.0)
    client = make(clock, HERE, THERE)
    follow(client, lambda: f"{HERE}, {THERE} do not agree about the time" in capfd.readouterr().err)
    assert clock.done == []
    client = make(clock, HERE, THERE, ELSEWHERE)
    follow(client, lambda: client.is_set)
    assert abs(clock.lag) < 5


def test_a_server_that_wants_no_clients(servers: list[NtpServer]) -> None:
    """One that denies is never asked again, one that is asked too often only at the longest interval."""
    servers[0].reply = lambda question: [answer(question, 0.0, stratum=0, identifier=b"DENY")]
    servers[1].reply = lambda question: [answer(question, 0.0, stratum=0, identifier=b"RATE")]
    clock = OwnClock(60.0)
    client = make(clock, HERE, THERE, ELSEWHERE)
    follow(client, lambda: client.is_set)
    assert client.deadline is not None and client.deadline > time.monotonic() + 900
    ask_again(client, clock, 3)
    assert [len(server.asked) for server in servers] == [1, 2, 2]


def test_servers_come_with_a_lease(servers: list[NtpServer]) -> None:
    """Without a server nothing is due; one that a network names is asked at once, and rarely if it is silent."""
    names: list[str] = []
    clock = OwnClock(60.0)
    client = TimeClient(Clock(), built(), False, lambda: names, clock)
    client.turn()
    assert client.deadline is None and client.filenos() == []
    servers[0].reply = lambda question: []
    names.append(HERE)
    follow(client, lambda: client.deadline and client.deadline > time.monotonic() + 10)
    names[:] = ["127.0.0.9"]
    follow(client, lambda: client.deadline and client.deadline > time.monotonic() + 20)
    names[:] = [THERE]
    follow(client, lambda: client.is_set)
    assert abs(clock.lag) < 5


@pytest.fixture
def names(tmp_path: Path) -> Iterator[DnsServer]:
    """A server of DNS, which the C library asks."""
    resolv_conf = tmp_path / "resolv.conf"
    with DnsServer("127.0.0.53") as dns:
        resolv_conf.write_text("nameserver 127.0.0.53\noptions timeout:30\n")
        syscalls.mount(str(resolv_conf), "/etc/resolv.conf", None, syscalls.MS_BIND)
        try:
            yield dns
        finally:
            syscalls.umount2("/etc/resolv.conf", syscalls.MNT_DETACH)


def test_a_server_that_is_named(servers: list[NtpServer], names: DnsServer, capfd: pytest.CaptureFixture[str]) -> None:
    """A name is one server, asked at its next address when one is silent, and looked up when none is left."""
    names.hosts = {"one.test": [HERE, "127.0.0.8", "127.0.0.9"], "two.test": [HERE], "three.test": [THERE]}
    servers[0].offset_seconds = 3600.0
    clock = OwnClock(60.0)
    client = make(clock, "one.test", "two.test", "three.test", ELSEWHERE)
    follow(client, lambda: client.is_set)
    assert abs(clock.lag) < 5, "an address that two names share counts once"
    assert f"by three.test ({THERE})" in (said := capfd.readouterr().err) or f"by {ELSEWHERE}" in said
    names.hosts = {"two.test": [HERE], "gone.test": NO_SUCH_NAME}
    servers[0].reply = lambda question: []
    client = make(clock, "two.test", "gone.test")
    for _ in range(2):
        names.asked.clear()
        client.ask()
        follow(client, lambda: not client.filenos())
        assert {"two.test", "gone.test"} == set(names.asked), "the only address was silent"
    assert capfd.readouterr().err == "minit: clock: gone.test: name or service not known\n"


def test_names_that_nobody_answers_for(
    servers: list[NtpServer], names: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup that takes too long is ended, and the servers are asked that are known by then."""
    monkeypatch.setattr("minit.machine.timeclient._LONGEST_SECONDS", 3.0)
    names.hosts = {"one.test": [HERE], "silent.test": None}
    clock = OwnClock(60.0)
    client = make(clock, "one.test", "silent.test")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    client.turn()
    [child] = set(children.read_text().split()) - before
    assert client.deadline is not None and client.deadline < time.monotonic() + 3
    follow(client, lambda: client.is_set)
    assert abs(clock.lag) < 5
    assert not Path(f"/proc/{child}").exists()
