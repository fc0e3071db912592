"""Checks whether an app works, by the annotation minit/health: a JSON object with a check of each kind."""

from __future__ import annotations

import socket

from minit.base.errors import PlanError
from minit.base.goduration import parse_duration
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.manifest.reader import Node, read_json

STARTUP = "startup"
LIVENESS = "liveness"
READINESS = "readiness"
KINDS = (STARTUP, LIVENESS, READINESS)

NONE = "none"
RESTART = "restart"
STOP_POD = "stop-pod"

_LONGEST_SECONDS = 366 * 24 * 3600.0
_SHORTEST_SECONDS = 0.1
_MOST_RESULTS = 1000
_MAX_TEXT = 4096
_FIELDS = ("exec", "asApp", "http", "tcp", "delay", "interval", "timeout", "failures", "successes", "action")
_HTTP_FIELDS = ("port", "path", "host", "headers")
_TCP_FIELDS = ("port", "host")


class Target(Value):
    """A port in the pod's network; with `path` an HTTP request decides, without a path an accepted connection."""

    host: str
    port: int
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class HealthCheck(Value):
    """
    One check of an app, a command in the app or a target, and the consequence.

    The check fails after `failures` bad results in a row, and is good after `successes` good results. Each failure
    causes `action`.
    """

    kind: str
    command: tuple[str, ...] | None = None
    as_app: bool = False
    """The command has the user and the groups of the app, and is not root."""
    target: Target | None = None
    delay_seconds: float = 0.0
    interval_seconds: float = 10.0
    timeout_seconds: float = 1.0
    failures: int = 3
    successes: int = 1
    action: str = NONE

    @property
    def decides_readiness(self) -> bool:
        """Tell whether the app is ready only while this check is good."""
        return self.kind != LIVENESS

    def describe(self) -> str:
        """Return the check as words for --debug."""
        if self.target is None:
            what = f"exec {list(self.command or ())}"
        else:
            what = f"{'tcp' if self.target.path is None else 'http'} {self.target.host}:{self.target.port}"
            what += self.target.path or ""
        return (
            f"{self.kind} {what}, every {self.interval_seconds:g} s after {self.delay_seconds:g} s,"
            f" {self.timeout_seconds:g} s each, {self.failures} failures: {self.action}"
        )


def plan_health(runtime: RuntimeApp, *, can_be_removed: bool = False) -> tuple[HealthCheck, ...]:
    """
    Return the checks of an app, in the order of KINDS; ManifestError or PlanError for bad checks.

    Checks of an app that a pod starts with last as long as the pod, so such an app must not be one that
    `can_be_removed`.
    """
    text = runtime.annotation(Annotation.HEALTH)
    if text is None:
        return ()
    where = f'app "{runtime.name}": annotation {Annotation.HEALTH}'
    if can_be_removed:
        raise PlanError(f"{where}: in a mutable pod only apps that are added to it can have checks")
    root = read_json(text.encode(errors="surrogateescape"), where)
    _refuse_others(root, KINDS)
    checks = tuple(_read_check(root[kind], kind) for kind in KINDS if root[kind].given)
    if not checks:
        raise root.error(f"some of {', '.join(KINDS)}")
    return checks


def _read_check(node: Node, kind: str) -> HealthCheck:
    _refuse_others(node, _FIELDS)
    if sum(node[way].given for way in ("exec", "http", "tcp")) != 1:
        raise node.error("one of exec, http and tcp")
    command = node["exec"].each(Node.string) if node["exec"].given else None
    if command is not None and not (command and command[0]):
        raise node["exec"].error("a command and its arguments")
    as_app = node["asApp"].optional(Node.boolean) or False
    if as_app and command is None:
        raise node["asApp"].error("nothing without exec")
    actions = (NONE,) if kind == READINESS else (RESTART, STOP_POD, NONE)
    successes = node["successes"].optional(_read_count) or 1
    if kind != READINESS and successes != 1:
        raise node["successes"].error(f"1, for {kind}")
    target = None
    if command is None:
        target = _read_http(node["http"]) if node["http"].given else _read_tcp(node["tcp"])
    usual = HealthCheck(kind=kind)
    return HealthCheck(
        kind=kind,
        command=command,
        as_app=as_app,
        target=target,
        delay_seconds=_read_seconds(node["delay"], 0.0, usual.delay_seconds),
        interval_seconds=_read_seconds(node["interval"], _SHORTEST_SECONDS, usual.interval_seconds),
        timeout_seconds=_read_seconds(node["timeout"], _SHORTEST_SECONDS, usual.timeout_seconds),
        failures=node["failures"].optional(_read_count) or usual.failures,
        successes=successes,
        action=node["action"].optional(lambda action: action.one_of(*actions)) or actions[0],
    )


def _read_http(node: Node) -> Target:
    _refuse_others(node, _HTTP_FIELDS)
    path = node["path"].optional(lambda path: path.matching(_is_request_path, "a path without white space")) or "/"
    headers = node["headers"].string_map()
    for name, value in headers:
        if not _is_header(name) or ":" in name or " " in name or not _is_header(f"x{value}"):
            raise node["headers"].error("names and values of headers")
    return Target(host=_read_host(node), port=node["port"].integer(1, 65535), path=path, headers=headers)


def _read_tcp(node: Node) -> Target:
    _refuse_others(node, _TCP_FIELDS)
    return Target(host=_read_host(node), port=node["port"].integer(1, 65535))


def _read_host(node: Node) -> str:
    # Numbers only: who looks up names would depend on the host's own files.
    return node["host"].optional(lambda host: host.matching(_is_address, "an IP address")) or "127.0.0.1"


def _read_seconds(node: Node, least: float, usual: float) -> float:
    if not node.given:
        return usual
    expected = f'a duration such as "10s", from {least:g} s on'
    try:
        seconds = parse_duration(node.string())
    except ValueError as error:
        raise node.error(expected) from error
    if not least <= seconds <= _LONGEST_SECONDS:
        raise node.error(expected)
    return seconds


def _read_count(node: Node) -> int:
    return node.integer(1, _MOST_RESULTS)


def _refuse_others(node: Node, known: tuple[str, ...]) -> None:
    value = node.raw()
    if not isinstance(value, dict):
        raise node.error("an object")
    for name in value:
        if name not in known:
            raise Node(value[name], node, name).error(f"one of the fields {', '.join(known)}", "another one")


def _is_request_path(path: str) -> bool:
    return path.startswith("/") and len(path) <= _MAX_TEXT and all("!" <= character <= "~" for character in path)


def _is_header(text: str) -> bool:
    return bool(text) and len(text) <= _MAX_TEXT and all(" " <= character <= "~" for character in text)


def _is_address(text: str) -> bool:
    # No zone: an index of the host's interfaces means nothing in the pod.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError):
            continue
        return True
    return False
