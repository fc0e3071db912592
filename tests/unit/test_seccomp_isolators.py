"""minit.manifest.seccomp: which system calls the isolators of an app leave it, and what is said about them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.base.value import replace
from minit.manifest.app import NO_NEW_PRIVILEGES, SECCOMP_REMOVE, SECCOMP_RETAIN, App, Isolator
from minit.manifest.pod import RuntimeApp
from minit.manifest.seccomp import (
    ANCIENT_CALLS,
    CALL_SETS,
    DEFAULT_CALLS,
    DEFAULT_POLICY,
    EVERY_CALL,
    MINIMUM_CALLS,
    NO_CALL,
    SeccompPolicy,
    plan_no_new_privileges,
    plan_seccomp,
)
from minit.plan.inputs.runflags import RunFlags
from minit.plan.rights.seccompfilter import ALLOW, DEFAULT_GUARDS, FILESYSTEMS, KILL, fail_with, filter_of
from tests.support.planning import plan_one

WORDS = st.sampled_from(
    ["read", "umount2", "mmap", "no_such_call", "@docker/x", "@x", "@", EVERY_CALL, NO_CALL, *CALL_SETS]
)
FLAGS = RunFlags(uuid="6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11")
APP = App(exec=("/bin/app",), user="0", group="0")


def isolator(name: str, *words: str, error: str | None = None) -> Isolator:
    """Return an isolator with a set of system calls."""
    return Isolator(name=name, value={"set": [*words]} | ({} if error is None else {"errno": error}))


def policy_of(name: str, *words: str, error: str | None = None) -> SeccompPolicy | None:
    """Return the policy that a set gives without a warning."""
    policy, warnings = plan_seccomp("web", [isolator(name, *words, error=error)])
    assert warnings == []
    return policy


def test_without_an_isolator() -> None:
    """The default whitelist, and what is not in it is fatal."""
    assert plan_seccomp("web", []) == (DEFAULT_POLICY, [])
    assert plan_one(RuntimeApp(name="web"), APP, FLAGS)[0].confinement.seccomp == DEFAULT_POLICY
    assert SeccompPolicy(is_blacklist=False, names=None, own=(), error=None) == DEFAULT_POLICY


def test_sets_and_names() -> None:
    """The names of a set and its members of sets are one list; a name stands for itself, known or not."""
    policy = policy_of(SECCOMP_RETAIN, "read", "@systemd/clock", "odd", "read", error="EPERM")
    assert policy == SeccompPolicy(
        names=frozenset({"read", "odd"}) | CALL_SETS["@systemd/clock"], own=("read", "odd"), error=errno.EPERM
    )
    assert policy_of(SECCOMP_REMOVE, "@systemd/clock") == SeccompPolicy(
        is_blacklist=True, names=CALL_SETS["@systemd/clock"]
    )


def test_all_and_empty() -> None:
    """`all` to retain is no filter, `empty` to remove is the default; the other way round nothing is listed."""
    assert policy_of(SECCOMP_RETAIN, EVERY_CALL) is None
    assert policy_of(SECCOMP_REMOVE, NO_CALL, error="EDOM") == SeccompPolicy(error=errno.EDOM)
    assert policy_of(SECCOMP_RETAIN, NO_CALL) == SeccompPolicy(names=frozenset())
    policy, warnings = plan_seccomp("web", [isolator(SECCOMP_REMOVE, EVERY_CALL)])
    assert policy == SeccompPolicy(is_blacklist=True, names=frozenset())
    assert warnings == [
        f'warning: app "web": {SECCOMP_REMOVE}: {EVERY_CALL} removes nothing: every system call is allowed'
    ]


@pytest.mark.parametrize(
    ("name", "words", "policy"),
    [
        (SECCOMP_RETAIN, ("read", EVERY_CALL, NO_CALL), None),
        (SECCOMP_RETAIN, (NO_CALL, EVERY_CALL), SeccompPolicy(names=frozenset())),
        (SECCOMP_REMOVE, ("read", NO_CALL), DEFAULT_POLICY),
        (SECCOMP_REMOVE, (EVERY_CALL, NO_CALL), SeccompPolicy(is_blacklist=True, names=frozenset())),
    ],
)
def test_the_first_of_all_and_empty_decides(name: str, words: tuple[str, ...], policy: SeccompPolicy | None) -> None:
    """Fields beside it are ignored, as in rkt, with a warning."""
    planned, warnings = plan_seccomp("web", [isolator(name, *words)])
    first = next(word for word in words if word in (EVERY_CALL, NO_CALL))
    assert planned == policy
    assert warnings[0] == f'warning: app "web": {name}: {first} stands alone, what else is in the set is ignored'


@pytest.mark.parametrize("word", ["@x", "@", "@rkt/", "@rkt/default", "@systemd/everything", "@RKT/default-whitelist"])
def test_unknown_sets(word: str) -> None:
    """They are ignored and said."""
    policy, warnings = plan_seccomp("web", [isolator(SECCOMP_REMOVE, word, "read")])
    assert policy == SeccompPolicy(is_blacklist=True, names=frozenset({"read"}), own=("read",))
    assert warnings == [f'warning: app "web": {SECCOMP_REMOVE}: ignoring unknown set {word}']


@pytest.mark.parametrize(
    ("name", "number"),
    [("EPERM", 1), ("EXFULL", 54), ("EMULTIHOP", 72), ("EWOULDBLOCK", 11), ("EHWPOISON", 133), ("", None)],
)
def test_errors(name: str, number: int | None) -> None:
    """Every error of Linux has its name; an empty one is none."""
    assert policy_of(SECCOMP_REMOVE, "read", error=name) == SeccompPolicy(
        is_blacklist=True, names=frozenset({"read"}), own=("read",), error=number
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "set: expected at least one system call, got nothing"),
        ([], "expected an object, got []"),
        ({"set": []}, "set: expected at least one system call, got []"),
        ({"set": ["read", 1]}, "set[1]: expected a non-empty string, got 1"),
        ({"set": ["a\0b"]}, "set[0]: expected a string without NUL"),
        ({"set": ["read"], "errno": 1}, "errno: expected a string, got 1"),
        ({"set": ["read"], "errno": "EVERYTHING"}, "errno: expected the name of an error, EPERM for one"),
        ({"set": ["read"], "errno": "errorcode"}, "errno: expected the name of an error"),
    ],
)
def test_what_is_no_set(value: object, message: str) -> None:
    """The error names the app, the isolator and the place in it."""
    with pytest.raises(ManifestError) as caught:
        plan_seccomp("web", [Isolator(name=SECCOMP_RETAIN, value=value)])
    assert str(caught.value).startswith(f'app "web": isolator {SECCOMP_RETAIN}: {message}')


@given(
    st.sampled_from([SECCOMP_RETAIN, SECCOMP_REMOVE]),
    st.lists(WORDS, min_size=1, max_size=8),
    st.sampled_from(["", "EPERM"]),
)
def test_any_set(name: str, words: list[str], error: str) -> None:
    """
    Of any words there are filters, of which a whitelist never lacks what an exec needs, and never allows what is not in
    it; whatever is ignored is said.
    """
    policy, warnings = plan_seccomp("web", [isolator(name, *words, error=error)])
    unknown = [word for word in words if word.startswith("@") and word not in (EVERY_CALL, NO_CALL, *CALL_SETS)]
    assert len(warnings) >= (bool(unknown) if not {EVERY_CALL, NO_CALL} & {*words} else len(words) > 1)
    if policy is None:
        assert EVERY_CALL in words and name == SECCOMP_RETAIN
        return
    filter = filter_of(policy, DEFAULT_GUARDS)
    assert filter is not None
    allowed = {rule.call for rule in filter.rules if rule.action == ALLOW}
    if policy.is_blacklist:
        assert filter.default == ALLOW and not allowed
    else:
        wanted = DEFAULT_CALLS if policy.names is None else policy.names
        assert allowed == MINIMUM_CALLS | wanted
        assert filter.default == fail_with(errno.ENOSYS)
        assert {rule.call for rule in filter.rules} == ANCIENT_CALLS | allowed


def test_the_guards_of_the_default() -> None:
    """They are about calls that the list allows: what it lacks is fatal, whatever a guard would answer."""
    filter = filter_of(DEFAULT_POLICY, DEFAULT_GUARDS)
    assert filter is not None
    guards = [rule for rule in filter.rules if rule.action not in (ALLOW, KILL)]
    of_frames = ["setsockopt", "setsockopt", "socket"]
    assert [rule.call for rule in guards] == [*of_frames, *["clone"] * 7, "prlimit64", *["ioctl"] * 2, "socket"]


def test_guards_without_a_list() -> None:
    """They stand alone where every call is allowed, and without any there is no filter."""
    assert filter_of(None, frozenset()) is None
    alone = filter_of(None, frozenset({FILESYSTEMS}))
    assert alone is not None
    assert alone.default == ALLOW and {rule.call for rule in alone.rules} == {"mount", "fsopen"}


@pytest.mark.parametrize(
    ("values", "result"), [([], False), ([False], False), ([False, True, False], True), ([True, True], True)]
)
def test_no_new_privileges(values: list[bool], result: bool) -> None:
    """Any isolator that says so is enough."""
    assert plan_no_new_privileges("web", [Isolator(name=NO_NEW_PRIVILEGES, value=value) for value in values]) is result


@pytest.mark.parametrize("value", [None, 1, "true", [True]])
def test_no_new_privileges_is_a_boolean(value: object) -> None:
    """Any other value is refused, also behind one that says yes."""
    isolators = [Isolator(name=NO_NEW_PRIVILEGES, value=each) for each in (True, value)]
    with pytest.raises(ManifestError, match="expected true or false"):
        plan_no_new_privileges("web", isolators)


@pytest.mark.parametrize(
    ("uid", "flag", "words", "isolated", "sheds"),
    [
        (0, False, None, False, False),
        (1, False, None, False, True),
        (1, True, None, False, False),
        (1, False, EVERY_CALL, False, False),
        (1, False, "read", False, True),
        (0, False, "read", False, False),
        (0, True, EVERY_CALL, True, True),
    ],
)
def test_who_sheds_privileges(uid: int, flag: bool, words: str | None, isolated: bool, sheds: bool) -> None:
    """An app that asks for it has it, and with a filter any that is not root."""
    isolators: list[Isolator] = [] if words is None else [isolator(SECCOMP_RETAIN, words)]
    isolators += [Isolator(name=NO_NEW_PRIVILEGES, value=True)] if isolated else []
    app: App = replace(APP, isolators=tuple(isolators))
    spec, warnings = plan_one(RuntimeApp(name="web"), app, replace(FLAGS, disable_seccomp=flag))
    assert warnings == []
    shown = replace(spec, confinement=replace(spec.confinement, uid=uid))
    assert shown.confinement.sheds_privileges is sheds
    assert any(line.endswith("no_new_privs") for line in shown.describe()) is sheds
