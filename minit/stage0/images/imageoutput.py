"""Images of the store as files and directories of the user's: `image export`, `image extract`, `image render`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from minit.base.progress import Progress, silent
from minit.stage0.files.outputpaths import output_directory, output_file
from minit.stage0.images.extract import extract_layers
from minit.stage0.images.rendering import ROOTFS, Layer, flatten
from minit.stage0.images.store import Store

_CHUNK = 1 << 20


def export_image(store: Store, image_id: str, output: Path, *, overwrite: bool, progress: Progress = silent) -> None:
    """Write an image as an uncompressed ACI, byte for byte what its id is the hash of."""
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
    Make `output` a directory with an image's manifest and rootfs, or be its rootfs with `rootfs_only`.

    That is the image's own archive, or with `rendered` what an app sees: its dependencies and path whitelists too.
    """
    image = store.get(image_id)
    layers = flatten(image, store.find_dependency) if rendered else (Layer(image_id=image.id, name=image.name),)
    with output_directory(output, overwrite=overwrite) as directory:
        extract_layers(store, layers, directory, progress)
        if rootfs_only:
            _become(directory, directory / ROOTFS)


def _become(directory: Path, part: Path) -> None:
    """Put a directory's part in its place."""
    aside = directory.with_name("rootfs")
    os.rename(part, aside)
    shutil.rmtree(directory)
    os.rename(aside, directory)
