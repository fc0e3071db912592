"""
`--filter`: which things of a list are shown or removed, in podman's words and with podman's rules; pure.

Values of one key are alternatives, but for labels, which must all fit; keys must all fit. A listing turns its things
into values of `Listed`, so that one table serves all listings.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

from minit.base.errors import MinitError
from minit.base.moment import parse_moment
from minit.base.value import Value, replace
from minit.cli.flagwords import suggest
from minit.podfiles.paths import PodEvent
from minit.stage0.pods.poddirectory import PodState
from minit.stage0.pods.podstatus import APP_EXITED, APP_PAUSED, PodStatus

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Pairs = tuple[tuple[str, str], ...]


class Subject(StrEnum):
    """The kinds of things in lists, in the words of an error."""

    PODS = "pods"
    IMAGES = "images"
    VOLUMES = "volumes"
    NETWORKS = "networks"
    EVENTS = "events"
    UNNEEDED = "unneeded things"


class Listed(Value):
    """What filters look at in a pod, an image, a volume, a network or an event; times in nanoseconds since 1970."""

    ids: tuple[str, ...] = ()
    """The id in all forms, and its digests."""
    names: tuple[str, ...] = ()
    labels: Pairs = ()
    created_ns: int | None = None
    states: frozenset[str] = frozenset()
    apps: tuple[str, ...] = ()
    app_states: frozenset[str] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    images: tuple[str, ...] = ()
    """The names and ids of images of the apps."""
    networks: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    """The names of volumes, and the paths in the apps."""
    health: str = ""
    driver: str = ""
    is_dangling: bool = False
    event: str = ""


class Key(Value):
    """
    A row of the table: the words of a key, who has the key, the reader of values, and the test of a thing.

    The reader raises ValueError. A key that `refers` has another thing of the list as its value, and the test gets the
    time of its making. `all_fit` is true if not one value is enough. `negated` are the subjects with `KEY!=VALUE`.
    """

    words: tuple[str, ...]
    subjects: frozenset[Subject]
    read: Callable[[str], Any]
    test: Callable[[Listed, Any], bool]
    refers: bool = False
    all_fit: bool = False
    negated: frozenset[Subject] = frozenset()
    values: tuple[str, ...] = ()
    """All possible values, if there are few."""


class Filter(Value):
    """A filter of the command line; `wanted` is what the reader of the key has returned."""

    key: Key
    wanted: Any
    is_negated: bool = False


def _id(text: str) -> re.Pattern[str]:
    # As in podman: the beginning of an id, or else a regular expression.
    return re.compile(f"^(sha512-|sha256:)?{re.escape(text)}") if re.fullmatch(r"[0-9a-f-]+", text) else _pattern(text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of another meaning in a later Python
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"expected a regular expression: {error}") from error


def _reference(text: str) -> re.Pattern[str]:
    """Return what fits a name of an image, with * and ? for a part between two slashes."""
    parts = {"*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(parts.get(character) or re.escape(character) for character in text))


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise ValueError("expected LABEL or LABEL=VALUE")
    return name, value if equals else None


def _number(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise ValueError("expected a number")
    return int(text)


def _moment(text: str) -> int:
    return parse_moment(text, time.time_ns())


def _non_empty(text: str) -> str:
    if not text:
        raise ValueError("expected a value")
    return text


def _one_of(words: Iterable[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        word = text.lower()
        if word not in words:
            raise ValueError(f'expected one of {", ".join(words)}, got "{text}"{suggest(word, words)}')
        return word

    return read


def _finds(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    return any(pattern.search(text) for text in texts)


def _is_meant(thing: Listed, word: str) -> bool:
    """Return whether `word` is a thing's name or the beginning of its id."""
    return word in thing.names or any(each.startswith(word) for each in thing.ids)


def _has_label(thing: Listed, label: tuple[str, str | None]) -> bool:
    name, value = label
    return any(each == name and value in (None, text) for each, text in thing.labels)


