"""Pods of Kubernetes YAML: what they become, what is refused, and what the YAML itself may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError, PodError
from minit.cli.commands.kubecommands import write_documents
from minit.kubernetes.containers import expand
from minit.kubernetes.documents import read_file
from minit.kubernetes.fields import Findings
from minit.kubernetes.generate import generate_pod, profile_files
from minit.kubernetes.pods import KubernetesPod
from minit.kubernetes.references import Machine
from minit.kubernetes.request import pod_request
from minit.manifest.annotations import Place, known_annotations
from minit.manifest.app import Isolator, Port
from minit.manifest.image import parse_image_manifest
from minit.manifest.pod import ExposedPort, Mount, RuntimeApp, Volume, parse_pod_manifest
from minit.plan.life.health import plan_health
from minit.plan.life.hooks import plan_hooks
from minit.pods.caller import Caller
from minit.pods.preparing import defaults_of
from minit.stage0.files.yamltext import parse_documents
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.appsection import AppOverrides, PodDefaults
from minit.stage0.pods.nameservice import NameService
from minit.stage0.pods.podmanifest import plan_apps
from minit.stage0.stage1.entrypoints import LastRun, RunOptions, read_last_run, run_arguments
from tests.support.stage0_world import DEFAULT_APP, image_manifest

DATA = Path("/var/lib/rkt")
HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n"
CONFIGS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {MODE: fast, "né": x, web.ini: "a=1\\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {TOKEN: dGlnZXI=}
stringData: {PLAIN: lily}
"""


def read(spec: str, *, more: str = "", unsupported: tuple[str, ...] = ()) -> KubernetesPod:
    """Return the Pod of a spec, of which these fields are not supported."""
    findings = Findings()
    [pod] = read_file((HEAD + spec + more).encode(), "pod.yaml", findings)
    assert tuple(findings.unsupported) == unsupported
    return pod


def image(annotations: dict[str, str] | None = None) -> StoredImage:
    """Return an image of the store."""
    data = json.dumps(image_manifest("example.com/app", dict(DEFAULT_APP), annotations=annotations)).encode()
    return StoredImage(
        id="sha512-" + "a" * 64,
        manifest=parse_image_manifest(data, "image"),
        manifest_bytes=data,
        size_bytes=1,
        import_time_ns=0,
        last_used_ns=0,
    )


def planned(
    pod: KubernetesPod,
    images: Mapping[str, StoredImage],
    data: Path = DATA,
    profiles: Mapping[str, str] = MappingProxyType({}),
) -> tuple[object, bytes]:
    """Return the apps of a Pod and its manifest, as `prepare` plans them."""
    request = pod_request(pod, images, profiles)
    caller = Caller(data=data, note=print)
    chosen = [(next(iter(images.values())), app.overrides) for app in request.apps]
    return plan_apps(chosen, defaults_of(caller, request))


