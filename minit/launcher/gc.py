"""The `gc` entrypoint's work: removing what a pod left on the host outside its directory."""

from __future__ import annotations

import os

from minit import paths
from minit.errors import LaunchError, StrandedError, UnfinishedError, describe
from minit.launcher.cgroups import processes_left, read_hierarchies, read_subcgroup, remove_pod_groups
from minit.launcher.leftgroups import belongs_to, forget_left, note_left, remove_left
from minit.stdio import complain

# More are counted only: the line is for a person.
_NAMED_PROCESSES = 8


def remove_groups(uuid: str) -> None:
    """
    Remove the control groups of the pod in the working directory, and what was left of others.

    A pod whose `run` never got that far has none, and neither has one from before a reboot. UnfinishedError if some
    cannot be removed now, which a later call finishes, of another pod too if this one's directory is gone by then.
    """
    hierarchies = read_hierarchies()
    remove_left(hierarchies)
    try:
        subcgroup = read_subcgroup()
    except FileNotFoundError:
        return
    # The file is only as trustworthy as the directory.
    if not belongs_to(subcgroup, uuid):
        raise LaunchError(f'{paths.POD_SUBCGROUP}: "{subcgroup}" is not a control group of pod {uuid}')
    problems = remove_pod_groups(hierarchies, subcgroup)
    try:
        note_left(uuid, subcgroup) if problems else forget_left(uuid)
    except OSError as error:
        complain(f"stage1 gc: cannot note which control groups are left: {describe(error)}")
    if problems:
        raise UnfinishedError(_describe(problems, processes_left(hierarchies, subcgroup)))


def detach_networks(uuid: str, local_config: str, *, debug: bool) -> list[str]:
    """
    Undo the networks of the pod in the working directory and return what went wrong, for which nothing is left.

    UnfinishedError if another call has to go on with it.
    """
    if not os.path.lexists(paths.POD_NETNS):
        return []
    # With pyroute2 behind it, which no other pod has to wait for.
    from minit.network.cni import PluginSearch
    from minit.network.teardown import tear_down

    try:
        return tear_down(uuid, PluginSearch(local_config), debug=debug)
    except StrandedError as error:
        raise UnfinishedError(f"networking: {error}; run gc again") from error


def _describe(problems: list[str], pids: list[int]) -> str:
    text = f"control groups are left: {problems[0]}"
    if len(problems) > 1:
        text += f", and {len(problems) - 1} more"
    if pids:
        from minit.process import wait_channel  # which few calls need

        named = ", ".join(f"{pid} ({wait_channel(pid)})" for pid in pids[:_NAMED_PROCESSES])
        text += f"; processes in them: {named}" + (", …" if len(pids) > _NAMED_PROCESSES else "")
    return f"{text}; run gc again when they are gone"
