"""The network of a pod, by the entries of --net."""

from __future__ import annotations

from collections.abc import Sequence

from minit.errors import PlanError
from minit.manifest.app import App
from minit.plan.inputs.runflags import RunFlags
from minit.plan.loadedpod import Pod
from minit.plan.networks.networkplan import NetworkPlan, plan_networks
from minit.plan.networks.ports import plan_ports


def is_contained(networks: tuple[str, ...]) -> bool:
    """Tell whether entries of --net mean that the pod is not in the host's network."""
    # An absent list means the host's network, and `host` beats everything else (stage1 contract 15.1).
    return bool(networks) and "host" not in networks


def joins_networks(networks: tuple[str, ...]) -> bool:
    """Tell whether entries of --net ask for networks that have to be set up."""
    return is_contained(networks) and "none" not in networks


def plan_pod_network(pod: Pod, flags: RunFlags, sections: Sequence[App]) -> NetworkPlan | None:
    """Return the networks that the pod joins, None if it joins none; PlanError for what only they could give."""
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
        ports=plan_ports(pod.manifest, dict(zip(names, sections))),
    )
