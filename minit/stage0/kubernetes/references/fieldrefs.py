"""Values of fieldRef and resourceFieldRef, for variables and files."""

from __future__ import annotations

from minit.manifest.limits import BILLION, parse_quantity
from minit.manifest.reader import Node
from minit.stage0.kubernetes.reading.fields import Fields
from minit.stage0.kubernetes.references.podfields import PodNames
from minit.stage0.kubernetes.references.resources import read_amount


def read_field(fields: Fields, pod: PodNames) -> str | None:
    """Return what a fieldRef means; None, and a finding, for a field that minit does not know."""
    with fields:
        fields.only("apiVersion", "v1")
        value = pod.field(fields["fieldPath"].string())
        if value is None:
            fields.findings.refuse(fields["fieldPath"])
        return value


def read_resource_field(fields: Fields, pod: PodNames, own: str | None) -> str | None:
    """
    Return the number that a resourceFieldRef means; None, and a finding, for a resource that minit does not know.

    `own` is the container that is meant if none is named.
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
