"""
The manual page minit(1), made of the texts of --help and of docs/man/minit.1.in, which has more details.

That file is roff with lines that begin with `@`:

    @command NAME             a command: its synopsis and its help stand here, what follows up to its options is more
    @command NAME like OTHER  the same, but for the options that OTHER has too
    @option --NAME            what follows is more about this option
    @more                     what follows stands behind the options of the command

A command ends where the next one, or a section, begins. Commands that the file does not have stand at the end of their
section. Everything else is copied.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from minit.base.value import Value
from minit.cli.commandgroups import commands
from minit.cli.grammar import AppOption, GlobalOption, MinitGroup, OptionalValue, SharedAppOption, long_name

_EXAMPLES = "\b"  # click's mark of a paragraph that is not filled


class _Block(Value):
    """The source's text about a command: before, in and behind the options."""

    name: str
    like: str | None
    before: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    behind: tuple[str, ...]


def render(source: str, root: MinitGroup) -> str:
    """Return the manual page; ValueError if the source and the commands do not fit."""
    lines = source.splitlines()
    written: list[str] = []
    missing = _sections(root)
    for line in lines:
        name = line.removeprefix("@command ").partition(" like ")[0]
        for names in missing.values():
            names.discard(name)
    section = ""
    while lines:
        line = lines.pop(0)
        if re.match(r"\.S[HS] ", line):
            for name in sorted(missing.pop(section, ())):
                written += _command(_parse(f"@command {name}", []), root)
            section = line[4:].strip('"')
            written.append(line)
        elif line.startswith("@command "):
            end = next((at for at, text in enumerate(lines) if re.match(r"@command |\.S[HS] ", text)), len(lines))
            written += _command(_parse(line, lines[:end]), root)
            lines = lines[end:]
        elif line.startswith("@"):
            raise ValueError(f"{line}: not within a command")
        else:
            written.append(line)
    if any(missing.values()):
        raise ValueError(f"no section for {missing}")
    return "\n".join(written) + "\n"


def _sections(group: MinitGroup, path: str = "", inherited: str = "") -> dict[str, set[str]]:
    """Return the names of all commands that are no groups, by the section of the help that has them."""
    found: dict[str, set[str]] = {}
    for name, listed, _ in group.listed(limit=0):
        command, section = group.commands[name], inherited or listed or "Commands"
        if isinstance(command, MinitGroup):
            for title, names in _sections(command, f"{path}{name} ", section).items():
                found.setdefault(title, set()).update(names)
        elif not command.hidden:
            found.setdefault(section, set()).add(f"{path}{name}")
    return found


def _parse(head: str, lines: list[str]) -> _Block:
    name, _, like = head.removeprefix("@command ").partition(" like ")
    before: list[str] = []
    behind: list[str] = []
    options: dict[str, list[str]] = {}
    current = before
    for line in lines:
        if line == "@more":
            current = behind
        elif line.startswith("@option "):
            current = options.setdefault(line.removeprefix("@option "), [])
        elif line.startswith("@"):
            raise ValueError(f"{line}: no such line in the manual's source")
        else:
            current.append(line)
    return _Block(
        name=name,
        like=like or None,
        before=tuple(before),
        options={option: tuple(more) for option, more in options.items()},
        behind=tuple(behind),
    )


def _command(block: _Block, root: click.Group) -> Iterator[str]:
    context = _context(root, block.name)
    command = context.command
    options = _own_options(context)
    inherited = _own_options(_context(root, block.like)) if block.like else {}
    unknown = block.options.keys() - options.keys()
    if unknown:
        raise ValueError(f"@command {block.name}: there is no option {', '.join(sorted(unknown))}")
    yield from _synopsis(context, options, short=block.like is not None)
    paragraphs, examples = _paragraphs(command)
    for paragraph in paragraphs:
        yield ".PP"
        yield text(paragraph)
    if block.before:
        yield ".PP"
        yield from block.before
    if block.like:
        yield ".PP"
        yield _likeness(block.like, inherited, options)
    for name, option in options.items():
        if name in inherited and name not in block.options:
            continue
        yield ".TP"
        yield _tag(option, context)
        yield text(option.help or "")
        yield from block.options.get(name, ())
    if block.behind:
        yield ".PP"
        yield from block.behind
    for example in examples:
        yield from (".PP", ".in +4n", ".EX", *(_escape(line) for line in example), ".EE", ".in")


def _likeness(other: str, inherited: dict[str, click.Option], options: dict[str, click.Option]) -> str:
    """Return a sentence about the options that a command has like another command."""
    bold = f"\\fB{_escape(other)}\\fR"
    common, missing = ([name for name in inherited if (name in options) is has] for has in (True, False))
    listed = ", ".join(f"\\fB{_escape(name)}\\fR" for name in min(common, missing, key=len))
    if not missing:
        return f"The options are those of {bold}."
    if len(missing) < len(common):
        return f"The options are those of {bold}, but for {listed}."
    return f"Of the options of {bold} it has {listed}."


