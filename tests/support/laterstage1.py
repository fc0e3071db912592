"""A later release of a stage1 image: the same files and another one, under another version."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.stage0_world import add_directory, add_file

VERSION = "999.0.0"
MARK = "rkt/of-a-later-release"


def write_later_stage1(stage1: Path, output: Path, *, version: str = VERSION, without: str | None = None) -> Path:
    """Write an image with the files of `stage1`, but for those in a directory, with MARK, and of another version."""
    with tarfile.open(stage1) as old, tarfile.open(output, "w") as new:
        for entry in old:
            if without is not None and entry.name.startswith(f"rootfs/{without}"):
                continue
            data = old.extractfile(entry) if entry.isfile() else None
            if data is not None and entry.name == "manifest":
                manifest = changed_manifest(json.load(data), {"version": version})
                entry.size, data = len(manifest), io.BytesIO(manifest)
            new.addfile(entry, data)
        add_directory(new, f"rootfs/{MARK}")
    return output


def write_manifest_alone(stage1: Path, output: Path, **changes: Any) -> Path:
    """Write an image with no files, and with the manifest of `stage1` but for the changes of `changed_manifest`."""
    with tarfile.open(stage1) as old, tarfile.open(output, "w") as new:
        data = old.extractfile("manifest")
        assert data is not None
        add_file(new, "manifest", changed_manifest(json.load(data), **changes))
        add_directory(new, "rootfs")
    return output


def changed_manifest(
    manifest: dict[str, Any],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str | None] | None = None,
    name: str | None = None,
) -> bytes:
    """Return a manifest with other labels, annotations, of which None leaves one out, and another name."""
    all_labels = _values(manifest["labels"]) | dict(labels or {})
    all_annotations = {**_values(manifest["annotations"]), **(annotations or {})}
    changes = {"name": name or manifest["name"], "labels": _pairs(all_labels), "annotations": _pairs(all_annotations)}
    return json.dumps({**manifest, **changes}).encode()


def _values(pairs: list[dict[str, str]]) -> dict[str, str]:
    return {pair["name"]: pair["value"] for pair in pairs}


def _pairs(values: Mapping[str, str | None]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items() if value is not None]
