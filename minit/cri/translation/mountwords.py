"""The words of `app add` for mounts and devices."""

from __future__ import annotations

import posixpath
from urllib.parse import quote

from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse


def mount_word(number: int, mount: api.Mount) -> str:
    """Return the word for a mount, which is the numbered one of its container; CallError if it cannot be made."""
    place = f"mounts[{number}]"
    refuse(mount.propagation != api.PROPAGATION_PRIVATE, f"{place}.propagation", "PROPAGATION_PRIVATE")
    refuse(mount.HasField("image"), f"{place}.image", "a path of the host")
    refuse(bool(mount.uidMappings or mount.gidMappings), f"{place}.uidMappings", "none")
    target = posixpath.normpath(f"/./{mount.container_path}")
    fields = {"name": f"mount{number}", "kind": "host", "source": mount.host_path, "target": target}
    fields |= {"readOnly": "true"} if mount.readonly else {"readOnly": "false"}
    return "--mnt-volume=" + ",".join(f"{name}={quote(value, safe='/')}" for name, value in fields.items())


def device_word(number: int, device: api.Device) -> str:
    """Return the word for a device, which is the numbered one of its container; CallError if it cannot be made."""
    refuse("m" in device.permissions, f"devices[{number}].permissions", "r and w")
    fields = {"name": f"device{number}", "kind": "host", "source": device.host_path}
    fields |= {"target": device.container_path or device.host_path}
    fields |= {"readOnly": "false" if "w" in device.permissions else "true"}
    return "--mnt-volume=" + ",".join(f"{name}={quote(value, safe='/')}" for name, value in fields.items())
