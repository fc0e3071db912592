"""The user of an app, its capabilities and its filters: as they are planned, and as one of its programs gets them."""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.capabilities import DEFAULT
from minit.manifest.seccomp import DEFAULT_POLICY, SeccompPolicy
from minit.plan.rights.seccompfilter import DEFAULT_GUARDS
from minit.plan.rights.seccompprofile import SeccompProfile


class ConfinementPlan(Value):
    """The user of an app, its capabilities and its filters of system calls."""

    uid: int = 0
    gid: int = 0
    supplementary_gids: tuple[int, ...] = ()
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


class Confinement(Value):
    """The ids of a program in an app, and its limits: of the app itself, a handler, or a command that is entered."""

    uid: int = 0
    gid: int = 0
    supplementary_gids: tuple[int, ...] = ()
    bounding: int | None = None
    """A capability mask, None for all capabilities of PID 1."""
    no_new_privileges: bool = False
    apparmor_profile: str | None = None
    """The profile of AppArmor, None for the kernel's choice."""
    filters: tuple[bytes, ...] = ()
    """Programs for the kernel, in the order of their installation."""
    has_own_filters: bool = False
    """Whether the user chose the filters, which may forbid the calls that report a program that cannot be executed."""

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
        bounding=plan.bounding,
        no_new_privileges=plan.sheds_privileges,
        apparmor_profile=plan.apparmor_profile,
        filters=filters,
        has_own_filters=bool(filters) and (plan.seccomp is None or not plan.seccomp.is_default),
    )
