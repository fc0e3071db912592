"""
The possible next words of a command line: the shells ask at each Tab, by `minit completion`.

The line is read by the rules of `flagwords` and `imageargs`, as far as it goes. The type and the metavar of an option
or operand tell its values, so that a new command is completed without more.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from minit.base.errors import MinitError
from minit.base.value import Value
from minit.cli.commandgroups import COMMANDS
from minit.cli.flags.filters import FilterOption, words_of
from minit.cli.flags.imageargs import ImageCommand
from minit.cli.flagwords import FlagError, FlagKind, is_flag, take_flag
from minit.cli.grammar import (
    AppOption,
    MinitCommand,
    MinitGroup,
    OptionalValue,
    SharedAppOption,
    flag_table,
)
from minit.cli.invocation import INSECURE_OPTIONS, Invocation
from minit.pods.caller import DEFAULT_LOCAL_CONFIG
from minit.stage0.images.store import Store
from minit.stage0.networks import list_networks
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, PREPARED, RUN, read_name, walk_pods
from minit.stage0.pods.podstatus import read_pod_status
from minit.stage0.volumes import list_volumes

FILES, DIRECTORIES, NOTHING = "files", "directories", "nothing"

# Commands that only make sense for pods in one place; all others are offered every pod.
_PLACES = {
    **dict.fromkeys(("attach", "enter", "stop", "exec", "port", "top", "stats", "update", "upgrade"), (RUN,)),
    "run-prepared": (PREPARED,),
}
_HELP_WIDTH = 70
_NETWORKS = ("default", "default-restricted", "host", "none", "all")

SHELLS = ("bash", "zsh", "fish")


class Candidate(Value):
    """A possible word, and the word's meaning."""

    word: str
    help: str = ""


class Completions(Value):
    """The possible words, and whether FILES or DIRECTORIES of the machine are possible too."""

    candidates: tuple[Candidate, ...] = ()
    paths: str = NOTHING


class _Line(Value):
    """A line up to the word to complete."""

    command: click.Command
    path: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]
    awaited: str | None = None
    """The option whose value the word is."""
    arguments_only: bool = False
    """True once flags have ended."""

    @property
    def data(self) -> Path:
        """The data directory of the line."""
        given = [value for name, value in self.values if name == "--dir"]
        return Path(given[-1]) if given else Invocation().data

    @property
    def local_config(self) -> str:
        """The directory of local configuration of the line."""
        given = [value for name, value in self.values if name == "--local-config"]
        return given[-1] if given else DEFAULT_LOCAL_CONFIG


def split_line(line: str) -> list[str]:
    """Return the words of a shell's line, the last word as far as typed, quoted or not."""
    mark = "\0"
    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + mark + end)
        except ValueError:
            continue
        return [*words[:-1], words[-1].replace(mark, "")]
    return [""]


def complete(root: click.Group, words: Sequence[str], word: str) -> Completions:
    """Return the possible words with the beginning `word`, after the other words of a command line."""
    if words and words[0].startswith("--") and "--" in words:
        return Completions(paths=FILES)  # minit -- COMMAND
    try:
        line = _read(root, list(words))
    except FlagError:
        return Completions()
    if line.path == ("help",) and not word.startswith("-"):
        line = _read(root, list(line.operands))
        found = _commands(line.command)
    else:
        found = _possible(line, word)
    matching = tuple(candidate for candidate in found.candidates if candidate.word.startswith(word))
    return Completions(candidates=matching, paths=found.paths)


