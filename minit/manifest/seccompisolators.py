"""The meaning of isolators about system calls and privileges."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from minit.manifest.app import NO_NEW_PRIVILEGES, SECCOMP_REMOVE, SECCOMP_RETAIN, Isolator
from minit.manifest.reader import Node
from minit.manifest.seccomp import DEFAULT_POLICY, SeccompPolicy
from minit.manifest.syscallsets import ALL, EMPTY, SETS

# Missing in Python's errno module.
_MORE_ERRORS = {"EHWPOISON": 133}


def plan_seccomp(app: str, isolators: Iterable[Isolator]) -> tuple[SeccompPolicy | None, list[str]]:
    """
    Return the policy that the isolators of an app ask for, None for no filter at all, and the warnings to show.

    ManifestError for a value that is none of a seccomp isolator.
    """
    for isolator in isolators:
        if isolator.name in (SECCOMP_RETAIN, SECCOMP_REMOVE):
            return _plan_set(app, isolator)
    return DEFAULT_POLICY, []


def plan_no_new_privileges(app: str, isolators: Iterable[Isolator]) -> bool:
    """Return whether any isolator says that an exec may grant no privileges; there may be several."""
    given = [_node(app, isolator).boolean() for isolator in isolators if isolator.name == NO_NEW_PRIVILEGES]
    return True in given


def _plan_set(app: str, isolator: Isolator) -> tuple[SeccompPolicy | None, list[str]]:
    node = _node(app, isolator)
    words = node["set"].each(Node.non_empty)
    if not words:
        raise node["set"].error("at least one system call")
    error = node["errno"].optional(_read_error)
    is_blacklist = isolator.name == SECCOMP_REMOVE
    decisive = next((word for word in words if word in (ALL, EMPTY)), None)
    policy: SeccompPolicy | None
    if decisive is None:
        policy, notes = _policy_of(words, is_blacklist, error)
    else:
        # rkt's rule: the first of the two decides alone.
        notes = [f"{decisive} stands alone, what else is in the set is ignored"] if len(words) > 1 else []
        policy = SeccompPolicy(is_blacklist=is_blacklist, names=frozenset(), error=error)
        if decisive == ALL:
            if is_blacklist:
                notes.append(f"{ALL} removes nothing: every system call is allowed")
            else:
                policy = None
        elif is_blacklist:
            policy = SeccompPolicy(error=error)
    return policy, [f'warning: app "{app}": {isolator.name}: {note}' for note in notes]


def _policy_of(words: tuple[str, ...], is_blacklist: bool, error: int | None) -> tuple[SeccompPolicy, list[str]]:
    own = tuple(dict.fromkeys(word for word in words if not word.startswith("@")))
    sets = [word for word in words if word.startswith("@")]
    names = frozenset(own).union(*(SETS[word] for word in sets if word in SETS))
    notes = [f"ignoring unknown set {word}" for word in sets if word not in SETS]
    return SeccompPolicy(is_blacklist=is_blacklist, names=names, own=own, error=error), notes


def _node(app: str, isolator: Isolator) -> Node:
    return Node(isolator.value, None, f'app "{app}": isolator {isolator.name}')


def find_error(name: str) -> int | None:
    """Return the number of the error with that name, EPERM for one; None if there is none."""
    number = _MORE_ERRORS.get(name) or getattr(errno, name, None)
    return number if name.startswith("E") and isinstance(number, int) else None


def _read_error(node: Node) -> int | None:
    name = node.string()
    # Go writes an error that nobody named as "".
    if not name:
        return None
    number = find_error(name)
    if number is None:
        raise node.error("the name of an error, EPERM for one")
    return number
