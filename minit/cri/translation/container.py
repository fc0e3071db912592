"""A ContainerConfig as the request for an app: mounts, devices (by path or CDI name) and the security context."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from minit.base.errors import ManifestError
from minit.base.idrange import IdRange
from minit.base.jsontext import dump
from minit.base.value import replace
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import app_name
from minit.cri.refusal import refuse
from minit.cri.translation.sandbox import check_users, is_mapped, limit_annotation, limit_isolators
from minit.manifest.annotations import Annotation
from minit.manifest.app import MAX_ID, Isolator
from minit.manifest.capabilities import ALL_CAPABILITIES, NAMES, capability_isolators
from minit.manifest.names import is_variable_name
from minit.manifest.pod import Mount, Volume
from minit.manifest.seccomp import WORD_CAPABILITIES, WORD_GUARDED, WORD_UNCONFINED
from minit.plan.rights.users import PRIMARY, SUPPLEMENTARY
from minit.plan.root.devicevolumes import DEVICE_ACCESS
from minit.plan.root.mountdetails import MOUNT_OPTIONS, PRIVATE, SHARED, SLAVE
from minit.pods.requests import AppRequest
from minit.stage0.devices import HostMount, find_edits, nodes_of
from minit.stage0.pods.appsection import PROFILE_FILE, AppOverrides, Device, Pairs

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

_LOCAL = "localhost/"
_NO_PROFILE = ("", "runtime/default", "unconfined")
# Of the field that kubelets up to 1.24 fill.
_DEFAULT_PATHS = ("docker/default", "runtime/default")

_ANNOTATIONS = "cdi.k8s.io/"
_CDI_PROPAGATIONS = {
    "private": api.PROPAGATION_PRIVATE,
    "slave": api.PROPAGATION_HOST_TO_CONTAINER,
    "shared": api.PROPAGATION_BIDIRECTIONAL,
}


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
        ignores_healthcheck=True,
        # By text, as with other runtimes: the directory before a .. need not exist.
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
    """Return stage1's facts about a mount beside the place."""
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


def check_pids(options: api.NamespaceOption, sandbox: api.NamespaceOption) -> None:
    """Raise CallError for a container that would see processes outside the sandbox."""
    is_host = sandbox.pid == api.NODE
    refuse(options.pid == api.NODE and not is_host, "namespace_options.pid", "another one, or NODE for the sandbox too")
    # Those of the sandbox are the host's then.
    refuse(is_host and options.pid not in (api.NODE, api.POD), "namespace_options.pid", "NODE, as the sandbox has it")


def secured(
    overrides: AppOverrides,
    security: api.LinuxContainerSecurityContext,
    target: str | None = None,
    *,
    image_has_group: bool = False,
) -> AppOverrides:
    """
    Return settings with users, capabilities and confinement; CallError if minit has not all of them.

    `target` is the app whose processes a container with namespace_options.pid of TARGET sees. `image_has_group` tells
    that the image names a group beside its user.
    """
    pids = security.namespace_options.pid
    refuse(pids == api.TARGET and target is None, "namespace_options.target_id", "a container of the sandbox")
    has_user = security.HasField("run_as_user") or bool(security.run_as_username)
    has_group = security.HasField("run_as_group")
    refuse(has_group and not has_user, "run_as_group", "a user with it")
    has_two = security.HasField("run_as_user") and bool(security.run_as_username)
    refuse(has_two, "run_as_username", "none with run_as_user")
    for gid in security.supplemental_groups:
        refuse(not 0 <= gid <= MAX_ID, "supplemental_groups", f"numbers from 0 to {MAX_ID}")
    paths = {"masked": list(security.masked_paths), "readOnly": list(security.readonly_paths)}
    annotations: dict[str, str] = {
        Annotation.PROTECTED_PATHS: dump(paths).decode(),
        Annotation.NO_NEW_PRIVILEGES: "true" if security.no_new_privs else "false",
    }
    if pids in (api.CONTAINER, api.TARGET):
        annotations[Annotation.PID_NAMESPACE] = f"app:{target}" if pids == api.TARGET else "app"
    groups = [] if (has_group if has_user else image_has_group) else [PRIMARY]
    groups += [SUPPLEMENTARY] if security.supplemental_groups_policy == api.Merge else []
    annotations |= {Annotation.IMAGE_GROUPS: ",".join(groups)} if groups else {}
    annotations |= _apparmor(security)
    user = str(security.run_as_user.value) if security.HasField("run_as_user") else security.run_as_username or None
    group = str(security.run_as_group.value) if has_group else "0" if security.HasField("run_as_user") else None
    settings = replace(
        overrides,
        user=user,
        group=group,
        supplementary_gids=tuple(security.supplemental_groups) or None,
        read_only_root_fs=security.readonly_rootfs,
    )
    if security.privileged:
        annotations[Annotation.PRIVILEGED] = "true"
        return replace(settings, annotations=(*overrides.annotations, *annotations.items()))
    return replace(
        settings,
        annotations=(*overrides.annotations, *annotations.items()),
        seccomp=_seccomp(security),
        isolators=(*overrides.isolators, *_capabilities(security.capabilities)),
    )


