"""The images of a command line, with their flags and arguments."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.value import replace
from minit.cli.commandgroups import app_group, commands
from minit.cli.flags.appoptions import APP_FLAGS
from minit.cli.flags.imageargs import scan_images
from minit.cli.flagwords import Flag, FlagError, FlagKind
from minit.cli.grammar import AppOption, SharedAppOption
from minit.manifest.pod import Mount
from minit.pods.requests import AppRequest
from minit.stage0.pods.appsection import AppOverrides

SHARED_FLAGS = frozenset({"--mount", "--name"})
APP = {name: name for name in APP_FLAGS}
FLAGS = {
    **dict.fromkeys((*APP_FLAGS, "--hostname"), Flag(kind=FlagKind.VALUE)),
    "--readonly-rootfs": Flag(kind=FlagKind.SWITCH),
    "--net": Flag(kind=FlagKind.OPTIONAL, bare="default"),
    "--no-overlay": Flag(kind=FlagKind.SWITCH),
}

IMAGE_NAMES = st.text(min_size=1).filter(lambda word: not word.startswith("-"))
ARGUMENTS = st.lists(st.text().filter(lambda word: word != "---"))


def scan(line: str) -> tuple[list[tuple[str, str]], tuple[AppRequest, ...]]:
    """Scan a line that is split as a shell does."""
    return scan_images(shlex.split(line), FLAGS, APP, SHARED_FLAGS)


def test_the_line_of_the_manual() -> None:
    """Flags of the command and of an app, and arguments, are told apart."""
    found, images = scan("--net=none busybox.aci --exec /bin/sh -- -c 'exit 42'")
    assert found == [("--net", "none")]
    overrides = AppOverrides(exec="/bin/sh", arguments=("-c", "exit 42"))
    assert images == (AppRequest(reference="busybox.aci", overrides=overrides),)


def test_several_images() -> None:
    """Each image has the flags after it; `---` ends its arguments."""
    found, images = scan(
        "a.aci --name=one --user 7 -- x -- y --- --no-overlay b.aci --environment=K=V=W --environment=L= --hostname h"
    )
    assert found == [("--no-overlay", "true"), ("--hostname", "h")]
    assert [image.reference for image in images] == ["a.aci", "b.aci"]
    assert images[0].overrides == AppOverrides(name="one", user="7", arguments=("x", "--", "y"))
    assert images[1].overrides == AppOverrides(environment=(("K", "V=W"), ("L", "")))


def test_dashes_between_images_without_arguments() -> None:
    """`---` where no arguments end is ignored, as rkt does."""
    _, images = scan("--- a --name=one --- --- b ---")
    assert [image.reference for image in images] == ["a", "b"]


def test_all_app_flags() -> None:
    """Every per-app flag has its place."""
    _, images = scan(
        "i --exec=/e --group g --working-dir=/w --supplementary-gids=1,22 --readonly-rootfs --stdin tty --stdout=null"
        " --stderr=log --mount volume=v,target=/t --annotation=a/b=c=d --user-annotation=A=1 --user-label=L="
        " --memory=1G --cpu 2 --cpu-shares 3 --oom-score-adj -5 --caps-remove CAP_KILL --seccomp mode=retain,read"
    )
    overrides = images[0].overrides
    assert [(isolator.name, isolator.value) for isolator in overrides.isolators] == [
        ("resource/memory", {"default": False, "request": "1G", "limit": "1G"}),
        ("resource/cpu", {"default": False, "request": "2", "limit": "2"}),
        ("os/linux/cpu-shares", 3),
        ("os/linux/oom-score-adj", -5),
        ("os/linux/capabilities-remove-set", {"set": ["CAP_KILL"]}),
        ("os/linux/seccomp-retain-set", {"set": ["read"], "errno": ""}),
    ]
    assert replace(overrides, isolators=()) == AppOverrides(
        exec="/e",
        group="g",
        working_directory="/w",
        supplementary_gids=(1, 22),
        read_only_root_fs=True,
        stdin="tty",
        stdout="null",
        stderr="log",
        mounts=(Mount(volume="v", path="/t"),),
        annotations=(("a/b", "c=d"),),
        user_annotations=(("A", "1"),),
        user_labels=(("L", ""),),
    )


def test_switches_of_an_app() -> None:
    """A switch takes a value after `=` only."""
    _, images = scan("i --readonly-rootfs true --readonly-rootfs=F j --readonly-rootfs=1")
    assert [(image.reference, image.overrides.read_only_root_fs) for image in images] == [
        ("i", True),
        ("true", False),
        ("j", True),
    ]


def test_mounts_before_the_first_image() -> None:
    """A --mount belongs to the command until there is an image, and to the last image from then on."""
    found, images = scan("--mount volume=a,target=/a i --mount volume=b,target=/b j --mount=volume=c,target=/c")
    assert found == [("--mount", "volume=a,target=/a")]
    assert [image.overrides.mounts for image in images] == [
        (Mount(volume="b", path="/b"),),
        (Mount(volume="c", path="/c"),),
    ]


def test_names_before_and_after_an_image() -> None:
    """A --name before the first image is the pod's, after an image that of its app."""
    found, images = scan("--name=pod i --name a j --name=b")
    assert found == [("--name", "pod")]
    assert [image.overrides.name for image in images] == ["a", "b"]


