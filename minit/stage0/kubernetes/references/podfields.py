"""Parts of a Pod's own description that variables and files refer to, those included that only its start decides."""

from __future__ import annotations

import re

from minit.base import jsontext
from minit.base.value import Value
from minit.stage0.kubernetes.references.resources import Machine, Resources

_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
# What stage1 calls them in the annotation minit/expand.
_LATER = {
    "metadata.uid": "pod-uuid",
    "status.podIP": "pod-ip",
    "status.podIPs": "pod-ips",
    "status.hostIP": "host-ip",
    "status.hostIPs": "host-ip",
}


class PodNames(Value):
    """
    The names of a Pod, and what else of it can be referred to.

    `resources` are those of its containers, by their names. `mark` is a text that is nowhere in the file: a field
    that is not known before the pod runs is written with it.
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
        """Return the field of a path as fieldRef has it, None for an unknown one."""
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
        """Return which of the fields that are not known yet are in these texts, with what stage1 calls them."""
        marks = {f"@{name}{self.mark}@": name for name in _LATER.values()}
        return {mark: name for mark, name in marks.items() if any(mark in text for text in texts)}
