"""Removing named volumes: one that is chosen, or all that no pod has, running or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from minit.base.errors import MinitError, StoreError
from minit.stage0.garbage.references import no_pod_is_prepared, volume_users
from minit.stage0.pods.poddirectory import Note
from minit.stage0.volumes.volumestore import list_volumes, take_away, volume_scratch


def remove_volume(data: Path, name: str, note: Note) -> None:
    """Remove a volume with all its files; StoreError if there is none, or a pod has it."""
    with volume_scratch(data) as scratch, no_pod_is_prepared(data):
        users = volume_users(data, note).get(name)
        if users:
            raise StoreError(f'volume "{name}" is in use: remove these pods first: {", ".join(users)}')
        take_away(data, name, scratch)


def prune_volumes(data: Path, say: Note, note: Note, tell_failure: Callable[[MinitError], None]) -> None:
    """Remove all volumes that no pod has; `say` is told their names, a failure with one does not stop the others."""
    with volume_scratch(data) as scratch, no_pod_is_prepared(data):
        for name in unused_volumes(data, note):
            try:
                take_away(data, name, scratch)
            except MinitError as error:
                tell_failure(error)
            else:
                say(name)


def unused_volumes(data: Path, note: Note) -> list[str]:
    """Return the names of the volumes that no pod has."""
    users = volume_users(data, note)
    return [volume.name for volume in list_volumes(data) if volume.name not in users]
