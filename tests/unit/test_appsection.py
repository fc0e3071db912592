"""The app section of an app: its image's, with what a user asks instead."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PodError
from minit.base.value import replace
from minit.manifest.app import App, Isolator
from minit.manifest.image import ImageManifest
from minit.stage0.pods.appsection import (
    AppOverrides,
    Pairs,
    PodDefaults,
    merge_environment,
    merge_isolators,
    plan_app_section,
)

DATA = Path("/var/lib/rkt")
DEFAULTS = PodDefaults(uid=0, gid=0, data=DATA)
IMAGE = ImageManifest(
    ac_version="0.8.11",
    name="example.com/a",
    app=App(exec=("/x",), user="0", group="0", user_annotations=(("a", "1"), ("b", "2")), user_labels=(("l", "1"),)),
)


def test_commands_of_docker() -> None:
    """--cmd stands in the place of the command, after the entrypoint; an image that knows no entrypoint has none."""
    image = replace(
        IMAGE,
        app=App(exec=("/e", "x", "c"), user="0", group="0"),
        annotations=(("appc.io/docker/repository", "r"), ("appc.io/docker/entrypoint", '["/e","x"]')),
    )
    for only in (False, True):
        overrides = AppOverrides(command="run", arguments=("a",), only_arguments=only)
        assert plan_app_section(image, overrides, DEFAULTS).exec == ("/e", "x", "run", "a")
    bare = replace(image, annotations=image.annotations[:1])
    assert plan_app_section(bare, AppOverrides(command="run"), DEFAULTS).exec == ("run",)
    with pytest.raises(PodError, match='image "example.com/a" has no command apart from its entrypoint'):
        plan_app_section(IMAGE, AppOverrides(command="run"), DEFAULTS)
    for words in ("{}", "[1]"):
        bad = replace(image, annotations=(*image.annotations[:1], ("appc.io/docker/entrypoint", words)))
        with pytest.raises(PodError, match="expected a list of words"):
            plan_app_section(bad, AppOverrides(command="run"), DEFAULTS)


def test_environment_precedence() -> None:
    """--set-env wins over --set-env-file, over --environment, over the image, over the inherited environment."""
    defaults = PodDefaults(
        uid=0,
        gid=0,
        data=DATA,
        inherited=(("A", "i"), ("B", "i"), ("C", "i"), ("D", "i"), ("E", "i")),
        from_file=(("C", "f"), ("D", "f")),
        environment=(("D", "s"),),
    )
    merged = merge_environment((("A", "m"), ("B", "m")), (("B", "e"), ("C", "e")), defaults)
    assert merged == (("A", "m"), ("B", "e"), ("C", "f"), ("D", "s"), ("E", "i"))


VARIABLES = st.lists(st.tuples(st.sampled_from("ABCDE"), st.text())).map(tuple)


@given(VARIABLES, VARIABLES, VARIABLES, VARIABLES, VARIABLES)
def test_environment_has_each_name_once(
    image_own: Pairs, app: Pairs, inherited: Pairs, from_file: Pairs, chosen: Pairs
) -> None:
    """Every name of any source is there once, with the value of the last source that has it."""
    sources = (image_own, app, inherited, from_file, chosen)
    defaults = PodDefaults(uid=0, gid=0, data=DATA, inherited=inherited, from_file=from_file, environment=chosen)
    merged = merge_environment(image_own, app, defaults)
    names = [name for name, _ in merged]
    assert len(names) == len(set(names))
    assert set(names) == {name for source in sources for name, _ in source}
    strong = dict([*image_own, *app, *from_file, *chosen])
    assert {name: value for name, value in merged if name in strong} == strong


SOURCES = ("inherited", "image", "app", "from_file", "set")


@pytest.mark.parametrize(("weaker", "stronger"), list(itertools.combinations(SOURCES, 2)))
def test_every_pair_of_sources(weaker: str, stronger: str) -> None:
    """Of any two sources of one variable the stronger wins: inherited, image, --environment, file, --set-env."""
    given = {source: (("X", source),) if source in (weaker, stronger) else () for source in SOURCES}
    inherited, from_file, chosen = (given[source] for source in ("inherited", "from_file", "set"))
    defaults = PodDefaults(uid=0, gid=0, data=DATA, inherited=inherited, from_file=from_file, environment=chosen)
    assert merge_environment(given["image"], given["app"], defaults) == (("X", stronger),)


def isolators(*names: str, value: object = "own") -> tuple[Isolator, ...]:
    """Return isolators of some names."""
    return tuple(Isolator(name=name, value=value) for name in names)


MEMORY, CPU = "resource/memory", "resource/cpu"
SHARES, OOM = "os/linux/cpu-shares", "os/linux/oom-score-adj"
RETAIN, REMOVE = "os/linux/capabilities-retain-set", "os/linux/capabilities-remove-set"
SECCOMP_RETAIN, SECCOMP_REMOVE = "os/linux/seccomp-retain-set", "os/linux/seccomp-remove-set"
OTHER = "os/linux/no-new-privileges"


@pytest.mark.parametrize(
    ("image", "own", "merged"),
    [
        ([MEMORY], [MEMORY], [(MEMORY, "image"), (MEMORY, "own")]),
        ([CPU, OTHER], [MEMORY], [(CPU, "image"), (OTHER, "image"), (MEMORY, "own")]),
        ([SHARES, OOM, OTHER], [SHARES], [(OOM, "image"), (OTHER, "image"), (SHARES, "own")]),
        ([OOM], [OOM], [(OOM, "own")]),
        ([RETAIN, REMOVE, OTHER], [RETAIN], [(OTHER, "image"), (RETAIN, "own")]),
        ([RETAIN, RETAIN], [REMOVE], [(REMOVE, "own")]),
        ([SECCOMP_RETAIN], [SECCOMP_REMOVE], [(SECCOMP_REMOVE, "own")]),
        ([SECCOMP_REMOVE], [SECCOMP_RETAIN], [(SECCOMP_RETAIN, "own")]),
        ([], [SECCOMP_RETAIN, SECCOMP_REMOVE], [(SECCOMP_REMOVE, "own")]),
        (
            [OTHER],
            [SECCOMP_RETAIN, REMOVE, OOM, SHARES, CPU, MEMORY],
            [
                *[(OTHER, "image"), (MEMORY, "own"), (CPU, "own"), (SHARES, "own")],
                *[(OOM, "own"), (REMOVE, "own"), (SECCOMP_RETAIN, "own")],
            ],
        ),
    ],
)
def test_isolators(image: list[str], own: list[str], merged: list[tuple[str, str]]) -> None:
    """Limits are added, everything else replaces what the image has for the purpose, in rkt's order."""
    result = merge_isolators(isolators(*image, value="image"), isolators(*own))
    assert [(isolator.name, isolator.value) for isolator in result] == merged


