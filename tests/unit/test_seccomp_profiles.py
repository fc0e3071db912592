"""minit.plan.rights.seccompprofile: profiles in JSON are read whole or refused, and compiled as they say."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from minit.base.errors import ManifestError, PlanError
from minit.launcher.start.filterprograms import compile_filters
from minit.manifest.capabilities import DEFAULT, capability_mask
from minit.manifest.pod import RuntimeApp
from minit.manifest.seccomp import DEFAULT_POLICY, MAXIMUM_PROFILE_BYTES, SeccompPolicy
from minit.plan.rights.seccompfilter import ALLOW, DEFAULT_GUARDS, KILL, Filter, Rule, compile_filter, fail_with
from minit.plan.rights.seccompfilter import Test as Argument
from minit.plan.rights.seccompprofile import (
    UNLIMITED,
    SeccompProfile,
    Surroundings,
    filter_of_profile,
    is_unconfined,
    open_by_capabilities,
    plan_profile,
    read_profile,
)
from tests.support import libseccomp
from tests.support.bpf import ARM, I386, NATIVE, X32_BIT, X86_64, Calls, Program, answer

HERE = Surroundings(capabilities=DEFAULT, machine="x86_64", kernel=(6, 1))
KILL_THREAD, TRAP, LOG = 0, 0x00030000, 0x7FFC0000
ACTIONS = {
    "SCMP_ACT_ALLOW": ALLOW,
    "SCMP_ACT_ERRNO": fail_with(errno.EPERM),
    "SCMP_ACT_KILL": KILL_THREAD,
    "SCMP_ACT_KILL_PROCESS": KILL,
    "SCMP_ACT_KILL_THREAD": KILL_THREAD,
    "SCMP_ACT_LOG": LOG,
    "SCMP_ACT_TRAP": TRAP,
}
OPERATORS: dict[str, Callable[[int, int, int], bool]] = {
    "SCMP_CMP_NE": lambda argument, value, _: argument != value,
    "SCMP_CMP_LT": lambda argument, value, _: argument < value,
    "SCMP_CMP_LE": lambda argument, value, _: argument <= value,
    "SCMP_CMP_EQ": lambda argument, value, _: argument == value,
    "SCMP_CMP_GE": lambda argument, value, _: argument >= value,
    "SCMP_CMP_GT": lambda argument, value, _: argument > value,
    "SCMP_CMP_MASKED_EQ": lambda argument, mask, value: argument & mask == value,
}
CALLS = ("read", "write", "personality")


def read(profile: object, surroundings: Surroundings = HERE) -> SeccompProfile:
    """Return a profile as it is read from JSON."""
    return read_profile(json.dumps(profile), "profile", surroundings)


def compiled(profile: SeccompProfile) -> list[Program]:
    """Return the programs of a profile alone."""
    return [Program(data) for data in compile_filters(None, frozenset(), profile)]


def as_signed(action: int) -> int:
    """Return the rank of an action: the smaller the stricter."""
    return action - (1 << 32) if action >> 31 else action


def holds_test(test: dict[str, Any], argument: int, bits: int) -> bool:
    """Return whether a test holds of an argument in a program whose registers have so many bits."""
    first, second, operator = test["value"], test["valueTwo"], test["op"]
    if operator == "SCMP_CMP_MASKED_EQ" and second & ~first:
        return False
    return OPERATORS[operator](*(number % (1 << bits) for number in (argument, first, second)))


def expected(profile: dict[str, Any], call: str, arguments: list[int], bits: int) -> set[int]:
    """Return what a profile may say of a call: the strictest of the rules that hold and are not the default."""
    default = ACTIONS[profile["defaultAction"]]
    held = []
    for rule in profile["syscalls"]:
        action = fail_with(rule["errnoRet"]) if "errnoRet" in rule else ACTIONS[rule["action"]]
        holds = all(holds_test(each, arguments[each["index"]], bits) for each in rule["args"])
        if call in rule["names"] and action != default and holds:
            held.append(action)
    if not held:
        return {default}
    strictest = min(held, key=lambda action: as_signed(action & 0xFFFF0000))
    return {action for action in held if action & 0xFFFF0000 == strictest & 0xFFFF0000}


# Numbers near each other, and near what is one for 32 bits and another one for 64.
numbers = st.sampled_from([0, 1, 2, 3, 7, 8, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 32) + 1, (1 << 64) - 1])
tests = st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(0, 3), "value": numbers, "valueTwo": numbers, "op": st.sampled_from(sorted(OPERATORS))}
    ),
    max_size=3,
    unique_by=lambda test: test["index"],
)
rules = st.fixed_dictionaries(
    {
        "names": st.lists(st.sampled_from(CALLS), min_size=1, max_size=2),
        "action": st.sampled_from(sorted(ACTIONS)),
        "args": tests,
    }
)
errors = st.fixed_dictionaries(
    {
        "names": st.lists(st.sampled_from(CALLS), min_size=1, max_size=2),
        "action": st.just("SCMP_ACT_ERRNO"),
        "errnoRet": st.sampled_from([0, 1, 38, 4094]),
        "args": tests,
    }
)
profiles = st.fixed_dictionaries(
    {"defaultAction": st.sampled_from(sorted(ACTIONS)), "syscalls": st.lists(rules | errors, max_size=5)}
)


@settings(max_examples=300, deadline=None)
@given(profile=profiles, samples=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=5, max_size=5))
@example(
    profile={
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "args": []},
            {"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": []},
        ],
    },
    samples=[[0, 0, 0, 0]],
)
def test_any_profile(profile: dict[str, Any], samples: list[list[int]]) -> None:
    """All tests of a rule hold, of any number of rules; of those that hold the strictest counts, else the default."""
    programs = compiled(read({**profile, "architectures": ["SCMP_ARCH_X86"]}))
    assume(programs)
    for arguments in samples:
        for call in (*CALLS, "getppid"):
            told = answer(programs, X86_64, Calls(X86_64).number(call), arguments)
            assert told in expected(profile, call, arguments, 64), (call, arguments)
            short = [argument % (1 << 32) for argument in arguments]
            told = answer(programs, I386, Calls(I386).number(call), short)
            assert told in expected(profile, call, short, 32), (call, short)


# Several rules for a call, of which one has a bound, the library mixes up; so it does with calls within others.
distinct = st.dictionaries(
    st.sampled_from([*CALLS, "openat", "prctl"]), st.tuples(st.sampled_from(sorted(ACTIONS)), tests), max_size=4
)


@settings(max_examples=150, deadline=None)
@given(
    default=st.sampled_from(sorted(ACTIONS)),
    by_call=distinct,
    samples=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=3, max_size=3),
)
def test_the_library_answers_alike(
    default: str, by_call: dict[str, tuple[str, list[dict[str, Any]]]], samples: list[list[int]]
) -> None:
    """libseccomp, which other runtimes use, makes a filter of the same answers."""
    listed = [{"names": [call], "action": action, "args": tests} for call, (action, tests) in by_call.items()]
    rules = read({"defaultAction": default, "syscalls": listed}).rules
    of_library = [
        (rule.call, rule.action, [(test.argument, test.operator, test.value, test.mask) for test in rule.tests])
        for rule in rules
    ]
    theirs = Program(libseccomp.compile_filter(ACTIONS[default], of_library))
    ours = Program(compile_filter(Filter(default=ACTIONS[default], rules=rules), "x86_64"))
    for architecture in (X86_64, I386, ARM):
        for number in (*range(0, 600, 7), *(map(Calls(architecture).number, by_call)), X32_BIT, 0xFFFFFFFF):
            for sample in samples:
                arguments = [argument % (1 << 32) for argument in sample] if architecture == I386 else sample
                told = theirs.run(architecture, number, arguments)
                assert ours.run(architecture, number, arguments) == told, (number, arguments)


def test_sockets_in_a_call_of_many() -> None:
    """Their arguments are in memory: a rule about them refuses all sockets, or allows none by that call."""
    numbers = Calls(I386)
    for default, action, other in (
        ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", ALLOW),
        ("SCMP_ACT_KILL", "SCMP_ACT_ERRNO", KILL_THREAD),
        ("SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW", fail_with(1)),
        ("SCMP_ACT_ERRNO", "SCMP_ACT_LOG", fail_with(1)),
        ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG", ALLOW),
    ):
        rule = {"names": ["socket"], "action": action, "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_EQ"}]}
        profile = {"defaultAction": default, "architectures": ["SCMP_ARCH_X86"], "syscalls": [rule]}
        programs = compiled(read(profile))
        assert answer(programs, I386, numbers.number("socket"), [40]) == ACTIONS[action]
        assert answer(programs, I386, numbers.number("socket"), [41]) == other
        within = other if default == "SCMP_ACT_ERRNO" else ACTIONS[action]
        assert answer(programs, I386, numbers.number("socketcall"), [1]) == within
        assert answer(programs, I386, numbers.number("socketcall"), [2]) == other


def test_versions_of_ipc() -> None:
    """The upper half of its first argument is no way around a rule."""
    rule = {"names": ["shmget"], "action": "SCMP_ACT_ERRNO"}
    programs = compiled(
        read({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86"], "syscalls": [rule]})
    )
    number = Calls(I386).number("ipc")
    assert {answer(programs, I386, number, [call]) for call in (23, 23 | 1 << 16)} == {fail_with(1)}
    assert answer(programs, I386, number, [24]) == ALLOW


def test_architectures() -> None:
    """Programs of 32 bits have the rules if the profile lists them, and die otherwise."""
    rule = {"names": ["getppid"], "action": "SCMP_ACT_ERRNO"}
    number = Calls(I386).number("getppid")
    for fields, wanted in (
        ({"architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]}, fail_with(errno.EPERM)),
        ({"archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}]}, fail_with(1)),
        ({"archMap": [{"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]}]}, KILL),
        ({}, KILL),
    ):
        programs = compiled(read({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule], **fields}))
        assert answer(programs, I386, number) == wanted
        assert answer(programs, X86_64, NATIVE.number("getppid")) == fail_with(1)


@pytest.mark.parametrize(
    ("conditions", "is_kept"),
    [
        ({"includes": {"caps": ["CAP_CHOWN"]}}, True),
        ({"includes": {"caps": ["CAP_CHOWN", "CAP_SYS_ADMIN"]}}, False),
        ({"excludes": {"caps": ["CAP_SYS_ADMIN", "CAP_CHOWN"]}}, False),
        ({"excludes": {"caps": ["CAP_SYS_ADMIN"]}}, True),
        ({"includes": {"arches": ["arm64", "amd64"]}}, True),
        ({"includes": {"arches": ["arm64"]}}, False),
        ({"excludes": {"arches": ["amd64"]}}, False),
        ({"includes": {"minKernel": "6.1"}}, True),
        ({"includes": {"minKernel": "6.10"}}, False),
        ({"includes": {}, "excludes": None}, True),
    ],
)
def test_conditions(conditions: dict[str, object], is_kept: bool) -> None:
    """Rules for capabilities, architectures and kernels count where these are."""
    rule = {"name": "read", "action": "SCMP_ACT_ALLOW", **conditions}
    assert bool(read({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule]}).rules) is is_kept


def one(**fields: object) -> dict[str, object]:
    """Return a profile of one rule with other fields."""
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_LOG", **fields}]}


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ([], "expected an object"),
        ({}, "defaultAction: expected a string, got nothing"),
        ({"defaultAction": "ALLOW"}, "defaultAction: expected an action of the OCI specification"),
        ({"defaultAction": "SCMP_ACT_ALLOW", "x": 1}, "x: expected one of the fields defaultAction,"),
        ({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"]}, "flags\\[0\\]: expected"),
        ({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["amd64"]}, "expected an architecture like"),
        ({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}, "listenerPath: expected one of the fields"),
        ({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 4095}, "an integer from 0 to 4094"),
        ({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": "EX"}, "the name of an error"),
        (one(action="SCMP_ACT_TRACE"), "action: expected an action without another process, got .SCMP_ACT_TRACE."),
        (one(action="SCMP_ACT_NOTIFY"), "an action without another process"),
        (one(errno="ENOSYS", errnoRet=1), "the name of an error, that of errnoRet"),
        (one(names=[]), "at least one system call"),
        (one(names=["re ad"]), "the name of a system call"),
        (one(name="write"), "nothing beside names"),
        (one(arg=[]), "arg: expected one of the fields names,"),
        (one(args=[{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]), "an integer from 0 to 5"),
        (one(args=[{"index": 0, "value": 1 << 64, "op": "SCMP_CMP_EQ"}]), "an integer from 0 to"),
        (one(args=[{"index": 0, "value": 1, "op": "EQ"}]), "an operator of the OCI specification"),
        (one(args=[{"index": 0, "op": "SCMP_CMP_EQ"}] * 2), "each argument once"),
        (one(includes={"caps": ["SYS_ADMIN"]}), "a capability like CAP_SYS_ADMIN"),
        (one(includes={"minKernel": "new"}), "a version like"),
        (one(names=["read"] * 5000), "at most 4096 rules"),
        (one(comment="x" * MAXIMUM_PROFILE_BYTES), "more than 262144 characters"),
    ],
)
def test_errors(profile: object, message: str) -> None:
    """Each names its place and what is expected there."""
    with pytest.raises(ManifestError, match=message):
        read(profile)


def test_too_large_a_filter() -> None:
    """What the kernel would not take is said, not tried."""
    rules = tuple(
        Rule(call="read", action=KILL, tests=tuple(Argument(argument=n, value=number << 33 | 1) for n in range(6)))
        for number in range(300)
    )
    with pytest.raises(OSError, match="instructions is too large"):
        compiled(SeccompProfile(rules=rules))


PODMAN = Path("/usr/share/containers/seccomp.json")


@pytest.mark.skipif(not PODMAN.exists(), reason="Podman's profile is not installed")
@pytest.mark.parametrize(("capability", "mount", "module"), [("CAP_CHOWN", ALLOW, 1), ("CAP_SYS_MODULE", ALLOW, None)])
def test_the_profile_of_podman(capability: str, mount: int, module: int | None) -> None:
    """It is taken as it is, with its rules for capabilities."""
    surroundings = Surroundings(capabilities=capability_mask(capability), machine="x86_64", kernel=(6, 1))
    programs = compiled(read_profile(PODMAN.read_text(), "podman", surroundings))
    assert answer(programs, X86_64, NATIVE.number("mount")) == mount
    assert answer(programs, X86_64, NATIVE.number("init_module")) == (ALLOW if module is None else fail_with(module))
    assert answer(programs, X86_64, NATIVE.number("personality"), [8]) == ALLOW
    assert answer(programs, X86_64, NATIVE.number("personality"), [7]) == fail_with(errno.ENOSYS)
    assert answer(programs, I386, Calls(I386).number("getppid")) == ALLOW


def app(value: str) -> RuntimeApp:
    """Return an app with the annotation."""
    return RuntimeApp(name="a", image_id="sha512-1", annotations=(("minit/seccomp", value),))


def test_the_annotation() -> None:
    """It is a profile, or one of three words."""
    assert plan_profile(app("unconfined"), HERE) == plan_profile(app("guarded"), HERE) == UNLIMITED
    assert [is_unconfined(app(word)) for word in ("unconfined", "guarded", "by-capabilities")] == [True, False, False]
    assert plan_profile(app("by-capabilities"), HERE) is None
    profile = plan_profile(app('{"defaultAction": "SCMP_ACT_ALLOW"}'), HERE)
    assert profile == UNLIMITED
    assert filter_of_profile(UNLIMITED) is None
    with pytest.raises(PlanError, match="expected unconfined, guarded, by-capabilities or a profile in JSON"):
        plan_profile(app("confined"), HERE)
    with pytest.raises(ManifestError, match='app "a": annotation minit/seccomp: defaultAction'):
        plan_profile(app("{}"), HERE)


def test_calls_of_capabilities() -> None:
    """Those beyond the default ones open their calls, but for mounts; a list of one's own stays."""
    assert open_by_capabilities(app("by-capabilities"), DEFAULT_POLICY, DEFAULT) == DEFAULT_POLICY
    admin = DEFAULT | capability_mask("CAP_SYS_ADMIN")
    assert open_by_capabilities(app("unconfined"), DEFAULT_POLICY, admin) == DEFAULT_POLICY
    own = SeccompPolicy(names=frozenset({"read"}))
    assert open_by_capabilities(app("by-capabilities"), own, admin) == own
    policy = open_by_capabilities(app("by-capabilities"), DEFAULT_POLICY, admin)
    programs = [Program(data) for data in compile_filters(policy, DEFAULT_GUARDS)]
    for call in ("sethostname", "setns", "unshare", "bpf", "clone3"):
        assert answer(programs, X86_64, NATIVE.number(call)) == ALLOW, call
    assert answer(programs, X86_64, NATIVE.number("clone"), [0x20000000]) == ALLOW
    for call in ("init_module", "reboot", "ptrace", "mount", "umount2", "pivot_root"):
        assert answer(programs, X86_64, NATIVE.number(call)) == KILL, call
    for call in ("fsopen", "move_mount", "open_tree", "mount_setattr"):
        assert answer(programs, X86_64, NATIVE.number(call)) == fail_with(errno.ENOSYS), call
    assert answer(programs, X86_64, NATIVE.number("ioctl"), [0, 0x5412]) == fail_with(errno.EPERM)


@pytest.mark.parametrize(
    "policy", [SeccompPolicy(names=frozenset()), SeccompPolicy(is_blacklist=True, names=frozenset({"seccomp"}))]
)
def test_a_list_of_an_image_stays(policy: SeccompPolicy) -> None:
    """It takes away from a profile, and does not keep that from being installed after it."""
    profile = read({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["getpid"], "action": "SCMP_ACT_ERRNO"}]})
    programs = [Program(data) for data in compile_filters(policy, frozenset(), profile)]
    assert {program.run(X86_64, NATIVE.number("seccomp")) for program in programs} == {ALLOW}
    assert answer(programs, X86_64, NATIVE.number("getpid")) == fail_with(errno.EPERM)
    assert answer(programs, X86_64, NATIVE.number("fchmod")) == (ALLOW if policy.is_blacklist else KILL)
