"""
Deciding the system calls of an app by annotations and flags: profile, error, guards; and its AppArmor profile.

A profile is JSON in the form of the OCI runtime specification (config-linux.md, "Seccomp"), which Docker, Podman and
Kubernetes take. Rules for some capabilities, architectures and kernels alone are Docker's, names of errors Podman's. No
image can have these annotations. A profile stands in the place of the default list of calls. A list of an isolator
stays, and takes calls away from the profile.
"""

from __future__ import annotations

import re

from minit.base.errors import PlanError
from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.manifest.capabilities import DEFAULT, NAMES, capability_mask, capability_names
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.manifest.reader import Node, read_json
from minit.manifest.seccomp import (
    CAPABILITY_CALLS,
    MAXIMUM_PROFILE_BYTES,
    SECCOMP_WORDS,
    WORD_CAPABILITIES,
    WORD_GUARDED,
    WORD_UNCONFINED,
    SeccompPolicy,
    find_error,
)
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.inputs.origins import Origins
from minit.plan.inputs.runflags import RunFlags
from minit.plan.rights.seccompfilter import (
    ALLOW,
    AT_LEAST,
    AT_MOST,
    EQUAL,
    FILESYSTEMS,
    FRAMES,
    GREATER,
    HOST,
    KILL,
    LESS,
    LIMITS,
    MASKED_EQUAL,
    MOUNTS,
    TYPING,
    UNEQUAL,
    VSOCK,
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
# By machine: the name of its architecture, of that of 32-bit programs, and Go's name.
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
    """The conditions of rules: `capabilities` of an app as a mask, the machine, and its kernel as (major, minor)."""

    capabilities: int
    machine: str
    kernel: tuple[int, int]


class SeccompProfile(Value):
    """
    The rules of a profile for one app on one machine, and the action for all other calls.

    No rule has the action `default`. With `has_secondary` the rules hold for 32-bit programs of the machine, too; else
    the calls of such programs are fatal.
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
    """Return a profile; ManifestError, with `where`, for a text that is no profile or asks for unserved actions."""
    root = read_json(text.encode(errors="surrogateescape"), where)
    if len(text) > MAXIMUM_PROFILE_BYTES:
        raise root.error("a profile", f"more than {MAXIMUM_PROFILE_BYTES} characters")
    _check_fields(
        root, "defaultAction", "defaultErrnoRet", "defaultErrno", "architectures", "archMap", "flags", "syscalls"
    )
    # The flag is for all threads of a process: an app's process has one at that time.
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
    """Return whether each condition of a rule holds."""
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


_FATAL = "kill"


def plan_profile(runtime: RuntimeApp, surroundings: Surroundings) -> SeccompProfile | None:
    """Return the profile of an app, None without one; ManifestError or PlanError for a bad annotation."""
    text = runtime.annotation(Annotation.SECCOMP)
    if text is None or text == WORD_CAPABILITIES:
        return None
    if text in (WORD_UNCONFINED, WORD_GUARDED):
        return UNLIMITED
    where = f'app "{runtime.name}": annotation {Annotation.SECCOMP}'
    if not text.startswith("{"):
        raise PlanError(f"{where}: expected {', '.join(SECCOMP_WORDS)} or a profile in JSON")
    return read_profile(text, where, surroundings)


def is_unconfined(runtime: RuntimeApp) -> bool:
    """Tell whether the annotation is `unconfined`: no filter, while a profile that allows everything has guards."""
    return runtime.annotation(Annotation.SECCOMP) == WORD_UNCONFINED


def open_by_capabilities(runtime: RuntimeApp, policy: SeccompPolicy, capabilities: int) -> SeccompPolicy:
    """Return the default list with the calls of the given capabilities beyond the default ones, if annotated so."""
    if runtime.annotation(Annotation.SECCOMP) != WORD_CAPABILITIES or not policy.is_default:
        return policy
    more = (CAPABILITY_CALLS.get(name, frozenset()) for name in capability_names(capabilities & ~DEFAULT))
    return replace(policy, opened=frozenset().union(*more))


def plan_refused_error(runtime: RuntimeApp, manifest: PodManifest) -> int | None:
    """
    Return the error of refused system calls by the app's annotation or the pod's, None if refused calls are fatal.

    PlanError for a word that is no error.
    """
    for where, owner in ((f'app "{runtime.name}": ', runtime), ("", manifest)):
        name = owner.annotation(Annotation.SECCOMP_ERRNO)
        if name is None:
            continue
        if name == _FATAL:
            return None
        error = find_error(name)
        if error is None:
            raise PlanError(
                f'{where}annotation {Annotation.SECCOMP_ERRNO}: expected the name of an error or {_FATAL}, got "{name}"'
            )
        return error
    return None


def plan_apparmor(runtime: RuntimeApp, facts: HostFacts) -> str | None:
    """Return the AppArmor profile of an app, None without one; PlanError for a profile that the kernel lacks."""
    profile = runtime.annotation(Annotation.APPARMOR_PROFILE)
    if profile is None:
        return None
    where = f'app "{runtime.name}": {Annotation.APPARMOR_PROFILE}'
    if facts.loaded_profiles is None:
        raise PlanError(f'{where}: cannot have profile "{profile}": this kernel has no AppArmor, or it is not enabled')
    if profile not in facts.loaded_profiles:
        raise PlanError(f'{where}: profile "{profile}" is not loaded')
    return profile


def plan_guards(
    flags: RunFlags,
    origins: Origins,
    seccomp: SeccompPolicy | None,
    *,
    has_profile: bool,
    is_unconfined: bool,
    is_admin: bool,
    wants_vsock: bool,
) -> frozenset[str]:
    """
    Return the guards of an app whose list of system calls is `seccomp`, None for all.

    The caller gives a profile (`has_profile`), the annotation `unconfined` (`is_unconfined`), CAP_SYS_ADMIN
    (`is_admin`).

    No filter tells one file system from another, so a new mount could show an app the files of control groups. New
    mounts are allowed only if the caller disables both restrictions or says `unconfined`.
    """
    if flags.disable_seccomp and flags.disable_capabilities:
        return frozenset()
    if has_profile and (origins.capabilities is None or flags.disable_capabilities):
        if is_unconfined:
            return frozenset()
        return frozenset((TYPING, LIMITS, FRAMES, FILESYSTEMS, *((MOUNTS,) if is_admin else ())))
    guards = {FILESYSTEMS}
    if not flags.disable_seccomp:
        guards |= {TYPING, LIMITS, FRAMES}
        if not wants_vsock and (seccomp is not None or not origins.caller_calls):
            guards.add(VSOCK)
    if not (origins.caller_calls or flags.disable_seccomp) or (
        origins.capabilities is not None and not flags.disable_capabilities
    ):
        guards.add(HOST)
    return frozenset(guards)
