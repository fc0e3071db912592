"""Which groups an app has by what its image's files say about its user."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.idrange import IdRange
from minit.base.userdatabase import find_memberships
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.pod import RuntimeApp
from minit.plan.rights.users import AppLookups, check_mapped, find_app_account

PRIMARY = "primary"
SUPPLEMENTARY = "supplementary"
_MAXIMUM_GROUPS = 65536  # setgroups(2), NGROUPS_MAX


def plan_image_groups(runtime: RuntimeApp) -> frozenset[str]:
    """Return which groups of its image's files an app has, PRIMARY and SUPPLEMENTARY; PlanError for other words."""
    text = runtime.annotation(Annotation.IMAGE_GROUPS)
    words = frozenset(() if text is None else text.split(","))
    if not words <= {PRIMARY, SUPPLEMENTARY}:
        expected = f"{PRIMARY}, {SUPPLEMENTARY} or both with a comma"
        raise PlanError(f'app "{runtime.name}": {Annotation.IMAGE_GROUPS}: expected {expected}, got "{text}"')
    return words


def plan_supplementary(
    name: str, app: App, ids: tuple[int, int], lookups: AppLookups, wanted: frozenset[str], mapped: IdRange | None
) -> tuple[int, ...]:
    """
    Return the supplementary groups of app `name`: its own, and where its image's are wanted those of its user as well.

    Of these the group in `ids` is the first: no setgid program of the app can get rid of it (CVE-2022-36109).
    """
    if SUPPLEMENTARY not in wanted:
        return app.supplementary_gids
    uid, gid = ids
    account = find_app_account(app, uid, lookups)
    found = () if account is None else find_memberships(lookups.memberships, account.name)
    for number in found:
        check_mapped(number, f'app "{name}": group of its image', mapped)
    groups = tuple(dict.fromkeys((gid, *app.supplementary_gids, *found)))
    if len(groups) > _MAXIMUM_GROUPS:
        raise PlanError(f'app "{name}": its user is in {len(groups)} groups, expected at most {_MAXIMUM_GROUPS}')
    return groups
