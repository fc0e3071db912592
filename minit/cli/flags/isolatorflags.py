"""The options about limits and privileges of an app, as the isolators they become in its manifest. Pure."""

from __future__ import annotations

import errno

from minit.cli.flags.scalars import parse_number
from minit.cli.flagwords import FlagError
from minit.manifest.app import (
    CAPABILITIES_REMOVE,
    CAPABILITIES_RETAIN,
    CPU,
    CPU_SHARES,
    MEMORY,
    OOM_SCORE_ADJ,
    SECCOMP_REMOVE,
    SECCOMP_RETAIN,
    Isolator,
)
from minit.manifest.limits import BILLION, MIN_MEMORY_BYTES, limit_isolator, parse_quantity
from minit.manifest.seccomp import SECCOMP_WORDS
from minit.stage0.pods.appsection import PROFILE_FILE

_MAX_QUANTITY = (1 << 63) - 1

_CALL_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./@")
_CAPABILITY_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")

_SECCOMP_FORM = "mode=retain|remove[,errno=NAME],CALL,..."
_SECCOMP_NAMES = {"retain": SECCOMP_RETAIN, "remove": SECCOMP_REMOVE}


def parse_memory(flag: str, text: str) -> Isolator:
    """Return the isolator of a limit of memory, in bytes."""
    limit = _quantity(flag, text)
    if limit < MIN_MEMORY_BYTES * BILLION:
        raise FlagError(f'{flag}: expected at least {MIN_MEMORY_BYTES} bytes, for example 16M, got "{text}"')
    return limit_isolator(MEMORY, text)


def parse_cpu(flag: str, text: str) -> Isolator:
    """Return the isolator of a limit of processor time, in processors."""
    if _quantity(flag, text) <= 0:
        raise FlagError(f'{flag}: expected more than no processor, for example 500m for half of one, got "{text}"')
    return limit_isolator(CPU, text)


def parse_cpu_shares(flag: str, text: str) -> Isolator:
    """Return the isolator of a weight against other apps."""
    return Isolator(name=CPU_SHARES, value=parse_number(flag, text, 2, 262144))


def parse_oom_score_adj(flag: str, text: str) -> Isolator:
    """Return the isolator of what is added to the app's score when memory runs out, proc_pid_oom_score_adj(5)."""
    return Isolator(name=OOM_SCORE_ADJ, value=parse_number(flag, text, -1000, 1000))


def parse_caps_retain(flag: str, text: str) -> Isolator:
    """Return the isolator of the only capabilities that an app may hold."""
    return Isolator(name=CAPABILITIES_RETAIN, value={"set": _capabilities(flag, text)})


def parse_caps_remove(flag: str, text: str) -> Isolator:
    """Return the isolator of capabilities that an app may not hold."""
    return Isolator(name=CAPABILITIES_REMOVE, value={"set": _capabilities(flag, text)})


def parse_seccomp(flag: str, text: str) -> Isolator:
    """Return the isolator of a seccomp filter; its words may stand in any order."""
    mode, error, calls = "", "", []
    for word in text.split(","):
        key, separator, value = word.partition("=")
        if not separator and word and _CALL_CHARACTERS.issuperset(word):
            calls.append(word)
        elif key == "mode" and not mode and value in _SECCOMP_NAMES:
            mode = value
        elif key == "errno" and not error and value.startswith("E") and hasattr(errno, value):
            error = value
        else:
            raise FlagError(f'{flag}: expected {_SECCOMP_FORM}, got "{word}"')
    if not mode or not calls:
        raise FlagError(f'{flag}: expected {_SECCOMP_FORM} with a mode and at least one call, got "{text}"')
    return Isolator(name=_SECCOMP_NAMES[mode], value={"set": calls, "errno": error})


def parse_chosen_filter(text: str) -> str | None:
    """Return the word of the annotation minit/seccomp that a seccomp filter is, None for a list of calls."""
    return text if text in SECCOMP_WORDS or text.startswith(PROFILE_FILE) else None


def _quantity(flag: str, text: str) -> int:
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise FlagError(f"{flag}: {error}") from error
    if quantity > _MAX_QUANTITY * BILLION:
        raise FlagError(f'{flag}: expected less than 8Ei, got "{text}"')
    return quantity


def _capabilities(flag: str, text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if not name.startswith("CAP_") or not _CAPABILITY_CHARACTERS.issuperset(name):
            raise FlagError(f'{flag}: expected names of capabilities like CAP_NET_ADMIN, got "{name}"')
    return names