def _is_referred_to(thing: Listed, pattern: re.Pattern[str]) -> bool:
    return any(pattern.fullmatch(spelling) for name in thing.names for spelling in _spellings(name))


def _spellings(name: str) -> Iterable[str]:
    """Yield all forms in which users write the name of an image: with and without registry, directories and tag."""
    name = re.sub(r"^registry-1\.docker\.io/", "docker.io/", name)
    parts = name.split("/")
    for start in range(len(parts)):
        spelling = "/".join(parts[start:])
        yield spelling
        if ":" in parts[-1]:
            yield spelling.rpartition(":")[0]


_STATES = {"created": "prepared", "stopped": "exited"}
"""Podman's words for states of minit."""
_POD_STATES = (
    "created", "exited", "paused", "running", "stopped",
    "prepared", "preparing", "aborted prepare", "exited garbage", "exited deleting",
)  # fmt: skip
_STATES_OF_GARBAGE = {PodState.EXITED_GARBAGE: "exited", PodState.EXITED_DELETING: "exited"}
_NAMED_VOLUME = re.compile(r"/minit/volumes/([^/]+)/data(?:/|$)")
_APP_STATES = ("created", "exited", "paused", "running", "unknown")
_BOOLEANS = ("true", "false", "1", "0")
_HEALTHS = ("healthy", "unhealthy")
_TYPES = tuple(dict.fromkeys(event.partition(".")[0] for event in PodEvent))
_EVENTS = tuple(dict.fromkeys((*PodEvent, *(event.rpartition(".")[2] for event in PodEvent))))

_PODS, _IMAGES, _VOLUMES = Subject.PODS, Subject.IMAGES, Subject.VOLUMES
_NETWORKS, _OF_EVENTS, _UNNEEDED = Subject.NETWORKS, Subject.EVENTS, Subject.UNNEEDED


def _boolean_key(subjects: frozenset[Subject], word: str, test: Callable[[Listed], bool]) -> Key:
    def is_as_wanted(thing: Listed, value: str) -> bool:
        return test(thing) is (value in ("true", "1"))

    return Key(words=(word,), subjects=subjects, read=_one_of(_BOOLEANS), test=is_as_wanted, values=_BOOLEANS[:2])


def _keys(*subjects: Subject) -> frozenset[Subject]:
    return frozenset(subjects)


