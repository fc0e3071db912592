"""The options about limits and privileges, and the isolators they become."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.flags.appoptions import (
    parse_caps_remove,
    parse_caps_retain,
    parse_cpu,
    parse_cpu_shares,
    parse_memory,
    parse_oom_score_adj,
    parse_seccomp,
)
from minit.cli.flagwords import FlagError
from minit.manifest.app import Isolator

PARSERS: dict[str, Callable[[str, str], Isolator]] = {
    "--memory": parse_memory,
    "--cpu": parse_cpu,
    "--cpu-shares": parse_cpu_shares,
    "--oom-score-adj": parse_oom_score_adj,
    "--caps-retain": parse_caps_retain,
    "--caps-remove": parse_caps_remove,
    "--seccomp": parse_seccomp,
}


@pytest.mark.parametrize(
    ("flag", "text", "name", "value"),
    [
        ("--memory", "64M", "resource/memory", {"default": False, "request": "64M", "limit": "64M"}),
        ("--memory", "4096", "resource/memory", {"default": False, "request": "4096", "limit": "4096"}),
        ("--cpu", "500m", "resource/cpu", {"default": False, "request": "500m", "limit": "500m"}),
        ("--cpu-shares", "2", "os/linux/cpu-shares", 2),
        ("--cpu-shares", "262144", "os/linux/cpu-shares", 262144),
        ("--oom-score-adj", "-1000", "os/linux/oom-score-adj", -1000),
        ("--oom-score-adj", "1000", "os/linux/oom-score-adj", 1000),
        (
            *("--caps-retain", "CAP_KILL,CAP_NET_ADMIN", "os/linux/capabilities-retain-set"),
            {"set": ["CAP_KILL", "CAP_NET_ADMIN"]},
        ),
        ("--caps-remove", "CAP_KILL", "os/linux/capabilities-remove-set", {"set": ["CAP_KILL"]}),
        (
            *("--seccomp", "mode=retain,@appc.io/all,chmod", "os/linux/seccomp-retain-set"),
            {"set": ["@appc.io/all", "chmod"], "errno": ""},
        ),
        (
            *("--seccomp", "chmod,errno=EXFULL,mode=remove", "os/linux/seccomp-remove-set"),
            {"set": ["chmod"], "errno": "EXFULL"},
        ),
    ],
)
def test_isolators(flag: str, text: str, name: str, value: object) -> None:
    """Each option becomes the isolator that rkt writes for it."""
    assert PARSERS[flag](flag, text) == Isolator(name=name, value=value)


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--memory", "16b", 'expected at least 4096 bytes, for example 16M, got "16"'),
        ("--memory", "-1G", 'expected at least 4096 bytes, for example 16M, got "-1G"'),
        ("--memory", "1GB", 'invalid quantity "1GB" (write for example 500m, 16M or 1.5Gi)'),
        ("--memory", "8Ei", 'expected less than 8Ei, got "8Ei"'),
        ("--cpu", "0", 'expected more than no processor, for example 500m for half of one, got "0"'),
        ("--cpu", "-1", 'expected more than no processor, for example 500m for half of one, got "-1"'),
        ("--cpu", "half", 'invalid quantity "half" (write for example 500m, 16M or 1.5Gi)'),
        ("--cpu-shares", "1", 'expected a number from 2 to 262144, got "1"'),
        ("--cpu-shares", "1k", 'expected a number from 2 to 262144, got "1k"'),
        ("--oom-score-adj", "1001", 'expected a number from -1000 to 1000, got "1001"'),
        ("--oom-score-adj", "", 'expected a number from -1000 to 1000, got ""'),
        ("--caps-retain", "", 'expected names of capabilities like CAP_NET_ADMIN, got ""'),
        ("--caps-retain", "CAP_KILL,", 'expected names of capabilities like CAP_NET_ADMIN, got ""'),
        ("--caps-remove", "KILL", 'expected names of capabilities like CAP_NET_ADMIN, got "KILL"'),
        ("--caps-remove", "cap_kill", 'expected names of capabilities like CAP_NET_ADMIN, got "cap_kill"'),
        (
            *("--seccomp", "chmod"),
            'expected mode=retain|remove[,errno=NAME],CALL,... with a mode and at least one call, got "chmod"',
        ),
        (
            *("--seccomp", "mode=remove"),
            'expected mode=retain|remove[,errno=NAME],CALL,... with a mode and at least one call, got "mode=remove"',
        ),
        ("--seccomp", "mode=deny,chmod", 'expected mode=retain|remove[,errno=NAME],CALL,..., got "mode=deny"'),
        (
            "--seccomp",
            "mode=remove,mode=retain",
            'expected mode=retain|remove[,errno=NAME],CALL,..., got "mode=retain"',
        ),
        (
            "--seccomp",
            "mode=remove,errno=ENOPE,a",
            'expected mode=retain|remove[,errno=NAME],CALL,..., got "errno=ENOPE"',
        ),
        (
            "--seccomp",
            "mode=remove,errno=error,a",
            'expected mode=retain|remove[,errno=NAME],CALL,..., got "errno=error"',
        ),
        ("--seccomp", "mode=remove,a,,b", 'expected mode=retain|remove[,errno=NAME],CALL,..., got ""'),
        ("--seccomp", "mode=remove,a b", 'expected mode=retain|remove[,errno=NAME],CALL,..., got "a b"'),
    ],
)
def test_bad_values(flag: str, text: str, message: str) -> None:
    """An error is told with the expected value."""
    with pytest.raises(FlagError) as caught:
        PARSERS[flag](flag, text)
    assert str(caught.value) == f"{flag}: {message}"


CALLS = st.lists(st.from_regex(r"[a-z_0-9]+|@[a-z]+/[a-z-]+", fullmatch=True), min_size=1)


@given(
    CALLS, st.sampled_from(["retain", "remove"]), st.sampled_from(["", "EPERM", "E2BIG", "EWOULDBLOCK"]), st.randoms()
)
def test_seccomp_words_stand_in_any_order(calls: list[str], mode: str, error: str, random: object) -> None:
    """Wherever mode and errno stand, the calls keep their order."""
    words = list(calls)
    for word in [f"mode={mode}", *([f"errno={error}"] if error else [])]:
        words.insert(random.randrange(len(words) + 1), word)  # type: ignore[attr-defined]
    isolator = parse_seccomp("--seccomp", ",".join(words))
    assert isolator == Isolator(name=f"os/linux/seccomp-{mode}-set", value={"set": calls, "errno": error})


@given(st.sampled_from(sorted(PARSERS)), st.text())
def test_any_value_is_read_or_refused(flag: str, text: str) -> None:
    """No value leads to anything but an isolator or a FlagError that names the flag."""
    try:
        PARSERS[flag](flag, text)
    except FlagError as error:
        assert str(error).startswith(f"{flag}: ")
