"""The options that name the file of a stage1 image."""

from __future__ import annotations

from pathlib import Path

import click

STAGE1_IMAGES = Path("/usr/lib/rkt/stage1-images")
"""The directory of stage1 images that rkt is built with, for images by file name."""


def choose_file(path: str | None, from_dir: str | None, url: str | None) -> str | None:
    """Return the file that --stage1-path, --stage1-from-dir or --stage1-url names, if one of them is given."""
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
