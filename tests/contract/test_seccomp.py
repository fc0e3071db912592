"""The system calls of an app: the default filters, those of isolators, and apps without any."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from minit.launcher.start.filterprograms import compile_filters, compile_sidecar_filter
from minit.manifest.annotations import Annotation
from minit.manifest.seccomp import DEFAULT_POLICY
from minit.plan.rights.seccompfilter import DEFAULT_GUARDS
from minit.podfiles import paths
from tests.support.bpf import I386, NATIVE, Calls, native
from tests.support.guest import GUEST, Report
from tests.support.pods import MakePod, app_section, guest, handlers, shell

MACHINE = os.uname().machine
RETAIN, REMOVE = "os/linux/seccomp-retain-set", "os/linux/seccomp-remove-set"
WHITELIST, BLACKLIST = "@rkt/default-whitelist", "@rkt/default-blacklist"
FATAL = f"signal {signal.SIGSYS}"
DIED = 128 + signal.SIGSYS
CLONE_NEWUSER = 0x10000000
TIOCSTI = 0x5412

needs_x86 = pytest.mark.skipif(MACHINE != "x86_64", reason="other machines run no programs of i386")


def fails(name: str) -> str:
    """Return how the guest reports a call that failed."""
    return f"errno {getattr(errno, name)}"


def seccomp(name: str, *words: str, error: str = "") -> dict[str, Any]:
    """Return an isolator as stage0 writes it."""
    return {"name": name, "value": {"set": [*words], "errno": error}}


def no_new_privileges(value: bool) -> dict[str, Any]:
    """Return the isolator of that name."""
    return {"name": "os/linux/no-new-privileges", "value": value}


def ask(
    make_pod: MakePod, *calls: str, flags: tuple[str, ...] = (), stderr: str = "", **fields: Any
) -> tuple[Report, list[str]]:
    """Return how an app found itself and what became of its calls; `stderr` is what stage1 says of it."""
    pod = make_pod({"a": guest("calls", "/tmp/report", *calls, **fields)})
    result = pod.run(*flags, net=None)
    assert (result.returncode, result.stderr) == (0, stderr), result
    return pod.report("a"), [line.partition("]: ")[2] for line in result.stdout.splitlines()]


# The calls that the tests make do no harm if they are allowed: their arguments are wrong.
UMOUNT = native("umount2", 0, 0)
UNSHARE = native("unshare", 0)
NEW_MOUNT = native("mount", 0, 1, 0, 0, 0)
KEYS = native("keyctl", -1)
CHMOD = native("fchmod", -1, 0)
GETPPID = native("getppid")
STATX = native("statx", -1, 0, 0)


@pytest.mark.private_users
@pytest.mark.rootless
def test_the_default(make_pod: MakePod) -> None:
    """rkt's blacklist is fatal, what is new and not in the default is unknown, and what C libraries use is there."""
    allowed = [GETPPID, native("getuid"), native("sched_yield")]
    bad_descriptor = [CHMOD, native("pidfd_send_signal", -1, 0, 0, 0), native("fsync", -1)]
    fatal = [UMOUNT, UNSHARE, native("ptrace", 0), native("keyctl", 0), native("bpf", 0), native("kexec_load", 0)]
    unknown = [native("clone3", 0, 0), native("io_uring_setup", 0, 0), native("fsopen", 0), "native:1000", "native:-1"]
    refused = [native("clone", CLONE_NEWUSER | signal.SIGCHLD), native("ioctl", 0, TIOCSTI | 1 << 32)]
    report, results = ask(make_pod, *allowed, STATX, *bad_descriptor, *fatal, *unknown, *refused)
    assert results == [
        *["errno 0"] * len(allowed),
        fails("EFAULT"),
        *[fails("EBADF")] * len(bad_descriptor),
        *[FATAL] * len(fatal),
        *[fails("ENOSYS")] * len(unknown),
        *[fails("EPERM")] * len(refused),
    ]
    assert (report.status["Seccomp"], report.status["Seccomp_filters"]) == ("2", "1")
    assert report.status["NoNewPrivs"] == "0"


