"""Requests and limits of a Kubernetes container, as isolators and as numbers for references of fields."""

from __future__ import annotations

import base64
import binascii
import re

from minit.base import jsontext
from minit.base.errors import ManifestError
from minit.base.value import Value
from minit.kubernetes.fields import Fields, Findings, read_quantity, read_texts
from minit.manifest.app import CPU, CPU_SHARES, MEMORY, Isolator
from minit.manifest.limits import BILLION, limit_isolator, parse_quantity
from minit.manifest.reader import Node

_SHARES_OF_A_CPU = 1024
_MIN_SHARES, _MAX_SHARES = 2, 262144

_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
# The words of stage1 in the annotation minit/expand.
_LATER = {
    "metadata.uid": "pod-uuid",
    "status.podIP": "pod-ip",
    "status.podIPs": "pod-ips",
    "status.hostIP": "host-ip",
    "status.hostIPs": "host-ip",
}

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"


class Machine(Value):
    """The machine as pods see it: name, capacity without a limit, and whether the kernel has SELinux."""

    name: str = "localhost"
    cpus: int = 1
    memory_bytes: int = 1 << 30
    has_selinux: bool = False


class Resources(Value):
    """Quantities as written, by `limits.cpu` and the like."""

    amounts: tuple[tuple[str, str], ...] = ()

    def isolators(self) -> tuple[Isolator, ...]:
        """Return the isolators of these quantities for stage1."""
        given = dict(self.amounts)
        isolators = []
        for resource, name in (("memory", MEMORY), ("cpu", CPU)):
            limit = given.get(f"limits.{resource}")
            if limit is not None:
                isolators.append(limit_isolator(name, limit, given.get(f"requests.{resource}")))
        wanted = given.get("requests.cpu") or given.get("limits.cpu")
        if wanted is not None:
            shares = parse_quantity(wanted) * _SHARES_OF_A_CPU // BILLION
            isolators.append(Isolator(name=CPU_SHARES, value=min(max(shares, _MIN_SHARES), _MAX_SHARES)))
        return tuple(isolators)

    def amount(self, resource: str, machine: Machine) -> int | None:
        """Return a quantity in billionths, the machine's capacity where there is no limit; None for an unknown name."""
        whole = {"cpu": machine.cpus, "memory": machine.memory_bytes}
        kind, _, name = resource.partition(".")
        if kind not in ("limits", "requests") or name not in whole:
            return None
        given = dict(self.amounts)
        text = given.get(resource) or given.get(f"limits.{name}")
        if text is not None:
            return parse_quantity(text)
        return whole[name] * BILLION if kind == "limits" else 0


def read_resources(fields: Fields) -> Resources:
    """Read the resources of a container."""
    amounts = {}
    with fields:
        fields.only("claims", [])
        for kind in ("limits", "requests"):
            with fields.within(kind) as given:
                for name in ("memory", "cpu"):
                    if given[name].given:
                        amounts[f"{kind}.{name}"] = read_amount(given[name])
    return Resources(amounts=tuple(amounts.items()))


def read_amount(node: Node) -> str:
    """Read a quantity that is not negative, as written."""
    text = read_quantity(node)
    try:
        amount = parse_quantity(text)
    except ValueError as error:
        raise node.error("a quantity, like 500m or 64Mi") from error
    if amount < 0:
        raise node.error("a quantity that is not negative")
    return text


