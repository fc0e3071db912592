"""minit.plan.appplan: what is executed, as whom, with which environment and streams."""

from __future__ import annotations

import os.path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.manifest.app import EventHandler, Isolator, Port
from minit.manifest.capabilities import DEFAULT
from minit.manifest.pod import RuntimeApp
from minit.manifest.ulimits import RESOURCES
from minit.plan.appplan import AppPlan
from minit.plan.confinement import ConfinementPlan
from minit.plan.life.appenvironment import plan_environment, with_metadata
from minit.plan.process import ProcessPlan, plan_executable
from minit.plan.resources import ResourcePlan
from minit.plan.rights.protection import Protection, plan_protection, with_pid_1
from minit.plan.root.devicevolumes import DEFAULT_RULES
from minit.plan.root.etcfiles import AppFile
from minit.plan.root.mountoperations import (
    SYSFS,
    BindTree,
    MakeDirectory,
    MountFilesystem,
    MountOp,
    app_mounts,
    pod_mounts,
)
from minit.plan.root.volumes import VolumeMount
from minit.plan.storage import StoragePlan
from minit.plan.streams import StreamsPlan
from tests.support.planning import APP, FLAGS, RUNTIME, app_input, plan_one

USUAL = tuple((row.number, *row.usual(app_input().pod.facts.threads_max)) for row in RESOURCES.values())


def spec_of(**fields: Any) -> AppPlan:
    """Return the spec of the least app with some fields changed; no warning may come with it."""
    spec, warnings = plan_one(RUNTIME, replace(APP, **fields), FLAGS)
    assert warnings == []
    return spec


def refusal_of(runtime: RuntimeApp = RUNTIME, **fields: Any) -> str:
    """Return why the least app with some fields changed cannot be."""
    with pytest.raises(PlanError) as caught:
        plan_one(runtime, replace(APP, **fields), FLAGS)
    return str(caught.value)


def annotated(name: str, value: str) -> RuntimeApp:
    """Return the least app of a pod with one annotation."""
    return replace(RUNTIME, annotations=((name, value),))


def test_the_least_app() -> None:
    """An app that asks for nothing runs as root in /, with rkt's environment and capabilities, and is logged."""
    assert spec_of() == AppPlan(
        name="web",
        process=ProcessPlan(
            candidates=("/bin/app",),
            search=None,
            arguments=("-v",),
            environment=(
                ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
                ("SHELL", "/bin/sh"),
                ("USER", "root"),
                ("LOGNAME", "root"),
                ("HOME", "/root"),
                ("AC_APP_NAME", "web"),
                ("container", "rkt"),
            ),
            working_directory="/",
        ),
        confinement=ConfinementPlan(uid=0, gid=0, supplementary_gids=(), bounding=DEFAULT),
        streams=StreamsPlan(stdout="log", stderr="log"),
        storage=StoragePlan(
            mounts=app_mounts(),
            files=(AppFile(target="/etc/hostname", text=f"rkt-{FLAGS.uuid}\n".encode()),),
            protection=with_pid_1(plan_protection(disabled=False, own_network=False)),
        ),
        resources=ResourcePlan(rlimits=USUAL, devices=DEFAULT_RULES),
    )


# The executable.


