"""A pod as a Pod of Kubernetes: the inverse of `manifest.py`, of which `minit play` makes an equal pod."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from minit.base import jsontext
from minit.base.goduration import parse_duration
from minit.kubernetes.pods import DEFAULT_NAMESPACE
from minit.kubernetes.request import GROUP_ANNOTATION, NAME_ANNOTATION, NAMESPACE_ANNOTATION
from minit.kubernetes.unsaid import warn_of_unsaid
from minit.manifest.annotations import OWN, Annotation, Place, known_annotations
from minit.manifest.app import (
    CAPABILITIES_REMOVE,
    CAPABILITIES_RETAIN,
    CPU,
    CPU_SHARES,
    MEMORY,
    NO_NEW_PRIVILEGES,
    SECCOMP_RETAIN,
    App,
    Port,
)
from minit.manifest.pod import Mount, PodManifest, RuntimeApp, Volume
from minit.manifest.seccomp import EVERY_CALL, WORD_GUARDED
from minit.stage0.pods.podmanifest import DEFAULT_ANNOTATIONS, HOST_PIDS
from minit.stage0.stage1.entrypoints import LastRun
from minit.stage0.volumes import name_of

Json = dict[str, object]
Warn = Callable[[str], None]

_RESTARTS = {"always": "Always", "on-failure": "OnFailure", "never": "Never"}
_PROPAGATIONS = {"private": "None", "slave": "HostToContainer", "shared": "Bidirectional"}
_UNSAID_OF_MOUNTS = ("deviceAccess", "options")
_FIELDS = {
    "pod-ip": "status.podIP",
    "pod-ips": "status.podIPs",
    "host-ip": "status.hostIP",
    "pod-uuid": "metadata.uid",
}
_PROFILES = {"unconfined": "Unconfined", "by-capabilities": "RuntimeDefault"}
_GUARDED = '{"defaultAction": "SCMP_ACT_ALLOW"}'  # what the word says, for which a Pod has none
_STREAM = "coreos.com/rkt/stage2/"
_SHARES_OF_A_CPU = 1024
_DOLLAR = re.compile(r"\$(?=[$(])")
_FOR_GROUPS = ("2777", "2775")
_PROBES = {"startup": "startupProbe", "liveness": "livenessProbe", "readiness": "readinessProbe"}
_HOOKS = {"post-start": "postStart", "pre-stop": "preStop"}
_TIMES = {"delay": "initialDelaySeconds", "interval": "periodSeconds", "timeout": "timeoutSeconds"}
_COUNTS = {"failures": "failureThreshold", "successes": "successThreshold"}
_USUAL_GRACE = "10s"


def generate_pod(
    manifest: PodManifest,
    name: str,
    images: Mapping[str, str],
    users: Mapping[str, tuple[str, str]],
    data: Path,
    run: LastRun | None,
    warn: Warn,
) -> Json:
    """
    Return the document of a pod; by app `images` are references of images, and `users` the user and group of an image.

    `run` are the options of the pod's run, None if unknown. `warn` gets a line for a setting without a place in a Pod.
    """
    user = dict(manifest.user_annotations)
    namespace = user.pop(NAMESPACE_ANNOTATION, DEFAULT_NAMESPACE)
    metadata: Json = {"name": user.pop(NAME_ANNOTATION, name)}
    group = user.pop(GROUP_ANNOTATION, "")
    own = {
        key: text
        for key, text in manifest.annotations
        if key.startswith(OWN)
        and key not in known_annotations(Place.POD_FIELD)
        and (key, text) not in DEFAULT_ANNOTATIONS
    }
    shared = _shared(manifest)
    own |= {key: text for key, text in shared.items() if key not in known_annotations(Place.POD_FIELD)}
    deadline = _whole_seconds(own.get(Annotation.DEADLINE, ""))
    if deadline is not None:
        del own[Annotation.DEADLINE]
    has_host_pids = HOST_PIDS in own.items()
    if has_host_pids:
        del own[Annotation.PID_NAMESPACE]
    warn_of_unsaid(manifest, run, known_annotations(Place.FIELD).union(shared), users, warn)
    metadata |= {} if namespace == DEFAULT_NAMESPACE else {"namespace": namespace}
    sections = [app.app for app in manifest.apps if app.app is not None]
    labels = dict(pair for section in sections for pair in section.user_labels) | dict(manifest.user_labels)
    user = dict(pair for section in sections for pair in section.user_annotations) | user
    metadata |= _given(labels=labels, annotations={**user, **own})
    initial = _initial(manifest)
    apps = [app for app in manifest.apps if app.name not in initial]
    restarts = [
        app.annotation(Annotation.RESTART) or manifest.annotation(Annotation.RESTART) or "never" for app in apps
    ]
    if len({*restarts}) > 1:
        warn("containers are started again in different ways: a Pod has one restartPolicy for all")
    grace = shared.get(Annotation.STOP_GRACE) or manifest.annotation(Annotation.STOP_GRACE) or _USUAL_GRACE
    memory = _object(manifest.annotation(Annotation.MEMORY_VOLUMES))
    spec: Json = {"restartPolicy": _RESTARTS[restarts[0] if restarts else "never"]}
    spec["terminationGracePeriodSeconds"] = _grace_seconds(grace)
    spec |= _given(activeDeadlineSeconds=deadline)
    spec |= {"hostPID": True} if has_host_pids else {}
    spec |= {} if run is None else _run_fields(run, str(metadata["name"]))
    spec |= _given(securityContext=_pod_security(manifest, group))
    pod = str(metadata["name"])
    init = [_container(app, manifest, images[app.name], pod, warn) for app in manifest.apps if app.name in initial]
    spec |= _given(initContainers=init)
    spec["containers"] = containers = [_container(app, manifest, images[app.name], pod, warn) for app in apps]
    if run is not None and run.interactive:
        containers[0] |= {"stdin": True, "tty": True}
    spec |= _given(volumes=[_volume(volume, memory, data) for volume in _volumes(manifest)])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def profile_files(pod: Json, manifest: PodManifest) -> dict[str, str]:
    """Return the profiles of system calls that the document of a pod names, by their paths."""
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    texts = {app.name: app.annotation(Annotation.SECCOMP) for app in manifest.apps}
    return {
        _profile_path(metadata["name"], name): _GUARDED if text == WORD_GUARDED else text
        for name, text in texts.items()
        if text is not None and text not in _PROFILES
    }


def _profile_path(pod: str, app: str) -> str:
    return f"{pod}-{app}.json"


def volume_of_files(pod: Json, name: str, files: Sequence[tuple[str, int, str]]) -> Json:
    """
    Return a Secret with the files of a volume, and add a reference to the Secret to the document of the pod.

    Files are paths, modes, and contents in base64.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    assert isinstance(metadata, dict) and isinstance(spec, dict)
    secret = f"{metadata['name']}-{name}"
    keys = [f"file-{number}" for number in range(len(files))]
    items = [{"key": key, "path": path, "mode": mode} for key, (path, mode, _) in zip(keys, files)]
    for volume in spec["volumes"]:
        if volume["name"] == name:
            del volume["emptyDir"]
            volume["secret"] = {"secretName": secret, "items": items}
    data = {key: text for key, (_, _, text) in zip(keys, files)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "data": data}


