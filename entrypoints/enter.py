"""The `enter` entrypoint: runs a command in an app of a running pod."""

from __future__ import annotations

import os
from typing import NoReturn

from entrypoints._main import run_entrypoint
from minit.errors import UsageError
from minit.goflags import parse_flags, usage
from minit.launcher.enter.enterpod import enter_pod

# rkt's enter is a C program with getopt_long, which takes abbreviations: these are the ones in use.
# `privileged` is ours.
_FLAGS: dict[str, bool | str] = {"pid": "", "appname": "", "app": "", "p": "", "a": "", "privileged": False}
_SHOWN: dict[str, bool | str] = {"pid": "", "appname": "", "privileged": False}
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
    except UsageError as error:
        raise _EnterUsage(str(error)) from error
    if command[:1] == ["--"]:
        # `rkt enter UUID -- ls` hands its own "--" on, after the one that stage0 adds.
        command = command[1:]
    pid = str(values["pid"] or values["p"])
    if not pid.isdecimal() or not command:
        raise _EnterUsage(f'expected --pid=N and a command, got --pid="{pid}" and {len(command)} words')
    app = str(values["appname"] or values["app"] or values["a"]) or os.environ.get(_APP_VARIABLE)
    return enter_pod(int(pid), app or None, command, privileged=values["privileged"] is True)
