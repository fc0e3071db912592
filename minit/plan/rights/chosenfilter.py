"""
Deciding the system calls of an app, their error and its AppArmor profile, by annotations that no image can have.

What minit/seccomp says stands in the place of the default list. A list of an isolator stays, and takes away from it.
"""

from __future__ import annotations

from typing import Any

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.manifest.annotations import Annotation
from minit.manifest.capabilities import DEFAULT, capability_names
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.manifest.seccomp import SECCOMP_WORDS, WORD_CAPABILITIES, WORD_GUARDED, WORD_UNCONFINED, SeccompPolicy
from minit.manifest.seccompisolators import find_error
from minit.manifest.syscallsets import CAPABILITY_CALLS
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.rights.seccompprofile import UNLIMITED, SeccompProfile, Surroundings, read_profile

_FATAL = "kill"


def plan_profile(runtime: RuntimeApp, surroundings: Surroundings) -> SeccompProfile | None:
    """Return the profile of an app; ManifestError or PlanError for one that it cannot have."""
    text = runtime.annotation(Annotation.SECCOMP)
    if text is None or text == WORD_CAPABILITIES:
        return None
    if text in (WORD_UNCONFINED, WORD_GUARDED):
        return UNLIMITED
    where = f'app "{runtime.name}": annotation {Annotation.SECCOMP}'
    if not text.startswith("{"):
        raise PlanError(f"{where}: expected {', '.join(SECCOMP_WORDS)} or a profile in JSON")
    return read_profile(text, where, surroundings)


def is_unconfined(runtime: RuntimeApp) -> bool:
    """Tell whether an app is to have no filter at all, by that name: a profile that allows everything has guards."""
    return runtime.annotation(Annotation.SECCOMP) == WORD_UNCONFINED


def open_by_capabilities(runtime: RuntimeApp, policy: SeccompPolicy, capabilities: int) -> SeccompPolicy:
    """Return the default list with the calls that the given capabilities beyond the default ones are for."""
    if runtime.annotation(Annotation.SECCOMP) != WORD_CAPABILITIES or not policy.is_default:
        return policy
    more = (CAPABILITY_CALLS.get(name, frozenset()) for name in capability_names(capabilities & ~DEFAULT))
    return replace(policy, opened=frozenset().union(*more))


def plan_refused_error(policy: SeccompPolicy | None, runtime: RuntimeApp, manifest: PodManifest) -> dict[str, Any]:
    """
    Return the fields of an app's plan with the error of its annotation, or the pod's: none for rkt's answer, death.

    `policy` is the app's own, whose error stays. PlanError for a word that is no error.
    """
    for where, owner in ((f'app "{runtime.name}": ', runtime), ("", manifest)):
        name = owner.annotation(Annotation.SECCOMP_ERRNO)
        if name is None:
            continue
        if name == _FATAL:
            break
        error = find_error(name)
        if error is None:
            raise PlanError(
                f'{where}annotation {Annotation.SECCOMP_ERRNO}: expected the name of an error or {_FATAL}, got "{name}"'
            )
        own = policy if policy is None or policy.error is not None else replace(policy, error=error)
        return {"seccomp": own, "default_seccomp": SeccompPolicy(error=error)}
    return {}


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
