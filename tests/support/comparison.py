"""
Requests of network plugins by a shell script, on a host that is made for each, and all that can be seen afterwards.

A script needs sh, ip, bridge and grep, so that it also runs on a machine without Python. It says all that it sees, each
thing after a line that names it. `script` writes one, and `read_observations` reads what it has said.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from minit.base.value import Value

Facts = dict[str, Any]

MASTER_MAC = "02:00:00:00:05:01"
WORDS = "message"
"""The last word of the name of a fact that is an error's own words."""
STAGES = ("before", "added", "checked", "deleted", "again")
_MARK = "@@"
_UUID = "8f1b6a3e-3c3e-4b1c-9a57-0000000000c7"
_SETTLING_TURNS = 600  # half a minute: a busy machine takes its time
_KNOWN_MACS = "02:00:00:00:|00:00:00:00:|ff:ff:ff:|33:33:|0:0:0:"

# Nothing may come and go by itself: no link-local addresses, and a detection of duplicates that is over at once.
# New namespaces forward if the machine does: this host does not until a plugin has it do so.
_PROLOGUE = f"""
quiet="echo 1 > addr_gen_mode; echo 0 > dad_transmits; echo 0 > router_solicitation_delay"
no_router="echo 0 > ip_forward; echo 1 > conf/all/accept_redirects"

world() {{
    for space in host pod wire; do
        ip netns add $space
        ip -n $space link set lo up
        ip netns exec $space sh -c "cd /proc/sys/net/ipv6/conf/default; $quiet"
    done
    ip netns exec host sh -c "cd /proc/sys/net/ipv4; $no_router"
    ip -n host link add up0 address {MASTER_MAC} type veth peer name far netns wire
    ip -n wire link set far up
    ip -n host link set up0 up
    ip -n host address add 10.5.0.1/24 dev up0
    ip -n host address add fd00:5::1/64 dev up0
    ip -n host route add default via 10.5.0.254
    ip -n host -6 route add default via fd00:5::fe
}}

away() {{
    ip netns delete pod
    ip netns delete host
    ip netns delete wire
}}

settled() {{  # STAGE
    for space in host pod; do
        [ -z "$(ip -n $space -6 address show tentative)" ] || return 1
        [ $1 = added ] || continue
        ip -n $space -o link show up | grep -qE 'state (DOWN|LOWERLAYERDOWN)' && return 1
    done
    return 0
}}

show() {{
    turns={_SETTLING_TURNS}
    until settled $1 || [ $turns = 0 ]; do
        turns=$((turns - 1))
        sleep 0.05
    done
    for space in host pod; do
        echo "{_MARK} $1 $space link"; ip -n $space -d -j link
        echo "{_MARK} $1 $space address"; ip -n $space -j address
        echo "{_MARK} $1 $space vlan"; bridge -n $space -j vlan 2> /dev/null
        echo "{_MARK} $1 $space route4"; ip -n $space -4 -j route show table all
        echo "{_MARK} $1 $space route6"; ip -n $space -6 -j route show table all
        echo "{_MARK} $1 $space sysctl"
        ip netns exec $space grep -r . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward \\
            2> /dev/null
    done
}}

request() {{  # COMMAND TYPE CONFIGURATION
    printf '%s' "$3" | ip netns exec host env -i PATH="$PATH" CNI_COMMAND=$1 CNI_CONTAINERID={_UUID} \\
        CNI_NETNS=/run/netns/pod CNI_IFNAME=$interface CNI_PATH=$plugins CNI_ARGS="$args" $plugins/$2 2> /dev/null
}}
"""


class Case(Value):
    """
    A chain of plugins with their configurations, and the world that they are called in.

    `before` are commands on the host before ADD. `args` is CNI_ARGS. `previous` is a result before the first plugin.
    """

    name: str
    chain: tuple[Facts, ...]
    version: str = "1.0.0"
    before: tuple[str, ...] = ()
    args: str = ""
    interface: str = "eth0"
    previous: Facts | None = None


def script(cases: Iterable[Case], plugins: str, leases: str) -> str:
    """Return a script that plays each case in turn with the plugins of a directory."""
    return "\n".join((_PROLOGUE, *(_play(case, plugins, f"{leases}/{number}") for number, case in enumerate(cases))))


def read_observations(lines: Iterable[str]) -> dict[str, dict[str, Facts]]:
    """Return what a script has said: for each case and stage names of facts, and their values."""
    seen: dict[str, dict[str, Facts]] = {}
    for name, stage, subject, text in _sections(lines):
        facts = seen.setdefault(name, {}).setdefault(stage, {})
        facts.update(_facts(subject, _without_chance(text)))
    return seen


