"""minit.launcher.devices.devicepolicy: the BPF program answers as the rules say, for every use of every device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minit.launcher.devices.devicepolicy import assemble_filter
from minit.plan.root.devicevolumes import DEFAULT_RULES, DeviceRule
from tests.support.ebpf import run_device_filter

# enum of linux/bpf.h
MKNOD, READ, WRITE = 1, 2, 4
BLOCK, CHARACTER = 1, 2
NUMBERS = st.integers(0, 3) | st.sampled_from((136, 4095, (1 << 20) - 1))
RULES = st.builds(
    DeviceRule,
    kind=st.sampled_from("bc"),
    major=NUMBERS,
    minor=st.none() | NUMBERS,
    access=st.sampled_from(("r", "w", "m", "rw", "rm", "wm", "rwm")),
)


def allows(rule: DeviceRule, access: int, kind: int, major: int, minor: int) -> bool:
    """Return what the kernel's documentation says that a rule means."""
    given = sum({"m": MKNOD, "r": READ, "w": WRITE}[letter] for letter in rule.access)
    numbers = (rule.kind, rule.major) == ({BLOCK: "b", CHARACTER: "c"}[kind], major) and rule.minor in (None, minor)
    return numbers and access & ~given == 0


@given(
    rules=st.lists(RULES, max_size=8),
    access=st.integers(1, 7),
    kind=st.sampled_from((BLOCK, CHARACTER)),
    major=NUMBERS,
    minor=NUMBERS,
)
def test_the_program_means_the_rules(rules: list[DeviceRule], access: int, kind: int, major: int, minor: int) -> None:
    """Devices that one rule allows altogether are allowed, and no others."""
    expected = any(allows(rule, access, kind, major, minor) for rule in rules)
    assert run_device_filter(assemble_filter(rules), access, kind, major, minor) == expected


def test_the_default_policy() -> None:
    """As the list says: null can be made, ptmx used but not made, a disk neither."""
    program = assemble_filter(DEFAULT_RULES)
    assert run_device_filter(program, MKNOD, CHARACTER, 1, 3) == 1
    assert run_device_filter(program, READ | WRITE, CHARACTER, 5, 2) == 1
    assert run_device_filter(program, MKNOD, CHARACTER, 5, 2) == 0
    assert run_device_filter(program, READ | WRITE, CHARACTER, 143, 70000) == 1
    assert run_device_filter(program, READ, BLOCK, 1, 3) == 0
