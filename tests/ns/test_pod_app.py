"""The start of an app's process: executable, arguments, environment, ids, privileges, signals, descriptors."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minit.linux import syscalls
from minit.manifest.capabilities import DEFAULT
from tests.support.guest import GUEST
from tests.support.pods import MakePod, app_section, guest, shell

pytestmark = pytest.mark.private_users

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def variables(**values: str) -> list[dict[str, str]]:
    """Return the environment of a manifest."""
    return [{"name": name, "value": value} for name, value in values.items()]


def test_arguments_arrive_byte_for_byte(make_pod: MakePod) -> None:
    """Arguments arrive byte for byte; argv[0] is the path."""
    words = ["a b", "", "'\"`", "$HOME ${X} $(id)", "%n%s", "new\nline", "tab\t\\", "*?[a]", "ünïcödé", "-", "\x01\x7f"]
    pod = make_pod({"a": guest("report", "/tmp/report", *words)})
    assert pod.run().returncode == 0
    expected = [GUEST, "report", "/tmp/report", *words]
    assert pod.report("a").arguments == [word.encode() for word in expected]


@pytest.mark.parametrize("name", ["guest", "../bin/guest"])
def test_a_name_as_it_is_given(make_pod: MakePod, name: str) -> None:
    """With minit/plain-environment argv[0] is as it was given, wherever the program is found."""
    plain = [{"name": "minit/plain-environment", "value": "true"}]
    section = guest(
        "report", "/tmp/report", environment=variables(PATH="/none:/bin"), workingDirectory="/etc", annotations=plain
    )
    section["exec"][0] = name
    pod = make_pod({"a": section})
    assert pod.run().returncode == 0
    assert pod.report("a").arguments[0] == name.encode()


def test_a_plain_environment(make_pod: MakePod, own_rootfs: Path) -> None:
    """With minit/plain-environment an app has PATH and HOME, by the passwd file, and nothing that tells of rkt."""
    (own_rootfs / "etc/passwd").write_text("web:x:1000:1000::/srv/web:/bin/sh\n")
    plain = [{"name": "minit/plain-environment", "value": "true"}]
    own = variables(A="1", container="own")
    apps = {
        "a": guest("report", "/tmp/report", user="1000", group="1000", annotations=plain),
        "b": guest("report", "/tmp/report", environment=own, annotations=plain),
    }
    pod = make_pod(apps, own_rootfs)
    assert pod.run().returncode == 0
    assert pod.report("a").environment == {"PATH": DEFAULT_PATH, "HOME": "/srv/web"}
    assert pod.report("b").environment == {"PATH": DEFAULT_PATH, "HOME": "/root", "A": "1", "container": "own"}


def test_the_default_environment(make_pod: MakePod) -> None:
    """rkt's defaults, the app's name and the executor's; nothing of the caller's."""
    pod = make_pod({"a": guest("report", "/tmp/report", user="1000", group="1000")})
    assert pod.run(env={"LEAKED": "1", "NOTIFY_SOCKET": "/run/x", "LISTEN_FDS": "0"}).returncode == 0
    assert pod.report("a").environment == {
        "PATH": DEFAULT_PATH,
        "SHELL": "/bin/sh",
        "USER": "root",
        "LOGNAME": "root",
        "HOME": "/root",
        "AC_APP_NAME": "a",
        "container": "rkt",
    }


def test_an_apps_own_environment(make_pod: MakePod) -> None:
    """It replaces defaults, but not the app's name, and keeps every byte; rkt/env has what a line can say."""
    quoted = "'a' \"b\" \\ #;$A"
    own = variables(PATH="/bin", A="1", EMPTY="", QUOTED=quoted, LINES="x\ny", AC_APP_NAME="other", TERM="dumb")
    pod = make_pod({"a": guest("report", "/tmp/report", environment=own)})
    assert pod.run().returncode == 0
    seen = pod.report("a").environment
    assert seen == {
        **{"SHELL": "/bin/sh", "USER": "root", "LOGNAME": "root", "HOME": "/root"},
        **{"PATH": "/bin", "A": "1", "EMPTY": "", "QUOTED": quoted, "LINES": "x\ny", "TERM": "dumb"},
        **{"AC_APP_NAME": "a", "container": "rkt"},
    }
    exported = pod.status_root / "rkt/env/a"
    assert stat.S_IMODE(exported.stat().st_mode) == 0o644
    del seen["LINES"]
    assert dict(line.split("=", 1) for line in exported.read_text().splitlines()) == seen


