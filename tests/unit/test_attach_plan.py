"""The streams that `attach` connects, and the command's words for them."""

from __future__ import annotations

import pytest

from minit.base.errors import AttachError, PodError
from minit.iottymux.protocol import INPUTS, STREAMS
from minit.launcher.attach import choose_streams
from minit.stage0.stage1.entrypoints import attach_arguments


def choose(
    endpoints: tuple[str, ...], chosen: tuple[str, ...] | None, *, is_read_only: bool = False, has_input: bool = True
) -> tuple[str, ...]:
    """Return the streams for an app with these endpoints."""
    return choose_streams("web", endpoints, chosen, is_read_only=is_read_only, has_input=has_input)


@pytest.mark.parametrize(
    ("endpoints", "streams"),
    [
        (("stdin", "stdout", "stderr"), ("stdin", "stdout", "stderr")),
        (("tty",), ("tty-in", "tty-out")),
        (("stdout",), ("stdout",)),
        (("stdin",), ("stdin",)),
        (("stdout", "tty"), ("stdout", "tty-in", "tty-out")),
        (("stdin", "tty"), ("stdin", "tty-out")),
    ],
)
def test_all_there_is(endpoints: tuple[str, ...], streams: tuple[str, ...]) -> None:
    """Without a choice: every output and one input, the app's stdin before its terminal."""
    assert choose(endpoints, None) == streams
    outputs = tuple(name for name in streams if name not in INPUTS)
    for options in ({"is_read_only": True}, {"has_input": False}):
        if outputs:
            assert choose(endpoints, None, **options) == outputs
        else:
            with pytest.raises(AttachError, match="nothing to attach to"):
                choose(endpoints, None, **options)


@pytest.mark.parametrize("number", range(32))
@pytest.mark.parametrize("endpoints", [("stdin", "stdout", "stderr"), ("tty",), ("stdout", "stderr"), ("stdin", "tty")])
def test_every_combination(endpoints: tuple[str, ...], number: int) -> None:
    """A choice is connected if the app has all of it, and it is not empty and not of both families."""
    chosen = tuple(name for bit, name in enumerate(STREAMS) if number >> bit & 1)
    families = {name.startswith("tty") for name in chosen}
    if len(families) == 1 and all(("tty" if name.startswith("tty") else name) in endpoints for name in chosen):
        assert choose(endpoints, chosen) == chosen
        # What is asked for is not left out because there is nothing to send.
        assert choose(endpoints, chosen, has_input=False) == chosen
    else:
        with pytest.raises(AttachError) as caught:
            choose(endpoints, chosen)
        assert (
            "at least one" in str(caught.value)
            or "at the same time" in str(caught.value)
            or any(f"has no {name} to attach to (it has: " in str(caught.value) for name in chosen)
        )


def test_the_input_of_who_only_looks_on() -> None:
    """With --read-only an input that was asked for is left out, and one alone is refused."""
    assert choose(("tty",), ("tty-in", "tty-out"), is_read_only=True) == ("tty-out",)
    with pytest.raises(AttachError, match="nothing to attach to read-only"):
        choose(("tty",), ("tty-in",), is_read_only=True)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("list", ["--action=list"]),
        ("auto", ["--action=auto-attach"]),
        ("", ["--action=auto-attach"]),
        (
            "stdin,stderr",
            [
                "--action=custom-attach",
                *("--tty-in=false", "--tty-out=false"),
                *("--stdin=true", "--stdout=false", "--stderr=true"),
            ],
        ),
        (
            "tty",
            [
                "--action=custom-attach",
                *("--tty-in=true", "--tty-out=true"),
                *("--stdin=false", "--stdout=false", "--stderr=false"),
            ],
        ),
        (
            "tty-out,tty-out",
            [
                "--action=custom-attach",
                *("--tty-in=false", "--tty-out=true"),
                *("--stdin=false", "--stdout=false", "--stderr=false"),
            ],
        ),
    ],
)
def test_arguments(mode: str, words: list[str]) -> None:
    """The entrypoint gets rkt's arguments in rkt's order, then minit's own."""
    assert attach_arguments(mode, "web", [], debug=False) == [*words, "--app=web", "--debug=false"]
    options = ["--read-only=true"]
    assert attach_arguments(mode, "web", options, debug=True) == [*words, "--app=web", "--debug=true", *options]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("stdin,foo", 'unknown endpoint "foo"'),
        ("stdin,", 'unknown endpoint ""'),
        ("list,stdin", 'unknown endpoint "list"'),
        ("tty,stdout", 'incompatible endpoints "tty,stdout", cannot simultaneously attach TTY and streams'),
        ("stdin,tty-out", "incompatible endpoints"),
    ],
)
def test_modes_that_are_refused(mode: str, message: str) -> None:
    """With rkt's messages."""
    with pytest.raises(PodError, match=message):
        attach_arguments(mode, "web", [], debug=False)