def _seccomp(security: api.LinuxContainerSecurityContext) -> str:
    """Return the filter of system calls: without a profile of either field there is no list, as elsewhere."""
    if not security.HasField("seccomp") and not security.seccomp_profile_path:
        return WORD_GUARDED
    kind, reference = api.SecurityProfile.Unconfined, ""
    if security.HasField("seccomp"):
        kind, reference = security.seccomp.profile_type, security.seccomp.localhost_ref
    elif security.seccomp_profile_path in _DEFAULT_PATHS:
        kind = api.SecurityProfile.RuntimeDefault
    elif security.seccomp_profile_path != "unconfined":
        kind, reference = api.SecurityProfile.Localhost, security.seccomp_profile_path.removeprefix(_LOCAL)
        refuse(not security.seccomp_profile_path.startswith(_LOCAL), "seccomp_profile_path", f"a word, or {_LOCAL}PATH")
    if kind == api.SecurityProfile.Localhost:
        # Old kubelets have the prefix in the new field, too.
        reference = reference.removeprefix(_LOCAL)
        refuse(not reference.startswith("/"), "seccomp: the path of a profile", "an absolute one")
        return f"{PROFILE_FILE}{reference}"
    return WORD_CAPABILITIES if kind == api.SecurityProfile.RuntimeDefault else WORD_UNCONFINED


def _apparmor(security: api.LinuxContainerSecurityContext) -> dict[str, str]:
    name = security.apparmor_profile
    if security.HasField("apparmor"):
        is_local = security.apparmor.profile_type == api.SecurityProfile.Localhost
        name = f"{_LOCAL}{security.apparmor.localhost_ref.removeprefix(_LOCAL)}" if is_local else ""
    is_local = name.startswith(_LOCAL)
    refuse(
        name not in _NO_PROFILE and not is_local, "apparmor_profile", "runtime/default, unconfined or localhost/NAME"
    )
    return {Annotation.APPARMOR_PROFILE: name.removeprefix(_LOCAL)} if is_local else {}


def _capabilities(asked: api.Capability) -> tuple[Isolator, ...]:
    refuse(bool(asked.add_ambient_capabilities), "capabilities.add_ambient_capabilities", "none")
    add = {_capability(name) for name in asked.add_capabilities}
    drop = {_capability(name) for name in asked.drop_capabilities}
    unknown = sorted((add | drop) - {*NAMES, ALL_CAPABILITIES})
    refuse(bool(unknown), "capabilities", f"names of capabilities, not {', '.join(unknown)}")
    return capability_isolators(add, drop)


def _capability(name: str) -> str:
    return f"CAP_{name.upper().removeprefix('CAP_')}"


def with_cdi_devices(asked: api.ContainerConfig, directories: Sequence[Path]) -> api.ContainerConfig:
    """
    Return a container with what the files in `directories` say of the CDI devices that it asks for.

    Those in a later directory count more. CallError if there is no such device, or it takes what minit has not.
    """
    config = api.ContainerConfig()
    config.CopyFrom(asked)
    names = [device.name for device in asked.CDI_devices]
    for key, value in asked.annotations.items():
        names += value.split(",") if key.startswith(_ANNOTATIONS) else []
    try:
        edits = find_edits([*dict.fromkeys(names)], directories)
    except ManifestError as error:
        raise CallError(Code.INVALID_ARGUMENT, str(error)) from error
    config.envs.extend(api.KeyValue(key=name, value=os.fsencode(value)) for name, value in edits.environment)
    config.devices.extend(map(_message, edits.devices))
    config.mounts.extend(map(_device_mount, edits.mounts))
    config.linux.security_context.supplemental_groups.extend(edits.gids)
    return config


def with_devices(asked: api.ContainerConfig) -> api.ContainerConfig:
    """
    Return a container with the nodes that its devices stand for now: links are followed, a directory is all below it.

    CallError if one is not there, or is neither.
    """
    config = api.ContainerConfig()
    config.CopyFrom(asked)
    found: list[api.Device] = []
    for number, one in enumerate(config.devices):
        target = one.container_path or one.host_path
        try:
            nodes = nodes_of(Device(source=one.host_path, target=target, access=one.permissions))
            found += map(_message, nodes)
        except OSError as error:
            message = f"devices[{number}].host_path: {one.host_path}: {error.strerror}"
            raise CallError(Code.INVALID_ARGUMENT, message) from error
    del config.devices[:]
    config.devices.extend(found)
    return config


def _message(device: Device) -> api.Device:
    return api.Device(host_path=device.source, container_path=device.target, permissions=device.access)


def _device_mount(mount: HostMount) -> api.Mount:
    return api.Mount(
        host_path=mount.source,
        container_path=mount.target,
        readonly=mount.read_only,
        recursive_read_only=mount.recursive_read_only,
        propagation=_CDI_PROPAGATIONS[mount.propagation],
        mount_options=mount.options,
    )
