"""The options of one app, which follow the app's image, and the effect of each option. Pure."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minit.base import jsontext
from minit.base.errors import ManifestError
from minit.base.goduration import parse_duration
from minit.base.value import replace
from minit.cli.flags.volumeflags import parse_mount, parse_mounted_volume
from minit.cli.flagwords import FlagError, parse_number
from minit.manifest.annotations import Annotation
from minit.manifest.app import (
    CAPABILITIES_REMOVE,
    CAPABILITIES_RETAIN,
    CPU,
    CPU_SHARES,
    MAX_ID,
    MEMORY,
    OOM_SCORE_ADJ,
    SECCOMP_REMOVE,
    SECCOMP_RETAIN,
    Isolator,
)
from minit.manifest.capabilities import ALL_CAPABILITIES, NAMES
from minit.manifest.limits import BILLION, MIN_MEMORY_BYTES, docker_quantity, limit_isolator, parse_quantity
from minit.manifest.names import is_ac_identifier, is_ac_name, is_environment_name, is_variable_name
from minit.manifest.seccomp import SECCOMP_WORDS
from minit.manifest.ulimits import HOST, RESOURCES, parse_bounds, spell_bounds
from minit.stage0.devices import is_cdi_name
from minit.stage0.pods.appsection import PROFILE_FILE, AppOverrides, Device

STDIN_MODES = ("null", "stream", "tty")
OUTPUT_MODES = ("log", "null", "stream", "tty", "log+stream", "log+tty")

Parser = Callable[[str, str], Any]
"""From an option and its value to what is kept of it; FlagError for a value that is not possible."""

DEVICE_FORM = "/PATH[:/TARGET][:rwm]|VENDOR/CLASS=NAME"
_ACCESS = frozenset("rwm")

Variables = tuple[tuple[str, str], ...]

_MAX_QUANTITY = (1 << 63) - 1
_MAX_PROCESSES = 4194304
_YEAR_SECONDS = 365 * 24 * 3600

_CALL_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./@")
_CAPABILITY_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")

_SECCOMP_FORM = "mode=retain|remove[,errno=NAME],CALL,..."
_SECCOMP_NAMES = {"retain": SECCOMP_RETAIN, "remove": SECCOMP_REMOVE}


def apply_app_flag(overrides: AppOverrides, name: str, value: str) -> AppOverrides:
    """Return `overrides` with one more per-app flag; FlagError for an impossible value."""
    if (name == "--exec" and overrides.exec is not None) or (name == "--cmd" and overrides.command is not None):
        raise FlagError(f"{name} can be given only once per image")
    if name in _OF_ANNOTATIONS:
        return _with_annotations(overrides, _OF_ANNOTATIONS[name](name, value))
    if name == "--user" and ":" in value and not value.startswith("/"):
        user, _, group = value.partition(":")
        return replace(overrides, user=_parse_text(name, user), group=_parse_text(name, group))
    if name in _REPLACING:
        field, parse = _REPLACING[name]
        changed = replace(overrides, **{field: parse(name, value)})
        if changed.exec is not None and changed.command is not None:
            raise FlagError("--exec and --cmd exclude each other for one image: --exec replaces the entrypoint too")
        return changed
    if name in _CAPABILITY_SETS:
        field = _CAPABILITY_SETS[name]
        return replace(overrides, **{field: getattr(overrides, field) | parse_capability_words(name, value)})
    field, parse = _COLLECTING[name]
    chosen = _parse_chosen_filter(value) if name == "--seccomp" else None
    if chosen is not None:
        changed = replace(overrides, seccomp=chosen)
    else:
        more: dict[str, Any] = {field: (*getattr(overrides, field), parse(name, value))}
        changed = replace(overrides, **more)
    names = {isolator.name for isolator in changed.isolators}
    if changed.seccomp is not None and names & {SECCOMP_RETAIN, SECCOMP_REMOVE}:
        raise FlagError("--seccomp: a list of calls and a profile exclude each other for one image")
    if CAPABILITIES_RETAIN in names and CAPABILITIES_REMOVE in names:
        raise FlagError("--caps-retain and --caps-remove exclude each other for one image")
    return changed


def _parse_text(flag: str, text: str) -> str:
    if not text:
        raise FlagError(f"{flag}: expected a value, got none")
    return text


def _parse_word(flag: str, text: str) -> str:
    return text


def _parse_name(flag: str, text: str) -> str:
    if not is_ac_name(text):
        raise FlagError(f'{flag}: expected lower-case letters, digits and inner dashes, got "{text}"')
    return text


def _parse_path(flag: str, text: str) -> str:
    if not text.startswith("/"):
        raise FlagError(f'{flag}: expected an absolute path, got "{text}"')
    return text


def _parse_gids(flag: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= MAX_ID for word in words):
        raise FlagError(f'{flag}: expected group ids separated by commas, got "{text}"')
    return tuple(int(word) for word in words)


def _parse_boolean(flag: str, text: str) -> bool:
    return text == "true"  # what take_flag makes of a switch


def parse_pair(flag: str, text: str) -> tuple[str, str]:
    """Return the two sides of `NAME=VALUE`; FlagError, naming `flag`, for another form."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise FlagError(f'{flag}: expected NAME=VALUE, got "{text}"')
    return name, value


