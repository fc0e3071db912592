"""minit.plan.inputs.runtimeconfig: what `run` writes is what `app/add` reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.runtimeconfig import RuntimeConfig, decode_runtime_config, encode_runtime_config

UUID = "6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BOOLEANS = {"debug", "interactive", "mutable", "disable_capabilities", "disable_paths", "disable_seccomp"}
BOOLEANS |= {"quiet", "tell_failure"}
FLAGS = st.builds(
    RunFlags,
    uuid=st.just(UUID),
    networks=st.lists(TEXTS, max_size=3).map(tuple),
    **{name: st.booleans() for name in BOOLEANS},
    **{name: TEXTS for name in RunFlags._fields if name not in {*BOOLEANS, "uuid", "networks"}},
)


@given(FLAGS, st.none() | TEXTS, st.none() | TEXTS)
def test_it_comes_back(flags: RunFlags, address: str | None, resolv_conf: str | None) -> None:
    """Every option, and what the networks offered."""
    config = RuntimeConfig(flags=flags, host_address=address, resolv_conf=resolv_conf)
    assert decode_runtime_config(encode_runtime_config(config), "runtime-config", UUID) == config


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[]", "expected dict, got list"),
        (b"{}", "InsecureOptions is missing"),
        (b'{"InsecureOptions":{},"minit":{"networks":["a",3]}}', "expected str, got int"),
        (b"{", "expected"),
    ],
)
def test_what_is_none_is_refused(text: bytes, reason: str) -> None:
    """The error names the file."""
    with pytest.raises(ManifestError, match=r"^runtime-config: ") as caught:
        decode_runtime_config(text, "runtime-config", UUID)
    assert reason in str(caught.value)
