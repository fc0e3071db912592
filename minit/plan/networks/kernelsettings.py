"""
The settings of the kernel for a pod's own namespaces, by the annotation minit/sysctls.

The kernel shows some settings in every namespace and applies the setting to the machine. So only settings of an IPC or
a network namespace are known: Kubernetes' list for IPC, and for networks the settings that apps may write.
"""

from __future__ import annotations

import re

from minit.base.errors import PlanError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest
from minit.manifest.reader import Node, read_json

_IPC = re.compile(r"kernel\.(shm[a-z_]*|msg[a-z_]*|sem)|fs\.mqueue\.[a-z_]+")
_NETWORK = re.compile(r"net\.(core\.somaxconn|(ipv4|ipv6|mptcp|sctp|unix)(\.[A-Za-z0-9_@-]+)+)")
_VALUE = re.compile(r"[!-~]([ -~\t]{0,254}[!-~])?")


class Sysctl(Value):
    """A setting: the file below /proc/sys, the text, and whether the setting belongs to the network."""

    path: str
    value: str
    of_network: bool


def plan_sysctls(manifest: PodManifest, *, own_ipc: bool, own_network: bool) -> tuple[Sysctl, ...]:
    """Return the settings of a pod; ManifestError or PlanError for a setting that is not the pod's alone."""
    text = manifest.annotation(Annotation.SYSCTLS)
    if text is None:
        return ()
    where = f"annotation {Annotation.SYSCTLS}"
    root = read_json(text.encode(errors="surrogateescape"), where)
    value = root.raw()
    if not isinstance(value, dict):
        raise root.error('an object like {"net.core.somaxconn": "1024"}')
    settings = []
    for name, given in value.items():
        of_network = _NETWORK.fullmatch(name) is not None
        if not of_network and not _IPC.fullmatch(name):
            raise PlanError(f'{where}: "{name}" is no setting that a pod has for itself')
        if not (own_network if of_network else own_ipc):
            raise PlanError(f'{where}: "{name}" would be that of the host, whose {_namespace(of_network)} the pod has')
        content = Node(given, root, name).matching(_VALUE.fullmatch, "a line of text")
        settings.append(Sysctl(path=name.replace(".", "/"), value=content, of_network=of_network))
    return tuple(settings)


def _namespace(of_network: bool) -> str:
    return "network" if of_network else "IPC namespace"