def parse_annotation(flag: str, text: str) -> tuple[str, str]:
    """Return the name and value of an annotation; FlagError, naming `flag`, for another form."""
    name, value = parse_pair(flag, text)
    if not is_ac_identifier(name):
        raise FlagError(f'{flag}: expected a name of lower-case letters, digits and inner - . _ ~ /, got "{name}"')
    return name, value


def _parse_stdin(flag: str, text: str) -> str:
    return _parse_mode(flag, text, STDIN_MODES)


def _parse_output(flag: str, text: str) -> str:
    return _parse_mode(flag, text, OUTPUT_MODES)


def _parse_mode(flag: str, text: str, modes: tuple[str, ...]) -> str:
    if text not in modes:
        raise FlagError(f'{flag}: expected one of {", ".join(modes)}, got "{text}"')
    return text


# Flags whose last use counts, with the field of AppOverrides.
_REPLACING: Mapping[str, tuple[str, Parser]] = {
    "--no-healthcheck": ("ignores_healthcheck", _parse_boolean),
    "--name": ("name", _parse_name),
    "--exec": ("exec", _parse_text),
    "--cmd": ("command", _parse_word),
    "--user": ("user", _parse_text),
    "--group": ("group", _parse_text),
    "--signature": ("signature", _parse_text),
    "--working-dir": ("working_directory", _parse_path),
    "--supplementary-gids": ("supplementary_gids", _parse_gids),
    "--readonly-rootfs": ("read_only_root_fs", _parse_boolean),
    "--stdin": ("stdin", _parse_stdin),
    "--stdout": ("stdout", _parse_output),
    "--stderr": ("stderr", _parse_output),
}


def parse_device(flag: str, text: str) -> Device | str:
    """Return a device of the host, or the name of a vendor's device; FlagError, naming `flag`, for neither."""
    if is_cdi_name(text):
        return text
    source, *rest = text.split(":")
    target = rest.pop(0) if rest and rest[0].startswith("/") else source
    access = rest.pop(0) if rest else "rwm"
    is_access = bool(access) and len({*access} & _ACCESS) == len(access)
    if rest or not source.startswith("/") or not is_access:
        raise FlagError(f'{flag}: expected {DEVICE_FORM}, got "{text}"')
    return Device(source=source, target=target, access=access)


def parse_variable(flag: str, text: str, is_name: Callable[[str], bool] = is_environment_name) -> tuple[str, str]:
    """Return the name and value of `NAME=VALUE`; FlagError, naming `flag`, for another form."""
    name, separator, value = text.partition("=")
    if not separator or not is_name(name):
        raise FlagError(f'{flag}: expected NAME=VALUE, got "{text}"')
    return name, value


def parse_variables(flag: str, texts: Sequence[str]) -> Variables:
    """Return the variables of a repeatable option, each name only once."""
    variables: dict[str, str] = {}
    for text in texts:
        name, value = parse_variable(flag, text)
        if name in variables:
            raise FlagError(f"{flag}: {name} is set twice")
        variables[name] = value
    return tuple(variables.items())