def _read(root: click.Group, words: list[str]) -> _Line:
    command: click.Command = root
    path: tuple[str, ...] = ()
    values: list[tuple[str, str]] = []
    operands: list[str] = []
    arguments_only = False
    while words:
        context = click.Context(command, info_name=command.name, **command.context_settings)
        flags = flag_table(command.get_params(context))
        if words[0] == "--" and isinstance(command, ImageCommand):
            if "---" not in words:
                return _Line(command=command, path=path, values=(), operands=(), awaited="", arguments_only=True)
            words = words[words.index("---") + 1 :]
        elif words[0] == "--":
            operands += words[1:]
            arguments_only = True
            break
        elif is_flag(words[0]):
            name, _, _ = words[0].partition("=")
            if len(words) == 1 and name == words[0] and name in flags and flags[name].kind is FlagKind.VALUE:
                values_so_far = tuple(values)
                return _Line(command=command, path=path, values=values_so_far, operands=tuple(operands), awaited=name)
            values.append(take_flag(words, flags))
        elif isinstance(command, click.Group):
            name = words.pop(0)
            child = command.get_command(context, name)
            if child is None:
                raise FlagError(name)
            command, path = child, (*path, child.name or name)
        else:
            operands.append(words.pop(0))
            if isinstance(command, MinitCommand) and command.stop_at_operand:
                operands += words
                arguments_only = True
                break
    return _Line(
        command=command,
        path=path,
        values=tuple(values),
        operands=tuple(operands),
        arguments_only=arguments_only,
    )


def _possible(line: _Line, word: str) -> Completions:
    if line.awaited == "":
        return Completions(paths=FILES)
    options = _options(line.command)
    if line.awaited is not None:
        return _values(line, options[line.awaited], word)
    name, equals, _ = word.partition("=")
    if not line.arguments_only and equals and is_flag(word) and name in options:
        found = _values(line, options[name], word[len(name) + 1 :])
        prefixed = tuple(Candidate(word=f"{name}={each.word}", help=each.help) for each in found.candidates)
        return Completions(candidates=prefixed, paths=found.paths)
    if not line.arguments_only and word.startswith("-"):
        return Completions(candidates=tuple(_flags(line, options)))
    return _commands(line.command) if isinstance(line.command, click.Group) else _operand(line)


def _commands(command: click.Command) -> Completions:
    """Return the commands of a group; none of a command."""
    listed = command.listed(_HELP_WIDTH) if isinstance(command, MinitGroup) else ()
    return Completions(candidates=tuple(Candidate(word=name, help=text) for name, _, text in listed))


def _options(command: click.Command) -> dict[str, click.Option]:
    context = click.Context(command, info_name=command.name, **command.context_settings)
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    return {name: option for option in options for name in option.opts}


def _flags(line: _Line, options: dict[str, click.Option]) -> Iterator[Candidate]:
    given = {name for name, _ in line.values}
    for name, option in options.items():
        repeatable = option.multiple or isinstance(option, (AppOption, SharedAppOption))
        if not name.startswith("--") or (name in given and not repeatable):
            continue
        sentence = re.split(r"[.;:] ", option.help or "")[0].rstrip(".")
        help_text = textwrap.shorten(sentence, _HELP_WIDTH, placeholder="...")
        yield Candidate(word=name, help=help_text)
        if isinstance(option, OptionalValue):
            yield Candidate(word=f"{name}=", help=help_text)


def _values(line: _Line, option: click.Option, word: str) -> Completions:
    if option.is_flag:
        return _words(("true", "false"))
    if isinstance(option.type, click.Choice):
        return _words(tuple(option.type.choices))
    name, metavar = option.opts[0], option.metavar or ""
    if isinstance(option, FilterOption):
        keys = words_of(option.subject)
        key, equals, _ = word.partition("=")
        values = keys[key].values if equals and key in keys else ()
        return _words([f"{key}={value}" for value in values] if equals else [f"{each}=" for each in keys])
    if name == "--app":
        return Completions(candidates=tuple(_apps(line)))
    if name == "--insecure-options":
        return _listed(INSECURE_OPTIONS, word)
    if name == "--net":
        return _listed((*_NETWORKS, *_networks(line)), word)
    if name in ("--stage1-name", "--stage1-hash"):
        return Completions(candidates=tuple(_images(line, by_id=name == "--stage1-hash")))
    if "DIR" in metavar and "FILE" not in metavar:
        return Completions(paths=DIRECTORIES)
    if "FILE" in metavar or metavar == "PATH" or isinstance(option.type, click.Path):
        return Completions(paths=FILES)
    return Completions()


