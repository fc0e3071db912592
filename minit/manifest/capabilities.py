"""Capabilities: names and numbers, the set that rkt leaves an app by default, and isolators."""

from __future__ import annotations

from collections.abc import Sequence, Set

from minit.base.errors import ManifestError
from minit.manifest.app import CAPABILITIES_REMOVE, CAPABILITIES_RETAIN, Isolator
from minit.manifest.reader import Node

# In the order of include/uapi/linux/capability.h: the place of a name is the number of the capability.
NAMES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL"),
    *("CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE"),
    *("CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE"),
    *("CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT"),
    *("CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE"),
    *("CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG"),
    *("CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"),
)


def capability_mask(*names: str) -> int:
    """Return the bit mask of capabilities given by name; ValueError for an unknown one."""
    mask = 0
    for name in names:
        mask |= 1 << NAMES.index(name)
    return mask


def capability_names(mask: int) -> list[str]:
    """Return the names of the capabilities in a mask, in numeric order."""
    return [name for number, name in enumerate(NAMES) if mask >> number & 1]


# rkt's default set, pinned by its functional tests.
DEFAULT = capability_mask(
    *("CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD"),
    *("CAP_NET_RAW", "CAP_NET_BIND_SERVICE", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETFCAP"),
    "CAP_SYS_CHROOT",
)


ALL_CAPABILITIES = "CAP_ALL"
"""Every capability, where a caller adds or drops some."""


def capability_isolators(added: Set[str], dropped: Set[str]) -> tuple[Isolator, ...]:
    """
    Return the isolator of a container's capabilities: the default set with additions, then without the dropped ones.

    ALL_CAPABILITIES is first added and first dropped, as in other runtimes: capabilities by name come after.
    """
    if not added and not dropped:
        return ()
    usual = capability_names(DEFAULT)
    held = set() if ALL_CAPABILITIES in dropped else {*NAMES} if ALL_CAPABILITIES in added else {*usual}
    held = (held | added) - dropped - {ALL_CAPABILITIES}
    if held:
        return (Isolator(name=CAPABILITIES_RETAIN, value={"set": [name for name in NAMES if name in held]}),)
    # An empty set is none to appc.
    return (Isolator(name=CAPABILITIES_REMOVE, value={"set": usual}),)


def read_capability_sets(isolators: Sequence[Isolator], where: Node) -> tuple[int, int]:
    """
    Return the masks that isolators retain and remove, 0 without such an isolator; sets of one name add up.

    `where` is the place of the list in its manifest. ManifestError for a bad value, or if the list has both.
    """
    masks = {CAPABILITIES_RETAIN: 0, CAPABILITIES_REMOVE: 0}
    for index, isolator in enumerate(isolators):
        if isolator.name in masks:
            masks[isolator.name] |= _read_set(Node({"value": isolator.value}, where, index)["value"])
    if all(masks.values()):
        raise ManifestError(f"{where.where}: cannot have both {CAPABILITIES_RETAIN} and {CAPABILITIES_REMOVE}")
    return masks[CAPABILITIES_RETAIN], masks[CAPABILITIES_REMOVE]


def _read_set(value: Node) -> int:
    # In any case of letters: rkt passes the names on to systemd, which reads them so.
    names = value["set"].each(lambda node: node.matching(_is_capability, "the name of a capability").upper())
    if not names:
        raise value["set"].error("at least one capability")
    return capability_mask(*names)


def _is_capability(text: str) -> bool:
    # Some letters beyond ASCII have upper cases within ASCII.
    return text.isascii() and text.upper() in NAMES
