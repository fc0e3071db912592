"""
The names of pods on the same networks, in hosts files that are kept up to date, without a daemon; and resolv.conf(5).

Each pod has a record and a hosts file in a directory of the host that no pod sees. The hosts file is mounted read-only
in the pod's apps; every start and end of a pod rewrites it in place. So nobody reaches into another pod. Each change
holds a single lock and starts from the records alone: the next change corrects an interrupted one, and removes the
records of pods that have ended without notice.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

from minit.base import jsontext
from minit.base.errors import LaunchError, ManifestError, NetworkError, describe
from minit.base.value import replace
from minit.network.protocol import Dns
from minit.plan.networks.hostsfile import NamedPod, decode_pod, encode_pod, hosts_files
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.podfile import file_lock, is_locked
from minit.podfiles.usersdirectory import hosts_of_pod, pod_names

_LOCK = ".lock"
_RECORD = ".json"
_NAME_FILE = "minit-name"  # in the pod directory: the name that the user gave, which is stage0's
_MAX_BYTES = 4 << 20
_MAX_NAME_BYTES = 80

_MAX_RESOLV_CONF_BYTES = 1 << 16


def reserve(pod: NamedPod) -> None:
    """Make record and hosts file of a pod before its networks; NetworkError if either cannot be made."""
    with _failure(), _locked():
        _write_record(replace(pod, names=(*_name_of_pod(), *pod.names)))
        if pod.base is not None:
            _write_in_place(hosts_of_pod(pod.uuid), pod.base.encode(errors="surrogateescape"))


def publish(uuid: str, addresses: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Tell the pods on the same networks a pod's address, and the pod theirs; NetworkError for a failed write."""
    with _failure(), _locked():
        pods = _read_records()
        if uuid in pods:
            pods[uuid] = replace(pods[uuid], addresses=tuple(addresses))
            _write_record(pods[uuid])
            _refresh(pods)


def change_apps(uuid: str, *, added: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> None:
    """Tell other pods about apps that come to a pod or leave it; NetworkError for a failed write."""
    if not os.path.lexists(_record_of(uuid)):
        return
    with _failure(), _locked():
        pods = _read_records()
        if uuid in pods:
            apps = (*(app for app in pods[uuid].apps if app not in (*added, *removed)), *added)
            pods[uuid] = replace(pods[uuid], apps=apps)
            _write_record(pods[uuid])
            _refresh(pods)


def withdraw(uuid: str) -> None:
    """Have other pods forget a pod that has ended; nothing if the pod has no name any more. NetworkError as above."""
    if not any(map(os.path.lexists, _files_of(uuid))):
        return
    with _failure(), _locked():
        _remove(uuid)
        _refresh(_read_records())


def _refresh(pods: dict[str, NamedPod]) -> None:
    for uuid, pod in list(pods.items()):
        if _has_ended(pod):
            _remove(uuid)
            del pods[uuid]
    for uuid, text in hosts_files(pods.values()).items():
        _write_in_place(hosts_of_pod(uuid), text)


def _has_ended(pod: NamedPod) -> bool:
    try:
        return not is_locked(pod.directory)
    except OSError:
        return False  # moved by gc, which is about to withdraw it, or out of sight in another mount namespace


def _read_records() -> dict[str, NamedPod]:
    pods = {}
    for name in os.listdir(pod_names()):
        if not name.endswith(_RECORD) or name.startswith("."):
            continue
        path = f"{pod_names()}/{name}"
        try:
            fields = jsontext.parse(read_bounded(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, _MAX_BYTES), path)
            if isinstance(fields, dict):
                pod = decode_pod(fields)
                pods[pod.uuid] = pod
        except (FileNotFoundError, ManifestError, LaunchError, TypeError, KeyError, ValueError):
            continue  # not one of this version: a pod without names
    return pods


def _name_of_pod() -> tuple[str, ...]:
    try:
        fd = os.open(_NAME_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return (os.read(fd, _MAX_NAME_BYTES).decode("ascii", "replace").rstrip("\n"),)
    finally:
        os.close(fd)


def _record_of(uuid: str) -> str:
    return f"{pod_names()}/{uuid}{_RECORD}"


def _new_of(uuid: str) -> str:
    return f"{pod_names()}/.{uuid}.new"


def _files_of(uuid: str) -> tuple[str, ...]:
    # The record last: other pods go by the record.
    return hosts_of_pod(uuid), _new_of(uuid), _record_of(uuid)


def _write_record(pod: NamedPod) -> None:
    new = _new_of(pod.uuid)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(jsontext.dump(encode_pod(pod)))
    os.rename(new, _record_of(pod.uuid))


def _write_in_place(path: str, data: bytes) -> None:
    """
    Write a file that is mounted in apps; a new file in its place would not be mounted.

    A reader never meets half a line: a shorter text is first filled up with line feeds.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        filled = data.ljust(os.fstat(fd).st_size, b"\n")
        done = 0
        while done < len(filled):
            done += os.pwrite(fd, filled[done:], done)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _remove(uuid: str) -> None:
    for path in _files_of(uuid):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    os.makedirs(pod_names(), 0o755, exist_ok=True)
    with file_lock(f"{pod_names()}/{_LOCK}"):
        yield


@contextlib.contextmanager
def _failure() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NetworkError(f"cannot keep the names of pods: {describe(error)}") from error


def read_resolv_conf(path: str) -> Dns:
    """Return the settings in the host's resolv.conf(5) at `path`, for pods that resolve names as the host does."""
    try:
        text = _read(path)
    except OSError as error:
        raise NetworkError(f"resolvConf: {describe(error)}") from error
    return parse_resolv_conf(text)


def parse_resolv_conf(text: str) -> Dns:
    """Return the settings in a resolv.conf: all name servers, search domains and options, and the last domain."""
    found: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    for line in text.splitlines():
        keyword, *values = line.split() or [""]
        # The first word of a comment is not a keyword.
        if values and keyword in found:
            found[keyword] += values if keyword in ("search", "options") else values[:1]
    return Dns(
        nameservers=tuple(found["nameserver"]),
        domain=found["domain"][-1] if found["domain"] else "",
        search=tuple(found["search"]),
        options=tuple(found["options"]),
    )


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NetworkError(f"resolvConf: {path} is not a regular file")
        return os.read(fd, _MAX_RESOLV_CONF_BYTES).decode(errors="replace")
    finally:
        os.close(fd)
