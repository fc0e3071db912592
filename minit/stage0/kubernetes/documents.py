"""The documents of a Kubernetes YAML file: Pods and what makes Pods, and what they use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from minit.errors import ManifestError
from minit.manifest.reader import Node
from minit.stage0.kubernetes.pods import KubernetesPod, PodContext, ignore_metadata, read_pod
from minit.stage0.kubernetes.reading.fields import Fields, Findings
from minit.stage0.kubernetes.reading.yamltext import parse_documents
from minit.stage0.kubernetes.references.configmaps import CONFIG_MAP, SECRET, read_config
from minit.stage0.kubernetes.references.resources import Machine
from minit.stage0.kubernetes.workloads import WORKLOADS, read_workload
from minit.stage0.volumes.volumestore import NAME_FORM, is_volume_name

POD = "Pod"
LIST = "List"
CLAIM = "PersistentVolumeClaim"
# Nothing of a pod depends on these; a cluster leads to it, counts it, or says who may.
_SKIPPED = (
    *("Service", "Ingress", "Namespace", "ServiceAccount"),
    *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    *("HorizontalPodAutoscaler", "PodDisruptionBudget"),
)
_CONFIGS = (CONFIG_MAP, SECRET)
_KINDS = (POD, *WORKLOADS, *_CONFIGS, CLAIM, LIST, *_SKIPPED)
_MARK_LENGTH = 16


def read_file(
    data: bytes, source: str, findings: Findings, machine: Machine | None = None
) -> tuple[KubernetesPod, ...]:
    """Return the Pods of a file; ManifestError with the place of what is wrong, or if there is none."""
    documents = parse_documents(data, source)
    many = len(documents) > 1
    roots = [
        each
        for number, document in enumerate(documents, 1)
        for each in _flatten(Node(document, None, f"{source} document {number}" if many else source), findings)
    ]
    for root in roots:
        if root["kind"].one_of(*_KINDS) in _SKIPPED:
            findings.skip(root["kind"], f"{root['kind'].string()} has no effect on one machine")
    configs = tuple(read_config(root, kind, findings) for kind in _CONFIGS for root in _of_kind(roots, kind))
    for root in _of_kind(roots, CLAIM):
        _read_claim(root, findings)
    context = PodContext(
        configs=configs, machine=machine or Machine(), mark=f":{hashlib.sha256(data).hexdigest()[:_MARK_LENGTH]}"
    )
    pods = [read_pod(root, findings, context) for root in _of_kind(roots, POD)]
    for kind in WORKLOADS:
        pods += [pod for root in _of_kind(roots, kind) for pod in read_workload(root, findings, context)]
    if not pods:
        raise ManifestError(f"{source}: expected a document of kind Pod, {', '.join(WORKLOADS)}")
    if len({(pod.names.namespace, pod.names.name) for pod in pods}) < len(pods):
        raise ManifestError(f"{source}: several Pods have one name")
    return tuple(pods)


def _read_claim(root: Node, findings: Findings) -> None:
    """Look whether a claim can be a named volume, which the first pod that has it makes."""
    with Fields(root, findings) as fields:
        fields["apiVersion"].one_of("v1")
        fields["kind"].string()
        fields.ignored("status")
        with fields.within("metadata") as metadata:
            metadata["name"].matching(is_volume_name, NAME_FORM)
            metadata["namespace"], metadata["labels"], metadata["annotations"]
            ignore_metadata(metadata)
        with fields.within("spec") as spec:
            spec["accessModes"], spec["storageClassName"], spec["volumeName"]
            spec.only("volumeMode", "Filesystem")
            if spec["resources"].given:
                findings.skip(spec["resources"], "not enforced on the disk")


def _of_kind(roots: list[Node], kind: str) -> list[Node]:
    return [root for root in roots if root["kind"].raw() == kind]


def _flatten(root: Node, findings: Findings) -> Iterator[Node]:
    """Return the objects of a List one by one, whatever else as it is."""
    if root["kind"].raw() != LIST:
        yield root
        return
    with Fields(root, findings) as fields:
        fields["apiVersion"].one_of("v1")
        fields["kind"].string()
        fields.ignored("metadata")
        items = fields["items"].each(lambda node: node)
    for item in items:
        yield from _flatten(item, findings)
