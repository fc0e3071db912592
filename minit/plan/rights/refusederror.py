"""Deciding the error of system calls that an app may not make, where its list names none."""

from __future__ import annotations

from typing import Any

from minit.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.manifest.seccomp import SeccompPolicy
from minit.manifest.seccompisolators import find_error
from minit.value import replace

_FATAL = "kill"


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
