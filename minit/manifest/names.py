"""The grammars of appc's names, identifiers and versions."""

from __future__ import annotations

from minit.base.errors import ManifestError
from minit.base.jsontext import quote

_LOWER = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = _LOWER + _LOWER.upper()
_DIGITS = "0123456789"

_EDGE = frozenset(_LOWER + _DIGITS)
_AC_NAME = frozenset(_LOWER + _DIGITS + "-")
_AC_IDENTIFIER = frozenset(_LOWER + _DIGITS + "-._~/")
_HEXADECIMAL = frozenset(_DIGITS + "abcdef")
_VARIABLE_START = frozenset(_LETTERS + "_")
_VARIABLE = frozenset(_LETTERS + _DIGITS + "_.-")
_VERSION_SUFFIX = frozenset(_LETTERS + _DIGITS + "-.")

IMAGE_ID_DIGITS = 128  # of SHA-512; rkt itself keeps the first half


def is_ac_name(text: str) -> bool:
    """
    Tell whether `text` is an ACName: lower-case letters, digits and inner dashes.

    Two dashes in a row pass, as in rkt's own check; the grammar printed in the appc spec would refuse them.
    """
    return _AC_NAME.issuperset(text) and text[:1] in _EDGE and text[-1:] in _EDGE


def is_ac_identifier(text: str) -> bool:
    """
    Tell whether `text` is an ACIdentifier: an ACName with `.`, `_`, `~` and `/` inside, too.

    An ACIdentifier is not safe as a path: `a/../b` is valid.
    """
    return _AC_IDENTIFIER.issuperset(text) and text[:1] in _EDGE and text[-1:] in _EDGE


def is_image_id(text: str) -> bool:
    """Tell whether `text` is `sha512-` and at most 128 lower-case hexadecimal digits."""
    kind, _, digits = text.partition("-")
    return kind == "sha512" and 0 < len(digits) <= IMAGE_ID_DIGITS and _HEXADECIMAL.issuperset(digits)


def is_environment_name(text: str) -> bool:
    """Tell whether `text` may name a variable of an app's environment by the appc spec, and so in rkt."""
    return text[:1] in _VARIABLE_START and _VARIABLE.issuperset(text)


def is_variable_name(text: str) -> bool:
    """Tell whether `text` may name a variable by the rule of Kubernetes 1.34: printable ASCII without `=`."""
    return text != "" and text.isascii() and text.isprintable() and "=" not in text


def is_version(text: str) -> bool:
    """Tell whether `text` is a semantic version, `1.30.0` or `1.30.0-rc.1+git5a4b`."""
    release, plus, build = text.partition("+")
    release, minus, prerelease = release.partition("-")
    numbers = release.split(".")
    return (
        len(numbers) == 3
        and all(number.isascii() and number.isdigit() for number in numbers)
        and (not minus or _is_version_suffix(prerelease))
        and (not plus or _is_version_suffix(build))
    )


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers by which versions are compared; 1.0 is 1; ValueError for other than numbers and dots."""
    numbers = [int(number) for number in version.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def sanitize_ac_name(text: str) -> str:
    """
    Return `text` as an ACName the way rkt does.

    Letters become lower-case, any other character a dash, and dashes at the edges are cut. ManifestError if
    nothing is left.
    """
    dashed = "".join(character if character in _AC_NAME else "-" for character in text.lower())
    name = dashed.strip("-")
    if not name:
        raise ManifestError(f"expected a name with a letter or a digit, got {quote(text)[:60]}")
    return name


def _is_version_suffix(text: str) -> bool:
    return _VERSION_SUFFIX.issuperset(text) and all(text.split("."))