def parse_environment_files(flag: str, files: Sequence[tuple[str, str]]) -> Variables:
    """
    Return the variables of files, given by their names and texts, each name only once.

    A line is `NAME=VALUE` with the value as it is, empty, or begins with `#` or `;`. A file in which variables end with
    a NUL, as env(1) writes them with -0, has nothing else, values of several lines, and names of any printable ASCII.
    """
    variables: dict[str, str] = {}
    for path, text in files:
        found, is_name = (_records, is_variable_name) if "\0" in text else (_lines, is_environment_name)
        for place, line in found(text):
            place = f"{flag}: {path} {place}"
            name, value = parse_variable(place, line, is_name)
            if name in variables:
                raise FlagError(f"{place}: {name} is set twice")
            variables[name] = value
    return tuple(variables.items())


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        if line.strip() and not line.startswith(("#", ";")):
            yield f"line {number}", line


def _records(text: str) -> Iterator[tuple[str, str]]:
    for number, record in enumerate(text.removesuffix("\0").split("\0"), 1):
        yield f"variable {number}", record


def parse_memory(flag: str, text: str) -> Isolator:
    """Return the isolator of a limit of memory, in bytes."""
    text = docker_quantity(text)
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
    """Return the isolator of the addition to the app's score when memory runs out, proc_pid_oom_score_adj(5)."""
    return Isolator(name=OOM_SCORE_ADJ, value=parse_number(flag, text, -1000, 1000))


def parse_caps_retain(flag: str, text: str) -> Isolator:
    """Return the isolator of the only capabilities that an app may hold."""
    return Isolator(name=CAPABILITIES_RETAIN, value={"set": _capabilities(flag, text)})


def parse_caps_remove(flag: str, text: str) -> Isolator:
    """Return the isolator of capabilities that an app may not hold."""
    return Isolator(name=CAPABILITIES_REMOVE, value={"set": _capabilities(flag, text)})


def parse_seccomp(flag: str, text: str) -> Isolator:
    """Return the isolator of a seccomp filter, whose words may stand in any order."""
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


def _parse_chosen_filter(text: str) -> str | None:
    """Return the word of a seccomp filter for the annotation minit/seccomp, None for a list of calls."""
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


# Flags whose uses add up, with the field of AppOverrides.
_COLLECTING: Mapping[str, tuple[str, Parser]] = {
    "--environment": ("environment", parse_variable),
    "--mount": ("mounts", parse_mount),
    "--mnt-volume": ("mounts", parse_mounted_volume),
    "--device": ("devices", parse_device),
    "--annotation": ("annotations", parse_annotation),
    "--user-annotation": ("user_annotations", parse_pair),
    "--user-label": ("user_labels", parse_pair),
    "--memory": ("isolators", parse_memory),
    "--cpu": ("isolators", parse_cpu),
    "--cpu-shares": ("isolators", parse_cpu_shares),
    "--oom-score-adj": ("isolators", parse_oom_score_adj),
    "--caps-retain": ("isolators", parse_caps_retain),
    "--caps-remove": ("isolators", parse_caps_remove),
    "--seccomp": ("isolators", parse_seccomp),
}
_CAPABILITY_SETS = {"--cap-add": "added_capabilities", "--cap-drop": "dropped_capabilities"}


def parse_capability_words(flag: str, text: str) -> frozenset[str]:
    """Return capabilities in docker's words: in any case of letters, with or without CAP_, or ALL."""
    names = {f"CAP_{word.upper().removeprefix('CAP_')}" for word in text.split(",")}
    if unknown := sorted(names - {*NAMES, ALL_CAPABILITIES}):
        raise FlagError(
            f'{flag}: expected capabilities like NET_ADMIN, or ALL, got "{unknown[0].removeprefix("CAP_")}"'
        )
    return frozenset(names)


Annotations = dict[Annotation, str | dict[str, object]]
"""Values for annotations; the fields of an object are added to those of the annotation."""


def _with_annotations(overrides: AppOverrides, changes: Annotations) -> AppOverrides:
    given = dict(overrides.annotations)
    for name, value in changes.items():
        if isinstance(value, dict):
            value = jsontext.dump(_merged(_read_object(name, given.get(name)), value)).decode()
        given[name] = value
    return replace(overrides, annotations=tuple(given.items()))