@needs_x86
def test_calls_of_other_architectures(make_pod: MakePod) -> None:
    """A program may be one of i386, and has the same list; one of x32 is killed by its first call."""
    i386 = Calls(I386)
    calls = [f"i386:{i386.number(name)}" for name in ("getppid", "umount2", "unshare", "clone3")]
    _, results = ask(make_pod, *calls, f"x32:{NATIVE.number('getppid')}", "x32:1000")
    assert results == ["errno 0", FATAL, FATAL, fails("ENOSYS"), FATAL, FATAL]


def test_threads(make_pod: MakePod) -> None:
    """A C library that would rather make threads by clone3 makes them by clone."""
    assert make_pod({"a": guest("threads", "3")}).run().returncode == 0


def test_a_fatal_call_is_the_status_of_a_signal(make_pod: MakePod) -> None:
    """The status is 159, as of any program that died of SIGSYS."""
    pod = make_pod({"a": guest("call", UMOUNT)})
    assert pod.run().returncode == DIED == 159
    assert pod.status("a") == DIED
    assert pod.record("a")["signal"] == signal.SIGSYS


SETS: dict[str, tuple[dict[str, Any], list[str], int | None, bool]] = {
    # isolator; what fchmod, umount2, getppid and statx of the guest become; number of filters; no_new_privs at uid 1000
    "retain": (seccomp(RETAIN, WHITELIST), [fails("EBADF"), FATAL, "errno 0", fails("ENOSYS")], 1, True),
    "retain-docker": (
        seccomp(RETAIN, "@docker/default-whitelist", "umount2", error="EPERM"),
        [fails("EBADF"), "-", "errno 0", fails("ENOSYS")],
        1,
        True,
    ),
    "retain-all": (seccomp(RETAIN, "@appc.io/all"), [fails("EBADF"), "-", "errno 0", "-"], 1, False),
    "remove": (seccomp(REMOVE, "fchmod"), [FATAL, "-", "errno 0", "-"], 1, True),
    "remove-error": (
        seccomp(REMOVE, "fchmod", "getppid", error="EXFULL"),
        [fails("EXFULL"), "-", fails("EXFULL"), "-"],
        1,
        True,
    ),
    "remove-exotic": (seccomp(REMOVE, "fchmod", error="EMULTIHOP"), [fails("EMULTIHOP"), "-", "errno 0", "-"], 1, True),
    "remove-set": (
        seccomp(REMOVE, BLACKLIST, "statx", error="ENOLINK"),
        [fails("EBADF"), fails("ENOLINK"), "errno 0", fails("ENOLINK")],
        1,
        True,
    ),
    "remove-docker": (seccomp(REMOVE, "@docker/default-blacklist"), [fails("EBADF"), FATAL, "errno 0", "-"], 1, True),
    "remove-empty": (
        seccomp(REMOVE, "@appc.io/empty", error="EDOM"),
        [fails("EBADF"), fails("EDOM"), "errno 0", "-"],
        1,
        True,
    ),
    "remove-systemd": (seccomp(REMOVE, "@systemd/mount"), [fails("EBADF"), FATAL, "errno 0", "-"], 1, True),
}


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("name", SETS)
def test_isolators(make_pod: MakePod, name: str, uid: int) -> None:
    """
    Each kind of set is enforced, for whomever; with a filter an app that does not run as root has no_new_privs.

    "-" is a call that reaches the kernel.
    """
    isolator, wanted, filters, is_confined = SETS[name]
    calls = [CHMOD, UMOUNT, GETPPID, STATX]
    report, results = ask(make_pod, *calls, isolators=[isolator], user=str(uid), group="0")
    assert len(results) == len(wanted)
    for result, expected in zip(results, wanted):
        assert result == expected or expected == "-" and result not in (FATAL, fails("ENOSYS"), fails("EPERM"))
    assert int(report.status["Seccomp_filters"]) == filters
    assert report.status["NoNewPrivs"] == str(int(is_confined and uid != 0))