def differences(one: Facts, other: Facts) -> dict[str, tuple[Any, Any]]:
    """Return the facts that are not the same in both, with the two values; None is of a fact that is absent."""
    names = sorted({*one, *other})
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _play(case: Case, plugins: str, leases: str) -> str:
    setting = {"plugins": plugins, "args": case.args, "interface": case.interface}
    lines = [f"{name}={shlex.quote(value)}" for name, value in setting.items()]
    lines += [f"echo {shlex.quote(f'{_MARK}{_MARK} {case.name}')}", "world"]
    lines += [f"ip netns exec host {command}" for command in case.before]
    lines += ["show before", f"result={shlex.quote(json.dumps(case.previous) if case.previous else '')}"]
    steps = list(enumerate(case.chain))
    for number, plugin in steps:
        lines += _request(case, "ADD", number, plugin, leases, "added")
        # Without an answer the chain ends.
        lines.append('[ -n "$answer" ] && result="$answer"')
    lines.append("show added")
    for number, plugin in steps if case.version >= "0.4.0" else ():
        lines += _request(case, "CHECK", number, plugin, leases, "checked")
    for stage in ("deleted", "again"):
        for number, plugin in reversed(steps):
            lines += _request(case, "DEL", number, plugin, leases, stage)
        lines.append(f"show {stage}")
    return "\n".join((*lines, "away"))


def _request(case: Case, command: str, number: int, plugin: Facts, leases: str, stage: str) -> list[str]:
    config = {"cniVersion": case.version, "name": "net", **plugin}
    if "ipam" in config and config["ipam"].get("type") == "host-local":
        config["ipam"] = {**config["ipam"], "dataDir": leases}
    text = shlex.quote(json.dumps(config)[:-1])
    has_result = command != "DEL" or case.version >= "0.4.0"
    return [
        f"config={text}",
        '[ -z "$result" ] || config="$config, \\"prevResult\\": $result"' if has_result else ":",
        f'answer=$(request {command} {plugin["type"]} "$config}}")',
        "code=$?",
        f"echo {_MARK} {stage} answer {command}.{number}",
        'echo "{\\"code\\": $code}"; echo "$answer"',
    ]


def _sections(lines: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    name, stage, subject = "", "", ""
    text: list[str] = []
    for line in (*lines, f"{_MARK}{_MARK} "):
        if not line.startswith(_MARK):
            text.append(line)
            continue
        if subject:
            yield name, stage, subject, "\n".join(text)
        text = []
        if line.startswith(_MARK + _MARK):
            name, subject = line.removeprefix(f"{_MARK}{_MARK} "), ""
        else:
            _, stage, subject = line.split(" ", 2)


def _without_chance(text: str) -> str:
    """Give what differs at every try a name of its own: hardware addresses and the names of links of the host."""
    text = re.sub(rf"\b(?!{_KNOWN_MACS})[0-9a-f]{{1,2}}(?::[0-9a-f]{{1,2}}){{5}}\b", "MAC", text)
    text = re.sub(r"\bbwp[0-9a-f]{12}\b", "bwpN", text)
    return re.sub(r"\bveth[0-9a-f]{8,11}\b", "vethN", text)


def _facts(subject: str, text: str) -> Facts:
    place, _, kind = subject.partition(" ")
    if kind == "sysctl":
        found = (line.removeprefix("/proc/sys/net/").partition(":") for line in text.splitlines() if line)
        return {f"{place} sysctl {name}": value for name, _, value in found}
    if place == "answer":
        return _answer(kind, text)
    entries = json.loads(text) if text.strip() else []
    facts: Facts = {}
    for entry in entries:
        if kind.startswith("route"):
            facts[f"{place} {kind} {json.dumps(_route(entry), sort_keys=True)}"] = True
        elif kind == "address":
            facts.update(_addresses(f"{place} address {entry['ifname']}", entry["addr_info"]))
        elif entry:
            facts.update(_flat(f"{place} {kind} {entry['ifname']}", _link(entry)))
    return facts


def _answer(kind: str, text: str) -> Facts:
    code, _, answer = text.partition("\n")
    facts = {f"answer {kind} code": json.loads(code)["code"]}
    told = json.loads(answer) if answer.strip() else {}
    if facts[f"answer {kind} code"] == 0:
        facts.update(_flat(f"answer {kind} result", told) if told else {})
    else:
        facts[f"answer {kind} {WORDS}"] = told.get("msg")
    return facts


# Numbers of the kernel, what follows a moment later by itself, and timers.
_CHANCE = {"ifindex", "link_index", "link_netnsid", "operstate", "qdisc", "master_index"}
_PASSING_FLAGS = {"NO-CARRIER", "LOWER_UP", "M-DOWN"}


def _link(entry: Facts) -> Facts:
    kept = {name: value for name, value in entry.items() if name not in _CHANCE}
    return {**kept, "flags": sorted(set(entry.get("flags", ())) - _PASSING_FLAGS)}


def _route(entry: Facts) -> Facts:
    return {**entry, "flags": [flag for flag in entry.get("flags", ()) if flag != "linkdown"]}


def _addresses(place: str, entries: list[Facts]) -> Facts:
    facts = {}
    for entry in entries:
        if entry:
            named = {name: value for name, value in entry.items() if name not in ("local", "prefixlen")}
            facts.update(_flat(f"{place} {entry['local']}/{entry['prefixlen']}", named))
    return facts


def _flat(place: str, value: object) -> Facts:
    if isinstance(value, dict):
        facts: Facts = {}
        for name, part in value.items():
            if not name.endswith("_timer") and name != "fdb_n_learned":
                facts.update(_flat(f"{place} {name}", part))
        return facts or {place: {}}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {
            name: part for number, one in enumerate(value) for name, part in _flat(f"{place} {number}", one).items()
        }
    return {place: value}
