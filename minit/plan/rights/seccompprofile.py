"""
A seccomp profile, which an app has in place of the default list of system calls.

It is JSON in the form of the OCI runtime specification (config-linux.md, "Seccomp"), which Docker, Podman and
Kubernetes take; rules for some capabilities, architectures and kernels alone are Docker's, names of errors Podman's.
"""

from __future__ import annotations

import re

from minit.base.value import Value
from minit.manifest.capabilities import NAMES, capability_mask
from minit.manifest.reader import Node, read_json
from minit.manifest.seccomp import MAXIMUM_PROFILE_BYTES
from minit.manifest.seccompisolators import find_error
from minit.plan.rights.syscallfilter import (
    ALLOW,
    AT_LEAST,
    AT_MOST,
    EQUAL,
    GREATER,
    KILL,
    LESS,
    MASKED_EQUAL,
    UNEQUAL,
    Filter,
    Rule,
    Test,
    fail_with,
)

_MOST_RULES = 4096
_ERRNO = "SCMP_ACT_ERRNO"
_ACTIONS = {
    "SCMP_ACT_ALLOW": ALLOW,
    "SCMP_ACT_KILL": 0,  # SECCOMP_RET_KILL_THREAD
    "SCMP_ACT_KILL_PROCESS": KILL,
    "SCMP_ACT_KILL_THREAD": 0,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_TRAP": 0x00030000,
}
_UNSERVED_ACTIONS = ("SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE")
_OPERATORS = {
    "SCMP_CMP_EQ": EQUAL,
    "SCMP_CMP_GE": AT_LEAST,
    "SCMP_CMP_GT": GREATER,
    "SCMP_CMP_LE": AT_MOST,
    "SCMP_CMP_LT": LESS,
    "SCMP_CMP_MASKED_EQ": MASKED_EQUAL,
    "SCMP_CMP_NE": UNEQUAL,
}
# The name of a machine's architecture, that of its 32-bit programs, and the one that Go has for it.
_MACHINES = {
    "x86_64": ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "amd64"),
    "aarch64": ("SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM", "arm64"),
}
_ARCHITECTURE = re.compile(r"SCMP_ARCH_[A-Z0-9_]{1,32}")
_CALL = re.compile(r"[a-z0-9_]{1,64}")
_KERNEL = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
_LARGEST_ARGUMENT = (1 << 64) - 1
_LARGEST_ERROR = 4094  # below MAX_ERRNO, as in libseccomp
_LAST_ARGUMENT = 5
INSTALLING_CALLS = frozenset({"seccomp"})


class Surroundings(Value):
    """What a rule may be for alone: `capabilities` of an app, a mask, a machine, and its kernel as (major, minor)."""

    capabilities: int
    machine: str
    kernel: tuple[int, int]


class SeccompProfile(Value):
    """
    The rules of a profile for one app on one machine, and the action for what none of them is about.

    No rule has the action of the default. With `has_secondary` they are for 32-bit programs of the machine, too, whose
    calls are fatal without.
    """

    default: int = ALLOW
    rules: tuple[Rule, ...] = ()
    has_secondary: bool = True

    @property
    def allows_everything(self) -> bool:
        """Tell whether no system call is refused or logged."""
        return self.default == ALLOW and not self.rules and self.has_secondary

    def describe(self) -> str:
        """Return the decision as a line for --debug."""
        if self.allows_everything:
            return "all system calls"
        return f"system calls: a profile of {len(self.rules)} rules"


UNLIMITED = SeccompProfile()


def filter_of_profile(profile: SeccompProfile) -> Filter | None:
    """Return the filter of a profile, None if it allows everything."""
    return None if profile.allows_everything else Filter(default=profile.default, rules=profile.rules)


def read_profile(text: str, where: str, surroundings: Surroundings) -> SeccompProfile:
    """Return a profile; ManifestError, with `where`, for what is none or cannot be had."""
    root = read_json(text.encode(errors="surrogateescape"), where)
    if len(text) > MAXIMUM_PROFILE_BYTES:
        raise root.error("a profile", f"more than {MAXIMUM_PROFILE_BYTES} characters")
    _check_fields(
        root, "defaultAction", "defaultErrnoRet", "defaultErrno", "architectures", "archMap", "flags", "syscalls"
    )
    # For all threads of a process: there is one.
    root["flags"].each(lambda flag: flag.one_of("SECCOMP_FILTER_FLAG_TSYNC"))
    default = _read_action(root, "defaultAction", "defaultErrnoRet", "defaultErrno")
    rules: list[Rule] = []
    for node in root["syscalls"].elements():
        rules += _read_rules(node, surroundings)
        if len(rules) > _MOST_RULES:
            raise node.error(f"at most {_MOST_RULES} rules", "more")
    kept = tuple(rule for rule in dict.fromkeys(rules) if rule.action != default)
    return SeccompProfile(
        default=default, rules=kept, has_secondary=_has_secondary(root, surroundings) or _is_open(default, kept)
    )


