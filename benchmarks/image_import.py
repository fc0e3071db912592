"""An OCI image of many files from its layout to a tree, a pod of it then, and the room of several of its base."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.command import MINIT, compile_ahead
from benchmarks.table import Measure, compare, missing
from tests.support.layers import CONFIG, INDEX, LAYER, MANIFEST, REF_NAME

Clock = Callable[[], float]
PLAIN = (sys.executable, "-m", "minit")

RUNS = 2
LAYER_BYTES = (700_000_000, 300_000_000)
IMAGES = 5
OWN_BYTES = 1_000_000
"""Of the last layer of each image."""

_LARGEST_FILE_BYTES = 4_000_000
_FILES_PER_DIRECTORY = 40
_TEXT_BYTES = 8_000_000


def main() -> None:
    """Print the tables."""
    with scratch() as path:
        layout = write_layout(path)
        absent_podman = missing("skopeo", "podman")
        data = path / "data"
        # The first use makes the stage1 image, and the program from which the command starts.
        compile_ahead()
        minit(data, "prepare", f"oci:{layout}:1")
        compare("import of 1 GB in many files", "s", _importing(path, layout, time.monotonic), RUNS)
        compare("processor time of the same", "s", _importing(path, layout, _processor_seconds), RUNS)
        compare(
            "the same image once more",
            "s",
            {"minit prepare": lambda: minit(data, "prepare", f"oci:{layout}:1")},
            RUNS,
        )
        room: dict[str, Measure | str] = {
            "minit fetch": lambda: minit_room(path, layout),
            "podman's store": f"{absent_podman} is not installed"
            if absent_podman
            else lambda: podman_room(path, layout),
        }
        compare(f"room of {IMAGES} images of one base", "MB", room, 1)


def _importing(path: Path, layout: Path, clock: Clock) -> dict[str, Measure | str]:
    absent, absent_podman = missing("skopeo", "umoci"), missing("skopeo", "podman")
    return {
        "minit fetch": lambda: fetch(path, layout, clock),
        "minit fetch, by Python": lambda: fetch(path, layout, clock, PLAIN),
        "skopeo copy, umoci unpack": f"{absent} is not installed"
        if absent
        else lambda: copy_and_unpack(path, layout, clock),
        "skopeo copy into podman's store": f"{absent_podman} is not installed"
        if absent_podman
        else lambda: podman_pull(path, layout, clock),
        "tar -x of the layers": lambda: untar(path, layout, clock),
    }


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is deleted afterwards."""
    path = Path(tempfile.mkdtemp(prefix="minit-bench-", dir="/var/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def timed(*command: object, clock: Clock = time.monotonic) -> float:
    """Return the seconds a command takes."""
    start = clock()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return clock() - start


def _processor_seconds() -> float:
    """Return the processor time of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def minit(data: Path, *words: str, clock: Clock = time.monotonic, command: Sequence[str] = (MINIT,)) -> float:
    """Return the seconds of a minit command."""
    return timed(*command, f"--dir={data}", *words, clock=clock)


def _new(path: Path) -> Path:
    """
    Make a directory, which stays until the end.

    For minutes after files were deleted ext4 looks, for each new one, for an inode that was not theirs, which can take
    longer than all else that is measured.
    """
    return Path(tempfile.mkdtemp(dir=path))


def fetch(path: Path, layout: Path, clock: Clock, command: Sequence[str] = (MINIT,)) -> float:
    """Return the seconds from a layout to an image of the store and its tree."""
    return minit(_new(path), "fetch", "--quiet", f"oci:{layout}:1", clock=clock, command=command)


def copy_and_unpack(path: Path, layout: Path, clock: Clock) -> float:
    """Return the seconds from a layout to another, as from a registry, and to a root file system."""
    target = _new(path)
    copied, unpacked = target / "copied", target / "unpacked"
    figure = timed("skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}:1", f"oci:{copied}:1", clock=clock)
    return figure + timed("umoci", "raw", "unpack", "--image", f"{copied}:1", unpacked, clock=clock)


def podman_pull(path: Path, layout: Path, clock: Clock) -> float:
    """Return the seconds from a layout to an image in podman's store."""
    root = _new(path)
    storage = _storage(path, root, 1)
    figure = timed("skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}:1", storage, clock=clock)
    _unmount(root)
    return figure


def untar(path: Path, layout: Path, clock: Clock) -> float:
    """Return the seconds that tar takes for the files alone."""
    target = _new(path)
    index = json.loads((layout / "index.json").read_bytes())
    manifest = json.loads((layout / blob_of(index["manifests"][0])).read_bytes())
    return sum(timed("tar", "-C", target, "-xf", layout / blob_of(layer), clock=clock) for layer in manifest["layers"])


def minit_room(path: Path, layout: Path) -> float:
    """Return the megabytes that the images of a layout take in the store, with their trees."""
    data = path / "room"
    minit(data, "fetch", "--quiet", *(f"oci:{layout}:{number}" for number in range(1, IMAGES + 1)))
    return _room(data)


def podman_room(path: Path, layout: Path) -> float:
    """Return the megabytes that they take in podman's store."""
    root = path / "room"
    for number in range(1, IMAGES + 1):
        timed("skopeo", "--insecure-policy", "copy", "-q", f"oci:{layout}:{number}", _storage(path, root, number))
    _unmount(root)
    return _room(root)


def _storage(path: Path, root: Path, number: int) -> str:
    return f"containers-storage:[overlay@{root}+{path / 'run'}]localhost/benchmark:{number}"


def _unmount(root: Path) -> None:
    # The driver makes it a mount of its own.
    subprocess.run(["umount", root / "overlay"], check=False, stderr=subprocess.DEVNULL)


def _room(path: Path) -> float:
    result = subprocess.run(["du", "-s", "--block-size=1000000", path], capture_output=True, text=True, check=True)
    shutil.rmtree(path)
    return float(result.stdout.split()[0])


def blob_of(descriptor: dict[str, str]) -> str:
    """Return where in a layout a blob lies."""
    return "blobs/" + descriptor["digest"].replace(":", "/")


def write_layout(path: Path) -> Path:
    """
    Write images with a layer of each size and a small one of their own, called 1, 2 and so on.

    Their files are as large and compress as well as those of programs.
    """
    layout = path / "layout"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    chance = random.Random(1)
    text = _text(chance)
    layers, diff_ids = [], []
    for number, size_bytes in enumerate(LAYER_BYTES):
        plain, packed = path / "layer.tar", path / "layer.tar.gz"
        _write_layer(plain, number, size_bytes, chance, text)
        with open(packed, "wb") as output:
            subprocess.run(["gzip", "-n", "-c", plain], stdout=output, check=True)
        diff_ids.append(f"sha256:{_sha256(plain)}")
        plain.unlink()
        layers.append(_place(blobs, packed, LAYER + "+gzip"))
    manifests = []
    for number in range(1, IMAGES + 1):
        own = path / "layer.tar"
        _write_layer(own, -number, OWN_BYTES, chance, text)
        config = {
            "os": "linux",
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            "config": {"Cmd": ["/x"]},
            "rootfs": {"type": "layers", "diff_ids": [*diff_ids, f"sha256:{_sha256(own)}"]},
        }
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _document(path, blobs, config, CONFIG),
            "layers": [*layers, _place(blobs, own, LAYER)],
        }
        manifests.append({**_document(path, blobs, document, MANIFEST), "annotations": {REF_NAME: str(number)}})
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return layout


def _text(chance: random.Random) -> bytes:
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(4000)]
    return b" ".join(chance.choices(words, k=_TEXT_BYTES // 6))


def _write_layer(path: Path, number: int, size_bytes: int, chance: random.Random, text: bytes) -> None:
    with tarfile.open(path, "w") as tar:
        written = count = 0
        while written < size_bytes:
            directory = f"usr/lib/package{count // _FILES_PER_DIRECTORY}"
            if count % _FILES_PER_DIRECTORY == 0:
                entry = tarfile.TarInfo(directory)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            size = min(int(chance.lognormvariate(8.6, 1.3)), _LARGEST_FILE_BYTES)
            start = chance.randrange(len(text) - size)
            # A tenth that does not compress.
            data = (text[start : start + size - size // 10] + chance.randbytes(size // 10)).ljust(size)
            entry = tarfile.TarInfo(f"{directory}/file{number}-{count}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
            written, count = written + size, count + 1


def _document(path: Path, blobs: Path, document: object, media_type: str) -> dict[str, object]:
    file = path / "document"
    file.write_text(json.dumps(document))
    return _place(blobs, file, media_type)


def _place(blobs: Path, file: Path, media_type: str) -> dict[str, object]:
    digits, size_bytes = _sha256(file), file.stat().st_size
    file.rename(blobs / digits)
    return {"mediaType": media_type, "digest": f"sha256:{digits}", "size": size_bytes}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
