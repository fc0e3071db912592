"""The securityContext of a pod and its containers: ids, capabilities and filters."""

from __future__ import annotations

from minit.base.value import Value
from minit.kubernetes.fields import INNER_FORM, Fields, Findings, is_inner, read_text
from minit.manifest.app import (
    MAX_ID,
    NO_NEW_PRIVILEGES,
    SECCOMP_RETAIN,
    Isolator,
)
from minit.manifest.capabilities import capability_isolators
from minit.manifest.reader import Node
from minit.manifest.seccomp import EVERY_CALL

# The sysctls that a cluster allows by default.
_SAFE_SYSCTLS = (
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies"),
    *("net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
    *("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
)
_LOCALHOST = "Localhost"
_LOCAL_PROFILE = "localhostProfile"
_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")


class Profile(Value):
    """What a file below the profiles' directory says of system calls, or that none is refused, without a `path`."""

    path: str | None = None


class PodSecurity(Value):
    """
    The defaults of all containers; `group` owns volumes, with `group_if_root_differs` unless it owns the top already.

    `profile` is None for the default profile.
    """

    user: int | None = None
    group_of_processes: int | None = None
    not_root: bool = False
    group: int | None = None
    group_if_root_differs: bool = False
    supplementary: tuple[int, ...] = ()
    profile: Profile | None = None
    apparmor: str | None = None
    sysctls: tuple[tuple[str, str], ...] = ()


class Security(Value):
    """
    The settings of one container; ids are None where the image decides.

    `profile` is the path of a profile of system calls, below the directory of profiles; None without one. `apparmor` is
    the name of a loaded profile of AppArmor.
    """

    user: int | None
    group: int | None
    read_only_root: bool
    isolators: tuple[Isolator, ...]
    privileged: bool = False
    profile: str | None = None
    apparmor: str | None = None


def read_pod_security(fields: Fields, *, has_selinux: bool) -> PodSecurity:
    """Read the securityContext of a pod; `has_selinux` tells of the kernel."""
    with fields:
        group = fields["fsGroup"].optional(_read_id)
        _read_selinux(fields, has_selinux=has_selinux)
        policy = fields["fsGroupChangePolicy"].optional(lambda node: node.one_of("Always", "OnRootMismatch"))
        fields.only("supplementalGroupsPolicy", "Merge")
        more = fields["supplementalGroups"].each(_read_id)
        return PodSecurity(
            user=fields["runAsUser"].optional(_read_id),
            group_of_processes=fields["runAsGroup"].optional(_read_id),
            not_root=fields["runAsNonRoot"].optional(Node.boolean) or False,
            group=group,
            group_if_root_differs=policy == "OnRootMismatch",
            supplementary=more if group is None else (group, *more),
            profile=_read_profile(fields, None),
            apparmor=_read_apparmor(fields, None),
            sysctls=fields.each("sysctls", _read_sysctl),
        )


def _read_sysctl(node: Node, findings: Findings) -> tuple[str, str]:
    with Fields(node, findings) as fields:
        name = fields["name"].non_empty().replace("/", ".")
        if name not in _SAFE_SYSCTLS:
            findings.refuse(fields["name"], f"{name} is not one of Kubernetes' safe set")
        return name, read_text(fields["value"])


def read_security(fields: Fields, pod: PodSecurity, *, has_selinux: bool) -> Security:
    """Read the securityContext of a container, which wins over the pod's; `has_selinux` is about the kernel."""
    with fields:
        user = fields["runAsUser"].optional(_read_id)
        user = pod.user if user is None else user
        group = fields["runAsGroup"].optional(_read_id)
        not_root = fields["runAsNonRoot"].optional(Node.boolean)
        if (pod.not_root if not_root is None else not_root) and not user:
            # The image's user is known only when the root exists.
            fields.findings.refuse(fields["runAsNonRoot"], "without runAsUser, another one than 0")
        privileged = fields["privileged"].optional(Node.boolean) or False
        fields.only("procMount", "Default")
        _read_selinux(fields, has_selinux=has_selinux)
        isolators = list(_read_capabilities(fields.within("capabilities")))
        if fields["allowPrivilegeEscalation"].optional(Node.boolean) is False:
            if privileged:
                raise fields["allowPrivilegeEscalation"].error("true with privileged")
            isolators.append(Isolator(name=NO_NEW_PRIVILEGES, value=True))
        profile = _read_profile(fields, pod.profile)
        apparmor = _read_apparmor(fields, pod.apparmor)
        if profile is not None and profile.path is None:
            isolators.append(Isolator(name=SECCOMP_RETAIN, value={"set": [EVERY_CALL]}))
        return Security(
            user=user,
            group=pod.group_of_processes if group is None else group,
            read_only_root=fields["readOnlyRootFilesystem"].optional(Node.boolean) or False,
            # A privileged container has no isolators and no profiles.
            isolators=() if privileged else tuple(isolators),
            privileged=privileged,
            profile=None if privileged or profile is None else profile.path,
            apparmor=None if privileged else apparmor,
        )


def _read_capabilities(fields: Fields) -> tuple[Isolator, ...]:
    with fields:
        added = frozenset(fields["add"].each(_read_capability))
        return capability_isolators(added, frozenset(fields["drop"].each(_read_capability)))


def _read_profile(fields: Fields, usual: Profile | None) -> Profile | None:
    """Return the profile of system calls, `usual` if the field is absent, None for the default profile."""
    if not fields["seccompProfile"].given:
        return usual
    with fields.within("seccompProfile") as profile:
        kind = profile["type"].one_of("RuntimeDefault", "Unconfined", _LOCALHOST)
        if kind == _LOCALHOST:
            return Profile(path=profile[_LOCAL_PROFILE].matching(is_inner, INNER_FORM))
        return Profile() if kind == "Unconfined" else None


def _read_apparmor(fields: Fields, usual: str | None) -> str | None:
    """Return the name of a profile of AppArmor, `usual` if the field is absent."""
    if not fields["appArmorProfile"].given:
        return usual
    with fields.within("appArmorProfile") as profile:
        kind = profile["type"].one_of("RuntimeDefault", "Unconfined", _LOCALHOST)
        return profile[_LOCAL_PROFILE].non_empty() if kind == _LOCALHOST else None


def _read_selinux(fields: Fields, *, has_selinux: bool) -> None:
    labels = fields["seLinuxOptions"]
    if labels.given and has_selinux:
        fields.findings.refuse(labels, "minit has no labels of SELinux")
    elif labels.given:
        fields.findings.skip(labels, "has no effect: this kernel has no SELinux")


def _read_capability(node: Node) -> str:
    name = node.matching(
        lambda text: bool(text) and set(text) <= _CHARACTERS, "the name of a capability, like NET_ADMIN"
    )
    return f"CAP_{name.removeprefix('CAP_')}"


def _read_id(node: Node) -> int:
    return node.integer(0, MAX_ID)