def manifest(spec: str, *, more: str = "", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the pod manifest of a spec."""
    pod = read(spec, more=more)
    images = {container.name: image(annotations) for container in (*pod.init_containers, *pod.containers)}
    _, data = planned(pod, images)
    value: dict[str, Any] = json.loads(data)
    return value


def container(fields: str = "", name: str = "main") -> str:
    """Return a spec of one container."""
    return f"  containers:\n  - {{name: {name}, image: app{fields}}}\n"


def app_of(spec: str, **options: Any) -> dict[str, Any]:
    """Return the only app of a spec."""
    [app] = manifest(spec, **options)["apps"]
    found: dict[str, Any] = app
    return found


def test_the_pod() -> None:
    """Its names can be found again, labels and annotations are kept, minit's own are the pod's."""
    head = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: shop\n  labels: {a: b}\n"
    head += (
        "  annotations: {minit/pids-limit: '50', minit/dns: none, note: x}\nspec:\n  terminationGracePeriodSeconds: 7\n"
    )
    [pod] = read_file((head + container()).encode(), "pod.yaml", Findings())
    _, data = planned(pod, {"main": image()})
    value = json.loads(data)
    assert value["userLabels"] == {"a": "b"}
    assert value["userAnnotations"] == {
        "note": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
    }
    assert {"name": "minit/stop-grace", "value": "7s"} in value["annotations"]
    assert {"name": "minit/pids-limit", "value": "50"} in value["annotations"]
    assert [pair["value"] for pair in value["annotations"] if pair["name"] == "minit/dns"] == ["none"]


@pytest.mark.parametrize(
    ("fields", "annotations", "expected"),
    [
        ("", None, ["/bin/sh", "-c", "true"]),
        (", command: [/bin/a, b], args: [c]", None, ["/bin/a", "b", "c"]),
        (", command: [/bin/a]", None, ["/bin/a"]),
        (", args: [c]", {"appc.io/docker/entrypoint": '["/start"]'}, ["/start", "c"]),
        (", args: [c]", {"appc.io/docker/entrypoint": "[]"}, ["c"]),
        (", args: [c]", None, ["/bin/sh", "-c", "true", "c"]),
        (", args: [$(A) $$(A) $(B)], env: [{name: A, value: x}], command: [$(A)]", None, ["x", "x $(A) $(B)"]),
    ],
)
def test_commands(fields: str, annotations: dict[str, str] | None, expected: list[str]) -> None:
    """`command` replaces the image's program, `args` its default arguments, and variables are put in."""
    assert app_of(container(fields), annotations=annotations)["app"]["exec"] == expected


def test_environment() -> None:
    """Variables come from the file's ConfigMaps and Secrets, from the pod itself, and may name those before them."""
    fields = (
        ", envFrom: [{configMapRef: {name: conf}}, {prefix: S_, secretRef: {name: keys}}], env: ["
        "{name: URL, value: 'http://$(MODE)/$(S_PLAIN)'},"
        "{name: KEY, valueFrom: {secretKeyRef: {name: keys, key: TOKEN}}},"
        "{name: NONE, valueFrom: {configMapKeyRef: {name: other, key: x, optional: true}}},"
        "{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}},"
        "{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}},"
        "{name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}},"
        "{name: MIB, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}],"
        " resources: {limits: {cpu: 1500m, memory: 64Mi}}"
    )
    environment = {
        pair["name"]: pair["value"] for pair in app_of(container(fields), more=CONFIGS)["app"]["environment"]
    }
    expected = {
        "MODE": "fast",
        "S_TOKEN": "tiger",
        "S_PLAIN": "lily",
        "URL": "http://fast/lily",
        "KEY": "tiger",
        "POD": "web",
    }
    assert expected.items() <= environment.items()
    assert environment["POD"] == "web"
    assert (environment["CPUS"], environment["MIB"], environment["NODE"]) == ("2", "64", "localhost")
    assert "NONE" not in environment and "né" not in environment


def test_resources_and_security() -> None:
    """Limits, ids, capabilities and no_new_privs are isolators and fields of the app."""
    fields = (
        ", resources: {limits: {memory: 64Mi, cpu: 1.5}, requests: {cpu: 500m}}, securityContext: {runAsUser: 7,"
        " runAsNonRoot: true, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false,"
        " capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}, seccompProfile: {type: Unconfined}}"
    )
    app = app_of("  securityContext: {runAsGroup: 8, fsGroup: 9}\n" + container(fields))
    assert (app["app"]["user"], app["app"]["group"], app["app"]["supplementaryGIDs"]) == ("7", "8", [9])
    assert app["readOnlyRootFS"] is True
    assert {isolator["name"]: isolator["value"] for isolator in app["app"]["isolators"]} == {
        "resource/memory": {"default": False, "request": "64Mi", "limit": "64Mi"},
        "resource/cpu": {"default": False, "request": "500m", "limit": "1.5"},
        "os/linux/cpu-shares": 512,
        "os/linux/capabilities-retain-set": {"set": ["CAP_NET_BIND_SERVICE"]},
        "os/linux/seccomp-retain-set": {"set": ["@appc.io/all"]},
        "os/linux/no-new-privileges": True,
    }


def test_volumes() -> None:
    """Directories of the host, empty ones, and files of configs; a mount can be read-only."""
    spec = (
        container(
            ", volumeMounts: [{name: host, mountPath: /h, readOnly: true}, {name: tmp, mountPath: /t},"
            " {name: conf, mountPath: /c}, {name: keys, mountPath: /k}]"
        )
        + "  securityContext: {fsGroup: 9}\n  volumes:\n  - {name: host, hostPath: {path: /srv/, type: Directory}}\n"
        "  - {name: tmp, emptyDir: {}}\n"
        "  - {name: conf, configMap: {name: conf, items: [{key: web.ini, path: d/w.ini, mode: 0600}]}}\n"
        "  - {name: keys, secret: {secretName: keys, defaultMode: 256}}\n"
    )
    value = manifest(spec, more=CONFIGS)
    assert value["volumes"] == [
        {"name": "host", "kind": "host", "source": "/srv"},
        {"name": "tmp", "kind": "empty", "mode": "2777", "uid": 0, "gid": 9},
        {"name": "conf", "kind": "empty", "readOnly": True, "mode": "2775", "uid": 0, "gid": 9},
        {"name": "keys", "kind": "empty", "readOnly": True, "mode": "2775", "uid": 0, "gid": 9},
    ]
    assert value["apps"][0]["app"]["mountPoints"] == [{"name": "host", "path": "/h", "readOnly": True}]
    host, _, conf, keys = read(spec, more=CONFIGS).volumes
    assert host.host_type == "Directory"
    assert [(file.path, file.data, file.mode) for file in conf.files] == [("d/w.ini", b"a=1\n", 0o600)]
    assert {(file.path, file.data, file.mode) for file in keys.files} == {
        ("TOKEN", b"tiger", 0o400),
        ("PLAIN", b"lily", 0o400),
    }


def test_a_mount_on_a_file_of_the_pod() -> None:
    """It is not hidden by the pod's own host names or name servers."""
    mounts = "{name: keys, mountPath: /etc/resolv.conf, subPath: TOKEN}"
    spec = container(f", volumeMounts: [{mounts}]") + "  volumes:\n  - {name: keys, secret: {secretName: keys}}\n"
    [app] = manifest(spec, more=CONFIGS)["apps"]
    assert {"name": "minit/volumes-over-files", "value": "true"} in app["annotations"]


def test_parts_of_volumes() -> None:
    """What a mount of appc cannot say is an annotation of minit's; claims are named volumes."""
    mounts = (
        "{name: all, mountPath: /a, readOnly: true}, {name: all, mountPath: /b, subPathExpr: x/$(A)},"
        " {name: all, mountPath: /c, subPath: z, mountPropagation: HostToContainer}, {name: data, mountPath: /d}"
    )
    spec = container(f", env: [{{name: A, value: v}}], volumeMounts: [{mounts}]")
    spec += "  volumes: [{name: all, emptyDir: {medium: Memory, sizeLimit: 8Mi}},"
    spec += " {name: data, persistentVolumeClaim: {claimName: db, readOnly: true}}]\n"
    claim = "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: db}\n"
    value = manifest(spec, more=f"{claim}spec: {{accessModes: [ReadWriteOnce]}}\n")
    [details] = [pair for pair in value["apps"][0]["annotations"] if pair["name"] == "minit/mounts"]
    assert json.loads(details["value"]) == {
        "/a": {"readOnly": True},
        "/b": {"subPath": "x/v"},
        "/c": {"subPath": "z", "propagation": "slave"},
    }
    assert {"name": "minit/memory-volumes", "value": '{"all":{"size":"8Mi"}}'} in value["annotations"]
    assert value["volumes"][1]["source"].endswith("/minit/volumes/db/data") and value["volumes"][1]["readOnly"]


def test_files_of_several_sources() -> None:
    """A projected volume has files of configs and of the Pod; the group of the Pod is theirs."""
    sources = (
        "{configMap: {name: conf, items: [{key: web.ini, path: w.ini}]}}, {secret: {name: keys}},"
        " {downwardAPI: {items: [{path: uid, fieldRef: {fieldPath: metadata.uid}},"
        " {path: labels, fieldRef: {fieldPath: metadata.labels}},"
        " {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}]}}"
    )
    spec = container(", resources: {limits: {cpu: 250m}}") + "  securityContext: {fsGroup: 9}\n"
    spec += f"  volumes: [{{name: all, projected: {{defaultMode: 0600, sources: [{sources}]}}}}]\n"
    [volume] = read(spec, more=CONFIGS).volumes
    assert volume.group == 9
    assert {file.path: file.data for file in volume.files} == {
        **{"w.ini": b"a=1\n", "TOKEN": b"tiger", "PLAIN": b"lily"},
        **{"uid": None, "labels": b"", "cpu": b"250"},
    }
    assert {file.mode for file in volume.files} == {0o600}


def test_ports() -> None:
    """A port of the host is forwarded to that of the container; others are only told; the host's network has none."""
    ports = container(", ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}, {containerPort: 443}]")
    [port] = manifest(ports)["ports"]
    assert port == {
        "name": "main-80",
        "hostPort": 8080,
        "hostIP": "127.0.0.1",
        "podPort": {"name": "main-80", "protocol": "tcp", "port": 80, "count": 1, "socketActivated": False},
    }
    assert manifest("  hostNetwork: true\n" + ports)["ports"] is None
    twice = container(", ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]")
    with pytest.raises(PodError, match="both want tcp port 80"):
        manifest(twice)


def test_order_and_restarts() -> None:
    """Init containers come one after the other and before all others; one that always restarts is only waited for."""
    spec = (
        "  restartPolicy: OnFailure\n  initContainers:\n  - {name: one, image: app}\n"
        "  - {name: side, image: app, restartPolicy: Always}\n  - {name: two, image: app}\n" + container()
    )
    annotations = [
        {pair["name"]: pair["value"] for pair in app.get("annotations", ())} for app in manifest(spec)["apps"]
    ]
    assert annotations == [
        {"minit/restart": "on-failure"},
        {"minit/restart": "always", "minit/after": "one:completed", "minit/sidecar": "true"},
        {"minit/restart": "on-failure", "minit/after": "one:completed,side"},
        {"minit/restart": "on-failure", "minit/after": "one:completed,side,two:completed"},
    ]
    assert app_of(container())["annotations"] == [{"name": "minit/restart", "value": "always"}]
    assert "annotations" not in app_of("  restartPolicy: Never\n" + container())


def test_probes() -> None:
    """They become checks of minit's stage1, which takes them; ports may be named."""
    fields = (
        ", ports: [{name: web, containerPort: 80}],"
        " startupProbe: {exec: {command: [/bin/check, a]}, failureThreshold: 30},"
        " livenessProbe: {httpGet: {port: web, path: ok, httpHeaders: [{name: A, value: b}]}, periodSeconds: 5},"
        " readinessProbe: {tcpSocket: {port: 81}, initialDelaySeconds: 2, timeoutSeconds: 3, successThreshold: 2}"
    )
    [annotation] = app_of("  restartPolicy: Never\n" + container(fields))["annotations"]
    assert json.loads(annotation["value"]) == {
        "startup": {"exec": ["/bin/check", "a"], "failures": 30},
        "liveness": {"http": {"port": 80, "path": "/ok", "headers": {"A": "b"}}, "interval": "5s"},
        "readiness": {"tcp": {"port": 81}, "delay": "2s", "timeout": "3s", "successes": 2},
    }
    runtime = RuntimeApp(name="main", annotations=((annotation["name"], annotation["value"]),))
    assert [check.kind for check in plan_health(runtime)] == ["startup", "liveness", "readiness"]


def test_hooks() -> None:
    """They become hooks of minit's stage1, which takes them."""
    fields = ", lifecycle: {postStart: {exec: {command: [warm, '$(X)']}}, preStop: {sleep: {seconds: 5}}}"
    [annotation] = app_of("  restartPolicy: Never\n" + container(fields))["annotations"]
    assert annotation["name"] == "minit/hooks"
    assert json.loads(annotation["value"]) == {"post-start": {"exec": ["warm", "$(X)"]}, "pre-stop": {"sleep": "5s"}}
    runtime = RuntimeApp(name="main", annotations=((annotation["name"], annotation["value"]),))
    assert list(plan_hooks(runtime, lambda command: ((command,), None))) == ["post-start", "pre-stop"]


@pytest.mark.parametrize(
    ("spec", "unsupported"),
    [
        (
            container(", lifecycle: {preStop: {httpGet: {port: 80}}}"),
            "lifecycle.preStop.httpGet: not supported: a hook is a command of the container, exec, or sleep",
        ),
        (
            container(", resources: {limits: {ephemeral-storage: 1Gi}}"),
            'spec.containers[0].resources.limits["ephemeral-storage"]',
        ),
        (container(", Image: x"), "spec.containers[0].Image"),
        (container() + "  volumes: [{name: a, nfs: {}}]\n", "spec.volumes[0].nfs"),
        (container() + "  volumes: [{name: a, emptyDir: {medium: HugePages}}]\n", "spec.volumes[0].emptyDir.medium"),
        (container(", env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.phase}}}]"), "fieldRef.fieldPath"),
        (
            container(", env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.disk}}}]"),
            "resourceFieldRef.resource: not supported: limits and requests of cpu and memory are known",
        ),
        (
            container() + "  volumes: [{name: a, projected: {sources: [{clusterTrustBundle: {path: t}}]}}]\n",
            "sources[0].clusterTrustBundle: not supported: there is no cluster that would issue it",
        ),
        (
            "  securityContext: {sysctls: [{name: net.core.somaxconn, value: '9'}]}\n" + container(),
            "name: not supported: net.core.somaxconn is not one of Kubernetes' safe set",
        ),
        (container(", livenessProbe: {grpc: {port: 1}}"), "livenessProbe.grpc"),
        (container(", livenessProbe: {httpGet: {port: 1, scheme: HTTPS}}"), "livenessProbe.httpGet.scheme"),
    ],
)
def test_what_is_not_supported_is_named(spec: str, unsupported: str) -> None:
    """A field that nothing is made of is an error with its place, all of them at once."""
    findings = Findings()
    read_file((HEAD + spec).encode(), "pod.yaml", findings)
    [found] = findings.unsupported
    assert unsupported in found
    assert found.startswith("pod.yaml: ") and "not supported" in found


def test_what_has_no_effect_is_told() -> None:
    """A field that only a cluster could serve is accepted with a note."""
    findings = Findings()
    read_file((HEAD + "  nodeName: x\n  tolerations: []\n" + container()).encode(), "pod.yaml", findings)
    assert findings.notes == ["pod.yaml: no effect on one machine: spec.nodeName, spec.tolerations"]
    assert findings.unsupported == []


def deployment(template: str = "", spec: str = "", kind: str = "Deployment") -> str:
    """Return a document with the template of a pod."""
    pod = f"{{metadata: {{labels: {{a: b}}}}, spec: {{{template} containers: [{{name: main, image: app}}]}}}}"
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{{spec} template: {pod}}}\n"


