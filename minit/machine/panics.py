"""
The last words of a kernel that panicked, which it has kept where a reset does not reach: pstore.

The kernel's Documentation/ABI/testing/pstore is the authority. A record is a file, and a panic some of them, of which
the first has the end of the log.
"""

from __future__ import annotations

import os
import re

from minit import paths, syscalls
from minit.errors import describe
from minit.machine.requests import is_container
from minit.plan.root.mountoperations import MountFilesystem
from minit.reaper.record import write_durably
from minit.stdio import complain_at_once
from minit.supervisor.root.applymounts import new_filesystem
from minit.utctime import utc_text
from minit.value import Value

_PSTORE = "/sys/fs/pstore"
_OF_POD = f"{paths.MACHINE_POD}/{paths.POD_STAGE1_ROOTFS}{paths.STAGE1_PANIC}"
_HEAD = re.compile(rb"(\w+)#\d+ Part(\d+)\n")
_PRIORITY = re.compile(rb"^<\d+>", re.MULTILINE)
_REASON = re.compile(r"(?:Kernel panic - not syncing|Oops|BUG): ?[^\n]*")
_RECORD_BYTES = 1 << 17
_MOST_BYTES = 1 << 18
# Of those that nobody may remove, since nothing else outlives a boot.
_MOST_RECORDS = 16


class _Record(Value):
    """A file of pstore: when it was written, of which part of the log, with what text."""

    path: str
    seconds: float
    kind: str
    part: int
    text: bytes


def keep_panics(*, is_kept: bool) -> None:
    """
    Write down what the kernel has kept, for `minit diagnose` and for apps, and tell of it in a line each.

    Records are removed if what is written down outlives this boot (`is_kept`), else only the oldest of very many.
    """
    # The store is the machine's, also where this one is only a container on it.
    if is_container() or not os.path.isdir(_PSTORE):
        return
    try:
        tree = new_filesystem(MountFilesystem(fstype="pstore", target=_PSTORE))
        try:
            syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=_PSTORE)
        finally:
            os.close(tree)
        for line in copy_panics(_PSTORE, (paths.MACHINE_PANIC, _OF_POD), is_kept=is_kept):
            complain_at_once(f"minit: {line}")
    except OSError as error:
        complain_at_once(f"minit: pstore: {describe(error)}")


def copy_panics(directory: str, copies: tuple[str, ...], *, is_kept: bool) -> list[str]:
    """Write all records to each of the `copies`, remove those that may go, and return a line for each panic."""
    records = sorted(_read_records(directory), key=lambda record: (record.seconds, record.path))
    if not records:
        return []
    panics: list[list[_Record]] = []
    for record in records:
        # The parts of one panic count from 1 on.
        if not panics or record.part <= panics[-1][-1].part or record.kind != panics[-1][-1].kind:
            panics.append([])
        panics[-1].append(record)
    lines, texts = [], []
    for panic in panics:
        text = b"".join(record.text for record in reversed(panic))
        reason = _REASON.search(text.decode(errors="replace"))
        why = reason[0] if reason else "for no known reason"
        lines.append(f"{panic[0].kind} at {utc_text(panic[0].seconds)}: {why}")
        texts.append(lines[-1].encode() + b"\n" + text.rstrip(b"\n") + b"\n")
    for copy in copies:
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        write_durably(copy, b"".join(texts)[-_MOST_BYTES:])
    for record in records if is_kept else records[:-_MOST_RECORDS]:
        os.unlink(record.path)
    return lines


def _read_records(directory: str) -> list[_Record]:
    found = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with open(path, "rb") as file:
            text = file.read(_RECORD_BYTES)
        head = _HEAD.match(text)
        kind, part = (head[1].decode().lower(), int(head[2])) if head else (name, 1)
        text = _PRIORITY.sub(b"", text[head.end() :] if head else text)
        found.append(_Record(path=path, seconds=os.stat(path).st_mtime, kind=kind, part=part, text=text))
    return found
