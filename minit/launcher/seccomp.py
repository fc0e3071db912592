"""
The filters that the apps of a pod get, as programs for the kernel.

That of an app which asks for nothing was compiled when the stage1 image was built. Any other is compiled here, before
PID 1 exists: a process of the pod only hands the bytes to the kernel.
"""

from __future__ import annotations

import os

from minit import paths
from minit.launcher.ownimage import image_root
from minit.plan.seccomp import DEFAULT_POLICY
from minit.stdio import complain
from minit.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from minit.plan.pod import PodPlan
    from minit.plan.seccomp import SeccompPolicy


def add_filters(plan: PodPlan) -> PodPlan:
    """
    Return the plan with the filters of its apps, and say which system calls of theirs nobody knows.

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
    return replace(plan, apps=tuple(apps))


def write_default_filters(directory: str) -> None:
    """Compile what an app gets that asks for nothing into files below `directory`, which is made."""
    os.makedirs(directory, exist_ok=True)
    for name, program in zip(paths.DEFAULT_FILTERS, compile_policy(DEFAULT_POLICY), strict=True):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(program)


def _load_filters(policy: SeccompPolicy) -> tuple[bytes, ...]:
    if policy != DEFAULT_POLICY:
        return compile_policy(policy)
    directory = f"{image_root()}{paths.STAGE1_FILTERS}"
    programs = []
    for name in paths.DEFAULT_FILTERS:
        with open(f"{directory}/{name}", "rb", buffering=0) as file:
            programs.append(file.read())
    return tuple(programs)


def compile_policy(policy: SeccompPolicy) -> tuple[bytes, ...]:
    """Return the filters of a policy as the kernel takes them, in the order in which they have to be installed."""
    from minit.libseccomp import compile_filter
    from minit.plan.syscallfilter import filters_of

    return tuple(
        compile_filter(
            filter.default,
            [
                (rule.call, rule.action, None if rule.argument is None else (rule.argument, rule.mask, rule.value))
                for rule in filter.rules
            ],
        )
        for filter in filters_of(policy)
    )


def _unknown(policy: SeccompPolicy) -> list[str]:
    if not policy.own:
        return []
    from minit.libseccomp import is_system_call

    return [name for name in policy.own if not is_system_call(name)]
