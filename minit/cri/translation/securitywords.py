"""The words of `app add` for a LinuxContainerSecurityContext."""

from __future__ import annotations

from minit.cri.api import cri_pb2 as api
from minit.cri.translation.refusal import refuse
from minit.manifest.capabilities import DEFAULT, NAMES, capability_names

_ALL = "CAP_ALL"


def security_words(security: api.LinuxContainerSecurityContext, target: str | None = None) -> list[str]:
    """
    Return the words for users, capabilities and confinement; CallError if minit has not all of them.

    `target` is the app whose processes a container with namespace_options.pid of TARGET sees.
    """
    refuse(security.privileged, "security_context.privileged", "false")
    pids = security.namespace_options.pid
    refuse(pids == api.NODE, "namespace_options.pid", "POD, CONTAINER or TARGET")
    refuse(pids == api.TARGET and target is None, "namespace_options.target_id", "a container of the sandbox")
    for field, profile in (("seccomp", security.seccomp), ("apparmor", security.apparmor)):
        refuse(profile.profile_type == api.SecurityProfile.Localhost, field, "RuntimeDefault or Unconfined")
    is_root = security.run_as_user.value == 0 and not security.run_as_username
    # With users of their own apps have no way to new privileges anyway.
    refuse(security.no_new_privs and is_root, "no_new_privs", "false for root")
    only_group = security.HasField("run_as_group") and not (
        security.HasField("run_as_user") or security.run_as_username
    )
    refuse(only_group, "run_as_group", "a user with it")
    words = []
    if pids in (api.CONTAINER, api.TARGET):
        words.append(f"--annotation=minit/pid-namespace=app{f':{target}' if pids == api.TARGET else ''}")
    if security.HasField("run_as_user"):
        words.append(f"--user={security.run_as_user.value}")
        group = security.run_as_group.value if security.HasField("run_as_group") else 0
        words.append(f"--group={group}")
    elif security.run_as_username:
        words.append(f"--user={security.run_as_username}")
        if security.HasField("run_as_group"):
            words.append(f"--group={security.run_as_group.value}")
    if security.supplemental_groups:
        words.append("--supplementary-gids=" + ",".join(map(str, security.supplemental_groups)))
    words += ["--readonly-rootfs"] if security.readonly_rootfs else []
    return words + _capability_words(security.capabilities)


def _capability_words(asked: api.Capability) -> list[str]:
    refuse(bool(asked.add_ambient_capabilities), "capabilities.add_ambient_capabilities", "none")
    add = {_capability(name) for name in asked.add_capabilities}
    drop = {_capability(name) for name in asked.drop_capabilities}
    if not add and not drop:
        return []
    kept = set(NAMES) if _ALL in add else set() if _ALL in drop else set(capability_names(DEFAULT))
    unknown = sorted((add | drop) - {*NAMES, _ALL})
    refuse(bool(unknown), "capabilities", f"names of capabilities, not {', '.join(unknown)}")
    kept = (kept | add) - drop - {_ALL}
    return [f"--caps-retain={','.join(sorted(kept))}"]


def _capability(name: str) -> str:
    return f"CAP_{name.upper().removeprefix('CAP_')}"
