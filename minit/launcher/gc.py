"""The `gc` entrypoint's work: removing what a pod left on the host outside its directory."""

from __future__ import annotations

import os

from minit import paths
from minit.errors import LaunchError, NetworkError, StrandedError
from minit.launcher.cgroups import read_hierarchies, read_subcgroup, remove_pod_groups


def remove_groups(uuid: str) -> list[str]:
    """
    Remove the control groups of the pod in the working directory and return what could not be removed.

    A pod whose `run` never got that far has none, and neither has one from before a reboot.
    """
    try:
        subcgroup = read_subcgroup()
    except FileNotFoundError:
        return []
    parts = subcgroup.split("/")
    # The file is only as trustworthy as the directory; removing groups by any other path would be a weapon.
    if parts[-1] != paths.pod_cgroup_name(uuid) or ".." in parts:
        raise LaunchError(f'{paths.POD_SUBCGROUP}: "{subcgroup}" is not a control group of pod {uuid}')
    return remove_pod_groups(read_hierarchies(), subcgroup)


def detach_networks(uuid: str, local_config: str, *, debug: bool) -> list[str]:
    """Undo the networks of the pod in the working directory and return what went wrong, for which nothing is left."""
    if not os.path.lexists(paths.POD_NETNS):
        return []
    # With pyroute2 behind it, which no other pod has to wait for.
    from minit.network.cni import PluginSearch
    from minit.network.teardown import tear_down

    try:
        return tear_down(uuid, PluginSearch(local_config), debug=debug)
    except StrandedError as error:
        raise NetworkError(f"networking: {error}; run gc again") from error
