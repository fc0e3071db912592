"""
The images on the command lines of run, prepare and fetch, each with its own flags and arguments.

rkt reads such a line from left to right: a word that is no flag is an image; flags for one app apply to the image
before them; `--` starts the arguments of that image's app, up to `---` or the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from minit.base.value import replace
from minit.cli.flags.appoptions import apply_app_flag
from minit.cli.flagwords import Flag, FlagError, is_flag, take_flag
from minit.cli.grammar import AppOption, MinitCommand, SharedAppOption
from minit.pods.requests import AppRequest

IMAGES = "minit.images"
"""The key of an ImageCommand's images in click's `Context.meta`."""


class ImageCommand(MinitCommand):
    """A command whose operands are images, each with flags and arguments of its own, or only one of them."""

    one_image = False

    def split(
        self, ctx: click.Context, arguments: Sequence[str], flags: dict[str, Flag]
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """Leave the images in the context, and only their names to click."""

        shared_flags = _names(self.params, SharedAppOption)
        app_flags = _names(self.params, AppOption) | shared_flags
        found, images = scan_images(arguments, flags, app_flags, shared_flags, one_image=self.one_image)
        ctx.meta[IMAGES] = images
        return found, [image.reference for image in images]


def _names(parameters: Iterable[click.Parameter], kind: type[click.Option]) -> frozenset[str]:
    return frozenset(name for option in parameters if isinstance(option, kind) for name in option.opts)


def scan_images(
    arguments: Sequence[str],
    flags: Mapping[str, Flag],
    app_flags: frozenset[str],
    shared_flags: frozenset[str] = frozenset(),
    *,
    one_image: bool = False,
) -> tuple[list[tuple[str, str]], tuple[AppRequest, ...]]:
    """
    Return the flags for the whole command, and the images.

    Those in `app_flags` are for the image before them; those of them in `shared_flags` are for the whole command where
    there is no image yet. With `one_image` all words after `--` are arguments of it, `---` too.
    """
    words = list(arguments)
    found: list[tuple[str, str]] = []
    images: list[AppRequest] = []
    while words:
        if words[0] == "--":
            if not images:
                raise FlagError("arguments after -- must follow an image")
            words.pop(0)
            end = words.index("---") if "---" in words and not one_image else len(words)
            overrides = images[-1].overrides
            overrides = replace(overrides, arguments=overrides.arguments + tuple(words[:end]))
            images[-1] = replace(images[-1], overrides=overrides)
            words = words[end + 1 :]
        elif words[0] == "---":
            words.pop(0)  # means nothing without arguments, but people write it between any two images
        elif not is_flag(words[0]):
            images.append(AppRequest(reference=words.pop(0)))
        else:
            name, value = take_flag(words, flags)
            if name not in app_flags or (name in shared_flags and not images):
                found.append((name, value))
            elif not images:
                raise FlagError(f"{name} must follow an image")
            else:
                overrides = apply_app_flag(images[-1].overrides, name, value)
                images[-1] = replace(images[-1], overrides=overrides)
    return found, tuple(images)
