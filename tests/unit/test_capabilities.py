"""minit.manifest.capabilities: names, numbers and rkt's default set."""

from __future__ import annotations

import pytest

from minit.manifest.capabilities import DEFAULT, NAMES, capability_mask, capability_names

# stage1 contract: what rkt's functional tests want an app without isolators to hold.
RKT_DEFAULT = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETFCAP",
    "CAP_SYS_CHROOT",
]


def test_the_default_set_is_rkts() -> None:
    """Fourteen capabilities remain by default, those of rkt's tests."""
    assert len(RKT_DEFAULT) == 14
    assert sorted(capability_names(DEFAULT)) == sorted(RKT_DEFAULT)


def test_numbers_are_the_kernels() -> None:
    """A name's place is its number in linux/capability.h."""
    assert len(NAMES) == 41
    assert [NAMES[number] for number in (0, 5, 12, 21, 31, 40)] == [
        *("CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SETFCAP", "CAP_CHECKPOINT_RESTORE")
    ]
    # The bit pattern that /proc/PID/status shows for docker's and rkt's common set.
    assert DEFAULT == 0xA80425FB


def test_mask_and_names_are_inverse() -> None:
    """Every single capability comes back from its mask, and so do all together."""
    assert all(capability_names(capability_mask(name)) == [name] for name in NAMES)
    assert capability_names(capability_mask(*reversed(NAMES))) == list(NAMES)
    assert capability_names(capability_mask()) == []


def test_an_unknown_name_is_refused() -> None:
    """A misspelt capability is an error, not an empty mask."""
    with pytest.raises(ValueError):
        capability_mask("CAP_SYS_ADMlN")