def _read_object(name: str, text: str | None) -> dict[str, Any]:
    try:
        found = {} if text is None else jsontext.parse(text.encode(), name)
    except ManifestError as error:
        raise FlagError(str(error)) from error
    if not isinstance(found, dict):
        raise FlagError(f"annotation {name}: expected an object")
    return found


def _merged(given: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        inner = given.get(key)
        given[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return given


def _restart(flag: str, text: str) -> Annotations:
    word, colon, count = text.partition(":")
    if word not in _RESTARTS or (colon and word != "on-failure"):
        raise FlagError(f'{flag}: expected no, always, unless-stopped or on-failure[:N], got "{text}"')
    limit = str(parse_number(flag, count, 0, _MAX_QUANTITY)) if colon else None
    return {Annotation.RESTART: _RESTARTS[word], **({} if limit is None else {Annotation.RESTART_LIMIT: limit})}


_RESTARTS = {"no": "never", "always": "always", "unless-stopped": "always", "on-failure": "on-failure"}


def _stop_timeout(flag: str, text: str) -> Annotations:
    seconds = parse_number(flag, text, -1, _YEAR_SECONDS)
    return {Annotation.STOP_GRACE: f"{_YEAR_SECONDS if seconds < 0 else seconds}s"}


def _pids_limit(flag: str, text: str) -> Annotations:
    number = parse_number(flag, text, -1, _MAX_PROCESSES)
    return {} if number <= 0 else {Annotation.PIDS_LIMIT: str(number)}


def _health(field: str, read: Callable[[str, str], object]) -> Callable[[str, str], Annotations]:
    return lambda flag, text: {
        Annotation.HEALTH: {"liveness": {field: read(flag, text), "asApp": True, "action": "none"}}
    }


def _health_command(flag: str, text: str) -> object:
    return ["/bin/sh", "-c", _parse_text(flag, text)]


def _duration(flag: str, text: str) -> object:
    try:
        parse_duration(text)
    except ValueError as error:
        raise FlagError(f"{flag}: {error}") from error
    return text


def _bytes(flag: str, text: str) -> int:
    return -(-_quantity(flag, docker_quantity(text)) // BILLION)


def _memory_swap(flag: str, text: str) -> Annotations:
    return {Annotation.LIMITS: {"memoryAndSwap": -1 if text == "-1" else _bytes(flag, text)}}


def _ulimit(flag: str, text: str) -> Annotations:
    name, equals, bounds = text.partition("=")
    if text == HOST:
        return {Annotation.ULIMITS: {HOST: True}}
    if not equals or name not in RESOURCES:
        names = ", ".join(RESOURCES)
        raise FlagError(f'{flag}: expected NAME=SOFT[:HARD] with one of {names}, or {HOST}, got "{text}"')
    try:
        return {Annotation.ULIMITS: {name: spell_bounds(parse_bounds(bounds))}}
    except ValueError as error:
        raise FlagError(f"{flag}: {name}: {error}") from error


_OF_ANNOTATIONS: Mapping[str, Callable[[str, str], Annotations]] = {
    "--restart": _restart,
    "--stop-signal": lambda flag, text: {Annotation.STOP_SIGNAL: _parse_text(flag, text)},
    "--stop-timeout": _stop_timeout,
    "--pids-limit": _pids_limit,
    "--cpuset-cpus": lambda flag, text: {Annotation.LIMITS: {"cpus": _parse_text(flag, text)}},
    "--memory-swap": _memory_swap,
    "--ulimit": _ulimit,
    "--health-cmd": _health("exec", _health_command),
    "--health-interval": _health("interval", _duration),
    "--health-timeout": _health("timeout", _duration),
    "--health-retries": _health("failures", lambda flag, text: parse_number(flag, text, 1, 1000)),
    "--health-start-period": _health("delay", _duration),
    "--sysctl": lambda flag, text: {Annotation.SYSCTLS: dict([parse_pair(flag, text)])},
    "--shm-size": lambda flag, text: {Annotation.SHM_SIZE: str(_bytes(flag, text))},
}
"""Flags of docker's that stand for annotations."""

APP_FLAGS = frozenset((*_REPLACING, *_COLLECTING, *_CAPABILITY_SETS, *_OF_ANNOTATIONS))
