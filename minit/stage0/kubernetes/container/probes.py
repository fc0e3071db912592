"""Probes of a Kubernetes container, as the annotation by which minit's stage1 checks the health of an app."""

from __future__ import annotations

from collections.abc import Mapping

from minit.base import jsontext
from minit.manifest.app import MAX_PORT
from minit.manifest.reader import Node
from minit.stage0.kubernetes.reading.fields import Fields, Findings, read_text

_PROBES = {"startupProbe": "startup", "livenessProbe": "liveness", "readinessProbe": "readiness"}
_MOST_SECONDS = 24 * 3600
_MOST_RESULTS = 1000

Json = dict[str, object]


def read_probes(fields: Fields) -> str | None:
    """Return the value of the annotation `minit/health` for the probes of a container, None without any."""
    ports = fields["ports"].each(_read_port_name)
    names = {name: port for name, port in ports if name is not None}
    checks = {kind: _read_probe(fields.within(field), names) for field, kind in _PROBES.items() if fields[field].given}
    return jsontext.dump(checks).decode("ascii") if checks else None


def _read_port_name(node: Node) -> tuple[str | None, int]:
    return node["name"].optional(Node.string), node["containerPort"].integer(1, MAX_PORT)


def _read_probe(fields: Fields, ports: Mapping[str, int]) -> Json:
    with fields:
        check: Json = {}
        if fields["exec"].given:
            with fields.within("exec") as command:
                check["exec"] = list(command["command"].each(read_text))
        if fields["httpGet"].given:
            with fields.within("httpGet") as http:
                check["http"] = _read_http(http, ports)
        if fields["tcpSocket"].given:
            with fields.within("tcpSocket") as tcp:
                check["tcp"] = _read_target(tcp, ports)
        if not check and not fields["grpc"].given:
            raise fields.node.error("one of exec, httpGet and tcpSocket")
        if fields["grpc"].given:
            fields.findings.refuse(fields["grpc"])
        for field, name, least in (
            ("initialDelaySeconds", "delay", 0),
            ("periodSeconds", "interval", 1),
            ("timeoutSeconds", "timeout", 1),
        ):
            if fields[field].given:
                check[name] = f"{fields[field].integer(least, _MOST_SECONDS)}s"
        for field, name in (("failureThreshold", "failures"), ("successThreshold", "successes")):
            if fields[field].given:
                check[name] = fields[field].integer(1, _MOST_RESULTS)
        return check


def _read_http(fields: Fields, ports: Mapping[str, int]) -> Json:
    fields.only("scheme", "HTTP")
    found = _read_target(fields, ports)
    path = fields["path"].optional(Node.string)
    if path:
        found["path"] = path if path.startswith("/") else f"/{path}"
    headers = dict(fields.each("httpHeaders", _read_header))
    return {**found, "headers": headers} if headers else found


def _read_target(fields: Fields, ports: Mapping[str, int]) -> Json:
    node = fields["port"]
    name = node.raw()
    if isinstance(name, str):
        port = ports.get(name)
        if port is None:
            raise node.error("a number, or the name of one of the container's ports")
    else:
        port = node.integer(1, MAX_PORT)
    host = fields["host"].optional(Node.non_empty)
    return {"port": port} if host is None else {"port": port, "host": host}


def _read_header(node: Node, findings: Findings) -> tuple[str, str]:
    with Fields(node, findings) as fields:
        return fields["name"].non_empty(), read_text(fields["value"])
