"""minit.linux.loop: what is ready is called, nothing else is, and deadlines come in their order."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.linux.loop import Interest, Loop, Wait, wait_events, wait_readable

SOON_SECONDS = 0.02


class Descriptors:
    """Descriptors that are closed in the end."""

    def __init__(self) -> None:
        self._owned: list[int] = []

    def event(self, value: int = 1) -> int:
        """Return an eventfd, which can be read unless its value is 0."""
        self._owned.append(fd := os.eventfd(value, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        return fd

    def pipe(self) -> tuple[int, int]:
        """Return the two ends of a pipe."""
        self._owned += (ends := os.pipe2(os.O_CLOEXEC))
        return ends

    def file(self, path: Path) -> int:
        """Return an empty file."""
        self._owned.append(fd := os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
        return fd

    def close(self, fd: int) -> None:
        """Close one of them before the end."""
        self._owned.remove(fd)
        os.close(fd)

    def close_all(self) -> None:
        """Close all that are left."""
        for fd in self._owned:
            os.close(fd)


@pytest.fixture
def descriptors() -> Iterator[Descriptors]:
    """Return a maker of descriptors."""
    made = Descriptors()
    yield made
    made.close_all()


def test_what_is_ready_is_called_with_its_events(descriptors: Descriptors) -> None:
    """A descriptor is called as long as it is ready and watched; the hang-up of a pipe is told without being asked."""
    loop, heard = Loop(), []
    reader, writer = descriptors.pipe()
    idle = descriptors.event(0)
    loop.watch(reader, lambda events: heard.append(events), 0)
    loop.watch(writer, lambda events: heard.append(events), select.EPOLLOUT)
    loop.watch(idle, lambda events: heard.append(-1))
    assert len(loop) == 3 and idle in loop
    loop.turn()
    loop.turn()
    assert heard == [select.EPOLLOUT] * 2
    loop.unwatch(writer)
    descriptors.close(writer)
    loop.turn()
    assert heard == [select.EPOLLOUT] * 2 + [select.EPOLLHUP]
    loop.unwatch(reader)
    loop.unwatch(reader)
    loop.turn(0)
    assert len(heard) == 3 and reader not in loop and len(loop) == 1


def test_other_events_are_waited_for_after_a_change(descriptors: Descriptors) -> None:
    """An eventfd that can be written is ready until only its being readable counts."""
    loop, heard = Loop(), list[int]()
    fd = descriptors.event(0)
    loop.watch(fd, heard.append, select.EPOLLOUT)
    loop.turn()
    loop.change(fd, select.EPOLLIN)
    loop.turn(0)
    assert heard == [select.EPOLLOUT]
    os.eventfd_write(fd, 1)
    loop.turn()
    assert heard == [select.EPOLLOUT, select.EPOLLIN]


def test_the_loop_can_be_waited_for_itself(descriptors: Descriptors) -> None:
    """Its own descriptor is readable when one of those watched is ready."""
    loop = Loop()
    fd = descriptors.event(0)
    loop.watch(fd, lambda _: os.eventfd_read(fd))
    assert not wait_readable([loop.fileno()], 0)
    os.eventfd_write(fd, 1)
    assert wait_readable([loop.fileno()]) == {loop.fileno()}
    loop.turn(0)
    assert not wait_readable([loop.fileno()], 0)


@pytest.mark.parametrize("is_used_again", [False, True])
def test_an_event_is_not_for_what_has_the_number_next(descriptors: Descriptors, is_used_again: bool) -> None:
    """Of two that are ready the first closes the second: neither that one nor what has its number is called."""
    loop, heard = Loop(), []
    fds = [descriptors.event(), descriptors.event()]

    def hear(fd: int) -> None:
        other = fds[1 - fds.index(fd)]
        heard.append(fd)
        loop.unwatch(other)
        descriptors.close(other)
        if is_used_again:
            fds[fds.index(other)] = again = descriptors.event(0)
            assert again == other
            loop.watch(again, lambda _: heard.append(-1))

    for fd in fds:
        loop.watch(fd, lambda _, fd=fd: hear(fd))  # type: ignore[misc]
    loop.turn()
    assert heard in ([fds[0]], [fds[1]])
    if is_used_again:
        other = fds[1 - fds.index(heard[0])]
        loop.unwatch(heard[0])
        os.eventfd_write(other, 1)
        loop.turn()
        assert heard[1:] == [-1]


def test_a_callback_may_replace_itself(descriptors: Descriptors) -> None:
    """The next event is for the new one."""
    loop, heard = Loop(), []
    fd = descriptors.event()

    def first(_: int) -> None:
        heard.append("first")
        loop.unwatch(fd)
        loop.watch(fd, lambda _: heard.append("second"))

    loop.watch(fd, first)
    loop.turn()
    loop.turn()
    assert heard == ["first", "second"]


def test_a_regular_file_is_always_ready(descriptors: Descriptors, tmp_path: Path) -> None:
    """It is called in every turn with what is asked for, beside what else is ready; not if nothing is asked for."""
    loop, heard = Loop(), list[int]()
    fd = descriptors.file(tmp_path / "file")
    loop.watch(fd, heard.append, select.EPOLLIN)
    loop.turn()
    loop.change(fd, select.EPOLLOUT)
    loop.turn()
    assert heard == [select.EPOLLIN, select.EPOLLOUT]
    loop.change(fd, 0)
    event = descriptors.event()
    loop.watch(event, lambda _: heard.append(-1))
    loop.turn()
    assert heard[2:] == [-1]
    loop.change(fd, select.EPOLLIN)
    loop.turn()
    assert heard[3:] == [-1, select.EPOLLIN]
    loop.unwatch(event)
    loop.unwatch(fd)
    loop.turn(0)
    assert len(heard) == 5


def test_a_turn_begins_after_the_wait(descriptors: Descriptors) -> None:
    """`begin` is called in each turn, before what is ready."""
    heard: list[str] = []
    loop = Loop(begin=lambda: heard.append("begin"))
    loop.turn(0)
    loop.watch(descriptors.event(), lambda _: heard.append("event"))
    loop.turn()
    assert heard == ["begin", "begin", "event"]


def test_deadlines_come_in_their_order(descriptors: Descriptors) -> None:
    """A wait ends at the first; each that has passed is called once, after the events, whatever was set first."""
    loop, heard = Loop(), []
    now = time.monotonic()
    late = loop.deadline(lambda: heard.append("late"))
    early = loop.deadline(lambda: heard.append("early"))
    never = loop.deadline(lambda: heard.append("never"))
    late.set(now + 2 * SOON_SECONDS)
    never.set(now + 3600)
    early.set(now + SOON_SECONDS)
    loop.turn()
    assert heard == ["early"] and early.moment is None and late.moment == now + 2 * SOON_SECONDS
    assert now + SOON_SECONDS <= time.monotonic()
    early.set(now + SOON_SECONDS)
    late.set(now)
    loop.watch(descriptors.event(), lambda _: heard.append("event"))
    loop.turn()
    assert heard[1:] == ["event", "late", "early"]
    never.clear()
    never.clear()
    loop.turn()
    assert heard[4:] == ["event"]


def test_a_deadline_may_change_others() -> None:
    """One that is cleared, or put off, by one before is not called; one that sets itself anew is called next turn."""
    loop, heard = Loop(), []
    past = time.monotonic() - 1

    def on_first() -> None:
        heard.append("first")
        first.set(past)
        cleared.clear()
        moved.set(past + 3600)

    first, cleared = loop.deadline(on_first), loop.deadline(lambda: heard.append("cleared"))
    moved = loop.deadline(lambda: heard.append("moved"))
    first.set(past - 1)
    cleared.set(past)
    moved.set(past)
    loop.turn()
    assert heard == ["first"]
    loop.turn()
    assert heard == ["first", "first"]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3) | st.none()), max_size=20))
@settings(deadline=None)
def test_any_deadlines(settings_made: list[tuple[int, int | None]]) -> None:
    """After any settings and clearings passed deadlines are called in their order, and the rest stays."""
    loop = Loop()
    heard: list[int] = []
    deadlines = [loop.deadline(lambda number=number: heard.append(number)) for number in range(5)]  # type: ignore[misc]
    expected: dict[int, int] = {}
    now = time.monotonic()
    for number, hours in settings_made:
        expected.pop(number, None)
        if hours is None:
            deadlines[number].clear()
        else:
            deadlines[number].set(now + hours * 3600)
            expected[number] = hours
    loop.turn(0)
    assert [expected[number] for number in heard] == sorted(hours for hours in expected.values() if hours <= 0)
    left = [number for number, deadline in enumerate(deadlines) if deadline.moment is not None]
    assert left == sorted(expected.keys() - set(heard))


def test_an_interest_changes_before_each_turn(descriptors: Descriptors) -> None:
    """What it was set to last is heard of, and nothing else; a descriptor may be closed when it is not in it."""
    loop = Loop()
    heard: list[tuple[int, int]] = []
    interest = Interest(loop, lambda fd, events: heard.append((fd, events)))
    first, second = descriptors.event(), descriptors.event()
    interest.set({first: select.EPOLLIN, second: select.EPOLLOUT})
    loop.turn()
    assert sorted(heard) == sorted([(first, select.EPOLLIN), (second, select.EPOLLOUT)])
    heard.clear()
    interest.set({second: select.EPOLLIN})
    loop.turn()
    assert heard == [(second, select.EPOLLIN)] and first not in loop
    interest.set({})
    descriptors.close(second)
    assert descriptors.event() == second
    interest.set({second: select.EPOLLIN})
    loop.turn()
    assert heard == [(second, select.EPOLLIN)] * 2


class Waits:
    """The timeouts that poll(2) or epoll(7) was given, instead of waiting."""

    def __init__(self) -> None:
        self.timeout: float | None = None

    def register(self, fd: int, events: int) -> None:
        """Take everything."""

    def poll(self, timeout: float | None = None, maximum: int = -1) -> list[tuple[int, int]]:
        """Note the timeout."""
        self.timeout = timeout
        return []


@given(st.floats(min_value=-1e9, max_value=366 * 24 * 3600.0) | st.just(math.inf))
def test_any_time_can_be_waited_for(seconds: float) -> None:
    """Checks may be a year apart, and poll(2) waits for less than a month."""
    with pytest.MonkeyPatch.context() as patch:
        waits = Waits()
        patch.setattr(select, "poll", lambda: waits)
        patch.setattr(select, "epoll", lambda: waits)
        wait_readable([0], seconds)
        assert waits.timeout is not None and 0 <= waits.timeout < 1 << 31
        # Not so short that it would go round and round.
        assert waits.timeout >= min(seconds, 3600) * 1000
        loop = Loop()
        deadline = loop.deadline(lambda: None)
        patch.setattr(time, "monotonic", lambda: 1000.0)
        deadline.set(1000.0 + seconds)
        loop.turn()
        assert waits.timeout is not None and 0 <= waits.timeout < (1 << 31) / 1000
        assert waits.timeout >= min(seconds, 3600) - 1e-6


def test_a_wait_for_some(descriptors: Descriptors) -> None:
    """Those that are ready are returned, with what is not asked for; none if the time is over."""
    ready, idle = descriptors.event(), descriptors.event(0)
    assert wait_readable([ready, idle]) == {ready}
    begun = time.monotonic()
    assert wait_readable([idle], SOON_SECONDS) == set()
    assert time.monotonic() >= begun + SOON_SECONDS
    reader, writer = descriptors.pipe()
    assert wait_events({writer: select.POLLOUT, reader: select.POLLIN}, 0) == {writer: select.POLLOUT}
    descriptors.close(writer)
    assert wait_events({reader: 0}, None) == {reader: select.POLLHUP}
    wait = Wait({idle: select.POLLIN})
    assert wait.ready(0) == []
    os.eventfd_write(idle, 1)
    assert wait.ready() == wait.ready(0) == [(idle, select.POLLIN)]
