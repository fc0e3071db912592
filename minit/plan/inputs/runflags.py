"""The arguments of the `run` entrypoint, interface version 6."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import UsageError
from minit.base.goflags import parse_flags
from minit.base.value import Value
from minit.manifest.networkconfig import find_repeated

RUN_FLAGS: dict[str, bool | str] = {
    "debug": False,
    "net": "",
    "interactive": False,
    "mutable": False,
    "private-users": "",
    "mds-token": "",
    "local-config": "/etc/rkt",
    "hostname": "",
    "dns-conf-mode": "resolv=default,hosts=default",
    "disable-capabilities-restriction": False,
    "disable-paths": False,
    "disable-seccomp": False,
    "ipc": "",
    # minit's own
    "quiet": False,
    "tell-failure": False,
}
RUN_OPERANDS = "UUID"

_HEXADECIMAL = frozenset("0123456789abcdef")
_RESOLV_MODES = ("host", "stage0", "none", "default")
_HOSTS_MODES = ("host", "stage0", "default")


class RunFlags(Value):
    """The flags of `run`. `networks` holds the entries of --net; empty means the host's network."""

    uuid: str
    debug: bool = False
    networks: tuple[str, ...] = ()
    interactive: bool = False
    mutable: bool = False
    private_users: str = ""
    mds_token: str = ""
    local_config: str = "/etc/rkt"
    hostname: str = ""
    resolv_mode: str = "default"
    hosts_mode: str = "default"
    disable_capabilities: bool = False
    disable_paths: bool = False
    disable_seccomp: bool = False
    ipc: str = ""
    quiet: bool = False
    tell_failure: bool = False


def parse_run_flags(arguments: Sequence[str]) -> RunFlags:
    """Return the flags of `run`; UsageError for what Go's flag package would refuse."""
    values, operands = parse_flags(arguments, RUN_FLAGS, repeated=("net",))
    text = {name: value for name, value in values.items() if isinstance(value, str)}
    switch = {name: value for name, value in values.items() if isinstance(value, bool)}
    operand = only_operand(operands)
    resolv, hosts = _parse_dns_conf_mode(text["dns-conf-mode"])
    return RunFlags(
        uuid=parse_uuid(operand),
        debug=switch["debug"],
        networks=_parse_networks(text["net"]),
        interactive=switch["interactive"],
        mutable=switch["mutable"],
        private_users=text["private-users"],
        mds_token=_parse_mds_token(text["mds-token"]),
        local_config=text["local-config"],
        hostname=text["hostname"],
        resolv_mode=resolv,
        hosts_mode=hosts,
        disable_capabilities=switch["disable-capabilities-restriction"],
        disable_paths=switch["disable-paths"],
        disable_seccomp=switch["disable-seccomp"],
        ipc=text["ipc"],
        quiet=switch["quiet"],
        tell_failure=switch["tell-failure"],
    )


def only_operand(operands: Sequence[str]) -> str:
    """Return the operand of an entrypoint, the pod's UUID; UsageError without an operand, or with several."""
    if len(operands) != 1:
        raise UsageError(f"expected one UUID, got {len(operands)} arguments")
    return operands[0]


def refuse_operands(operands: Sequence[str]) -> None:
    """Raise a UsageError if an entrypoint that takes flags only is called with more."""
    if operands:
        raise UsageError(f"expected flags only, got {len(operands)} more words")


def parse_uuid(text: str) -> str:
    """Return a pod UUID in its canonical form; any case, with or without dashes, is accepted."""
    digits = text.replace("-", "").lower()
    if len(digits) != 32 or not set(digits) <= _HEXADECIMAL:
        raise MalformedUUID(f'UUID is missing or malformed: "{text}"')
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class MalformedUUID(UsageError):
    """The pod UUID is not 32 hexadecimal digits; rkt's stage1 exits 254 for it, without usage."""

    exit_code = 254


def _parse_networks(text: str) -> tuple[str, ...]:
    entries = tuple(text.split(",")) if text else ()
    for entry in entries:
        name, _, arguments = entry.partition(":")
        # rkt refuses a second colon, which the value of an argument may have now: addresses of IPv6 have many.
        if not name or (":" in arguments and "=" not in arguments):
            raise UsageError(f'invalid value "{text}" for flag -net: expected NAME[:ARGS], got "{entry}"')
        if ":" in entry and name in ("all", "host"):
            raise UsageError(f'invalid value "{text}" for flag -net: "{name}" takes no arguments')
    repeated = find_repeated(entries)
    if repeated is not None:
        raise UsageError(f'invalid value "{text}" for flag -net: network "{repeated}" is named twice')
    return entries


def _parse_mds_token(text: str) -> str:
    # It becomes part of a URL.
    if not set(text.lower()) <= _HEXADECIMAL:
        raise UsageError(f'invalid value "{text}" for flag -mds-token: expected hexadecimal digits')
    return text


def _parse_dns_conf_mode(text: str) -> tuple[str, str]:
    modes = {"resolv": "default", "hosts": "default"}
    allowed = {"resolv": _RESOLV_MODES, "hosts": _HOSTS_MODES}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if key not in allowed or value not in allowed[key]:
            raise UsageError(f'invalid value "{text}" for flag -dns-conf-mode: "{pair}"')
        modes[key] = value
    return modes["resolv"], modes["hosts"]
