"""--dns, --dns-search, --dns-opt, --dns-domain and --hosts-entry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.commands.podrequest import parse_name_service
from minit.cli.flagwords import FlagError
from minit.stage0.pods.nameservice import NameService, hosts, resolv_conf


def parse(**given: Any) -> NameService:
    """Parse some of the options, the others not given."""
    options: dict[str, Any] = {"dns": [], "search": [], "options": [], "domain": None, "hosts_entry": []}
    return parse_name_service(**{**options, **given})


def test_nothing_given() -> None:
    """Without any option stage1 is told nothing."""
    service = parse()
    assert service == NameService()
    assert service.is_default


@pytest.mark.parametrize(
    ("given", "service"),
    [
        ({"dns": ["host"]}, NameService(resolv="host")),
        ({"dns": ["none"]}, NameService(resolv="none")),
        ({"dns": ["none", "none"]}, NameService(resolv="none")),
        (
            {"dns": ["1.1.1.1,2001:db8::1", "8.8.8.8"]},
            NameService(resolv="stage0", nameservers=("1.1.1.1", "2001:db8::1", "8.8.8.8")),
        ),
        ({"search": ["a.example", "b"]}, NameService(resolv="stage0", search=("a.example", "b"))),
        ({"options": ["ndots:2"]}, NameService(resolv="stage0", options=("ndots:2",))),
        ({"domain": "example"}, NameService(resolv="stage0", domain="example")),
        ({"hosts_entry": ["host"]}, NameService(hosts="host")),
        (
            {"hosts_entry": ["10.0.0.1=a,10.0.0.2=b", "10.0.0.1=c", "::1=d"]},
            NameService(hosts="stage0", host_names=(("10.0.0.1", ("a", "c")), ("10.0.0.2", ("b",)), ("::1", ("d",)))),
        ),
        (
            {"dns": ["host"], "hosts_entry": ["10.0.0.1=a"]},
            NameService(resolv="host", hosts="stage0", host_names=(("10.0.0.1", ("a",)),)),
        ),
    ],
)
def test_modes(given: dict[str, Any], service: NameService) -> None:
    """The given options decide the modes of both files, each by itself."""
    assert parse(**given) == service
    assert not service.is_default


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dns": ["host,1.1.1.1"]}, "--dns=host excludes other values of --dns"),
        ({"dns": ["1.1.1.1", "none"]}, "--dns=none excludes other values of --dns"),
        ({"dns": ["host", "none"]}, "--dns=host excludes other values of --dns"),
        ({"dns": ["none"], "search": ["a"]}, "--dns=none excludes --dns-search, --dns-opt and --dns-domain"),
        ({"dns": ["host"], "options": ["a"]}, "--dns=host excludes --dns-search, --dns-opt and --dns-domain"),
        ({"dns": ["host"], "domain": "a"}, "--dns=host excludes --dns-search, --dns-opt and --dns-domain"),
        ({"dns": [""]}, '--dns: expected IP addresses separated by commas, host or none, got ""'),
        ({"dns": ["1.1.1"]}, '--dns: expected IP addresses separated by commas, host or none, got "1.1.1"'),
        (
            {"dns": ["1.1.1.1\noptions x"]},
            '--dns: expected IP addresses separated by commas, host or none, got "1.1.1.1\noptions x"',
        ),
        ({"search": ["a b"]}, '--dns-search: expected one name of letters, digits and any of - _ ., got "a b"'),
        ({"search": ["a\nnameserver"]}, None),
        ({"search": [""]}, '--dns-search: expected one name of letters, digits and any of - _ ., got ""'),
        ({"options": ["a;b"]}, '--dns-opt: expected one name of letters, digits and any of - _ . :, got "a;b"'),
        ({"domain": "a#"}, '--dns-domain: expected one name of letters, digits and any of - _ ., got "a#"'),
        ({"domain": ""}, '--dns-domain: expected one name of letters, digits and any of - _ ., got ""'),
        ({"hosts_entry": ["host,1.1.1.1=a"]}, "--hosts-entry=host excludes other values of --hosts-entry"),
        ({"hosts_entry": ["1.1.1.1=a", "host"]}, "--hosts-entry=host excludes other values of --hosts-entry"),
        ({"hosts_entry": ["a"]}, '--hosts-entry: expected IP=NAME,... or host, got "a"'),
        ({"hosts_entry": ["a=1.1.1.1"]}, '--hosts-entry: expected IP=NAME,... or host, got "a=1.1.1.1"'),
        ({"hosts_entry": ["1.1.1.1="]}, '--hosts-entry: expected one name of letters, digits and any of - _ ., got ""'),
        ({"hosts_entry": ["1.1.1.1=a b"]}, None),
        ({"hosts_entry": ["1.1.1.1=a\n2.2.2.2 b"]}, None),
    ],
)
def test_bad_values(given: dict[str, Any], message: str | None) -> None:
    """Contradictions, and text that could break a line of a file, are refused, naming the option."""
    with pytest.raises(FlagError) as caught:
        parse(**given)
    assert message is None or str(caught.value) == message


WORDS = st.lists(st.text(max_size=6), max_size=2)


@given(WORDS, WORDS, WORDS, st.none() | st.text(max_size=6), WORDS)
def test_no_value_breaks_a_line(
    dns: list[str], search: list[str], options: list[str], domain: str | None, hosts_entry: list[str]
) -> None:
    """Accepted options make files of exactly the right lines, each of its own words."""
    try:
        service = parse_name_service(dns, search, options, domain, hosts_entry)
    except FlagError as error:
        assert str(error).startswith("--")
        return
    lines = resolv_conf(service).encode().decode().splitlines()
    assert len(lines) == 2 + bool(search) + len(service.nameservers) + bool(options) + bool(domain)
    assert all(len(line.split()) == 2 for line in lines if line.startswith(("nameserver", "domain")))
    assert len(hosts(service, b"").decode().splitlines()) == 3 + len(service.host_names)