class PodNames(Value):
    """
    The names of a Pod, and other targets of references in the Pod.

    `resources` are those of the containers, by name. `mark` is a text that is nowhere in the file: a field
    with a value unknown before the pod runs is written with the mark.
    """

    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    service_account: str = "default"
    machine: Machine = Machine()
    resources: tuple[tuple[str, Resources], ...] = ()
    mark: str = ""

    def field(self, path: str) -> str | None:
        """Return the field of a path as fieldRef has the path, None for an unknown path."""
        if path in _LATER:
            return f"@{_LATER[path]}{self.mark}@"
        if path in ("metadata.labels", "metadata.annotations"):
            pairs = self.labels if path.endswith("labels") else self.annotations
            return "".join(f"{name}={jsontext.dump(value).decode()}\n" for name, value in sorted(pairs))
        known = {
            "metadata.name": self.name,
            "metadata.namespace": self.namespace,
            "spec.nodeName": self.machine.name,
            "spec.serviceAccountName": self.service_account,
        }
        found = _MAP_FIELD.fullmatch(path)
        if found is None:
            return known.get(path)
        return dict(self.labels if found[1] == "labels" else self.annotations).get(found[2], "")

    def later(self, *texts: str) -> dict[str, str]:
        """Return the still unknown fields in these texts, with stage1's names of the fields."""
        marks = {f"@{name}{self.mark}@": name for name in _LATER.values()}
        return {mark: name for mark, name in marks.items() if any(mark in text for text in texts)}


def read_field(fields: Fields, pod: PodNames) -> str | None:
    """Return the value of a fieldRef; None, and a finding, for a field that minit does not know."""
    with fields:
        fields.only("apiVersion", "v1")
        value = pod.field(fields["fieldPath"].string())
        if value is None:
            fields.findings.refuse(fields["fieldPath"])
        return value


def read_resource_field(fields: Fields, pod: PodNames, own: str | None) -> str | None:
    """
    Return the number of a resourceFieldRef; None, and a finding, for a resource that minit does not know.

    `own` is the container of a reference that names none.
    """
    with fields:
        container = fields["containerName"].optional(Node.non_empty) or own
        resources = dict(pod.resources).get(container or "")
        if resources is None:
            raise fields["containerName"].error("the name of a container of this Pod")
        divisor = fields["divisor"].optional(read_amount) or "1"
        amount = resources.amount(fields["resource"].non_empty(), pod.machine)
        if amount is None:
            fields.findings.refuse(fields["resource"], "limits and requests of cpu and memory are known")
            return None
        return str(-(-amount // (parse_quantity(divisor) or BILLION)))


class Config(Value):
    """A ConfigMap or a Secret; `data` has the keys in order."""

    kind: str
    name: str
    data: tuple[tuple[str, bytes], ...]

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if there is no such key."""
        return dict(self.data).get(key)


def read_config(root: Node, kind: str, findings: Findings) -> Config:
    """Read a whole document of a ConfigMap or a Secret."""
    with Fields(root, findings) as fields:
        fields["apiVersion"].one_of("v1")
        fields["kind"].one_of(kind)
        fields["immutable"].optional(Node.boolean)
        with fields.within("metadata") as metadata:
            name = metadata["name"].matching(len, "a name")
            metadata.ignored("namespace", "labels", "annotations")
        data: dict[str, bytes] = {}
        if kind == SECRET:
            fields["type"].optional(Node.string)
            data.update({key: _decode(fields["data"], key, text) for key, text in read_texts(fields["data"])})
            data.update({key: text.encode() for key, text in read_texts(fields["stringData"])})
        else:
            data.update({key: text.encode() for key, text in read_texts(fields["data"])})
            binary = read_texts(fields["binaryData"])
            data.update({key: _decode(fields["binaryData"], key, text) for key, text in binary})
    for key in data:
        if not key or "/" in key or key in (".", "..") or "\0" in key or len(key) > 253:
            raise ManifestError(f'{root.where}: "{key[:60]}" is no key: expected the name of a file')
    return Config(kind=kind, name=name, data=tuple(data.items()))


def find_config(configs: tuple[Config, ...], kind: str, node: Node, optional: bool) -> Config | None:
    """Return the config named by a node, None for a missing config that is optional."""
    name = node.non_empty()
    found = next((config for config in configs if config.kind == kind and config.name == name), None)
    if found is None and not optional:
        raise node.error(f"the name of a {kind} of this file")
    return found


def _decode(node: Node, key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise Node(text, node, key).error("base64") from error
