"""The stage1 image that a request means, put into the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from minit.base.progress import Progress
from minit.image.interpreter import require_all
from minit.image.stage1 import (
    SHIPPED,
    build_stage1,
    shipped_fingerprint,
    stage1_facts,
    stage1_fingerprint,
    stage1_sources,
)
from minit.pods.caller import Caller
from minit.pods.ownprogram import renew_program
from minit.pods.requests import Stage1Request
from minit.stage0.images.defaultstage1 import default_stage1, known_stage1
from minit.stage0.images.knownfiles import result_of_sources
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage


def choose_stage1(caller: Caller, store: Store, request: Stage1Request) -> Callable[[Progress], StoredImage]:
    """
    Return what puts the image into the store, if it is not there, and returns it.

    ImageError at once if it has to be built and something is missing for that: so no other image is imported in vain.
    """
    path, reference = request.path, request.reference
    if path is not None:
        return lambda progress: store.import_file(Path(path), progress, again=False)
    if reference is not None:
        return lambda progress: store.find(reference)
    fingerprint = shipped_fingerprint()
    if fingerprint is not None:
        return partial(_own_stage1, caller, store, fingerprint, lambda _scratch, _progress: SHIPPED)
    record = caller.data / "minit/stage1-sources"
    fingerprint = result_of_sources(record, stage1_facts(), stage1_sources, stage1_fingerprint)
    if known_stage1(caller.data, store, fingerprint) is None:
        require_all()
    return partial(_own_stage1, caller, store, fingerprint, partial(_build, caller))


def _own_stage1(
    caller: Caller,
    store: Store,
    fingerprint: str,
    provide: Callable[[Path, Progress], Path],
    progress: Progress,
) -> StoredImage:
    image = default_stage1(caller.data, store, fingerprint, provide, progress)
    renew_program(fingerprint, progress)
    return image


def _build(caller: Caller, scratch: Path, progress: Progress) -> Path:
    image = scratch / "stage1.aci"
    warning = build_stage1(
        image, lambda step, done, total: progress(f"building stage1 (first use): {step}", done, total)
    )
    if warning is not None:
        caller.note(warning)
    return image
