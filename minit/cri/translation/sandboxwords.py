"""The words of `app sandbox` for a PodSandboxConfig."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence

from minit.base.jsontext import dump
from minit.cri.api import cri_pb2 as api
from minit.cri.owncommands import option
from minit.cri.translation.refusal import refuse
from minit.cri.translation.userwords import user_ids
from minit.manifest.annotations import Annotation
from minit.plan.groupparent import is_group_path

# What other runtimes do: containers have the same files in /etc as there, which they may change, and as much memory.
_HABITS = (f"{Annotation.POD_NAMES}=own", f"{Annotation.SHM_SIZE}=64Mi")
_PROTOCOLS = {api.TCP: "tcp", api.UDP: "udp"}
_ANY_ADDRESS = "0.0.0.0"


def hostname_of(config: api.PodSandboxConfig) -> str:
    """Return the host name of a sandbox: with the host's network the host's, if none is given; empty for any."""
    has_host = config.linux.security_context.namespace_options.network == api.NODE
    return config.hostname or (os.uname().nodename if has_host else "")


def sandbox_words(config: api.PodSandboxConfig) -> list[str]:
    """Return what `app sandbox` is given for a sandbox, beside what all are given; CallError if it cannot be made."""
    options = config.linux.security_context.namespace_options
    refuse(options.network not in (api.POD, api.NODE), "namespace_options.network", "POD or NODE")
    refuse(options.ipc not in (api.POD, api.NODE), "namespace_options.ipc", "POD or NODE")
    ids = user_ids(options)
    context = config.linux.security_context
    # The rest is about the process of a pause container, which there is not.
    only_group = context.HasField("run_as_group") and not context.HasField("run_as_user")
    refuse(only_group, "security_context.run_as_group", "a user with it")
    parent = posixpath.normpath(f"{config.linux.cgroup_parent}/") if config.linux.cgroup_parent else "/"
    has_parent = parent.lstrip("/") != ""  # that of a kubelet without groups of its own is the root
    refuse(has_parent and not is_group_path(parent), "linux.cgroup_parent", "a path of cgroupfs, as in /kubepods/pod1")
    own_network = options.network == api.POD
    words = [f"--annotation={habit}" for habit in _HABITS]
    words += [] if own_network else ["--net=host"]
    hostname = hostname_of(config)
    words += option("--hostname", [hostname] if hostname else [])
    words += _dns_words(config.dns_config)
    words += [f"--annotation={Annotation.CGROUP_PARENT}={parent}"] if has_parent else []
    refuse(bool(config.log_directory) and not config.log_directory.startswith("/"), "log_directory", "an absolute path")
    words += [f"--annotation={Annotation.LOG_DIRECTORY}={config.log_directory}"] if config.log_directory else []
    if config.linux.sysctls:
        # Sorted, as the order in a message means nothing.
        words.append(f"--annotation={Annotation.SYSCTLS}={dump(dict(sorted(config.linux.sysctls.items()))).decode()}")
    words += ["--pid=host"] if options.pid == api.NODE else []
    words += [f"--private-users={ids}"] if ids is not None else []
    words += [f"--annotation={Annotation.ALLOW_PRIVILEGED}=true"] if context.privileged else []
    words += ["--ipc=parent"] if options.ipc == api.NODE else []
    words += list(_port_words(config.port_mappings)) if own_network else []
    return words


def _dns_words(dns: api.DNSConfig) -> list[str]:
    words = option("--dns", dns.servers) + option("--dns-search", dns.searches)
    return words + option("--dns-opt", dns.options)


def _port_words(mappings: Sequence[api.PortMapping]) -> Iterator[str]:
    for number, one in enumerate(mappings):
        if not one.host_port:
            continue
        refuse(one.protocol not in _PROTOCOLS, f"port_mappings[{number}].protocol", "TCP or UDP")
        address = one.host_ip or _ANY_ADDRESS
        yield f"--port=port{number}:{_PROTOCOLS[one.protocol]}:{one.container_port}:{address}:{one.host_port}"