def _initial(manifest: PodManifest) -> set[str]:
    """Return the names of the apps that other apps wait for until the end, and of sidecars."""
    waited = {
        word.strip().partition(":")[0]
        for app in manifest.apps
        for word in (app.annotation(Annotation.AFTER) or "").split(",")
        if word.strip().endswith(":completed")
    }
    return waited | {app.name for app in manifest.apps if app.annotation(Annotation.SIDECAR) == "true"}


def _container(runtime: RuntimeApp, manifest: PodManifest, image: str, pod: str, warn: Warn) -> Json:
    app = runtime.app
    assert app is not None
    container: Json = {"name": runtime.name, "image": image, "command": _words(app.exec)}
    if app.working_directory:
        container["workingDir"] = app.working_directory
    if runtime.annotation(Annotation.SIDECAR) == "true":
        container["restartPolicy"] = "Always"
    container |= _given(
        env=_environment(runtime, app),
        ports=_ports(runtime, manifest),
        resources=_resources(app),
        securityContext=_security(runtime, app, pod),
        volumeMounts=_mounts(runtime, app, manifest, warn),
    )
    for stream in ("stdin", "stdout", "stderr"):
        mode = runtime.annotation(_STREAM + stream)
        if mode in ("stream", "tty", "log+tty"):
            container |= {"stdin": True} if stream == "stdin" else {}
            container |= {"tty": True} if mode != "stream" else {}
    lifecycle = _hooks(_object(runtime.annotation(Annotation.HOOKS)), warn)
    container |= _given(lifecycle=lifecycle | _given(stopSignal=runtime.annotation(Annotation.STOP_SIGNAL)))
    return container | _probes(_object(runtime.annotation(Annotation.HEALTH)), warn)


def _words(words: Sequence[str]) -> list[str]:
    return [_escape(word) for word in words]


def _escape(text: str) -> str:
    """Return a text in which no `$` starts a reference or stands for an escaped dollar."""
    return _DOLLAR.sub("$$", text)


def _environment(runtime: RuntimeApp, app: App) -> list[Json]:
    later = {mark: _FIELDS[str(word)] for mark, word in _object(runtime.annotation(Annotation.EXPAND)).items()}
    variables: list[Json] = []
    named: dict[str, str] = {}
    for name, value in app.environment:
        if value in later:
            named[value] = name
            variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": later[value]}}})
            continue
        text = _escape(value)
        for mark, reference in named.items():
            text = text.replace(mark, f"$({reference})")
        variables.append({"name": name, "value": text})
    return variables


