"""
Calls of the CRI in the words of minit's command line. Pure.

What minit cannot do yet is refused, with the name of the field: a container that is less confined, or differently made,
than it was asked for is worse than none.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import app_name
from minit.cri.owncommands import option
from minit.manifest.capabilities import DEFAULT, NAMES, capability_names
from minit.manifest.names import is_environment_name

_PROTOCOLS = {api.TCP: "tcp", api.UDP: "udp"}
_ALL = "CAP_ALL"
_LARGEST_SHARES = 262144
_ANY_ADDRESS = "0.0.0.0"


def sandbox_words(config: api.PodSandboxConfig) -> list[str]:
    """Return what `app sandbox` is given for a sandbox, beside what all are given; CallError if it cannot be made."""
    options = config.linux.security_context.namespace_options
    _refuse(options.network not in (api.POD, api.NODE), "namespace_options.network", "POD or NODE")
    _refuse(options.ipc not in (api.POD, api.NODE), "namespace_options.ipc", "POD or NODE")
    _refuse(options.pid == api.NODE, "namespace_options.pid", "a namespace of the pod's own")
    users = options.userns_options
    _refuse(options.HasField("userns_options") and users.mode != api.NODE, "userns_options.mode", "NODE")
    _refuse(bool(config.linux.sysctls), "linux.sysctls", "none")
    parent = config.linux.cgroup_parent
    _refuse(bool(parent) and not parent.startswith("/"), "linux.cgroup_parent", "a path of cgroupfs")
    own_network = options.network == api.POD
    words = [] if own_network else ["--net=host"]
    words += option("--hostname", [config.hostname] if config.hostname else [])
    words += _dns_words(config.dns_config)
    words += [f"--annotation=minit/cgroup-parent={posixpath.normpath(parent)}"] if parent else []
    _refuse(
        bool(config.log_directory) and not config.log_directory.startswith("/"), "log_directory", "an absolute path"
    )
    words += [f"--annotation=minit/log-directory={config.log_directory}"] if config.log_directory else []
    words += ["--ipc=host"] if options.ipc == api.NODE else []
    words += list(_port_words(config.port_mappings)) if own_network else []
    return words


def container_words(config: api.ContainerConfig, image: str, log: Sequence[str] = ()) -> list[str]:
    """
    Return what `app add` is given for a container after the pod, with the words for its log; CallError if it cannot be
    made.
    """
    words = [image, f"--name={app_name(config.metadata)}", *log]
    words += [f"--working-dir={config.working_dir}"] if config.working_dir else []
    _refuse(bool(config.working_dir) and not config.working_dir.startswith("/"), "working_dir", "an absolute path")
    for number, mount in enumerate(config.mounts):
        words.append(_mount_word(number, mount))
    for number, device in enumerate(config.devices):
        words.append(_device_word(number, device))
    _refuse(bool(config.CDI_devices), "CDI_devices", "none")
    if config.stdin or config.tty:
        mode = "tty" if config.tty else "stream"
        words += [f"--stdin={mode}", f"--stdout=log+{mode}", f"--stderr=log+{mode}"]
    words += _stop_words(config.stop_signal)
    words += _resource_words(config.linux.resources)
    words += _security_words(config.linux.security_context)
    if not config.command and not config.args:
        return words
    # A command stands in for entrypoint and command of the image, arguments alone for the command.
    first, *rest = [*config.command, *config.args]
    # Which ends the arguments of an app on a command line: options would come after it.
    _refuse("---" in rest, "args", 'no word "---"')
    return [*words, f"{'--exec' if config.command else '--cmd'}={first}", "--", *rest]


def log_words(directory: str, path: str) -> list[str]:
    """Return what `app add` is given for a log below the sandbox's directory; CallError if it would be elsewhere."""
    if not directory or not path:
        return []
    path = posixpath.normpath(path)
    _refuse(path.split("/")[0] in ("", ".", ".."), "log_path", "a path below log_directory")
    return [f"--annotation=minit/log-path={path}"]


def environment_text(config: api.ContainerConfig) -> bytes:
    """Return the environment as a file of `--set-env-file`, in which the last of several of a name counts."""
    variables = {one.key: one.value for one in config.envs}
    for name, value in variables.items():
        _refuse(not is_environment_name(name), f"envs: {name}", "a name of letters, digits, _, - and .")
        _refuse(b"\n" in value, f"envs: {name}", "a value of one line")
    # A line may end so, and a value with a carriage return at its end keeps that.
    return b"".join(name.encode() + b"=" + value + b"\r\n" for name, value in variables.items())


def _dns_words(dns: api.DNSConfig) -> list[str]:
    if not (dns.servers or dns.searches or dns.options):
        return ["--dns=host"]
    words = option("--dns", dns.servers) + option("--dns-search", dns.searches)
    return words + option("--dns-opt", dns.options)


