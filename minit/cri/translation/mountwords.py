"""The words of `app add` for mounts and devices."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import quote

from minit.base.idrange import IdRange
from minit.base.jsontext import dump
from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse
from minit.cri.translation.userwords import is_mapped
from minit.manifest.annotations import Annotation
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
    return [_word("shared-memory", "host", _SHARED_MEMORY, _SHARED_MEMORY, read_only=False)]


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
        refuse(target == "/", f"mounts[{number}].container_path", "a path below /")
        details[target] = _mount_detail(f"mounts[{number}]", mount, privileged=privileged)
        mapped.pop(target, None)
        if is_mapped(f"mounts[{number}]", mount, ids):
            mapped[target] = f"mount{number}"
        if mount.HasField("image"):
            words[target] = _word(f"mount{number}", "image", mount.image.image, target, read_only=True)
        else:
            words[target] = _word(f"mount{number}", "host", mount.host_path, target, read_only=mount.readonly)
    for number, device in enumerate(devices):
        access = "".join(sorted({*device.permissions}))
        refuse(not access or not {*access} <= {*DEVICE_ACCESS}, f"devices[{number}].permissions", "letters of rwm")
        target = posixpath.normpath(f"/./{device.container_path or device.host_path}")
        details[target] = {"deviceAccess": access}
        mapped.pop(target, None)
        words[target] = _word(
            f"device{number}", "host", device.host_path, target, read_only="w" not in device.permissions
        )
    annotations = [f"--annotation={Annotation.IDMAP}={','.join(mapped.values())}"] if mapped else []
    return [
        *words.values(),
        *annotations,
        *([f"--annotation={Annotation.MOUNTS}={dump(details).decode()}"] if details else []),
    ]


def _word(name: str, kind: str, source: str, target: str, *, read_only: bool) -> str:
    fields = {"name": name, "kind": kind, "source": source, "target": target}
    fields |= {"readOnly": "true" if read_only else "false"}
    return "--mnt-volume=" + ",".join(f"{name}={quote(value, safe='/')}" for name, value in fields.items())


def _mount_detail(place: str, mount: api.Mount, *, privileged: bool) -> dict[str, object]:
    """Return what stage1 is to know of a mount beside its place."""
    is_image = mount.HasField("image")
    sub_path = mount.image_sub_path
    refuse(is_image and bool(mount.host_path), f"{place}.host_path", "none with an image")
    is_path = mount.host_path.startswith("/") and "\0" not in mount.host_path
    refuse(not is_image and not is_path, f"{place}.host_path", "an absolute path")
    refuse(bool(sub_path) and not is_image, f"{place}.image_sub_path", "an image with it")
    is_inner = not sub_path.startswith("/") and ".." not in sub_path.split("/")
    refuse(not is_inner, f"{place}.image_sub_path", "a relative path without ..")
    refuse(mount.propagation not in _PROPAGATIONS, f"{place}.propagation", "one of those that the interface has")
    refuse(is_image and mount.propagation != api.PROPAGATION_PRIVATE, f"{place}.propagation", "PROPAGATION_PRIVATE")
    is_shared = mount.propagation == api.PROPAGATION_BIDIRECTIONAL
    refuse(is_shared and not privileged, f"{place}.propagation", "another one in a container that is not privileged")
    if mount.recursive_read_only:
        refuse(not mount.readonly, f"{place}.recursive_read_only", "readonly with it")
        refuse(mount.propagation != api.PROPAGATION_PRIVATE, f"{place}.recursive_read_only", "PROPAGATION_PRIVATE")
    others = sorted({*mount.mount_options} - {*MOUNT_OPTIONS})
    refuse(bool(others), f"{place}.mount_options", f"{', '.join(MOUNT_OPTIONS)}, not {', '.join(others)}")
    detail: dict[str, object] = {"propagation": _PROPAGATIONS[mount.propagation]}
    detail |= {"subPath": sub_path} if sub_path else {}
    detail |= {"recursiveReadOnly": mount.recursive_read_only} if mount.readonly and not is_image else {}
    return detail | ({"options": sorted({*mount.mount_options})} if mount.mount_options else {})
