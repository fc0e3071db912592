"""The isolators of a pod and of its apps, each read at its place in the manifests."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.value import replace
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.limits import Limits, with_annotation
from minit.manifest.reader import place
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.loadedpod import Pod, has_isolators
from minit.plan.rights.isolators import Isolation, plan_isolation, plan_pod_limits, plan_process_limit
from minit.podfiles.paths import POD_MANIFEST, app_manifest


def plan_isolations(
    pod: Pod, sections: Sequence[App], facts: HostFacts
) -> tuple[Limits | None, Sequence[Isolation | None], list[str]]:
    """Return the limits of all apps together, what the isolators of each come to, and the warnings to show."""
    if not has_isolators(pod):
        return None, [None] * len(sections), []
    limits, warnings = plan_pod_limits(pod.manifest.isolators, place(POD_MANIFEST, "isolators"), facts)
    annotation = pod.manifest.annotation(Annotation.PIDS_LIMIT)
    limits, notes = plan_process_limit(limits, annotation, "", facts.controllers)
    warnings += notes
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
        isolations.append(replace(isolation, limits=own.within(limits)))
    return (limits if limits.controllers else None), isolations, warnings