def test_the_metadata_service(make_pod: MakePod) -> None:
    """With a token and the host's network each app is told where it is, `enter` too; rkt/env has it as well."""
    token = "0123456789abcdef0123456789abcdef"
    claimed = variables(AC_METADATA_URL="http://evil")
    pod = make_pod(
        {
            "a": guest("report", "/tmp/report"),
            "b": shell("touch /tmp/up; while :; do sleep 1; done", environment=claimed),
        }
    )
    pod.start(f"--mds-token={token}", net="host")
    pod.wait_file("b", "/tmp/up")
    pod.wait_status("a")
    line = f"AC_METADATA_URL=http://127.0.0.1:18112/{token}"
    assert "=".join(("AC_METADATA_URL", pod.report("a").environment["AC_METADATA_URL"])) == line
    assert pod.enter("b", "env").stdout.splitlines().count(line) == 1
    for name in ("a", "b"):
        assert (pod.status_root / "rkt/env" / name).read_text().splitlines().count(line) == 1


def test_the_file_of_the_environment(make_pod: MakePod) -> None:
    """One variable a line, unquoted, readable by all; one that holds a newline reaches the app and not the file."""
    own = variables(QUOTED="'a \"b\" $c\\\\' # d", EMPTY="", LINES="one\nEVIL=1", LAST="last")
    pod = make_pod({"a": guest("report", "/tmp/report", environment=own)})
    assert pod.run(umask=0o077).returncode == 0
    path = pod.status_root / "rkt/env/a"
    assert path.stat().st_mode == 0o100644 and path.parent.stat().st_mode == 0o40755
    seen = pod.report("a").environment
    assert seen["LINES"] == "one\nEVIL=1" and "EVIL" not in seen
    assert path.read_text() == "".join(f"{name}={value}\n" for name, value in seen.items() if name != "LINES")


def test_the_environment_of_two_apps(make_pod: MakePod) -> None:
    """Each has its own, also in rkt/env."""
    pod = make_pod({name: guest("report", "/tmp/report", environment=variables(WHO=name)) for name in ("one", "two")})
    assert pod.run().returncode == 0
    for name in ("one", "two"):
        assert (pod.report(name).environment["WHO"], pod.report(name).environment["AC_APP_NAME"]) == (name, name)
        assert f"\nWHO={name}\n" in (pod.status_root / "rkt/env" / name).read_text()


@pytest.mark.parametrize(
    ("fields", "uid", "gid", "groups"),
    [
        ({}, 0, 0, []),
        ({"user": "root", "group": "root"}, 0, 0, []),
        ({"user": "1000", "group": "2000"}, 1000, 2000, []),
        ({"user": "1000", "group": "0", "supplementaryGIDs": [5, 77]}, 1000, 0, [5, 77]),
    ],
    ids=["default", "root", "numbers", "supplementary"],
)
def test_ids(make_pod: MakePod, fields: dict[str, Any], uid: int, gid: int, groups: list[int]) -> None:
    """Real, effective and saved ids are the manifest's numbers; supplementary groups are exactly those it lists."""
    pod = make_pod({"a": guest("report", "/tmp/report", **fields)})
    assert pod.run(extra_groups=[4, 24]).returncode == 0
    status = pod.report("a").status
    assert status["Uid"].split() == [str(uid)] * 4
    assert status["Gid"].split() == [str(gid)] * 4
    assert sorted(map(int, status["Groups"].split())) == sorted(groups)


def test_the_highest_ids(make_pod: MakePod, private_users: tuple[int, int] | None) -> None:
    """They are (uid_t) -2, or the last ones of the user namespace."""
    highest = 0xFFFFFFFE if private_users is None else private_users[1] - 1
    ids = {"user": str(highest), "group": str(highest), "supplementaryGIDs": [highest]}
    pod = make_pod({"a": guest("report", "/tmp/report", **ids)})
    assert pod.run().returncode == 0
    status = pod.report("a").status
    assert (status["Uid"].split(), status["Gid"].split(), status["Groups"]) == (
        [str(highest)] * 4,
        [str(highest)] * 4,
        str(highest),
    )


def _pass_on_capabilities() -> None:
    """Make every capability inheritable, as a login manager may."""
    effective, permitted, _ = syscalls.get_capabilities()
    syscalls.set_capabilities(effective, permitted, permitted)


@pytest.mark.parametrize("user", ["0", "1000"])
def test_capabilities(make_pod: MakePod, user: str) -> None:
    """The bounding set is rkt's default of 14; root has them, another user none; nothing is inheritable."""
    pod = make_pod({"a": guest("report", "/tmp/report", user=user)})
    assert pod.run(preexec_fn=_pass_on_capabilities).returncode == 0
    status = pod.report("a").status
    own = DEFAULT if user == "0" else 0
    expected = {"CapInh": 0, "CapPrm": own, "CapEff": own, "CapBnd": DEFAULT, "CapAmb": 0}
    assert {name: int(status[name], 16) for name in expected} == expected
    # A filter there is by default, and what an app that is not root has with one.
    assert (status["NoNewPrivs"], status["Seccomp"]) == (str(int(user != "0")), "2")


