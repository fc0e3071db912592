"""minit.plan.life.stopping: the signal that stops an app, and how long it has to end."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.base.signals import parse_signal
from minit.manifest.image import ImageManifest
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.life.stopping import Stopping, plan_pod_grace, plan_stopping

SIGNAL, GRACE = "minit/stop-signal", "minit/stop-grace"
GRACE_SECONDS = 30.0
EXPECTED_SIGNAL = 'expected a signal such as "SIGQUIT", "HUP", "RTMIN+3" or "15"'


def stopping_of(*own: tuple[str, str], image: tuple[tuple[str, str], ...] = ()) -> Stopping:
    """Return how an app with these annotations is stopped, in a pod whose grace period is 30 seconds."""
    manifest = ImageManifest(ac_version="0.8.11", name="example.com/web", annotations=image)
    return plan_stopping(RuntimeApp(name="web", annotations=own), manifest, GRACE_SECONDS)


def test_without_annotations() -> None:
    """SIGTERM, and the pod's grace period."""
    assert stopping_of() == Stopping(signal=signal.SIGTERM, grace_seconds=GRACE_SECONDS)


def test_what_the_app_says_comes_before_what_its_image_says() -> None:
    """The image's signal is the default for its apps."""
    image = ((SIGNAL, "SIGQUIT"),)
    assert stopping_of(image=image).signal == signal.SIGQUIT
    assert stopping_of((SIGNAL, "HUP"), image=image).signal == signal.SIGHUP


def test_the_apps_own_grace_period() -> None:
    """It stands in for the pod's; that of an image is not looked at."""
    assert stopping_of((GRACE, "1m")).grace_seconds == 60.0
    assert stopping_of((GRACE, "0")).grace_seconds == 0.0
    assert stopping_of(image=((GRACE, "1m"),)).grace_seconds == GRACE_SECONDS


@pytest.mark.parametrize(
    ("annotations", "image", "text"),
    [
        (((SIGNAL, "SIGNALL"),), (), f'app "web": annotation {SIGNAL}: {EXPECTED_SIGNAL}, got "SIGNALL"'),
        ((), ((SIGNAL, ""),), f'app "web": image example.com/web: annotation {SIGNAL}: {EXPECTED_SIGNAL}, got ""'),
        (((GRACE, "5"),), (), f'app "web": annotation {GRACE}: expected a duration such as "10s", got "5"'),
        (((GRACE, "-1s"),), (), f'app "web": annotation {GRACE}: expected a duration such as "10s", got "-1s"'),
    ],
)
def test_what_cannot_be_understood_is_quoted(
    annotations: tuple[tuple[str, str], ...], image: tuple[tuple[str, str], ...], text: str
) -> None:
    """With where it stands and what would do."""
    with pytest.raises(PlanError) as caught:
        stopping_of(*annotations, image=image)
    assert str(caught.value) == text


def test_the_grace_period_of_a_pod() -> None:
    """Ten seconds unless its annotation says otherwise."""
    assert plan_pod_grace(PodManifest(ac_version="0.8.11")) == 10.0
    assert plan_pod_grace(PodManifest(ac_version="0.8.11", annotations=((GRACE, "3s"),))) == 3.0


@pytest.mark.parametrize("number", [*signal.Signals])
def test_every_signal_by_name_and_number(number: signal.Signals) -> None:
    """With and without SIG, in any case."""
    name = number.name
    for text in (name, name.removeprefix("SIG"), name.lower(), str(int(number))):
        assert parse_signal(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("RTMIN", 34),
        ("RTMIN+0", 34),
        ("SIGRTMIN+3", 37),
        ("RTMIN+30", 64),
        ("RTMAX", 64),
        ("RTMAX-0", 64),
        ("SIGRTMAX-14", 50),
        ("RTMAX-30", 34),
        ("1", 1),
        ("32", 32),
        ("64", 64),
    ],
)
def test_real_time_signals_and_bounds(text: str, number: int) -> None:
    """Counted from either end."""
    assert parse_signal(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", "SIG", "0", "65", "015x", "100", "-1", "+15", "1.5", " TERM", "TERM ", "SIG15", "SIGSIGTERM", "TE RM"),
        *("_DFL", "SIG_DFL", "SIG_BLOCK", "NAL", "NALS", "RTMIN+31", "RTMAX-31", "RTMIN-1", "RTMAX+1", "RTMIN+"),
        *("RTMIN+x", "RTMIN+-1", "RTMIN+999999999999", "\u0661\u0665", "TERM\0", "\N{LATIN SMALL LETTER DOTLESS I}NT"),
    ],
)
def test_what_is_no_signal(text: str) -> None:
    """Neither a constant of Python's module that begins with SIG nor a number out of range is one."""
    with pytest.raises(ValueError):
        parse_signal(text)


@given(st.text(max_size=12) | st.from_regex(r"(SIG)?(RTM(IN|AX))?[+-]?\d{0,4}", fullmatch=True))
def test_any_text_is_a_signal_or_refused(text: str) -> None:
    """There is no third outcome."""
    try:
        number = parse_signal(text)
    except ValueError:
        return
    assert 1 <= number <= 64
