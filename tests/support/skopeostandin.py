"""
A program in the place of skopeo, with images of registries that are layouts on the disk.

It writes down how it was called, refuses whoever has not the credentials that it demands, and waits before it copies
for as long as a test wants.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.layers import Layout

_PROGRAM = """#!{python}
import json, os, pathlib, shutil, sys
root = pathlib.Path({root!r})
command, source, *rest = sys.argv[1:]
named = [word.partition("=")[2] for word in rest if word.startswith("--authfile=")]
authfile = open(named[0]).read() if named else None
with open(root / "calls", "a") as calls:
    calls.write(json.dumps([sys.argv, dict(os.environ), authfile]) + "\\n")
if (root / "demands").exists() and (root / "demands").read_text() != authfile:
    sys.exit('time="2026-01-01T00:00:00Z" level=fatal msg="unauthorized: authentication required"')
name, _, reference = source.removeprefix("docker://").rpartition("@" if "@" in source else ":")
layout = root / "repositories" / name
index = json.loads((layout / "index.json").read_bytes())
by_tag = {{one["annotations"]["org.opencontainers.image.ref.name"]: one for one in index["manifests"]}}
by_digest = {{one["digest"]: one for one in index["manifests"]}}
if reference not in by_tag | by_digest:
    sys.exit('time="2026-01-01T00:00:00Z" level=fatal msg="manifest unknown"')
entry = (by_tag | by_digest)[reference]
if command == "inspect":
    sys.stdout.buffer.write((layout / "blobs" / entry["digest"].replace(":", "/")).read_bytes())
else:
    if (root / "hold").exists():
        open(root / "hold").read()
    target = pathlib.Path(rest[0].removeprefix("oci:"))
    shutil.copytree(layout, target, dirs_exist_ok=True)
    (target / "index.json").write_text(json.dumps(index | {{"manifests": [entry]}}))
"""


class SkopeoStandIn:
    """The stand-in, which is on the PATH of all programs that are started after it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        program = root / "bin/skopeo"
        program.parent.mkdir(parents=True)
        program.write_text(_PROGRAM.format(python=sys.executable, root=os.fspath(root)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def put(self, repository: str, layout: Layout) -> None:
        """Put images into a repository, in the place of those that it has."""
        layout.write_directory(self._root / "repositories" / repository)

    def demand(self, authfile: dict[str, Any]) -> None:
        """Let in only who has these credentials."""
        (self._root / "demands").write_text(json.dumps(authfile, separators=(",", ":")))

    def hold(self) -> Path:
        """Wait before copies from now on; return a fifo, which can be opened for writing as soon as one does."""
        os.mkfifo(self._root / "hold")
        return self._root / "hold"

    def calls(self) -> list[tuple[list[str], dict[str, str], str | None]]:
        """Return the words, the environment and the file of credentials of each call."""
        try:
            lines = (self._root / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(words, environment, authfile) for words, environment, authfile in map(json.loads, lines)]
