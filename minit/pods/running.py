"""Runs complete pods: this process becomes a pod's stage1, or a process in the background does."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from minit.base.errors import FailureKind, MinitError, PodError, describe
from minit.base.harmless import harmless
from minit.base.hostname import find_fault
from minit.base.processors import this_processor
from minit.base.progress import Progress
from minit.base.value import replace
from minit.linux.stdio import flush_output, write_all
from minit.manifest.networkconfig import find_repeated
from minit.network.uplink import find_obstacle, open_uplink
from minit.podfiles import paths
from minit.podfiles.usersdirectory import is_of_user
from minit.pods.caller import Caller
from minit.pods.ending import cleanup_of, take_down
from minit.pods.images import choose_stage1
from minit.pods.requests import Stage1Request, StartRequest
from minit.pods.stopping import await_stopping, stop
from minit.stage0.garbage.podgc import remove, start_remover
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.nameservice import find_name_fault
from minit.stage0.pods.poddirectory import (
    DELETED_STATES,
    RUN,
    Pod,
    PodState,
    find_pod,
    open_pod,
    uuid_of_name,
    walk_pods,
)
from minit.stage0.pods.podstatus import is_ready, read_pod_manifest, read_version
from minit.stage0.reports.podtraces import read_end
from minit.stage0.stage1.entrypoints import RunOptions, read_last_run
from minit.stage0.start.detached import (
    claim_ended,
    clear_last_run,
    is_interactive,
    require_startable,
    run_again,
    start_detached,
)
from minit.stage0.start.newpod import discarded_on_failure
from minit.stage0.start.run import run_pod
from minit.stage0.start.upgrade import Versions, require_upgrading, upgrade_pod

_NAMES = {
    "nameservers": "name server",
    "search": "search domain",
    "options": "option of resolv.conf",
    "domain": "domain",
    "host_names": "entry of /etc/hosts",
}
_WITHOUT_PLUGINS = {"host", "none"}
_OF_APP = re.compile(rb"[a-z0-9-]+\[[0-9]+\]: ")


def start(caller: Caller, store: Store, pod: Pod, request: StartRequest) -> str:
    """
    Run a locked, complete pod: this process becomes the pod's stage1, unless the request is for the background.

    Then return the pod's UUID when the pod is ready. A pod in the background that does not become ready is removed.
    """

    def run() -> NoReturn:
        with discarded_on_failure(pod):
            have_uplink(request.options.networks)
            run_pod(pod, TreeStore(caller.data, store), request.options, caller.note, flush_output, remover)

    def start_its_remover() -> int:
        start = decided.reader if request.is_detached else None
        return start_remover(pod, caller.local_config, caller.note, debug=caller.debug, start=start)

    remover = start_its_remover if request.is_removed else None
    if not request.is_detached:
        run()
    decided = _Decision()
    uuid = pod.uuid
    try:
        is_up = is_ready if request.waits_for_checks else _has_begun
        _start_in_background(caller, pod, run, decided.make, is_up)
    except BaseException:
        with suppress(MinitError, OSError):
            _remove(caller, store, uuid)
        raise
    return uuid


def have_uplink(networks: Sequence[str]) -> None:
    """Have the uplink for a user's pod of the networks, as long as the process that this one becomes."""
    if is_of_user() and not _WITHOUT_PLUGINS & {*networks}:
        # The launcher takes a hold of its own.
        os.set_inheritable(open_uplink(), True)


def options_for(caller: Caller, options: RunOptions) -> RunOptions:
    """
    Return the options of a run with the caller's options for every request.

    PodError for a name or an address that no file of the pod can have.
    """
    fault = find_name_fault(options.name_service)
    if fault is not None:
        raise _invalid(f"{_NAMES[fault[0]]}: {fault[1]}")
    fault_of_name = find_fault(options.hostname) if options.hostname else None
    if fault_of_name is not None:
        raise _invalid(f'host name: "{options.hostname}" {fault_of_name}')
    repeated = find_repeated(",".join(options.networks).split(","))
    if repeated is not None:
        raise _invalid(f'network "{repeated}" is named twice')
    if is_of_user() and not _WITHOUT_PLUGINS & {*options.networks}:
        obstacle = find_obstacle()
        if obstacle is not None:
            raise _invalid(obstacle)
    return replace(
        options,
        debug=caller.debug,
        local_config=caller.local_config,
        disable_capabilities_restriction="capabilities" in caller.insecure,
        disable_paths="paths" in caller.insecure,
        disable_seccomp="seccomp" in caller.insecure,
    )


def _has_begun(pod: Pod) -> bool:
    """Tell whether the programs of all apps were executed."""
    if is_ready(pod):
        return True
    ends = [read_end(pod, app.name) for app in read_pod_manifest(pod).apps]
    return all(end is not None and "started" in end for end in ends)


