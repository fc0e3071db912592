"""The trial of a version: when it is passed, and what is written down of it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.carried import CarriedCodec
from minit.machine.efivariables import GLOBAL, OWN, EfiVariables
from minit.machine.machinelink import AppHealth, TrialWatch
from minit.machine.slots import FAILED, TrialRecord, read_trial, write_trial
from minit.manifest.machineconfig import Trial

TRIAL = Trial(healthy_seconds=10, timeout_seconds=60)
GOOD, ILL = AppHealth(starts=1, obstacle=None), AppHealth(starts=1, obstacle="is not ready")
RECORD = f"MinitTrial-{OWN}"
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x40086602, 0x10


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory whose files stand for variables."""
    directory = tmp_path / "variables"
    directory.mkdir()
    return directory


@pytest.fixture
def variables(place: Path) -> Iterator[EfiVariables]:
    """The variables in that directory."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    yield EfiVariables(fd)
    os.close(fd)


def watch(*looks: tuple[float, AppHealth]) -> TrialWatch:
    """Return a trial that has begun at 100, with an app that was looked at so long after that."""
    trial = TrialWatch(TRIAL, 100.0)
    for seconds, health in looks:
        trial.look({"web": health, "other": GOOD}, 100.0 + seconds)
    return trial


def test_a_trial_goes_on_in_another_program_of_pid_1() -> None:
    """The time of healthy apps counts on."""
    codec = CarriedCodec(TrialWatch)
    trial = codec.decode(codec.encode(watch((0, GOOD), (9, GOOD)))[0], "state")
    trial.look({"web": GOOD, "other": GOOD}, 110.0)
    assert trial.passed


def test_apps_that_stay_healthy() -> None:
    """A trial is passed when all apps have been healthy for as long as they should, without a break."""
    assert not watch((0, GOOD), (9, GOOD)).passed
    assert watch((0, GOOD), (10, GOOD)).passed
    assert not watch((0, GOOD), (5, ILL), (10, GOOD), (19, GOOD)).passed
    assert watch((0, GOOD), (5, ILL), (10, GOOD), (20, GOOD)).passed


def test_an_app_that_is_started_again() -> None:
    """An app that was healthy at each look, but was started again in between, begins anew."""
    again = AppHealth(starts=2, obstacle=None)
    assert not watch((0, GOOD), (5, again), (10, again)).passed
    assert watch((0, GOOD), (5, again), (15, again)).passed


def test_a_trial_that_takes_too_long() -> None:
    """It fails with the reason that an app gives at its end, and nothing that comes later changes that."""
    trial = watch((0, ILL), (59, ILL), (60, ILL), (61, GOOD), (80, GOOD))
    assert (trial.passed, trial.failed) == (False, 'not healthy within 60 s: app "web" is not ready')
    assert (
        watch((0, ILL), (55, GOOD), (60, GOOD)).failed == "not healthy within 60 s: apps were healthy only for a while"
    )


def test_the_record(variables: EfiVariables, place: Path) -> None:
    """The record is read as it was written, in one variable, and a long reason is cut off."""
    assert read_trial(variables) is None
    trial = TrialRecord(slot="b", state=FAILED, asked_seconds=1700000000, version="1.2", reason="x" * 1000)
    write_trial(variables, trial)
    assert read_trial(variables) == TrialRecord(
        slot="b", state=FAILED, asked_seconds=1700000000, version="1.2", reason="x" * 200
    )
    assert [path.name for path in place.iterdir()] == [RECORD]
    # Not volatile, for the firmware and for systems.
    assert (place / RECORD).read_bytes()[:4] == b"\7\0\0\0"


@given(st.binary(max_size=100) | st.sampled_from((b"[]", b'{"state": "kept"}', b'{"state": "kept", "slot": 1}')))
def test_what_is_no_record(data: bytes) -> None:
    """A variable of that name with anything else in it is none."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / RECORD).write_bytes(bytes(4) + data)
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert read_trial(EfiVariables(fd)) is None
        finally:
            os.close(fd)


def test_a_variable_that_is_protected(variables: EfiVariables, place: Path) -> None:
    """The kernel protects variables from an rm; one is written all the same, and protected again."""
    path = place / f"BootNext-{GLOBAL}"
    variables.write("BootNext", b"\1\0")
    with path.open("rb") as file:
        try:
            fcntl.ioctl(file, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL.to_bytes(8, "little"))
        except OSError:
            pytest.skip("no immutable files here")
        try:
            variables.write("BootNext", b"\2\0")
            assert path.read_bytes() == b"\7\0\0\0\2\0"
            assert fcntl.ioctl(file, FS_IOC_GETFLAGS, bytes(8))[0] & FS_IMMUTABLE_FL
        finally:
            fcntl.ioctl(file, FS_IOC_SETFLAGS, bytes(8))


def test_a_variable_that_is_right(variables: EfiVariables, place: Path) -> None:
    """A variable that has the value already is not written again: the memory of a firmware wears out."""
    variables.write("BootOrder", b"\1\0\2\0")
    path = place / f"BootOrder-{GLOBAL}"
    os.utime(path, ns=(0, 0))
    variables.write("BootOrder", b"\1\0\2\0")
    assert path.stat().st_mtime_ns == 0
    assert (variables.names(), variables.read("BootOrder"), variables.read("BootNext")) == (
        ["BootOrder"],
        b"\1\0\2\0",
        None,
    )
