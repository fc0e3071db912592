"""minit.base.goflags: arguments as Go's `flag` package takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import UsageError
from minit.base.goflags import BOOLEANS, Default, parse_flags, usage

DEFAULTS: dict[str, Default] = {"debug": False, "on": True, "net": "", "dir": "/etc/rkt"}


@pytest.mark.parametrize(
    ("arguments", "changed", "rest"),
    [
        ([], {}, []),
        (["-debug"], {"debug": True}, []),
        (["--debug"], {"debug": True}, []),
        (["--debug", "true"], {"debug": True}, ["true"]),
        (["--dir=x"], {"dir": "x"}, []),
        (["-dir=x"], {"dir": "x"}, []),
        (["--dir", "x"], {"dir": "x"}, []),
        (["-dir", "x"], {"dir": "x"}, []),
        (["--dir="], {"dir": ""}, []),
        (["--dir=a=b"], {"dir": "a=b"}, []),
        (["--dir", "--debug"], {"dir": "--debug"}, []),
        (["--dir", "--"], {"dir": "--"}, []),
        (["--dir=a", "--dir=b"], {"dir": "b"}, []),
        (["--net=a", "--net", "b"], {"net": "a,b"}, []),
        (["--net=", "--net=b"], {"net": ",b"}, []),
        (["UUID", "--debug"], {}, ["UUID", "--debug"]),
        (["--debug", "--", "--dir=x"], {"debug": True}, ["--dir=x"]),
        (["-"], {}, ["-"]),
        ([""], {}, [""]),
    ],
)
def test_spellings(arguments: list[str], changed: dict[str, Default], rest: list[str]) -> None:
    """Every spelling that Go's package takes gives the same values here."""
    assert parse_flags(arguments, DEFAULTS, repeated=("net",)) == ({**DEFAULTS, **changed}, rest)


@pytest.mark.parametrize(("word", "value"), list(BOOLEANS.items()))
def test_explicit_booleans(word: str, value: bool) -> None:
    """The twelve words of strconv.ParseBool set a boolean whatever its default."""
    values, _ = parse_flags([f"--debug={word}", f"-on={word}"], DEFAULTS)
    assert (values["debug"], values["on"]) == (value, value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--what"], "flag provided but not defined: -what"),
        (["--what=1"], "flag provided but not defined: -what"),
        (["---debug"], "bad flag syntax: ---debug"),
        (["-=x"], "bad flag syntax: -=x"),
        (["--=x"], "bad flag syntax: --=x"),
        (["--debug=yes"], 'invalid boolean value "yes" for -debug'),
        (["--debug="], 'invalid boolean value "" for -debug'),
        (["--dir"], "flag needs an argument: -dir"),
    ],
)
def test_refusals(arguments: list[str], text: str) -> None:
    """Words that Go's package refuses are refused in its words."""
    with pytest.raises(UsageError) as caught:
        parse_flags(arguments, DEFAULTS)
    assert str(caught.value) == text


WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["-", "--", "-debug", "--net", "--dir=", "--on=0", "-on=x", "---", "-=", "--=="]),
)


@given(st.lists(WORDS, max_size=6))
def test_any_arguments_give_flags_or_a_usage_error(arguments: list[str]) -> None:
    """Nothing else comes out, every flag has a value of its own type, and the rest is a tail of the arguments."""
    try:
        values, rest = parse_flags(arguments, DEFAULTS, repeated=("net",))
    except UsageError:
        return
    assert {name: type(value) for name, value in values.items()} == {
        name: type(value) for name, value in DEFAULTS.items()
    }
    assert rest == arguments[len(arguments) - len(rest) :]


def test_the_defaults_are_not_changed() -> None:
    """Parsing leaves the table of flags as it was."""
    before = dict(DEFAULTS)
    parse_flags(["--debug", "--net=a"], DEFAULTS)
    assert before == DEFAULTS


def test_usage_names_every_flag_and_its_default() -> None:
    """The text for stderr lists the flags in order, with the defaults that are not empty."""
    assert usage("run", "UUID", DEFAULTS).splitlines() == [
        "Usage of run: [flags] UUID",
        "  -debug",
        '  -dir string (default "/etc/rkt")',
        "  -net string",
        "  -on (default true)",
    ]
