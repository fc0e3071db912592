"""The configuration of the plugin bridge (CNI plugins, bridge)."""

from __future__ import annotations

from minit.manifest.reader import Node
from minit.network.builtin.settings import accepts_routers, interface_name, mtu, truth
from minit.network.netlink.bridges import Vlans
from minit.value import Value

_DEFAULT_BRIDGE = "cni0"
_MAX_VLAN = 4094


class BridgeConfig(Value):
    """
    The configuration of a bridge that pods are connected to.

    `vlans` are those of a pod's port, None where the bridge knows no VLANs. With `is_down` the pod's end stays down.
    """

    bridge: str
    mtu: int | None
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    hairpin: bool
    promiscuous: bool
    port_isolation: bool
    vlans: Vlans | None
    detects_duplicates: bool
    accept_ra: bool
    is_down: bool


def read_bridge_config(config: Node) -> BridgeConfig:
    """Return what a configuration says; ManifestError if it is wrong."""
    is_default_gateway = truth(config["isDefaultGateway"])
    hairpin, promiscuous = truth(config["hairpinMode"]), truth(config["promiscMode"])
    if hairpin and promiscuous:
        raise config["hairpinMode"].error("false with promiscMode")
    is_down = truth(config["disableContainerInterface"])
    if is_down and config["ipam"].raw():
        raise config["disableContainerInterface"].error("false with ipam")
    return BridgeConfig(
        bridge=interface_name(config["bridge"]) or _DEFAULT_BRIDGE,
        mtu=mtu(config),
        is_gateway=is_default_gateway or truth(config["isGateway"]),
        is_default_gateway=is_default_gateway,
        force_address=truth(config["forceAddress"]),
        hairpin=hairpin,
        promiscuous=promiscuous,
        port_isolation=truth(config["portIsolation"]),
        vlans=_vlans(config),
        detects_duplicates=truth(config["enabledad"]),
        accept_ra=accepts_routers(config),
        is_down=is_down,
    )


def _vlans(config: Node) -> Vlans | None:
    untagged = config["vlan"].optional(_vlan) or 0
    tagged = config["vlanTrunk"].each(_range)
    if not untagged and not tagged:
        return None
    keeps_default = config["preserveDefaultVlan"].optional(Node.boolean)
    return Vlans(untagged=untagged, tagged=tagged, keeps_default=keeps_default is not False)


def _range(node: Node) -> tuple[int, int]:
    if node["id"].given:
        number = _vlan(node["id"])
        return number, number
    first, last = _vlan(node["minID"]), _vlan(node["maxID"])
    if last < first:
        raise node["maxID"].error("a number not below minID")
    return first, last


def _vlan(node: Node) -> int:
    return node.integer(0, _MAX_VLAN)
