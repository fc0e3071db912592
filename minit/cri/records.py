"""
The requests for sandboxes and containers, kept before the daemon makes anything.

A sandbox has a directory named by the (name, namespace, uid, attempt); the containers are in the directory:

    cri/KEY/request          RunPodSandboxRequest, as it came
    cri/KEY/uuid             the pod's UUID, from when its directory exists
    cri/KEY/made             empty, since the pod was ready
    cri/KEY/ID/request       CreateContainerRequest, as it came
    cri/KEY/ID/made          empty, since the app was added
    cri/KEY/ID/resources     LinuxContainerResources, since they were changed

A record that is not `made` was cut short: the daemon undoes the record at the start. A command that makes something
holds the lock of the sandbox's directory, flock(2): the command may outlive the daemon, and is waited for before.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.cri.api.cri_pb2 import (
    CreateContainerRequest,
    LinuxContainerResources,
    PodSandboxMetadata,
    RunPodSandboxRequest,
)
from minit.podfiles.paths import CRI_RECORDS
from minit.stage0.files.durable import create_file, make_directory, move_into_place, sync_directory
from minit.stage0.files.locks import directory_lock

_REQUEST = "request"
_UUID = "uuid"
_MADE = "made"
_RESOURCES = "resources"
_MODE = 0o600  # environments and annotations may hold secrets


def sandbox_key(metadata: PodSandboxMetadata) -> str:
    """Return the name of a sandbox's record, from fields that no two sandboxes have in common."""
    words = (metadata.name, metadata.namespace, metadata.uid, str(metadata.attempt))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


class Record:
    """The record of a sandbox or of a container, in an own directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def made_ns(self) -> int | None:
        """The time at which it was made, a sandbox ready, nanoseconds since 1970; None if it never was."""
        try:
            return (self.path / _MADE).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def mark_made(self) -> None:
        """Note that the container is made, or the sandbox ready."""
        # Empty, so that the entry is the whole record.
        (self.path / _MADE).touch(_MODE, exist_ok=False)
        sync_directory(self.path)

    def remove(self) -> None:
        """Forget the record, a sandbox's with all containers; no error if forgotten already."""
        # Without the request the record is void, whatever files are left.
        (self.path / _REQUEST).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


class SandboxRecord(Record):
    """The record of one sandbox."""

    @property
    def uuid_file(self) -> Path:
        """The file with the pod's UUID."""
        return self.path / _UUID

    @property
    def uuid(self) -> str | None:
        """The pod's UUID, None if there is no pod yet."""
        try:
            return self.uuid_file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None

    @contextmanager
    def held(self) -> Iterator[int]:
        """
        Hold the record for the length of a with block; yields a descriptor that holds the record too.

        A command that inherits it holds the record until it ends, be its daemon killed before.
        """
        with directory_lock(self.path, exclusive=False) as held:
            yield held

    def wait_until_free(self) -> None:
        """Return when nothing holds the record; blocks."""
        with directory_lock(self.path, exclusive=True):
            pass

    def read(self) -> RunPodSandboxRequest:
        """Return the request."""
        return RunPodSandboxRequest.FromString((self.path / _REQUEST).read_bytes())

    def keep_container(self, container_id: str, request: CreateContainerRequest) -> ContainerRecord:
        """Keep the request for a new container."""
        return ContainerRecord(_keep(self.path / container_id, request.SerializeToString()))

    def containers(self) -> Iterator[ContainerRecord]:
        """Yield the records of the sandbox's containers."""
        for path in sorted(self.path.iterdir()):
            if path.is_dir() and (path / _REQUEST).exists():
                yield ContainerRecord(path)


class ContainerRecord(Record):
    """The record of one container."""

    @property
    def id(self) -> str:
        """The container's id."""
        return self.path.name

    def read(self) -> CreateContainerRequest:
        """Return the request."""
        return CreateContainerRequest.FromString((self.path / _REQUEST).read_bytes())

    def read_resources(self) -> LinuxContainerResources | None:
        """Return the limits that replaced the request's, None for limits never changed."""
        try:
            return LinuxContainerResources.FromString((self.path / _RESOURCES).read_bytes())
        except FileNotFoundError:
            return None

    @contextmanager
    def changing_resources(self, resources: LinuxContainerResources) -> Iterator[None]:
        """Keep other limits at the end of a with block that sets the limits; space on the disk is reserved before."""
        new = self.path / f"{_RESOURCES}.new"
        new.unlink(missing_ok=True)
        create_file(new, resources.SerializeToString(), _MODE)
        try:
            yield
            move_into_place(new, self.path / _RESOURCES)
        finally:
            new.unlink(missing_ok=True)


class Records:
    """All records of a data directory."""

    def __init__(self, data: Path) -> None:
        self.directory = data / CRI_RECORDS
        make_directory(self.directory, 0o700)

    def keep(self, request: RunPodSandboxRequest) -> SandboxRecord:
        """Keep the request for a new sandbox."""
        path = self.directory / sandbox_key(request.config.metadata)
        return SandboxRecord(_keep(path, request.SerializeToString()))

    def all(self) -> Iterator[SandboxRecord]:
        """Yield the records of all sandboxes; records without a request are removed."""
        for path in sorted(self.directory.iterdir()):
            if (path / _REQUEST).exists():
                yield SandboxRecord(path)
            else:
                Record(path).remove()


def _keep(path: Path, request: bytes) -> Path:
    make_directory(path, 0o700)
    sync_directory(path.parent)
    new = path / f"{_REQUEST}.new"
    new.unlink(missing_ok=True)
    create_file(new, request, _MODE)
    move_into_place(new, path / _REQUEST)
    return path
