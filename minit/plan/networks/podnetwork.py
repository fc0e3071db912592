"""The network of a pod, by the entries of --net."""

from __future__ import annotations

import os
from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.hostname import default_name, find_fault
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.pod import PodManifest
from minit.plan.inputs.runflags import RunFlags
from minit.plan.loadedpod import Pod
from minit.plan.networks.hostsfile import NamedPod, is_usable_name
from minit.plan.networks.networkplan import NetworkPlan, plan_networks
from minit.plan.networks.ports import plan_ports
from minit.plan.root.etcfiles import add_hostname

_DNS_HOST, _DNS_NONE = "host", "none"
_NAMES_OWN = "own"


def is_contained(networks: tuple[str, ...]) -> bool:
    """Tell whether entries of --net mean that the pod is not in the host's network."""
    # An absent list means the host's network, and `host` beats everything else (stage1 contract 15.1).
    return bool(networks) and "host" not in networks


def joins_networks(networks: tuple[str, ...]) -> bool:
    """Tell whether entries of --net ask for networks that have to be set up."""
    return is_contained(networks) and "none" not in networks


def plan_pod_network(pod: Pod, flags: RunFlags, sections: Sequence[App], lowest_port: int) -> NetworkPlan | None:
    """
    Return the networks that the pod joins, None without any; PlanError for wishes that need a network.

    The caller may have ports of the machine from `lowest_port` on.
    """
    if not joins_networks(flags.networks):
        if not is_contained(flags.networks):
            return None
        for what, wanted in (("--mds-token", flags.mds_token), ("forwarding ports", pod.manifest.ports)):
            if wanted:
                raise PlanError(f"failed to setup network: {what} needs a network, --net=none gives none")
        return None
    names = [runtime.name for runtime in pod.manifest.apps]
    return NetworkPlan(
        networks=plan_networks(pod.networks, flags.networks),
        ports=plan_ports(pod.manifest, dict(zip(names, sections)), lowest_port),
        host_dns=wants_host_dns(pod.manifest, flags),
    )


def wants_names(manifest: PodManifest, flags: RunFlags) -> bool:
    """Tell whether the pod and others on its networks are to find each other by name; PlanError as below."""
    return _read_names(manifest) == "true" and joins_networks(flags.networks)


def has_own_hosts(manifest: PodManifest) -> bool:
    """Tell whether apps get the pod's hosts file, even in place of the image's; PlanError as below."""
    return _read_names(manifest) == _NAMES_OWN


def _read_names(manifest: PodManifest) -> str | None:
    value = manifest.annotation(Annotation.POD_NAMES)
    if value not in (None, "true", "false", _NAMES_OWN):
        raise PlanError(f'annotation {Annotation.POD_NAMES}: expected true, false or {_NAMES_OWN}, got "{value}"')
    return value


def plan_named_pod(pod: Pod, uuid: str, hostname: str) -> NamedPod:
    """Return the pod as other pods on the networks find it; the launcher adds the rest."""
    hosts = pod.texts.hosts
    base = None if hosts is None else os.fsdecode(add_hostname(hosts, os.fsencode(hostname)))
    apps = tuple(runtime.name for runtime in pod.manifest.apps)
    return NamedPod(uuid=uuid, base=base, names=(hostname,), apps=apps, aliases=_read_aliases(pod.manifest))


def _read_aliases(manifest: PodManifest) -> tuple[tuple[str, str], ...]:
    """Return further names of the pod, each behind the name of the only network with the name, or behind nothing."""
    value = manifest.annotation(Annotation.POD_ALIASES)
    if value is None:
        return ()
    aliases = []
    for entry in value.split(","):
        network, _, name = entry.strip().rpartition(":")
        if not is_usable_name(name):
            raise PlanError(f'annotation {Annotation.POD_ALIASES}: "{name}" cannot be the name of a pod in /etc/hosts')
        aliases.append((network, name))
    return tuple(aliases)


def wants_host_dns(manifest: PodManifest, flags: RunFlags) -> bool:
    """
    Tell whether a pod asks the host's name servers if it can and has no others; PlanError for a bad annotation.

    Only pods of minit's stage0 do: pods of rkt have no servers unless an option names some.
    """
    value = manifest.annotation(Annotation.DNS)
    if value not in (None, _DNS_HOST, _DNS_NONE):
        raise PlanError(f'annotation {Annotation.DNS}: expected {_DNS_HOST} or {_DNS_NONE}, got "{value}"')
    return value == _DNS_HOST and flags.resolv_mode == "default"


def plan_hostname(flags: RunFlags) -> str:
    """Return the host name of a pod; PlanError for a bad one."""
    if not flags.hostname:
        return default_name(flags.uuid)
    fault = find_fault(flags.hostname)
    if fault is not None:
        raise PlanError(f'hostname "{flags.hostname}" {fault}')
    return flags.hostname
