"""Environment variables on the command line and in files. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from minit.cli.flagwords import FlagError
from minit.manifest.names import is_environment_name, is_variable_name

Variables = tuple[tuple[str, str], ...]


def parse_variable(flag: str, text: str, is_name: Callable[[str], bool] = is_environment_name) -> tuple[str, str]:
    """Return the name and value of `NAME=VALUE`; FlagError, naming `flag`, if it is none."""
    name, separator, value = text.partition("=")
    if not separator or not is_name(name):
        raise FlagError(f'{flag}: expected NAME=VALUE, got "{text}"')
    return name, value


def parse_variables(flag: str, texts: Sequence[str]) -> Variables:
    """Return the variables of an option that may be repeated, each name only once."""
    variables: dict[str, str] = {}
    for text in texts:
        name, value = parse_variable(flag, text)
        if name in variables:
            raise FlagError(f"{flag}: {name} is set twice")
        variables[name] = value
    return tuple(variables.items())


def parse_environment_files(flag: str, files: Sequence[tuple[str, str]]) -> Variables:
    """
    Return the variables of files, given by their names and texts, each name only once.

    A line is `NAME=VALUE` with the value as it is, empty, or begins with `#` or `;`. A file in which variables end with
    a NUL, as env(1) writes them with -0, has nothing else, values of several lines, and names of any printable ASCII.
    """
    variables: dict[str, str] = {}
    for path, text in files:
        found, is_name = (_records, is_variable_name) if "\0" in text else (_lines, is_environment_name)
        for place, line in found(text):
            place = f"{flag}: {path} {place}"
            name, value = parse_variable(place, line, is_name)
            if name in variables:
                raise FlagError(f"{place}: {name} is set twice")
            variables[name] = value
    return tuple(variables.items())


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        if line.strip() and not line.startswith(("#", ";")):
            yield f"line {number}", line


def _records(text: str) -> Iterator[tuple[str, str]]:
    for number, record in enumerate(text.removesuffix("\0").split("\0"), 1):
        yield f"variable {number}", record
