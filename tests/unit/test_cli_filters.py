"""minit.cli.flags.filters: the words of --filter, and which things fit."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError
from minit.cli.flags.filters import KEYS, Listed, Subject, chosen, fits, parse_filter, resolved, words_of

WEB = Listed(
    ids=("2d381b2a-0000-4000-8000-000000000001", "2d381b2a000040008000000000000001"),
    names=("web",),
    labels=(("tier", "front"), ("blue", "")),
    created_ns=1_000_000_000,
    states=frozenset({"running"}),
    apps=("nginx", "log"),
    app_states=frozenset({"running", "exited"}),
    exit_codes=frozenset({3}),
    images=("registry-1.docker.io/library/nginx:1", "sha512-78c08a541997"),
    networks=("shop",),
    volumes=("site", "/www"),
    health="healthy",
)


def is_chosen(thing: Listed, subject: Subject, *texts: str) -> bool:
    """Return whether a thing fits filters that refer to no other thing."""
    return fits([parse_filter(text, subject) for text in texts], thing)


@pytest.mark.parametrize(
    ("fitting", "other"),
    [
        ("id=2d38", "id=d381"),
        ("id=2D38$|01$", "id=02$"),
        ("name=w", "name=^eb"),
        ("pod=web", "pod=we"),
        ("pod=2d3", "pod=d38"),
        ("app=^log$", "app=^o"),
        ("app=[[l]og", "app=[[x]og"),
        ("ctr-names=gin", "ctr-names=xx"),
        ("ctr-number=2", "ctr-number=1"),
        ("ctr-status=exited", "ctr-status=paused"),
        ("status=running", "status=stopped"),
        ("state=RUNNING", "state=created"),
        ("exited=3", "exited=0"),
        ("health=healthy", "health=unhealthy"),
        ("ancestor=nginx", "ancestor=nginx:2"),
        ("image=docker.io/library/nginx:1", "image=httpd"),
        ("ancestor=sha512-78c0", "ancestor=sha512-79"),
        ("network=shop", "network=sho"),
        ("volume=site", "volume=www"),
        ("volume=/www", "volume=/"),
        ("label=tier", "label=tie"),
        ("label=tier=front", "label=tier=back"),
        ("label=blue=", "label=blue=1"),
        ("label!=tier=back", "label!=tier"),
        ("until=@2", "until=@1"),
    ],
)
def test_filters_of_pods(fitting: str, other: str) -> None:
    """Each key of pods has values that fit a pod, and values that do not."""
    assert is_chosen(WEB, Subject.PODS, fitting)
    assert not is_chosen(WEB, Subject.PODS, other)


@pytest.mark.parametrize(
    ("fitting", "other"),
    [
        ("reference=nginx", "reference=ngin"),
        ("reference=nginx:1", "reference=nginx:2"),
        ("reference=library/nginx", "reference=docker.io/nginx"),
        ("reference=docker.io/library/nginx:1", "reference=quay.io/library/nginx:1"),
        ("reference=ng*", "reference=docker*"),
        ("reference=*:?", "reference=*:??"),
        ("reference!=httpd", "reference!=nginx"),
        ("dangling=false", "dangling=true"),
        ("id=78c0", "id=8c0"),
        ("id=sha512-78", "id=sha512-c0"),
    ],
)
def test_filters_of_images(fitting: str, other: str) -> None:
    """Images are found by all forms of their names and ids, and every filter can be turned around."""
    image = Listed(ids=("sha512-78c08a541997",), names=("registry-1.docker.io/library/nginx:1",))
    assert is_chosen(image, Subject.IMAGES, fitting)
    assert not is_chosen(image, Subject.IMAGES, other)


@pytest.mark.parametrize(
    ("fitting", "other"),
    [
        ("event=app.exited", "event=app.ready"),
        ("event=exited", "event=ended"),
        ("type=app", "type=pod"),
        ("type=container", "type=handler"),
        ("container=web", "container=shop"),
        ("container=nginx", "container=ngin"),
        ("container=2d38", "container=x"),
    ],
)
def test_filters_of_events(fitting: str, other: str) -> None:
    """Events are found by their names, with and without the part before the dot, and by pod and app."""
    event = Listed(ids=WEB.ids, names=WEB.names, apps=("nginx",), event="app.exited")
    assert is_chosen(event, Subject.EVENTS, fitting)
    assert not is_chosen(event, Subject.EVENTS, other)


LABELS = st.lists(st.sampled_from(("tier", "tier=front", "tier=back", "blue", "none")), max_size=3)
NAMES = st.lists(st.sampled_from(("web", "shop", "^w", "b$")), max_size=3)
CODES = st.lists(st.integers(0, 4), max_size=3)


@given(LABELS, LABELS, NAMES, CODES)
def test_keys_and_values(labels: list[str], without: list[str], names: list[str], codes: list[int]) -> None:
    """Values of a key are alternatives, but for labels, which must all fit, and different keys must all fit."""
    texts = [
        *(f"label={each}" for each in labels),
        *(f"label!={each}" for each in without),
        *(f"name={each}" for each in names),
        *(f"exited={each}" for each in codes),
    ]
    has = {"tier", "tier=front", "blue"}
    expected = {*labels} <= has and not {*without} & has
    expected = expected and (not names or any(re.search(each, "web") for each in names))
    expected = expected and (not codes or 3 in codes)
    assert is_chosen(WEB, Subject.PODS, *texts) is expected


WORDS = sorted({word for subject in Subject for word in words_of(subject)})


@given(
    st.sampled_from([*Subject]),
    st.sampled_from(WORDS) | st.text(max_size=20),
    st.sampled_from(("=", "!=", "")),
    st.text(max_size=20),
)
def test_any_text(subject: Subject, key: str, equals: str, value: str) -> None:
    """Any text is a filter with a test of any thing, or is refused with words."""
    text = f"{key}{equals}{value}"
    try:
        found = parse_filter(text, subject)
    except ValueError as error:
        assert str(error)
    else:
        assert "=" in text and text.partition("=")[0].removesuffix("!").strip().lower() in words_of(subject)
        if not found.key.refers:
            assert fits([found], WEB) in (True, False)


def test_a_thing_before_and_one_after() -> None:
    """Things are chosen by the making of another one of the list, which a name, an id or its beginning means."""
    things = [
        Listed(ids=(f"{number}{number}-x",), names=(name,), created_ns=number)
        for number, name in enumerate(("a", "b", "docker.io/library/c:1"), 1)
    ]

    def names(*texts: str) -> str:
        filters = [parse_filter(text, Subject.IMAGES) for text in texts]
        return "".join(thing.ids[0][0] for thing in chosen(filters, things, lambda thing: thing))

    assert (names("before=b"), names("since=b"), names("after=22-x"), names("since=2")) == ("1", "3", "3", "3")
    assert (names("before=c:1", "since=a"), names("before=c"), names("before!=b"), names()) == ("2", "12", "23", "123")
    with pytest.raises(MinitError, match=r'--filter before=d: there is no "d"'):
        names("before=d")


def test_a_thing_that_a_word_does_not_single_out() -> None:
    """A beginning of several ids, and a thing whose making is not known, are no moment."""
    filters = [parse_filter("since=1", Subject.PODS)]
    for things in ([Listed(ids=("11",), created_ns=1), Listed(ids=("12",), created_ns=2)], [Listed(ids=("1",))]):
        with pytest.raises(MinitError, match=f'"1" means {len(things)}, or was not made to the end'):
            resolved(filters, things)


@pytest.mark.parametrize(
    ("subject", "text", "message"),
    [
        (Subject.PODS, "running", 'expected KEY=VALUE, got "running"'),
        (
            Subject.VOLUMES,
            "nam=x",
            'volumes have no filter "nam", did you mean name? Filters are name, dangling, since',
        ),
        (Subject.NETWORKS, "x=y", 'networks have no filter "x". Filters are name, label, driver, dangling, until'),
        (Subject.PODS, "status!=running", 'only label of pods has !=, got "status!=running"'),
        (Subject.VOLUMES, "name!=x", 'no filter of volumes has !=, got "name!=x"'),
        (Subject.PODS, "exited=x", 'exited: expected a number, got "x"'),
        (Subject.PODS, "network=", "network: expected a value"),
        (Subject.PODS, "label==x", 'label: expected LABEL or LABEL=VALUE, got "=x"'),
        (
            Subject.PODS,
            "name=(",
            "name: expected a regular expression: missing ), unterminated subpattern at position 0, ",
        ),
        (
            Subject.PODS,
            "name=a{99999999999}",
            "name: expected a regular expression: the repetition number is too large",
        ),
        (
            Subject.PODS,
            "health=helthy",
            'health: expected one of healthy, unhealthy, got "helthy", did you mean healthy?',
        ),
        (Subject.PODS, "until=soon", "until: expected how long ago"),
        (Subject.EVENTS, "event=start", "event: expected one of app.state, app.exited"),
    ],
)
def test_refusals(subject: Subject, text: str, message: str) -> None:
    """A refusal names the key, what was expected and what is near, and an unknown key has the list of keys."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_filter(text, subject)


def test_the_documented_table() -> None:
    """docs/rkt.md has a row for each key, with all words and all listings of the key."""
    section = (Path(__file__).parents[2] / "docs/rkt.md").read_text().partition("## Filters")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in section.splitlines() if line.startswith("| `")]
    documented = {(tuple(words.replace("`", "").split(", ")), tuple(of.split(", "))) for words, of in rows}
    assert documented == {(key.words, tuple(each for each in Subject if each in key.subjects)) for key in KEYS}


def test_the_table() -> None:
    """No listing has two keys of one word, and each key's possible values can be read."""
    for subject in Subject:
        every = sorted(word for key in KEYS if subject in key.subjects for word in key.words)
        assert [word for word, _ in groupby(every)] == every
    for key in KEYS:
        assert [key.read(value) for value in key.values] == [*key.values]
