"""The `gc` entrypoint's work: removing what a pod left on the host outside its directory."""

from __future__ import annotations

from minit import paths
from minit.errors import LaunchError
from minit.launcher.cgroups import read_hierarchies, remove_pod_groups


def collect_pod(uuid: str) -> list[str]:
    """
    Remove the control groups of the pod in the working directory and return what could not be removed.

    A pod whose `run` never got that far has none, and neither has one from before a reboot.
    """
    try:
        with open(paths.POD_SUBCGROUP, encoding="utf-8", errors="surrogateescape") as file:
            subcgroup = file.read().strip().lstrip("/")
    except FileNotFoundError:
        return []
    parts = subcgroup.split("/")
    # The file is only as trustworthy as the directory; removing groups by any other path would be a weapon.
    if parts[-1] != paths.pod_cgroup_name(uuid) or ".." in parts:
        raise LaunchError(f'{paths.POD_SUBCGROUP}: "{subcgroup}" is not a control group of pod {uuid}')
    return remove_pod_groups(read_hierarchies(), subcgroup)
