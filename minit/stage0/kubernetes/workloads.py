"""What makes Pods of a template in Kubernetes: Deployments, DaemonSets and Jobs, as the Pods that come of them."""

from __future__ import annotations

from minit.manifest.reader import Node
from minit.stage0.kubernetes.pods import (
    JobRun,
    KubernetesPod,
    PodContext,
    ignore_metadata,
    read_deadline,
    read_template,
)
from minit.stage0.kubernetes.reading.fields import Fields, Findings, read_name
from minit.value import replace

DEPLOYMENT = "Deployment"
DAEMON_SET = "DaemonSet"
JOB = "Job"
WORKLOADS = (DEPLOYMENT, DAEMON_SET, JOB)

_VERSIONS = {DEPLOYMENT: "apps/v1", DAEMON_SET: "apps/v1", JOB: "batch/v1"}
_MOST_PODS = 1000
_BACKOFF_LIMIT = 6
# These are about the replacement of pods by newer ones, and about who looks after them.
_ABOUT_ROLLOUTS = (
    *("selector", "strategy", "updateStrategy", "minReadySeconds", "revisionHistoryLimit"),
    *("progressDeadlineSeconds", "manualSelector", "podReplacementPolicy", "managedBy"),
)
_ABOUT_FAILURES = ("backoffLimitPerIndex", "maxFailedIndexes", "podFailurePolicy", "successPolicy")


def read_workload(root: Node, findings: Findings, context: PodContext) -> tuple[KubernetesPod, ...]:
    """Return the Pods of a document of one of the kinds, which are called after it, with a number from 0 on."""
    with Fields(root, findings) as fields:
        kind = fields["kind"].one_of(*WORKLOADS)
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
            if kind == JOB:
                return _read_job(spec, name, namespace, context, findings)
            count = spec["replicas"].optional(_read_count) if kind == DEPLOYMENT else 1
            count = 1 if count is None else count
            pod = read_template(spec["template"], f"{name}-0", namespace, context, findings)
            if pod.restart_policy != "Always":
                raise spec["template"]["spec"]["restartPolicy"].error(f'"Always" for a {kind}')
            taken = pod.taken_on_host()
            if count > 1 and taken is not None:
                findings.skip(spec["replicas"], f"one replica fits on this machine, as {taken}")
                count = 1
            # What is to be said of the template has been said.
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
