"""The arguments of the entrypoints about one app of a running pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit.base.errors import UsageError
from minit.base.goduration import parse_duration
from minit.base.goflags import given_flags, parse_flags
from minit.base.value import Value
from minit.manifest.names import is_ac_name
from minit.plan.inputs.runflags import parse_uuid, refuse_operands

APP_FLAGS: dict[str, bool | str] = {"debug": False, "app": ""}
STOP_FLAGS: dict[str, bool | str] = {**APP_FLAGS, "timeout": ""}
ADD_FLAGS: dict[str, bool | str] = {
    **APP_FLAGS,
    "uuid": "",
    "private-users": "",
    "disable-capabilities-restriction": False,
    "disable-paths": False,
    "disable-seccomp": False,
}


class AddFlags(Value):
    """The flags of `app/add`; None means the option of the pod."""

    uuid: str
    app: str
    debug: bool = False
    private_users: str | None = None
    disable_capabilities: bool | None = None
    disable_paths: bool | None = None
    disable_seccomp: bool | None = None


def parse_app(arguments: Sequence[str]) -> str:
    """Return the app that `app/start` or `app/rm` is about; UsageError as Go's flag package, or without."""
    values, operands = parse_flags(arguments, APP_FLAGS)
    refuse_operands(operands)
    return _app(values)


def parse_stop_flags(arguments: Sequence[str]) -> tuple[str, float | None]:
    """Return the app that `app/stop` is about, and a grace period in seconds if one is given; UsageError as above."""
    values, operands = parse_flags(arguments, STOP_FLAGS)
    refuse_operands(operands)
    text = str(values["timeout"])
    try:
        seconds = parse_duration(text) if text else None
    except ValueError as error:
        raise UsageError(f'invalid value "{text}" for flag -timeout: {error}') from error
    if seconds is not None and seconds < 0:
        raise UsageError(f'invalid value "{text}" for flag -timeout: expected 0 or more')
    return _app(values), seconds


def parse_add_flags(arguments: Sequence[str]) -> AddFlags:
    """Return the flags of `app/add`; UsageError as above."""
    given, operands = given_flags(arguments, ADD_FLAGS)
    refuse_operands(operands)
    return AddFlags(
        uuid=parse_uuid(str(given.get("uuid", ""))),
        app=_app(given),
        debug=given.get("debug") is True,
        private_users=_text(given.get("private-users")),
        disable_capabilities=_switch(given.get("disable-capabilities-restriction")),
        disable_paths=_switch(given.get("disable-paths")),
        disable_seccomp=_switch(given.get("disable-seccomp")),
    )


def _app(values: Mapping[str, bool | str]) -> str:
    # It becomes part of paths.
    app = str(values.get("app", ""))
    if not is_ac_name(app):
        raise UsageError(f'invalid value "{app}" for flag -app: expected the name of an app')
    return app


def _text(value: bool | str | None) -> str | None:
    return value if isinstance(value, str) else None


def _switch(value: bool | str | None) -> bool | None:
    return value if isinstance(value, bool) else None
