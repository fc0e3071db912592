"""The `attach` entrypoint's work: what can be attached to, which of it is, and the way to the app's sidecar."""

from __future__ import annotations

import os
from collections.abc import Collection

from minit.base import jsontext
from minit.base.errors import AttachError
from minit.iottymux.attachclient import AttachOptions, attach
from minit.iottymux.callerinput import parse_detach_keys
from minit.iottymux.protocol import POLICIES, STDERR, STDIN, STDOUT, TTY_IN, TTY_OUT
from minit.linux import syscalls
from minit.linux.stdio import complain, write_all
from minit.manifest.names import is_ac_name
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded

_MAXIMUM_BYTES = 64 * 1024
_SAFELY = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_INDENT = "    "
_TTY = "tty"
_ENDPOINT_OF = {STDIN: STDIN, STDOUT: STDOUT, STDERR: STDERR, TTY_IN: _TTY, TTY_OUT: _TTY}


def list_endpoints(app: str) -> None:
    """Write the endpoints of an app of the pod in the working directory to standard output, indented as rkt does."""
    document = _read_endpoints(_open_streams(app), app)
    write_all(1, _indented(document, "\n").encode())


def attach_app(
    app: str,
    chosen: Collection[str] | None,
    *,
    detach_keys: str,
    is_read_only: bool,
    replay: bool,
    take_stdin: bool,
    policy: str,
    debug: bool,
    ready: int | None = None,
    is_quiet: bool = False,
) -> None:
    """
    Connect the caller to an app of the pod in the working directory; returns when either side has ended.

    `chosen` are some of protocol.STREAMS, None for all there are; `policy` is one of protocol.POLICIES, `detach_keys`
    as parse_detach_keys takes them. A line is written to `ready`, and that closed, as soon as nothing is missed any
    more. With `is_quiet` standard error has the app's words alone, unless a person is in front of it. AttachError says
    why it is not possible.
    """
    if policy not in POLICIES:
        raise AttachError(f'on-slow: expected one of {", ".join(POLICIES)}, got "{policy}"')
    keys = parse_detach_keys(detach_keys)
    options = AttachOptions(
        detach_keys=keys, replay=replay, take_stdin=take_stdin, policy=policy, ready=ready, is_quiet=is_quiet
    )
    directory = _open_streams(app)
    endpoints = _names(_read_endpoints(directory, app), app)
    # The end of /dev/null is none that the app should be told of.
    has_input = os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    streams = choose_streams(app, endpoints, chosen, is_read_only=is_read_only, has_input=has_input)
    if debug:
        complain(f'attach: app "{app}" has {", ".join(endpoints)}; attaching to {", ".join(streams)}')
    try:
        attach(directory, app, streams, options)
    except FileNotFoundError as error:
        raise _not_attachable(app) from error


def choose_streams(
    app: str, endpoints: Collection[str], chosen: Collection[str] | None, *, is_read_only: bool, has_input: bool
) -> tuple[str, ...]:
    """
    Return the streams to attach, in the order of protocol.STREAMS, of an app with these endpoints.

    Without a choice it is every output, and the input unless the caller has none. AttachError for a choice that is
    impossible.
    """
    if chosen is None:
        inputs = [name for name in (STDIN, TTY_IN) if _ENDPOINT_OF[name] in endpoints][:1] if has_input else []
        chosen = [*inputs, *(name for name in (STDOUT, STDERR, TTY_OUT) if _ENDPOINT_OF[name] in endpoints)]
    elif not chosen:
        raise AttachError(f'app "{app}": choose at least one of {", ".join(_ENDPOINT_OF)}')
    elif {TTY_IN, TTY_OUT} & {*chosen} and {STDIN, STDOUT, STDERR} & {*chosen}:
        raise AttachError(f'app "{app}": cannot attach its terminal and its streams at the same time')
    for name in chosen:
        if _ENDPOINT_OF[name] not in endpoints:
            raise AttachError(f'app "{app}" has no {name} to attach to (it has: {", ".join(endpoints) or "nothing"})')
    streams = tuple(name for name in _ENDPOINT_OF if name in chosen and not (is_read_only and name in (STDIN, TTY_IN)))
    if not streams:
        reason = "read-only" if is_read_only else "without input"
        raise AttachError(f'app "{app}": nothing to attach to {reason} (it has: {", ".join(endpoints) or "nothing"})')
    return streams


def _open_streams(app: str) -> int:
    if not is_ac_name(app):
        raise AttachError(f'"{app}" is no app name: expected lower-case letters, digits and inner dashes')
    path = f"{paths.POD_STAGE1_ROOTFS}{paths.iottymux_directory(app)}"
    try:
        return syscalls.openat2(syscalls.AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY, 0, _SAFELY)
    except FileNotFoundError as error:
        if not os.path.exists(paths.app_manifest(app)):
            raise AttachError(f'no app "{app}" in this pod') from error
        raise _not_attachable(app) from error


def _not_attachable(app: str) -> AttachError:
    return AttachError(f'app "{app}" is not attachable: it is not running, or no stream of it has mode stream or tty')


def _read_endpoints(directory: int, app: str) -> object:
    try:
        fd = syscalls.openat2(directory, paths.ENDPOINTS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0, _SAFELY)
    except FileNotFoundError as error:
        raise _not_attachable(app) from error
    return jsontext.parse(read_bounded(fd, paths.ENDPOINTS, _MAXIMUM_BYTES), paths.ENDPOINTS)


def _names(document: object, app: str) -> list[str]:
    targets = document.get("targets") if isinstance(document, dict) else None
    if isinstance(targets, list):
        names = [target.get("name") for target in targets if isinstance(target, dict)]
        if all(name in _ENDPOINT_OF.values() for name in names):
            return [str(name) for name in names]
    raise AttachError(f'app "{app}": {paths.ENDPOINTS} is not a list of endpoints')


def _indented(value: object, line: str) -> str:
    """Return JSON as Go's encoder indents it; `line` is a line feed and the indent of where the value stands."""
    inner = line + _INDENT
    if isinstance(value, dict) and value:
        fields = [f"{jsontext.quote(name)}: {_indented(item, inner)}" for name, item in value.items()]
        return "{" + inner + ("," + inner).join(fields) + line + "}"
    if isinstance(value, list) and value:
        return "[" + inner + ("," + inner).join(_indented(item, inner) for item in value) + line + "]"
    return jsontext.dump(value).decode()
