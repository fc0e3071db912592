"""The images of a command line, with their flags and arguments."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.flagwords import Flag, FlagError, FlagKind
from minit.cli.imageargs import ImageArgument, scan_images
from minit.stage0.podmanifest import AppOverrides

APP_FLAGS = frozenset(
    ("--exec", "--name", "--user", "--group", "--environment", "--working-dir", "--supplementary-gids")
)
FLAGS = {
    **dict.fromkeys((*APP_FLAGS, "--hostname"), Flag(kind=FlagKind.VALUE)),
    "--net": Flag(kind=FlagKind.OPTIONAL, bare="default"),
    "--no-overlay": Flag(kind=FlagKind.SWITCH),
}

IMAGE_NAMES = st.text(min_size=1).filter(lambda word: not word.startswith("-"))
ARGUMENTS = st.lists(st.text().filter(lambda word: word != "---"))


def scan(line: str) -> tuple[list[tuple[str, str]], tuple[ImageArgument, ...]]:
    """Scan a line that is split as a shell does."""
    return scan_images(shlex.split(line), FLAGS, APP_FLAGS)


def test_the_line_of_the_manual() -> None:
    """Flags of the command and of an app, and arguments, are told apart."""
    found, images = scan("--net=none busybox.aci --exec /bin/sh -- -c 'exit 42'")
    assert found == [("--net", "none")]
    overrides = AppOverrides(exec="/bin/sh", arguments=("-c", "exit 42"))
    assert images == (ImageArgument(reference="busybox.aci", overrides=overrides),)


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
    _, images = scan("i --exec=/e --group g --working-dir=/w --supplementary-gids=1,22")
    expected = AppOverrides(exec="/e", group="g", working_directory="/w", supplementary_gids=(1, 22))
    assert images[0].overrides == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--name=a image", "--name must follow an image"),
        ("--exec /bin/sh", "--exec must follow an image"),
        ("-- x", "arguments after -- must follow an image"),
        ("image --exec /a --exec /b", "--exec can be given only once per image"),
        ("image --name Big", '--name: expected lower-case letters, digits and inner dashes, got "Big"'),
        ("image --environment novalue", '--environment: expected NAME=VALUE, got "novalue"'),
        ("image --environment 1=x", '--environment: expected NAME=VALUE, got "1=x"'),
        ("image --supplementary-gids 1,x", '--supplementary-gids: expected group ids separated by commas, got "1,x"'),
        ("image --supplementary-gids=", '--supplementary-gids: expected group ids separated by commas, got ""'),
        ("image --working-dir tmp", '--working-dir: expected an absolute path, got "tmp"'),
        ("image --user=", "--user: expected a value, got none"),
        ("image --volume x", "unknown flag: --volume"),
        ("image --name", "flag needs an argument: --name"),
    ],
)
def test_bad_lines(line: str, message: str) -> None:
    """What is wrong is said in one line that names the flag."""
    with pytest.raises(FlagError) as caught:
        scan(line)
    assert str(caught.value) == message


@given(st.lists(st.tuples(IMAGE_NAMES, ARGUMENTS), min_size=1))
def test_arguments_survive_as_they_are(pods: list[tuple[str, list[str]]]) -> None:
    """Whatever stands between `--` and `---` reaches the app unchanged."""
    words: list[str] = []
    for name, arguments in pods:
        words += [name, "--", *arguments, "---"]
    _, images = scan_images(words, FLAGS, APP_FLAGS)
    assert [(image.reference, list(image.overrides.arguments)) for image in images] == pods


@given(st.lists(st.text()))
def test_any_line_is_read_or_refused(words: list[str]) -> None:
    """No line leads to anything but a result or a FlagError."""
    try:
        found, images = scan_images(words, FLAGS, APP_FLAGS)
    except FlagError as error:
        assert str(error)
    else:
        assert len(found) + len(images) <= len(words)
