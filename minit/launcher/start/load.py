"""Reading the pod directory as stage0 prepared it, the users of apps' roots, and the facts of the machine."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Sequence

from minit.base.errors import LaunchError, ManifestError, PlanError, describe
from minit.base.userdatabase import DATABASES, GROUP, USER
from minit.base.value import replace
from minit.launcher.cgroups import Hierarchy, offered_controllers, shown_hierarchies
from minit.linux import syscalls
from minit.linux.attributes import Limit
from minit.linux.hostnotify import is_expected
from minit.linux.idmapping import in_user_namespace, read_held_ids
from minit.linux.process import read_limits
from minit.linux.stdio import complain
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import ImageManifest, parse_image_manifest
from minit.manifest.networkconfig import NetworkConfig
from minit.manifest.pod import PodManifest, RuntimeApp, parse_pod_manifest
from minit.manifest.reader import read_json
from minit.network.configs import load_networks
from minit.plan.inputs.hostfacts import HostFacts, HostNode
from minit.plan.inputs.runflags import RunFlags
from minit.plan.inputs.runtimeconfig import RuntimeConfig, decode_runtime_config
from minit.plan.inputs.switches import is_set
from minit.plan.loadedpod import Pod, app_section, has_isolators, may_be_privileged
from minit.plan.networks.podnetwork import joins_networks
from minit.plan.refusals import refuse_shared_files
from minit.plan.rights.users import AppLookups, Lookup, is_path, parse_id, plan_image_groups
from minit.plan.root.etcfiles import EtcTexts, text_sources
from minit.plan.root.mountoperations import DEV, DEVICES, MakeNode
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.paths import BUILT_IN_PLUGINS
from minit.podfiles.usersdirectory import is_of_user

_MAXIMUM_BYTES = 4 << 20
_MOST_THREADS = "/proc/sys/kernel/threads-max"
_LOWEST_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
# Of a kernel with mq_overview(7).
_QUEUES = "/proc/sys/fs/mqueue"
# Variables of rkt and the host's service manager of no use to stage1 yet.
_UNSUPPORTED_VARIABLES = ("RKT_SELINUX_CONTEXT", "RKT_SELINUX_MOUNT_CONTEXT")

# Plugins of links of the machine's network, and of addresses of other networks.
_OF_ROOT = frozenset({"dhcp", "flannel", "host-device", "ipvlan", "macvlan", "vlan"})
_DHCP = "dhcp"

_MAXIMUM_DATABASE_BYTES = 1 << 20
_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS


def load_pod(flags: RunFlags) -> Pod:
    """
    Return the pod in the working directory: the manifests, the images' facts about named users, and the texts for /etc
    by `flags`.

    ManifestError names the file and the place in the file.
    """
    manifest = read_pod_manifest()
    images = []
    lookups = []
    for runtime in manifest.apps:
        path = paths.app_manifest(runtime.name)
        image = parse_image_manifest(_read(path), path)
        images.append((runtime.name, image))
        lookups.append((runtime.name, _look_up_ids(runtime, image)))
    hosts, resolv_conf = (_read(path) if path else None for path in text_sources(flags))
    return Pod(
        manifest=manifest,
        images=tuple(images),
        lookups=tuple(lookups),
        texts=EtcTexts(hosts=hosts, resolv_conf=resolv_conf),
        networks=_load_networks(flags),
        has_unmapped_overlay=bool(flags.private_users)
        and os.path.exists(paths.POD_OVERLAY_PREPARED)
        and os.stat(paths.POD_STAGE1_ROOTFS).st_uid == 0,
    )


def load_app(name: str, flags: RunFlags) -> Pod:
    """
    Return the pod in the working directory with one app alone, just added to the manifest by stage0.

    ManifestError, as above; PlanError if there is no such app.
    """
    manifest = read_pod_manifest()
    refuse_shared_files(manifest, name)
    first = next((index for index, runtime in enumerate(manifest.apps) if runtime.name == name), None)
    if first is None:
        raise PlanError(f'no app "{name}" in {paths.POD_MANIFEST}')
    runtime = manifest.apps[first]
    path = paths.app_manifest(name)
    image = parse_image_manifest(_read(path), path)
    hosts, resolv_conf = (_read(path) if path else None for path in text_sources(flags))
    return Pod(
        manifest=replace(manifest, apps=(runtime,)),
        images=((name, image),),
        lookups=((name, _look_up_ids(runtime, image)),),
        texts=EtcTexts(hosts=hosts, resolv_conf=resolv_conf),
        first=first,
    )


def read_pod_manifest() -> PodManifest:
    """Return the manifest of the pod; ManifestError as above."""
    return parse_pod_manifest(_read(paths.POD_MANIFEST), paths.POD_MANIFEST)


def read_runtime_config(uuid: str) -> RuntimeConfig:
    """Return the options of the pod's start; ManifestError for an unreadable file."""
    return decode_runtime_config(_read(paths.POD_RUNTIME_CONFIG), paths.POD_RUNTIME_CONFIG, uuid)


