"""The user, capabilities and filters of an app, in the plan and as a program of the app gets them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.processors import parse_kernel_release
from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.manifest.capabilities import DEFAULT, NAMES, capability_mask, capability_names
from minit.manifest.seccomp import DEFAULT_POLICY, SeccompPolicy, plan_no_new_privileges, plan_seccomp
from minit.plan.inputs.origins import Origins, find_origins
from minit.plan.inputs.switches import find_switch, is_set
from minit.plan.loadedpod import AppInput, PodInput, may_be_privileged
from minit.plan.rights.seccompfilter import DEFAULT_GUARDS
from minit.plan.rights.seccompprofile import (
    SeccompProfile,
    Surroundings,
    is_unconfined,
    open_by_capabilities,
    plan_apparmor,
    plan_guards,
    plan_profile,
    plan_refused_error,
)
from minit.plan.rights.users import PRIMARY, check_mapped, plan_ids, plan_image_groups, plan_supplementary


class ConfinementPlan(Value):
    """The user of an app, the capabilities and the filters of system calls."""

    uid: int = 0
    gid: int = 0
    supplementary_gids: tuple[int, ...] = ()
    sets_groups: bool = True
    """Whether the app has just these groups, and not those of the caller, which the kernel may leave unchangeable."""
    bounding: int | None = DEFAULT
    """A capability mask; None leaves the bounding set alone."""
    no_new_privileges: bool = False
    may_gain_privileges: bool = False
    """Whether an exec may grant privileges although the app has a filter."""
    apparmor_profile: str | None = None
    """The profile of AppArmor, None for the kernel's choice."""
    seccomp: SeccompPolicy | None = DEFAULT_POLICY
    """None allows every system call, but for those that `guards` refuse."""
    default_seccomp: SeccompPolicy = DEFAULT_POLICY
    """The value of `seccomp` for an app without isolators."""
    profile: SeccompProfile | None = None
    """Stands in the place of the default list of `seccomp`."""
    guards: frozenset[str] = DEFAULT_GUARDS

    @property
    def sheds_privileges(self) -> bool:
        """Tell whether no exec may grant privileges: rkt's rule for an app with a filter that does not run as root."""
        is_filtered = self.seccomp is not None or not (self.profile is None or self.profile.allows_everything)
        return self.no_new_privileges or (is_filtered and self.uid != 0 and not self.may_gain_privileges)

    def describe(self) -> list[str]:
        """Return the filters and capabilities as lines for --debug."""
        missing = sorted(DEFAULT_GUARDS - self.guards)
        without = f", without the guards {' '.join(missing)}" if missing else ""
        lines = [f"{'all system calls' if self.seccomp is None else self.seccomp.describe()}{without}"]
        lines += [] if self.profile is None else [self.profile.describe()]
        if self.bounding != DEFAULT:
            held = "any" if self.bounding is None else " ".join(capability_names(self.bounding)) or "none"
            lines.append(f"capabilities {held}")
        return lines


class Confinement(Value):
    """The ids and restrictions of a program in an app: the app itself, a handler, or an entered command."""

    uid: int = 0
    gid: int = 0
    supplementary_gids: tuple[int, ...] = ()
    sets_groups: bool = True
    """Whether the program has just these groups, and not those of the caller."""
    bounding: int | None = None
    """A capability mask, None for all capabilities of PID 1."""
    no_new_privileges: bool = False
    apparmor_profile: str | None = None
    """The profile of AppArmor, None for the kernel's choice."""
    filters: tuple[bytes, ...] = ()
    """Programs for the kernel, in the order of their installation."""
    has_own_filters: bool = False
    """Whether the user chose the filters. Such filters may forbid the calls that report a failed exec."""

    @property
    def needs_right_to_filters(self) -> bool:
        """Tell whether the user alone may not install the filters, since an exec may grant privileges (seccomp(2))."""
        return bool(self.filters) and self.uid != 0 and not self.no_new_privileges


def confine(plan: ConfinementPlan, filters: tuple[bytes, ...]) -> Confinement:
    """Return the confinement of an app with the filters that its plan was compiled to."""
    return Confinement(
        uid=plan.uid,
        gid=plan.gid,
        supplementary_gids=plan.supplementary_gids,
        sets_groups=plan.sets_groups,
        bounding=plan.bounding,
        no_new_privileges=plan.sheds_privileges,
        apparmor_profile=plan.apparmor_profile,
        filters=filters,
        has_own_filters=bool(filters) and (plan.seccomp is None or not plan.seccomp.is_default),
    )


