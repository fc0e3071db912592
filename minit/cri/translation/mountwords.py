"""The words of `app add` for mounts and devices."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import quote

from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse
from minit.cri.translation.userwords import is_mapped
from minit.idrange import IdRange
from minit.jsontext import dump
from minit.plan.root.devicevolumes import DEVICE_ACCESS
from minit.plan.root.mountdetails import MOUNT_OPTIONS, PRIVATE, SHARED, SLAVE

_PROPAGATIONS = {
    api.PROPAGATION_PRIVATE: PRIVATE,
    api.PROPAGATION_HOST_TO_CONTAINER: SLAVE,
    api.PROPAGATION_BIDIRECTIONAL: SHARED,
}

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shm_overview(7)


def shared_memory_words(sandbox: api.PodSandboxConfig, config: api.ContainerConfig) -> list[str]:
    """Return the words for the host's shared memory, which goes with its IPC namespace; a mount there stands for it."""
    is_mounted = any(posixpath.normpath(mount.container_path) == _SHARED_MEMORY for mount in config.mounts)
    if is_mounted or sandbox.linux.security_context.namespace_options.ipc != api.NODE:
        return []
    return [_word("shared-memory", _SHARED_MEMORY, _SHARED_MEMORY, read_only=False)]


def mount_words(
    mounts: Sequence[api.Mount], devices: Sequence[api.Device], ids: IdRange | None = None, *, privileged: bool
) -> list[str]:
    """Return the words for mounts and devices in a sandbox with `ids` of its own; CallError if one cannot be made."""
    # Of several at one place the last one hides the others.
    words: dict[str, str] = {}
    details: dict[str, dict[str, object]] = {}
    mapped: dict[str, str] = {}
    for number, mount in enumerate(mounts):
        target = posixpath.normpath(f"/./{mount.container_path}")
        details[target] = _mount_detail(f"mounts[{number}]", mount, privileged=privileged)
        mapped.pop(target, None)
        if is_mapped(f"mounts[{number}]", mount, ids):
            mapped[target] = f"mount{number}"
        words[target] = _word(f"mount{number}", mount.host_path, target, read_only=mount.readonly)
    for number, device in enumerate(devices):
        access = "".join(sorted({*device.permissions}))
        refuse(not access or not {*access} <= {*DEVICE_ACCESS}, f"devices[{number}].permissions", "letters of rwm")
        target = posixpath.normpath(f"/./{device.container_path or device.host_path}")
        details[target] = {"deviceAccess": access}
        mapped.pop(target, None)
        words[target] = _word(f"device{number}", device.host_path, target, read_only="w" not in device.permissions)
    annotations = [f"--annotation=minit/idmap={','.join(mapped.values())}"] if mapped else []
    return [
        *words.values(),
        *annotations,
        *([f"--annotation=minit/mounts={dump(details).decode()}"] if details else []),
    ]


def _word(name: str, source: str, target: str, *, read_only: bool) -> str:
    fields = {"name": name, "kind": "host", "source": source, "target": target}
    fields |= {"readOnly": "true" if read_only else "false"}
    return "--mnt-volume=" + ",".join(f"{name}={quote(value, safe='/')}" for name, value in fields.items())


def _mount_detail(place: str, mount: api.Mount, *, privileged: bool) -> dict[str, object]:
    """Return what stage1 is to know of a mount beside its place."""
    refuse(mount.HasField("image"), f"{place}.image", "a path of the host")
    refuse(mount.propagation not in _PROPAGATIONS, f"{place}.propagation", "one of those that the interface has")
    is_shared = mount.propagation == api.PROPAGATION_BIDIRECTIONAL
    refuse(is_shared and not privileged, f"{place}.propagation", "another one in a container that is not privileged")
    if mount.recursive_read_only:
        refuse(not mount.readonly, f"{place}.recursive_read_only", "readonly with it")
        refuse(mount.propagation != api.PROPAGATION_PRIVATE, f"{place}.recursive_read_only", "PROPAGATION_PRIVATE")
    others = sorted({*mount.mount_options} - {*MOUNT_OPTIONS})
    refuse(bool(others), f"{place}.mount_options", f"{', '.join(MOUNT_OPTIONS)}, not {', '.join(others)}")
    detail: dict[str, object] = {"propagation": _PROPAGATIONS[mount.propagation]}
    detail |= {"recursiveReadOnly": mount.recursive_read_only} if mount.readonly else {}
    return detail | ({"options": sorted({*mount.mount_options})} if mount.mount_options else {})