def _port_words(mappings: Sequence[api.PortMapping]) -> Iterator[str]:
    for number, one in enumerate(mappings):
        if not one.host_port:
            continue
        _refuse(one.protocol not in _PROTOCOLS, f"port_mappings[{number}].protocol", "TCP or UDP")
        address = one.host_ip or _ANY_ADDRESS
        yield f"--port=port{number}:{_PROTOCOLS[one.protocol]}:{one.container_port}:{address}:{one.host_port}"


def _mount_word(number: int, mount: api.Mount) -> str:
    place = f"mounts[{number}]"
    _refuse(mount.propagation != api.PROPAGATION_PRIVATE, f"{place}.propagation", "PROPAGATION_PRIVATE")
    _refuse(mount.HasField("image"), f"{place}.image", "a path of the host")
    _refuse(bool(mount.uidMappings or mount.gidMappings), f"{place}.uidMappings", "none")
    target = posixpath.normpath(f"/./{mount.container_path}")
    fields = {"name": f"mount{number}", "kind": "host", "source": mount.host_path, "target": target}
    fields |= {"readOnly": "true"} if mount.readonly else {"readOnly": "false"}
    return "--mnt-volume=" + ",".join(f"{name}={quote(value, safe='/')}" for name, value in fields.items())


def _device_word(number: int, device: api.Device) -> str:
    _refuse("m" in device.permissions, f"devices[{number}].permissions", "r and w")
    fields = {"name": f"device{number}", "kind": "host", "source": device.host_path}
    fields |= {"target": device.container_path or device.host_path}
    fields |= {"readOnly": "false" if "w" in device.permissions else "true"}
    return "--mnt-volume=" + ",".join(f"{name}={quote(value, safe='/')}" for name, value in fields.items())


def _stop_words(number: api.Signal) -> list[str]:
    if number == api.SIGNAL_RUNTIME_DEFAULT:
        return []
    name = api.Signal.Name(number).removeprefix("SIGNAL_SIG")
    return [f"--annotation=minit/stop-signal={name.replace('PLUS', '+').replace('MINUS', '-')}"]


def _resource_words(resources: api.LinuxContainerResources) -> list[str]:
    _refuse(bool(resources.cpuset_cpus or resources.cpuset_mems), "resources.cpuset_cpus", "none")
    _refuse(bool(resources.unified), "resources.unified", "none")
    words = []
    if resources.memory_limit_in_bytes > 0:
        words.append(f"--memory={resources.memory_limit_in_bytes}")
    if resources.cpu_quota > 0 and resources.cpu_period > 0:
        words.append(f"--cpu={max(1, 1000 * resources.cpu_quota // resources.cpu_period)}m")
    if resources.cpu_shares > 0:
        words.append(f"--cpu-shares={min(max(resources.cpu_shares, 2), _LARGEST_SHARES)}")
    if resources.oom_score_adj:
        words.append(f"--oom-score-adj={resources.oom_score_adj}")
    return words


def _security_words(security: api.LinuxContainerSecurityContext) -> list[str]:
    _refuse(security.privileged, "security_context.privileged", "false")
    _refuse(security.namespace_options.pid in (api.NODE, api.TARGET), "namespace_options.pid", "POD or CONTAINER")
    for field, profile in (("seccomp", security.seccomp), ("apparmor", security.apparmor)):
        _refuse(profile.profile_type == api.SecurityProfile.Localhost, field, "RuntimeDefault or Unconfined")
    is_root = security.run_as_user.value == 0 and not security.run_as_username
    # With users of their own apps have no way to new privileges anyway.
    _refuse(security.no_new_privs and is_root, "no_new_privs", "false for root")
    only_group = security.HasField("run_as_group") and not (
        security.HasField("run_as_user") or security.run_as_username
    )
    _refuse(only_group, "run_as_group", "a user with it")
    words = []
    if security.namespace_options.pid == api.CONTAINER:
        words.append("--annotation=minit/pid-namespace=app")
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
    _refuse(bool(asked.add_ambient_capabilities), "capabilities.add_ambient_capabilities", "none")
    add = {_capability(name) for name in asked.add_capabilities}
    drop = {_capability(name) for name in asked.drop_capabilities}
    if not add and not drop:
        return []
    kept = set(NAMES) if _ALL in add else set() if _ALL in drop else set(capability_names(DEFAULT))
    unknown = sorted((add | drop) - {*NAMES, _ALL})
    _refuse(bool(unknown), "capabilities", f"names of capabilities, not {', '.join(unknown)}")
    kept = (kept | add) - drop - {_ALL}
    return [f"--caps-retain={','.join(sorted(kept))}"]


def _capability(name: str) -> str:
    return f"CAP_{name.upper().removeprefix('CAP_')}"


def _refuse(is_refused: bool, field: str, expected: str) -> None:
    if is_refused:
        raise CallError(Code.INVALID_ARGUMENT, f"{field}: expected {expected}: minit has nothing else yet")
