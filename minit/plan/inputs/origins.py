"""
The origin of an app's isolators: the image, or the caller.

stage0 copies the isolators of the image into the pod manifest, or the caller's in their place. An isolator that the
image has as well counts as the image's, unless the pod manifest trusts the isolators.
"""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import SECCOMP_REMOVE, SECCOMP_RETAIN, App
from minit.manifest.excess import CAPABILITIES, SECCOMP, Excess, excess_of
from minit.manifest.image import ImageManifest
from minit.manifest.seccomp import plan_seccomp
from minit.plan.inputs.runflags import RunFlags


class Origins(Value):
    """
    The origins of isolators: `capabilities` and `calls` are the image's beyond the default, None without such.

    `caller_calls` tells that the list of system calls is the caller's.
    """

    capabilities: Excess | None = None
    calls: Excess | None = None
    caller_calls: bool = False


def find_origins(name: str, app: App, image: ImageManifest, flags: RunFlags, *, trusted: bool) -> Origins:
    """Return the origins of an app's isolators; PlanError if the image goes beyond the default in both ways at once."""
    has_calls = any(isolator.name in (SECCOMP_RETAIN, SECCOMP_REMOVE) for isolator in app.isolators)
    own = image.app.isolators if image.app is not None and not trusted else ()
    of_image = excess_of(name, own)
    excess = {each.kind: each for each in excess_of(name, app.isolators) if each in of_image}
    origins = Origins(
        capabilities=excess.get(CAPABILITIES),
        calls=excess.get(SECCOMP),
        caller_calls=has_calls and plan_seccomp(name, own)[0] != plan_seccomp(name, app.isolators)[0],
    )
    restricted = not (flags.disable_capabilities or flags.disable_seccomp)
    if origins.capabilities is not None and origins.calls is not None and restricted:
        raise PlanError(
            f'app "{name}": its image asks for more than the default both in capabilities and in system calls:'
            f" {origins.capabilities.describe()} and {origins.calls.describe()}: say one of them yourself"
            f" (--caps-retain, --seccomp), or trust the image (annotation {Annotation.TRUSTED_ISOLATORS}=true)"
        )
    return origins