def test_the_capability_restriction_can_be_disabled(make_pod: MakePod, private_users: tuple[int, int] | None) -> None:
    """The app then has what stage0 had, and in a user namespace all there are."""
    held = syscalls.bounding_set() if private_users is None else syscalls.every_capability()
    pod = make_pod({"a": guest("report", "/tmp/report")})
    assert pod.run("--disable-capabilities-restriction").returncode == 0
    assert (pod.report("a").status["CapBnd"], pod.report("a").status["CapInh"]) == (f"{held:016x}", "0" * 16)


_SYS_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}[os.uname().machine]


def _spoil_signals() -> None:
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN + 3):
        signal.signal(number, signal.SIG_IGN)
    for reserved in (32, 33):
        # What glibc's posix_spawn(3) leaves ignored in whatever it starts.
        ignore = (1).to_bytes(8, "little") + bytes(24)
        ctypes.CDLL(None).syscall(_SYS_RT_SIGACTION, reserved, ignore, None, 8)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def test_signals_are_clean(make_pod: MakePod) -> None:
    """No signal is blocked, ignored or pending in an app, whatever its caller did to them."""
    pod = make_pod({"a": guest("report", "/tmp/report")})
    assert pod.run(preexec_fn=_spoil_signals).returncode == 0
    status = pod.report("a").status
    names = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
    assert {name: int(status[name], 16) for name in names} == dict.fromkeys(names, 0)


def test_a_caller_that_ignores_and_blocks_signals_can_still_stop_the_pod(make_pod: MakePod) -> None:
    """SIGTERM means a stop to the launcher, whatever it inherited."""
    pod = make_pod({"a": shell("while :; do sleep 1; done")})
    process = pod.start(preexec_fn=_spoil_signals)
    pod.wait_ready()
    process.terminate()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


def _close_standard_streams() -> None:
    for fd in range(3):
        os.close(fd)


@pytest.mark.parametrize("prepare", [None, _close_standard_streams], ids=["open", "closed"])
def test_an_app_has_descriptors_0_1_and_2_only(make_pod: MakePod, prepare: Callable[[], None] | None) -> None:
    """A caller that leaks 64 descriptors leaks none of them into an app, also if it closed its own 0, 1 and 2."""
    leaks = [os.open("/", os.O_RDONLY) for _ in range(64)]
    try:
        pod = make_pod({"a": guest("report", "/tmp/report"), "b": guest("report", "/tmp/report")})
        streams = {} if prepare is None else {"stdin": None, "stdout": None, "stderr": None}
        result = pod.run(pass_fds=leaks, preexec_fn=prepare, **streams)
    finally:
        for fd in leaks:
            os.close(fd)
    assert result.returncode == 0, result.stderr
    for app in pod.apps:
        descriptors = pod.report(app).descriptors
        assert sorted(descriptors) == [0, 1, 2]
        assert descriptors[0][1] == "/dev/null"
        assert descriptors[1][1].startswith("pipe:") and descriptors[2][1].startswith("pipe:")
        assert descriptors[1][1] != descriptors[2][1]
        assert [flags & os.O_ACCMODE for flags, _ in descriptors.values()] == [os.O_RDWR, os.O_WRONLY, os.O_WRONLY]
        assert not [flags for flags, _ in descriptors.values() if flags & os.O_NONBLOCK]


def test_null_streams(make_pod: MakePod) -> None:
    """A stream in mode null is /dev/null, and standard input always is for now."""
    annotations = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "null"} for name in ("stdin", "stdout", "stderr")]
    pod = make_pod({"a": guest("report", "/tmp/report", annotations=annotations)})
    assert pod.run().returncode == 0
    assert [target for _, target in pod.report("a").descriptors.values()] == ["/dev/null"] * 3


def test_standard_input_is_at_its_end(make_pod: MakePod) -> None:
    """An app does not get the caller's."""
    pod = make_pod({"a": shell("cat; echo end")})
    reader, writer = os.pipe()
    os.write(writer, b"not for the app\n")
    result = pod.run(stdin=reader)
    os.close(reader)
    os.close(writer)
    assert result.stdout.count("\n") == 1 and result.stdout.endswith("]: end\n")


