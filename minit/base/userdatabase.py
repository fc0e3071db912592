"""The files with the numbers of users and groups, passwd(5) and group(5); pure."""

from __future__ import annotations

from minit.base.value import Value

USER = "user"
GROUP = "group"
DATABASES = {USER: "/etc/passwd", GROUP: "/etc/group"}
LARGEST_ID = 0xFFFFFFFE  # 0xFFFFFFFF is setresuid(2)'s "leave it as it is"

_FIELDS = {USER: 7, GROUP: 4}
_ID_FIELD = 2
_GROUP_FIELD = 3
_HOME_FIELD = 5
_MEMBERS_FIELD = 3
_TOO_LARGE_DIGITS = 11


def find_id(database: bytes, kind: str, name: bytes) -> int | None:
    """
    Return the id of `name` in the bytes of a passwd or group file; of several entries the last one counts.

    A line with too few fields, or without an id as the third, is no entry.
    """
    found = None
    fields_needed = _FIELDS[kind]
    for line in database.split(b"\n"):
        fields = line.split(b":", fields_needed)
        if fields[0] == name and len(fields) >= fields_needed:
            number = _parse_id(fields[_ID_FIELD])
            found = found if number is None else number
    return found


class Account(Value):
    """The entry of a user in a passwd file; `gid` is the user's primary group, None if the entry has no id there."""

    name: bytes
    home: bytes
    gid: int | None


def find_account(database: bytes, name: bytes | None, uid: int) -> Account | None:
    """
    Return the entry of a user in the bytes of a passwd file, None without one.

    With a known name the entry is the choice of `find_id`, else the first entry with the number.
    """
    found = None
    for line in database.split(b"\n"):
        fields = line.split(b":")
        if len(fields) < _FIELDS[USER] or parse_decimal(fields[_ID_FIELD].decode("latin-1")) != uid:
            continue
        if name is None and fields[0]:
            return _account(fields)
        if name == fields[0]:
            found = _account(fields)
    return found


def find_memberships(database: bytes, name: bytes) -> tuple[int, ...]:
    """Return the ids of a user's groups in the bytes of a group file, in the file's order."""
    found = []
    for line in database.split(b"\n"):
        fields = line.split(b":")
        if len(fields) >= _FIELDS[GROUP] and name in fields[_MEMBERS_FIELD].split(b","):
            gid = _parse_id(fields[_ID_FIELD])
            found += [] if gid is None else [gid]
    return tuple(dict.fromkeys(found))


def _account(fields: list[bytes]) -> Account:
    return Account(name=fields[0], home=fields[_HOME_FIELD], gid=_parse_id(fields[_GROUP_FIELD]))


def _parse_id(field: bytes) -> int | None:
    number = parse_decimal(field.decode("latin-1"))
    return number if number is not None and 0 <= number <= LARGEST_ID else None


def parse_decimal(text: str) -> int | None:
    """Return the number of Go's strconv.Atoi; a number far out of range may become another number out of range."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        return None
    number = int((digits.lstrip("0") or "0")[:_TOO_LARGE_DIGITS])
    return -number if text.startswith("-") else number
