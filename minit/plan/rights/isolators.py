"""
The effect of the isolators of an app or a pod: capabilities, limits, the OOM killer's score.

stage1 contract 10; appc spec, ace.md, "Isolators". A senseless value and a contradiction are refused with the place in
the manifest. An isolator that rkt's stage1 does not apply, an unknown isolator, or an isolator beyond this machine
causes a warning.
"""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import ManifestError, PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import (
    APPARMOR_PROFILE,
    CAPABILITIES_REMOVE,
    CAPABILITIES_RETAIN,
    CPU_SHARES,
    NO_NEW_PRIVILEGES,
    OOM_SCORE_ADJ,
    SECCOMP_REMOVE,
    SECCOMP_RETAIN,
    SELINUX_CONTEXT,
    SYSCTL,
    Isolator,
)
from minit.manifest.capabilities import DEFAULT, capability_names, read_capability_sets
from minit.manifest.limits import Limits, read_isolator
from minit.manifest.reader import Node
from minit.plan.inputs.hostfacts import HostFacts

_UNAPPLIED = (
    *("resource/block-bandwidth", "resource/block-iops", "resource/network-bandwidth"),
    *(SELINUX_CONTEXT, SYSCTL),
)
# Decided in other modules, or refused by `minit.plan.appplan`.
_ELSEWHERE = (
    *(SECCOMP_RETAIN, SECCOMP_REMOVE, NO_NEW_PRIVILEGES),
    APPARMOR_PROFILE,
)

# Of appc's scope "app" alone.
_OF_APPS = (
    *(CAPABILITIES_RETAIN, CAPABILITIES_REMOVE, CPU_SHARES, OOM_SCORE_ADJ),
    *(SECCOMP_RETAIN, SECCOMP_REMOVE, NO_NEW_PRIVILEGES),
)

_MAX_PROCESSES = 1 << 22  # PID_MAX_LIMIT of 64-bit kernels, proc_sys_kernel(5)


class Isolation(Value):
    """
    The effect of an app's isolators.

    `bounding` is a capability mask; `oom_score_adj` is None if nobody asks for one.
    """

    bounding: int = DEFAULT
    oom_score_adj: int | None = None
    limits: Limits = Limits()


def plan_isolation(isolators: Sequence[Isolator], where: Node, facts: HostFacts) -> tuple[Isolation, list[str]]:
    """
    Return the effect of an app's isolators, and the warnings to show; ManifestError for bad values.

    `where` is the place of the list in the manifest. Of several isolators of one name the last counts, but sets of
    capabilities add up.
    """
    retained, removed = read_capability_sets(isolators, where)
    oom_score_adj: int | None = None
    others = []
    for name, node in _nodes(isolators, where):
        if name == OOM_SCORE_ADJ:
            oom_score_adj = node["value"].integer(-1000, 1000)
        elif name not in (CAPABILITIES_RETAIN, CAPABILITIES_REMOVE):
            others.append((name, node))
    limits, warnings = _plan_limits(others, facts.controllers)
    if missing := retained & ~facts.capabilities:
        names = " ".join(capability_names(missing))
        warnings.append(f"warning: {names} cannot be retained: the caller does not hold it ({where.where})")
    bounding = retained or DEFAULT & ~removed
    return Isolation(bounding=bounding, oom_score_adj=oom_score_adj, limits=limits), warnings


def plan_pod_limits(isolators: Sequence[Isolator], where: Node, facts: HostFacts) -> tuple[Limits, list[str]]:
    """Return what all apps of a pod together may use, and the warnings to show; otherwise as plan_isolation."""
    nodes = _nodes(isolators, where)
    for name, node in nodes:
        if name in _OF_APPS:
            # Not ignored: the pod would look confined without being so.
            raise ManifestError(f"{node.where}: isolator {name} is one of apps, not of pods")
    return _plan_limits(nodes, facts.controllers)


def _nodes(isolators: Sequence[Isolator], where: Node) -> list[tuple[str, Node]]:
    return [(isolator.name, Node({"value": isolator.value}, where, index)) for index, isolator in enumerate(isolators)]


def _plan_limits(nodes: Sequence[tuple[str, Node]], controllers: frozenset[str]) -> tuple[Limits, list[str]]:
    limits = Limits()
    warnings = []
    for name, node in nodes:
        own = read_isolator(name, node["value"])
        if own is None and name in _UNAPPLIED:
            warnings.append(f"warning: isolator {name} is not applied ({node.where})")
        elif own is None and name not in _ELSEWHERE:
            warnings.append(f"warning: ignoring unknown isolator {name} ({node.where})")
        elif own == Limits() and node["value"]["request"].given:
            warnings.append(f"warning: isolator {name} without a limit is not applied ({node.where})")
        elif own is not None and own.needed_controllers - controllers:
            warnings.append(unsupported(f"{name} isolator", node.where))
        elif own is not None:
            limits = limits.updated(own)
    return limits, warnings


def plan_process_limit(
    limits: Limits, text: str | None, where: str, controllers: frozenset[str]
) -> tuple[Limits, list[str]]:
    """Return `limits` with the annotation `text`, and the warnings to show; PlanError, after `where`, for a bad one."""
    if text is None:
        return limits, []
    expected = f"a number of processes from 1 to {_MAX_PROCESSES}"
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_PROCESSES)) else 0
    if not 1 <= number <= _MAX_PROCESSES:
        raise PlanError(f'{where}annotation {Annotation.PIDS_LIMIT}: expected {expected}, got "{text}"')
    own = Limits(processes=number)
    if own.needed_controllers - controllers:
        return limits, [unsupported(f"{where}annotation {Annotation.PIDS_LIMIT}")]
    return limits.updated(own), []


def unsupported(what: str, where: str | None = None) -> str:
    """Return rkt's warning of a limit that this machine cannot keep."""
    place = "" if where is None else f" ({where})"
    return f"warning: {what} set but support disabled in the kernel, skipping{place}"
