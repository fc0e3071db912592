"""
Deciding the system calls of an app by the annotation minit/seccomp, which the caller gives and no image can.

It stands in the place of the default list. A list of an isolator stays, and takes away from it.
"""

from __future__ import annotations

from minit.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.capabilities import DEFAULT, capability_names
from minit.manifest.pod import RuntimeApp
from minit.manifest.seccomp import SECCOMP_WORDS, WORD_CAPABILITIES, WORD_GUARDED, WORD_UNCONFINED, SeccompPolicy
from minit.manifest.syscallsets import CAPABILITY_CALLS
from minit.plan.rights.seccompprofile import UNLIMITED, SeccompProfile, Surroundings, read_profile
from minit.value import replace


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