def test_the_last_of_several_counts() -> None:
    """An option that is given twice counts as it was given last."""
    own = (Isolator(name=MEMORY, value=1), Isolator(name=MEMORY, value=2))
    assert merge_isolators((), own) == own[1:]


def test_user_annotations_and_labels() -> None:
    """User annotations and labels replace all of the image's, the last value of a name counting."""
    overrides = AppOverrides(user_annotations=(("x", "1"), ("y", "2"), ("x", "3")))
    app = plan_app_section(IMAGE, overrides, DEFAULTS)
    assert app.user_annotations == (("x", "3"), ("y", "2"))
    assert app.user_labels == (("l", "1"),)
    assert plan_app_section(IMAGE, AppOverrides(user_labels=(("k", ""),)), DEFAULTS).user_labels == (("k", ""),)


@pytest.mark.parametrize(
    ("chosen", "groups"),
    [
        ({}, (27,)),
        ({"user": "1000"}, ()),
        ({"group": "1000"}, ()),
        ({"user": "1000", "group": "1000", "supplementary_gids": (5,)}, (5,)),
        ({"supplementary_gids": (5,)}, (5,)),
    ],
)
def test_supplementary_groups(chosen: dict[str, Any], groups: tuple[int, ...]) -> None:
    """Whom the user chooses is in no group of the image's choice, but in those that the user gives."""
    assert IMAGE.app is not None
    image = replace(IMAGE, app=replace(IMAGE.app, supplementary_gids=(27,)))
    assert plan_app_section(image, AppOverrides(**chosen), DEFAULTS).supplementary_gids == groups
