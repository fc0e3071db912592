"""minit.plan.inputs.runflags: the arguments of `run`, in every spelling stage0 or a user may choose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError, UsageError
from minit.base.value import replace
from minit.plan.inputs.runflags import RUN_FLAGS, MalformedUUID, RunFlags, parse_run_flags, parse_uuid

UUID = "6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"
PLAIN = RunFlags(uuid=UUID)


def test_without_flags_everything_has_its_default() -> None:
    """A bare UUID is enough, and no --net at all means the host's network."""
    assert parse_run_flags([UUID]) == PLAIN
    assert PLAIN.networks == ()


def test_everything_that_stage0_sends() -> None:
    """The arguments in the order and spelling of rkt's stage0 are all understood."""
    flags = parse_run_flags(
        [
            "--debug",
            "--net=default,foo:IP=10.1.2.3",
            "--interactive",
            "--private-users=100000:65536",
            "--mds-token=0123456789abcdef0123456789abcdef",
            "--local-config=/opt/rkt",
            "--hostname=web",
            "--dns-conf-mode=resolv=host,hosts=stage0",
            "--disable-capabilities-restriction",
            "--disable-paths",
            "--disable-seccomp",
            "--mutable",
            "--ipc=parent",
            UUID,
        ]
    )
    assert flags == RunFlags(
        uuid=UUID,
        debug=True,
        networks=("default", "foo:IP=10.1.2.3"),
        interactive=True,
        private_users="100000:65536",
        mds_token="0123456789abcdef0123456789abcdef",
        local_config="/opt/rkt",
        hostname="web",
        resolv_mode="host",
        hosts_mode="stage0",
        disable_capabilities=True,
        disable_paths=True,
        disable_seccomp=True,
        mutable=True,
        ipc="parent",
    )


STRING_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "hostname": ("h1", {"hostname": "h1"}),
    "mds-token": ("0a", {"mds_token": "0a"}),
    "private-users": ("1:2", {"private_users": "1:2"}),
    "local-config": ("/x", {"local_config": "/x"}),
    "ipc": ("private", {"ipc": "private"}),
    "net": ("none", {"networks": ("none",)}),
    "dns-conf-mode": ("resolv=none", {"resolv_mode": "none"}),
}


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("name", STRING_FLAGS)
def test_string_flags(name: str, joined: bool, dashes: str) -> None:
    """A string flag takes its value after `=` or as the next word, with one dash or two."""
    value, fields = STRING_FLAGS[name]
    words = [f"{dashes}{name}={value}"] if joined else [f"{dashes}{name}", value]
    assert parse_run_flags([*words, UUID]) == replace(PLAIN, **fields)


BOOLEAN_FLAGS = {
    "debug": "debug",
    "interactive": "interactive",
    "mutable": "mutable",
    "disable-capabilities-restriction": "disable_capabilities",
    "disable-paths": "disable_paths",
    "disable-seccomp": "disable_seccomp",
    "quiet": "quiet",
    "tell-failure": "tell_failure",
}


@pytest.mark.parametrize(("suffix", "value"), [("", True), ("=true", True), ("=T", True), ("=0", False)])
@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("name", BOOLEAN_FLAGS)
def test_boolean_flags(name: str, dashes: str, suffix: str, value: bool) -> None:
    """A boolean is bare or explicit and never takes the next word."""
    flags = parse_run_flags([f"{dashes}{name}{suffix}", UUID])
    fields: dict[str, Any] = {BOOLEAN_FLAGS[name]: value}
    assert flags == replace(PLAIN, **fields)


def test_the_two_tables_cover_every_flag() -> None:
    """No flag of `run` is without a test of its spellings."""
    assert {*STRING_FLAGS, *BOOLEAN_FLAGS} == {*RUN_FLAGS}


@pytest.mark.parametrize("arguments", [["--net=a,b"], ["--net=a", "--net=b"], ["--net", "a", "-net=b"]])
def test_networks_accumulate(arguments: list[str]) -> None:
    """Several uses of --net add up like one list."""
    assert parse_run_flags([*arguments, UUID]).networks == ("a", "b")