def job(template: str = "restartPolicy: Never,", spec: str = "") -> str:
    """Return a Job."""
    return deployment(template, spec, "Job")


def names(text: str, notes: tuple[str, ...] = ()) -> list[str]:
    """Return the names of the pods of a file that has all it needs, with these notes."""
    findings = Findings()
    pods = read_file(text.encode(), "pod.yaml", findings)
    assert (findings.unsupported, tuple(findings.notes)) == ([], notes)
    return [pod.names.name for pod in pods]


def test_workloads() -> None:
    """Each replica is a pod with a number, if it fits; what no pod depends on is skipped with a warning."""
    assert names(deployment(spec="replicas: 3, selector: {matchLabels: {a: b}},")) == ["web-0", "web-1", "web-2"]
    assert names(deployment(kind="DaemonSet")) == ["web-0"]
    fits = "pod.yaml: spec.replicas: one replica fits on this machine, as it has the network of the host"
    assert names(deployment("hostNetwork: true,", "replicas: 3,"), (fits,)) == ["web-0"]
    items = [deployment(), "kind: Service\nspec: {x: y}\n", CONFIGS.split("---")[1]]
    flows = "".join("- " + item.strip().replace("\n", "\n  ") + "\n" for item in items)
    skipped = "pod.yaml: items[1].kind: Service has no effect on one machine"
    assert names(f"apiVersion: v1\nkind: List\nitems:\n{flows}", (skipped,)) == ["web-0"]


