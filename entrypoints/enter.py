"""The `enter` entrypoint: runs a command in an app of a running pod."""

from __future__ import annotations

import os
from typing import NoReturn

from entrypoints._main import read_descriptor, run_entrypoint, telling_failures
from minit.base.errors import ManifestError, UsageError
from minit.base.goduration import parse_duration
from minit.base.goflags import parse_flags, usage
from minit.launcher.enter.enterpod import enter_pod, hand_root
from minit.podfiles.enterchanges import CHANGES

# rkt's enter is a C program with getopt_long, which takes abbreviations: these are the ones in use.
# Those of `_OWN` are ours.
_OWN: dict[str, bool | str] = {
    "as-app": False,
    "changes": "",
    "failure-fd": "",
    "privileged": False,
    "root-fd": "",
    "timeout": "",
}
_FLAGS: dict[str, bool | str] = {"pid": "", "appname": "", "app": "", "p": "", "a": "", **_OWN}
_SHOWN: dict[str, bool | str] = {"pid": "", "appname": "", **_OWN}
# Set by rkt for whoever calls `enter` from another entrypoint.
_APP_VARIABLE = "RKT_STAGE1_ENTERAPP"


class _EnterUsage(UsageError):
    exit_code = 1  # rkt's enter, unlike the other entrypoints


def main() -> NoReturn:
    """Enter and exit with the command's code."""
    run_entrypoint("enter", usage("enter", "-- CMD [ARG...]", _SHOWN), _enter)


def _enter(arguments: list[str]) -> int:
    try:
        values, command = parse_flags(arguments, _FLAGS)
        failures = read_descriptor("failure-fd", str(values["failure-fd"]))
        roots = read_descriptor("root-fd", str(values["root-fd"]))
    except UsageError as error:
        raise _EnterUsage(str(error)) from error
    if command[:1] == ["--"]:
        # `rkt enter UUID -- ls` hands its own "--" on, after the one that stage0 adds.
        command = command[1:]
    pid = str(values["pid"] or values["p"])
    app = str(values["appname"] or values["app"] or values["a"]) or os.environ.get(_APP_VARIABLE)
    if roots is not None:
        if not pid.isdecimal() or not app or command:
            raise _EnterUsage("--root-fd: expected --pid=N, --appname=APP and no command")
        return telling_failures(failures, lambda: hand_root(int(pid), app, roots))
    if not pid.isdecimal() or not command:
        raise _EnterUsage(f'expected --pid=N and a command, got --pid="{pid}" and {len(command)} words')
    privileged, as_app = values["privileged"] is True, values["as-app"] is True
    if as_app and (not app or privileged):
        raise _EnterUsage("--as-app: only a command in an app, without --privileged, can be of the app's user")
    try:
        changes = CHANGES.decode(os.fsencode(str(values["changes"])), "--changes") if values["changes"] else None
    except ManifestError as error:
        raise _EnterUsage(str(error)) from error
    if changes is not None and not app:
        raise _EnterUsage("--changes: only a command in an app has other surroundings")
    timeout_seconds = _read_timeout(str(values["timeout"]))
    if timeout_seconds is not None and (not app or privileged):
        raise _EnterUsage("--timeout: only a command in an app, without --privileged, can have a time limit")
    # The command's own exit code may be the same as that of a failure.
    return telling_failures(
        failures,
        lambda: enter_pod(
            int(pid),
            app or None,
            command,
            privileged=privileged,
            as_app=as_app,
            timeout_seconds=timeout_seconds,
            changes=changes,
        ),
    )


def _read_timeout(text: str) -> float | None:
    try:
        seconds = parse_duration(text) if text else None
    except ValueError as error:
        raise _EnterUsage(f"--timeout: {error}") from error
    if seconds is not None and seconds <= 0:
        raise _EnterUsage("--timeout: expected more than 0")
    return seconds
