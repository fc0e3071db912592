"""A ContainerConfig as the request for an app, with its mounts and devices."""

from __future__ import annotations

import posixpath

from minit.base.idrange import IdRange
from minit.base.jsontext import dump
from minit.base.value import replace
from minit.cri.api import cri_pb2 as api
from minit.cri.node import app_name
from minit.cri.refusal import refuse
from minit.cri.translation.resources import limit_annotation, limit_isolators
from minit.cri.translation.sandbox import check_users, is_mapped
from minit.cri.translation.security import secured
from minit.manifest.annotations import Annotation
from minit.manifest.names import is_variable_name
from minit.manifest.pod import Mount, Volume
from minit.plan.root.devicevolumes import DEVICE_ACCESS
from minit.plan.root.mountdetails import MOUNT_OPTIONS, PRIVATE, SHARED, SLAVE
from minit.pods.requests import AppRequest
from minit.stage0.pods.appsection import AppOverrides, Pairs

# What other runtimes do.
_HABITS = (
    Annotation.LATE_EXECUTABLE,
    Annotation.MAKE_WORKING_DIRECTORY,
    Annotation.PLAIN_ENVIRONMENT,
    Annotation.VOLUMES_OVER_FILES,
)
_PROPAGATIONS = {
    api.PROPAGATION_PRIVATE: PRIVATE,
    api.PROPAGATION_HOST_TO_CONTAINER: SLAVE,
    api.PROPAGATION_BIDIRECTIONAL: SHARED,
}
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - shm_overview(7)


def app_request(
    sandbox: api.PodSandboxConfig,
    config: api.ContainerConfig,
    image: str,
    target: str | None = None,
    ids: IdRange | None = None,
    *,
    image_has_group: bool = False,
) -> AppRequest:
    """
    Return the request for the app of a container; CallError if the container cannot be made.

    `target` is the app of the container that `target_id` names, None if there is none in the sandbox. `ids` are those
    of the sandbox, if it has users of its own. `image_has_group` tells that the image names a group beside its user.
    """
    context = config.linux.security_context
    check_users(context.namespace_options, ids)
    refuse(bool(config.working_dir) and not config.working_dir.startswith("/"), "working_dir", "an absolute path")
    mounts, of_mounts = _mounts(sandbox, config, ids)
    annotations: dict[str, str] = dict.fromkeys(_HABITS, "true")
    annotations |= of_mounts | limit_annotation(config.linux.resources)
    annotations |= _log_annotation(sandbox.log_directory, config.log_path)
    if config.stop_signal != api.SIGNAL_RUNTIME_DEFAULT:
        name = api.Signal.Name(config.stop_signal).removeprefix("SIGNAL_SIG")
        annotations[Annotation.STOP_SIGNAL] = name.replace("PLUS", "+").replace("MINUS", "-")
    mode = "tty" if config.tty else "stream"
    overrides = AppOverrides(
        name=app_name(config.metadata),
        # By its text, as with other runtimes: what is before a .. need not be there.
        working_directory=posixpath.normpath(f"/./{config.working_dir}") if config.working_dir else None,
        mounts=mounts,
        isolators=limit_isolators(config.linux.resources),
        annotations=tuple(annotations.items()),
        stdin=mode if config.stdin or config.tty else None,
        stdout=f"log+{mode}",
        stderr=f"log+{mode}",
    )
    overrides = secured(overrides, context, target, image_has_group=image_has_group)
    return AppRequest(reference=image, overrides=_with_command(overrides, config))


def environment(config: api.ContainerConfig, hostname: str = "") -> Pairs:
    """
    Return the variables of a container, of several of a name the last.

    A `hostname` is that of a variable HOSTNAME, as other runtimes have it, if nothing else sets that.
    """
    variables = {"HOSTNAME": hostname.encode()} if hostname else {}
    variables |= {one.key: one.value for one in config.envs}
    found: dict[str, str] = {}
    for name, value in variables.items():
        refuse(not is_variable_name(name), f"envs: {name}", "a name of printable ASCII without =")
        refuse(b"\0" in value, f"envs: {name}", "a value without a NUL")
        try:
            found[name] = value.decode()
        except UnicodeDecodeError:
            refuse(True, f"envs: {name}", "a value in UTF-8")
    return tuple(found.items())