def _operand(line: _Line) -> Completions:
    """Return the possible next operands."""
    arguments = [parameter for parameter in line.command.params if isinstance(parameter, click.Argument)]
    position = len(line.operands)
    for argument in arguments:
        if 0 <= position < argument.nargs or argument.nargs < 0:
            break
        position -= argument.nargs
    else:
        return Completions()
    metavar = argument.metavar or ""
    if isinstance(argument.type, click.Choice):
        return _words(tuple(argument.type.choices))
    if metavar.startswith(("UUID", "[UUID")):
        return Completions(candidates=tuple(_pods(line)))
    if metavar.startswith("IMAGE"):
        takes_files = isinstance(argument.type, click.Path)
        return Completions(candidates=tuple(_images(line)), paths=FILES if takes_files else NOTHING)
    if metavar.startswith("VOLUME") and line.path[-1] != "create":
        return _words([volume.name for volume in list_volumes(line.data) if volume.name not in line.operands])
    if metavar.startswith("NETWORK") and line.path[-1] != "create":
        return _words(
            [each.name for each in list_networks(line.local_config, _ignore) if each.name not in line.operands]
        )
    if "DIR" in metavar and "FILE" not in metavar:
        return Completions(paths=DIRECTORIES)
    if "FILE" in metavar or isinstance(argument.type, click.Path):
        return Completions(paths=FILES)
    return Completions()


def _words(words: Sequence[str]) -> Completions:
    return Completions(candidates=tuple(Candidate(word=word) for word in words))


def _networks(line: _Line) -> list[str]:
    return [network.name for network in list_networks(line.local_config, _ignore)]


def _listed(words: Iterable[str], word: str) -> Completions:
    """Return the words that may go on a list separated by commas."""
    begun, comma, _ = word.rpartition(",")
    given = begun.split(",")
    return _words([f"{begun}{comma}{name}" for name in words if name not in given])


def _pods(line: _Line) -> Iterator[Candidate]:
    places = _PLACES.get(line.path[-1], ADDRESSABLE_PLACES)
    for pod in walk_pods(line.data, places, _ignore):
        name = read_name(pod.fd)
        if pod.uuid in line.operands or name in line.operands:
            continue
        try:
            status = read_pod_status(pod)
            described = f"{status.state}: {', '.join(app.name for app in status.apps)}"
        except (OSError, MinitError):
            described = str(pod.state)
        if name is not None:
            yield Candidate(word=name, help=described)
        yield Candidate(word=pod.uuid, help=described)


def _apps(line: _Line) -> Iterator[Candidate]:
    """Yield the apps of the pod on the line, or of all pods while none is there."""
    seen = set()
    for pod in walk_pods(line.data, ADDRESSABLE_PLACES, _ignore):
        if line.operands and not pod.uuid.startswith(line.operands[0]) and read_name(pod.fd) != line.operands[0]:
            continue
        try:
            status = read_pod_status(pod)
        except (OSError, MinitError):
            continue
        for app in status.apps:
            if app.name not in seen:
                seen.add(app.name)
                yield Candidate(word=app.name, help=f"in pod {pod.uuid[:8]}")


def _images(line: _Line, *, by_id: bool = False) -> Iterator[Candidate]:
    if not os.access(line.data / "cas", os.R_OK):  # nor is one made for the sake of completion
        return
    with Store(line.data) as store:
        for image in store.list(lambda error: None):
            name = f"{image.name}:{image.version}" if image.version else image.name
            yield Candidate(word=image.id, help=name) if by_id else Candidate(word=name, help=image.id[:19])


def _ignore(text: str) -> None:
    """Tell nobody: the line is still being typed."""


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

    bash passes the line up to the cursor and the characters at which bash breaks words; the others pass the words, the
    last word as far as typed.
    """
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
