"""minit.plan.networks.hostsfile: who is found by which name, and by whom."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from minit.base.value import replace
from minit.plan.networks.hostsfile import NamedPod, decode_pod, encode_pod, hosts_files

BASE = "127.0.0.1\tlocalhost rkt-1\n"


def pod(uuid: str, *names: str, apps: tuple[str, ...] = (), base: str | None = BASE, **networks: str) -> NamedPod:
    """Return a pod with an address on each of some networks; pods start in the order of their UUIDs."""
    addresses = tuple((name, (address,)) for name, address in networks.items())
    return NamedPod(uuid=uuid, base=base, names=names, apps=apps, directory=f"/{uuid}", addresses=addresses)


def lines(pods: list[NamedPod]) -> dict[str, list[str]]:
    """Return what each pod's file has after its beginning and the comment."""
    files = {uuid: text.decode().splitlines() for uuid, text in hosts_files(pods).items()}
    return {uuid: [line for line in text[1:] if not line.startswith("#")] for uuid, text in files.items()}


def test_pods_of_one_network() -> None:
    """Each has all of its networks, itself too, and none of others; one without a file is found all the same."""
    pods = [
        pod("1", "one", lan="10.0.0.1"),
        pod("2", "two", apps=("web",), base=None, lan="10.0.0.2", wan="10.1.0.2"),
        pod("3", "three", wan="10.1.0.3"),
    ]
    assert lines(pods) == {"1": ["10.0.0.1\tone", "10.0.0.2\ttwo web"], "3": ["10.1.0.2\ttwo web", "10.1.0.3\tthree"]}


def test_names_that_are_somebody_elses() -> None:
    """A name that the file has already, or the host's, is nobody's; that of an app yields to one that a user gave."""
    db = pod("2", "db", lan="10.0.0.2")
    liar = pod(
        "1", "localhost", "LOCALHOST", "rkt-1", "127.0.0.1", "0x7f000001", "1", apps=("db", "own"), lan="10.0.0.1"
    )
    assert lines([liar, db])["2"] == ["10.0.0.1\town", "10.0.0.2\tdb"]
    # As people run several of one kind.
    twins = [pod("1", apps=("web",), lan="10.0.0.1"), pod("2", apps=("web",), lan="10.0.0.2")]
    assert lines(twins)["1"] == ["10.0.0.1\tweb", "10.0.0.2\tweb"]


def test_aliases() -> None:
    """An alias is known on all of a pod's networks or on the named one, and counts more than an app of another pod."""
    db = replace(pod("2", "db", lan="10.0.0.2", wan="10.1.0.2"), aliases=(("", "sql"), ("wan", "far")))
    met = lines([db, pod("1", apps=("sql", "far"), lan="10.0.0.1"), pod("3", "three", wan="10.1.0.3")])
    assert met["1"] == ["10.0.0.1\tfar", "10.0.0.2\tdb sql"]
    assert met["3"] == ["10.1.0.2\tdb sql far", "10.1.0.3\tthree"]
    assert met["2"] == ["10.0.0.2\tdb sql", "10.1.0.2\tdb sql far", "10.1.0.3\tthree"]
    assert decode_pod(json.loads(json.dumps(encode_pod(db)))) == db


@given(st.lists(st.text(max_size=8), max_size=4), st.lists(st.text(max_size=8), max_size=4))
def test_no_name_makes_a_line(names: list[str], apps: list[str]) -> None:
    """Whatever a pod is called, the file has its address and words beside it, or nothing."""
    hostile = pod("2", *names, apps=tuple(apps), lan="10.0.0.2")
    text = hosts_files([pod("1", lan="10.0.0.1"), hostile])["1"].decode()
    rest = text.removeprefix(BASE).split("\n")
    assert len(rest) in (1, 3)
    assert all(line.startswith(("#", "10.0.0.2\t")) for line in rest if line)


@given(st.text(max_size=5), st.lists(st.text(max_size=5)), st.dictionaries(st.text(max_size=5), st.just(("a",))))
def test_records_come_back(base: str, words: list[str], addresses: dict[str, tuple[str, ...]]) -> None:
    """A record that was written is read as it was."""
    original = replace(pod("1", *words), base=base, addresses=tuple(addresses.items()))
    assert decode_pod(json.loads(json.dumps(encode_pod(original)))) == original
