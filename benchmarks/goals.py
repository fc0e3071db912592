"""The goals of minit, beside this run's measurements: ratios of minima to a peer, or figures of its own."""

from __future__ import annotations

import sys
from typing import NamedTuple

from benchmarks import node, reexecution, rootless
from benchmarks.bootimages import WITH_SWAP
from benchmarks.table import MINIMA

_Figure = tuple[str, str]

_ISOLATED = "exec to first instruction, isolated"
_WHOLE = "whole command to first instruction"
_NETWORK = "default network: exec to first instruction"
_COMMANDS = "a command, with one running pod"
_PYTHON = "the command's interpreter, `-I -S -c pass`"
_MANY = "proportional set size of each of many at once"
_ROW = "10 pods in a row, each"
_BOOT = "init to first app, 10⁹ instructions/s"
_MEMORY = "memory in use, of 256 MiB"
_IMAGE = "initial file system, gzip"
_NO_INIT = "no init: the app"

# The benchmarks that measure the goals.
MEASURED_BY = (
    *("isolation", "whole-run", "networks", "many-apps", "commands", "enter", "gc", "memory", "pods-in-a-row"),
    *("boot-instructions", "orphans", "image-size", "node", "rootless", "reexecution"),
)


class Goal(NamedTuple):
    """At most so many of a unit, or so many times the peer; `less` is taken off the figure first."""

    what: str
    figure: _Figure
    limit: float
    unit: str
    peer: _Figure | None = None
    less: _Figure | None = None