def test_the_commands_have_these_flags() -> None:
    """run and prepare offer as options of an app what is understood as one; app add a volume of the app, too."""
    kinds = (AppOption, SharedAppOption)
    for command, flags in (
        (commands.commands["run"], APP_FLAGS - {"--mnt-volume"}),
        (commands.commands["prepare"], APP_FLAGS - {"--mnt-volume"}),
        (app_group.commands["add"], APP_FLAGS),
    ):
        assert {option.opts[0] for option in command.params if isinstance(option, kinds)} == flags


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--user=a image image", "--user must follow an image: there are several"),
        ("--exec /bin/sh", "--exec must follow an image"),
        ("-- x", "arguments after -- must follow an image"),
        ("image --cmd a --cmd b", "--cmd can be given only once per image"),
        (
            "image --cmd a --exec b",
            "--exec and --cmd exclude each other for one image: --exec replaces the entrypoint too",
        ),
        ("image --exec /a --exec /b", "--exec can be given only once per image"),
        ("image --name Big", '--name: expected lower-case letters, digits and inner dashes, got "Big"'),
        ("image --environment novalue", '--environment: expected NAME=VALUE, got "novalue"'),
        ("image --environment 1=x", '--environment: expected NAME=VALUE, got "1=x"'),
        ("image --supplementary-gids 1,x", '--supplementary-gids: expected group ids separated by commas, got "1,x"'),
        ("image --supplementary-gids=", '--supplementary-gids: expected group ids separated by commas, got ""'),
        ("image --working-dir tmp", '--working-dir: expected an absolute path, got "tmp"'),
        ("image --user=", "--user: expected a value, got none"),
        ("image --volume x", "unknown flag: --volume"),
        ("image --supplementary-gids 4294967295", None),
        ("image --annotation Big=1", None),
        ("image --annotation=a", '--annotation: expected NAME=VALUE, got "a"'),
        ("image --user-annotation==v", '--user-annotation: expected NAME=VALUE, got "=v"'),
        ("image --user-label=l", '--user-label: expected NAME=VALUE, got "l"'),
        ("image --stdin=log", '--stdin: expected one of null, stream, tty, got "log"'),
        (
            "image --stdout=stdout",
            '--stdout: expected one of log, null, stream, tty, log+stream, log+tty, got "stdout"',
        ),
        ("image --stderr=", '--stderr: expected one of log, null, stream, tty, log+stream, log+tty, got ""'),
        ("image --readonly-rootfs=maybe", 'invalid boolean value "maybe" for --readonly-rootfs'),
        (
            "--memory=1 --stdin=x image --what",
            'unknown flag: --what; --memory: expected at least 4096 bytes, for example 16M, got "1"; '
            '--stdin: expected one of null, stream, tty, got "x"',
        ),
        ("image --restart=on-failure:x", '--restart: expected a number from 0 to 9223372036854775807, got "x"'),
        ("image --restart=x", '--restart: expected no, always, unless-stopped or on-failure[:N], got "x"'),
        ("image --cap-add=NET_WHAT", '--cap-add: expected capabilities like NET_ADMIN, or ALL, got "NET_WHAT"'),
        (
            "image --caps-retain=CAP_KILL --memory=1G --caps-remove=CAP_KILL",
            "--caps-retain and --caps-remove exclude each other for one image",
        ),
        ("image --name", "flag needs an argument: --name"),
    ],
)
def test_bad_lines(line: str, message: str | None) -> None:
    """An error is one line that names the flag."""
    with pytest.raises(FlagError) as caught:
        scan(line)
    assert message is None or str(caught.value) == message


