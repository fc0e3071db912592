"""Writes an update of a machine, of its root and a kernel: the same bytes for the same parts and the same key."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import IO

from minit.base.errors import ImageError
from minit.base.progress import Progress
from minit.image.disk.disk import DiskParts, make_slot
from minit.manifest.machineconfig import Update
from minit.manifest.machineupdate import (
    BLOCK_BYTES,
    UpdateManifest,
    UpdatePart,
    dump_update,
    make_header,
    signed_bytes,
)

_SIGNER = Path(__file__).with_name("sign.py")
_STEPS = 3
_CHUNK_BYTES = 1 << 16


def write_update(
    file: IO[bytes],
    root: Path,
    parts: DiskParts,
    update: Update,
    signing_key: Path,
    scratch: Path,
    progress: Progress,
) -> bytes:
    """
    Write an update with the root that the directory `root` has, and return the public key of its signature.

    `scratch` is an empty directory to work in.
    """
    slot = make_slot(root, parts, scratch, progress, _STEPS)
    progress("writing the update", 2, _STEPS)
    boot_bytes = slot.layout.partition("boot-a").size_bytes
    manifest = dump_update(
        UpdateManifest(
            model=update.model,
            version=update.version,
            architecture=parts.architecture,
            root_hash=slot.root.root_hash,
            root_blocks=slot.root.blocks,
            root=_part(slot.root.path, slot.root.path.stat().st_size, slot.root.path.stat().st_size),
            boot=_part(slot.boot, slot.boot_used_bytes, boot_bytes),
        )
    )
    key, signature = sign(signing_key, signed_bytes(manifest))
    file.write(make_header(manifest, signature) + manifest)
    for path, size_bytes in ((slot.root.path, slot.root.path.stat().st_size), (slot.boot, slot.boot_used_bytes)):
        with path.open("rb") as part:
            while size_bytes:
                data = part.read(min(_CHUNK_BYTES, size_bytes))
                file.write(data)
                size_bytes -= len(data)
    return key


def sign(key: Path, data: bytes) -> tuple[bytes, bytes]:
    """Return the public key of a private one, and its signature of `data`; ImageError if there is none."""
    command = [sys.executable, "-I", "-B", str(_SIGNER), str(key)]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise ImageError(f"cannot sign with {key}: {lines[-1]}")
    public, signature = done.stdout.split()
    return bytes.fromhex(public.decode()), bytes.fromhex(signature.decode())


def _part(path: Path, size_bytes: int, partition_bytes: int) -> UpdatePart:
    assert not size_bytes % BLOCK_BYTES
    digest = hashlib.sha512()
    with path.open("rb") as file:
        while size_bytes > file.tell():
            digest.update(file.read(min(_CHUNK_BYTES, size_bytes - file.tell())))
    return UpdatePart(size_bytes=size_bytes, sha512=digest.hexdigest(), partition_bytes=partition_bytes)
