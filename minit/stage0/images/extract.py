"""
Images of the store become files: in directories of pods, in the tree store, or where the user asks for them.

A child process that cannot leave the directory extracts an image, `minit.stage0.images.untar`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from minit.archives.aci import image_id
from minit.archives.recipe import AssembledAci, OpenBlob, Recipe
from minit.base.errors import ImageError, StoreError
from minit.base.idrange import IdRange
from minit.base.progress import Progress, silent
from minit.linux.forks import EXTRACTOR, LINKER, fork
from minit.linux.idmapping import read_held_ids
from minit.stage0.files.durable import disk_error, disk_errors, make_directory
from minit.stage0.files.temporary import output_directory, output_file
from minit.stage0.images import untar, workers
from minit.stage0.images.rendering import ROOTFS, Layer, flatten
from minit.stage0.images.store import Store
from minit.stage0.images.untar import link_contents

_APP_DIRECTORY_MODE = 0o750
_CHUNK = 1 << 20
# The full disk may have the data directory, or an output of the user.
_REMEDY = "use another one"


def extract_image(
    store: Store, image: str, destination: Path, progress: Progress = silent, ids: IdRange | None = None
) -> None:
    """
    Render an image, by ID, with dependencies as `destination`/manifest and `destination`/rootfs, not as a tree.

    `destination` is made, 0750, or must be empty, and is empty after a failure. Reports bytes. `ids` maps the owners in
    the image to the host's.
    """
    layers = flatten(store.get(image), store.find_dependency)
    with disk_errors(f"extract image {layers[0].name}", destination, _REMEDY):
        make_directory(destination, _APP_DIRECTORY_MODE)
        if os.listdir(destination):
            raise StoreError(f"extract image {layers[0].name}: {destination} is not empty")
        if ids is not None:
            os.chown(destination, ids.shift, ids.shift)
    try:
        extract_layers(store, layers, destination, progress, ids)
    except BaseException:
        for path in destination.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        raise


def extract_layers(
    store: Store,
    layers: Sequence[Layer],
    destination: Path,
    progress: Progress = silent,
    ids: IdRange | None = None,
    *,
    link: bool = False,
) -> int:
    """
    Extract a flattened image into the empty directory `destination`; return the bytes of all regular files.

    After a failure the caller empties `destination`; no process and no mount outlives the call. With `link` the files
    of an image of layers are hard links to the files of the layers, where the file system has links, and must not be
    changed. Reports bytes read. ImageError if the image is at fault, StoreError if the disk is.
    """
    action = f"extract image {layers[0].name}"
    with ExitStack() as stack, disk_errors(action, destination, _REMEDY):
        blobs = [stack.enter_context(store.open_blob(layer.image_id)) for layer in layers]
        total_bytes = sum(blob.size_bytes for blob in blobs)
        recipe = blobs[0].recipe if link and len(blobs) == 1 and isinstance(blobs[0], AssembledAci) else None
        if recipe is not None and not _fit(store, recipe):
            recipe = None
        pid, reports = _start(stack, str(destination.resolve()), layers, blobs, ids, recipe)
        # The child does not read what is linked. A caller that imports and goes on with a tree has just read the image.
        is_read = recipe is None or store.has_assembled(layers[0].image_id)
        check = None if is_read else stack.enter_context(_Check(blobs[0], layers[0]))
        step = f"extracting {layers[0].name}"
        try:
            written_bytes = _follow(reports, lambda count_bytes: progress(step, count_bytes, total_bytes))
        except OSError as error:
            raise disk_error(action, destination, error, _REMEDY) from error
        except workers.DefectError as error:
            raise StoreError(f"{action}: {error}") from error
        if written_bytes is not None:
            if check is not None:
                check.end()
            progress(step, total_bytes, total_bytes)
            return written_bytes
        # The status stays for _end.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is not None and ended.si_status == signal.SIGALRM:
        raise ImageError(f"{action}: not done after {workers.TIME_LIMIT_SECONDS:.0f} seconds, refused")
    raise StoreError(f"{action}: the extracting process was killed; try again")


def _fit(store: Store, recipe: Recipe) -> bool:
    """Tell whether all files of the layers have the owners that files of a tree get here."""
    held = read_held_ids()
    return all(store.layers.get(diff_id).fits(held) for diff_id in recipe.layers)


def _start(
    stack: ExitStack,
    root: str,
    layers: Sequence[Layer],
    blobs: Sequence[OpenBlob],
    ids: IdRange | None,
    recipe: Recipe | None,
) -> tuple[int, TextIO]:
    """Start the extracting process, which ends with `stack`, and return its pid and its reports."""
    pipe, report = os.pipe()
    reports = stack.enter_context(open(pipe, encoding="utf-8", errors="replace"))

    def tell(error: BaseException) -> None:
        untar.tell(report, layers[0], root, error)

    linked = None
    if recipe is not None:
        linked = recipe, _link(stack, recipe, blobs[0], f"{root}/{untar.LINKS}", report, tell)
    files = [fd for blob in blobs for fd in blob.fds] if linked is None else None
    pid = fork(
        EXTRACTOR,
        lambda: untar.extract(root, layers, blobs, ids, report, linked),
        {"report": report, "images": files, "links": None if linked is None else linked[1]},
        tell=tell,
    )
    stack.callback(_end, pid)
    os.close(report)
    return pid, reports


def _follow(reports: TextIO, tell: Callable[[int], None]) -> int | None:
    """Tell the bytes read, and return the bytes of regular files that were written; None if the process was killed."""
    for line in reports:
        word, (count_bytes,) = workers.numbers_of(line)
        if word == workers.DONE:
            return count_bytes
        tell(count_bytes)
    return None


def _link(
    stack: ExitStack, recipe: Recipe, blob: OpenBlob, directory: str, report: int, tell: Callable[[BaseException], None]
) -> int:
    """Start the process that links files in `directory`, and return the pipe that tells of full directories."""
    os.mkdir(directory, 0o700)
    made, says_made = os.pipe()
    stack.callback(os.close, made)
    links = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        pid = fork(
            LINKER,
            lambda: link_contents(recipe, blob.fds, links, says_made),
            {"report": report, "layers": blob.fds, "links": (links, says_made)},
            tell=tell,
        )
        stack.callback(_end, pid)
    finally:
        os.close(links)
        os.close(says_made)
    return made


class _Check:
    """A thread that reads a blob and compares the digest with the image's ID."""

    def __init__(self, blob: OpenBlob, layer: Layer) -> None:
        self._blob = blob
        self._layer = layer
        self._unwanted = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Check:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._unwanted.set()
        self._thread.join()

    def end(self) -> None:
        """Wait for the end; ImageError if the image is damaged."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            digest = hashlib.sha512()
            while not self._unwanted.is_set() and (data := self._blob.read(_CHUNK)):
                digest.update(data)
            if image_id(digest) != self._layer.image_id:
                raise ImageError(untar.damaged(self._layer))
        except BaseException as error:
            self._error = error


def _end(pid: int) -> None:
    """Kill the child, which may still work if the caller was interrupted, and wait for the end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def export_image(store: Store, image_id: str, output: Path, *, overwrite: bool, progress: Progress = silent) -> None:
    """Write an image as the uncompressed ACI whose hash is the image ID."""
    with (
        store.open_blob(image_id) as blob,
        output_file(output, overwrite=overwrite, exists="output ACI file exists (try --overwrite)") as file,
    ):
        while data := blob.read(_CHUNK):
            file.write(data)
            progress(f"writing {output.name}", file.tell(), blob.size_bytes)


def extract_image_to(
    store: Store,
    image_id: str,
    output: Path,
    *,
    rendered: bool,
    rootfs_only: bool,
    overwrite: bool,
    progress: Progress = silent,
) -> None:
    """
    Make `output` a directory with an image's manifest and rootfs, or with `rootfs_only` the rootfs itself.

    The files are the image's own, or with `rendered` the files that an app sees, by dependencies and path whitelists.
    """
    image = store.get(image_id)
    layers = flatten(image, store.find_dependency) if rendered else (Layer(image_id=image.id, name=image.name),)
    with output_directory(output, overwrite=overwrite) as directory:
        extract_layers(store, layers, directory, progress)
        if rootfs_only:
            _become(directory, directory / ROOTFS)


def _become(directory: Path, part: Path) -> None:
    """Replace a directory by a part of the directory."""
    aside = directory.with_name("rootfs")
    os.rename(part, aside)
    shutil.rmtree(directory)
    os.rename(aside, directory)