def _with_command(overrides: AppOverrides, config: api.ContainerConfig) -> AppOverrides:
    """Return the settings with a command, which is for entrypoint and command of the image, or with arguments alone."""
    words = [*config.command, *config.args]
    if not words:
        return overrides
    refuse(not words[0], "command" if config.command else "args", "a program")
    program, command = (words[0], None) if config.command else (None, words[0])
    return replace(overrides, exec=program, command=command, arguments=tuple(words[1:]))


def _log_annotation(directory: str, path: str) -> dict[str, str]:
    """Return the place of the log below the sandbox's directory; CallError if the log would be elsewhere."""
    if not directory or not path:
        return {}
    path = posixpath.normpath(path)
    refuse(path.split("/")[0] in ("", ".", ".."), "log_path", "a path below log_directory")
    return {Annotation.LOG_PATH: path}


def _mounts(
    sandbox: api.PodSandboxConfig, config: api.ContainerConfig, ids: IdRange | None
) -> tuple[tuple[Mount, ...], dict[str, str]]:
    """Return mounts and devices in a sandbox with `ids` of its own, and annotations about them."""
    # Of several at one place the last one hides the others.
    mounts: dict[str, Mount] = {}
    details: dict[str, dict[str, object]] = {}
    mapped: dict[str, str] = {}
    for number, mount in enumerate(config.mounts):
        target = posixpath.normpath(f"/./{mount.container_path}")
        refuse(target == "/", f"mounts[{number}].container_path", "a path below /")
        privileged = config.linux.security_context.privileged
        details[target] = _mount_detail(f"mounts[{number}]", mount, privileged=privileged)
        mapped.pop(target, None)
        if is_mapped(f"mounts[{number}]", mount, ids):
            mapped[target] = f"mount{number}"
        if mount.HasField("image"):
            mounts[target] = _mount(f"mount{number}", "image", mount.image.image, target, read_only=True)
        else:
            mounts[target] = _mount(f"mount{number}", "host", mount.host_path, target, read_only=mount.readonly)
    for number, device in enumerate(config.devices):
        access = "".join(sorted({*device.permissions}))
        refuse(not access or not {*access} <= {*DEVICE_ACCESS}, f"devices[{number}].permissions", "letters of rwm")
        target = posixpath.normpath(f"/./{device.container_path or device.host_path}")
        refuse(not device.host_path.startswith("/"), f"devices[{number}].host_path", "an absolute path")
        details[target] = {"deviceAccess": access}
        mapped.pop(target, None)
        read_only = "w" not in device.permissions
        mounts[target] = _mount(f"device{number}", "host", device.host_path, target, read_only=read_only)
    annotations: dict[str, str] = {Annotation.IDMAP: ",".join(mapped.values())} if mapped else {}
    annotations |= {Annotation.MOUNTS: dump(details).decode()} if details else {}
    is_of_host = sandbox.linux.security_context.namespace_options.ipc == api.NODE
    if is_of_host and not any(posixpath.normpath(mount.container_path) == _SHARED_MEMORY for mount in config.mounts):
        # The host's shared memory goes with its IPC namespace.
        shared = _mount("shared-memory", "host", _SHARED_MEMORY, _SHARED_MEMORY, read_only=False)
        return (shared, *mounts.values()), annotations
    return tuple(mounts.values()), annotations


def _mount(name: str, kind: str, source: str, target: str, *, read_only: bool) -> Mount:
    return Mount(volume=name, path=target, app_volume=Volume(name=name, kind=kind, source=source, read_only=read_only))


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