@pytest.mark.parametrize("values", [[True], [False], [False, True], [True, False], [False, False]])
@pytest.mark.private_users
def test_no_new_privileges(make_pod: MakePod, values: list[bool]) -> None:
    """Any isolator of that name that says so is enough, with every system call allowed and for root, too."""
    isolators = [*map(no_new_privileges, values), seccomp(RETAIN, "@appc.io/all")]
    report, _ = ask(make_pod, isolators=isolators)
    assert report.status["NoNewPrivs"] == str(int(any(values)))


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("isolators", [[], [seccomp(REMOVE, "getppid")]], ids=["default", "remove"])
def test_seccomp_can_be_disabled(make_pod: MakePod, uid: int, isolators: list[dict[str, Any]]) -> None:
    """With --disable-seccomp one guard is left, that of new mounts, and nothing is forced that belongs to a list."""
    report, results = ask(
        *(make_pod, GETPPID, UNSHARE, native("io_uring_setup", 0, 0), NEW_MOUNT, KEYS),
        flags=("--disable-seccomp",),
        isolators=isolators,
        user=str(uid),
    )
    assert results[:2] == ["errno 0", "errno 0"] and FATAL not in results
    assert results[3] == fails("EPERM") and results[4] != fails("EPERM")
    assert (report.status["Seccomp_filters"], report.status["NoNewPrivs"]) == ("1", "0")


@pytest.mark.parametrize("uid", [0, 1000])
def test_without_both_restrictions_there_is_no_filter(make_pod: MakePod, uid: int) -> None:
    """Disabling capabilities and system calls at once disables the guards, too."""
    report, results = ask(
        *(make_pod, NEW_MOUNT), flags=("--disable-seccomp", "--disable-capabilities-restriction"), user=str(uid)
    )
    assert results == [fails("EFAULT")]
    assert report.status["Seccomp"] == "0"


def test_no_new_privileges_stays_with_seccomp_disabled(make_pod: MakePod) -> None:
    """It is an isolator of its own."""
    report, _ = ask(make_pod, flags=("--disable-seccomp",), isolators=[no_new_privileges(True)])
    assert report.status["NoNewPrivs"] == "1"


@pytest.mark.parametrize("app_in_image", [False, True], ids=["pod", "image"])
def test_each_app_has_its_own(make_pod: MakePod, app_in_image: bool) -> None:
    """The calls of one app say nothing about another, wherever the app section stands."""
    apps = {
        "plain": guest("calls", "/tmp/report", GETPPID, UMOUNT),
        "strict": guest("calls", "/tmp/report", GETPPID, isolators=[seccomp(REMOVE, "getppid", error="EDOM")]),
        "free": guest("calls", "/tmp/report", UNSHARE, isolators=[seccomp(RETAIN, "@appc.io/all")]),
    }
    pod = make_pod(apps, app_in_image=app_in_image)
    lines = sorted(line.partition("[")[0] + line.partition("]")[2] for line in pod.run().stdout.splitlines())
    # What an image asks for opens no namespaces.
    free = f"free: {fails('EPERM')}" if app_in_image else "free: errno 0"
    assert lines == [free, "plain: errno 0", f"plain: {FATAL}", f"strict: {fails('EDOM')}"]
    assert [pod.report(name).status["Seccomp_filters"] for name in apps] == ["1", "1", "1"]


@pytest.mark.parametrize("uid", [0, 1000])
def test_event_handlers_have_the_filter_of_their_app(make_pod: MakePod, uid: int) -> None:
    """Though they run as root they have its list, the default one as well, and its no_new_privs."""
    section = guest(
        *("calls", "/tmp/report", UNSHARE, GETPPID),
        user=str(uid),
        isolators=[seccomp(REMOVE, "getppid", error="EDOM")],
        eventHandlers=handlers(
            pre_start=(GUEST, "calls", "/tmp/before", UNSHARE, GETPPID),
            post_stop=(GUEST, "calls", "/tmp/after", UNSHARE, GETPPID),
        ),
    )
    pod = make_pod({"a": section})
    result = pod.run()
    assert result.returncode == 0
    found = [pod.report("a", f"/tmp/{name}").status for name in ("before", "report", "after")]
    assert [status["Seccomp_filters"] for status in found] == ["2", "1", "2"]
    assert {status["NoNewPrivs"] for status in found} == {str(int(uid != 0))}
    refused = fails("EDOM")
    # Each process has a sidecar: the lines of one are in their order, those of several are not.
    results: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        process, _, told = line.partition(": ")
        results.setdefault(process, []).append(told)
    assert sorted(results.values()) == [["errno 0", refused], [FATAL, refused], [FATAL, refused]]