def test_a_line_as_docker_has_it() -> None:
    """Flags for the only image stand before it, and a word that means no image begins its arguments."""
    line = "--user 7:8 --cap-drop all --cap-add net_bind_service --no-overlay image --readonly-rootfs ls -l -- /"
    found, images = scan_images(shlex.split(line), FLAGS, APP, SHARED_FLAGS, is_image=lambda word, found: False)
    assert found == [("--no-overlay", "true")]
    overrides = AppOverrides(
        user="7",
        group="8",
        dropped_capabilities=frozenset({"CAP_ALL"}),
        added_capabilities=frozenset({"CAP_NET_BIND_SERVICE"}),
        read_only_root_fs=True,
        arguments=("ls", "-l", "--", "/"),
        is_command_line=True,
    )
    assert images == (AppRequest(reference="image", overrides=overrides),)


def test_words_that_mean_images() -> None:
    """A line with images has them where their names say so, and `---` begins another image in any case."""
    asked: list[str] = []

    def is_image(word: str, found: list[tuple[str, str]]) -> bool:
        asked.append(word)
        return word.endswith(".aci")

    _, images = scan_images(
        shlex.split("a --net=none b.aci sh -c x --- sh"), FLAGS, APP, SHARED_FLAGS, is_image=is_image
    )
    assert [(image.reference, image.overrides.arguments) for image in images] == [
        ("a", ()),
        ("b.aci", ("sh", "-c", "x")),
        ("sh", ()),
    ]
    assert asked == ["b.aci", "sh"]


ANNOTATING = "--restart=on-failure:5 --stop-signal=QUIT --stop-timeout 30 --pids-limit=64 --sysctl net.core.somaxconn=9"
ANNOTATING += " --sysctl=net.ipv4.ip_forward=1 --cpuset-cpus=0-1 --memory-swap=128m --shm-size=1g --health-cmd 'true x'"
ANNOTATING += " --health-interval=5s --health-retries=2"


def test_flags_that_stand_for_annotations() -> None:
    """Docker's flags become annotations of the app; those for one object are one annotation."""
    _, [image] = scan(f"{ANNOTATING} image")
    assert dict(image.overrides.annotations) == {
        "minit/restart": "on-failure",
        "minit/restart-limit": "5",
        "minit/stop-signal": "QUIT",
        "minit/stop-grace": "30s",
        "minit/pids-limit": "64",
        "minit/sysctls": '{"net.core.somaxconn":"9","net.ipv4.ip_forward":"1"}',
        "minit/limits": '{"cpus":"0-1","memoryAndSwap":134217728}',
        "minit/shm-size": str(1 << 30),
        "minit/health": '{"liveness":{"exec":["/bin/sh","-c","true x"],"asApp":true,"action":"none",'
        '"interval":"5s","failures":2}}',
    }


@given(st.lists(st.tuples(IMAGE_NAMES, ARGUMENTS), min_size=1))
def test_arguments_survive_as_they_are(pods: list[tuple[str, list[str]]]) -> None:
    """Words between `--` and `---` reach the app unchanged."""
    words: list[str] = []
    for name, arguments in pods:
        words += [name, "--", *arguments, "---"]
    _, images = scan_images(words, FLAGS, APP, SHARED_FLAGS)
    assert [(image.reference, list(image.overrides.arguments)) for image in images] == pods


@given(st.lists(st.text() | st.just("---")))
def test_all_words_are_arguments_of_one_image(arguments: list[str]) -> None:
    """No word ends them where there is only one image."""
    _, [image] = scan_images(["image", "--", *arguments], FLAGS, APP, SHARED_FLAGS, one_image=True)
    assert list(image.overrides.arguments) == arguments


@given(st.lists(st.text()))
def test_any_line_is_read_or_refused(words: list[str]) -> None:
    """No line leads to anything but a result or a FlagError."""
    try:
        found, images = scan_images(words, FLAGS, APP, SHARED_FLAGS)
    except FlagError as error:
        assert str(error)
    else:
        assert len(found) + len(images) <= len(words)
