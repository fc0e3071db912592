"""`--dns…` and `--hosts-entry`: how the apps of a pod look up names. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minit.cli.flags.scalars import canonical_address
from minit.cli.flagwords import FlagError
from minit.stage0.pods.nameservice import MODE_DEFAULT, MODE_HOST, MODE_NONE, MODE_STAGE0, NameService


def parse_name_service(
    dns: Sequence[str], search: Sequence[str], options: Sequence[str], domain: str | None, hosts_entry: Sequence[str]
) -> NameService:
    """Return what the five options say together; FlagError names the one that is wrong."""
    for flag, words, characters in (
        ("--dns-search", search, "-_."),
        ("--dns-opt", options, "-_.:"),
        ("--dns-domain", () if domain is None else (domain,), "-_."),
    ):
        for word in words:
            _check_word(flag, word, characters)
    resolv, nameservers = _parse_dns(dns)
    if resolv == MODE_DEFAULT and (search or options or domain):
        resolv = MODE_STAGE0
    if resolv in (MODE_HOST, MODE_NONE) and (search or options or domain):
        raise FlagError(f"--dns={resolv} excludes --dns-search, --dns-opt and --dns-domain")
    hosts, host_names = _parse_hosts(hosts_entry)
    return NameService(
        resolv=resolv,
        hosts=hosts,
        nameservers=nameservers,
        search=tuple(search),
        options=tuple(options),
        domain=domain,
        host_names=host_names,
    )


def _parse_dns(values: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the mode and the name servers."""
    words = [word for value in values for word in value.split(",")]
    for mode in (MODE_HOST, MODE_NONE):
        if mode in words:
            if set(words) != {mode}:
                raise FlagError(f"--dns={mode} excludes other values of --dns")
            return mode, ()
    for word in words:
        if canonical_address(word) is None:
            raise FlagError(f'--dns: expected IP addresses separated by commas, host or none, got "{word}"')
    return MODE_STAGE0 if words else MODE_DEFAULT, tuple(words)


def _parse_hosts(values: Sequence[str]) -> tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Return the mode and each address with its names, both in the order in which they were given."""
    words = [word for value in values for word in value.split(",")]
    if MODE_HOST in words:
        if set(words) != {MODE_HOST}:
            raise FlagError("--hosts-entry=host excludes other values of --hosts-entry")
        return MODE_HOST, ()
    names: dict[str, tuple[str, ...]] = {}
    for word in words:
        address, separator, name = word.partition("=")
        if not separator or canonical_address(address) is None:
            raise FlagError(f'--hosts-entry: expected IP=NAME,... or host, got "{word}"')
        _check_word("--hosts-entry", name, "-_.")
        names[address] = (*names.get(address, ()), name)
    return MODE_STAGE0 if words else MODE_DEFAULT, tuple(names.items())


def _check_word(flag: str, word: str, characters: str) -> None:
    # The files have words that white space separates, comments, and no way to quote.
    if not word or not all(character.isalnum() or character in characters for character in word):
        shown = " ".join(characters)
        raise FlagError(f'{flag}: expected one name of letters, digits and any of {shown}, got "{word}"')
