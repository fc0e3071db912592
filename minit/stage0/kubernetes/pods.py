"""The documents of a Kubernetes YAML file: Pods, and the ConfigMaps and Secrets that they use."""

from __future__ import annotations

from minit.errors import ManifestError
from minit.manifest.reader import Node
from minit.stage0.kubernetes.configmaps import CONFIG_MAP, SECRET, Config, read_config
from minit.stage0.kubernetes.containers import Container, read_container
from minit.stage0.kubernetes.environment import PodNames
from minit.stage0.kubernetes.fields import Fields, Findings, read_name, read_text, read_texts
from minit.stage0.kubernetes.podvolumes import PodVolume, read_volume
from minit.stage0.kubernetes.security import PodSecurity, read_pod_security
from minit.stage0.kubernetes.yamltext import parse_documents
from minit.value import Value

POD = "Pod"
DEFAULT_NAMESPACE = "default"

_MAX_GRACE_SECONDS = 365 * 24 * 3600
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
# These choose a machine, an account of a cluster or an order among pods that compete for one.
_ABOUT_CLUSTERS = (
    *("affinity", "nodeName", "nodeSelector", "tolerations", "topologySpreadConstraints", "schedulerName"),
    *("priority", "priorityClassName", "preemptionPolicy", "serviceAccount", "serviceAccountName"),
    *("automountServiceAccountToken", "enableServiceLinks"),
)


class Dns(Value):
    """Name servers of the pod; with `host` those of the host."""

    host: bool = False
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class KubernetesPod(Value):
    """A Pod document; `init_containers` run before the others, in their order."""

    names: PodNames
    hostname: str
    init_containers: tuple[Container, ...]
    containers: tuple[Container, ...]
    volumes: tuple[PodVolume, ...]
    security: PodSecurity
    restart_policy: str
    grace_seconds: int
    host_network: bool
    host_ipc: bool
    dns: Dns
    hosts: tuple[tuple[str, str], ...]
    """Addresses and names of the file /etc/hosts."""


def read_file(data: bytes, source: str, findings: Findings) -> tuple[KubernetesPod, ...]:
    """Return the Pods of a file; ManifestError with the place of what is wrong, or if there is none."""
    documents = parse_documents(data, source)
    many = len(documents) > 1
    roots = [
        Node(document, None, f"{source} document {number}" if many else source)
        for number, document in enumerate(documents, 1)
    ]
    of_kind = {kind: [root for root in roots if root["kind"].raw() == kind] for kind in (POD, CONFIG_MAP, SECRET)}
    for root in roots:
        root["kind"].one_of(POD, CONFIG_MAP, SECRET)
    configs = tuple(read_config(root, kind, findings) for kind in (CONFIG_MAP, SECRET) for root in of_kind[kind])
    pods = tuple(_read_pod(root, findings, configs) for root in of_kind[POD])
    if not pods:
        raise ManifestError(f"{source}: expected a document of kind Pod")
    if len({(pod.names.namespace, pod.names.name) for pod in pods}) < len(pods):
        raise ManifestError(f"{source}: several Pods have one name")
    return pods


def _read_pod(root: Node, findings: Findings, configs: tuple[Config, ...]) -> KubernetesPod:
    with Fields(root, findings) as fields:
        fields["apiVersion"].one_of("v1")
        fields["kind"].one_of(POD)
        fields.ignored("status")
        with fields.within("metadata") as metadata:
            names = PodNames(
                name=read_name(metadata["name"]),
                namespace=metadata["namespace"].optional(read_name) or DEFAULT_NAMESPACE,
                labels=read_texts(metadata["labels"]),
                annotations=read_texts(metadata["annotations"]),
            )
            metadata.ignored("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields")
        with fields.within("spec") as spec:
            return _read_spec(spec, names, configs)


def _read_spec(spec: Fields, names: PodNames, configs: tuple[Config, ...]) -> KubernetesPod:
    spec.ignored(*_ABOUT_CLUSTERS)
    spec.only("hostPID", False)
    spec.only("hostUsers", True)
    spec.only("setHostnameAsFQDN", False)
    # Apps of a pod are in one PID namespace anyway.
    spec["shareProcessNamespace"].optional(Node.boolean)
    security = read_pod_security(spec.within("securityContext"))
    volumes = spec.each("volumes", lambda node, found: read_volume(node, found, configs, security.group))
    volume_names = [volume.volume.name for volume in volumes]
    if len(set(volume_names)) < len(volume_names):
        raise spec["volumes"].error("volumes with different names", "two of one name")

    def read(node: Node, findings: Findings, *, init: bool = False) -> Container:
        return read_container(
            node, findings, configs=configs, pod=names, security=security, volumes=volume_names, init=init
        )

    init_containers = spec.each("initContainers", lambda node, found: read(node, found, init=True))
    containers = spec.each("containers", read)
    if not containers:
        raise spec["containers"].error("at least one container")
    every = [container.name for container in (*init_containers, *containers)]
    if len(set(every)) < len(every):
        raise spec["containers"].error("containers with different names", "two of one name")
    return KubernetesPod(
        names=names,
        hostname=spec["hostname"].optional(read_name) or names.name,
        init_containers=init_containers,
        containers=containers,
        volumes=volumes,
        security=security,
        restart_policy=spec["restartPolicy"].optional(lambda node: node.one_of(*_RESTART_POLICIES)) or "Always",
        grace_seconds=_read_grace(spec["terminationGracePeriodSeconds"]),
        host_network=spec["hostNetwork"].optional(Node.boolean) or False,
        host_ipc=spec["hostIPC"].optional(Node.boolean) or False,
        dns=_read_dns(spec),
        hosts=tuple(entry for entries in spec.each("hostAliases", _read_alias) for entry in entries),
    )


def _read_grace(node: Node) -> int:
    seconds = node.optional(lambda given: given.integer(0, _MAX_GRACE_SECONDS))
    return 30 if seconds is None else seconds


def _read_dns(spec: Fields) -> Dns:
    policy = spec["dnsPolicy"].optional(
        lambda node: node.one_of("Default", "ClusterFirst", "ClusterFirstWithHostNet", "None")
    )
    if not spec["dnsConfig"].given:
        return Dns(host=policy == "Default")
    with spec.within("dnsConfig") as config:
        options = config.each("options", _read_dns_option)
        return Dns(
            servers=config["nameservers"].each(Node.non_empty),
            searches=config["searches"].each(Node.non_empty),
            options=options,
        )


def _read_dns_option(node: Node, findings: Findings) -> str:
    with Fields(node, findings) as fields:
        name = fields["name"].non_empty()
        value = fields["value"].optional(read_text)
        return name if value is None else f"{name}:{value}"


def _read_alias(node: Node, findings: Findings) -> tuple[tuple[str, str], ...]:
    with Fields(node, findings) as fields:
        address = fields["ip"].non_empty()
        return tuple((address, name) for name in fields["hostnames"].each(Node.non_empty))
