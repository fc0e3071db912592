"""
Hiding what is not meant for a report that others will read: values of variables and options that look like secrets.

Pure. Names decide, and URLs with a password in them; a value that was hidden once is hidden wherever else it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MASK = "********"

_NAME = re.compile(
    r"pass(wd|word|phrase|code)?|secret|token|api.?key|access.?key|private|credential|auth|cookie|session|salt|dsn|\bkey\b"
    r"|_key$|-key$|signature",
    re.IGNORECASE,
)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_OPTION = re.compile(r"(--?[\w.-]+)=(.*)", re.DOTALL)
# Shorter ones would be hidden in the middle of words.
_MIN_LENGTH = 6

Json = object


def _is_secret_name(name: str) -> bool:
    """Return whether a variable, option or annotation of this name may hold a secret."""
    return _NAME.search(name) is not None


def find_secrets(value: Json) -> frozenset[str]:
    """Return the values in a JSON value that may be secrets: of `name` and `value` pairs, and of options in lists."""
    return frozenset(text for text in _secrets(value) if text)


def masked(value: Json, secrets: frozenset[str]) -> Json:
    """Return a JSON value with secrets replaced by MASK: whole texts that are one, and long ones within others."""
    long = sorted((text for text in secrets if len(text) >= _MIN_LENGTH), key=len, reverse=True)
    return _mask(value, secrets, long)


def _secrets(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        name, content = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(content, str) and _is_secret_name(name):
            yield content
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, list):
        yield from _secrets_of_words([item for item in value if isinstance(item, str)])
        for item in value:
            yield from _secrets(item)


def _secrets_of_words(words: list[str]) -> Iterator[str]:
    previous = ""
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is not None and _is_secret_name(option[1]):
            yield option[2]
        elif (
            previous.startswith("-") and "=" not in previous and _is_secret_name(previous) and not word.startswith("-")
        ):
            yield word
        previous = word


def _mask(value: Json, secrets: frozenset[str], long: list[str]) -> Json:
    if isinstance(value, dict):
        return {name: _mask(item, secrets, long) for name, item in value.items()}
    if isinstance(value, list):
        return [_mask(item, secrets, long) for item in value]
    if not isinstance(value, str):
        return value
    if value in secrets:
        return MASK
    option = _OPTION.fullmatch(value)
    if option is not None and option[2] in secrets and _is_secret_name(option[1]):
        return f"{option[1]}={MASK}"
    for secret in long:
        value = value.replace(secret, MASK)
    return _USER_IN_URL.sub(MASK, value)
