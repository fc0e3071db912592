"""minit.plan.rights.seccompfilter: compiled filters answer as their policy says."""

from __future__ import annotations

import errno
import mmap
import os
import re
import termios

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.launcher.start.filterprograms import compile_filters, compile_sidecar_filter
from minit.manifest.seccomp import ANCIENT_CALLS, CALL_SETS, DEFAULT_CALLS, DEFAULT_POLICY, MINIMUM_CALLS, SeccompPolicy
from minit.plan.rights.seccompfilter import (
    ALLOW,
    DEFAULT_GUARDS,
    FILESYSTEMS,
    FRAMES,
    HOST,
    KILL,
    LIMITS,
    MOUNTS,
    TYPING,
    VSOCK,
    Filter,
    Rule,
    compile_filter,
    fail_with,
)
from minit.plan.rights.syscallnumbers import is_system_call
from tests.support.bpf import AARCH64, ARM, I386, X32_BIT, X86_64, Calls, Program, answer

NATIVE, SECONDARY = {"x86_64": (X86_64, I386), "aarch64": (AARCH64, ARM)}[os.uname().machine]
TABLES = {architecture: Calls(architecture) for architecture in (NATIVE, SECONDARY)}
UNKNOWN = fail_with(errno.ENOSYS)
NOT_PERMITTED = fail_with(errno.EPERM)
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
CLONE_NEWUSER, CLONE_NEWTIME, CLONE_VM_AND_SIGCHLD = 0x10000000, 0x80, 0x111

# i386 has one call for all that sockets can do, and one for System V IPC; the library looks at what is asked for.
MULTIPLEXED = {"socketcall", "ipc"}


def programs_of(policy: SeccompPolicy | None, guards: frozenset[str] = frozenset({TYPING})) -> list[Program]:
    """Return the compiled filters of a policy with guards."""
    return [Program(data) for data in compile_filters(policy, guards)]


def expected(policy: SeccompPolicy, name: str) -> int:
    """Return what the policy says about a call with harmless arguments."""
    refusal = KILL if policy.error is None else fail_with(policy.error)
    if policy.is_blacklist:
        return refusal if name in (policy.names or ()) else ALLOW
    allowed = MINIMUM_CALLS | (DEFAULT_CALLS if policy.names is None else policy.names)
    if name in allowed:
        return ALLOW
    return refusal if name in ANCIENT_CALLS else UNKNOWN


def assert_enforced(policy: SeccompPolicy) -> None:
    """Every system call of both architectures is answered as the policy says, and a whitelist allows no other."""
    programs = programs_of(policy)
    for architecture, calls in TABLES.items():
        for number in range(600):
            name = calls.names.get(number)
            if name in MULTIPLEXED:
                continue
            wanted = expected(policy, name) if name else ALLOW if policy.is_blacklist else UNKNOWN
            assert answer(programs, architecture, number) == wanted, (architecture, number, name)


def test_the_default() -> None:
    """An app that says nothing may make rkt's calls and newer ones of C libraries; others are fatal or unknown."""
    assert_enforced(DEFAULT_POLICY)


@pytest.mark.parametrize("error", [None, errno.EXFULL, errno.ENOSYS])
@pytest.mark.parametrize("name", sorted(CALL_SETS))
@pytest.mark.parametrize("is_blacklist", [False, True], ids=["retain", "remove"])
def test_every_set(is_blacklist: bool, name: str, error: int | None) -> None:
    """Each set holds in a list of either kind, with the answer that was asked for."""
    assert_enforced(SeccompPolicy(is_blacklist=is_blacklist, names=CALL_SETS[name], error=error))


KNOWN = sorted(set().union(*(calls.names.values() for calls in TABLES.values())) - MULTIPLEXED - {"clone", "ioctl"})


@settings(max_examples=15, deadline=None)
@given(
    names=st.frozensets(st.sampled_from(KNOWN), max_size=60),
    is_blacklist=st.booleans(),
    error=st.none() | st.sampled_from([errno.EPERM, errno.ENOSYS, errno.EMULTIHOP]),
)
def test_any_list(names: frozenset[str], is_blacklist: bool, error: int | None) -> None:
    """For any list every number of every architecture gets the answer of its name."""
    assert_enforced(SeccompPolicy(is_blacklist=is_blacklist, names=names, error=error))


