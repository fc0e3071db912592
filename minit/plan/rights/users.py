"""
The user and groups of an app: each by number, by the owner of a file, or by a name in the image.

A number beats a name of digits, as in rkt; the appc specification has the reverse. The primary group of a user's passwd
entry and the user's other groups are used on request only (stage1 contract 7.2).
"""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.idrange import IdRange, parse_id_range
from minit.base.userdatabase import (
    DATABASES,
    GROUP,
    LARGEST_ID,
    USER,
    Account,
    find_account,
    find_id,
    find_memberships,
    parse_decimal,
)
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import ImageManifest
from minit.manifest.pod import RuntimeApp
from minit.plan.root.mountoperations import TTY_GID

PRIMARY = "primary"
SUPPLEMENTARY = "supplementary"
_MAXIMUM_GROUPS = 65536  # setgroups(2), NGROUPS_MAX


class Lookup(Value):
    """
    Facts of an app's root about one user or group: the `owner` of the file, or the `database` that holds the name.

    The owner is an id of the host. `failure` is why the file could not be looked at.
    """

    owner: int | None = None
    database: bytes = b""
    failure: str | None = None


class AppLookups(Value):
    """
    The lookups for an app's user and group; a number needs no lookup.

    `passwd` is read for the variables of a user who is not the image's, and of any user in a plain environment: None
    otherwise, and empty without such a file. `accounts` and `memberships` are the passwd and the group file, for
    requested groups.
    """

    user: Lookup = Lookup()
    group: Lookup = Lookup()
    passwd: bytes | None = None
    accounts: bytes = b""
    memberships: bytes = b""


def is_path(text: str) -> bool:
    """Return whether a user or group stands for the owner of a file."""
    return text.startswith("/")


def parse_id(text: str) -> int | None:
    """Return the id of a number or of root, which need no lookup, None for other texts; the range is not checked."""
    return 0 if text == "root" else parse_decimal(text)


def plan_ids(
    name: str,
    app: App,
    image: ImageManifest,
    lookups: AppLookups,
    mapped: IdRange | None = None,
    *,
    is_primary: bool = False,
) -> tuple[int, int]:
    """
    Return uid and gid of app `name`; PlanError for names outside of the image, or ids outside of `mapped`.

    `mapped` None means the host's ids. With `is_primary` the group comes from the user's passwd entry, if the entry
    exists.
    """
    uid = _resolve(name, USER, app.user, lookups.user, mapped)
    account = find_app_account(app, uid, lookups) if is_primary else None
    if account is not None and account.gid is not None:
        check_mapped(account.gid, f'app "{name}": primary group of user "{app.user}"', mapped)
        return uid, account.gid
    try:
        return uid, _resolve(name, GROUP, app.group, lookups.group, mapped)
    except PlanError:
        if not _has_docker_group(app, image):
            raise
        return uid, uid


def find_app_account(app: App, uid: int, lookups: AppLookups) -> Account | None:
    """Return the passwd entry of an app's user, None without one."""
    is_name = parse_id(app.user) is None and not is_path(app.user)
    return find_account(lookups.accounts, app.user.encode() if is_name else None, uid)


def check_mapped(number: int, what: str, mapped: IdRange | None) -> None:
    """Raise PlanError for an id of the pod that the user namespace does not have."""
    if mapped is not None and mapped.to_host(number) is None:
        raise PlanError(f"{what}: {number} is unmapped: {mapped.describe()}")


def _resolve(name: str, kind: str, text: str, lookup: Lookup, mapped: IdRange | None) -> int:
    number = _find(name, kind, text, lookup, mapped)
    check_mapped(number, f'app "{name}": {kind} "{text}"', mapped)
    return number


def _find(name: str, kind: str, text: str, lookup: Lookup, mapped: IdRange | None) -> int:
    number = parse_id(text)
    if number is not None:
        if number < 0:
            raise PlanError(f'app "{name}": {kind} "{text}": Invalid uid or gid')
        if number > LARGEST_ID:
            raise PlanError(f'app "{name}": {kind} "{text}": expected a number of at most {LARGEST_ID}')
        return number
    if is_path(text):
        if lookup.owner is None:
            raise PlanError(f'app "{name}": {kind}: lstat {lookup.failure}')
        owner = lookup.owner if mapped is None else mapped.from_host(lookup.owner)
        if owner is None:
            raise PlanError(
                f'app "{name}": {kind} "{text}": its owner on the host, {lookup.owner}, is unmapped:'
                f" --private-users={mapped}"
            )
        return owner
    found = find_id(lookup.database, kind, text.encode())
    if found is None:
        where = f": {lookup.failure}" if lookup.failure else f" in {DATABASES[kind]} of its image"
        raise PlanError(f'app "{name}": "{text}" {kind} not found{where}')
    return found


def _has_docker_group(app: App, image: ImageManifest) -> bool:
    # A converted Docker image names its user for both; a group of that name is often missing.
    own = image.app
    return image.from_docker and own is not None and own.user == own.group == app.group


def plan_image_groups(runtime: RuntimeApp) -> frozenset[str]:
    """Return the requested groups of the image's files, PRIMARY and SUPPLEMENTARY; PlanError for other words."""
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
    Return the supplementary groups of app `name`: the app's own, and if `wanted` those of the user in the image.

    Of the latter the group in `ids` is first: no setgid program of the app can get rid of that group (CVE-2022-36109).
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


def plan_private_users(text: str, *, has_unmapped_overlay: bool) -> IdRange | None:
    """Return the ids of a pod's user namespace by --private-users, None without one; PlanError for bad ones."""
    if not text:
        return None
    mapped = parse_id_range(text)
    if mapped is None or mapped.to_host(TTY_GID) is None:
        raise PlanError(
            f"--private-users={text}: expected SHIFT:COUNT, SHIFT above 0, COUNT above {TTY_GID},"
            f" and every id below 4294967295"
        )
    if has_unmapped_overlay:
        raise PlanError("--private-users: cannot use both overlay and user namespace (try --no-overlay)")
    return mapped
