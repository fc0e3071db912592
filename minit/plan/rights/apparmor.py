"""Deciding the AppArmor profile of an app: the annotation minit/apparmor-profile."""

from __future__ import annotations

from minit.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.plan.inputs.hostfacts import HostFacts


def plan_apparmor(runtime: RuntimeApp, facts: HostFacts) -> str | None:
    """Return the profile of an app, None without one; PlanError for one that the kernel does not have."""
    profile = runtime.annotation(Annotation.APPARMOR_PROFILE)
    if profile is None:
        return None
    where = f'app "{runtime.name}": {Annotation.APPARMOR_PROFILE}'
    if facts.loaded_profiles is None:
        raise PlanError(f'{where}: cannot have profile "{profile}": this kernel has no AppArmor, or it is not enabled')
    if profile not in facts.loaded_profiles:
        raise PlanError(f'{where}: profile "{profile}" is not loaded')
    return profile