POLICIES = [
    DEFAULT_POLICY,
    SeccompPolicy(error=errno.EPERM),
    SeccompPolicy(names=CALL_SETS["@docker/default-whitelist"]),
    SeccompPolicy(is_blacklist=True, names=CALL_SETS["@docker/default-blacklist"]),
    SeccompPolicy(is_blacklist=True, names=frozenset()),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("request_number", [TIOCSTI, TIOCLINUX])
@pytest.mark.parametrize("hidden", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_typing_into_a_terminal_is_refused(policy: SeccompPolicy, request_number: int, hidden: int) -> None:
    """In every filter, whatever is in the half of the argument that the kernel does not look at."""
    programs = programs_of(policy)
    for architecture, calls in TABLES.items():
        number = calls.number("ioctl")
        assert answer(programs, architecture, number, [0, request_number | hidden]) == NOT_PERMITTED
        assert answer(programs, architecture, number, [request_number, request_number + 1]) == ALLOW


def test_a_list_without_ioctl_refuses_all_of_it() -> None:
    """A call that is refused altogether is refused for these requests too."""
    for policy in (
        SeccompPolicy(names=frozenset({"read"})),
        SeccompPolicy(is_blacklist=True, names=frozenset({"ioctl"})),
    ):
        programs = programs_of(policy)
        for architecture, calls in TABLES.items():
            assert answer(programs, architecture, calls.number("ioctl"), [0, TIOCSTI]) == KILL


@pytest.mark.parametrize("flag", [1 << bit for bit in range(8, 32)])
def test_clone_makes_no_namespaces_by_default(flag: int) -> None:
    """The default whitelist lets clone make processes and threads; unshare, which it lacks, would be fatal."""
    makes_namespace = flag & 0x7E020000
    for architecture, calls in TABLES.items():
        number = calls.number("clone")
        wanted = NOT_PERMITTED if makes_namespace else ALLOW
        programs = programs_of(DEFAULT_POLICY, DEFAULT_GUARDS)
        assert answer(programs, architecture, number, [flag | CLONE_VM_AND_SIGCHLD]) == wanted


def test_clone_makes_namespaces_where_the_caller_lists_it() -> None:
    """rkt's sets allow it as it is."""
    programs = programs_of(SeccompPolicy(names=CALL_SETS["@rkt/default-whitelist"]), DEFAULT_GUARDS - {HOST})
    for architecture, calls in TABLES.items():
        assert answer(programs, architecture, calls.number("clone"), [CLONE_NEWUSER]) == ALLOW


# With and without the magic number of old, in whose place the kernel sees nothing.
MAGIC = 0xC0ED0000
ABOUT_MOUNTS = re.compile("mount|pivot_root|open_tree|fs(open|config|pick)$")
ONLY_TELL = {"statmount", "listmount"}
NEW_MOUNTS = [0, 0x1, 0x400, MAGIC, MAGIC | 0x40000, MAGIC | 0xE, 1 << 40]
OTHER_MOUNTS = [0x20, 0x1000, 0x2000, 0x20000, 0x40000, 0x80000, 0x100000, MAGIC | 0x1000, MAGIC | 0x20]


def test_no_new_filesystem_is_mounted() -> None:
    """mount(2) works on mounts that are there, with or without a list of calls; fsopen begins a new one."""
    for policy in (None, SeccompPolicy(is_blacklist=True, names=frozenset({"chmod"}))):
        programs = programs_of(policy, frozenset({FILESYSTEMS}))
        for architecture, calls in TABLES.items():
            number = calls.number("mount")
            assert {answer(programs, architecture, number, [0, 0, 0, flags]) for flags in NEW_MOUNTS} == {NOT_PERMITTED}
            assert {answer(programs, architecture, number, [0, 0, 0, flags]) for flags in OTHER_MOUNTS} == {ALLOW}
            assert answer(programs, architecture, calls.number("fsopen")) == NOT_PERMITTED


def test_no_mount_is_changed() -> None:
    """By no call that is about mounts: who adds a new one to the numbers has to tell whether it only tells of them."""
    programs = programs_of(None, frozenset({MOUNTS}))
    for architecture, calls in TABLES.items():
        found = {number: name for number, name in calls.names.items() if ABOUT_MOUNTS.search(name)}
        assert {"mount", "umount2", "mount_setattr", *ONLY_TELL} <= {*found.values()}
        for number, name in found.items():
            wanted = ALLOW if name in ONLY_TELL else NOT_PERMITTED
            assert answer(programs, architecture, number, [0, 0, 0, 0x1020]) == wanted, name


def test_limits_of_others_cannot_be_set() -> None:
    """prlimit reads those of any process, and sets those of its caller."""
    programs = programs_of(DEFAULT_POLICY, frozenset({LIMITS}))
    for architecture, calls in TABLES.items():
        number = calls.number("prlimit64")
        assert answer(programs, architecture, number, [1, 7, 0x1000, 0]) == NOT_PERMITTED
        assert {answer(programs, architecture, number, given) for given in ([0, 7, 0x1000], [1, 7, 0])} == {ALLOW}


def test_frames_that_the_kernel_completes() -> None:
    """No frame comes with the place of its checksum; other options of sockets for frames may be set."""
    programs = programs_of(DEFAULT_POLICY, frozenset({FRAMES}))
    for architecture, calls in TABLES.items():
        number = calls.number("setsockopt")
        for option in (15, 24, 15 | 1 << 32):
            assert answer(programs, architecture, number, [3, 263, option]) == NOT_PERMITTED
        assert {answer(programs, architecture, number, given) for given in ([3, 263, 14], [3, 1, 15])} == {ALLOW}
        assert answer(programs, architecture, calls.number("socket"), [44, 3]) == fail_with(errno.EAFNOSUPPORT)


def test_sockets_of_virtual_machines() -> None:
    """Their family is refused as if it did not exist, whatever is in the half of the argument that does not count."""
    programs = programs_of(DEFAULT_POLICY, frozenset({VSOCK}))
    for architecture, calls in TABLES.items():
        number = calls.number("socket")
        for family in (40, 40 | 1 << 32):
            assert answer(programs, architecture, number, [family, 1]) == fail_with(errno.EAFNOSUPPORT)
        assert {answer(programs, architecture, number, [family, 1]) for family in (1, 2, 10, 16, 41)} == {ALLOW}


@pytest.mark.skipif(NATIVE != X86_64, reason="i386 alone has one call for all that sockets can do")
def test_socketcall_makes_no_sockets() -> None:
    """The family is in memory there, where no filter sees it: other things can be done with sockets."""
    programs = programs_of(DEFAULT_POLICY, frozenset({VSOCK}))
    number = TABLES[I386].number("socketcall")
    assert answer(programs, I386, number, [1]) == fail_with(errno.EAFNOSUPPORT)
    assert {answer(programs, I386, number, [call]) for call in range(2, 19)} == {ALLOW}


def test_what_no_image_opens() -> None:
    """For any list of an image mounts, namespaces, keys and handles of files are refused, and clone3 is not there."""
    programs = programs_of(None, frozenset({HOST}))
    for architecture, calls in TABLES.items():
        for name in (
            "mount",
            "umount2",
            "move_mount",
            "open_tree",
            "fsopen",
            "unshare",
            "setns",
            "keyctl",
            "pivot_root",
        ):
            assert answer(programs, architecture, calls.number(name), [0, 0, 0, 0x1000]) == NOT_PERMITTED
        assert answer(programs, architecture, calls.number("clone3")) == UNKNOWN
        assert answer(programs, architecture, calls.number("clone"), [CLONE_NEWUSER]) == NOT_PERMITTED


@pytest.mark.parametrize("policy", POLICIES)
def test_other_architectures_are_fatal(policy: SeccompPolicy) -> None:
    """No list of calls holds where a number means another call; nor for x32, whose calls have several numbers."""
    programs = programs_of(policy)
    for architecture in {X86_64, I386, ARM, AARCH64, 0, 0xC0000015} - set(TABLES):
        for number in (0, 1, 39, 500):
            assert answer(programs, architecture, number) == KILL
    if NATIVE == X86_64:
        for number in range(600):
            assert answer(programs, X86_64, X32_BIT | number) == KILL


@pytest.mark.parametrize("number", [600, 1000, 4095, 0x3FFFFFFF])
def test_numbers_nobody_has_are_unknown_to_a_whitelist(number: int) -> None:
    """A kernel answers ENOSYS to what it does not have, and so does a whitelist to what it has never heard of."""
    for architecture in TABLES:
        assert answer(programs_of(DEFAULT_POLICY), architecture, number) == UNKNOWN


@pytest.mark.skipif(NATIVE != X86_64, reason="i386 alone has one call for all that sockets can do")
@pytest.mark.parametrize("is_blacklist", [False, True])
def test_the_calls_within_socketcall(is_blacklist: bool) -> None:
    """i386 asks for a socket by socketcall, too: its first argument is what the name of the list is held against."""
    programs = programs_of(SeccompPolicy(is_blacklist=is_blacklist, names=frozenset({"socket"}), error=errno.EPERM))
    number, socket, bind = TABLES[I386].number("socketcall"), 1, 2
    answers = [answer(programs, I386, number, [call]) for call in (socket, bind)]
    assert answers == ([NOT_PERMITTED, ALLOW] if is_blacklist else [ALLOW, NOT_PERMITTED])


def test_the_names_of_all_lists() -> None:
    """A name that was mistyped in a list would protect nothing."""
    everywhere = ANCIENT_CALLS | DEFAULT_CALLS | MINIMUM_CALLS | frozenset().union(*CALL_SETS.values())
    assert not {name for name in everywhere if not is_system_call(name)}


def test_rkts_lists() -> None:
    """They have as many names as rkt's, none in both; ours has nothing of rkt's blacklist."""
    white, black = CALL_SETS["@docker/default-whitelist"], CALL_SETS["@docker/default-blacklist"]
    assert (len(white), len(black)) == (309, 50)
    assert not white & black and not DEFAULT_CALLS & black
    assert white < CALL_SETS["@rkt/default-whitelist"] and black == CALL_SETS["@rkt/default-blacklist"]


def test_the_same_policy_gives_the_same_bytes() -> None:
    """Or an image could not be built again."""
    assert compile_filters(DEFAULT_POLICY, DEFAULT_GUARDS) == compile_filters(DEFAULT_POLICY, DEFAULT_GUARDS)


def test_an_unknown_call_is_left_out() -> None:
    """The rest of a filter holds though one of its names means nothing."""
    rules = (Rule(call="no_such_call", action=KILL), Rule(call="read", action=KILL))
    program = Program(compile_filter(Filter(default=ALLOW, rules=rules), os.uname().machine))
    assert program.run(NATIVE, TABLES[NATIVE].number("read")) == KILL
    assert not is_system_call("no_such_call") and not is_system_call("")


@pytest.mark.parametrize("architecture", [NATIVE, SECONDARY])
@pytest.mark.parametrize(
    "name", ["execve", "execveat", "ptrace", "socket", "connect", "open", "clone", "clone3", "fork", "kill"]
)
def test_what_a_sidecar_has_no_business_with(architecture: int, name: str) -> None:
    """It can make no process, program, connection or trace, and opens files relative to a directory only."""
    numbers = [number for number, other in TABLES[architecture].names.items() if other == name]
    program = Program(compile_sidecar_filter())
    assert [program.run(architecture, number) for number in numbers] == [NOT_PERMITTED] * len(numbers)


def test_a_sidecar_and_its_terminals_and_memory() -> None:
    """It asks descriptors only what it has to, types into no terminal, and makes no memory that can be executed."""
    program, number = Program(compile_sidecar_filter()), TABLES[NATIVE].number
    assert program.run(NATIVE, number("ioctl"), [1, TIOCSTI]) == NOT_PERMITTED
    assert program.run(NATIVE, number("ioctl"), [1, TIOCSTI | 1 << 32]) == NOT_PERMITTED
    # tcgetattr(3) is TCGETS with one C library and TCGETS2 with another.
    for request in (termios.TIOCGWINSZ, 0x5401, 0x802C542A):
        assert program.run(NATIVE, number("ioctl"), [1, request]) == ALLOW
    for name in ("mmap", "mprotect"):
        assert program.run(NATIVE, number(name), [0, 4096, mmap.PROT_READ | mmap.PROT_WRITE]) == ALLOW
        assert program.run(NATIVE, number(name), [0, 4096, mmap.PROT_READ | mmap.PROT_EXEC]) == NOT_PERMITTED