KEYS: tuple[Key, ...] = (
    Key(
        words=("id",), subjects=_keys(_PODS, _IMAGES), read=_id, test=lambda thing, pattern: _finds(pattern, thing.ids)
    ),
    Key(
        words=("name",),
        subjects=_keys(_PODS, _VOLUMES, _NETWORKS),
        read=_pattern,
        test=lambda thing, pattern: _finds(pattern, thing.names),
    ),
    Key(words=("pod",), subjects=_keys(_PODS, _OF_EVENTS), read=_non_empty, test=_is_meant),
    Key(
        words=("container",),
        subjects=_keys(_OF_EVENTS),
        read=_non_empty,
        test=lambda thing, word: _is_meant(thing, word) or word in thing.apps,
    ),
    Key(
        words=("app", "ctr-names"),
        subjects=_keys(_PODS, _OF_EVENTS),
        read=_pattern,
        test=lambda thing, pattern: _finds(pattern, thing.apps),
    ),
    Key(
        words=("ctr-number",), subjects=_keys(_PODS), read=_number, test=lambda thing, number: len(thing.apps) == number
    ),
    Key(
        words=("ctr-status",),
        subjects=_keys(_PODS),
        read=_one_of(_APP_STATES),
        test=lambda thing, word: word in thing.app_states,
        values=_APP_STATES,
    ),
    Key(
        words=("status", "state"),
        subjects=_keys(_PODS),
        read=_one_of(_POD_STATES),
        test=lambda thing, word: _STATES.get(word, word) in thing.states,
        values=_POD_STATES[:5],
    ),
    Key(words=("exited",), subjects=_keys(_PODS), read=_number, test=lambda thing, code: code in thing.exit_codes),
    Key(
        words=("health",),
        subjects=_keys(_PODS),
        read=_one_of(_HEALTHS),
        test=lambda thing, word: thing.health == word,
        values=_HEALTHS,
    ),
    Key(
        words=("ancestor", "image"),
        subjects=_keys(_PODS, _OF_EVENTS),
        read=_pattern,
        test=lambda thing, pattern: _finds(pattern, thing.images),
    ),
    Key(words=("network",), subjects=_keys(_PODS), read=_non_empty, test=lambda thing, name: name in thing.networks),
    Key(words=("volume",), subjects=_keys(_PODS), read=_non_empty, test=lambda thing, name: name in thing.volumes),
    Key(words=("reference",), subjects=_keys(_IMAGES), read=_reference, test=_is_referred_to),
    Key(
        words=("label",),
        subjects=_keys(_PODS, _IMAGES, _NETWORKS, _OF_EVENTS, _UNNEEDED),
        read=_label,
        test=_has_label,
        all_fit=True,
        negated=_keys(_PODS, _NETWORKS, _UNNEEDED),
    ),
    Key(words=("driver",), subjects=_keys(_NETWORKS), read=_non_empty, test=lambda thing, name: thing.driver == name),
    _boolean_key(_keys(_IMAGES, _VOLUMES, _NETWORKS), "dangling", lambda thing: thing.is_dangling),
    Key(
        words=("before",),
        subjects=_keys(_PODS, _IMAGES),
        read=_non_empty,
        test=lambda thing, moment_ns: thing.created_ns is not None and thing.created_ns < moment_ns,
        refers=True,
    ),
    Key(
        words=("since", "after"),
        subjects=_keys(_PODS, _IMAGES, _VOLUMES),
        read=_non_empty,
        test=lambda thing, moment_ns: thing.created_ns is not None and thing.created_ns > moment_ns,
        refers=True,
    ),
    Key(
        words=("until",),
        subjects=_keys(_PODS, _IMAGES, _VOLUMES, _NETWORKS, _UNNEEDED),
        read=_moment,
        test=lambda thing, moment_ns: thing.created_ns is not None and thing.created_ns < moment_ns,
    ),
    Key(
        words=("event",),
        subjects=_keys(_OF_EVENTS),
        read=_one_of(_EVENTS),
        test=lambda thing, word: word in (thing.event, thing.event.rpartition(".")[2]),
        values=tuple(PodEvent),
    ),
    Key(
        words=("type",),
        subjects=_keys(_OF_EVENTS),
        read=_one_of((*_TYPES, "container")),
        test=lambda thing, word: thing.event.partition(".")[0] == {"container": "app"}.get(word, word),
        values=_TYPES,
    ),
)


def words_of(subject: Subject) -> dict[str, Key]:
    """Return the keys of a subject by all their words."""
    return {word: key for key in KEYS if subject in key.subjects for word in key.words}


def parse_filter(text: str, subject: Subject) -> Filter:
    """Return the filter of a text; ValueError for what is none, with the keys that there are."""
    word, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f'expected KEY=VALUE, got "{text}"')
    is_negated, word = word.endswith("!"), word.removesuffix("!").strip().lower()
    keys = words_of(subject)
    key = keys.get(word)
    if key is None:
        raise ValueError(f'{subject} have no filter "{word}"{suggest(word, keys) or "."} Filters are {", ".join(keys)}')
    # Podman turns every filter of images around.
    if is_negated and subject is not Subject.IMAGES and subject not in key.negated:
        which = ", ".join(each for each, other in keys.items() if subject in other.negated)
        raise ValueError(f'{f"only {which}" if which else "no filter"} of {subject} has !=, got "{text}"')
    try:
        return Filter(key=key, wanted=key.read(value), is_negated=is_negated)
    except ValueError as error:
        got = f'"{value}"'
        raise ValueError(f"{word}: {error}" if got in str(error) else f"{word}: {error}, got {got}") from error