def _ports(runtime: RuntimeApp, manifest: PodManifest) -> list[Json]:
    ports: list[Json] = []
    for port in manifest.ports:
        known = [(app.name, inner) for app in manifest.apps for inner in _ports_of(app) if inner.name == port.name]
        owners = [app.name for app in manifest.apps if port.name.startswith(f"{app.name}-")]
        inner = port.pod_port or (known[0][1] if known else None)
        if inner is None or runtime.name != (*(name for name, _ in known), *owners, manifest.apps[-1].name)[0]:
            continue
        entry: Json = {"name": port.name, "containerPort": inner.port, "hostPort": port.host_port}
        entry |= {"protocol": "UDP"} if inner.protocol == "udp" else {}
        entry |= {} if port.host_ip is None else {"hostIP": port.host_ip}
        ports.append(entry)
    return ports


def _ports_of(runtime: RuntimeApp) -> tuple[Port, ...]:
    return runtime.app.ports if runtime.app is not None else ()


def _resources(app: App) -> Json:
    limits: Json = {}
    requests: Json = {}
    for isolator in app.isolators:
        value = isolator.value
        for resource, name in (("memory", MEMORY), ("cpu", CPU)):
            if isolator.name == name and isinstance(value, dict):
                limits |= _given(**{resource: value.get("limit")})
                requests |= _given(**{resource: value.get("request")})
        if isolator.name == CPU_SHARES and isinstance(value, int) and "cpu" not in requests:
            requests["cpu"] = f"{-(-value * 1000 // _SHARES_OF_A_CPU)}m"
    return _given(limits=limits, requests=requests)


def _security(runtime: RuntimeApp, app: App, pod: str) -> Json:
    security: Json = {"readOnlyRootFilesystem": True} if runtime.read_only_root_fs else {}
    for field, text in (("runAsUser", app.user), ("runAsGroup", app.group)):
        security |= {field: int(text)} if text.isdecimal() else {}
    for isolator in app.isolators:
        names = isolator.value.get("set") if isinstance(isolator.value, dict) else None
        if isolator.name == CAPABILITIES_RETAIN and isinstance(names, list):
            held = [str(name).removeprefix("CAP_") for name in names]
            security["capabilities"] = {"drop": ["ALL"], "add": held}
        if isolator.name == CAPABILITIES_REMOVE and isinstance(names, list):
            security["capabilities"] = {"drop": [str(name).removeprefix("CAP_") for name in names]}
        if isolator.name == NO_NEW_PRIVILEGES and isolator.value is True:
            security["allowPrivilegeEscalation"] = False
        if isolator.name == SECCOMP_RETAIN and names == [EVERY_CALL]:
            security["seccompProfile"] = {"type": "Unconfined"}
    seccomp = runtime.annotation(Annotation.SECCOMP)
    if seccomp is not None:
        kind = _PROFILES.get(seccomp, "Localhost")
        security["seccompProfile"] = {"type": kind} | (
            {"localhostProfile": _profile_path(pod, runtime.name)} if kind == "Localhost" else {}
        )
    apparmor = runtime.annotation(Annotation.APPARMOR_PROFILE)
    if apparmor is not None:
        security["appArmorProfile"] = {"type": "Localhost", "localhostProfile": apparmor}
    if runtime.annotation(Annotation.NO_NEW_PRIVILEGES) == "true":
        security["allowPrivilegeEscalation"] = False
    if runtime.annotation(Annotation.PRIVILEGED) == "true":
        security["privileged"] = True
        security.pop("allowPrivilegeEscalation", None)
    return security


def _pod_security(manifest: PodManifest, group: str) -> Json:
    groups = {app.app.supplementary_gids for app in manifest.apps if app.app is not None}
    every = [*groups.pop()] if len(groups) == 1 else []
    owner = next((volume.gid for volume in manifest.volumes if volume.mode in _FOR_GROUPS), None)
    owner = int(group) if group.isdecimal() else owner
    security = {} if owner is None else {"fsGroup": owner}
    sysctls = [
        {"name": name, "value": value} for name, value in _object(manifest.annotation(Annotation.SYSCTLS)).items()
    ]
    return security | _given(supplementalGroups=[group for group in every if group != owner], sysctls=sysctls)


