"""
The click classes that give minit rkt's grammar: Go's flags, global options anywhere, unique command prefixes.

Click keeps the help texts, the types and shell completion; the splitting of words is `flagwords`', and where there are
images among them `imageargs`'.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from minit.base.value import Value
from minit.cli.flagwords import Flag, FlagError, FlagKind, Mistakes, UnknownFlag, click_words, split_words, suggest
from minit.cli.invocation import DEFAULT_DATA, INSECURE_OPTIONS, Invocation
from minit.cli.otherwords import answer, answer_flag
from minit.cli.uuidfile import with_uuids_of_files
from minit.pods.caller import DEFAULT_LOCAL_CONFIG, DEFAULT_SYSTEM_CONFIG

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class OptionalValue(click.Option):
    """
    An option whose value only ever follows `=`; `bare` is the meaning without a value.

    The names in `valued` always have a value, which may be the next word.
    """

    def __init__(self, *arguments: Any, bare: str, valued: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.bare = bare
        self.valued = valued

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Show in the help that the value is optional."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        metavar = self.make_metavar(ctx)
        return record[0].replace(f" {metavar}", f"[={metavar}]"), record[1]


class AppOption(click.Option):
    """An option for the app of the image before; read by `imageargs`, here for the help and for completion."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, expose_value=False, **settings)


class SharedAppOption(click.Option):
    """An AppOption that stands before the first image, too: there it is for all apps, and click passes it on."""


class GlobalOption(click.Option):
    """An option of every command; the callback keeps the value in the Invocation."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, expose_value=False, default=None, **settings)


_APP_TITLE = "Options for the app of the image before them"
_TITLES: dict[type[click.Parameter], str] = {
    AppOption: _APP_TITLE,
    SharedAppOption: _APP_TITLE,
    GlobalOption: "Global options",
}


def invocation_of(ctx: click.Context) -> Invocation:
    """Return the Invocation made by `main`."""
    invocation = ctx.find_object(Invocation)
    return Invocation() if invocation is None else invocation  # completion runs no command


def _keep_debug(ctx: click.Context, parameter: click.Parameter, value: bool | None) -> None:
    if value:
        invocation_of(ctx).debug = True


def _keep_data(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        invocation_of(ctx).data = value


def _keep_local_config(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        invocation_of(ctx).local_config = value


def _keep_system_config(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        invocation_of(ctx).system_config = value


def _keep_insecure(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    words = [word for word in value.split(",") if word]
    unknown = [word for word in words if word not in INSECURE_OPTIONS]
    if unknown:
        raise click.BadParameter(f'"{unknown[0]}" is none of {", ".join(INSECURE_OPTIONS)}', ctx, parameter)
    invocation_of(ctx).insecure = frozenset(part for word in words for part in INSECURE_OPTIONS[word])


def _global_options() -> list[click.Parameter]:
    """Return new instances of the options of every command."""
    return [
        GlobalOption(
            ["--debug"],
            is_flag=True,
            callback=_keep_debug,
            help="Show the causes of errors, and make stage1 talk.",
        ),
        GlobalOption(
            ["--dir"],
            metavar="DIR",
            type=click.Path(path_type=Path),
            callback=_keep_data,
            help=f"The data directory.  [default: {DEFAULT_DATA}, or $XDG_DATA_HOME/minit of a user without root]",
        ),
        GlobalOption(
            ["--insecure-options"],
            metavar="LIST",
            callback=_keep_insecure,
            help="Security features to disable, separated by commas: capabilities, image-isolators, paths, seccomp, "
            "all-run, http, tls, all-fetch, all; with http or tls a registry may speak HTTP and need no certificate; "
            "with image no signature of an image is verified; none, ondisk and pubkey change nothing.",
        ),
        GlobalOption(
            ["--local-config"],
            metavar="DIR",
            callback=_keep_local_config,
            help=f"Local configuration: trusted keys, and networks.  [default: {DEFAULT_LOCAL_CONFIG}]",
        ),
        GlobalOption(
            ["--system-config"],
            metavar="DIR",
            callback=_keep_system_config,
            help=f"The system's configuration: trusted keys.  [default: {DEFAULT_SYSTEM_CONFIG}]",
        ),
        GlobalOption(["--trust-keys-from-https"], is_flag=True, help="Accepted for rkt's sake; minit fetches no keys."),
        GlobalOption(["--user-config"], metavar="DIR", help="Accepted for rkt's sake; not read."),
    ]


def long_name(option: click.Parameter) -> str:
    """Return the first name of an option with two dashes; other names of one option are those of other tools."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def flag_table(parameters: Iterable[click.Parameter]) -> dict[str, Flag]:
    """Return the way in which each option of a command takes a value."""
    table = {}
    for option in parameters:
        if not isinstance(option, click.Option):
            continue
        flag = Flag(kind=FlagKind.SWITCH if option.is_flag else FlagKind.VALUE)
        table.update(dict.fromkeys(option.opts, flag))
        if isinstance(option, OptionalValue):
            bare = Flag(kind=FlagKind.OPTIONAL, bare=option.bare)
            table.update({name: bare for name in option.opts if name not in option.valued})
    return table


def _keep_help_option(command: click.Command) -> None:
    """Have click make the option `--help`, once for all calls of a dumped program: click looks for a translation."""
    command.get_help_option(click.Context(command, **command.context_settings))


