"""Commands by name that are imported when one is called, and what lists say of them without that."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from minit.base.value import Value


class Listing(Value):
    """The place of a command, and its line in the help of its group."""

    place: str
    """`module:attribute` in `minit.cli`."""
    help: str
    """What its own help begins with, if that has no short form of its own."""
    section: str = ""

    def complete(self, command: click.Command) -> click.Command:
        """Return the command with the whole of its help; in its docstring is what follows."""
        details = inspect.cleandoc(command.help or "")
        if command.short_help is None and not details.startswith(self.help):
            command.help = f"{self.help}\n\n{details}".rstrip()
        return command

    def short_help(self, limit: int) -> str:
        """Return the sentence in at most `limit` characters, as click shortens it."""
        return click.Command(None, help=self.help).get_short_help_str(limit)


class CommandTable(MutableMapping[str, click.Command]):
    """The `commands` of a click group; looking one up imports its module, looking at the names imports nothing."""

    def __init__(self, listings: dict[str, Listing]) -> None:
        self.listings = listings
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command; KeyError if there is none of this name."""
        if name not in self._loaded:
            module, _, attribute = self.listings[name].place.partition(":")
            command: click.Command = getattr(import_module(f"minit.cli.{module}"), attribute)
            self._loaded[name] = self.listings[name].complete(command)
        return self._loaded[name]

    def import_all(self) -> None:
        """Import the commands that there are."""
        for name in self:
            self[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Refuse it: what is not listed would not be shown."""
        raise TypeError(f"command {name} is not in the table")

    def __delitem__(self, name: str) -> None:
        """Refuse it."""
        raise TypeError(f"command {name} stays in the table")

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a command of this name."""
        return name in self.listings

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the order of the help."""
        return iter(self.listings)

    def __len__(self) -> int:
        """Return how many commands there are."""
        return len(self.listings)