def _mounts(runtime: RuntimeApp, app: App, manifest: PodManifest, warn: Warn) -> list[Json]:
    details = _object(runtime.annotation(Annotation.MOUNTS))
    volumes = {volume.name: volume for volume in _volumes(manifest)}
    only_read = {point.name for point in app.mount_points if point.read_only}
    only_read |= {name for name, volume in volumes.items() if volume.read_only and volume.kind == "host"}
    mounts: list[Json] = []
    points = [point for _, point in runtime.points_without_mount(app.mount_points) if point.name in volumes]
    for mount in (*runtime.mounts, *(Mount(volume=point.name, path=point.path) for point in points)):
        found = details.get(mount.path)
        detail = found if isinstance(found, dict) else {}
        entry: Json = {"name": mount.volume, "mountPath": mount.path}
        entry |= {"readOnly": True} if mount.volume in only_read or detail.get("readOnly") else {}
        entry |= _given(subPath=detail.get("subPath"))
        entry |= _given(mountPropagation=_PROPAGATIONS.get(str(detail.get("propagation"))))
        entry |= {"recursiveReadOnly": "Enabled"} if detail.get("recursiveReadOnly") else {}
        for field in _UNSAID_OF_MOUNTS:
            if field in detail:
                warn(f"app {runtime.name}: {mount.path}: a mount of a Pod has no {field}")
        mounts.append(entry)
    return mounts


def _volumes(manifest: PodManifest) -> list[Volume]:
    """Return the volumes of a pod, and the apps' own volumes."""
    own = [mount.app_volume for app in manifest.apps for mount in app.mounts if mount.app_volume is not None]
    return [*{volume.name: volume for volume in (*own, *manifest.volumes)}.values()]


def _shared(manifest: PodManifest) -> dict[str, str]:
    """Return the annotations that all apps have, and the pod could have instead."""
    every = [
        {name: text for name, text in app.annotations if name in known_annotations(Place.EVERY)}
        for app in manifest.apps
    ]
    return (
        {name: text for name, text in every[0].items() if all(each.get(name) == text for each in every)}
        if every
        else {}
    )


def _run_fields(run: LastRun, name: str) -> Json:
    fields: Json = {"hostNetwork": True} if run.has_host_network else {}
    fields |= {} if run.hostname in ("", name) else {"hostname": run.hostname}
    fields |= {"hostUsers": False} if run.private_users else {}
    return fields | ({"hostIPC": True} if run.ipc == "parent" else {})


def _volume(volume: Volume, memory: Json, data: Path) -> Json:
    claim = name_of(volume, data)
    if claim is not None:
        return {"name": volume.name, "persistentVolumeClaim": {"claimName": claim}}
    if volume.kind == "host":
        return {"name": volume.name, "hostPath": {"path": volume.source}}
    entry: Json = {}
    if volume.name in memory:
        found = memory[volume.name]
        entry = {"medium": "Memory", **_given(sizeLimit=found.get("size") if isinstance(found, dict) else None)}
    return {"name": volume.name, "emptyDir": entry}


def _probes(health: Json, warn: Warn) -> Json:
    probes: Json = {}
    for kind, check in health.items():
        if not isinstance(check, dict):
            continue
        probe: Json = {"exec": {"command": check["exec"]}} if "exec" in check else {}
        for way, field in (("http", "httpGet"), ("tcp", "tcpSocket")):
            if isinstance(check.get(way), dict):
                target = dict(check[way])
                headers = target.pop("headers", {})
                listed = [{"name": name, "value": value} for name, value in headers.items()]
                probe[field] = {**target, **_given(httpHeaders=listed)}
        for name, field in _TIMES.items():
            text = str(check.get(name, ""))
            if (seconds := _whole_seconds(text)) is not None:
                probe[field] = seconds
            elif text:
                warn(f"{kind}: a Pod has whole seconds, not {name} {text}")
        probe |= {field: check[name] for name, field in _COUNTS.items() if name in check}
        probes[_PROBES[kind]] = probe
    return probes


def _hooks(hooks: Json, warn: Warn) -> Json:
    lifecycle: Json = {}
    for name, hook in hooks.items():
        if not isinstance(hook, dict):
            continue
        if "exec" in hook:
            lifecycle[_HOOKS[name]] = {"exec": {"command": hook["exec"]}}
        elif (seconds := _whole_seconds(str(hook.get("sleep")))) is not None:
            lifecycle[_HOOKS[name]] = {"sleep": {"seconds": seconds}}
        else:
            warn(f"{name}: a Pod has whole seconds, not sleep {hook.get('sleep')}")
    return lifecycle


def _grace_seconds(text: str) -> int:
    try:
        return max(0, math.ceil(parse_duration(text)))
    except ValueError:
        return _grace_seconds(_USUAL_GRACE)  # the pod has never run


def _whole_seconds(text: str) -> int | None:
    return int(text[:-1]) if text.endswith("s") and text[:-1].isdecimal() else None


def _object(text: str | None) -> Json:
    value = {} if text is None else jsontext.parse(text.encode(), "annotation")
    return value if isinstance(value, dict) else {}


def _given(**fields: object) -> Json:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