def collect_facts(hierarchies: Sequence[Hierarchy], pod: Pod, flags: RunFlags, limits: Sequence[Limit]) -> HostFacts:
    """Return the facts of the machine for the plan of `pod`, with the limits of the caller, which are raised now."""
    # Any app added to a mutable pod may have isolators.
    isolated = flags.mutable or has_isolators(pod)
    # A new user namespace has every capability, whatever the caller's capabilities.
    capabilities = syscalls.every_capability if flags.private_users else syscalls.bounding_set
    return HostFacts(
        effective_uid=os.geteuid(),
        kernel_release=os.uname().release,
        machine=os.uname().machine,
        has_cgroups=bool(hierarchies) or is_of_user(),
        delegated_groups=bool(hierarchies) if is_of_user() else None,
        lowest_port=int(_read_text(_LOWEST_PORT)) if is_of_user() else 0,
        is_unified=bool(hierarchies) and all(hierarchy.is_v2 for hierarchy in hierarchies),
        terminal_type=os.environ.get("TERM"),
        limits=tuple(limits),
        hard_limits=tuple(hard for _, _, hard in read_limits()),
        threads_max=int(_read_text(_MOST_THREADS)),
        tells_host=is_expected(os.environ),
        ignored_variables=tuple(name for name in _UNSUPPORTED_VARIABLES if os.environ.get(name)),
        has_queues=os.path.exists(_QUEUES),
        controllers=offered_controllers(hierarchies, in_own_group=is_of_user()) if isolated else frozenset(),
        capabilities=capabilities() if isolated else 0,
        missing_devices=_find_missing_devices(pod.manifest),
        loaded_profiles=_read_profiles(pod.manifest),
        shown_devices=_find_shown_devices(),
        held_ids=read_held_ids(),
        device_nodes=_find_host_nodes() if may_be_privileged(pod.manifest) else (),
        shown_hierarchies=tuple((each.mount_point, each.controllers) for each in shown_hierarchies(hierarchies)),
    )


def _read_profiles(manifest: PodManifest) -> frozenset[str] | None:
    if not any(runtime.annotation(Annotation.APPARMOR_PROFILE) is not None for runtime in manifest.apps):
        return None
    try:
        return read_loaded_profiles()
    except (OSError, LaunchError) as error:
        raise LaunchError(f"cannot tell which AppArmor profiles are loaded: {describe(error)}") from error


def read_host_dns() -> str | None:
    """Return the host's configuration of DNS, for a pod in its network; None without a readable one."""
    try:
        fd = os.open(paths.HOST_RESOLV_CONF, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return os.fsdecode(read_bounded(fd, paths.HOST_RESOLV_CONF, _MAXIMUM_BYTES))
    except (OSError, LaunchError):
        return None


def read_host_address() -> str | None:
    """Return the address by which the host reaches others, present or not; None for a host without a way out."""
    for family, other in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                # Nothing is sent.
                sock.connect((other, 9))
                return str(sock.getsockname()[0])
        except OSError:
            continue
    return None


def _find_missing_devices(pod: PodManifest) -> frozenset[str]:
    annotations = [pod.annotations, *(runtime.annotations for runtime in pod.apps)]
    if not any(name == Annotation.HOTPLUG for pairs in annotations for name, _ in pairs):
        return frozenset()
    own = (mount.app_volume for runtime in pod.apps for mount in runtime.mounts)
    sources = (volume.source for volume in (*pod.volumes, *own) if volume is not None)
    return frozenset(
        source for source in sources if source and source.startswith("/dev/") and not os.path.lexists(source)
    )


def _load_networks(flags: RunFlags) -> tuple[NetworkConfig, ...]:
    if not joins_networks(flags.networks):
        return ()
    networks, notes = load_networks(flags.local_config, flags.networks)
    for note in notes:
        complain(f"networking: {note}")
    if is_of_user():
        for network in networks:
            _refuse_roots_plugins(network)
    return tuple(networks)


def _refuse_roots_plugins(network: NetworkConfig) -> None:
    """Raise PlanError for a network whose plugin would work on links of the machine, or is a program of the machine."""
    for plugin in network.plugins:
        if plugin.type not in BUILT_IN_PLUGINS or plugin.type in _OF_ROOT:
            raise PlanError(f'failed to setup network: "{network.name}": the plugin "{plugin.type}" needs root')
        ipam = read_json(plugin.text, network.file_name)["ipam"]["type"]
        if ipam.given and ipam.string() == _DHCP:
            raise PlanError(f'failed to setup network: "{network.name}": addresses by DHCP need root')


def _look_up_ids(runtime: RuntimeApp, image: ImageManifest) -> AppLookups:
    app = app_section(runtime, image)
    # As stage0 does not say so: the pod manifest names another user than the image.
    has_own_user = is_set(runtime, Annotation.PLAIN_ENVIRONMENT) or (
        image.app is not None and app.user != image.app.user
    )
    has_groups = bool(plan_image_groups(runtime))
    if parse_id(app.user) is not None and parse_id(app.group) is not None and not (has_own_user or has_groups):
        return AppLookups()
    return _look_up_in_root(runtime.name, app, has_own_user=has_own_user, has_groups=has_groups)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        return read_bounded(fd, path, _MAXIMUM_BYTES)
    except (OSError, LaunchError) as error:
        raise ManifestError(f"failed to load pod: {describe(error)}") from error


def open_stage1_root() -> int:
    """Return a detached mount of the stage1 root."""
    try:
        root = syscalls.open_tree(
            syscalls.AT_FDCWD, paths.POD_STAGE1_ROOTFS, syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
        )
        # Out of its peer group: a mount made in the pod must not appear on the host.
        syscalls.mount_setattr(root, flags=syscalls.AT_RECURSIVE, propagation=syscalls.MS_PRIVATE)
    except OSError as error:
        raise LaunchError(f"failed to open the stage1 root: {describe(error)}") from error
    return root


def _look_up_in_root(name: str, app: App, *, has_own_user: bool, has_groups: bool) -> AppLookups:
    """
    Return the facts in the root of app `name` about the app's user and group; the working directory is the pod
    directory.

    With `has_own_user` the user is another one than the image's; with `has_groups` the user has groups of the image.

    The content of the root is the image's. Paths are resolved inside, wherever symlinks lead, and only a regular file
    is opened: opening a fifo would wait, and opening a device may set something off.
    """
    path = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(name)}"
    root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return AppLookups(
            user=_look_up(root, USER, app.user),
            group=_look_up(root, GROUP, app.group),
            passwd=_read_database(root, USER) if has_own_user else None,
            accounts=_read_database(root, USER) if has_groups else b"",
            memberships=_read_database(root, GROUP) if has_groups else b"",
        )
    finally:
        os.close(root)


