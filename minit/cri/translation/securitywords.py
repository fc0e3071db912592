"""The words of `app add` for a LinuxContainerSecurityContext."""

from __future__ import annotations

from minit.base.jsontext import dump
from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse
from minit.manifest.annotations import Annotation
from minit.manifest.capabilities import DEFAULT, NAMES, capability_names
from minit.plan.rights.users import PRIMARY, SUPPLEMENTARY

_ALL = "CAP_ALL"
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


def security_words(
    security: api.LinuxContainerSecurityContext, target: str | None = None, *, image_has_group: bool = False
) -> list[str]:
    """
    Return the words for users, capabilities and confinement; CallError if minit has not all of them.

    `target` is the app whose processes a container with namespace_options.pid of TARGET sees. `image_has_group` tells
    that the image names a group beside its user.
    """
    pids = security.namespace_options.pid
    refuse(pids == api.TARGET and target is None, "namespace_options.target_id", "a container of the sandbox")
    only_group = security.HasField("run_as_group") and not (
        security.HasField("run_as_user") or security.run_as_username
    )
    refuse(only_group, "run_as_group", "a user with it")
    has_two = security.HasField("run_as_user") and bool(security.run_as_username)
    refuse(has_two, "run_as_username", "none with run_as_user")
    paths = dump({"masked": list(security.masked_paths), "readOnly": list(security.readonly_paths)}).decode()
    words = [f"--annotation={Annotation.PROTECTED_PATHS}={paths}"]
    words += [f"--annotation={Annotation.NO_NEW_PRIVILEGES}={'true' if security.no_new_privs else 'false'}"]
    if pids in (api.CONTAINER, api.TARGET):
        words.append(f"--annotation={Annotation.PID_NAMESPACE}=app{f':{target}' if pids == api.TARGET else ''}")
    if security.HasField("run_as_user"):
        words.append(f"--user={security.run_as_user.value}")
        group = security.run_as_group.value if security.HasField("run_as_group") else 0
        words.append(f"--group={group}")
    elif security.run_as_username:
        words.append(f"--user={security.run_as_username}")
        if security.HasField("run_as_group"):
            words.append(f"--group={security.run_as_group.value}")
    has_user = security.HasField("run_as_user") or bool(security.run_as_username)
    has_group = security.HasField("run_as_group") if has_user else image_has_group
    groups = [] if has_group else [PRIMARY]
    groups += [SUPPLEMENTARY] if security.supplemental_groups_policy == api.Merge else []
    words += [f"--annotation={Annotation.IMAGE_GROUPS}={','.join(groups)}"] if groups else []
    if security.supplemental_groups:
        words.append("--supplementary-gids=" + ",".join(map(str, security.supplemental_groups)))
    words += _apparmor_words(security)
    words += ["--readonly-rootfs"] if security.readonly_rootfs else []
    if security.privileged:
        return [*words, f"--annotation={Annotation.PRIVILEGED}=true"]
    return [*words, _seccomp_word(security), *_capability_words(security.capabilities)]


def _seccomp_word(security: api.LinuxContainerSecurityContext) -> str:
    """Return the word for the system calls: without a profile of either field there is no list, as elsewhere."""
    if not security.HasField("seccomp") and not security.seccomp_profile_path:
        return "--seccomp=guarded"
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
        return f"--seccomp=profile={reference}"
    return f"--seccomp={'by-capabilities' if kind == api.SecurityProfile.RuntimeDefault else 'unconfined'}"


def _apparmor_words(security: api.LinuxContainerSecurityContext) -> list[str]:
    name = security.apparmor_profile
    if security.HasField("apparmor"):
        is_local = security.apparmor.profile_type == api.SecurityProfile.Localhost
        name = f"{_LOCAL}{security.apparmor.localhost_ref.removeprefix(_LOCAL)}" if is_local else ""
    is_local = name.startswith(_LOCAL)
    refuse(
        name not in _NO_PROFILE and not is_local, "apparmor_profile", "runtime/default, unconfined or localhost/NAME"
    )
    return [f"--annotation={Annotation.APPARMOR_PROFILE}={name.removeprefix(_LOCAL)}"] if is_local else []


def _capability_words(asked: api.Capability) -> list[str]:
    refuse(bool(asked.add_ambient_capabilities), "capabilities.add_ambient_capabilities", "none")
    add = {_capability(name) for name in asked.add_capabilities}
    drop = {_capability(name) for name in asked.drop_capabilities}
    if not add and not drop:
        return []
    # With ALL in both lists other runtimes keep but those that are added by their names.
    kept = set() if _ALL in drop else set(NAMES) if _ALL in add else set(capability_names(DEFAULT))
    unknown = sorted((add | drop) - {*NAMES, _ALL})
    refuse(bool(unknown), "capabilities", f"names of capabilities, not {', '.join(unknown)}")
    kept = (kept | add) - drop - {_ALL}
    if not kept:  # an empty set is none on a command line
        return [f"--caps-remove={','.join(capability_names(DEFAULT))}"]
    return [f"--caps-retain={','.join(sorted(kept))}"]


def _capability(name: str) -> str:
    return f"CAP_{name.upper().removeprefix('CAP_')}"
