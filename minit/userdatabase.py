"""The files in which users and groups have their numbers, passwd(5) and group(5); pure."""

from __future__ import annotations

USER = "user"
GROUP = "group"
DATABASES = {USER: "/etc/passwd", GROUP: "/etc/group"}
LARGEST_ID = 0xFFFFFFFE  # 0xFFFFFFFF is setresuid(2)'s "leave it as it is"

_FIELDS = {USER: 7, GROUP: 4}
_ID_FIELD = 2
_HOME_FIELD = 5
_TOO_LARGE_DIGITS = 11


def find_id(database: bytes, kind: str, name: bytes) -> int | None:
    """
    Return the id of `name` in the bytes of a passwd or group file; of several entries the last one counts.

    A line with too few fields, or without an id in its third, is no entry.
    """
    found = None
    fields_needed = _FIELDS[kind]
    for line in database.split(b"\n"):
        fields = line.split(b":", fields_needed)
        if fields[0] == name and len(fields) >= fields_needed:
            number = parse_decimal(fields[_ID_FIELD].decode("latin-1"))
            if number is not None and 0 <= number <= LARGEST_ID:
                found = number
    return found


def find_account(database: bytes, name: bytes | None, uid: int) -> tuple[bytes, bytes] | None:
    """
    Return name and home directory of a user in the bytes of a passwd file, None without an entry.

    By its name, if that is known, it is the entry that `find_id` takes, else the first one with the number.
    """
    found = None
    for line in database.split(b"\n"):
        fields = line.split(b":")
        if len(fields) < _FIELDS[USER] or parse_decimal(fields[_ID_FIELD].decode("latin-1")) != uid:
            continue
        if name is None and fields[0]:
            return fields[0], fields[_HOME_FIELD]
        if name == fields[0]:
            found = fields[0], fields[_HOME_FIELD]
    return found


def parse_decimal(text: str) -> int | None:
    """Return the number as Go's strconv.Atoi reads it; one far out of range may become another one out of range."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        return None
    number = int((digits.lstrip("0") or "0")[:_TOO_LARGE_DIGITS])
    return -number if text.startswith("-") else number
