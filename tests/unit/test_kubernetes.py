"""Pods of Kubernetes YAML: what they become, what is refused, and what the YAML itself may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.errors import ManifestError, PodError
from minit.manifest.image import parse_image_manifest
from minit.manifest.pod import RuntimeApp
from minit.plan.life.health import plan_health
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.kubernetes.environment import expand
from minit.stage0.kubernetes.fields import Findings
from minit.stage0.kubernetes.manifest import plan_kubernetes_pod
from minit.stage0.kubernetes.pods import KubernetesPod, read_file
from minit.stage0.kubernetes.yamltext import parse_documents
from tests.support.stage0_world import DEFAULT_APP, image_manifest

DATA = Path("/var/lib/rkt")
HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n"
CONFIGS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {MODE: fast, "not a name": x, web.ini: "a=1\\n"}
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


def manifest(spec: str, *, more: str = "", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the pod manifest of a spec."""
    pod = read(spec, more=more)
    images = {container.name: image(annotations) for container in (*pod.init_containers, *pod.containers)}
    _, data = plan_kubernetes_pod(pod, images, 0, 0, DATA)
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
    head += "  annotations: {minit/pids-limit: '50', note: x}\nspec:\n  terminationGracePeriodSeconds: 7\n"
    [pod] = read_file((head + container()).encode(), "pod.yaml", Findings())
    _, data = plan_kubernetes_pod(pod, {"main": image()}, 0, 0, DATA)
    value = json.loads(data)
    assert value["userLabels"] == {"a": "b"}
    assert value["userAnnotations"] == {
        "note": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
    }
    assert {"name": "minit/stop-grace", "value": "7s"} in value["annotations"]
    assert {"name": "minit/pids-limit", "value": "50"} in value["annotations"]


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
        "{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"
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
    assert "NONE" not in environment and "not a name" not in environment


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
        {"name": "conf", "kind": "empty", "readOnly": True, "mode": "0755", "uid": 0, "gid": 0},
        {"name": "keys", "kind": "empty", "readOnly": True, "mode": "0755", "uid": 0, "gid": 0},
    ]
    assert value["apps"][0]["app"]["mountPoints"] == [{"name": "host", "path": "/h", "readOnly": True}]
    host, _, conf, keys = read(spec, more=CONFIGS).volumes
    assert host.host_type == "Directory"
    assert [(file.path, file.data, file.mode) for file in conf.files] == [("d/w.ini", b"a=1\n", 0o600)]
    assert {(file.path, file.data, file.mode) for file in keys.files} == {
        ("TOKEN", b"tiger", 0o400),
        ("PLAIN", b"lily", 0o400),
    }


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
        {"minit/restart": "always", "minit/after": "one:completed"},
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


@pytest.mark.parametrize(
    ("spec", "unsupported"),
    [
        (container(", lifecycle: {preStop: {}}"), "spec.containers[0].lifecycle"),
        (container(", securityContext: {privileged: true}"), "spec.containers[0].securityContext.privileged"),
        (
            container(", resources: {limits: {ephemeral-storage: 1Gi}}"),
            'spec.containers[0].resources.limits["ephemeral-storage"]',
        ),
        (container(", Image: x"), "spec.containers[0].Image"),
        ("  hostPID: true\n" + container(), "spec.hostPID"),
        (container() + "  volumes: [{name: a, nfs: {}}]\n", "spec.volumes[0].nfs"),
        (container() + "  volumes: [{name: a, emptyDir: {medium: Memory}}]\n", "spec.volumes[0].emptyDir.medium"),
        (container(", env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"), "fieldRef.fieldPath"),
        ("  activeDeadlineSeconds: 5\n" + container(), "spec.activeDeadlineSeconds"),
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
    with pytest.raises(ManifestError, match="not supported: pod.yaml: "):
        findings.check()


def test_what_has_no_effect_is_told() -> None:
    """A field that only a cluster could serve is accepted with a note."""
    findings = Findings()
    read_file((HEAD + "  nodeName: x\n  tolerations: []\n" + container()).encode(), "pod.yaml", findings)
    assert findings.notes == ["pod.yaml: spec.nodeName has no effect", "pod.yaml: spec.tolerations has no effect"]
    assert findings.unsupported == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Deployment", 'pod.yaml: kind: expected "Pod" or "ConfigMap" or "Secret", got "Deployment"'),
        ("", "pod.yaml: expected a document of kind Pod"),
        (HEAD + "  containers: []\n", "pod.yaml: spec.containers: expected at least one container"),
        (HEAD + container(", env: [{name: A, value: yes}]"), "expected a string, got true (write it in quotes)"),
        (HEAD + container(", env: [{name: A, value: 1}]"), "got 1 (write it in quotes)"),
        (HEAD + container(", volumeMounts: [{name: x, mountPath: /x}]"), "expected the name of one of spec.volumes"),
        (HEAD + container(", envFrom: [{configMapRef: {name: x}}]"), "expected the name of a ConfigMap of this file"),
        (HEAD + container(name="Main"), "spec.containers[0].name: expected a name of lower-case letters"),
        (HEAD + container() + container()[2:].replace("containers:", "  containers:"), '"containers" is given twice'),
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