def test_what_else_a_process_inherits(make_pod: MakePod) -> None:
    """It leads its session, has a neutral OOM score, the usual umask, and sits in its app's group everywhere."""
    pod = make_pod({"a": guest("report", "/tmp/report")})

    def spoil() -> None:
        os.umask(0o777)
        Path("/proc/self/oom_score_adj").write_text("321")

    assert pod.run(preexec_fn=spoil).returncode == 0
    report = pod.report("a")
    assert report.one("pid") == report.one("sid")
    assert report.one("oom_score_adj") == "0\n"
    assert report.status["Umask"] == "0022"
    subcgroup = (pod.path / "subcgroup").read_text()
    groups = [line.split(":", 2)[2] for line in report.one("cgroup").splitlines()]
    hosts = Path("/proc/self/cgroup").read_text().splitlines()
    assert len(groups) == len(hosts)
    mounted = sum(1 for path in groups if path == f"/{subcgroup}/system.slice/a.service")
    assert mounted == len(pod.control_groups())


@pytest.mark.parametrize("directory", ["/", "/tmp", "/deep/er"])
def test_the_working_directory(make_pod: MakePod, own_rootfs: Path, directory: str) -> None:
    """It is the manifest's, inside the app's root, through symlinks of the image."""
    (own_rootfs / "real/er").mkdir(parents=True)
    (own_rootfs / "deep").symlink_to("/real")
    pod = make_pod({"a": guest("report", "/tmp/report", workingDirectory=directory)}, own_rootfs)
    assert pod.run().returncode == 0
    assert pod.report("a").one("cwd") == directory.replace("deep", "real")


def _place(rootfs: Path, path: str, mode: int = 0o755) -> None:
    target = rootfs / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((rootfs / GUEST.lstrip("/")).read_bytes())
    target.chmod(mode)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"exec": ["/one/tool"]}, "/one/tool"),
        ({"exec": ["one/tool"]}, "/one/tool"),
        ({"exec": ["./tool"], "workingDirectory": "/one"}, "/one/tool"),
        ({"exec": ["../one/tool"], "workingDirectory": "/two"}, "/one/tool"),
        ({"exec": ["tool"], "workingDirectory": "/one"}, "/one/tool"),
        ({"exec": ["tool"]}, "/usr/bin/tool"),
        ({"exec": ["tool"], "environment": variables(PATH="/two:/one")}, "/two/tool"),
        ({"exec": ["tool"], "environment": variables(PATH="/none:/directory:/plain:/one")}, "/one/tool"),
        ({"exec": ["tool"], "environment": variables(PATH="one"), "workingDirectory": "/"}, "/one/tool"),
        ({"exec": ["tool"], "environment": variables(PATH=":/two"), "workingDirectory": "/one"}, "/one/tool"),
        ({"exec": ["tool"], "environment": variables(PATH="/link:/one")}, "/link/tool"),
        ({"exec": ["tool"], "environment": variables(PATH="/dangling:/two")}, "/two/tool"),
        ({"exec": ["/link/tool"]}, "/link/tool"),
    ],
    ids=[
        *("absolute", "relative", "dot", "dots", "directory-first", "usr-bin", "path-order", "path-skips"),
        *("path-relative", "path-empty-entry", "path-link", "path-dangling", "link"),
    ],
)
def test_where_the_executable_is_looked_for(
    make_pod: MakePod, own_rootfs: Path, fields: dict[str, Any], found: str
) -> None:
    """rkt's rules; argv[0] is the path that was found, symlinks unresolved."""
    for path in ("/one/tool", "/two/tool", "/usr/bin/tool"):
        _place(own_rootfs, path)
    _place(own_rootfs, "/plain/tool", 0o644)
    (own_rootfs / "directory/tool").mkdir(parents=True)
    for name, target in (("link", "/one/tool"), ("dangling", "/nowhere")):
        (own_rootfs / name).mkdir()
        (own_rootfs / name / "tool").symlink_to(target)
    section = app_section(**fields) | {"exec": [*fields["exec"], "report", "/tmp/report"]}
    pod = make_pod({"a": section}, own_rootfs)
    assert pod.run().returncode == 0
    assert pod.report("a").arguments[0] == found.encode()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, 'find executable: unable to find "tool" in "/:/bin:/usr/bin"'),
        ({"workingDirectory": "/tmp"}, 'find executable: unable to find "tool" in "/tmp:/bin:/usr/bin"'),
        ({"environment": variables(PATH="/a:b:")}, 'find executable: unable to find "tool" in "/a:/b:/"'),
    ],
    ids=["default", "directory", "path"],
)
def test_an_executable_that_is_nowhere(make_pod: MakePod, fields: dict[str, Any], line: str) -> None:
    """The list that was searched is named, and the default PATH is not in it."""
    pod = make_pod({"a": app_section("tool", **fields)})
    result = pod.run()
    assert result.returncode == 254
    assert result.stderr == f'stage1: app "a": {line}\n'
    assert pod.status("a") == 254
