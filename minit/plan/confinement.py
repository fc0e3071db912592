"""The confinement of a program in an app: the app itself, a handler of it, or a command that is entered."""

from __future__ import annotations

from minit.base.value import Value, replace
from minit.plan.appplan import AppSpec


class Confinement(Value):
    """
    The ids of a program, and its limits.

    `apparmor_profile` is one of AppArmor, None for the kernel's choice. `bounding` is a capability mask, None for all
    that PID 1 has; `filters` are programs for the kernel, in the order of their installation. With `has_own_filters`
    they are the user's, who may have left no call by which a program that cannot be executed could be told.
    """

    uid: int = 0
    gid: int = 0
    supplementary_gids: tuple[int, ...] = ()
    bounding: int | None = None
    no_new_privileges: bool = False
    apparmor_profile: str | None = None
    filters: tuple[bytes, ...] = ()
    has_own_filters: bool = False

    @property
    def needs_right_to_filters(self) -> bool:
        """Tell whether the user alone may not install the filters, since an exec may grant privileges (seccomp(2))."""
        return bool(self.filters) and self.uid != 0 and not self.no_new_privileges


def confinement_of(spec: AppSpec) -> Confinement:
    """Return the confinement of the app itself."""
    return Confinement(
        uid=spec.process.uid,
        gid=spec.process.gid,
        supplementary_gids=spec.process.supplementary_gids,
        bounding=spec.confinement.bounding,
        no_new_privileges=spec.sheds_privileges,
        apparmor_profile=spec.confinement.apparmor_profile,
        filters=spec.filters,
        has_own_filters=bool(spec.filters)
        and (spec.confinement.seccomp is None or not spec.confinement.seccomp.is_default),
    )


def confinement_of_command(spec: AppSpec) -> Confinement:
    """Return that of a command that is entered as the app's user; it is root unless somebody asks for that."""
    # It is looked for by what would tell that it cannot be executed.
    return replace(confinement_of(spec), has_own_filters=False)


def confinement_of_handler(spec: AppSpec) -> Confinement:
    """Return that of an event handler: root in the app, whoever that runs as."""
    return replace(confinement_of(spec), uid=0, gid=0, supplementary_gids=(), filters=spec.handler_filters)