def plan_confinement(given: AppInput, bounding: int) -> tuple[ConfinementPlan, list[str]]:
    """Return the confinement of an app whose isolators leave these capabilities, and the warnings to show."""
    runtime, flags, facts = given.runtime, given.pod.flags, given.pod.facts
    uid, gid, groups = _plan_ids(given)
    seccomp, warnings = plan_seccomp(given.name, given.app.isolators)
    no_new_privileges = find_switch(runtime, Annotation.NO_NEW_PRIVILEGES)
    plan = ConfinementPlan(
        uid=uid,
        gid=gid,
        supplementary_gids=groups,
        sets_groups=given.pod.held is None or given.pod.held.sets_groups,
        bounding=bounding,
        # The image can only ask for fewer privileges, so its isolator counts too.
        no_new_privileges=plan_no_new_privileges(given.name, given.app.isolators) or no_new_privileges is True,
        may_gain_privileges=no_new_privileges is False,
        apparmor_profile=plan_apparmor(runtime, facts),
        seccomp=None if flags.disable_seccomp else seccomp,
    )
    plan = _filter(given, plan, bounding)
    error = plan_refused_error(runtime, given.pod.manifest)
    if error is not None:
        own = plan.seccomp
        own = own if own is None or own.error is not None else replace(own, error=error)
        plan = replace(plan, seccomp=own, default_seccomp=SeccompPolicy(error=error))
    if flags.disable_capabilities or given.is_privileged:
        plan = replace(plan, bounding=None)
    return plan, warnings


def _plan_ids(given: AppInput) -> tuple[int, int, tuple[int, ...]]:
    """Return user and groups of an app; PlanError if the user namespace lacks an id that the app needs."""
    name, app, mapped = given.name, given.app, given.pod.mapped
    wanted = plan_image_groups(given.runtime)
    uid, gid = plan_ids(name, app, given.image, given.lookups, mapped, is_primary=PRIMARY in wanted)
    for number in app.supplementary_gids:
        check_mapped(number, f'app "{name}": supplementary group', mapped)
    for volume in given.volumes:
        for number in (volume.uid, volume.gid):
            check_mapped(number, f'{volume.place}: owner of volume "{volume.volume}"', mapped)
    groups = plan_supplementary(name, app, (uid, gid), given.lookups, wanted, mapped)
    _check_held(given, uid, gid, groups)
    return uid, gid, groups


def _check_held(given: AppInput, uid: int, gid: int, groups: Sequence[int]) -> None:
    """Raise PlanError for an id that the user namespace around the pod lacks."""
    held, name, app = given.pod.held, given.name, given.app
    if held is None:
        return
    needed = [
        (f'app "{name}": user "{app.user}"', uid, None),
        (f'app "{name}": group "{app.group}"', None, gid),
        *((f'app "{name}": supplementary group', None, number) for number in groups),
        *((f'{each.place}: owner of volume "{each.volume}"', each.uid, each.gid) for each in given.volumes),
    ]
    for what, user, group in needed:
        lack = held.find_lack(user, group)
        if lack is not None:
            raise PlanError(f"{what}: {lack}")


def _filter(given: AppInput, plan: ConfinementPlan, bounding: int) -> ConfinementPlan:
    """Return the plan with the filters of an app that has the capabilities `bounding`."""
    runtime, flags, facts = given.runtime, given.pod.flags, given.pod.facts
    trusted = is_set(runtime, Annotation.TRUSTED_ISOLATORS)
    if given.is_privileged:
        return replace(plan, seccomp=None, profile=None, guards=frozenset())
    origins = Origins()
    if given.app.isolators:
        origins = find_origins(given.name, given.app, given.image, flags, trusted=trusted)
    if flags.disable_capabilities:
        bounding = capability_mask(*NAMES)
    elif origins.capabilities is not None:
        # Capabilities beyond the default are not from the caller.
        bounding &= DEFAULT
    kernel = parse_kernel_release(facts.kernel_release)
    profile = plan_profile(runtime, Surroundings(capabilities=bounding, machine=facts.machine, kernel=kernel))
    if profile is not None and flags.disable_seccomp and not profile.allows_everything:
        profile = None
    seccomp = plan.seccomp
    if seccomp is not None and seccomp.is_default:
        seccomp = open_by_capabilities(runtime, seccomp, bounding) if profile is None else None
    guards = plan_guards(
        flags,
        origins,
        seccomp,
        has_profile=profile is not None,
        is_unconfined=is_unconfined(runtime),
        is_admin=bool(bounding & capability_mask("CAP_SYS_ADMIN")),
        wants_vsock=is_set(runtime, Annotation.VSOCK, given.pod.manifest),
    )
    return replace(plan, seccomp=seccomp, profile=profile, guards=guards)


def plan_pod_bounding(pod: PodInput, boundings: Sequence[int]) -> int | None:
    """Return the capabilities that PID 1 keeps for apps with these; None for all."""
    # An app that is added to a mutable pod may retain any capability.
    if pod.flags.disable_capabilities or pod.flags.mutable or may_be_privileged(pod.manifest):
        return None
    # A capability that PID 1 gives up does not come back, to PID 1 or to any app.
    return functools.reduce(operator.or_, boundings, DEFAULT)