def test_jobs() -> None:
    """A Job is a pod for each completion, whose containers are started again as often as it says."""
    text = job(spec="completions: 2, parallelism: 2, backoffLimit: 3, completionMode: Indexed,")
    pods = read_file(text.encode(), "pod.yaml", Findings())
    assert [(pod.names.name, pod.job and pod.job.parallel) for pod in pods] == [("web-0", 2), ("web-1", 2)]
    [app] = json.loads(planned(pods[1], {"main": image()}, data=Path("/data"))[1])["apps"]
    assert {"name": "JOB_COMPLETION_INDEX", "value": "1"} in app["app"]["environment"]
    assert {"name": "minit/restart-limit", "value": "3"} in app["annotations"]


@pytest.mark.parametrize("field", ["podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes"])
def test_other_policies_of_jobs(field: str) -> None:
    """They are refused with the rule that there is."""
    findings = Findings()
    read_file(job(spec=f"{field}: {{}},").encode(), "pod.yaml", findings)
    reason = "a Job has failed with the first of its pods that fails for good"
    assert findings.unsupported == [f"pod.yaml: spec.{field}: not supported: {reason}"]


def test_deadlines() -> None:
    """A Pod may have one, and so may a Job whose pods all run at a time; the earlier counts."""

    def deadlines(text: str) -> list[str | None]:
        pods = read_file(text.encode(), "pod.yaml", findings := Findings())
        assert findings.unsupported == []
        manifests = [json.loads(planned(pod, {"main": image()})[1]) for pod in pods]
        every = [{each["name"]: each["value"] for each in found["annotations"]} for found in manifests]
        return [each.get("minit/deadline") for each in every]

    assert deadlines(HEAD + "  activeDeadlineSeconds: 5\n" + container()) == ["5s"]
    assert deadlines(HEAD + container()) == [None]
    assert deadlines(job(spec="activeDeadlineSeconds: 9, completions: 2, parallelism: 2,")) == ["9s", "9s"]
    assert deadlines(job("restartPolicy: Never, activeDeadlineSeconds: 3,", "activeDeadlineSeconds: 9,")) == ["3s"]
    findings = Findings()
    read_file(job(spec="activeDeadlineSeconds: 9, completions: 2,").encode(), "pod.yaml", findings)
    assert findings.unsupported == [
        "pod.yaml: spec.activeDeadlineSeconds: not supported: some completions would begin later: raise parallelism"
    ]


def test_the_end_of_jobs() -> None:
    """Their pods stay, which is said."""
    text = "pod.yaml: spec.ttlSecondsAfterFinished: pods that have ended stay until `minit gc` or `play --down`"
    assert names(job(spec="ttlSecondsAfterFinished: 5,"), (text,)) == ["web-0"]
    assert names(job(spec="completions: 1, parallelism: 3,")) == ["web-0"]
    assert names(job(spec="parallelism: 3,")) == ["web-0", "web-1", "web-2"]


