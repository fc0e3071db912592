"""A Pod of Kubernetes, and the template of a Pod."""

from __future__ import annotations

from minit.base.value import Value, replace
from minit.kubernetes.containers import Container, read_container
from minit.kubernetes.fields import Fields, Findings, read_name, read_text, read_texts
from minit.kubernetes.references import Config, Machine, PodNames, Resources, read_resources
from minit.kubernetes.security import PodSecurity, read_pod_security
from minit.kubernetes.volumes import PodVolume, Sources, read_volume
from minit.manifest.reader import Node

DEFAULT_NAMESPACE = "default"

_MAX_GRACE_SECONDS = 365 * 24 * 3600
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
# These fields choose a machine, an account of a cluster, or an order among pods that compete for a machine.
_ABOUT_CLUSTERS = (
    *("affinity", "nodeName", "nodeSelector", "tolerations", "topologySpreadConstraints", "schedulerName"),
    *("priority", "priorityClassName", "preemptionPolicy", "serviceAccount", "serviceAccountName"),
    *("automountServiceAccountToken", "enableServiceLinks"),
)


class Dns(Value):
    """Name servers of the pod: with `none` no servers, and without any the host's."""

    none: bool = False
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class PodContext(Value):
    """Objects that a Pod may refer to; `mark` is as in PodNames."""

    configs: tuple[Config, ...] = ()
    machine: Machine = Machine()
    mark: str = ""


class JobRun(Value):
    """
    The Job of a Pod: the number of pods that run at a time, and the number of times that a pod is started again.

    `index` is the Pod's number, for Pods that know their number.
    """

    name: str
    parallel: int = 1
    retries: int = 6
    index: int | None = None


class KubernetesPod(Value):
    """A Pod document, or a Pod of a Job or the like; `init_containers` run first, in order."""

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
    host_pids: bool
    host_users: bool
    dns: Dns
    hosts: tuple[tuple[str, str], ...]
    """Addresses and names of the file /etc/hosts."""
    job: JobRun | None = None
    deadline_seconds: int | None = None

    def taken_on_host(self) -> str | None:
        """Return the Pod's exclusive claim on the host, so that no second copy can run; None without a claim."""
        ports = [port.host_port for container in (*self.init_containers, *self.containers) for port in container.ports]
        if self.host_network:
            return "it has the network of the host"
        return f"it has port {ports[0]} of the host" if ports else None


def read_pod(root: Node, findings: Findings, context: PodContext) -> KubernetesPod:
    """Read a whole document of kind Pod."""
    with Fields(root, findings) as fields:
        fields["apiVersion"].one_of("v1")
        fields["kind"].string()
        fields.ignored("status")
        with fields.within("metadata") as metadata:
            name = read_name(metadata["name"])
            names = _read_metadata(metadata, name, metadata["namespace"].optional(read_name), context)
        with fields.within("spec") as spec:
            return _read_spec(spec, names, context)


def read_template(
    template: Node, name: str, namespace: str | None, context: PodContext, findings: Findings
) -> KubernetesPod:
    """Read the template of a Pod with this name."""
    with Fields(template, findings) as fields:
        with fields.within("metadata") as metadata:
            metadata["name"], metadata["namespace"]
            names = _read_metadata(metadata, name, namespace, context)
        with fields.within("spec") as spec:
            return _read_spec(spec, names, context)


def ignore_metadata(metadata: Fields) -> None:
    """Accept the metadata that a cluster writes into an object."""
    metadata.ignored("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "generateName")
    metadata.ignored("ownerReferences", "finalizers", "selfLink")


def _read_metadata(metadata: Fields, name: str, namespace: str | None, context: PodContext) -> PodNames:
    ignore_metadata(metadata)
    return PodNames(
        name=name,
        namespace=namespace or DEFAULT_NAMESPACE,
        labels=read_texts(metadata["labels"]),
        annotations=read_texts(metadata["annotations"]),
        machine=context.machine,
        mark=context.mark,
    )


def _read_spec(spec: Fields, names: PodNames, context: PodContext) -> KubernetesPod:
    configs = context.configs
    account = spec["serviceAccountName"].optional(Node.string) or spec["serviceAccount"].optional(Node.string)
    names = replace(names, service_account=account or "default", resources=_read_all_resources(spec))
    spec.ignored(*_ABOUT_CLUSTERS)
    spec.only("setHostnameAsFQDN", False)
    # Apps of a pod are in one PID namespace anyway.
    spec["shareProcessNamespace"].optional(Node.boolean)
    security = read_pod_security(spec.within("securityContext"), has_selinux=context.machine.has_selinux)
    sources = Sources(configs=configs, pod=names, group=security.group)
    volumes = spec.each("volumes", lambda node, found: read_volume(node, found, sources))
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
        deadline_seconds=read_deadline(spec["activeDeadlineSeconds"]),
        host_network=spec["hostNetwork"].optional(Node.boolean) or False,
        host_ipc=spec["hostIPC"].optional(Node.boolean) or False,
        host_pids=spec["hostPID"].optional(Node.boolean) or False,
        host_users=_read_host_users(spec),
        dns=_read_dns(spec),
        hosts=tuple(entry for entries in spec.each("hostAliases", _read_alias) for entry in entries),
    )


def _read_host_users(spec: Fields) -> bool:
    """Read whether the users of the containers are the host's, which a Pod with a namespace of the host needs."""
    if spec["hostUsers"].optional(Node.boolean) is not False:
        return True
    for field in ("hostNetwork", "hostIPC", "hostPID"):
        if spec[field].optional(Node.boolean):
            raise spec["hostUsers"].error(f"true beside {field}")
    return False


def _read_all_resources(spec: Fields) -> tuple[tuple[str, Resources], ...]:
    """Return the resources of all containers, for references from containers and volumes."""
    # Errors in resources are reported by the later reading.
    silent = Findings()
    return tuple(
        (container["name"].string(), read_resources(container.within("resources")))
        for field in ("initContainers", "containers")
        for container in spec[field].each(lambda node: Fields(node, silent))
    )


def _read_grace(node: Node) -> int:
    seconds = node.optional(lambda given: given.integer(0, _MAX_GRACE_SECONDS))
    return 30 if seconds is None else seconds


def read_deadline(node: Node) -> int | None:
    """Read the number of seconds for which a Pod, or a Job's Pods, may be active; None without a limit."""
    return node.optional(lambda seconds: seconds.integer(1, _MAX_GRACE_SECONDS))


def _read_dns(spec: Fields) -> Dns:
    policy = spec["dnsPolicy"].optional(
        lambda node: node.one_of("Default", "ClusterFirst", "ClusterFirstWithHostNet", "None")
    )
    if not spec["dnsConfig"].given:
        return Dns(none=policy == "None")
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