def test_a_profile_that_allows_no_more_filters(make_pod: MakePod) -> None:
    """An event handler has that one and the default list, though the profile refuses the call that installs filters."""
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["seccomp"], "action": "SCMP_ACT_ERRNO"}]}
    before = handlers(pre_start=(GUEST, "calls", "/tmp/before", GETPPID, UNSHARE))
    pod = make_pod({"a": guest("calls", "/tmp/report", GETPPID, UNSHARE, eventHandlers=before) | chosen(profile)})
    result = pod.run()
    assert result.returncode == 0, result.stderr
    told = sorted(line.partition("]: ")[2] for line in result.stdout.splitlines())
    assert told == sorted(["errno 0", "errno 0", "errno 0", FATAL])


@pytest.mark.parametrize("flags", [("--disable-seccomp",), ("--disable-seccomp", "--disable-capabilities-restriction")])
def test_event_handlers_without_seccomp(make_pod: MakePod, flags: tuple[str, ...]) -> None:
    """Disabling the filters disables them for handlers, too."""
    section = guest(
        "calls", "/tmp/report", UNSHARE, eventHandlers=handlers(pre_start=(GUEST, "calls", "/tmp/before", UNSHARE))
    )
    pod = make_pod({"a": section})
    assert pod.run(*flags).returncode == 0
    counts = [pod.report("a", f"/tmp/{name}").status["Seccomp"] for name in ("before", "report")]
    assert counts == ["2" if len(flags) == 1 else "0"] * 2


def test_a_handler_whose_filter_refuses_to_explain_itself(make_pod: MakePod) -> None:
    """A handler that is not there is said to be so before a list is installed under which nothing can be said."""
    section = guest(
        *("report", "/tmp/report"),
        isolators=[seccomp(RETAIN, "exit")],
        eventHandlers=handlers(pre_start=("/bin/missing",)),
    )
    result = make_pod({"a": section}).run()
    assert result.returncode == 254
    assert 'Unable to open "/bin/missing": No such file or directory' in result.stdout + result.stderr


# What a list of the user's own does to the start itself.


def test_the_least_whitelist(make_pod: MakePod) -> None:
    """A list with nothing in it still lets a program be executed and end, by what it does of its own accord."""
    section = guest("call", UMOUNT, isolators=[seccomp(RETAIN, "@appc.io/empty", error="EDOM")])
    pod = make_pod({"a": section})
    assert pod.run().returncode == errno.EDOM


@pytest.mark.parametrize("error", ["", "EPERM"])
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("/bin/missing", 'Unable to open "/bin/missing": No such file or directory'),
        ("/etc", '"/etc" is not a regular file'),
        ("/bin/script", 'Unable to open "/bin/interpreter": No such file or directory'),
    ],
)
def test_a_failed_exec_is_explained_under_any_filter(
    make_pod: MakePod, own_rootfs: Path, program: str, message: str, error: str
) -> None:
    """A whitelist without a call to report by does not turn a missing program into a death by SIGSYS."""
    (own_rootfs / "bin/script").write_text("#!/bin/interpreter\n")
    (own_rootfs / "bin/script").chmod(0o755)
    pod = make_pod({"a": app_section(program, isolators=[seccomp(RETAIN, "exit", error=error)])}, own_rootfs)
    result = pod.run()
    assert result.returncode == 203
    assert message in result.stderr


def test_an_exec_that_is_refused_itself(make_pod: MakePod) -> None:
    """An app whose list takes execve away never starts: by the error it asked for, or by SIGSYS."""
    refused = make_pod({"a": guest("report", "/tmp/r", isolators=[seccomp(REMOVE, "execve", error="EDOM")])})
    result = refused.run()
    assert result.returncode == 203
    assert os.strerror(errno.EDOM) in result.stderr
    fatal = make_pod({"a": guest("report", "/tmp/r", isolators=[seccomp(REMOVE, "execve")])})
    assert fatal.run().returncode == DIED


