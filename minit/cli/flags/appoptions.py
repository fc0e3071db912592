"""The options of one app, which follow its image, and what each of them changes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minit.base.value import replace
from minit.cli.flags.deviceflags import parse_device
from minit.cli.flags.environmentflags import parse_variable
from minit.cli.flags.isolatorflags import (
    parse_caps_remove,
    parse_caps_retain,
    parse_chosen_filter,
    parse_cpu,
    parse_cpu_shares,
    parse_memory,
    parse_oom_score_adj,
    parse_seccomp,
)
from minit.cli.flags.volumeflags import parse_mount, parse_mounted_volume
from minit.cli.flagwords import FlagError
from minit.manifest.app import CAPABILITIES_REMOVE, CAPABILITIES_RETAIN, MAX_ID, SECCOMP_REMOVE, SECCOMP_RETAIN
from minit.manifest.names import is_ac_identifier, is_ac_name
from minit.stage0.pods.appsection import AppOverrides

STDIN_MODES = ("null", "stream", "tty")
OUTPUT_MODES = ("log", "null", "stream", "tty", "log+stream", "log+tty")

SIGNATURE = "--signature"  # of rkt, which verifies images

Parser = Callable[[str, str], Any]
"""From an option and its value to what is kept of it; FlagError for a value that is not possible."""


def apply_app_flag(overrides: AppOverrides, name: str, value: str) -> AppOverrides:
    """Return `overrides` with one more per-app flag; FlagError if its value is not possible."""
    if (name == "--exec" and overrides.exec is not None) or (name == "--cmd" and overrides.command is not None):
        raise FlagError(f"{name} can be given only once per image")
    if name == SIGNATURE:
        return overrides
    if name in _REPLACING:
        field, parse = _REPLACING[name]
        changed = replace(overrides, **{field: parse(name, value)})
        if changed.exec is not None and changed.command is not None:
            raise FlagError("--exec and --cmd exclude each other for one image: --exec replaces the entrypoint too")
        return changed
    field, parse = _COLLECTING[name]
    chosen = parse_chosen_filter(value) if name == "--seccomp" else None
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
    """Return the two sides of `NAME=VALUE`; FlagError, naming `flag`, if it is none."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise FlagError(f'{flag}: expected NAME=VALUE, got "{text}"')
    return name, value


def parse_annotation(flag: str, text: str) -> tuple[str, str]:
    """Return the name and value of an annotation; FlagError, naming `flag`, if it is none."""
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


# Flags whose last use counts, with the field of AppOverrides that they set.
_REPLACING: Mapping[str, tuple[str, Parser]] = {
    "--name": ("name", _parse_name),
    "--exec": ("exec", _parse_text),
    "--cmd": ("command", _parse_word),
    "--user": ("user", _parse_text),
    "--group": ("group", _parse_text),
    "--working-dir": ("working_directory", _parse_path),
    "--supplementary-gids": ("supplementary_gids", _parse_gids),
    "--readonly-rootfs": ("read_only_root_fs", _parse_boolean),
    "--stdin": ("stdin", _parse_stdin),
    "--stdout": ("stdout", _parse_output),
    "--stderr": ("stderr", _parse_output),
}
# Flags whose uses add up, with the field that they add to.
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
APP_FLAGS = frozenset((*_REPLACING, *_COLLECTING, SIGNATURE))
