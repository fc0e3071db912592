"""The environment of a Kubernetes container: variables, where their values come from, and `$(NAME)` in texts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from minit.manifest.names import is_variable_name
from minit.manifest.reader import Node
from minit.stage0.kubernetes.reading.fields import Fields, Findings, read_text
from minit.stage0.kubernetes.references.configmaps import CONFIG_MAP, SECRET, Config, find_config
from minit.stage0.kubernetes.references.fieldrefs import read_field, read_resource_field
from minit.stage0.kubernetes.references.podfields import PodNames

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


def read_environment(
    fields: Fields, configs: tuple[Config, ...], pod: PodNames, container: str
) -> tuple[tuple[str, str], ...]:
    """Return the variables of `envFrom` and `env` of a container; later ones win, and know those before them."""
    variables: dict[str, str] = {}
    for found in fields.each("envFrom", lambda node, findings: _read_source(node, findings, configs)):
        variables.update(found)

    def read(node: Node, findings: Findings) -> tuple[str, str | None, bool]:
        return _read_variable(node, findings, configs, pod, container)

    for name, value, is_text in fields.each("env", read):
        if value is not None:
            variables[name] = expand(value, variables) if is_text else value
    return tuple(variables.items())


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with `$(NAME)` replaced where the variable is known; `$$` is one dollar."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def _read_source(node: Node, findings: Findings, configs: tuple[Config, ...]) -> dict[str, str]:
    with Fields(node, findings) as fields:
        prefix = fields["prefix"].optional(read_text) or ""
        found: dict[str, str] = {}
        for field, kind in (("configMapRef", CONFIG_MAP), ("secretRef", SECRET)):
            if not fields[field].given:
                continue
            with fields.within(field) as reference:
                optional = reference["optional"].optional(Node.boolean) or False
                config = find_config(configs, kind, reference["name"], optional)
            for key, data in config.data if config is not None else ():
                # A key that is no name of a variable is left out in Kubernetes too.
                if is_variable_name(prefix + key):
                    found[prefix + key] = _text(data, node)
    return found


def _read_variable(
    node: Node, findings: Findings, configs: tuple[Config, ...], pod: PodNames, container: str
) -> tuple[str, str | None, bool]:
    """Return a variable, None as its value if it is to be left out, and whether others may be named in it."""
    with Fields(node, findings) as fields:
        name = fields["name"].matching(is_variable_name, "the name of an environment variable")
        if not fields["valueFrom"].given:
            return name, fields["value"].optional(read_text) or "", True
        with fields.within("valueFrom") as origin:
            for field, kind in (("configMapKeyRef", CONFIG_MAP), ("secretKeyRef", SECRET)):
                if origin[field].given:
                    return name, _read_key(origin.within(field), configs, kind), False
            if origin["fieldRef"].given:
                return name, read_field(origin.within("fieldRef"), pod), False
            if origin["resourceFieldRef"].given:
                return name, read_resource_field(origin.within("resourceFieldRef"), pod, container), False
    return name, None, False


def _read_key(fields: Fields, configs: tuple[Config, ...], kind: str) -> str | None:
    with fields:
        optional = fields["optional"].optional(Node.boolean) or False
        config = find_config(configs, kind, fields["name"], optional)
        key = fields["key"].non_empty()
        data = config.get(key) if config is not None else None
        if data is None:
            if not optional and config is not None:
                raise fields["key"].error(f"a key of {kind} {config.name}")
            return None
        return _text(data, fields["key"])


def _text(data: bytes, node: Node) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise node.error("text for a variable", "bytes that are no UTF-8") from error
    if "\0" in text:
        raise node.error("text for a variable", "a NUL")
    return text
