"""The command that shows the help of another: help, which rkt has beside --help."""

from __future__ import annotations

import click

from minit.cli.grammar import MinitCommand, MinitGroup
from minit.cli.invocation import Invocation


@click.command("help", cls=MinitCommand)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """
    \b
      minit help run
      minit help image build

    """
    assert ctx.parent is not None
    context = click.Context(ctx.parent.command, info_name=ctx.parent.info_name, obj=Invocation())
    for word in words:
        group = context.command
        child = group.get_command(context, word) if isinstance(group, click.Group) else None
        if child is None:
            unknown = group.unknown([word]) if isinstance(group, MinitGroup) else f'unknown command "{word}"'
            raise click.UsageError(unknown, ctx)
        context = click.Context(child, info_name=child.name, parent=context, **child.context_settings)
    click.echo(context.get_help())