@pytest.mark.parametrize(
    ("command", "working_directory", "path", "candidates", "search"),
    [
        ("/bin/app", "/srv", "/x", ["/bin/app"], None),
        ("/bin/../app", "/srv", None, ["/bin/../app"], None),
        ("./app", "/srv", None, ["/srv/app"], None),
        ("bin/app", "/srv", "/x", ["/srv/bin/app"], None),
        ("../app", "/srv/web", None, ["/srv/app"], None),
        ("../../../app", "/srv", None, ["/app"], None),
        ("app", "/", None, ["/app", "/bin/app", "/usr/bin/app"], "/:/bin:/usr/bin"),
        ("app", "/srv", None, ["/srv/app", "/bin/app", "/usr/bin/app"], "/srv:/bin:/usr/bin"),
        ("app", "/srv", "/a:/b", ["/a/app", "/b/app"], "/a:/b"),
        ("app", "/srv", "", ["/srv/app"], "/srv"),
        ("app", "/srv", "/a::/b", ["/a/app", "/srv/app", "/b/app"], "/a:/srv:/b"),
        ("app", "/srv", ":", ["/srv/app", "/srv/app"], "/srv:/srv"),
        ("app", "/srv", "bin:../sbin:.", ["/srv/bin/app", "/sbin/app", "/srv/app"], "/srv/bin:/sbin:/srv"),
        ("app", "/srv", "//a//b/", ["/a/b/app"], "/a/b"),
    ],
)
def test_where_the_executable_may_be(
    command: str, working_directory: str, path: str | None, candidates: list[str], search: str | None
) -> None:
    """Absolute paths stand, relative ones hang below the working directory, bare names are searched as rkt does."""
    environment = () if path is None else (("PATH", path),)
    app = replace(APP, exec=(command,), environment=environment)
    assert plan_executable("web", app, working_directory) == (tuple(candidates), search)


@given(
    st.text("ab./", min_size=1, max_size=8),
    st.text("ab./", max_size=8).map(lambda text: f"/{text}"),
    st.none() | st.text("ab./:", max_size=10),
)
def test_candidates_are_absolute_and_normal(command: str, working_directory: str, path: str | None) -> None:
    """Each candidate of a search is the absolute path that POSIX's rules for the text give."""
    environment = () if path is None else (("PATH", path),)
    app = replace(APP, exec=(command,), environment=environment)
    candidates, search = plan_executable("web", app, working_directory)
    assert (search is None) == ("/" in command)
    if command.startswith("/"):
        assert candidates == (command,)
        return
    entries = [""] if search is None else ["", "/bin", "/usr/bin"] if path is None else path.split(":")
    expected = [os.path.normpath(os.path.join("/", working_directory, entry, command)) for entry in entries]
    assert [*candidates] == [path.replace("//", "/") for path in expected]


@pytest.mark.parametrize("command", [(), ("",), ("", "x")])
def test_an_app_needs_an_executable(command: tuple[str, ...]) -> None:
    """An empty exec is refused with the way out."""
    assert refusal_of(exec=command) == 'app "web" has no executable: its image has an empty "exec" (try --exec=BINARY)'


def test_arguments_stay_as_they_are() -> None:
    """Characters that a shell would touch reach the app byte for byte."""
    arguments = ("a b", "$HOME", "%n", 'quote"', "line\nfeed", "", "ü")
    assert spec_of(exec=("/bin/app", *arguments)).process.arguments == arguments


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"exec": ("/bin/a\0b",)}, "exec"),
        ({"exec": ("/bin/a", "x\0")}, "exec"),
        ({"environment": (("A", "\0"),)}, "environment"),
        ({"working_directory": "/\0"}, "workingDirectory"),
        ({"event_handlers": (EventHandler(name="pre-start", exec=("/x", "\0")),)}, "event handler pre-start"),
    ],
)
def test_nul_is_refused(fields: dict[str, Any], what: str) -> None:
    """A NUL, which JSON can write and no program can be given, is found before the pod starts."""
    assert refusal_of(**fields) == f'app "web": {what} holds a NUL character'


# The environment.


def test_own_variables_replace_defaults_and_keep_their_order() -> None:
    """Defaults the app does not set come first, then its own, and what the executor says wins."""
    own = (
        ("HOME", "/srv"),
        ("A", "1"),
        ("AC_APP_NAME", "evil"),
        ("PATH", "/bin"),
        ("container", "x"),
        ("TERM", "xterm"),
    )
    assert plan_environment("web", own) == (
        ("SHELL", "/bin/sh"),
        ("USER", "root"),
        ("LOGNAME", "root"),
        ("HOME", "/srv"),
        ("A", "1"),
        ("PATH", "/bin"),
        ("TERM", "xterm"),
        ("AC_APP_NAME", "web"),
        ("container", "rkt"),
    )