def test_addresses_of_ipv6_are_arguments() -> None:
    """The value of an argument may have colons, which rkt's own flag does not take."""
    assert parse_run_flags(["--net=a:IP=fd00::7;MAC=02:00:00:00:00:01,b", UUID]).networks == (
        *("a:IP=fd00::7;MAC=02:00:00:00:00:01", "b"),
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a,a", 'network "a" is named twice'),
        ("a,a:IP=1", 'network "a" is named twice'),
        ("a:b:c", "expected NAME[:ARGS]"),
        (":x", "expected NAME[:ARGS]"),
        ("a,,b", "expected NAME[:ARGS]"),
        ("host:x", '"host" takes no arguments'),
        ("all:x", '"all" takes no arguments'),
    ],
)
def test_bad_networks(value: str, reason: str) -> None:
    """A network list that rkt's own parser refuses is a usage error that quotes it."""
    with pytest.raises(UsageError) as caught:
        parse_run_flags([f"--net={value}", UUID])
    assert str(caught.value).startswith(f'invalid value "{value}" for flag -net: ')
    assert reason in str(caught.value)


def test_a_network_named_in_two_flags_is_refused() -> None:
    """Duplicates are found across several uses, too."""
    with pytest.raises(UsageError, match="named twice"):
        parse_run_flags(["--net=a", "--net=a", UUID])


@pytest.mark.parametrize("token", ["../x", "0a?", "a b", "g", "0a/", "٣", "\0"])
def test_bad_metadata_tokens(token: str) -> None:
    """A token that would change the meaning of the URL it ends is a usage error."""
    with pytest.raises(UsageError) as caught:
        parse_run_flags([f"--mds-token={token}", UUID])
    assert str(caught.value) == f'invalid value "{token}" for flag -mds-token: expected hexadecimal digits'


@pytest.mark.parametrize("resolv", ["host", "stage0", "none", "default"])
@pytest.mark.parametrize("hosts", ["host", "stage0", "default"])
def test_dns_modes(resolv: str, hosts: str) -> None:
    """Each combination of modes is understood, in either order."""
    for text in (f"resolv={resolv},hosts={hosts}", f"hosts={hosts},resolv={resolv}"):
        flags = parse_run_flags([f"--dns-conf-mode={text}", UUID])
        assert (flags.resolv_mode, flags.hosts_mode) == (resolv, hosts)


@pytest.mark.parametrize("value", ["", "resolv", "resolv=", "hosts=none", "resolv=x", "dns=host", "resolv=host,"])
def test_bad_dns_modes(value: str) -> None:
    """An unknown key or mode is a usage error that quotes the whole value."""
    with pytest.raises(UsageError, match="^invalid value .* for flag -dns-conf-mode"):
        parse_run_flags([f"--dns-conf-mode={value}", UUID])


@pytest.mark.parametrize(
    "spelling", [UUID, UUID.upper(), UUID.replace("-", ""), UUID.replace("-", "").upper(), UUID.replace("-", "--")]
)
def test_spellings_of_a_uuid(spelling: str) -> None:
    """Case and dashes do not matter, and the result is canonical."""
    assert parse_uuid(spelling) == UUID
    assert parse_run_flags([spelling]).uuid == UUID


@pytest.mark.parametrize("text", ["", "x", UUID[:-1], UUID + "0", UUID.replace("6", "g"), "٦" * 32, f" {UUID}"])
def test_malformed_uuids(text: str) -> None:
    """Anything but 32 hexadecimal digits is refused with rkt's number for it, not with Go's 2."""
    with pytest.raises(MalformedUUID) as caught:
        parse_uuid(text)
    assert str(caught.value) == f'UUID is missing or malformed: "{text}"'
    assert caught.value.exit_code == 254


@pytest.mark.parametrize("operands", [[], [UUID, UUID]])
def test_there_is_one_operand(operands: list[str]) -> None:
    """No UUID, or two, is a usage error."""
    with pytest.raises(UsageError, match=f"^expected one UUID, got {len(operands)} arguments$"):
        parse_run_flags(operands)


@given(
    st.lists(
        st.one_of(
            st.text(max_size=6),
            st.builds("--{}={}".format, st.sampled_from(sorted(RUN_FLAGS)), st.text(",=:ahnostdef", max_size=12)),
            st.sampled_from([UUID, "--", "--net", "-debug"]),
        ),
        max_size=5,
    )
)
def test_any_arguments_give_flags_or_an_error_of_ours(arguments: list[str]) -> None:
    """Nothing but RunFlags or a MinitError comes out, and networks have unique names."""
    try:
        flags = parse_run_flags(arguments)
    except MinitError:
        return
    names = [entry.partition(":")[0] for entry in flags.networks]
    assert len(set(names)) == len(names)
