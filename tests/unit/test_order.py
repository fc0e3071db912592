"""minit.plan.lifeplan: which apps are started after which, and what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.pod import RuntimeApp
from minit.plan.life.restart import ALWAYS, ON_FAILURE, RestartPolicy
from minit.plan.lifeplan import Dependency, LifePlan, check_order, plan_after

NAMES = st.sampled_from("abcdef")


def after(text: str) -> tuple[Dependency, ...]:
    """Return what an app with this annotation waits for."""
    return plan_after(RuntimeApp(name="web", annotations=(("minit/after", text),)))


def spec(name: str, *others: str, restart: RestartPolicy | None = None) -> tuple[str, LifePlan]:
    """Return an app that waits for others."""
    return name, LifePlan(after=after(",".join(others)) if others else (), restart=restart)


def test_names() -> None:
    """Separated by commas, with or without blanks, each perhaps with what it has to have come to."""
    assert plan_after(RuntimeApp(name="web")) == ()
    assert after("db, init:completed") == (Dependency(app="db"), Dependency(app="init", completed=True))


@pytest.mark.parametrize("text", ["", ",", "db,", "db:ready", "db:", ":completed", "db,,init"])
def test_what_are_no_names(text: str) -> None:
    """It is refused with what was expected."""
    with pytest.raises(PlanError, match=f'app "web": annotation minit/after: expected names .*, got "{text}"'):
        after(text)


@pytest.mark.parametrize(
    ("apps", "reason"),
    [
        ((spec("a", "b"),), 'app "a": annotation minit/after: no app "b" in this pod'),
        ((spec("a", "a"),), "annotation minit/after: apps wait for each other: a -> a"),
        (
            (spec("a", "b"), spec("b", "d", "c"), spec("c", "b"), spec("d")),
            "annotation minit/after: apps wait for each other: b -> c -> b",
        ),
        (
            (spec("a", "b:completed"), spec("b", restart=RestartPolicy(condition=ALWAYS))),
            'app "a": annotation minit/after: app "b" never completes, as it is always started again',
        ),
    ],
)
def test_orders_that_cannot_be(apps: tuple[tuple[str, LifePlan], ...], reason: str) -> None:
    """One line says who waits for whom."""
    with pytest.raises(PlanError) as caught:
        check_order(dict(apps))
    assert str(caught.value) == reason


def test_a_long_chain() -> None:
    """Thousands of apps may wait for each other in a row, and one that is started again on failure may complete."""
    apps = [spec(str(number), *([str(number + 1)] if number < 5000 else [])) for number in range(5001)]
    check_order(dict(apps))
    check_order(dict((spec("a", "b:completed"), spec("b", restart=RestartPolicy(condition=ON_FAILURE)))))


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=4)))
def test_an_order_is_refused_only_if_there_is_none(waits_for: dict[str, list[str]]) -> None:
    """Apps that can be started one after the other are accepted, all others are not."""
    left, started = dict(waits_for), set[str]()
    while able := [name for name, others in left.items() if started.issuperset(others)]:
        started.update(able)
        for name in able:
            del left[name]
    apps = [spec(name, *others) for name, others in waits_for.items()]
    if left:
        with pytest.raises(PlanError):
            check_order(dict(apps))
    else:
        check_order(dict(apps))