def test_a_pod_is_written_down() -> None:
    """A pod of what generate makes of a pod is equal, in all that a Pod can say."""
    fields = (
        ", command: [/bin/run, $(IP), '$$(X)', yes please], workingDir: /srv,"
        " lifecycle: {stopSignal: SIGINT, postStart: {sleep: {seconds: 1}}, preStop: {exec: {command: [a, b]}}},"
        " tty: true, stdin: true, env: ["
        "{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: URL, value: 'http://$(IP)/'}],"
        " ports: [{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1},"
        " {containerPort: 53, hostPort: 53, protocol: UDP}],"
        " resources: {limits: {memory: 64Mi, cpu: 1500m}, requests: {cpu: 500m}}, securityContext: {runAsUser: 7,"
        " readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, seccompProfile: {type: Unconfined},"
        " capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}},"
        " livenessProbe: {httpGet: {port: 80, path: /ok, httpHeaders: [{name: A, value: 'y'}]}, periodSeconds: 5},"
        " readinessProbe: {tcpSocket: {port: 81}, failureThreshold: 2}, volumeMounts: ["
        "{name: host, mountPath: /h, readOnly: true}, {name: tmp, mountPath: /t, subPath: a/b},"
        " {name: tmp, mountPath: /u, readOnly: true}, {name: host, mountPath: /v, mountPropagation: HostToContainer,"
        " readOnly: true}, {name: db, mountPath: /d}]"
    )
    spec = (
        "  restartPolicy: OnFailure\n  terminationGracePeriodSeconds: 7\n  activeDeadlineSeconds: 60\n"
        "  securityContext: {fsGroup: 9,"
        " supplementalGroups: [11], sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}\n"
        "  initContainers:\n  - {name: one, image: app}\n  - {name: side, image: app, restartPolicy: Always}\n"
        f"{container(fields)}  volumes:\n  - {{name: host, hostPath: {{path: /srv}}}}\n"
        "  - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 8Mi}}\n"
        "  - {name: db, persistentVolumeClaim: {claimName: data}}\n"
    )
    first = manifest(spec)
    said: list[str] = []
    parsed = parse_pod_manifest(json.dumps({**first, "ports": first["ports"] or []}).encode(), "pod")
    images = dict.fromkeys(("one", "side", "main"), "app")
    text = write_documents([generate_pod(parsed, "other", images, {}, DATA, None, said.append)])
    [pod] = read_file(text.encode(), "again.yaml", Findings())
    again = json.loads(planned(pod, dict.fromkeys(images, image()))[1])
    marks = [
        next(iter(json.loads({pair["name"]: pair["value"] for pair in app["annotations"]}["minit/expand"])))
        for app in (first["apps"][-1], again["apps"][-1])
    ]
    assert json.loads(json.dumps(again).replace(marks[1], marks[0])) == first
    assert pod.security.group == 9
    assert said == []