class MinitCommand(click.Command):
    """A command with rkt's grammar; with `stop_at_operand`, flags end at the first operand."""

    def __init__(self, *arguments: Any, stop_at_operand: bool = False, **settings: Any) -> None:
        settings.setdefault("context_settings", _SETTINGS)
        super().__init__(*arguments, **settings)
        self.params.extend(_global_options())
        _keep_help_option(self)
        self.stop_at_operand = stop_at_operand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the words by Go's rules and hand the words to click in click's form."""
        if ctx.resilient_parsing:  # completion, of a line that is not finished
            return super().parse_args(ctx, args)
        _enter_command(ctx)
        flags = flag_table(self.get_params(ctx))
        try:
            found, operands = self.split(ctx, args, flags)
        except FlagError as error:
            raise click.UsageError(_explain(error, ctx, flags), ctx) from error
        operands = with_uuids_of_files(ctx, found, operands)
        return super().parse_args(ctx, [*click_words(found, flags), "--", *operands])

    def split(
        self, ctx: click.Context, arguments: Sequence[str], flags: dict[str, Flag]
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Return the flags and operands of the command line."""
        return split_words(arguments, flags, stop_at_operand=self.stop_at_operand)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections: the command's, the apps', the global ones."""
        _write_options(self, ctx, formatter)


class MinitGroup(click.Group):
    """A group of commands, shown in sections; a unique prefix of a name calls a command."""

    command_class = MinitCommand

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("context_settings", _SETTINGS)
        super().__init__(*arguments, **settings)
        self.params.extend(_global_options())
        _keep_help_option(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the global options before the command's name from the rest."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        _enter_command(ctx)
        if args == ["--version"] and "version" in self.commands:
            args = ["version"]
        flags = flag_table(self.get_params(ctx))
        try:
            found, words = split_words(args, flags, stop_at_operand=True)
        except FlagError as error:
            raise click.UsageError(_explain(error, ctx, flags), ctx) from error
        return super().parse_args(ctx, [*click_words(found, flags), *words])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name or the only command with this prefix."""
        command = super().get_command(ctx, cmd_name)
        if command is not None or not cmd_name:
            return command
        matches = [name for name in self.commands if name.startswith(cmd_name)]
        return self.commands[matches[0]] if len(matches) == 1 else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or list the commands."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(self.unknown(args), ctx)
        name, command, rest = super().resolve_command(ctx, args)
        return command.name if command else name, command, rest

    def unknown(self, words: Sequence[str]) -> str:
        """Return the error about the unknown command that begins the words, with a likely command if there is one."""
        word = words[0]
        matches = [name for name in self.commands if name.startswith(word)]
        hint = answer(str(self.name), words, self.commands) or (f": could be {', '.join(matches)}" if matches else "")
        return f'unknown command "{word}"{hint or suggest(word, self.commands)}'

    def listed(self, limit: int) -> Iterator[tuple[str, str, str]]:
        """Yield the name, the section and the help in `limit` characters of each command, importing none of a table."""
        if isinstance(self.commands, CommandTable):
            for name, listing in self.commands.listings.items():
                yield name, listing.section, listing.short_help(limit)
            return
        for name, command in self.commands.items():
            yield name, "", command.get_short_help_str(limit=limit)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, in the order of the table."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, section, text in self.listed(limit=100):
            sections.setdefault(section or "Commands", []).append((name, text))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the global options."""
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)


def _enter_command(ctx: click.Context) -> None:
    if ctx.info_name:
        invocation_of(ctx).command = ctx.info_name


def _explain(error: FlagError, ctx: click.Context, flags: dict[str, Flag]) -> str:
    """Return the error, with the flag that was perhaps meant."""
    if isinstance(error, Mistakes):
        return "; ".join(_explain(each, ctx, flags) for each in error.errors)
    if not isinstance(error, UnknownFlag):
        return str(error)
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, str(ctx.info_name))
        ctx = ctx.parent
    return f"{error}{answer_flag(' '.join(words), error.name, flags) or suggest(error.name, flags)}"


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *_TITLES.values())}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and isinstance(parameter, click.Option):
            title = _TITLES.get(type(parameter), "Options")
            sections[title].append(record)
    inherited = sections.pop(_TITLES[GlobalOption]) if ctx.parent is not None else []
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    if inherited:
        formatter.write_paragraph()
        formatter.write_text(f"Global options, such as --dir, go anywhere; {_root_name(ctx)} --help has them.")


def _root_name(ctx: click.Context) -> str:
    return ctx.find_root().info_name or ""


class Listing(Value):
    """The place of a command, and the line in the help of the group."""

    place: str
    """`module:attribute` in `minit.cli`."""
    help: str
    """What its own help begins with, if that has no short form of its own."""
    section: str = ""

    def complete(self, command: click.Command) -> click.Command:
        """Return the command with the whole help; the docstring has the rest of the help."""
        details = inspect.cleandoc(command.help or "")
        if command.short_help is None and not details.startswith(self.help):
            command.help = f"{self.help}\n\n{details}".rstrip()
        return command

    def short_help(self, limit: int) -> str:
        """Return the sentence in at most `limit` characters, as click shortens it."""
        return click.Command(None, help=self.help).get_short_help_str(limit)


class CommandTable(MutableMapping[str, click.Command]):
    """The `commands` of a click group; a look-up imports the command's module, a look at the names imports nothing."""

    def __init__(self, listings: dict[str, Listing]) -> None:
        self.listings = listings
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command; KeyError for an unknown name."""
        if name not in self._loaded:
            module, _, attribute = self.listings[name].place.partition(":")
            command: click.Command = getattr(import_module(f"minit.cli.{module}"), attribute)
            self._loaded[name] = self.listings[name].complete(command)
        return self._loaded[name]

    def import_all(self) -> None:
        """Import all commands."""
        for name in self:
            self[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Refuse the command: a command that is not listed would not be shown."""
        raise TypeError(f"command {name} is not in the table")

    def __delitem__(self, name: str) -> None:
        """Refuse the removal."""
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