def _context(root: click.Group, name: str) -> click.Context:
    context = click.Context(root, info_name="minit", **root.context_settings)
    for word in name.split():
        group = context.command
        child = group.commands.get(word) if isinstance(group, click.Group) else None
        if child is None:
            raise ValueError(f"@command {name}: there is no such command")
        context = click.Context(child, info_name=word, parent=context, **child.context_settings)
    return context


def _own_options(context: click.Context) -> dict[str, click.Option]:
    """Return the options that the command does not share with all others, by their last name."""
    return {
        long_name(option): option
        for option in context.command.params
        if isinstance(option, click.Option) and not isinstance(option, GlobalOption) and not option.hidden
    }


def _synopsis(context: click.Context, options: dict[str, click.Option], *, short: bool) -> Iterator[str]:
    yield f'.SY "{_escape(context.command_path)}"'
    few = [option for option in options.values() if not isinstance(option, (AppOption, SharedAppOption))]
    if short or len(few) > 10:
        yield ".RI [ option ...]"
    else:
        for option in few:
            value = f"\\fB{_escape(long_name(option))}\\fR{_value(option, context)}"
            yield value if option.required else f"[{value}]"
    for argument in context.command.params:
        if isinstance(argument, click.Argument):
            yield _words(argument.metavar or argument.name or "")
    yield ".YS"


def _tag(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"\\fB{_escape(name)}\\fR" for name in option.opts)
    return f"{names}{_value(option, context)}"


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return ""
    metavar = option.metavar or option.make_metavar(context)
    if isinstance(option.type, click.Choice) and not option.metavar:
        words = "\\fR|\\fB".join(_escape(str(choice)) for choice in option.type.choices)
        shown = f"\\fB{words}\\fR"
    else:
        shown = _words(metavar)
    return f"[={shown}]" if isinstance(option, OptionalValue) else f" {shown}"


def _words(metavar: str) -> str:
    """Return a metavar with stand-ins in italics, and typed text in bold."""
    parts = re.split(r"([A-Z][A-Z0-9_-]*|[a-z=,@:]+(?<!,)|-{1,3}(?=[\s\]]))", metavar)
    styled = []
    for at, part in enumerate(parts):
        if at % 2 == 0:
            styled.append(_escape(part))
        else:
            styled.append(f"\\fI{_escape(part.lower())}\\fR" if part[0].isupper() else f"\\fB{_escape(part)}\\fR")
    return "".join(styled)


def _paragraphs(command: click.Command) -> tuple[list[str], list[list[str]]]:
    """Return the paragraphs of a command's help, and the examples, each as lines."""
    paragraphs: list[str] = []
    examples: list[list[str]] = []
    for paragraph in (command.help or "").strip().split("\n\n"):
        if paragraph.lstrip().startswith(_EXAMPLES):
            examples.append(
                [line.removeprefix("  ") for line in paragraph.split(_EXAMPLES)[1].strip("\n").splitlines()]
            )
        elif paragraph.strip():
            paragraphs.append(" ".join(paragraph.split()))
    return paragraphs, examples


def text(sentences: str) -> str:
    """Return a text of the help as roff: options and what is in backquotes bold, stand-ins in italics."""
    sentences = re.sub(r"\s*\[default: ([^\]]+)\]", r" By default `\1`.", sentences)
    styled = []
    for at, part in enumerate(re.split(r"`([^`]+)`", sentences)):
        if at % 2:
            styled.append(f"\\fB{_escape(part)}\\fR")
            continue
        part = re.sub(r"(?<![\w-])(--[a-z][\w-]*)", "\1\\1\2", part)
        part = re.sub(r"\b([A-Z][A-Z0-9]{2,}|[A-Z](?=[,;=\]:]))(?=\b)", _stand_in, part)
        part = _escape(part).replace("\1", "\\fB").replace("\2", "\\fR").replace("\3", "\\fI").replace("\4", "\\fR")
        styled.append(part)
    joined = "".join(styled).strip()
    # A sentence begins a line, so that roff may set it off; a line never begins as a request does.
    return re.sub(r"(?<=[.:]) (?=[A-Z])", "\n", joined).replace("\n.", "\n\\&.").replace("\n'", "\n\\&'")


# Words in capitals that stand for nothing else.
_NAMES = frozenset(
    {
        "UUID",
        "UUIDS",
        "JSON",
        "URL",
        "UTC",
        "ACI",
        "OCI",
        "PID",
        "CPU",
        "IPC",
        "DNS",
        "OOM",
        "SIGHUP",
        "SIGINT",
        "SIGTERM",
    }
)


def _stand_in(match: re.Match[str]) -> str:
    word = match[1]
    return word if word in _NAMES else f"\3{word.lower()}\4"


def _escape(line: str) -> str:
    escaped = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def main() -> None:
    """Write the manual page: `python -m minit.cli.manual SOURCE OUTPUT`."""
    source, output = map(Path, sys.argv[1:])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(source.read_text(), commands))


if __name__ == "__main__":
    main()