def listed_pod(pod: PodStatus, health: str = "") -> Listed:
    """Return what filters look at in a pod."""
    unfinished = {app.state for app in pod.apps} - {APP_EXITED}
    is_paused = pod.state is PodState.RUNNING and unfinished == {APP_PAUSED}
    state = _STATES_OF_GARBAGE.get(pod.state, str(pod.state))
    mounts = [mount for app in pod.apps for mount in app.mounts]
    paths = [path for mount in mounts for path in (mount.name, mount.container_path, mount.host_path)]
    return Listed(
        ids=(pod.uuid, pod.uuid.replace("-", "")),
        names=() if pod.name is None else (pod.name,),
        labels=(*pod.user_labels, *(label for app in pod.apps for label in app.user_labels)),
        created_ns=pod.created_ns,
        states=frozenset({"paused"} if is_paused else {str(pod.state), state}),
        apps=tuple(app.name for app in pod.apps),
        app_states=frozenset(app.state for app in pod.apps),
        exit_codes=frozenset(app.exit_code for app in pod.apps if app.exit_code is not None),
        images=tuple(text for app in pod.apps for text in (app.image_name, app.image_id) if text),
        networks=tuple(dict(network)["netName"] for network in pod.networks),
        volumes=(*paths, *(match[1] for path in paths if (match := _NAMED_VOLUME.search(path)))),
        health=health,
    )


def filter_option(subject: Subject, *names: str, help_text: str = "Only those that fit") -> Callable[[F], F]:
    """Return the repeatable option for the filters of a subject, with further `names`; read before the operands."""

    def read(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Filter, ...]:
        try:
            return tuple(parse_filter(value, subject) for value in values)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from error

    return click.option(
        *names,
        "--filter",
        "filters",
        cls=FilterOption,
        subject=subject,
        metavar="KEY=VALUE",
        multiple=True,
        is_eager=True,
        callback=read,
        help=f"{help_text}: by {', '.join(words_of(subject))}; repeatable.",
    )


class FilterOption(click.Option):
    """The option --filter of a `subject`, for completion."""

    def __init__(self, *arguments: Any, subject: Subject, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.subject = subject


def resolved(filters: Sequence[Filter], things: Iterable[Listed]) -> tuple[Filter, ...]:
    """Return filters with times in the place of things; MinitError for a thing that is not there."""
    every = [*things] if any(each.key.refers for each in filters) else []
    return tuple(
        replace(each, wanted=_created_ns(each, every), key=replace(each.key, refers=False)) if each.key.refers else each
        for each in filters
    )


def _created_ns(each: Filter, things: Sequence[Listed]) -> int:
    word = each.wanted
    named = [thing for thing in things if word in thing.names or word in thing.ids]
    found = (
        named
        or [thing for thing in things if any(one.startswith(word) for one in thing.ids)]
        or [thing for thing in things if any(word in _spellings(name) for name in thing.names)]
    )
    if not found:
        raise MinitError(f'--filter {each.key.words[0]}={word}: there is no "{word}"')
    made = {thing.created_ns for thing in found} - {None}
    if len(made) != 1:
        raise MinitError(
            f'--filter {each.key.words[0]}={word}: "{word}" means {len(found)}, or was not made to the end'
        )
    return int(made.pop() or 0)


def fits(filters: Iterable[Filter], thing: Listed) -> bool:
    """Return whether a thing fits all keys of `resolved` filters."""
    alternatives: dict[tuple[str, ...], bool] = {}
    for each in filters:
        is_found = each.key.test(thing, each.wanted) is not each.is_negated
        if each.key.all_fit or each.is_negated:
            if not is_found:
                return False
            continue
        words = each.key.words
        alternatives[words] = alternatives.get(words, False) or is_found
    return all(alternatives.values())


def chosen(filters: Sequence[Filter], things: Sequence[T], listed: Callable[[T], Listed]) -> list[T]:
    """Return the things that fit the filters; `listed` makes of a thing what filters look at."""
    if not filters:
        return [*things]
    values = [listed(thing) for thing in things]
    tests = resolved(filters, values)
    return [thing for thing, value in zip(things, values, strict=True) if fits(tests, value)]
