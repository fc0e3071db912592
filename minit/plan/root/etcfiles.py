"""
The files of /etc for an app: the host name, a hosts file, the configuration of DNS.

Each app gets own copies, which only that app may change. Files of the host by --dns-conf-mode are mounts like volumes
instead (`volumes.host_files`).
"""

from __future__ import annotations

from collections.abc import Iterable

from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.switches import is_set
from minit.plan.root.volumes import VolumeMount
from minit.podfiles import paths

_LOOPBACK = b"127.0.0.1"


class AppFile(Value):
    """A file that is made for one app, which may change the file unless the root is read-only."""

    target: str
    """The path of the file, bound there after the volumes are mounted."""
    text: bytes
    if_missing: bool = False
    """Whether an existing file of the app stays."""
    yields: bool = False
    """Whether the file is left out if `target` is in a volume."""
    required: bool = False
    """Whether a volume without room for the file is an error, not a reason to do without the file."""

    def describe(self) -> str:
        """Return the file as a line for --debug."""
        unless = " unless there is one" if self.if_missing else " unless a volume is there" if self.yields else ""
        return f"file {self.target}, {len(self.text)} bytes{unless}"


class EtcTexts(Value):
    """Files for /etc from stage0 or the stage1 image; None for those that the pod does not ask for."""

    hosts: bytes | None = None
    resolv_conf: bytes | None = None


def text_sources(flags: RunFlags) -> tuple[str | None, str | None]:
    """Return where EtcTexts are read, the hosts file and the DNS configuration, relative to the pod directory."""
    hosts = {"default": paths.POD_HOSTS_FALLBACK, "stage0": paths.POD_HOSTS}
    return hosts.get(flags.hosts_mode), paths.POD_RESOLV_CONF if flags.resolv_mode == "stage0" else None


def plan_files(hostname: str, flags: RunFlags, texts: EtcTexts, *, has_own_hosts: bool = False) -> tuple[AppFile, ...]:
    """
    Return the files of an app, in the order of binding.

    With `has_own_hosts` a hosts file of the image does not replace the pod's.
    """
    files = [AppFile(target="/etc/hostname", text=_encode(hostname) + b"\n")]
    # In the mode "default" a network may add a configuration (`connection.connect`); else the image's own file stays.
    if texts.resolv_conf is not None:
        files.append(resolv_conf(texts.resolv_conf))
    if texts.hosts is not None:
        fallback = flags.hosts_mode == "default"
        files.append(
            AppFile(
                target="/etc/hosts",
                text=add_hostname(texts.hosts, _encode(hostname)),
                if_missing=fallback and not has_own_hosts,
                yields=fallback and has_own_hosts,
                required=not fallback,
            )
        )
    return tuple(files)


def plan_hidden_files(runtime: RuntimeApp, volumes: Iterable[VolumeMount]) -> tuple[str, ...]:
    """Return the paths of such files at which the app has volumes instead."""
    targets = {volume.target for volume in volumes} if is_set(runtime, Annotation.VOLUMES_OVER_FILES) else set()
    return tuple(target for target in paths.ETC_FILES if target in targets)


def _encode(hostname: str) -> bytes:
    return hostname.encode(errors="surrogateescape")


def resolv_conf(text: bytes, *, yields: bool = False) -> AppFile:
    """Return the configuration of DNS of an app; an unrequested one `yields`."""
    return AppFile(target="/etc/resolv.conf", text=text, required=not yields, yields=yields)


def add_hostname(hosts: bytes, hostname: bytes) -> bytes:
    """Return the text of a hosts file with a name appended to its first line for 127.0.0.1, or in a new line."""
    lines = hosts.split(b"\n")
    for index, line in enumerate(lines):
        if line.split()[:1] == [_LOOPBACK]:
            lines[index] = line + b" " + hostname
            return b"\n".join(lines)
    end = b"" if hosts.endswith(b"\n") or not hosts else b"\n"
    return hosts + end + _LOOPBACK + b"\t" + hostname + b"\n"
