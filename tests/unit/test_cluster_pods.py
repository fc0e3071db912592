"""Pods, and objects with pods, as `kubectl get -o yaml` prints those of an ordinary cluster: each plays unmodified."""

from __future__ import annotations

import pytest

from minit.kubernetes.documents import read_file
from minit.kubernetes.fields import Findings

METADATA = """
  creationTimestamp: "2026-11-20T08:11:02Z"
  generateName: web-7c5ddbdf54-
  labels: {app: web, pod-template-hash: 7c5ddbdf54}
  name: web-7c5ddbdf54-x2x8q
  namespace: shop
  ownerReferences:
  - {apiVersion: apps/v1, blockOwnerDeletion: true, controller: true, kind: ReplicaSet, name: web-7c5ddbdf54, uid: 5e5b}
  resourceVersion: "81623"
  uid: 0b2ab1d0-8f1c-4a5b-9d3e-0d8a5c3f2b11
"""
SPEC = """
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  nodeName: worker-1
  preemptionPolicy: PreemptLowerPriority
  priority: 0
  schedulerName: default-scheduler
  securityContext: {}
  serviceAccount: default
  serviceAccountName: default
  terminationGracePeriodSeconds: 30
  tolerations:
  - {effect: NoExecute, key: node.kubernetes.io/not-ready, operator: Exists, tolerationSeconds: 300}
  - {effect: NoExecute, key: node.kubernetes.io/unreachable, operator: Exists, tolerationSeconds: 300}
"""
MOUNT = "- {mountPath: /var/run/secrets/kubernetes.io/serviceaccount, name: kube-api-access-k7x9p, readOnly: true}"
ACCESS = """
  - name: kube-api-access-k7x9p
    projected:
      defaultMode: 420
      sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap: {items: [{key: ca.crt, path: ca.crt}], name: kube-root-ca.crt}
      - downwardAPI:
          items: [{fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}, path: namespace}]
"""
STATUS = """
status:
  conditions: [{lastProbeTime: null, lastTransitionTime: "2026-11-20T08:11:04Z", status: "True", type: Ready}]
  containerStatuses: [{containerID: "containerd://8c1f", image: nginx, ready: true, restartCount: 0, started: true}]
  hostIP: 192.0.2.10
  hostIPs: [{ip: 192.0.2.10}]
  phase: Running
  podIP: 10.244.1.7
  podIPs: [{ip: 10.244.1.7}]
  qosClass: BestEffort
"""


def pod(container: str = "", spec: str = "", volumes: str = "", restart: str = "Always") -> str:
    """Return a Pod with a container of these further fields."""
    main = f"""
  containers:
  - image: docker.io/library/nginx:1.27
    imagePullPolicy: IfNotPresent
    name: web
    resources: {{}}
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    volumeMounts:
    {MOUNT}{container}
"""
    whole = f"apiVersion: v1\nkind: Pod\nmetadata:{METADATA}spec:{SPEC}  restartPolicy: {restart}\n{spec}{main}"
    return f"{whole}  volumes:{ACCESS}{volumes}{STATUS}"


def template(document: str) -> str:
    """Return the spec of a Pod as a template's."""
    spec = document.partition("\nspec:")[2].partition("\nstatus:")[0].replace("\n", "\n    ")
    labels = "metadata: {creationTimestamp: null, labels: {app: web}}"
    return f"  template:\n    {labels}\n    spec:{spec}\n".replace("      nodeName: worker-1\n", "")


def indented(document: str) -> str:
    """Return a document as an item of a list."""
    return document.strip().replace("\n", "\n  ")


def workload(kind: str, fields: str, version: str = "apps/v1") -> str:
    """Return an object that makes pods."""
    annotations = "  annotations: {deployment.kubernetes.io/revision: '1'}\n  generation: 1\n"
    metadata = f"{annotations}  name: web\n  namespace: shop\n  resourceVersion: '1'\n  uid: 5e5b\n"
    return f"apiVersion: {version}\nkind: {kind}\nmetadata:\n{metadata}spec:\n{fields}"


