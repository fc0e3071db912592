"""A LinuxContainerSecurityContext as settings of an app."""

from __future__ import annotations

from minit.base.jsontext import dump
from minit.base.value import replace
from minit.cri.api import cri_pb2 as api
from minit.cri.refusal import refuse
from minit.kubernetes.security import ALL_CAPABILITIES, capability_isolators
from minit.manifest.annotations import Annotation
from minit.manifest.app import MAX_ID, Isolator
from minit.manifest.capabilities import NAMES
from minit.manifest.seccomp import WORD_CAPABILITIES, WORD_GUARDED, WORD_UNCONFINED
from minit.plan.rights.users import PRIMARY, SUPPLEMENTARY
from minit.stage0.pods.appsection import PROFILE_FILE, AppOverrides

_LOCAL = "localhost/"
_NO_PROFILE = ("", "runtime/default", "unconfined")
# Of the field that kubelets up to 1.24 fill.
_DEFAULT_PATHS = ("docker/default", "runtime/default")


def check_pids(options: api.NamespaceOption, sandbox: api.NamespaceOption) -> None:
    """Raise CallError for a container that is to see other processes than there are in its sandbox."""
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
