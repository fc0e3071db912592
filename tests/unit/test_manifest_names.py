"""minit.manifest.names: the grammars of appc's names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.manifest import names

SEARCH = settings(deadline=None)


@SEARCH
@given(st.text(alphabet="aB0-._~/\n", max_size=6) | st.text(max_size=4))
def test_names_and_identifiers_match_the_grammar_of_rkt(text: str) -> None:
    """Allowed characters inside, a letter or digit at both edges."""
    assert names.is_ac_name(text) == bool(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", text))
    assert names.is_ac_identifier(text) == bool(re.fullmatch(r"[a-z0-9]([a-z0-9._~/-]*[a-z0-9])?", text))


@SEARCH
@given(st.text(alphabet="aZ09_.-=\n", max_size=6) | st.text(max_size=4))
def test_environment_names_match_the_grammar_of_appc(text: str) -> None:
    """A letter or underscore, then letters, digits, underscores, dots and dashes."""
    assert names.is_environment_name(text) == bool(re.fullmatch(r"[A-Za-z_][A-Za-z_0-9.-]*", text))


@SEARCH
@given(st.text(alphabet="aZ0 ~-.=\n\x7f", max_size=6) | st.text(max_size=4))
def test_names_of_variables_match_the_rule_of_kubernetes(text: str) -> None:
    """Printable ASCII but for the equals sign, and never nothing."""
    assert names.is_variable_name(text) == bool(re.fullmatch(r"[ -<>-~]+", text))


@pytest.mark.parametrize("text", ["0.8.11", "1.30.0+git4bb9", "1.2.3-rc.1", "1.2.3-a-b+c.d", "10.20.30"])
def test_semantic_versions_are_versions(text: str) -> None:
    """Three numbers with an optional pre-release and build."""
    assert names.is_version(text)


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "1.2.3-", "1.2.3+", "1.2.3-a..b", "1.2.²"]
)
def test_other_versions_are_not(text: str) -> None:
    """A part that is missing, empty or no plain number makes it no version."""
    assert not names.is_version(text)


def test_an_image_id_is_a_hash_of_at_most_the_full_length() -> None:
    """`sha512-` and 1 to 128 lower-case hexadecimal digits, so never a path."""
    assert names.is_image_id("sha512-" + "0a" * 32)
    assert names.is_image_id("sha512-" + "0a" * 64)
    for text in ("", "sha512", "sha512-", "sha512-../x", "sha512-AB", "sha256-00", "sha512-" + "0" * 129):
        assert not names.is_image_id(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("BusyBox", "busybox"), ("_my.app_", "my-app"), ("a--b", "a--b"), ("Zoë's", "zo--s"), ("--x--", "x")],
)
def test_sanitizing_keeps_what_an_ac_name_may_hold(text: str, name: str) -> None:
    """Lower-case, dashes for the rest, no dash at the edges."""
    assert names.sanitize_ac_name(text) == name


@SEARCH
@given(st.text())
def test_sanitizing_gives_a_name_or_an_error(text: str) -> None:
    """The result is an ACName and is left alone when sanitized again."""
    try:
        name = names.sanitize_ac_name(text)
    except ManifestError as error:
        assert "expected a name" in str(error)
        assert "\n" not in str(error)
    else:
        assert names.is_ac_name(name)
        assert names.sanitize_ac_name(name) == name
