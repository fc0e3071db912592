"""
The images on the command lines of run, prepare and fetch, each with its own flags and arguments.

rkt reads such a line from left to right: a word that is no flag is an image; flags for one app apply to the image
before them; `--` starts the arguments of that image's app, up to `---` or the end. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit.cli.flagwords import Flag, FlagError, is_flag, take_flag
from minit.manifest.names import is_ac_name, is_environment_name
from minit.stage0.podmanifest import AppOverrides
from minit.value import Value, replace


class ImageArgument(Value):
    """An image as the user named it, and what its app is to have of its own."""

    reference: str
    overrides: AppOverrides = AppOverrides()


def scan_images(
    arguments: Sequence[str], flags: Mapping[str, Flag], app_flags: frozenset[str]
) -> tuple[list[tuple[str, str]], tuple[ImageArgument, ...]]:
    """Return the flags that are not in `app_flags`, which are for the whole command, and the images."""
    words = list(arguments)
    found: list[tuple[str, str]] = []
    images: list[ImageArgument] = []
    while words:
        if words[0] == "--":
            if not images:
                raise FlagError("arguments after -- must follow an image")
            words.pop(0)
            end = words.index("---") if "---" in words else len(words)
            overrides = images[-1].overrides
            overrides = replace(overrides, arguments=overrides.arguments + tuple(words[:end]))
            images[-1] = replace(images[-1], overrides=overrides)
            words = words[end + 1 :]
        elif words[0] == "---":
            words.pop(0)  # means nothing without arguments, but people write it between any two images
        elif not is_flag(words[0]):
            images.append(ImageArgument(reference=words.pop(0)))
        else:
            name, value = take_flag(words, flags)
            if name not in app_flags:
                found.append((name, value))
            elif not images:
                raise FlagError(f"{name} must follow an image")
            else:
                overrides = apply_app_flag(images[-1].overrides, name, value)
                images[-1] = replace(images[-1], overrides=overrides)
    return found, tuple(images)


def apply_app_flag(overrides: AppOverrides, name: str, value: str) -> AppOverrides:
    """Return `overrides` with one more per-app flag; FlagError if its value is not possible."""
    if name == "--environment":
        return replace(overrides, environment=(*overrides.environment, parse_variable(name, value)))
    if name == "--supplementary-gids":
        return replace(overrides, supplementary_gids=_parse_gids(name, value))
    if name == "--exec" and overrides.exec is not None:
        raise FlagError("--exec can be given only once per image")
    if name == "--name" and not is_ac_name(value):
        raise FlagError(f'{name}: expected lower-case letters, digits and inner dashes, got "{value}"')
    if name == "--working-dir" and not value.startswith("/"):
        raise FlagError(f'{name}: expected an absolute path, got "{value}"')
    if not value:
        raise FlagError(f"{name}: expected a value, got none")
    field = {"--working-dir": "working_directory"}.get(name, name.removeprefix("--"))
    return replace(overrides, **{field: value})


def parse_variable(flag: str, text: str) -> tuple[str, str]:
    """Return the name and value of `NAME=VALUE`; FlagError, naming `flag`, if it is none."""
    name, separator, value = text.partition("=")
    if not separator or not is_environment_name(name):
        raise FlagError(f'{flag}: expected NAME=VALUE, got "{text}"')
    return name, value


def _parse_gids(flag: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) < 2**32 - 1 for word in words):
        raise FlagError(f'{flag}: expected group ids separated by commas, got "{text}"')
    return tuple(int(word) for word in words)