GOALS = (
    Goal("entrypoint", (_ISOLATED, "minit, by default"), 0.9, "ms", (_ISOLATED, "runc, the same list")),
    Goal("entrypoint", (_ISOLATED, "minit, by default"), 1.3, "ms", (_ISOLATED, "crun, the same list")),
    Goal("`minit run`", (_WHOLE, "minit run"), 1.5, "ms", (_WHOLE, "minit, the entrypoint alone")),
    Goal("default network, more", (_NETWORK, "built in"), 10, "ms", less=(_NETWORK, "`--net=none`")),
    *(
        Goal(f"last of {count} apps", (title, f"minit, {count} apps"), 0.4, "ms", (title, f"crun, {count} in a row"))
        for count, title in ((count, f"the last of {count} apps, exec to first instruction") for count in (10, 50))
    ),
    *(
        Goal(f"`minit {name}`", (_COMMANDS, f"minit {name}"), 1.5, "ms", (_COMMANDS, _PYTHON))
        for name in ("list", "status", "stop --no-wait", "app list")
    ),
    Goal("`minit list`", (_COMMANDS, "minit list"), 1, "ms", (_COMMANDS, "podman ps")),
    Goal(
        "`minit enter`",
        ("one command in a running pod", "minit enter"),
        *(1, "ms"),
        ("one command in a running pod", "runc exec"),
    ),
    Goal("`minit gc`, each of 20 pods", ("gc of 20 pods, for each", "minit gc"), 5, "ms"),
    Goal("`minit gc`, each of 1000 pods", ("gc of 1000 pods, for each", "minit gc"), 5, "ms"),
    Goal("anonymous memory", ("anonymous memory", "minit, one app"), 12 if sys.version_info < (3, 12) else 8, "MB"),
    Goal("each further app", ("anonymous memory", "minit, each further app"), 0.5, "MB"),
    Goal("20 pods, PSS of each", (_MANY, "minit, 20 pods of one app"), 13.7, "MB"),
    Goal("pods in a row", (_ROW, "minit"), 1, "ms", (_ROW, "runc")),
    Goal("processor time of a pod", ("processor time of each pod", "minit"), 25, "ms"),
    Goal("init to first app, 10⁶ instructions", (_BOOT, "minit"), 50, ""),
    Goal("init to first app", (_BOOT, "minit"), 1, "", (_BOOT, "systemd")),
    Goal("a machine's memory beside the app, with [swap]", (_MEMORY, WITH_SWAP), 14, "MiB", less=(_MEMORY, _NO_INIT)),
    *(
        Goal(what, (title, "minit"), 14, "MiB", less=(title, _NO_INIT))
        for what, title in (
            ("a machine's memory beside the app", _MEMORY),
            ("the same, root on a disk", f"{_MEMORY}, root on a disk"),
        )
    ),
    Goal("a machine's image beside the app", (_IMAGE, "minit"), 8, "MiB", less=(_IMAGE, _NO_INIT)),
    Goal("10,000 orphans", ("10000 orphans", "minit"), 10_000 / 300, "ms"),
    Goal("an orphan's processor time", ("processor time for each orphan", "minit"), 4, "us"),
    Goal("CRI: a pod", (node.STARTED, "minit"), 1, "ms", (node.STARTED, "containerd")),
    Goal("CRI: a container is created", (node.CREATED, "minit"), 4, "ms", (node.CREATED, "containerd")),
    Goal("CRI: five containers, started", (node.STARTED_ALL, "minit"), 1.2, "ms", (node.STARTED_ALL, "containerd")),
    Goal("CRI: five containers, removed", (node.ENDED_ALL, "minit"), 1.2, "ms", (node.ENDED_ALL, "containerd")),
    Goal("CRI: fifty containers, listed", (node.LISTED, "minit"), 2, "ms", (node.LISTED, "containerd")),
    Goal("CRI: processor time of a probe", (node.PROBE_PROCESSOR, "minit"), 10, "ms"),
    Goal(f"CRI: {node.FULL_PODS} pods, memory", (node.private_of(node.FULL_PODS), "minit"), 10, "MB"),
    Goal(f"CRI: {node.FULL_PODS} idle pods, each second", (node.idle_of(node.FULL_PODS), "minit"), 20, "ms"),
    *(
        Goal(
            f"without root: first instruction, network {network}",
            *((rootless.start_title(network), rootless.WITHOUT), limit, "ms"),
            (rootless.start_title(network), rootless.OF_ROOT),
        )
        for network, limit in (("none", 1.2), ("default", 1.3))
    ),
    *(
        Goal(
            f"without root: first pod of the user, more, network {network}",
            *((rootless.whole_title(network), rootless.FIRST_POD), 50, "ms"),
            less=(rootless.whole_title(network), rootless.WITHOUT),
        )
        for network in rootless.NETWORKS
    ),
    Goal("without root: `minit list`", (rootless.LIST, rootless.WITHOUT), 1.1, "ms", (rootless.LIST, rootless.OF_ROOT)),
    *(
        Goal(
            f"without root: `run --rm`, network {network}",
            *((rootless.whole_title(network), rootless.WITHOUT), 0.6, "ms"),
            (rootless.whole_title(network), rootless.PODMAN),
        )
        for network in rootless.NETWORKS
    ),
    Goal(
        "without root: a forwarded port",
        *((rootless.FORWARDED, rootless.WITHOUT), 1 / 2, "ms"),
        (rootless.FORWARDED, rootless.PODMAN),
    ),
    Goal(
        "without root: outward traffic",
        *((rootless.OUTWARD, rootless.WITHOUT), 1 / 0.95, "ms"),
        (rootless.OUTWARD, rootless.ALONE),
    ),
    Goal("without root: memory of each app without groups", (rootless.MEMORY, rootless.INIT), 0.3, "MB"),
    *(
        Goal(f"PID 1 anew, {count} apps", (reexecution.title(count), "minit, again"), limit, "ms")
        for count, limit in zip(reexecution.COUNTS, (6, 20, 60))
    ),
    # Not more than 2 % above 0.3.0, whose PID 1 could not begin anew.
    *(
        Goal(f"PID 1's memory before, {count} apps", (reexecution.memory_title(count), "before"), limit, "MB")
        for count, limit in zip(reexecution.COUNTS, (3.2, 3.5, 5.2))
    ),
    *(
        Goal(
            f"`minit upgrade`, {count} apps",
            *((reexecution.upgrade_title(count), reexecution.UPGRADE), 3, "ms"),
            (reexecution.upgrade_title(count), reexecution.START),
        )
        for count in reexecution.UPGRADED
    ),
    Goal("stage1 image", ("stage1 image, gzip", "minit"), 8, "MB"),
)


def main() -> None:
    """Print the table of those goals that this run has measured."""
    if MINIMA.keys().isdisjoint(goal.figure for goal in GOALS):
        return
    print("\n| goal | measured | peer | ratio | at most | |")
    print("|---|---|---|---|---|---|")
    for goal in GOALS:
        if goal.figure in MINIMA:
            print(f"| {' | '.join(_row(goal))} |")


def _row(goal: Goal) -> tuple[str, ...]:
    figure = MINIMA[goal.figure] - (MINIMA[goal.less] if goal.less else 0)
    measured = f"{figure:.1f} {goal.unit}".strip()
    if goal.peer is None:
        return goal.what, measured, "", "", f"{goal.limit:.3g} {goal.unit}".strip(), _verdict(figure, goal)
    if goal.peer not in MINIMA:
        return goal.what, measured, f"{goal.peer[1]}: -", "-", f"{goal.limit:.3g} x", "not measured"
    peer = MINIMA[goal.peer]
    return (
        *(goal.what, measured, f"{goal.peer[1]}: {peer:.1f}", f"{figure / peer:.2f} x"),
        *(f"{goal.limit:.3g} x", _verdict(figure / peer, goal)),
    )


def _verdict(value: float, goal: Goal) -> str:
    return "met" if value <= goal.limit else "missed"
