"""The command that prints what makes a shell complete command lines, and the answer to what the shell then asks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from minit.cli.commandgroups import COMMANDS
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation

SHELLS = ("bash", "zsh", "fish")
ASK = "__complete"
"""The first word of a shell's question: `minit __complete SHELL …`, see `answer`."""


@click.command(cls=MinitCommand, short_help=COMMANDS["completion"].help)
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@click.pass_obj
def completion(invocation: Invocation, shell: str) -> None:
    """
    Print what makes bash, zsh or fish complete the command lines of minit.

    Commands, options and their values are completed, and so are the UUIDs of pods and the names of apps and images.

    \b
      . <(minit completion bash)                  # in ~/.bashrc
      . <(minit completion zsh)                   # in ~/.zshrc, after compinit
      minit completion fish | source              # in ~/.config/fish/config.fish

    """
    invocation.say((Path(__file__).parent / "shells" / f"minit.{shell}").read_text(), end="")


def answer(root: click.Group, words: Sequence[str]) -> str:
    """
    Return the answer to a shell: whether paths may stand there, then a line for each word, a tab and its help.

    bash passes its line up to the cursor and the characters at which it breaks words; the others pass the words, the
    last one as far as it was typed.
    """
    from minit.cli.completion import complete, split_line  # which knows all commands, and no machine has

    shell, *rest = words
    breaks = ""
    if shell == "bash":
        typed, breaks = rest
        rest = split_line(typed)
    _, *before, word = rest if len(rest) > 1 else ["minit", ""]
    found = complete(root, before, word)
    # bash replaces only what follows the last such character of the word.
    kept = max((word.rfind(character) + 1 for character in "=:" if character in breaks), default=0)
    lines = [f"{candidate.word[kept:]}\t{' '.join(candidate.help.split())}" for candidate in found.candidates]
    return os.linesep.join([found.paths, *lines]) + os.linesep