def _look_up(root: int, kind: str, text: str) -> Lookup:
    if parse_id(text) is not None:
        return Lookup()
    path = text if is_path(text) else DATABASES[kind]
    try:
        if is_path(text):
            uid, gid = _owner(root, path)
            return Lookup(owner=uid if kind == USER else gid)
        return Lookup(database=_read_regular_file(root, path))
    except OSError as error:
        # fstat(2) knows no name.
        error.filename = path
        return Lookup(failure=describe(error))
    except LaunchError as error:
        return Lookup(failure=describe(error))


def _read_database(root: int, kind: str) -> bytes:
    try:
        return _read_regular_file(root, DATABASES[kind])
    except (OSError, LaunchError):
        return b""  # as if the user were not in it: the app runs all the same


def _read_regular_file(root: int, path: str) -> bytes:
    found = syscalls.openat2(root, path, os.O_PATH, resolve=_RESOLVE)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise LaunchError(f"{path}: not a regular file")
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)
    return read_bounded(fd, path, _MAXIMUM_DATABASE_BYTES)


def _owner(root: int, path: str) -> tuple[int, int]:
    # As with lstat(2): a link at the end is not followed.
    found = syscalls.openat2(root, path.rstrip("/") or "/", os.O_PATH | os.O_NOFOLLOW, resolve=_RESOLVE)
    try:
        status = os.fstat(found)
    finally:
        os.close(found)
    return status.st_uid, status.st_gid


def read_loaded_profiles(sysfs: str = "/sys") -> frozenset[str] | None:
    """Return the names of the loaded profiles, None for a kernel without AppArmor; OSError where nobody can tell."""
    try:
        enabled = _read_text(f"{sysfs}/module/apparmor/parameters/enabled")
    except FileNotFoundError:
        return None
    if enabled.strip() != "Y":
        return None
    # `NAME (MODE)`; a name may have spaces.
    lines = _read_text(f"{sysfs}/kernel/security/apparmor/profiles").splitlines()
    return frozenset(line.rpartition(" (")[0] for line in lines)


def _read_text(path: str) -> str:
    return os.fsdecode(read_bounded(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, _MAXIMUM_BYTES))


def _find_shown_devices() -> frozenset[str] | None:
    """Return the nodes of every app that root of a user namespace can open on the host; None for root of the host."""
    if not in_user_namespace():
        return None
    nodes = (operation.target for operation in DEVICES if isinstance(operation, MakeNode))
    return frozenset(filter(_can_be_opened, nodes))


def _can_be_opened(node: str) -> bool:
    return os.access(node, os.R_OK | os.W_OK)


def _find_host_nodes() -> tuple[HostNode, ...]:
    """
    Return the nodes in the host's /dev as they are now, but for those on other file systems there, as /dev/pts.

    Root of a user namespace gets those that can be opened.
    """
    found = sorted(_find_below(DEV, os.lstat(DEV).st_dev), key=lambda node: node.path)
    if in_user_namespace():
        found = [node for node in found if _can_be_opened(node.path)]
    return tuple(found)


def _find_below(directory: str, file_system: int) -> Iterator[HostNode]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return  # devices come and go
    for name in names:
        path = f"{directory}/{name}"
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        if status.st_dev != file_system:
            continue
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            yield from _find_below(path, file_system)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            yield HostNode(
                path=path,
                is_block=kind == stat.S_IFBLK,
                major=os.major(status.st_rdev),
                minor=os.minor(status.st_rdev),
                mode=stat.S_IMODE(status.st_mode),
                owner=(status.st_uid, status.st_gid),
            )
