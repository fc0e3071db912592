"""The documents of a Kubernetes YAML file: Pods, makers of Pods, and objects for Pods."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from minit.base.errors import ManifestError
from minit.base.value import replace
from minit.kubernetes.fields import Fields, Findings, read_name
from minit.kubernetes.pods import (
    JobRun,
    KubernetesPod,
    PodContext,
    ignore_metadata,
    read_deadline,
    read_pod,
    read_template,
)
from minit.kubernetes.references import CONFIG_MAP, SECRET, Machine, read_config
from minit.manifest.reader import Node
from minit.stage0.files.yamltext import parse_documents
from minit.stage0.volumes import NAME_FORM, is_volume_name

_DEPLOYMENT = "Deployment"
_DAEMON_SET = "DaemonSet"
_JOB = "Job"
_WORKLOADS = (_DEPLOYMENT, _DAEMON_SET, _JOB)

_VERSIONS = {_DEPLOYMENT: "apps/v1", _DAEMON_SET: "apps/v1", _JOB: "batch/v1"}
_MOST_PODS = 1000
_BACKOFF_LIMIT = 6
# About the replacement of pods by newer ones, and the controllers of pods.
_ABOUT_ROLLOUTS = (
    *("selector", "strategy", "updateStrategy", "minReadySeconds", "revisionHistoryLimit"),
    *("progressDeadlineSeconds", "manualSelector", "podReplacementPolicy", "managedBy"),
)
_ABOUT_FAILURES = ("backoffLimitPerIndex", "maxFailedIndexes", "podFailurePolicy", "successPolicy")

POD = "Pod"
LIST = "List"
CLAIM = "PersistentVolumeClaim"
# No pod depends on these kinds; a cluster routes to pods, counts pods, or grants rights.
_SKIPPED = (
    *("Service", "Ingress", "Namespace", "ServiceAccount"),
    *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    *("HorizontalPodAutoscaler", "PodDisruptionBudget"),
)
_CONFIGS = (CONFIG_MAP, SECRET)
_KINDS = (POD, *_WORKLOADS, *_CONFIGS, CLAIM, LIST, *_SKIPPED)
_MARK_LENGTH = 16


def read_file(
    data: bytes, source: str, findings: Findings, machine: Machine | None = None
) -> tuple[KubernetesPod, ...]:
    """Return the Pods of a file; ManifestError with the place of the error, or without any Pod."""
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
    for kind in _WORKLOADS:
        pods += [pod for root in _of_kind(roots, kind) for pod in _read_workload(root, findings, context)]
    if not pods:
        raise ManifestError(f"{source}: expected a document of kind Pod, {', '.join(_WORKLOADS)}")
    if len({(pod.names.namespace, pod.names.name) for pod in pods}) < len(pods):
        raise ManifestError(f"{source}: several Pods have one name")
    return tuple(pods)


def _read_claim(root: Node, findings: Findings) -> None:
    """Check that a claim can be a named volume, made by the first pod with the volume."""
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
    """Return the objects of a List one by one, any other object unchanged."""
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


def _read_workload(root: Node, findings: Findings, context: PodContext) -> tuple[KubernetesPod, ...]:
    """Return the Pods of a document of one kind, named after the document, with a number from 0 on."""
    with Fields(root, findings) as fields:
        kind = fields["kind"].one_of(*_WORKLOADS)
        fields["apiVersion"].one_of(_VERSIONS[kind])
        fields.ignored("status")
        with fields.within("metadata") as metadata:
            name, namespace = read_name(metadata["name"]), metadata["namespace"].optional(read_name)
            metadata["labels"], metadata["annotations"]
            ignore_metadata(metadata)
        with fields.within("spec") as spec:
            for field in _ABOUT_ROLLOUTS:
                spec[field]
            spec.only("paused", False)
            spec.only("suspend", False)
            if kind == _JOB:
                return _read_job(spec, name, namespace, context, findings)
            count = spec["replicas"].optional(_read_count) if kind == _DEPLOYMENT else 1
            count = 1 if count is None else count
            pod = read_template(spec["template"], f"{name}-0", namespace, context, findings)
            if pod.restart_policy != "Always":
                raise spec["template"]["spec"]["restartPolicy"].error(f'"Always" for a {kind}')
            taken = pod.taken_on_host()
            if count > 1 and taken is not None:
                findings.skip(spec["replicas"], f"one replica fits on this machine, as {taken}")
                count = 1
            # The findings about the template are there already.
            more = [
                read_template(spec["template"], f"{name}-{number}", namespace, context, Findings())
                for number in range(1, count)
            ]
            return (pod, *more) if count else ()


def _read_job(
    spec: Fields, name: str, namespace: str | None, context: PodContext, findings: Findings
) -> tuple[KubernetesPod, ...]:
    for field in _ABOUT_FAILURES:
        if spec[field].given:
            findings.refuse(spec[field], "a Job has failed with the first of its pods that fails for good")
    if spec["ttlSecondsAfterFinished"].given:
        findings.skip(spec["ttlSecondsAfterFinished"], "pods that have ended stay until `minit gc` or `play --down`")
    parallel = spec["parallelism"].optional(_read_count)
    count = spec["completions"].optional(_read_count)
    limit = spec["backoffLimit"].optional(_read_count)
    indexed = spec["completionMode"].optional(lambda node: node.one_of("NonIndexed", "Indexed")) == "Indexed"
    run = JobRun(
        name=name,
        parallel=1 if parallel is None else parallel,
        retries=_BACKOFF_LIMIT if limit is None else limit,
    )
    if run.parallel == 0:
        raise spec["parallelism"].error("a number above 0")
    deadline = read_deadline(spec["activeDeadlineSeconds"])
    pods: list[KubernetesPod] = []
    for number in range((parallel or 1) if count is None else count):
        pod = read_template(spec["template"], f"{name}-{number}", namespace, context, Findings() if pods else findings)
        if pod.restart_policy not in ("Never", "OnFailure") or not spec["template"]["spec"]["restartPolicy"].given:
            raise spec["template"]["spec"]["restartPolicy"].error('"Never" or "OnFailure" for a Job')
        deadlines = [seconds for seconds in (deadline, pod.deadline_seconds) if seconds is not None]
        job = replace(run, index=number if indexed else None)
        pods.append(replace(pod, job=job, deadline_seconds=min(deadlines, default=None)))
    if deadline is not None and len(pods) > run.parallel:
        findings.refuse(spec["activeDeadlineSeconds"], "some completions would begin later: raise parallelism")
    return tuple(pods)


def _read_count(node: Node) -> int:
    return node.integer(0, _MOST_PODS)