def test_the_metadata_service() -> None:
    """An app is told where it is, whatever it says itself; without one its own variable stays."""
    own = (("AC_METADATA_URL", "http://evil"),)
    assert plan_environment("web", own)[-3:] == (*own, ("AC_APP_NAME", "web"), ("container", "rkt"))
    told = with_metadata(spec_of(environment=own).process.environment, "0a", "127.0.0.1")
    assert dict(told)["AC_METADATA_URL"] == "http://127.0.0.1:18112/0a"
    assert len(dict(told)) == len(told)


@given(st.dictionaries(st.text("AHOMEPTUSR_container", min_size=1, max_size=9), st.text(max_size=5)))
def test_every_variable_is_set_once(own: dict[str, str]) -> None:
    """No name occurs twice, and each of the app's own that the executor does not claim has its own value."""
    environment = plan_environment("web", tuple(own.items()))
    assert len(dict(environment)) == len(environment)
    claimed = {"AC_APP_NAME", "container"}
    assert {key: value for key, value in environment if key in own and key not in claimed} == {
        key: value for key, value in own.items() if key not in claimed
    }


def test_supplementary_groups() -> None:
    """They are exactly the list, in its order."""
    assert spec_of(supplementary_gids=(5, 4, 3)).confinement.supplementary_gids == (5, 4, 3)


# Streams.


@pytest.mark.parametrize(("mode", "planned"), [("log", "log"), ("null", "null"), ("other", "log")])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_streams(stream: str, mode: str, planned: str) -> None:
    """A stream is the log unless it is null, and the two are independent."""
    spec, _ = plan_one(annotated(f"coreos.com/rkt/stage2/{stream}", mode), APP, FLAGS)
    assert {"stdout": spec.streams.stdout, "stderr": spec.streams.stderr} == {
        "stdout": "log",
        "stderr": "log",
        stream: planned,
    }


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_can_be_the_console(stream: str) -> None:
    """By an annotation, and for that stream alone."""
    spec, _ = plan_one(annotated(f"coreos.com/rkt/stage2/{stream}", "interactive"), APP, FLAGS)
    streams = {"stdin": spec.streams.stdin, "stdout": spec.streams.stdout, "stderr": spec.streams.stderr}
    assert streams == {"stdin": "null", "stdout": "log", "stderr": "log", stream: "console"}
    assert spec.streams.has_console


@pytest.mark.parametrize("mode", ["log", "null", "stream", "tty", "interactive"])
def test_interactive_beats_annotations(mode: str) -> None:
    """With --interactive all three streams are the console."""
    spec, _ = plan_one(annotated("coreos.com/rkt/stage2/stdout", mode), APP, replace(FLAGS, interactive=True))
    assert (spec.streams.stdin, spec.streams.stdout, spec.streams.stderr) == ("console", "console", "console")


@pytest.mark.parametrize(
    ("own", "callers", "expected"),
    [
        ("linux", "xterm", "linux"),
        ("", "xterm", ""),
        (None, "xterm", "xterm"),
        (None, None, "vt100"),
        (None, "", "vt100"),
    ],
)
def test_term_of_an_app_with_a_console(own: str | None, callers: str | None, expected: str) -> None:
    """Its own, else the caller's, else vt100."""
    app = APP if own is None else replace(APP, environment=(("TERM", own),))
    spec, _ = plan_one(RUNTIME, app, replace(FLAGS, interactive=True), terminal_type=callers)
    assert dict(spec.process.environment)["TERM"] == expected


def test_term_of_an_app_without_a_console() -> None:
    """The caller's is none of its business."""
    spec, _ = plan_one(RUNTIME, APP, FLAGS, terminal_type="xterm")
    assert "TERM" not in dict(spec.process.environment)


def test_dev_console() -> None:
    """It is there for an app with a console, and for no other."""
    with_console, _ = plan_one(RUNTIME, APP, replace(FLAGS, interactive=True))
    assert BindTree(source="/dev/console", target="/dev/console") in with_console.storage.mounts
    assert "/dev/console" not in {operation.target for operation in spec_of().storage.mounts}


