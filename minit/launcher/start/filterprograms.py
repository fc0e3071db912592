"""
The filters that the apps of a pod and their sidecars get, as programs for the kernel.

Those of sidecars, and of an app which asks for nothing, were compiled when the stage1 image was built. Any other is
compiled here, before PID 1 exists: a process of the pod only hands the bytes to the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit import paths
from minit.launcher.ownimage import image_root
from minit.libseccomp import compile_filter, is_system_call
from minit.manifest.seccomp import DEFAULT_POLICY, LENIENT_POLICY, SeccompPolicy
from minit.plan.appplan import AppPlan, AppSpec
from minit.plan.rights.guards import DEFAULT_GUARDS, TYPING
from minit.plan.rights.sidecarfilter import SIDECAR_FILTER
from minit.plan.rights.syscallfilter import Filter, filters_of
from minit.stdio import complain

# A list, None for all system calls, and the guards.
_Restriction = tuple[SeccompPolicy | None, frozenset[str]]

_SHIPPED: dict[_Restriction, tuple[str, ...]] = {
    (DEFAULT_POLICY, DEFAULT_GUARDS): paths.DEFAULT_FILTERS,
    (LENIENT_POLICY, DEFAULT_GUARDS): paths.LENIENT_FILTERS,
}


def add_filters(apps: Sequence[AppPlan]) -> tuple[AppSpec, ...]:
    """
    Return the apps of a plan with their filters, and say which system calls of theirs nobody knows.

    OSError if the library is missing that compiles them.
    """
    compiled: dict[_Restriction, tuple[bytes, ...]] = {}

    def programs(restriction: _Restriction) -> tuple[bytes, ...]:
        if restriction not in compiled:
            compiled[restriction] = _load_filters(*restriction)
        return compiled[restriction]

    specs = []
    for app in apps:
        filters = handler_filters = programs((app.seccomp, app.guards))
        default = app.default_seccomp, DEFAULT_GUARDS
        if app.handlers and TYPING in app.guards and (app.seccomp, app.guards) != default:
            # It is root, whoever the app is: what the caller lets the app do is not meant for it.
            handler_filters += programs(default)
        specs.append(AppSpec(**vars(app), filters=filters, handler_filters=handler_filters))
        for name in () if app.seccomp is None else _unknown(app.seccomp):
            complain(f'stage1: warning: app "{app.name}": ignoring unknown system call {name}')
    return tuple(specs)


def read_sidecar_filter() -> bytes:
    """Return the filter of what reads the apps' output."""
    return _read(paths.SIDECAR_FILTER)


def write_default_filters(directory: str) -> None:
    """Compile what sidecars get, and an app that asks for nothing, into files below `directory`, which is made."""
    os.makedirs(directory, exist_ok=True)
    programs = {paths.SIDECAR_FILTER: compile_sidecar_filter()}
    for restriction, names in _SHIPPED.items():
        programs |= dict(zip(names, compile_filters(*restriction), strict=True))
    for name, program in programs.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(program)


def _load_filters(policy: SeccompPolicy | None, guards: frozenset[str]) -> tuple[bytes, ...]:
    names = _SHIPPED.get((policy, guards))
    return compile_filters(policy, guards) if names is None else tuple(_read(name) for name in names)


def _read(name: str) -> bytes:
    with open(f"{image_root()}{paths.STAGE1_FILTERS}/{name}", "rb", buffering=0) as file:
        return file.read()


def compile_filters(policy: SeccompPolicy | None, guards: frozenset[str]) -> tuple[bytes, ...]:
    """Return the filters of a policy as the kernel takes them, in the order in which they have to be installed."""
    return tuple(_compile(filter) for filter in filters_of(policy, guards))


def compile_sidecar_filter() -> bytes:
    """Return the filter of a sidecar as the kernel takes it."""
    return _compile(SIDECAR_FILTER)


def _compile(filter: Filter) -> bytes:
    return compile_filter(
        filter.default,
        [
            (rule.call, rule.action, [(test.argument, test.mask, test.value, not test.differs) for test in rule.tests])
            for rule in filter.rules
        ],
    )


def _unknown(policy: SeccompPolicy) -> list[str]:
    return [name for name in policy.own if not is_system_call(name)]