# What is said about an isolator.


@pytest.mark.parametrize(
    ("isolator", "warnings"),
    [
        (seccomp(REMOVE, "getppid", "no_such"), ["ignoring unknown system call no_such"]),
        (seccomp(REMOVE, "@rkt/other", "getppid"), [f"{REMOVE}: ignoring unknown set @rkt/other"]),
        (seccomp(REMOVE, "@rkt"), [f"{REMOVE}: ignoring unknown set @rkt"]),
        (
            seccomp(RETAIN, "read", "@appc.io/all"),
            [f"{RETAIN}: @appc.io/all stands alone, what else is in the set is ignored"],
        ),
        (seccomp(REMOVE, "@appc.io/all"), [f"{REMOVE}: @appc.io/all removes nothing: every system call is allowed"]),
    ],
)
def test_what_has_no_effect_is_said(make_pod: MakePod, isolator: dict[str, Any], warnings: list[str]) -> None:
    """A line for each, on standard error, and the rest holds."""
    said = "".join(f'stage1: warning: app "a": {warning}\n' for warning in warnings)
    _, results = ask(make_pod, GETPPID, isolators=[isolator], stderr=said)
    assert results == [FATAL if "getppid" in isolator["value"]["set"] else "errno 0"]


@pytest.mark.parametrize(
    ("isolator", "words"),
    [
        (
            seccomp(RETAIN),
            'app "a": isolator os/linux/seccomp-retain-set: set: expected at least one system call, got []',
        ),
        (seccomp(REMOVE, "read", ""), 'seccomp-remove-set: set[1]: expected a non-empty string, got ""'),
        (seccomp(REMOVE, "read", error="ENONE"), "seccomp-remove-set: errno: expected the name of an error"),
        ({"name": REMOVE, "value": None}, "seccomp-remove-set: set: expected at least one system call"),
        ({"name": REMOVE, "value": {"set": "read"}}, "seccomp-remove-set: set: expected a list"),
        ({"name": "os/linux/no-new-privileges", "value": 1}, "no-new-privileges: expected true or false, got 1"),
    ],
)
def test_what_is_no_isolator_is_refused(make_pod: MakePod, isolator: dict[str, Any], words: str) -> None:
    """One line that says what stands where, and no pod."""
    pod = make_pod({"a": shell("true", isolators=[isolator])})
    result = pod.run()
    assert (result.returncode, result.stderr.count("\n")) == (254, 1)
    assert words in result.stderr
    assert not (pod.path / "pid").exists()


def test_two_sets_in_one_app_are_refused(make_pod: MakePod) -> None:
    """They would contradict each other."""
    pod = make_pod({"a": shell("true", isolators=[seccomp(RETAIN, "read"), seccomp(REMOVE, "read")])})
    result = pod.run()
    assert result.returncode == 254
    assert "expected at most one seccomp isolator" in result.stderr


def test_debug_shows_the_decision(make_pod: MakePod) -> None:
    """With --debug there is a line for each app."""
    apps = {
        "plain": shell("true"),
        "strict": shell("true", isolators=[seccomp(REMOVE, "getppid", error="EDOM")], user="1000"),
        "free": shell("true", isolators=[seccomp(RETAIN, "@appc.io/all")]),
    }
    lines = make_pod(apps).run("--debug").stderr.splitlines()
    assert "stage1: app plain: system calls: the default whitelist, others are fatal" in lines
    strict = "system calls: all but 1 listed, others fail with EDOM, without the guards host"
    assert f"stage1: app strict: {strict}" in lines
    assert "stage1: app free: all system calls, without the guards host vsock" in lines
    assert [line for line in lines if line.startswith("stage1: app strict: uid 1000") and "no_new_privs" in line]


