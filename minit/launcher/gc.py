"""The `gc` entrypoint's work: removing the remains of a pod on the host outside of the pod directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from minit.base.errors import LaunchError, MinitError, StrandedError, UnfinishedError, describe
from minit.launcher.cgroups import (
    MAX_PATH_BYTES,
    Hierarchy,
    kill_pod_groups,
    processes_left,
    read_subcgroup,
    remove_pod_groups,
)
from minit.linux.forks import COLLECTOR, fork
from minit.linux.process import wait_channel
from minit.linux.stdio import complain, write_all
from minit.network.namespace import enter_user_network
from minit.network.pluginrequests import search_for_pod
from minit.network.setup import tear_down, withdraw_names
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.usersdirectory import runtime_directory
from minit.reaper.record import write_durably

# More are counted only: the line is for a person.
_NAMED_PROCESSES = 8
# Of a line of standard input, a UUID.
_MAX_LINE_BYTES = 256
_CODE_BYTES = 8


def collect(
    uuid: str, hierarchies: Sequence[Hierarchy], local_config: str, freed: ExitStack | None = None, *, debug: bool
) -> int:
    """
    Remove the remains of the pod in the working directory, report failures, and return the exit code.

    The end of `freed` waits for the kernel to free what is removed.
    """
    code = 0
    try:
        remove_groups(uuid, hierarchies)
    except MinitError as error:
        complain(f"stage1 gc: {describe(error)}")
        code = error.exit_code
    for problem in _detach_networks(uuid, local_config, freed, debug=debug):
        complain(f"networking: {problem}")
    return code


def collect_each(collect_one: Callable[[str, ExitStack | None], int]) -> None:
    """
    Have `collect_one` collect each pod with a UUID on a line of standard input, and answer with UUID and exit code.

    The pods are in the working directory. A pod with networks gets a process of its own: an accident of that process in
    another network namespace, or of a plugin, does not reach the next pod. As of a program killed by a signal, the code
    is negative then. The answer does not wait for the kernel to free the networks; the next pod and the end do.
    """
    freeing: int | None = None
    top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with open(0, "rb", closefd=False) as lines:
        while line := lines.readline(_MAX_LINE_BYTES):
            word = os.fsdecode(line.rstrip(b"\n"))
            _await(freeing)
            freeing = None
            if os.path.lexists(f"{word}/{paths.POD_NETNS}"):
                code, freeing = _collect_in_child(collect_one, word)
            else:
                code = collect_one(word, None)
            os.fchdir(top)
            write_all(1, os.fsencode(f"{word} {code}\n"))
    _await(freeing)


def _await(child: int | None) -> None:
    if child is not None:
        os.waitpid(child, 0)


def _collect_in_child(collect_one: Callable[[str, ExitStack | None], int], word: str) -> tuple[int, int | None]:
    """Return the exit code of a pod, and the child that waits for the kernel, if the child has not ended."""
    reader, writer = os.pipe()

    def run() -> int:
        with ExitStack() as freed:
            code = collect_one(word, freed)
            os.write(writer, b"%d" % code)
        return code

    child = fork(COLLECTOR, run)
    os.close(writer)
    with open(reader, "rb", buffering=0) as report:
        code = report.read(_CODE_BYTES)
    if code:
        return int(code), child
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), None


def remove_groups(uuid: str, hierarchies: Sequence[Hierarchy]) -> None:
    """
    Remove the control groups of the pod in the working directory, and remains of others.

    A pod with an early end of `run` has none, nor has a pod from before a reboot. UnfinishedError if some cannot be
    removed now: a later call finishes the work, of another pod too if the directory is gone by then.
    """
    _remove_left(hierarchies)
    try:
        subcgroup = read_subcgroup()
    except FileNotFoundError:
        return
    # The file is only as trustworthy as the directory.
    if not _belongs_to(subcgroup, uuid):
        raise LaunchError(f'{paths.POD_SUBCGROUP}: "{subcgroup}" is not a control group of pod {uuid}')
    if os.path.exists(paths.POD_HOST_PIDS):
        kill_pod_groups(hierarchies, subcgroup)
    problems = remove_pod_groups(hierarchies, subcgroup)
    try:
        _note_left(uuid, subcgroup) if problems else _forget_left(uuid)
    except OSError as error:
        complain(f"stage1 gc: cannot note which control groups are left: {describe(error)}")
    if problems:
        raise UnfinishedError(_describe(problems, processes_left(hierarchies, subcgroup)))


def _detach_networks(uuid: str, local_config: str, freed: ExitStack | None, *, debug: bool) -> list[str]:
    """
    Undo the networks of the pod in the working directory and return the failures that left nothing behind.

    UnfinishedError if another call has to go on.
    """
    try:
        if not os.path.lexists(paths.POD_NETNS):
            # Names are there before anything is connected.
            return withdraw_names(uuid)
        enter_user_network()
        return tear_down(uuid, search_for_pod(local_config), freed, debug=debug)
    except StrandedError as error:
        raise UnfinishedError(f"networking: {error}; run gc again") from error


def _describe(problems: list[str], pids: list[int]) -> str:
    text = f"control groups are left: {problems[0]}"
    if len(problems) > 1:
        text += f", and {len(problems) - 1} more"
    if pids:
        named = ", ".join(f"{pid} ({wait_channel(pid)})" for pid in pids[:_NAMED_PROCESSES])
        text += f"; processes in them: {named}" + (", …" if len(pids) > _NAMED_PROCESSES else "")
    return f"{text}; run gc again when they are gone"


def _belongs_to(subcgroup: str, uuid: str) -> bool:
    """Return whether a path belongs to a pod's groups: removing groups by any other path would be a weapon."""
    parts = subcgroup.split("/")
    return parts[-1] == paths.pod_cgroup_name(uuid) and ".." not in parts


def _left() -> str:
    """Return the directory with notes about remaining groups."""
    return f"{runtime_directory()}/groups"


def _note_left(uuid: str, subcgroup: str) -> None:
    """
    Note on the host the remaining groups of a pod, for a later `gc` of any pod.

    rkt deletes the pod's directory whatever `gc` says, the only other place with the path of the groups. A reboot,
    after which there are no groups, removes the notes too.
    """
    os.makedirs(_left(), 0o755, exist_ok=True)
    write_durably(f"{_left()}/{uuid}", os.fsencode(subcgroup))


def _forget_left(uuid: str) -> None:
    """Note that no groups are left."""
    try:
        os.unlink(f"{_left()}/{uuid}")
    except FileNotFoundError:
        pass


def _remove_left(hierarchies: Sequence[Hierarchy]) -> None:
    """Remove the remains of any pod, as far as possible without waiting."""
    try:
        # Others are being written.
        uuids = [name for name in os.listdir(_left()) if not name.startswith(".")]
    except FileNotFoundError:
        return
    for uuid in uuids:
        try:
            fd = os.open(f"{_left()}/{uuid}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            subcgroup = os.fsdecode(read_bounded(fd, uuid, MAX_PATH_BYTES))
            if not _belongs_to(subcgroup, uuid) or not remove_pod_groups(hierarchies, subcgroup, patience_seconds=0):
                _forget_left(uuid)
        except OSError:
            continue  # another gc was faster, or it is none of ours
