"""Options of several commands, each with one help text."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any

import click

from minit.base.goduration import parse_duration
from minit.base.processors import PROCESSORS, Processor, processor_named
from minit.cli.grammar import OptionalValue
from minit.stage0.stage1.entrypoints import DEFAULT_NETWORK

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def in_order(*decorators: Decorator) -> Decorator:
    """Return decorators as one, so that the help shows the options in the order written."""
    return lambda function: reduce(lambda inner, outer: outer(inner), reversed(decorators), function)


def read_seconds(ctx: click.Context, parameter: click.Parameter, value: int | None) -> float | None:
    """Return a number of seconds, 0 or more; a callback of options."""
    if value is not None and value < 0:
        raise click.BadParameter("expected 0 or more seconds", ctx, parameter)
    return None if value is None else float(value)


timeout_option = click.option(
    "-t",
    "--timeout",
    "--time",
    type=int,
    metavar="SECONDS",
    callback=read_seconds,
    help="Kill a pod so many seconds after the stop signal.  [default: its own grace period]",
)

quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")

no_legend_option = click.option("--no-legend", is_flag=True, help="Leave out the headings.")

pretty_print_option = click.option(
    "--pretty-print", cls=OptionalValue, bare="true", type=bool, default=True, help="Indent.  [default: true]"
)

apps_option = click.option(
    "--app", "apps", metavar="NAME", multiple=True, help="Only this app; may be given several times."
)

privileged_option = click.option(
    "--privileged",
    is_flag=True,
    help="With all capabilities that PID 1 has, and neither the app's filters of system calls nor its limits.",
)

stage1_path_option = click.option(
    "--stage1-path", metavar="FILE", help="Stage1 image to use: a file.  [default: minit's own]"
)

arch_option = click.option(
    "--arch", type=click.Choice(["amd64", "arm64"]), help="Processor that it is for.  [default: that of this machine]"
)


class _PolicyWord(click.Choice[str]):
    """A word of rkt's for a pull policy, or the one of docker and podman for the same."""

    _OTHERS = {"missing": "new", "always": "update", "newer": "update"}

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return rkt's word."""
        return super().convert(self._OTHERS.get(str(value), value), param, ctx)


class _Platform(click.ParamType[Processor]):
    """A processor, alone or with the system before it."""

    name = "|".join(processor.name for processor in PROCESSORS)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Processor:
        """Return the processor."""
        if isinstance(value, Processor):
            return value
        name = str(value).removeprefix("linux/")
        if name not in (processor.name for processor in PROCESSORS):
            self.fail(f'"{value}" is none of {", ".join(processor.name for processor in PROCESSORS)}', param, ctx)
        return processor_named(name)


image_arch_option = click.option(
    "--arch",
    "--platform",
    "processor",
    type=_Platform(),
    help="Processor that images are for, as in arm64 or linux/arm64.  [default: that of this machine]",
)

no_overlay_option = click.option(
    "--no-overlay", is_flag=True, help="Copy images into the pod instead of using overlayfs."
)

STAGE1_IMAGES = Path("/usr/lib/rkt/stage1-images")
"""The directory of stage1 images that rkt is built with, for images by file name."""


def networks_option(text: str) -> Decorator:
    """Return the option with the networks of pods, with the help text of its command."""
    return click.option(
        "--net",
        "--network",
        cls=OptionalValue,
        bare=DEFAULT_NETWORK,
        valued=("--network",),
        multiple=True,
        metavar="LIST",
        help=f"{text}  [default: {DEFAULT_NETWORK}]",
    )


def pull_policy_option(default: Enum, *names: str) -> Decorator:
    """
    Return the option that says when an image is fetched or converted again.

    `names` are further names of the option. `default` is a PullPolicy: the command of a machine imports this module and
    none about images.
    """
    return click.option(
        "--pull-policy",
        *names,
        type=_PolicyWord([policy.value for policy in type(default)]),
        default=default.value,
        help="When to read the file of an image, convert it, or fetch it from a registry: if the store does not have"
        " it (new), always (update), or take one of a registry from the store only (never)."
        f"  [default: {default.value}]",
    )


def image_format_option(default: Enum) -> Decorator:
    """Return the option with the format of a written image; `default` is an ImageFormat."""
    return click.option(
        "--format",
        "image_format",
        type=click.Choice([image_format.value for image_format in type(default)]),
        default=default.value,
        help=f"Format of the image: rkt's, or in skopeo's words OCI's or docker's.  [default: {default.value}]",
    )


def read_duration(ctx: click.Context, parameter: click.Parameter, value: str) -> float:
    """Return a Go duration in seconds; a callback of options."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def choose_file(path: str | None, from_dir: str | None, url: str | None) -> str | None:
    """Return the file named by --stage1-path, --stage1-from-dir or --stage1-url, if one is given."""
    files = [file for file in (path, _in_directory(from_dir), _of_url(url)) if file is not None]
    if len(files) > 1:
        raise click.UsageError("the --stage1 options exclude each other")
    return files[0] if files else None


def _in_directory(name: str | None) -> str | None:
    if name is not None and ("/" in name or name in ("", ".", "..")):
        raise click.UsageError(f'--stage1-from-dir: expected the name of a file in {STAGE1_IMAGES}, got "{name}"')
    return None if name is None else str(STAGE1_IMAGES / name)


def _of_url(url: str | None) -> str | None:
    if url is None:
        return None
    path = url.removeprefix("file:").removeprefix("//")
    if path == url or not path.startswith("/"):
        raise click.UsageError(f'--stage1-url: expected file:///PATH, got "{url}"; fetch it, then use --stage1-path')
    return path