def start_again(
    caller: Caller, store: Store, pod: Pod, *, waits_for_checks: bool = True, in_foreground: bool = False
) -> str:
    """
    Run an ended pod as the last time, and return the UUID.

    With `in_foreground`, and if the pod had the terminal, this process becomes the pod's stage1 instead.
    """
    arguments = claim_ended(pod)
    with cleanup_of(caller, store) as cleanup:
        clear_last_run(pod, cleanup, caller.note)

    def run() -> NoReturn:
        have_uplink(read_last_run(arguments).networks)
        run_again(pod, TreeStore(caller.data, store), arguments, flush_output, caller.note)

    if in_foreground or is_interactive(arguments):
        run()
    uuid = pod.uuid
    _start_in_background(caller, pod, run, is_up=is_ready if waits_for_checks else _has_begun)
    return uuid


def restart(caller: Caller, store: Store, pod: Pod, grace_seconds: float | None) -> str:
    """
    Stop a pod that runs, run the pod as the last time, and return the UUID.

    PodError for a pod that cannot run again; such a pod is not stopped.
    """
    require_startable(pod)
    if pod.state is PodState.RUNNING and pod.has_file(paths.POD_REMOVER):
        raise PodError(f'pod "{pod.uuid}" was run with --rm, so that a stop removes it: stop it, and run it anew')
    stop(pod, grace_seconds=grace_seconds)
    return start_again(caller, store, pod)


def upgrade(
    caller: Caller, store: Store, request: Stage1Request, progress: Progress
) -> Callable[[str], tuple[str, Versions | None]]:
    """
    Return a function that has the running pod of a UUID or name go on in a stage1 image.

    The function returns the UUID, and None for a pod that has the image already; MinitError if the pod cannot.
    StoreError at once for an image in which no running pod can go on.
    """
    image = choose_stage1(caller, store, request)(progress)
    require_upgrading(image.manifest, this_processor())
    store.mark_used(image.id)
    trees = TreeStore(caller.data, store)

    def upgrade_one(name: str) -> tuple[str, Versions | None]:
        with find_pod(caller.data, name, caller.note) as pod:
            return pod.uuid, upgrade_pod(pod, trees, image, progress)

    return upgrade_one


def upgradable_pods(caller: Caller) -> list[str]:
    """Return the UUIDs of the running pods of minit's stage1."""
    pods = walk_pods(caller.data, (RUN,), caller.note)
    return [pod.uuid for pod in pods if pod.state is PodState.RUNNING and read_version(pod) is not None]


def _start_in_background(
    caller: Caller,
    pod: Pod,
    run: Callable[[], NoReturn],
    decided: Callable[[], None] = lambda: None,
    is_up: Callable[[Pod], bool] = is_ready,
) -> None:
    """Have `run` become the stage1 of a locked pod elsewhere; as start_detached, with its output told to the user."""
    flush_output()
    said = _Said()
    try:
        start_detached(pod, run, lambda error: caller.note(describe(error)), said.take, decided, is_up)
    except BaseException as error:
        said.tell_rest()
        if isinstance(error, MinitError):
            error.reason = said.reason
        raise


def await_name(caller: Caller, name: str) -> None:
    """Wait for the end of the pod of a name if somebody stops the pod; with `--rm` the name is free then."""
    uuid = uuid_of_name(caller.data, name)
    if uuid is not None:
        with suppress(PodError), open_pod(caller.data, uuid) as pod:
            await_stopping(pod)


def make_way(caller: Caller, name: str) -> None:
    """Stop and remove the pod of a name, if any; the pod's supervisor knows how long apps may take."""
    uuid = uuid_of_name(caller.data, name)
    if uuid is not None:
        with Store(caller.data) as store, cleanup_of(caller, store) as cleanup:
            take_down(caller.data, uuid, math.inf, cleanup, caller.note)


def _invalid(text: str) -> PodError:
    error = PodError(text)
    error.kind = FailureKind.INVALID
    return error


class _Decision:
    """Whether the pod has been ready: when the answer is decided, a pipe ends."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def make(self) -> None:
        """End the pipe."""
        os.close(self._writer)


class _Said:
    """Output of a starting pod: lines of stage1 are told at once, lines of apps only if the start fails."""

    def __init__(self) -> None:
        self._begun = b""
        self._held: list[bytes] = []
        self.reason: str | None = None
        """The last line of stage1 that is no warning, without the name of its part."""

    def take(self, data: bytes) -> None:
        """Take more output."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            if _OF_APP.match(line):
                self._held.append(line)
                continue
            _tell(line)
            name, _, text = harmless(line.decode(errors="replace")).partition(": ")
            self.reason = self.reason if text.startswith("warning: ") else text or name

    def tell_rest(self) -> None:
        """Tell the lines held back."""
        for line in (*self._held, *([self._begun] if self._begun else [])):
            _tell(line)


def _tell(line: bytes) -> None:
    sys.stderr.flush()
    with suppress(OSError):
        write_all(2, line + b"\n")


def _remove(caller: Caller, store: Store, uuid: str) -> None:
    with open_pod(caller.data, uuid) as pod, cleanup_of(caller, store) as cleanup:
        if pod.state not in DELETED_STATES:
            remove(pod, cleanup, caller.note)