def write_down(
    overrides: AppOverrides, said: list[str], run: LastRun | None = None, **defaults: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the manifest of a pod of `run`, the Pod that generate makes of it, and the manifest of play for that."""
    given = PodDefaults(uid=0, gid=0, data=DATA, **defaults)
    _, data = plan_apps([(image(), overrides)], given)
    parsed = parse_pod_manifest(data, "pod")
    name = parsed.apps[0].name
    users = {name: ("0", "0")}
    document = generate_pod(parsed, "web", {name: "app"}, users, DATA, run, said.append)
    [pod] = read_file(write_documents([document]).encode(), "again.yaml", Findings())
    return json.loads(data), document, json.loads(planned(pod, {name: image()})[1])


def test_processes_of_the_host() -> None:
    """A pod of --pid=host is one with hostPID, and that one has none of its own."""
    said: list[str] = []
    _, document, again = write_down(AppOverrides(exec="/x"), said, host_pids=True)
    assert document["spec"]["hostPID"] is True
    assert "annotations" not in document["metadata"]
    assert {"name": "minit/pid-namespace", "value": "host"} in again["annotations"]
    _, document, again = write_down(AppOverrides(exec="/x"), said)
    assert "hostPID" not in document["spec"]
    assert "minit/pid-namespace" not in {each["name"] for each in again["annotations"]}
    assert said == []


def test_options_of_run_are_written_down() -> None:
    """Play makes of them what run did: limits, ports, environment, user, volumes, annotations, the stop, the host's."""
    isolators = (
        Isolator(name="resource/memory", value={"limit": "64Mi"}),
        Isolator(name="resource/cpu", value={"limit": "500m"}),
        Isolator(name="os/linux/capabilities-remove-set", value={"set": ["CAP_MKNOD", "CAP_NET_RAW"]}),
        Isolator(name="os/linux/no-new-privileges", value=True),
    )
    annotations = {
        "minit/restart": "on-failure",
        "minit/restart-limit": "5",
        "minit/log-max-size": "1Mi",
        "minit/stop-grace": "1500ms",
    }
    overrides = AppOverrides(
        name="web",
        exec="/bin/run",
        arguments=("a b", "$(X)"),
        user="7",
        group="8",
        working_directory="/srv",
        supplementary_gids=(9,),
        environment=(("A", "$(B) $$"),),
        read_only_root_fs=True,
        mounts=(Mount(volume="data", path="/data"), Mount(volume="logs", path="/logs")),
        isolators=isolators,
        annotations=tuple(annotations.items()),
        user_annotations=(("by", "me"),),
        user_labels=(("tier", "front"),),
    )
    volumes = (
        Volume(name="data", kind="host", source="/srv/data", read_only=True),
        Volume(name="logs", kind="named", source="logs"),
    )
    ports = (
        ExposedPort(name="http", host_port=8080, pod_port=Port(name="http", protocol="tcp", port=80)),
        ExposedPort(
            name="web-81", host_port=81, host_ip="127.0.0.1", pod_port=Port(name="web-81", protocol="udp", port=81)
        ),
    )
    said: list[str] = []
    run = LastRun(networks=("host",), hostname="box", ipc="parent")
    first, document, again = write_down(overrides, said, run, volumes=volumes, ports=ports)
    assert said == []
    [before], [after] = first["apps"], again["apps"]
    same = ("exec", "user", "group", "workingDirectory", "supplementaryGIDs", "environment")
    assert [after["app"].get(key) for key in same] == [before["app"].get(key) for key in same]
    assert (after["mounts"], after["readOnlyRootFS"]) == (before["mounts"], True)
    assert after["app"]["mountPoints"][0] == {"name": "data", "path": "/data", "readOnly": True}
    values = {each["name"]: each["value"] for each in after["app"]["isolators"]}
    assert (values["resource/memory"]["limit"], values["resource/cpu"]["limit"]) == ("64Mi", "500m")
    held = values["os/linux/capabilities-retain-set"]["set"]
    assert len(held) == 12 and not {"CAP_MKNOD", "CAP_NET_RAW"} & {*held}
    assert values["os/linux/no-new-privileges"] is True
    of_pod = {each["name"]: each["value"] for each in again["annotations"]}
    assert {"minit/restart-limit": "5", "minit/log-max-size": "1Mi", "minit/stop-grace": "2s"}.items() <= of_pod.items()
    assert {"name": "minit/restart", "value": "on-failure"} in after["annotations"]
    assert (again["userLabels"], again["userAnnotations"]["by"]) == ({"tier": "front"}, "me")
    spec = document["spec"]
    assert (spec["hostNetwork"], spec["hostIPC"], spec["hostname"]) == (True, True, "box")
    # A pod in the host's network forwards none.
    _, _, again = write_down(overrides, said, volumes=volumes, ports=ports)
    ports_of = [[(port["hostPort"], port["podPort"]["port"]) for port in each["ports"]] for each in (first, again)]
    assert ports_of == [[(8080, 80), (81, 81)]] * 2
    _, document, _ = write_down(AppOverrides(exec="/x"), said, LastRun(networks=("default",), hostname="web"))
    assert document["spec"]["terminationGracePeriodSeconds"] == 10
    assert not {"hostNetwork", "hostIPC", "hostname"} & {*document["spec"]}
    assert said == []


@given(st.lists(st.text("$()aX ", max_size=12), max_size=3))
def test_any_words_are_written_down(words: list[str]) -> None:
    """Dollars and parentheses are what they were, in arguments and in variables."""
    overrides = AppOverrides(
        exec="/x",
        arguments=tuple(words),
        environment=(("X", "x"), *((f"V{at}", word) for at, word in enumerate(words))),
    )
    first, _, again = write_down(overrides, [])
    for part in ("exec", "environment"):
        assert again["apps"][0]["app"][part] == first["apps"][0]["app"][part]


@pytest.mark.parametrize("name", sorted(known_annotations(Place.POD)))
def test_annotations_of_all_apps_are_written_down(name: str) -> None:
    """What a pod may have in their place is one of the Pod, or a field, or a warning tells that it is lost."""
    said: list[str] = []
    value = "never" if name == "minit/restart" else "1s"
    _, document, _ = write_down(AppOverrides(exec="/x", annotations=((name, value),)), said)
    found = document["metadata"].get("annotations", {})
    if name in ("minit/restart", "minit/stop-grace"):
        assert (found, document["spec"]["restartPolicy"], said) == ({}, "Never", [])
    elif name not in known_annotations(Place.EVERY):
        assert (found, len(said)) == ({}, 1)
    else:
        assert (found, said) == ({name: value}, [])


def test_the_last_run() -> None:
    """Its arguments tell what the options were."""
    annotations = {"coreos.com/rkt/stage1/interface-version": "6"}
    data = json.dumps(image_manifest("example.com/stage1", annotations=annotations)).encode()
    stage1 = parse_image_manifest(data, "stage1")
    options = RunOptions(
        networks=("host",),
        hostname="box",
        ipc="parent",
        interactive=True,
        disable_paths=True,
        name_service=NameService(resolv="stage0"),
    )
    assert read_last_run(run_arguments(options, "uuid", stage1, "1:2", lambda text: None)) == LastRun(
        networks=("host",),
        hostname="box",
        ipc="parent",
        interactive=True,
        private_users=True,
        has_names=True,
        is_insecure=True,
    )
    words = run_arguments(RunOptions(), "uuid", stage1, None, lambda text: None)
    assert read_last_run(words) == LastRun(networks=("default",))


def test_a_port_of_the_image_is_written_down() -> None:
    """An option of run names it only."""
    _, data = plan_apps([(image(), AppOverrides(name="web"))], PodDefaults(uid=0, gid=0, data=DATA))
    value = json.loads(data)
    value["ports"] = [{"name": "http", "hostPort": 8080}]
    value["apps"][0]["app"]["ports"] = [{"name": "http", "port": 80, "protocol": "tcp", "count": 1}]
    value["apps"][0]["app"]["mountPoints"] = [{"name": "data", "path": "/data"}]
    value["volumes"] = [{"name": "data", "kind": "host", "source": "/srv"}]
    parsed = parse_pod_manifest(json.dumps(value).encode(), "pod")
    document = generate_pod(parsed, "web", {"web": "app"}, {}, DATA, None, lambda text: None)
    [found] = document["spec"]["containers"]  # type: ignore[index]
    assert found["ports"] == [{"name": "http", "containerPort": 80, "hostPort": 8080}]
    assert found["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


@pytest.mark.parametrize(
    ("overrides", "run", "warning"),
    [
        ({"user": "www"}, {}, 'a Pod has numbers, not the user "www"'),
        ({"annotations": (("minit/pids-limit", "5"),)}, {}, "the annotation minit/pids-limit has no place in a Pod"),
        ({"stdout": "null"}, {}, "a Pod cannot throw stdout away"),
        ({"isolators": (Isolator(name="os/linux/oom-score-adj", value=5),)}, {}, "a Pod has no oom_score_adj"),
        (
            {"isolators": (Isolator(name="os/linux/seccomp-remove-set", value={"set": ["mount"]}),)},
            {},
            "a Pod has no list of system calls",
        ),
        ({}, {"networks": ("none",)}, "networks are an option of play, too: --net=none"),
        ({}, {"is_insecure": True}, "--insecure-options"),
        ({}, {"has_names": True}, "name servers and entries of /etc/hosts are not in the Pod"),
    ],
)
def test_what_a_pod_cannot_say(overrides: dict[str, Any], run: dict[str, Any], warning: str) -> None:
    """One line tells what is lost."""
    said: list[str] = []
    write_down(AppOverrides(exec="/x", **overrides), said, LastRun(**{"networks": ("default",), **run}))
    assert [warning in text for text in said] == [True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: StatefulSet", 'pod.yaml: kind: expected "Pod" or "Deployment"'),
        ("", "pod.yaml: expected a document of kind Pod, Deployment, DaemonSet, Job"),
        (deployment("restartPolicy: Never,"), 'restartPolicy: expected "Always" for a Deployment, got "Never"'),
        (job(""), 'restartPolicy: expected "Never" or "OnFailure" for a Job, got nothing'),
        (HEAD + "  containers: []\n", "pod.yaml: spec.containers: expected at least one container"),
        (HEAD + container(", env: [{name: A, value: yes}]"), "expected a string, got true (write it in quotes)"),
        (HEAD + container(", env: [{name: A, value: 1}]"), "got 1 (write it in quotes)"),
        (HEAD + container(", volumeMounts: [{name: x, mountPath: /x}]"), "expected the name of one of spec.volumes"),
        (HEAD + container(", envFrom: [{configMapRef: {name: x}}]"), "expected the name of a ConfigMap of this file"),
        (HEAD + container(name="Main"), "spec.containers[0].name: expected a name of lower-case letters"),
        (HEAD + container() + container()[2:].replace("containers:", "  containers:"), '"containers" is given twice'),
        (HEAD + container(", lifecycle: {preStop: {}}"), "preStop: expected one of exec and sleep"),
        (HEAD + container(", lifecycle: {preStop: {exec: {}}}"), "exec.command: expected a command and its arguments"),
        (
            f"{HEAD}  initContainers:\n  - {{name: a, image: a, lifecycle: {{postStart: {{sleep: {{seconds: 1}}}}}}}}\n"
            + container(),
            "postStart: expected no hook of an init container without restartPolicy: Always",
        ),
        (HEAD + "  containers: [}", "pod.yaml: line 5: "),
        ("a: !!python/object:os.system x", "line 1: the tag"),
        ("a: &a [*a]", "line 1: an anchor is used within itself"),
        ("[" * 5000, "pod.yaml: nested too deeply"),
        ("a: &a [" + "x," * 400 + "]\nb: &b [" + "*a," * 400 + "]\nc: [*b, *b]", "more than 100000 values"),
        ("? [a]\n: b", "line 1: expected a plain name as a key"),
        ("---\n" * 200 + "a", ""),
    ],
)
def test_errors(text: str, message: str) -> None:
    """An error is one line, with its place in the file."""
    with pytest.raises(ManifestError) as raised:
        read_file(text.encode(), "pod.yaml", Findings())
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_plain_values() -> None:
    """Scalars are those of Kubernetes: octal modes, words for truth, and no dates; quotes make a string."""
    text = "[0644, 0o644, 0x1f, -5, 1.5, 1e3, on, No, ~, '', 2026-11-21, 1:30, '0644', 08, 1_000, text]"
    assert parse_documents(text.encode(), "y") == [
        [420, 420, 31, -5, 1.5, 1000.0, True, False, None, "", "2026-11-21", "1:30", "0644", "08", "1_000", "text"]
    ]


@given(st.binary(max_size=200) | st.text(alphabet="{}[]:,-&*!|>'\"#?% \nab1~.", max_size=80).map(str.encode))
def test_any_text(data: bytes) -> None:
    """Any file is documents or one clear error."""
    try:
        parse_documents(data, "pod.yaml")
    except ManifestError as error:
        assert str(error).startswith("pod.yaml:") and "\n" not in str(error)


@given(st.text(alphabet="$()AB x", max_size=30))
def test_expansion_ends(text: str) -> None:
    """Text that was put in is not looked at again."""
    assert expand(text.replace("$", "$$"), {"A": "$(A)"}) == text
    assert expand(text, {}).count("$") <= text.count("$")


BOTH_WAYS = ", volumeMounts: [{name: a, mountPath: /a, mountPropagation: Bidirectional}]"
OF_HOST = "  volumes: [{name: a, hostPath: {path: /srv}}]\n"


def annotations_of(value: dict[str, Any]) -> dict[str, str]:
    """Return the annotations of an app or of a pod."""
    return {pair["name"]: pair["value"] for pair in value["annotations"]}


def test_privileged_containers() -> None:
    """Nothing of a profile confines them, and they alone can show their mounts to the host."""
    confined = "capabilities: {drop: [ALL]}, seccompProfile: {type: Localhost, localhostProfile: a.json}"
    value = manifest(container(f", securityContext: {{privileged: true, {confined}}}{BOTH_WAYS}") + OF_HOST)
    [app] = value["apps"]
    assert annotations_of(value)["minit/allow-privileged"] == "true"
    assert annotations_of(app)["minit/privileged"] == "true"
    assert json.loads(annotations_of(app)["minit/mounts"]) == {"/a": {"propagation": "shared"}}
    assert "isolators" not in app["app"] and "minit/seccomp" not in annotations_of(app)
    assert "minit/allow-privileged" not in annotations_of(manifest(container()))
    with pytest.raises(ManifestError, match="mountPropagation: expected another value, unless"):
        read(container(BOTH_WAYS) + OF_HOST)
    with pytest.raises(ManifestError, match="allowPrivilegeEscalation: expected true with privileged"):
        read(container(", securityContext: {privileged: true, allowPrivilegeEscalation: false}"))


@pytest.mark.parametrize(
    ("of_pod", "of_container", "expected"),
    [
        ("", "{type: Localhost, localhostProfile: a/b.json}", "a/b.json"),
        ("{type: Localhost, localhostProfile: c.json}", "", "c.json"),
        ("{type: Localhost, localhostProfile: c.json}", "{type: RuntimeDefault}", None),
        ("{type: Localhost, localhostProfile: c.json}", "{type: Unconfined}", "@appc.io/all"),
        ("{type: Unconfined}", "", "@appc.io/all"),
        ("{type: Unconfined}", "{type: RuntimeDefault}", None),
    ],
)
def test_profiles_of_system_calls(of_pod: str, of_container: str, expected: str | None) -> None:
    """A container has the profile that its file names, or else that of its pod; only the file decides which is read."""
    spec = f"  securityContext: {{seccompProfile: {of_pod}}}\n" if of_pod else ""
    spec += container(f", securityContext: {{seccompProfile: {of_container}}}" if of_container else "")
    profiles = {"a/b.json": '{"a":1}', "c.json": '{"c":1}'}
    _, data = planned(read(spec), {"main": image()}, profiles=profiles)
    [app] = json.loads(data)["apps"]
    found = annotations_of(app).get("minit/seccomp")
    assert found == profiles.get(expected or "")
    lists = [isolator["value"]["set"] for isolator in app["app"].get("isolators", ())]
    assert lists == ([[expected]] if expected == "@appc.io/all" else [])


@pytest.mark.parametrize("path", ["/etc/a.json", "../a.json", "a/../../b", ""])
def test_profiles_elsewhere(path: str) -> None:
    """A profile lies below the directory of profiles."""
    with pytest.raises(ManifestError, match="localhostProfile: expected a relative path"):
        read(container(f", securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: '{path}'}}}}"))


@pytest.mark.parametrize("where", ["pod", "container"])
def test_labels_of_selinux(where: str) -> None:
    """They are left out with a word where the kernel has no SELinux, and else they are not supported."""
    labels = "securityContext: {seLinuxOptions: {level: s0}}"
    spec = f"  {labels}\n{container()}" if where == "pod" else container(f", {labels}")
    for has_selinux in (False, True):
        findings = Findings()
        read_file((HEAD + spec).encode(), "pod.yaml", findings, Machine(has_selinux=has_selinux))
        [said] = findings.unsupported if has_selinux else findings.notes
        assert "seLinuxOptions: " in said and has_selinux == ("not supported" in said)
        assert not (findings.notes if has_selinux else findings.unsupported)


def test_rights_are_written_down() -> None:
    """Profiles and privileges of apps are in the Pod, and are the same in a pod of it; profiles are files beside it."""
    profile = '{"defaultAction":"SCMP_ACT_ALLOW"}'
    given = {"minit/seccomp": profile, "minit/apparmor-profile": "web", "minit/no-new-privileges": "true"}
    said: list[str] = []
    overrides = AppOverrides(name="web", annotations=tuple(given.items()))
    _, data = plan_apps([(image(), overrides)], PodDefaults(uid=0, gid=0, data=DATA))
    parsed = parse_pod_manifest(data, "pod")
    document = generate_pod(parsed, "shop", {"web": "app"}, {"web": ("0", "0")}, DATA, None, said.append)
    assert (profile_files(document, parsed), said) == ({"shop-web.json": profile}, [])
    [pod] = read_file(write_documents([document]).encode(), "again.yaml", Findings())
    _, data = planned(pod, {"web": image()}, profiles={"shop-web.json": profile})
    [app] = json.loads(data)["apps"]
    del given["minit/no-new-privileges"]
    assert annotations_of(app) == given
    assert {"name": "os/linux/no-new-privileges", "value": True} in app["app"]["isolators"]
    for word, kind in (("unconfined", "Unconfined"), ("by-capabilities", "RuntimeDefault")):
        named = AppOverrides(name="web", annotations=(("minit/seccomp", word),))
        assert security_of(write_down(named, said)[1]) == {"seccompProfile": {"type": kind}}
    _, data = plan_apps(
        [(image(), AppOverrides(name="web", annotations=(("minit/seccomp", "guarded"),)))],
        PodDefaults(uid=0, gid=0, data=DATA),
    )
    parsed = parse_pod_manifest(data, "pod")
    assert profile_files(document, parsed) == {"shop-web.json": '{"defaultAction": "SCMP_ACT_ALLOW"}'}
    privileged = AppOverrides(name="web", annotations=(("minit/privileged", "true"),))
    _, document, again = write_down(privileged, said)
    assert security_of(document) == {"privileged": True}
    assert annotations_of(again["apps"][0]) == {"minit/privileged": "true"}
    assert said == []


def security_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return what the only container of a Pod has beside the ids of its user."""
    [found] = document["spec"]["containers"]
    return {name: value for name, value in found["securityContext"].items() if not name.startswith("runAs")}


def test_details_of_mounts_are_written_down() -> None:
    """Propagation and the depth of read-only are fields of a mount; of what a Pod cannot say there is a warning."""
    overrides = AppOverrides(
        name="web", mounts=(Mount(volume="data", path="/data"), Mount(volume="data", path="/more"))
    )
    details = {
        "/data": {"propagation": "shared", "options": ["nosuid"]},
        "/more": {"readOnly": True, "recursiveReadOnly": True, "deviceAccess": "r"},
    }
    tree = f"/x/cas/tree/deps-sha512-{'0' * 64}/rootfs"
    volume = Volume(name="data", kind="host", source=tree)
    defaults = PodDefaults(uid=0, gid=0, data=DATA, volumes=(volume,))
    _, data = plan_apps([(image(), overrides)], defaults)
    value = json.loads(data)
    value["apps"][0]["annotations"] = [{"name": "minit/mounts", "value": json.dumps(details)}]
    warnings: list[str] = []
    parsed = parse_pod_manifest(json.dumps(value).encode(), "pod")
    document = generate_pod(parsed, "web", {"web": "app"}, {}, DATA, None, warnings.append)
    [found] = document["spec"]["containers"]  # type: ignore[index]
    assert found["volumeMounts"] == [
        {"name": "data", "mountPath": "/data", "mountPropagation": "Bidirectional"},
        {"name": "data", "mountPath": "/more", "readOnly": True, "recursiveReadOnly": "Enabled"},
    ]
    assert [text for text in warnings if "mount of" in text] == [
        "app web: /data: a mount of a Pod has no options",
        "app web: /more: a mount of a Pod has no deviceAccess",
    ]
    assert any("its image is a path of this host" in text for text in warnings)