def test_the_default_filters_are_in_the_image(stage1_tree: Path) -> None:
    """The filters of sidecars, and of an app that asks for nothing, were compiled with it."""
    directory = stage1_tree / "rootfs" / paths.STAGE1_FILTERS.lstrip("/")
    assert (directory / paths.SIDECAR_FILTER).read_bytes() == compile_sidecar_filter()
    assert compile_filters(DEFAULT_POLICY, DEFAULT_GUARDS) == ((directory / paths.DEFAULT_FILTER).read_bytes(),)


PROFILE = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
    "syscalls": [
        {"names": ["getppid"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EXFULL},
        {
            "names": ["fchmod"],
            "action": "SCMP_ACT_KILL_PROCESS",
            "args": [
                {"index": 0, "value": 0xFFFFFFFF, "valueTwo": 0xFFFFFFFF, "op": "SCMP_CMP_MASKED_EQ"},
                {"index": 1, "value": 4, "op": "SCMP_CMP_GE"},
            ],
        },
        {
            "names": ["fchmod"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": errno.EDOM,
            "args": [{"index": 1, "value": 2, "op": "SCMP_CMP_LT"}],
        },
    ],
}


def chosen(value: object) -> dict[str, Any]:
    """Return the annotation of an app."""
    text = value if isinstance(value, str) else json.dumps(value)
    return {"annotations": [{"name": Annotation.SECCOMP, "value": text}]}


def test_a_profile(make_pod: MakePod) -> None:
    """It stands in the place of the default list: an app, and a child of it, have its rules and no others."""
    calls = [GETPPID, *(native("fchmod", -1, mode) for mode in (1, 3, 4)), UNSHARE, UMOUNT]
    pod = make_pod({"a": guest("calls", "/tmp/report", *calls) | chosen(PROFILE)})
    result = pod.run(net=None)
    assert (result.returncode, result.stderr) == (0, "")
    told = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert told == [fails("EXFULL"), fails("EDOM"), fails("EBADF"), FATAL, "errno 0", fails("EFAULT")]
    assert pod.report("a").status["Seccomp"] == "2"


def test_a_profile_and_the_list_of_an_image(make_pod: MakePod) -> None:
    """The list stays, and takes away from the profile."""
    own = [seccomp(RETAIN, "@docker/default-whitelist", error="ENOLINK")]
    app = guest("calls", "/tmp/report", GETPPID, UMOUNT, native("getuid"), isolators=own) | chosen(PROFILE)
    result = make_pod({"a": app}).run(net=None)
    told = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert told == [fails("EXFULL"), fails("ENOLINK"), "errno 0"]


def test_no_filters(make_pod: MakePod) -> None:
    """An unconfined app has none; its handlers, which are root's and the image's, have the default ones."""
    before = handlers(pre_start=(GUEST, "calls", "/tmp/before", UNSHARE))
    app = guest("calls", "/tmp/report", KEYS, GETPPID, eventHandlers=before)
    pod = make_pod({"a": app | chosen("unconfined")})
    assert pod.run(net=None).returncode == 0
    assert [pod.report("a", f"/tmp/{name}").status["Seccomp"] for name in ("report", "before")] == ["0", "2"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("confined", "expected unconfined, guarded, by-capabilities or a profile in JSON"),
        ({"defaultAction": "SCMP_ACT_TRACE"}, "defaultAction: expected an action without another process"),
    ],
)
def test_profiles_that_cannot_be_had(make_pod: MakePod, value: object, message: str) -> None:
    """The pod does not start."""
    result = make_pod({"a": shell("true") | chosen(value)}).run(net=None)
    assert result.returncode == 254
    assert f'app "a": annotation {Annotation.SECCOMP}: {message}' in result.stderr


def test_an_unknown_call_of_a_profile(make_pod: MakePod) -> None:
    """A line names it, and the rest of the profile counts."""
    rules = [{"names": ["no_such_call", "getppid"], "action": "SCMP_ACT_ERRNO"}]
    app = guest("calls", "/tmp/report", GETPPID) | chosen({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
    result = make_pod({"a": app}).run(net=None)
    assert result.stderr == 'stage1: warning: app "a": ignoring unknown system call no_such_call\n'
    assert result.stdout.endswith(f"{fails('EPERM')}\n")
