"""The limits of the built-in plugin bandwidth."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.manifest.reader import Node
from minit.network.builtin.bandwidth import Settings, TokenBucket, read_settings, refusal_of_bucket, token_bucket
from minit.network.netlink.transport import NetlinkError, attribute, read_attributes

LIMITS = {"ingressRate": 8000, "ingressBurst": 16000, "egressRate": 16000, "egressBurst": 8000}


def settings(**config: Any) -> Settings:
    """Return what a configuration says."""
    return read_settings(Node({"name": "net", "type": "bandwidth", **config}, None, "net.conf"))


def test_bits_become_bytes() -> None:
    """A bucket is emptied by the rate in the time that its buffer has in ticks; for 25 ms more packets may wait."""
    assert token_bucket(8_000_000, 80_000) == TokenBucket(
        rate_bytes=1_000_000, limit_bytes=35_000, buffer_ticks=156_250
    )
    # Of 64 nanoseconds.
    assert 156_250 * 64 == 10_000_000


def test_what_the_kernel_has_no_number_for() -> None:
    """A burst of minutes, such as other runtimes ask for where they want none, is as large as can be."""
    bucket = token_bucket(1_000_000, (1 << 31) - 1)
    assert (bucket.rate_bytes, bucket.buffer_ticks) == (125_000, (1 << 32) - 1)
    assert token_bucket(1 << 63, 8).limit_bytes == (1 << 32) - 1


def test_either_direction() -> None:
    """The configuration counts, or else the capability; zero is no limit."""
    both = settings(**LIMITS)
    assert both.ingress is not None and both.egress is not None
    assert (both.ingress.place, both.ingress.bucket) == ("net.conf: ingressRate", token_bucket(8000, 16000))
    assert (both.egress.place, both.egress.bucket) == ("net.conf: egressRate", token_bucket(16000, 8000))
    runtime = {"runtimeConfig": {"bandwidth": {"egressRate": 16000, "egressBurst": 8000}}}
    one = settings(**runtime)
    assert one.ingress is None and one.egress is not None
    assert one.egress.place == "net.conf: runtimeConfig.bandwidth.egressRate"
    assert settings(ingressRate=0, **runtime) == settings() == Settings(ingress=None, egress=None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ingressRate": 8000}, "ingressBurst: expected at least 8 bits: ingressRate and ingressBurst go together"),
        ({"egressBurst": 8000}, "egressRate: expected at least 8 bits: egressRate and egressBurst go together"),
        ({**LIMITS, "egressRate": 7}, "egressRate: expected at least 8 bits: egressRate and egressBurst go"),
        ({**LIMITS, "egressRate": -1}, "egressRate: expected an integer from 0 to 18446744073709551615, got -1"),
        ({**LIMITS, "ingressBurst": 1 << 35}, "ingressBurst: expected an integer from 0 to 34359738359, got"),
        ({**LIMITS, "ingressRate": "1M"}, 'ingressRate: expected an integer from 0 to 18446744073709551615, got "1M"'),
        ({"unshapedSubnets": ["10.0.0.0/8"]}, "unshapedSubnets: expected nothing here: a limit is for all packets"),
        (
            {"runtimeConfig": {"bandwidth": {"shapedSubnets": ["::/0"]}}},
            "runtimeConfig.bandwidth.shapedSubnets: expected",
        ),
        ({"runtimeConfig": {"bandwidth": 1}}, "runtimeConfig.bandwidth: expected an object, got 1"),
    ],
)
def test_limits_that_cannot_be(config: dict[str, Any], message: str) -> None:
    """The line names file and key."""
    with pytest.raises(ManifestError) as caught:
        settings(**config)
    assert str(caught.value).startswith(f"net.conf: {message}")


def test_what_a_kernel_may_lack() -> None:
    """The error names the option."""
    lacking = {
        errno.ENOENT: "CONFIG_NET_SCH_TBF",
        errno.EOPNOTSUPP: "CONFIG_NET_SCHED",
        errno.EINVAL: "invalid argument",
    }
    for number, text in lacking.items():
        assert text in refusal_of_bucket(NetlinkError(number, ""))


@given(st.dictionaries(st.integers(1, 255), st.binary(max_size=20)))
def test_attributes_are_read_as_they_are_written(values: dict[int, bytes]) -> None:
    """Whatever their sizes, which are padded."""
    assert read_attributes(b"".join(attribute(kind, value) for kind, value in values.items())) == values


@given(st.binary(max_size=40))
def test_any_bytes_are_read(data: bytes) -> None:
    """Nothing makes it fail or go on for ever."""
    read_attributes(data)
