"""
The filters of apps and of sidecars, as programs for the kernel.

The build of the stage1 image compiles the filters of sidecars, and of an app without options. Any other filter is
compiled here, before PID 1 exists: a process of the pod only hands the bytes to the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from minit.launcher.ownimage import image_root
from minit.linux.stdio import complain
from minit.manifest.seccomp import DEFAULT_POLICY, LENIENT_POLICY, SeccompPolicy
from minit.plan.appplan import AppPlan
from minit.plan.appspec import AppSpec
from minit.plan.confinement import confine
from minit.plan.rights.seccompfilter import (
    DEFAULT_GUARDS,
    LIMITS,
    SIDECAR_FILTER,
    TYPING,
    Filter,
    compile_filter,
    filter_of,
    with_calls,
)
from minit.plan.rights.seccompprofile import INSTALLING_CALLS, SeccompProfile, filter_of_profile
from minit.plan.rights.syscallnumbers import is_system_call
from minit.podfiles import paths

# A list, None for all system calls, the guards, and a profile.
_Restriction = tuple[SeccompPolicy | None, frozenset[str], SeccompProfile | None]

_SHIPPED: dict[_Restriction, str] = {
    (DEFAULT_POLICY, DEFAULT_GUARDS, None): paths.DEFAULT_FILTER,
    (LENIENT_POLICY, DEFAULT_GUARDS, None): paths.LENIENT_FILTER,
}


def make_specs(apps: Sequence[AppPlan]) -> tuple[AppSpec, ...]:
    """
    Return the apps of a plan as PID 1 carries them out, with their filters, and warn of unknown system calls.

    OSError for a filter that is too large for the kernel.
    """
    compiled: dict[_Restriction, tuple[bytes, ...]] = {}

    def programs(restriction: _Restriction) -> tuple[bytes, ...]:
        if restriction not in compiled:
            compiled[restriction] = _load_filters(*restriction)
        return compiled[restriction]

    return tuple(_make_spec(app, programs) for app in apps)


def _make_spec(app: AppPlan, programs: Callable[[_Restriction], tuple[bytes, ...]]) -> AppSpec:
    plan = app.confinement
    own: _Restriction = plan.seccomp, plan.guards, plan.profile
    filters = handler_filters = programs(own)
    default: _Restriction = plan.default_seccomp, DEFAULT_GUARDS, None
    is_restricted = TYPING in plan.guards or plan.profile is not None
    if app.life.handlers and is_restricted and own != default:
        # It is root, whoever the app is: what the caller lets the app do is not meant for it. The app's own are
        # last, as they may allow no filter after them.
        handler_filters = programs(default) + filters
    listed = () if plan.seccomp is None else plan.seccomp.own
    in_profile = () if plan.profile is None else dict.fromkeys(rule.call for rule in plan.profile.rules)
    for name in _unknown((*listed, *in_profile)):
        complain(f'stage1: warning: app "{app.name}": ignoring unknown system call {name}')
    return AppSpec(
        name=app.name,
        process=app.process,
        confinement=confine(plan, filters),
        handler_filters=handler_filters,
        may_change_limits=LIMITS not in plan.guards,
        resources=app.resources,
        storage=app.storage,
        streams=app.streams,
        life=app.life,
    )


def read_sidecar_filter() -> bytes:
    """Return the filter of what reads the apps' output."""
    return _read(paths.SIDECAR_FILTER)


def write_default_filters(directory: str) -> None:
    """Compile what sidecars get, and an app that asks for nothing, into files below `directory`, which is made."""
    os.makedirs(directory, exist_ok=True)
    programs = {paths.SIDECAR_FILTER: compile_sidecar_filter()}
    for restriction, name in _SHIPPED.items():
        [programs[name]] = compile_filters(*restriction)
    for name, program in programs.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(program)


def _load_filters(
    policy: SeccompPolicy | None, guards: frozenset[str], profile: SeccompProfile | None
) -> tuple[bytes, ...]:
    name = _SHIPPED.get((policy, guards, profile))
    return compile_filters(policy, guards, profile) if name is None else (_read(name),)


def _read(name: str) -> bytes:
    with open(f"{image_root()}{paths.STAGE1_FILTERS}/{name}", "rb", buffering=0) as file:
        return file.read()


def compile_filters(
    policy: SeccompPolicy | None, guards: frozenset[str], profile: SeccompProfile | None = None
) -> tuple[bytes, ...]:
    """
    Return the filters of a policy as the kernel takes them, in the order in which they have to be installed.

    That of a profile comes after it, and the policy does not keep it from being installed.
    """
    if profile is not None and policy is not None:
        policy = with_calls(policy, INSTALLING_CALLS)
    first = filter_of(policy, guards)
    last = None if profile is None else filter_of_profile(profile)
    has_secondary = profile is None or profile.has_secondary
    return (
        *(() if first is None else (_compile(first),)),
        *(() if last is None else (_compile(last, has_secondary=has_secondary),)),
    )


def compile_sidecar_filter() -> bytes:
    """Return the filter of a sidecar as the kernel takes it."""
    return _compile(SIDECAR_FILTER)


def _compile(filter: Filter, *, has_secondary: bool = True) -> bytes:
    return compile_filter(filter, os.uname().machine, has_secondary=has_secondary)


def _unknown(names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_system_call(name)]