PROBES = """
    livenessProbe: {failureThreshold: 3, httpGet: {path: /healthz, port: http, scheme: HTTP}, initialDelaySeconds: 5,
      periodSeconds: 10, successThreshold: 1, timeoutSeconds: 1}
    ports: [{containerPort: 80, name: http, protocol: TCP}]
    readinessProbe: {failureThreshold: 3, tcpSocket: {port: 80}, periodSeconds: 10, timeoutSeconds: 1}
"""
SECURITY = """
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      readOnlyRootFilesystem: true
      runAsNonRoot: true
      runAsUser: 101
      seccompProfile: {type: RuntimeDefault}
"""
DEPLOYMENT = """  progressDeadlineSeconds: 600
  replicas: 2
  revisionHistoryLimit: 10
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}, type: RollingUpdate}
"""
DAEMONS = """  revisionHistoryLimit: 10
  selector: {matchLabels: {app: web}}
  updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}, type: RollingUpdate}
"""
JOB = """  backoffLimit: 6
  completionMode: NonIndexed
  completions: 1
  manualSelector: false
  parallelism: 1
  podReplacementPolicy: TerminatingOrFailed
  selector: {matchLabels: {batch.kubernetes.io/controller-uid: 5e5b}}
  suspend: false
"""
FILES = {
    "plain": pod(),
    "probes": pod(PROBES),
    "restricted": pod(SECURITY, "  hostUsers: false\n"),
    "resources": pod().replace(
        "resources: {}", "resources: {limits: {cpu: 500m, memory: 128Mi}, requests: {cpu: 100m}}"
    ),
    "init": pod(spec="  initContainers:\n  - {name: init, image: busybox, command: [sh, -c, 'true'], resources: {}}\n"),
    "volumes": pod(
        "\n    - {mountPath: /cache, name: cache}\n    - {mountPath: /data, name: data}",
        volumes="  - {emptyDir: {}, name: cache}\n  - {name: data, persistentVolumeClaim: {claimName: data}}\n",
    ),
    "host": pod(spec="  hostNetwork: true\n  nodeSelector: {kubernetes.io/os: linux}\n"),
    "deployment": workload("Deployment", DEPLOYMENT + template(pod(PROBES))),
    "daemons": workload("DaemonSet", DAEMONS + template(pod())),
    "job": workload("Job", JOB + template(pod(restart="Never")), "batch/v1"),
    "list": f"apiVersion: v1\nitems:\n- {indented(pod(PROBES))}\nkind: List\nmetadata: {{resourceVersion: ''}}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_cluster(name: str) -> None:
    """Nothing is refused, a line tells the fields without an effect, and a line the files that only a cluster has."""
    findings = Findings()
    pods = read_file(FILES[name].encode(), "pod.yaml", findings)
    assert findings.unsupported == []
    access = [note for note in findings.notes if note.endswith("without token and ca.crt, as there is no API server")]
    effect = [note for note in findings.notes if "no effect on one machine: " in note]
    assert (len(access), len(effect), len(findings.notes)) == (1, 1, 2)
    [volume] = [each for each in pods[0].volumes if each.volume.name.startswith("kube-api-access")]
    assert [(file.path, file.data) for file in volume.files] == [("namespace", b"shop")]
    assert pods[0].host_users is (name != "restricted")


def test_the_certificate_of_the_file() -> None:
    """A ConfigMap that the file has counts, also under a cluster's name."""
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-root-ca.crt}\ndata: {ca.crt: own}\n---\n"
    findings = Findings()
    [read] = read_file((config + pod()).encode(), "pod.yaml", findings)
    assert [file.path for file in read.volumes[0].files] == ["ca.crt", "namespace"]
    assert findings.notes[-1].endswith("without token, as there is no API server")
