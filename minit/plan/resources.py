"""The limits and devices of an app, and the isolators of a pod and the apps, each read with the place."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.value import Value, replace
from minit.linux.attributes import Limit, narrower
from minit.manifest.annotations import Annotation
from minit.manifest.app import (
    App,
)
from minit.manifest.limits import CONTROLLERS, Limits, with_annotation
from minit.manifest.reader import place
from minit.manifest.ulimits import RESOURCES, read_ulimits, spell_bounds
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.loadedpod import AppInput, Pod, has_isolators
from minit.plan.rights.isolators import Isolation, plan_isolation, plan_pod_limits, plan_process_limit
from minit.plan.root.devicevolumes import DEFAULT_RULES, DeviceRule
from minit.podfiles.paths import POD_MANIFEST, app_manifest


def plan_isolations(
    pod: Pod, sections: Sequence[App], facts: HostFacts
) -> tuple[Limits | None, Sequence[Isolation | None], list[str]]:
    """Return the limits of all apps together, what the isolators of each come to, and the warnings to show."""
    if not has_isolators(pod):
        return None, [None] * len(sections), []
    delegated, facts = facts, _with_every_controller(facts)
    limits, warnings = plan_pod_limits(pod.manifest.isolators, place(POD_MANIFEST, "isolators"), facts)
    annotation = pod.manifest.annotation(Annotation.PIDS_LIMIT)
    limits, notes = plan_process_limit(limits, annotation, "", facts.controllers)
    warnings += notes
    _require_delegated("pod", limits, delegated)
    isolations = []
    for index, (runtime, app) in enumerate(zip(pod.manifest.apps, sections), pod.first):
        path = (POD_MANIFEST, "apps", index, "app") if runtime.app else (app_manifest(runtime.name), "app")
        isolation, notes = plan_isolation(app.isolators, place(*path, "isolators"), facts)
        warnings += notes
        annotation = runtime.annotation(Annotation.PIDS_LIMIT)
        own, notes = plan_process_limit(isolation.limits, annotation, f'app "{runtime.name}": ', facts.controllers)
        warnings += notes
        where = f'app "{runtime.name}": annotation {Annotation.LIMITS}'
        own = with_annotation(own, runtime.annotation(Annotation.LIMITS), where)
        _require_delegated(f'app "{runtime.name}"', own, delegated)
        isolations.append(replace(isolation, limits=own.within(limits)))
    return (limits if limits.controllers else None), isolations, warnings


def _with_every_controller(facts: HostFacts) -> HostFacts:
    """Return the facts, with all controllers for a user without root, who is refused limits without effect."""
    return facts if facts.delegated_groups is None else replace(facts, controllers=CONTROLLERS)


def _require_delegated(owner: str, limits: Limits, facts: HostFacts) -> None:
    """Raise PlanError for a limit of a controller that root has not delegated to the user."""
    if facts.delegated_groups is None:
        return
    if limits.needed_controllers and not facts.delegated_groups:
        raise PlanError(f"{owner}: limits need control groups, and none are delegated to you (see docs/rootless.md)")
    missing = sorted(limits.needed_controllers - facts.controllers)
    if missing:
        delegated = ", ".join(sorted(facts.controllers & CONTROLLERS)) or "none"
        raise PlanError(
            f"{owner}: no limit of {missing[0]}: its control group is not delegated to you"
            f" (delegated: {delegated}; see docs/rootless.md)"
        )


class ResourcePlan(Value):
    """The limits of an app's control group and of its processes, and its devices."""

    limits: Limits | None = None
    """None if nobody asks for limits."""
    oom_score_adj: int | None = None
    """None if nobody asks for a value."""
    rlimits: tuple[Limit, ...] = ()
    """The limits of getrlimit(2) of every process of the app."""
    ulimits: tuple[str, ...] = ()
    """Those of them that are not every app's, in words."""
    devices: tuple[DeviceRule, ...] | None = None
    """The devices that the app may use, None for all."""
    hotplug: bool = False
    """Whether devices among the volumes come and go as on the host."""

    def describe(self) -> list[str]:
        """Return the devices and limits as lines for --debug."""
        rules = "all" if self.devices is None else ", ".join(rule.describe() for rule in self.devices) or "none"
        lines = [f"devices {rules}{', as they come and go' if self.hotplug else ''}"]
        lines += [] if self.oom_score_adj is None else [f"oom_score_adj {self.oom_score_adj}"]
        lines += [f"ulimits {', '.join(self.ulimits)}"] if self.ulimits else []
        return lines + ([] if self.limits is None else [f"limits {self.limits.describe()}"])


def plan_resources(given: AppInput, isolation: Isolation | None) -> tuple[ResourcePlan, list[str]]:
    """Return the resources of an app with the effect of its isolators, None without any, and the warnings to show."""
    limits = Limits() if isolation is None else isolation.limits
    pod = given.pod
    # The kernel lets an app of a user namespace use no device that it has made.
    is_free = pod.flags.disable_paths or given.is_privileged or pod.facts.shown_devices is not None
    rlimits, ulimits, warnings = _plan_rlimits(given)
    plan = ResourcePlan(
        limits=None if limits == Limits() else limits,
        oom_score_adj=None if isolation is None else isolation.oom_score_adj,
        rlimits=rlimits,
        ulimits=ulimits,
        devices=None if is_free else DEFAULT_RULES,
        hotplug=given.has_hotplug,
    )
    return plan, warnings


def _plan_rlimits(given: AppInput) -> tuple[tuple[Limit, ...], tuple[str, ...], list[str]]:
    """Return the limits of getrlimit(2) of an app, those that are not every app's, in words, and the warnings."""
    facts, where = given.pod.facts, f'app "{given.name}": annotation {Annotation.ULIMITS}'
    asked, of_caller = read_ulimits(given.runtime.annotation(Annotation.ULIMITS), where)
    own = {number: (soft, hard) for number, soft, hard in facts.limits} if of_caller else {}
    rlimits, words, warnings = [], [], []
    for name, row in RESOURCES.items():
        usual = row.usual(facts.threads_max)
        wanted = asked.get(name) or own.get(row.number, usual)
        soft, hard = (narrower(limit, facts.hard_limits[row.number]) for limit in wanted)
        text = f"{name}={spell_bounds((soft, hard))}"
        rlimits.append((row.number, soft, hard))
        words += [] if (soft, hard) == usual else [text]
        if name in asked and (soft, hard) != wanted:
            reason = "the kernel, or the rights of the caller, allow no more"
            warnings.append(f"warning: {where}: {text} in place of {spell_bounds(wanted)}: {reason}")
    return tuple(rlimits), tuple(words), warnings
