"""
The filters that the apps of a pod and their sidecars get, as programs for the kernel.

Those of sidecars, and of an app which asks for nothing, were compiled when the stage1 image was built. Any other is
compiled here, before PID 1 exists: a process of the pod only hands the bytes to the kernel.
"""

from __future__ import annotations

import os

from minit import paths
from minit.launcher.ownimage import image_root
from minit.manifest.seccomp import DEFAULT_POLICY
from minit.stdio import complain
from minit.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from minit.manifest.seccomp import SeccompPolicy
    from minit.plan.pod import PodPlan
    from minit.plan.syscallfilter import Filter


def add_filters(plan: PodPlan) -> PodPlan:
    """
    Return the plan with the filters of its apps and sidecars, and say which system calls of theirs nobody knows.

    OSError if the library is missing that compiles them.
    """
    compiled: dict[SeccompPolicy, tuple[bytes, ...]] = {}
    apps = []
    for app in plan.apps:
        policy = app.seccomp
        if policy is not None:
            if policy not in compiled:
                compiled[policy] = _load_filters(policy)
            app = replace(app, filters=compiled[policy])
            for name in _unknown(policy):
                complain(f'stage1: warning: app "{app.name}": ignoring unknown system call {name}')
        apps.append(app)
    return replace(plan, apps=tuple(apps), sidecar_filter=_read(paths.SIDECAR_FILTER))


def write_default_filters(directory: str) -> None:
    """Compile what sidecars get, and an app that asks for nothing, into files below `directory`, which is made."""
    os.makedirs(directory, exist_ok=True)
    programs = dict(zip(paths.DEFAULT_FILTERS, compile_policy(DEFAULT_POLICY), strict=True))
    programs[paths.SIDECAR_FILTER] = compile_sidecar_filter()
    for name, program in programs.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(program)


def _load_filters(policy: SeccompPolicy) -> tuple[bytes, ...]:
    if policy != DEFAULT_POLICY:
        return compile_policy(policy)
    return tuple(_read(name) for name in paths.DEFAULT_FILTERS)


def _read(name: str) -> bytes:
    with open(f"{image_root()}{paths.STAGE1_FILTERS}/{name}", "rb", buffering=0) as file:
        return file.read()


def compile_policy(policy: SeccompPolicy) -> tuple[bytes, ...]:
    """Return the filters of a policy as the kernel takes them, in the order in which they have to be installed."""
    from minit.plan.syscallfilter import filters_of

    return tuple(_compile(filter) for filter in filters_of(policy))


def compile_sidecar_filter() -> bytes:
    """Return the filter of a sidecar as the kernel takes it."""
    from minit.plan.sidecarfilter import SIDECAR_FILTER

    return _compile(SIDECAR_FILTER)


def _compile(filter: Filter) -> bytes:
    from minit.libseccomp import compile_filter

    return compile_filter(
        filter.default,
        [
            (rule.call, rule.action, None if rule.argument is None else (rule.argument, rule.mask, rule.value))
            for rule in filter.rules
        ],
    )


def _unknown(policy: SeccompPolicy) -> list[str]:
    if not policy.own:
        return []
    from minit.libseccomp import is_system_call

    return [name for name in policy.own if not is_system_call(name)]
