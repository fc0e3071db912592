"""
Removing a pod as soon as it has ended, by a process that waits for the end: `--rm`.

The end of a pod is that of its lock, whoever was killed. minit's stage1 ends when that process has, so that the pod is
gone when the command ends; another stage1 does not wait.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from minit.base.errors import MinitError, describe
from minit.linux.forks import END_REMOVER, fork
from minit.stage0.files.locks import flock
from minit.stage0.garbage.podgc import remove
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import DELETED_STATES, Note, Pod, open_pod


def start_remover(pod: Pod, local_config: str, note: Note, *, debug: bool, start: int | None = None) -> int:
    """
    Start the process that removes a pod at its end, and return its number; `note` gets what goes wrong there.

    It does not begin before the end of file on `start`, if that is given.
    """
    data, uuid = pod.data, pod.uuid

    def run() -> None:
        if start is not None:
            os.read(start, 1)
        _remove_at_end(data, uuid, local_config, note, debug=debug)

    return fork(END_REMOVER, run, {"start": start})


def _remove_at_end(data: Path, uuid: str, local_config: str, note: Note, *, debug: bool) -> None:
    # Whoever ends a pod with all that belongs to it, as service managers do, ends this process with the pod.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with Store(data) as store, Stage1Cleanup(TreeStore(data, store), local_config, debug=debug) as cleanup:
        try:
            with open_pod(data, uuid) as pod:
                # Shared: nobody who looks meanwhile takes the pod for a running one.
                flock(pod.fd, exclusive=False)
                if pod.refresh() and pod.state not in DELETED_STATES:
                    remove(pod, cleanup, note)
        except (OSError, MinitError) as error:
            if _is_there(data, uuid):
                note(f'pod "{uuid}" not removed: {describe(error)}')


def _is_there(data: Path, uuid: str) -> bool:
    try:
        with open_pod(data, uuid) as pod:
            return pod.state not in DELETED_STATES
    except MinitError:
        return False