@pytest.mark.parametrize(
    ("stream", "mode"),
    [
        *((stream, mode) for stream in ("stdin", "stdout", "stderr") for mode in ("stream", "tty")),
        *((stream, mode) for stream in ("stdout", "stderr") for mode in ("log+stream", "log+tty")),
    ],
)
def test_streams_that_can_be_attached_to(stream: str, mode: str) -> None:
    """Each stream has its own mode, and others keep theirs; a terminal comes with a type."""
    spec, _ = plan_one(annotated(f"coreos.com/rkt/stage2/{stream}", mode), APP, FLAGS)
    expected = {"stdin": "null", "stdout": "log", "stderr": "log", stream: mode}
    assert {name: getattr(spec.streams, name) for name in expected} == expected
    assert spec.streams.is_attachable
    assert spec.streams.has_tty == mode.endswith("tty")
    assert dict(spec.process.environment).get("TERM") == ("xterm" if spec.streams.has_tty else None)


def test_interactive_is_stronger_than_what_can_be_attached_to() -> None:
    """With --interactive every stream is the console, whatever the annotations say."""
    spec, _ = plan_one(annotated("coreos.com/rkt/stage2/stdin", "tty"), APP, replace(FLAGS, interactive=True))
    assert {spec.streams.stdin, spec.streams.stdout, spec.streams.stderr} == {"console"}
    assert not spec.streams.is_attachable


@pytest.mark.parametrize("mode", ["null", "log", "other", "log+stream", "log+tty"])
def test_a_stdin_that_needs_nothing_is_accepted(mode: str) -> None:
    """Every other mode of stdin means /dev/null."""
    plan_one(annotated("coreos.com/rkt/stage2/stdin", mode), APP, FLAGS)


# What cannot be had.


@pytest.mark.parametrize(
    ("runtime", "fields", "reason"),
    [
        (
            {},
            {"isolators": (Isolator(name="os/linux/apparmor-profile", value={}),)},
            "isolator os/linux/apparmor-profile",
        ),
        (
            {},
            {"event_handlers": (EventHandler(name="pre-start", exec=("x", "/y")),)},
            'event handler pre-start: expected an absolute path, got "x"',
        ),
        (
            {},
            {"event_handlers": (EventHandler(name="post-stop", exec=("./x",)),)},
            'event handler post-stop: expected an absolute path, got "./x"',
        ),
        (
            {},
            {"event_handlers": (EventHandler(name="post-stop", exec=()),)},
            'event handler post-stop: expected an absolute path, got ""',
        ),
        ({"annotations": (("minit/what", "x"),)}, {}, 'unknown annotation "minit/what"'),
    ],
)
def test_what_is_refused(runtime: dict[str, Any], fields: dict[str, Any], reason: str) -> None:
    """A field whose effect is not built is refused in a line that names the app and the field."""
    text = refusal_of(replace(RUNTIME, **runtime), **fields)
    assert text.startswith(f'app "web": {reason}')
    assert "\n" not in text


def test_event_handlers() -> None:
    """Their arguments are kept as they are."""
    handlers = (
        EventHandler(name="post-stop", exec=("/bin/after", "%x $y", "")),
        EventHandler(name="pre-start", exec=("/bin/before",)),
    )
    spec = spec_of(event_handlers=handlers)
    assert (spec.life.pre_start, spec.life.post_stop) == (("/bin/before",), ("/bin/after", "%x $y", ""))
    assert spec.life.handlers == {"pre-start": ("/bin/before",), "post-stop": ("/bin/after", "%x $y", "")}
    assert "app web: post-stop ['/bin/after', '%x $y', '']" in spec.describe()
    assert (spec_of().life.pre_start, spec_of().life.post_stop, spec_of().life.handlers) == (None, None, {})


def test_an_ordinary_port_needs_nothing() -> None:
    """A port that is only listed changes nothing."""
    assert spec_of(ports=(Port(name="http", protocol="tcp", port=80),)) == spec_of()


def test_annotations_of_others_are_ignored() -> None:
    """Only names of ours are checked."""
    spec, warnings = plan_one(annotated("example.com/x", "y"), APP, FLAGS)
    assert (spec, warnings) == (spec_of(), [])


