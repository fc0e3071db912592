"""The `attach` entrypoint: connects the caller's streams to those of an app, or lists what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from entrypoints._main import read_descriptor, run_entrypoint, telling_failures
from minit.base.errors import AttachError
from minit.base.goflags import parse_flags, usage
from minit.launcher.attach import attach_app, list_endpoints
from minit.linux.stdio import open_standard_streams
from minit.plan.inputs.runflags import refuse_operands

_STREAMS = ("stdin", "stdout", "stderr", "tty-in", "tty-out")
_FLAGS: dict[str, bool | str] = {
    **{"action": "list", "app": "", "debug": False},
    **dict.fromkeys(_STREAMS, False),
    # minit's own.
    **{"detach-keys": "ctrl-p,ctrl-q", "no-replay": False, "on-slow": "wait", "read-only": False, "take-stdin": False},
    **{"failure-fd": "", "ready-fd": ""},
}


def main() -> NoReturn:
    """Attach and exit, with 0 when the app's output has ended or the caller detached."""
    run_entrypoint("attach", usage("attach", "", _FLAGS), _attach)


def _attach(arguments: list[str]) -> int:
    values, operands = parse_flags(arguments, _FLAGS)
    refuse_operands(operands)
    failures, ready = (read_descriptor(flag, str(values[flag])) for flag in ("failure-fd", "ready-fd"))
    open_standard_streams()
    return telling_failures(failures, lambda: _act(values, ready, is_quiet=failures is not None))


def _act(values: Mapping[str, bool | str], ready: int | None, *, is_quiet: bool) -> int:
    app, action = str(values["app"]), values["action"]
    if action == "list":
        list_endpoints(app)
    elif action in ("auto-attach", "custom-attach"):
        attach_app(
            app,
            None if action == "auto-attach" else [name for name in _STREAMS if values[name]],
            detach_keys=str(values["detach-keys"]),
            is_read_only=values["read-only"] is True,
            replay=values["no-replay"] is False,
            take_stdin=values["take-stdin"] is True,
            policy=str(values["on-slow"]),
            debug=values["debug"] is True,
            ready=ready,
            is_quiet=is_quiet,
        )
    else:
        raise AttachError(f'unknown action "{action}": expected list, auto-attach or custom-attach')
    return 0
