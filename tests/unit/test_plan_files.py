"""minit.plan.root.etcfiles: which files of /etc an app is given, and the name of the pod in its hosts file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.value import replace
from minit.plan.inputs.runflags import RunFlags
from minit.plan.root.etcfiles import AppFile, EtcTexts, add_hostname, plan_files, text_sources

FLAGS = RunFlags(uuid="6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11")
HOSTNAME = AppFile(target="/etc/hostname", text=b"pod\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"127.0.0.1 localhost\n", b"127.0.0.1 localhost pod\n"),
        (b"# x\n  127.0.0.1\tlocalhost\n127.0.0.1 b\n", b"# x\n  127.0.0.1\tlocalhost pod\n127.0.0.1 b\n"),
        (b"127.0.0.1 localhost", b"127.0.0.1 localhost pod"),
        (b"127.0.0.1", b"127.0.0.1 pod"),
        (b"", b"127.0.0.1\tpod\n"),
        (b"::1 x\n", b"::1 x\n127.0.0.1\tpod\n"),
        (b"::1 x", b"::1 x\n127.0.0.1\tpod\n"),
        (b"#127.0.0.1 x\n127.0.0.11 y\n", b"#127.0.0.1 x\n127.0.0.11 y\n127.0.0.1\tpod\n"),
    ],
)
def test_the_name_of_the_pod(before: bytes, after: bytes) -> None:
    """It is appended to the first line of 127.0.0.1, or becomes a line of its own; everything else stays."""
    assert add_hostname(before, b"pod") == after


@given(st.lists(st.sampled_from([b"127.0.0.1", b"::1", b" ", b"\t", b"\n", b"#", b"a", b"\xff"])).map(b"".join))
def test_nothing_else_of_a_hosts_file_changes(hosts: bytes) -> None:
    """One line has the name after it, or comes after all others; the rest is byte for byte as before."""
    after = add_hostname(hosts, b"pod")
    if any(line.split()[:1] == [b"127.0.0.1"] for line in hosts.split(b"\n")):
        head, separator, tail = after.partition(b" pod")
        assert separator and head + tail == hosts
        assert head.rpartition(b"\n")[2].split()[:1] == [b"127.0.0.1"]
    else:
        assert after.removesuffix(b"127.0.0.1\tpod\n") in (hosts, hosts + b"\n")


@pytest.mark.parametrize(
    ("hosts", "resolv", "sources"),
    [
        ("default", "default", ("stage1/rootfs/etc/hosts-fallback", None)),
        ("default", "none", ("stage1/rootfs/etc/hosts-fallback", None)),
        ("host", "host", (None, None)),
        ("stage0", "stage0", ("stage1/rootfs/etc/rkt-hosts", "stage1/rootfs/etc/rkt-resolv.conf")),
    ],
)
def test_where_the_texts_are(hosts: str, resolv: str, sources: tuple[str | None, str | None]) -> None:
    """Only what a mode asks for is read."""
    assert text_sources(replace(FLAGS, hosts_mode=hosts, resolv_mode=resolv)) == sources


def test_by_default() -> None:
    """The host name always; the fallback for a missing hosts file; nothing about DNS."""
    files = plan_files("pod", FLAGS, EtcTexts(hosts=b"127.0.0.1 localhost\n"))
    fallback = AppFile(target="/etc/hosts", text=b"127.0.0.1 localhost pod\n", if_missing=True)
    assert files == (HOSTNAME, fallback)


def test_from_stage0() -> None:
    """The user's options are bound over any file, or the app does not start."""
    texts = EtcTexts(hosts=b"10.1.1.1 x\n", resolv_conf=b"nameserver 10.1.1.2\n")
    flags = replace(FLAGS, hosts_mode="stage0", resolv_mode="stage0")
    assert plan_files("pod", flags, texts) == (
        HOSTNAME,
        AppFile(target="/etc/resolv.conf", text=b"nameserver 10.1.1.2\n", required=True),
        AppFile(target="/etc/hosts", text=b"10.1.1.1 x\n127.0.0.1\tpod\n", required=True),
    )


def test_from_the_host() -> None:
    """Its own files are mounts, so that only the host name is left."""
    flags = replace(FLAGS, hosts_mode="host", resolv_mode="host")
    assert plan_files("pod", flags, EtcTexts()) == (HOSTNAME,)


def test_hosts_in_place_of_the_images() -> None:
    """A pod may have its hosts file stand over that of an image, but not over a volume's."""
    _, hosts = plan_files("pod", FLAGS, EtcTexts(hosts=b"::1 x\n"), has_own_hosts=True)
    assert hosts == AppFile(target="/etc/hosts", text=b"::1 x\n127.0.0.1\tpod\n", yields=True)