def test_describe() -> None:
    """The debug lines name the executable, the ids, streams and every mount, each with the app in front."""
    spec = spec_of(exec=("app", "x y"), environment=(("PATH", "/a:/b"),), supplementary_gids=(9,))
    first, second, calls, third, fourth, fifth, *rest = spec.describe()
    mounts, later = rest[: len(spec.storage.mounts)], rest[len(spec.storage.mounts) :]
    assert first == "app web: exec /a/app or /b/app ['x y']"
    assert second == "app web: uid 0 gid 0 groups [9] cwd /"
    assert calls == "app web: system calls: the default whitelist, others are fatal"
    assert third == "app web: stdin null stdout log stderr log"
    assert fourth == "app web: stopped by signal 15, killed after 10 s"
    assert fifth.startswith("app web: devices c 1:3 rwm, c 1:5 rwm")
    assert "app web: bind /proc on /proc" in mounts
    assert "app web: device /dev/null c 1:3 666" in mounts
    assert "app web: directory /tmp 1777" in mounts
    assert "app web: link /dev/ptmx -> pts/ptmx" in mounts
    assert later[:2] == ["app web: bind /sys on /sys", f"app web: file /etc/hostname, {len(FLAGS.uuid) + 5} bytes"]


def test_describe_what_the_pod_asks_for() -> None:
    """Volumes, files and a read-only root have lines of their own, in the order in which they are applied."""
    volume = VolumeMount(
        volume="v", kind="host", source="/src", target="/dst", place="pod: x", read_only=True, recursive=True
    )
    file = AppFile(target="/etc/hosts", text=b"::1 x\n", if_missing=True)
    protection = Protection(masked=("/a", "/b"), read_only=("/c",), writable=("/c/d",))
    spec = spec_of()
    storage = replace(spec.storage, volumes=(volume,), files=(file,), read_only_root=True, protection=protection)
    assert replace(spec, storage=storage).describe()[-7:] == [
        "app web: bind /sys on /sys, but below volumes there",
        "app web: volume v: host /src on /dst (read_only,recursive)",
        "app web: file /etc/hosts, 6 bytes unless there is one",
        "app web: masked /a /b",
        "app web: read-only /c",
        "app web: writable /c/d",
        "app web: root read-only",
    ]


def test_a_read_only_root() -> None:
    """The pod's settings of the app's root are in the plan."""
    spec, _ = plan_one(replace(RUNTIME, read_only_root_fs=True), APP, FLAGS)
    assert spec.storage.read_only_root


# Mounts.


@pytest.mark.parametrize("operations", [app_mounts(), pod_mounts()])
def test_every_mount_point_is_made_or_there(operations: tuple[MountOp, ...]) -> None:
    """A target below /dev comes after the mount of /dev, and its directory before it."""
    made = {"/", "/proc", "/sys", "/dev", "/run"} if operations == pod_mounts() else {"/"}
    for operation in operations:
        if isinstance(operation, MakeDirectory):
            made.add(operation.target)
        elif isinstance(operation, (BindTree, MountFilesystem)):
            assert operation.target in made
            made = {path for path in made if not path.startswith(f"{operation.target}/")}
        assert os.path.dirname(operation.target) in made


def test_an_app_binds_only_what_the_pod_has() -> None:
    """Each source of a bind is a place where the pod mounts something."""
    pod = {operation.target for operation in pod_mounts() if isinstance(operation, MountFilesystem)}
    binds = [operation for operation in (*app_mounts(), SYSFS) if isinstance(operation, BindTree)]
    assert {operation.source for operation in binds} <= pod


def test_no_filesystem_honours_setuid_or_devices_but_dev_itself() -> None:
    """Every new filesystem is nosuid; only /dev and its devpts have devices, only shared memory may be executed."""
    new = [operation for operation in (*pod_mounts(), *app_mounts()) if isinstance(operation, MountFilesystem)]
    assert all(operation.nosuid for operation in new)
    assert {operation.target for operation in new if not operation.nodev} == {"/dev", "/dev/pts"}
    assert {operation.target for operation in new if not operation.noexec} == {"/dev/shm"}
    assert {operation.target for operation in new if operation.read_only} == {"/sys"}
