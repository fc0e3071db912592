"""A request to a plugin: the parameters of the CNI beside the configuration."""

from __future__ import annotations

from minit.base.value import Value


class Request(Value):
    """
    The attachment of one interface of a pod to one network.

    `namespace` is the path of the pod's network namespace, empty when it has vanished; `args` is CNI_ARGS as given.
    """

    container_id: str
    namespace: str
    interface: str
    args: str = ""
