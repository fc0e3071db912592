"""
The record of the pod's start for `app/add`: the options of `run` and the offers of the networks, as JSON.

The names come from rkt's stage1, which keeps the same file. Further fields are below "minit".
"""

from __future__ import annotations

from typing import TypeVar

from minit.base.errors import ManifestError
from minit.base.jsontext import dump, parse
from minit.base.value import Value
from minit.plan.inputs.runflags import RunFlags

T = TypeVar("T")


class RuntimeConfig(Value):
    """
    The options of `run`, and of the pod's networks the address of the host and the text for resolv.conf(5), which may
    be the host's own.
    """

    flags: RunFlags
    host_address: str | None = None
    resolv_conf: str | None = None
    is_host_dns: bool = False
    pod_addresses: tuple[str, ...] = ()


def encode_runtime_config(config: RuntimeConfig) -> bytes:
    """Return the configuration as JSON."""
    flags = config.flags
    return dump(
        {
            "MetadataServiceURL": "",
            "PrivateUsers": flags.private_users,
            "MDSToken": flags.mds_token,
            "Hostname": flags.hostname,
            "Debug": flags.debug,
            "Mutable": flags.mutable,
            "ResolvConfMode": flags.resolv_mode,
            "EtcHostsMode": flags.hosts_mode,
            "NetList": {},
            "Interactive": flags.interactive,
            "InsecureOptions": {
                "DisablePaths": flags.disable_paths,
                "DisableCapabilities": flags.disable_capabilities,
                "DisableSeccomp": flags.disable_seccomp,
            },
            "IPCMode": flags.ipc,
            "minit": {
                "networks": flags.networks,
                "quiet": flags.quiet,
                "tellFailure": flags.tell_failure,
                "localConfig": flags.local_config,
                "hostAddress": config.host_address,
                "resolvConf": config.resolv_conf,
                "isHostDNS": config.is_host_dns,
                "podAddresses": config.pod_addresses,
            },
        }
    )


def decode_runtime_config(data: bytes, source: str, uuid: str) -> RuntimeConfig:
    """Return the configuration in `data` of the pod `uuid`; ManifestError names `source` if it is none."""
    try:
        root = _expect(dict, parse(data, source))
        insecure, own = _expect(dict, root["InsecureOptions"]), _expect(dict, root["minit"])
        networks = tuple(_expect(str, name) for name in _expect(list, own["networks"]))
        address, resolv_conf = own["hostAddress"], own["resolvConf"]
        return RuntimeConfig(
            flags=RunFlags(
                uuid=uuid,
                debug=_expect(bool, root["Debug"]),
                networks=networks,
                interactive=_expect(bool, root["Interactive"]),
                mutable=_expect(bool, root["Mutable"]),
                private_users=_expect(str, root["PrivateUsers"]),
                mds_token=_expect(str, root["MDSToken"]),
                local_config=_expect(str, own["localConfig"]),
                hostname=_expect(str, root["Hostname"]),
                resolv_mode=_expect(str, root["ResolvConfMode"]),
                hosts_mode=_expect(str, root["EtcHostsMode"]),
                disable_capabilities=_expect(bool, insecure["DisableCapabilities"]),
                disable_paths=_expect(bool, insecure["DisablePaths"]),
                disable_seccomp=_expect(bool, insecure["DisableSeccomp"]),
                ipc=_expect(str, root["IPCMode"]),
                quiet=_expect(bool, own["quiet"]),
                tell_failure=_expect(bool, own["tellFailure"]),
            ),
            host_address=None if address is None else _expect(str, address),
            resolv_conf=None if resolv_conf is None else _expect(str, resolv_conf),
            is_host_dns=_expect(bool, own["isHostDNS"]),
            pod_addresses=tuple(_expect(str, address) for address in _expect(list, own["podAddresses"])),
        )
    except KeyError as error:
        raise ManifestError(f"{source}: {error.args[0]} is missing") from error
    except ValueError as error:
        raise ManifestError(f"{source}: {error}") from error


def _expect(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
