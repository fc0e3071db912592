"""The stage1 image that a command line means: that of a file, one of the store, or minit's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from minit.base.progress import Progress
from minit.cli.commands.ownprogram import renew_program
from minit.cli.flags.stage1flags import choose_file
from minit.cli.invocation import Invocation
from minit.image.interpreter import require_all
from minit.image.stage1 import (
    SHIPPED,
    build_stage1,
    shipped_fingerprint,
    stage1_facts,
    stage1_fingerprint,
    stage1_sources,
)
from minit.stage0.images.defaultstage1 import default_stage1, known_stage1
from minit.stage0.images.knownfiles import result_of_sources
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage


def choose_stage1(
    invocation: Invocation, store: Store, path: str | None, reference: str | None
) -> Callable[[Progress], StoredImage]:
    """
    Return what puts the image into the store, if it is not there, and returns it.

    ImageError at once if it has to be built and something is missing for that: so no other image is imported in vain.
    """
    if path is not None:
        return lambda progress: store.import_file(Path(path), progress, again=False)
    if reference is not None:
        return lambda progress: store.find(reference)
    fingerprint = shipped_fingerprint()
    if fingerprint is not None:
        return partial(_own_stage1, invocation, store, fingerprint, lambda _scratch, _progress: SHIPPED)
    record = invocation.data / "minit/stage1-sources"
    fingerprint = result_of_sources(record, stage1_facts(), stage1_sources, stage1_fingerprint)
    if known_stage1(invocation.data, store, fingerprint) is None:
        require_all()
    return partial(_own_stage1, invocation, store, fingerprint, partial(_build, invocation))


def stage1_of_options(
    invocation: Invocation,
    store: Store,
    *,
    stage1_path: str | None,
    stage1_name: str | None,
    stage1_hash: str | None,
    stage1_from_dir: str | None,
    stage1_url: str | None,
    **_others: object,
) -> Callable[[Progress], StoredImage]:
    """Do so with the one of the --stage1 options that is given, or none; UsageError if several are."""
    file = choose_file(stage1_path, stage1_from_dir, stage1_url)
    if sum(choice is not None for choice in (file, stage1_name, stage1_hash)) > 1:
        raise click.UsageError("the --stage1 options exclude each other")
    return choose_stage1(invocation, store, file, stage1_name or stage1_hash)


def _own_stage1(
    invocation: Invocation,
    store: Store,
    fingerprint: str,
    provide: Callable[[Path, Progress], Path],
    progress: Progress,
) -> StoredImage:
    image = default_stage1(invocation.data, store, fingerprint, provide, progress)
    renew_program(fingerprint, progress)
    return image


def _build(invocation: Invocation, scratch: Path, progress: Progress) -> Path:
    image = scratch / "stage1.aci"
    warning = build_stage1(
        image, lambda step, done, total: progress(f"building stage1 (first use): {step}", done, total)
    )
    if warning is not None:
        invocation.note(warning)
    return image
