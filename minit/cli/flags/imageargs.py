"""
The images on the command lines of run, prepare and app add, each with its own flags and arguments.

rkt reads such a line from left to right: a word that is no flag is an image; flags for one app apply to the image
before them; `--` starts the arguments of that image's app, up to `---` or the end. Docker's lines are read, too: flags
for the only app may stand before its image, and a word that means no image begins the app's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import click

from minit.cli.flags.appoptions import apply_app_flag
from minit.cli.flagwords import Flag, FlagError, Mistakes, is_flag, take_flag
from minit.cli.grammar import AppOption, MinitCommand, SharedAppOption, invocation_of
from minit.pods.images import means_image
from minit.pods.requests import AppRequest
from minit.stage0.pods.appsection import AppOverrides

IMAGES = "minit.images"
"""The key of an ImageCommand's images in click's `Context.meta`."""

Found = list[tuple[str, str]]


class ImageCommand(MinitCommand):
    """A command whose operands are images, each with flags and arguments of its own, or only one of them."""

    one_image = False

    def split(self, ctx: click.Context, arguments: Sequence[str], flags: dict[str, Flag]) -> tuple[Found, list[str]]:
        """Leave the images in the context, and only their names to click."""

        def is_image(word: str, found: Found) -> bool:
            data = dict(found).get("--dir")
            return means_image(invocation_of(ctx).data if data is None else Path(data), word)

        shared = _names(self.params, SharedAppOption)
        app_flags = _names(self.params, AppOption) | shared
        found, images = scan_images(
            arguments, flags, app_flags, frozenset(shared), one_image=self.one_image, is_image=is_image
        )
        ctx.meta[IMAGES] = images
        return found, [image.reference for image in images]


def _names(parameters: Iterable[click.Parameter], kind: type[click.Option]) -> dict[str, str]:
    """Return the names of the options of a kind, each with the first one of its option."""
    return {name: option.opts[0] for option in parameters if isinstance(option, kind) for name in option.opts}


class _Image:
    """An image of a line, while the line is read."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.flags: Found = []
        self.arguments: tuple[str, ...] = ()
        self.is_command_line = False


def scan_images(
    arguments: Sequence[str],
    flags: Mapping[str, Flag],
    app_flags: Mapping[str, str],
    shared_flags: frozenset[str] = frozenset(),
    *,
    one_image: bool = False,
    is_image: Callable[[str, Found], bool] = lambda word, found: True,
) -> tuple[Found, tuple[AppRequest, ...]]:
    """
    Return the flags for the whole command, and the images; FlagError names all wrong words.

    `app_flags` are for the image before them, or for the only image behind them, and have the names that
    `apply_app_flag` knows; those of them in `shared_flags` are for the whole command where there is no image yet. With
    `one_image` all words after `--` are arguments of it, `---` too. `is_image` tells whether a word behind an image
    means another one, from the word and the flags of the command before.
    """
    words = list(arguments)
    found: Found = []
    before: Found = []
    images: list[_Image] = []
    mistakes = Mistakes()
    is_separated = False

    def take_arguments() -> tuple[str, ...]:
        end = words.index("---") if "---" in words and not one_image else len(words)
        taken = tuple(words[:end])
        del words[:end]
        return taken

    while words:
        if words[0] == "--":
            if not images:
                raise FlagError("arguments after -- must follow an image")
            words.pop(0)
            images[-1].arguments += take_arguments()
        elif words[0] == "---":
            words.pop(0)  # ends no arguments, but people write it between any two images
            is_separated = True
        elif not is_flag(words[0]):
            if not images or is_separated or is_image(words[0], found):
                images.append(_Image(words.pop(0)))
                is_separated = False
            else:
                images[-1].arguments += take_arguments()
                images[-1].is_command_line = True
        else:
            with mistakes.collected():
                name, value = take_flag(words, flags)
                if name not in app_flags or (name in shared_flags and not images):
                    found.append((name, value))
                else:
                    (images[-1].flags if images else before).append((app_flags[name], value))
    if before and len(images) != 1:
        mistakes.add(FlagError(f"{before[0][0]} must follow an image" + (": there are several" if images else "")))
    requests: list[AppRequest] = []
    for image in images:
        overrides = AppOverrides(arguments=image.arguments, is_command_line=image.is_command_line)
        for name, value in (*before, *image.flags):
            with mistakes.collected():
                overrides = apply_app_flag(overrides, name, value)
        requests.append(AppRequest(reference=image.reference, overrides=overrides))
    mistakes.tell()
    return found, tuple(requests)