def _is_open(default: int, rules: tuple[Rule, ...]) -> bool:
    return default == ALLOW and not rules


def _has_secondary(root: Node, surroundings: Surroundings) -> bool:
    listed = root["architectures"].each(_read_architecture)
    mapped = {
        _read_architecture(each["architecture"]): each["subArchitectures"].each(_read_architecture)
        for each in root["archMap"].elements()
    }
    if listed and mapped:
        raise root["archMap"].error("nothing beside architectures", "both")
    native, secondary, _ = _MACHINES.get(surroundings.machine, ("", "", ""))
    return secondary in (*listed, *mapped.get(native, ()))


def _read_rules(node: Node, surroundings: Surroundings) -> list[Rule]:
    _check_fields(node, "names", "name", "action", "errnoRet", "errno", "args", "comment", "includes", "excludes")
    if node["names"].given and node["name"].given and node["name"].string():
        raise node["name"].error("nothing beside names")
    calls = node["names"].each(_read_call) if node["names"].given else (_read_call(node["name"]),)
    if not calls:
        raise node["names"].error("at least one system call")
    action = _read_action(node, "action", "errnoRet", "errno")
    tests = node["args"].each(_read_test)
    arguments = [test.argument for test in tests]
    if len(set(arguments)) < len(arguments):
        raise node["args"].error("each argument once: a rule of its own for each of several values", "one twice")
    includes = _read_conditions(node["includes"], surroundings)
    excludes = _read_conditions(node["excludes"], surroundings)
    if not all(includes.values()) or any(excludes.values()) or not all(_is_possible(test) for test in tests):
        return []
    return [Rule(call=call, action=action, tests=tests) for call in calls]


def _read_conditions(node: Node, surroundings: Surroundings) -> dict[str, bool]:
    """Return whether each thing holds that a rule is for, or not for."""
    _check_fields(node, "arches", "caps", "minKernel")
    held: dict[str, bool] = {}
    for capability in node["caps"].each(_read_capability):
        held[capability] = bool(surroundings.capabilities & capability_mask(capability))
    if arches := node["arches"].each(Node.non_empty):
        held["arches"] = _MACHINES.get(surroundings.machine, ("", "", ""))[2] in arches
    if node["minKernel"].given and node["minKernel"].string():
        major, minor = node["minKernel"].matching(_KERNEL.fullmatch, 'a version like "5.12"').split(".")
        held["minKernel"] = surroundings.kernel >= (int(major), int(minor))
    return held


def _read_test(node: Node) -> Test:
    _check_fields(node, "index", "value", "valueTwo", "op")
    operator = _choose(node["op"], _OPERATORS, "an operator")
    value = node["value"].integer(0, _LARGEST_ARGUMENT) if node["value"].given else 0
    second = node["valueTwo"].integer(0, _LARGEST_ARGUMENT) if node["valueTwo"].given else 0
    argument = node["index"].integer(0, _LAST_ARGUMENT) if node["index"].given else 0
    if operator == MASKED_EQUAL:
        return Test(argument=argument, mask=value, value=second)
    return Test(argument=argument, value=value, operator=operator)


def _is_possible(test: Test) -> bool:
    return test.operator != MASKED_EQUAL or not test.value & ~test.mask


def _read_action(node: Node, field: str, number: str, name: str) -> int:
    text = node[field].string()
    if text in _UNSERVED_ACTIONS:
        raise node[field].error("an action without another process", f'"{text}"')
    error = node[number].integer(0, _LARGEST_ERROR) if node[number].given else None
    if node[name].given and node[name].string():
        named = find_error(node[name].string())
        if named is None or error not in (None, named):
            raise node[name].error("the name of an error" + (f", that of {number}" if named else ""))
        error = named
    if text == _ERRNO:
        return fail_with(find_error("EPERM") or 1 if error is None else error)
    return _choose(node[field], _ACTIONS, "an action")


def _choose(node: Node, choices: dict[str, int], what: str) -> int:
    return choices[node.matching(choices.__contains__, f"{what} of the OCI specification")]


def _read_architecture(node: Node) -> str:
    return node.matching(_ARCHITECTURE.fullmatch, "an architecture like SCMP_ARCH_X86_64")


def _read_call(node: Node) -> str:
    return node.matching(_CALL.fullmatch, "the name of a system call")


def _read_capability(node: Node) -> str:
    return node.matching(NAMES.__contains__, "a capability like CAP_SYS_ADMIN")


def _check_fields(node: Node, *names: str) -> None:
    value = node.raw()
    if value is None:
        return
    if not isinstance(value, dict):
        raise node.error("an object")
    known = {name.lower() for name in names}
    for key, field in value.items():
        if key.lower() not in known:
            raise Node(field, node, key).error(f"one of the fields {', '.join(names)}", "one without a meaning here")
